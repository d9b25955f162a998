//! The QEMU plugin: hands executed blocks and memory accesses to the `coherence` library.
//!
//! Guarantee: it never disturbs the guest; a mistake in its arguments ends QEMU before the guest starts.
//! Mechanism: instructions are counted block by block, on entry; on machines of one CPU by an addition that QEMU
//! compiles into the block. Memory accesses are looked at in transfers mode; in count mode only stores of user
//! programs are, for the markers. Records are written when QEMU exits.
//!
//! Blocks cut short by a fault count whole, so a faulting user program's instructions are over-counted a little;
//! kernel code faults in user copies alone.
#![expect(unsafe_code, reason = "QEMU's plugin interface is C")]

mod qemu;

use coherence::cpu::{self, Cpu, Event};
use coherence::directory::{CPUS, Directory, LINE};
use coherence::insn::{KERNEL, is_repeated_string};
use coherence::marker::Marker;
use coherence::nodes::Nodes;
use coherence::profile::Profile;
use coherence::record::Record;
use coherence::settings::{Mode, Settings};
use qemu::{Access, Block, Inserted, Site};
use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Places written for each phase.
const TOP: usize = 24;

static CPU: [Cpu; CPUS as usize] = [const { Cpu::new() }; CPUS as usize];

static STATE: OnceLock<State> = OnceLock::new();

/// Whether a benchmark has stored a marker yet: before that, moves are followed but need no place.
static BEGUN: AtomicBool = AtomicBool::new(false);

/// The lines that each CPU's string instructions last loaded from and stored to.
static LAST_LINE: [[AtomicU64; 2]; CPUS as usize] =
    [const { [const { AtomicU64::new(0) }; 2] }; CPUS as usize];

struct State {
    settings: Settings,
    smp: u32,
    nodes: Nodes,
    directory: Directory,
    profile: Profile,
}

fn state() -> &'static State {
    STATE.get().expect("set before any callback is registered")
}

/// Called by QEMU through `qemu::qemu_plugin_install`.
fn install(smp: u32, args: Vec<String>) -> Result<(), String> {
    let settings = Settings::parse(args)?;
    if smp > CPUS {
        return Err(format!("at most {CPUS} CPUs"));
    }
    if smp > 1 && settings.mode == Mode::Profile {
        return Err("mode=profile is for machines of one CPU".into());
    }
    let bytes = settings.mem_mib << 20;
    let state = State {
        smp,
        nodes: Nodes::new(settings.nodes, u64::from(smp), bytes),
        // Reported addresses reach beyond the memory's size: see `Nodes::offset_of`, and the hole below 4 GiB.
        directory: Directory::new(2 * bytes + (4 << 30)),
        profile: Profile::default(),
        settings,
    };
    STATE.set(state).map_err(|_| "loaded twice".to_owned())
}

/// Plans what QEMU shall report of a new block.
fn translate(block: &Block) {
    let state = state();
    let addr = block.addr();
    let kernel = addr >= KERNEL;
    let insns = block.len();
    let event = match (kernel, insns) {
        (true, 1) if is_repeated_string(block.bytes(0)) => Event::Repeated,
        (true, _) => Event::Kernel,
        (false, _) => Event::User,
    };
    if state.smp == 1 {
        block.add_on_entry(CPU[0].counter(event), insns as u64);
    } else {
        block.call_on_entry(Inserted::Block {
            event: event as usize,
            insns,
        });
    }
    if state.settings.mode == Mode::Profile && event == Event::Kernel {
        block.add_on_entry(state.profile.counter((addr, insns as u32)), 1);
    }
    if let Some(index) = state
        .settings
        .watches
        .iter()
        .position(|&watch| watch == addr)
    {
        block.call_on_entry(Inserted::Watch(index));
    }
    let every = state.settings.mode == Mode::Transfers;
    if every || !kernel {
        for index in 0..insns {
            let string = is_repeated_string(block.bytes(index));
            block.call_on_access(index, |pc| Site { pc, string }, !every);
        }
    }
}

/// A block is entered.
fn entered(cpu: u32, what: Inserted) {
    let cpu = &CPU[cpu as usize % CPU.len()];
    match what {
        Inserted::Block { event, insns } => cpu.count_index(event, insns as u64),
        Inserted::Watch(index) => cpu.watched(index),
    }
}

/// An instruction has accessed memory.
fn accessed(cpu: u32, site: Site, access: &Access) {
    let state = state();
    let index = cpu as usize % CPU.len();
    let (this, store) = (&CPU[index], access.is_store());
    if site.pc < KERNEL
        && store
        && let Some(marker) = Marker::at(access.vaddr)
    {
        BEGUN.store(true, Relaxed);
        this.marker(marker);
        if state.settings.mode == Mode::Profile {
            state.profile.marker(marker);
        }
        return;
    }
    if state.settings.mode != Mode::Transfers || !BEGUN.load(Relaxed) {
        return;
    }
    // A string instruction goes through a line byte by byte: the line is looked up once, as a whole.
    if site.string {
        let line = access.vaddr & !(LINE - 1) | u64::from(store);
        let last = &LAST_LINE[index][usize::from(store)];
        if last.swap(line, Relaxed) == line {
            return;
        }
    }
    let Some(addr) = access.physical() else {
        return;
    };
    if state.nodes.several() {
        let node = state.nodes.of_memory(state.nodes.offset_of(addr));
        let local = node == state.nodes.of_cpu(u64::from(cpu));
        this.count(if local { Event::Local } else { Event::Remote }, 1);
    }
    let (addr, bytes) = if site.string {
        (addr & !(LINE - 1), LINE)
    } else {
        (addr, access.bytes())
    };
    state.directory.access(cpu, addr, bytes, store, |found| {
        this.moved(site.pc, site.string, found);
    });
}

/// QEMU exits.
fn finish() {
    let state = state();
    let mut lines = Vec::new();
    for sum in cpu::phases(&CPU, TOP) {
        lines.push(Record::Phase {
            case: sum.key.0,
            phase: sum.key.1,
            times: sum.times,
            ns: sum.ns,
            counts: sum.counts,
            instructions: sum.instructions,
            lines: sum.lines,
        });
    }
    for (index, cpu) in CPU.iter().take(state.smp as usize).enumerate() {
        let node = state.nodes.of_cpu(index as u64);
        lines.push(Record::Cpu {
            cpu: index as u32,
            node,
            counts: cpu.totals(),
        });
    }
    for ((case, phase), blocks) in state.profile.phases() {
        lines.extend(
            blocks
                .into_iter()
                .map(|((addr, insns), times)| Record::Block {
                    case,
                    phase,
                    addr,
                    insns,
                    times,
                }),
        );
    }
    let text: String = lines.iter().map(|record| record.to_line() + "\n").collect();
    let written = std::fs::File::create(&state.settings.out)
        .and_then(|mut file| file.write_all(text.as_bytes()));
    if let Err(error) = written {
        eprintln!("coherence: cannot write {}: {error}", state.settings.out);
    }
}
