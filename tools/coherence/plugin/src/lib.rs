//! The QEMU plugin: hands executed blocks and memory accesses to the `coherence` library.
//!
//! Guarantee: the plugin does not change the guest's behaviour; an error in its arguments ends QEMU before the guest
//! starts.
//! Mechanism: instructions are counted block by block, on entry; on machines of one CPU by an addition that QEMU
//! compiles into the block. In transfers mode all memory accesses are examined; in count mode only stores of user
//! programs are, to find the markers, and the kernel's repeated stores of one value. Records are written when QEMU exits.
//!
//! A block that a fault interrupts counts as a whole, so a faulting user program's instructions are over-counted a
//! little; kernel code faults only in user copies.
#![expect(unsafe_code, reason = "QEMU's plugin interface is C")]

mod qemu;

use coherence::cpu::{self, Cpu, Event};
use coherence::directory::{CPUS, Directory, LINE};
use coherence::insn::{self, KERNEL, Kind, is_repeated_string};
use coherence::labels::{self, Labels, Teller};
use coherence::marker::Marker;
use coherence::nodes::Nodes;
use coherence::profile::Profile;
use coherence::record::Record;
use coherence::settings::{Mode, Settings};
use coherence::window::{self, Window};
use qemu::{Access, Block, Inserted, Site};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};

/// Instructions and lines written for each phase.
const TOP: usize = 24;

static CPU: [Cpu; CPUS as usize] = [const { Cpu::new() }; CPUS as usize];

static STATE: OnceLock<State> = OnceLock::new();

/// Whether a benchmark has stored a marker yet: before that, the directory is kept up to date, but moves are not
/// attributed to a place.
static BEGUN: AtomicBool = AtomicBool::new(false);

/// The lines that each CPU's string instructions last loaded from and last stored to.
static LAST_LINE: [[AtomicU64; 2]; CPUS as usize] =
    [const { [const { AtomicU64::new(0) }; 2] }; CPUS as usize];

/// The heap messages of each CPU.
static TELLERS: [Mutex<Teller>; CPUS as usize] =
    [const { Mutex::new(Teller::new()) }; CPUS as usize];

/// Whether a CPU's next store goes to the object that its last message announced.
static TOLD: [AtomicBool; CPUS as usize] = [const { AtomicBool::new(false) }; CPUS as usize];

/// Whether a window is open; lets callbacks return early without taking the lock of [`WINDOWS`].
static OPEN: AtomicBool = AtomicBool::new(false);

/// The window, and the file that its records go to.
static WINDOWS: LazyLock<Mutex<(Window, Option<BufWriter<File>>)>> = LazyLock::new(Mutex::default);

/// The index of the timer's entry point among the watched ones.
const TIMER: usize = 0;

struct State {
    settings: Settings,
    smp: u32,
    nodes: Nodes,
    directory: Directory,
    profile: Profile,
    labels: Labels,
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
        // QEMU reports addresses beyond the memory's size: see `Nodes::offset_of`, and the hole below 4 GiB.
        directory: Directory::new(2 * bytes + (4 << 30)),
        profile: Profile::default(),
        labels: Labels::new(2 * bytes + (4 << 30)),
        settings,
    };
    if state.settings.mode == Mode::Windows {
        let out = File::create(&state.settings.out)
            .map_err(|error| format!("cannot write {}: {error}", state.settings.out))?;
        windows().1 = Some(BufWriter::new(out));
    }
    STATE.set(state).map_err(|_| "loaded twice".to_owned())
}

/// Chooses the callbacks that QEMU makes for a new block.
fn translate(block: &Block) {
    let state = state();
    let addr = block.addr();
    let kernel = addr >= KERNEL;
    let insns = block.len();
    let event = match (kernel, insns) {
        (true, 1) if is_repeated_string(&block.bytes(0)) => Event::Repeated,
        (true, _) => Event::Kernel,
        (false, _) => Event::User,
    };
    if state.settings.mode == Mode::Windows {
        // In this mode no instructions are counted.
    } else if state.smp == 1 {
        block.add_on_entry(CPU[0].counter(event), insns as u64);
    } else {
        block.call_on_entry(Inserted::Block {
            event: event as usize,
            insns,
        });
    }
    if state.settings.mode == Mode::Profile && event == Event::Kernel {
        let lengths = (0..insns).map(|index| block.bytes(index).len() as u8);
        let counter = state
            .profile
            .counter((addr, insns as u32), lengths.collect());
        block.add_on_entry(counter, 1);
    }
    if let Some(index) = state
        .settings
        .watches
        .iter()
        .position(|&watch| watch == addr)
    {
        block.call_on_entry(Inserted::Watch(index));
    }
    let windows = state.settings.mode == Mode::Windows;
    let every = windows || state.settings.mode == Mode::Transfers;
    // Elsewhere, of the kernel's, fills alone: a repeated instruction ends its block.
    let first = if every || !kernel {
        0
    } else {
        insns.saturating_sub(1)
    };
    for index in first..insns {
        let kind = insn::kind(&block.bytes(index));
        if every || !kernel || kind == Kind::Fill {
            block.call_on_access(index, |pc| Site { pc, kind }, !every || !kernel && windows);
        }
    }
}

/// Called when a block is entered.
fn entered(cpu: u32, what: Inserted) {
    let cpu = &CPU[cpu as usize % CPU.len()];
    match what {
        Inserted::Block { event, insns } => cpu.count_index(event, insns as u64),
        Inserted::Watch(index) => {
            cpu.watched(index);
            if OPEN.load(Relaxed) {
                windows().0.interrupted(index == TIMER);
            }
        }
    }
}

/// Called when an instruction has accessed memory.
fn accessed(cpu: u32, site: Site, access: &Access) {
    let state = state();
    if state.settings.mode == Mode::Windows {
        return accessed_in_window(cpu, site, access);
    }
    let index = cpu as usize % CPU.len();
    let store = access.is_store();
    if site.pc < KERNEL && store && stored_marker(&CPU[index], access) {
        return;
    }
    if site.pc >= KERNEL && site.kind == Kind::Fill {
        CPU[index].count(Event::Filled, access.bytes());
    }
    if state.settings.mode != Mode::Transfers {
        return;
    }
    if site.pc >= KERNEL && store && follow_labels(index, access) {
        return;
    }
    if !BEGUN.load(Relaxed) {
        return;
    }
    let string = matches!(site.kind, Kind::String | Kind::Fill);
    if string && is_last_line(index, access) {
        return;
    }
    let Some(addr) = access.physical() else {
        return;
    };
    if state.nodes.several() {
        count_node(cpu, site.pc, addr);
    }
    let physical = addr;
    let (addr, bytes) = if string {
        (addr & !(LINE - 1), LINE)
    } else {
        (addr, access.bytes())
    };
    state.directory.access(cpu, addr, bytes, store, |found| {
        let labelled = state.settings.labels.is_some();
        let place = labelled.then(|| state.labels.place(access.vaddr, physical));
        CPU[index].moved(site.pc, string, found, place);
    });
}

/// Takes a marker that a user program has stored, if this store is one; returns whether it is.
fn stored_marker(this: &Cpu, access: &Access) -> bool {
    let Some(marker) = Marker::at(access.vaddr) else {
        return false;
    };
    BEGUN.store(true, Relaxed);
    this.marker(marker);
    let state = state();
    if state.settings.mode == Mode::Profile {
        state.profile.marker(marker);
    }
    true
}

/// Whether a CPU's string instructions last loaded from, or stored to, the same line; notes the line. A string
/// instruction accesses a line byte by byte, but the line is looked up only once, as a whole.
fn is_last_line(cpu: usize, access: &Access) -> bool {
    let store = access.is_store();
    let line = access.vaddr & !(LINE - 1) | u64::from(store);
    LAST_LINE[cpu][usize::from(store)].swap(line, Relaxed) == line
}

/// Counts a CPU's access to the physical address `addr` as one to memory of its own node or of another, and once more
/// if the instruction at `pc` is the kernel's.
fn count_node(cpu: u32, pc: u64, addr: u64) {
    let state = state();
    let this = &CPU[cpu as usize % CPU.len()];
    let node = state.nodes.of_memory(state.nodes.offset_of(addr));
    let local = node == state.nodes.of_cpu(u64::from(cpu));
    this.count(if local { Event::Local } else { Event::Remote }, 1);
    if pc >= KERNEL {
        let event = if local {
            Event::KernelLocal
        } else {
            Event::KernelRemote
        };
        this.count(event, 1);
    }
}

/// Follows the kernel's messages about its heap; returns whether the store was part of one.
fn follow_labels(cpu: usize, access: &Access) -> bool {
    let state = state();
    let Some(table) = state.settings.labels else {
        return false;
    };
    let offset = access.vaddr.wrapping_sub(table);
    let spelled = offset < labels::TABLE;
    if !spelled && !TOLD[cpu].load(Relaxed) {
        return false;
    }
    let mut teller = TELLERS[cpu].lock().unwrap_or_else(PoisonError::into_inner);
    if spelled {
        teller.heard(offset);
        TOLD[cpu].store(offset / 8 == 256, Relaxed);
    } else {
        TOLD[cpu].store(false, Relaxed);
        if let (Some(told), Some(addr)) = (teller.take(), access.physical()) {
            state.labels.note(addr, told);
        }
    }
    true
}

fn windows() -> MutexGuard<'static, (Window, Option<BufWriter<File>>)> {
    WINDOWS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Called when an instruction has accessed memory, in windows mode: a user program's stores can be markers, the
/// kernel's accesses belong to the open window.
fn accessed_in_window(cpu: u32, site: Site, access: &Access) {
    if site.pc < KERNEL {
        if let Some(marker) = commute::marker::Marker::at(access.vaddr) {
            let mut windows = windows();
            let record = windows.0.marker(marker);
            OPEN.store(windows.0.is_open(), Relaxed);
            if let (Some(record), Some(out)) = (record, &mut windows.1) {
                // Another program reads the file meanwhile to follow the progress.
                let written = writeln!(out, "{}", record.to_line()).and_then(|()| out.flush());
                if let Err(error) = written {
                    eprintln!("coherence: cannot write a window: {error}");
                }
            }
        }
        return;
    }
    if !OPEN.load(Relaxed) {
        return;
    }
    let Some(addr) = access.physical() else {
        return;
    };
    windows().0.access(&window::Access {
        cpu,
        pc: site.pc,
        kind: site.kind,
        vaddr: access.vaddr,
        addr,
        bytes: access.bytes(),
        store: access.is_store(),
    });
}

/// Called when QEMU exits.
fn finish() {
    let state = state();
    if state.settings.mode == Mode::Windows {
        return;
    }
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
            causes: sum.causes,
        });
    }
    for (number, label) in state.labels.all().into_iter().enumerate() {
        let number = number as u32;
        lines.push(Record::Label { number, label });
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
                    lengths: state.profile.lengths((addr, insns)),
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
