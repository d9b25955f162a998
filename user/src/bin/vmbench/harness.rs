//! Runs one case on N workers and collects their measurements.
//!
//! Guarantee: the workers of a case are processes, each bound to its own CPU; they start each timed phase together and
//! stop the clock before anything is torn down. A worker that finds a wrong result makes the whole case fail, and the
//! others do not hang on it.
//! Mechanism: one shared anonymous page area holds a barrier and a slot per worker; times are added into the slot, so
//! that a worker's own children can be timed too.
//!
//! Markers for outside observers, which see the addresses of a program's stores but not the values: [`MARKER`] is a
//! page of its own, mapped at that address in every worker, with eight words for each case (counted from 1). A timed
//! phase begins with a store to the last of them and ends with one to the word with the phase's index. A store to word
//! 0 of the page means that no phase is running.

use std::sync::atomic::Ordering::SeqCst;
use user::proc;
use user::sys::{self, Errno};

/// The address of the marker page (private, resident before the first phase).
pub const MARKER: u64 = 0x5a00_0000;

const MARKER_WORDS: u64 = 8; // a case's

/// Bytes of a page.
pub const PAGE: u64 = 4096;

/// The most timed phases of a case.
pub const PHASES: usize = 4;

const SLOT: u64 = 512; // bytes; times, counts, state and a message
const HEADER: u64 = PAGE;
const ARRIVED: u64 = 0;
const FAILED: u64 = 64; // own cache line: read in the barrier's loop
const STATE: u64 = 8 * 2 * PHASES as u64;
const MEMORY: u64 = STATE + 8; // bytes and processes of each figure of memory
const MESSAGE: u64 = MEMORY + 16 * MEMORIES.len() as u64;

/// Figures of memory that a case may report, by suffix of its name, and what has so many bytes each: with everything in use, after a
/// pause in which no process ran, and for each page that is mapped.
const MEMORIES: [(&str, Unit); 3] = [
    ("-memory", Unit::Process),
    ("-idle-memory", Unit::Process),
    ("", Unit::Mapping),
];

/// What bytes are counted for.
#[derive(Clone, Copy)]
pub enum Unit {
    /// A process.
    Process,
    /// A page mapped once.
    Mapping,
}

/// One benchmark.
pub struct Case {
    /// The name that `--cases` matches by prefix.
    pub name: &'static str,
    /// The operation that is measured.
    pub what: &'static str,
    /// Names of the timed phases, appended to the case's name; the first is often empty.
    pub phases: &'static [&'static str],
    /// Run once before the workers are created; the value is passed to each of them.
    pub prepare: fn(&Plan) -> Result<u64, String>,
    /// The work of a worker.
    pub work: fn(&mut Worker) -> Result<(), String>,
}

/// How the message of a case begins that this kernel or image has not got the means for. It is neither right nor wrong.
pub const NOT_HERE: &str = "not here: ";

/// The amount of work.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Workers of each case.
    pub workers: usize,
    /// The CPUs that the workers are bound to, in order; reused if there are more workers.
    pub cpus: Vec<usize>,
    /// Repetitions in permille of each case's own number.
    pub permille: u64,
    /// Processes in a chain.
    pub chain: u64,
    /// Processes sharing the region.
    pub sharers: u64,
    /// The directory for files.
    pub dir: String,
    /// The dynamic program of the exec case.
    pub dynamic: String,
    /// The directory of `tiny-true` and `true-static`.
    pub programs: String,
    /// The directory in which `make` builds a program.
    pub source: String,
}

impl Plan {
    /// `count` scaled, at least one.
    pub fn scaled(&self, count: u64) -> u64 {
        (count * self.permille / 1000).max(1)
    }
}

/// One process of a case.
pub struct Worker {
    /// Its index, from 0.
    pub index: usize,
    /// The plan of the run.
    pub plan: Plan,
    /// What `prepare` returned.
    pub prepared: u64,
    case: u64,
    shared: u64,
    rounds: u64,
    started: u64,
}

impl Worker {
    fn slot(&self) -> u64 {
        self.shared + HEADER + self.index as u64 * SLOT
    }

    /// Returns when every worker of the case has called it as often as this one.
    pub fn barrier(&mut self) {
        self.rounds += 1;
        let arrived = sys::atomic(self.shared + ARRIVED);
        let all = self.rounds * self.plan.workers as u64;
        arrived.fetch_add(1, SeqCst);
        let mut spins = 0u32;
        while arrived.load(SeqCst) < all {
            if sys::atomic(self.shared + FAILED).load(SeqCst) != 0 {
                sys::exit(3);
            }
            spins += 1;
            if spins > 200 {
                nap(50_000);
            }
        }
    }

    fn mark(&self, word: u64) {
        sys::poke64(MARKER + 8 * (MARKER_WORDS * self.case + word), 1);
    }

    /// Begins a timed phase.
    pub fn start(&mut self) {
        self.mark(MARKER_WORDS - 1);
        self.started = sys::now_ns();
    }

    /// Ends a timed phase in which `ops` operations were executed.
    pub fn stop(&mut self, phase: usize, ops: u64) {
        let ns = sys::now_ns() - self.started;
        self.mark(phase as u64);
        let slot = self.slot() + phase as u64 * 16;
        sys::atomic(slot).fetch_add(ns, SeqCst);
        sys::atomic(slot + 8).fetch_add(ops, SeqCst);
    }

    /// Begins a timed phase in which this worker and its children are on all CPUs: no other worker is there.
    ///
    /// # Errors
    /// The kernel refuses a change of CPU.
    pub fn start_on_all(&mut self) -> Result<(), String> {
        self.mark_on_all(MARKER_WORDS - 1)?;
        self.started = sys::now_ns();
        Ok(())
    }

    /// Ends such a phase, whose whole was one operation.
    ///
    /// # Errors
    /// As for `start_on_all`.
    pub fn stop_on_all(&mut self, phase: usize) -> Result<(), String> {
        self.stop(phase, 1);
        self.mark_on_all(phase as u64)
    }

    fn mark_on_all(&self, word: u64) -> Result<(), String> {
        let refused = err("sched_setaffinity");
        for &cpu in &self.plan.cpus {
            sys::tie_to_cpu(cpu).map_err(&refused)?;
            self.mark(word);
        }
        sys::tie_to_cpus(&self.plan.cpus).map_err(&refused)
    }

    /// Records figure `which` of [`MEMORIES`]: the decrease of free memory since it was `before`, divided by
    /// `units`, which are processes or mappings. It covers all workers, so only one worker's figure counts.
    pub fn memory(&self, which: usize, before: Option<u64>, units: u64) {
        if let (0, Some(before), Some(now)) = (self.index, before, proc::meminfo("MemFree")) {
            let at = self.slot() + MEMORY + 16 * which as u64;
            sys::atomic(at).store(before.saturating_sub(now), SeqCst);
            sys::atomic(at + 8).store(units, SeqCst);
        }
    }

    fn run(&mut self, case: &Case) -> ! {
        let result = tie(self).and_then(|()| (case.work)(self));
        let slot = self.slot();
        if let Err(message) = &result {
            for (i, byte) in message
                .bytes()
                .take((SLOT - MESSAGE - 1) as usize)
                .enumerate()
            {
                sys::poke(slot + MESSAGE + i as u64, byte);
            }
            sys::atomic(self.shared + FAILED).store(1, SeqCst);
        }
        sys::atomic(slot + STATE).store(1 + u64::from(result.is_err()), SeqCst);
        sys::exit(i32::from(result.is_err()))
    }
}

/// Binds the calling process to the CPU of worker `index`.
fn tie_to_cpu_of(plan: &Plan, index: usize) -> Result<(), String> {
    let cpu = plan.cpus[index % plan.cpus.len()];
    sys::tie_to_cpu(cpu).map_err(err("sched_setaffinity"))
}

fn tie(worker: &Worker) -> Result<(), String> {
    tie_to_cpu_of(&worker.plan, worker.index)?;
    let marker = sys::mmap(
        MARKER,
        PAGE,
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
        -1,
        0,
    )
    .map_err(err("mmap of the marker page"))?;
    sys::poke64(marker, 0);
    Ok(())
}

pub use sys::nap;

/// Converts an errno into a message that names the call.
pub fn err(what: &'static str) -> impl Fn(Errno) -> String {
    move |errno| format!("{what}: {}", std::io::Error::from_raw_os_error(errno))
}

/// One line of results.
pub struct Outcome {
    /// Case and phase.
    pub name: String,
    /// The operation that is measured.
    pub what: &'static str,
    /// Operations of all workers.
    pub ops: u64,
    /// Mean over the workers of time per operation.
    pub ns_per_op: f64,
    /// Sum of the workers' rates.
    pub ops_per_s: f64,
    /// Bytes for each of them, where the case measures memory instead.
    pub bytes: Option<(f64, Unit)>,
}

/// Runs `case`; the outcomes are its phases in order.
///
/// # Errors
/// The error of the first worker that failed.
pub fn run(number: usize, case: &Case, plan: &Plan) -> Result<Vec<Outcome>, String> {
    let bytes = HEADER + plan.workers as u64 * SLOT;
    let shared = sys::mmap(
        0,
        bytes,
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_SHARED | libc::MAP_ANONYMOUS,
        -1,
        0,
    )
    .map_err(err("mmap of the result area"))?;
    let prepared = (case.prepare)(plan)?;
    let mut pids = Vec::with_capacity(plan.workers);
    for index in 0..plan.workers {
        let (plan, case_id) = (plan.clone(), number as u64 + 1);
        let mut worker = Worker {
            index,
            plan,
            prepared,
            case: case_id,
            shared,
            rounds: 0,
            started: 0,
        };
        // The worker starts on its CPU, so that the kernel allocates its memory on that CPU's node.
        tie_to_cpu_of(&worker.plan, index)?;
        match sys::fork().map_err(err("fork of a worker"))? {
            0 => worker.run(case),
            pid => pids.push(pid),
        }
    }
    let mut failed = None;
    for (index, &pid) in pids.iter().enumerate() {
        let (_, status) = sys::wait(pid as i64, 0).map_err(err("wait for a worker"))?;
        let slot = shared + HEADER + index as u64 * SLOT;
        let state = sys::peek64(slot + STATE);
        if state == 2 {
            failed.get_or_insert_with(|| message(slot + MESSAGE));
        } else if (status != 0 || state != 1) && status != 3 << 8 {
            sys::atomic(shared + FAILED).store(1, SeqCst);
            failed.get_or_insert_with(|| format!("worker {index} ended with status {status:#x}"));
        }
    }
    let outcomes = collect(case, plan, shared);
    let _ = sys::munmap(shared, bytes);
    failed.map_or(outcomes, Err)
}

fn message(addr: u64) -> String {
    let bytes = (addr..addr + SLOT - MESSAGE)
        .map(sys::peek)
        .take_while(|&byte| byte != 0);
    String::from_utf8_lossy(&bytes.collect::<Vec<_>>()).into_owned()
}

fn collect(case: &Case, plan: &Plan, shared: u64) -> Result<Vec<Outcome>, String> {
    let slots = || (0..plan.workers as u64).map(|i| shared + HEADER + i * SLOT);
    let mut outcomes = Vec::new();
    for (phase, suffix) in case.phases.iter().enumerate() {
        let (mut ops, mut ns_per_op, mut rate) = (0, 0.0, 0.0);
        for slot in slots() {
            let ns = sys::peek64(slot + phase as u64 * 16).max(1) as f64;
            let done = sys::peek64(slot + phase as u64 * 16 + 8);
            if done == 0 {
                return Err(format!("a worker did no operation in phase {phase}"));
            }
            ops += done;
            ns_per_op += ns / done as f64 / plan.workers as f64;
            rate += done as f64 * 1e9 / ns;
        }
        let name = format!("{}{suffix}", case.name);
        outcomes.push(Outcome {
            name,
            what: case.what,
            ops,
            ns_per_op,
            ops_per_s: rate,
            bytes: None,
        });
    }
    let memories = || MEMORIES.iter().zip((MEMORY..).step_by(16));
    for (slot, (&(suffix, unit), at)) in slots().flat_map(|slot| memories().map(move |m| (slot, m)))
    {
        let units = sys::peek64(slot + at + 8);
        if units > 0 {
            outcomes.push(Outcome {
                name: format!("{}{suffix}", case.name),
                what: "bytes",
                ops: units,
                ns_per_op: 0.0,
                ops_per_s: 0.0,
                bytes: Some((sys::peek64(slot + at) as f64 / units as f64, unit)),
            });
        }
    }
    Ok(outcomes)
}
