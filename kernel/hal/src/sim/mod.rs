//! A simulated machine, on which the crates above run in tests on a host.
//!
//! Guarantee: as on the real machine, one thread at a time runs on a CPU, and it stays there while preemption is off; an
//! interrupt comes only while interrupts are on. Time passes only as the machine says: a little with each look at the clock,
//! and up to the next timer when every CPU halts; the host's speed does not matter. If every CPU halts, no timer is armed and the test is not over, a wake-up was
//! lost: the test fails and says so.
//!
//! Mechanism: each thread of the kernel is a thread of the host, or of a model checker; a CPU is a baton that
//! [`switch`](crate::context::switch) hands from one to the next. Interrupts are taken at fixed points: where interrupts or
//! preemption are turned on, where preemption is turned off, in waiting loops, and in a halt. A module replaces the one
//! of the same name of the real machine.
//!
//! Not simulated: devices, interrupts between two instructions, translation of kernel addresses, the FPU.

pub(crate) mod clock;
pub mod console;
pub mod context;
pub mod cpu;
pub mod fpu;
pub(crate) mod info;
pub mod ipi;
pub mod irq;
pub mod machine;
pub mod percpu;
pub mod preempt;
pub mod program;
pub mod sample;
pub mod sections;
pub mod snapshot;
pub mod spaces;
pub mod stack;
mod statics;
pub(crate) mod threads;
pub mod time;
pub mod timer;
pub(crate) mod user_copy;

use alloc::boxed::Box;
use alloc::sync::{Arc, Weak};
use core::any::Any;
use core::cell::RefCell;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering::*};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use vm::Space;
use vm_host::Sim;

use crate::upcalls::symbols;
use threads::{Builder, Condvar, Mutex, MutexGuard};

pub use info::BootInfo;
pub use statics::PerMachine;

/// Timers that still expire once the test's body has returned: CPUs that halt wait so for grace periods.
const LAST_TIMERS: u32 = 100;

/// What the machine is made of.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Number of CPUs.
    pub cpus: usize,
    /// Frames of memory.
    pub frames: usize,
}

impl Config {
    /// A machine with so many CPUs, and memory for a few small processes. A model checker boots thousands of machines, so theirs
    /// have less.
    pub fn small(cpus: usize) -> Self {
        Config {
            cpus,
            frames: if cfg!(shuttle) { 512 } else { 2048 },
        }
    }
}

/// One CPU. Plain atomics, because this is the machine and not the protocol under test. What has no comment is written by the
/// thread that runs on the CPU.
pub(crate) struct Cpu {
    pub(crate) preempt: AtomicU32,
    pub(crate) need_resched: AtomicBool,
    pub(crate) irqs_on: AtomicBool,
    pub(crate) handling: AtomicBool,
    pub(crate) current: AtomicPtr<()>,
    /// When its timer expires; `u64::MAX` if it is not armed. Read by all.
    pub(crate) armed_ns: AtomicU64,
    /// Its time, in nanoseconds since boot. Read by all.
    time: AtomicU64,
    /// Whether another CPU has asked it to reschedule, and when the first one did. Written by all, with the machine's state
    /// locked.
    asked: AtomicBool,
    asked_ns: AtomicU64,
    /// Whether it halts, or may not start yet. Written with the machine's state locked; read by all.
    halts: AtomicBool,
    /// Notified when there may be an interrupt for the CPU, or the machine stops.
    wake: Condvar,
    /// Interrupts taken, by kind. Read by all.
    pub(crate) counts: [AtomicU64; 4],
    /// The address space that it runs.
    pub(crate) space: Mutex<Option<Arc<Space>>>,
}

impl Cpu {
    fn new() -> Self {
        Cpu {
            preempt: AtomicU32::new(0),
            need_resched: AtomicBool::new(false),
            irqs_on: AtomicBool::new(false),
            handling: AtomicBool::new(false),
            current: AtomicPtr::new(core::ptr::null_mut()),
            armed_ns: AtomicU64::new(u64::MAX),
            time: AtomicU64::new(1),
            asked: AtomicBool::new(false),
            asked_ns: AtomicU64::new(0),
            halts: AtomicBool::new(true),
            wake: Condvar::new(),
            counts: [const { AtomicU64::new(0) }; 4],
            space: Mutex::new(None),
        }
    }
}

/// What the test does, in a thread of the kernel.
type Body = Box<dyn FnOnce() + Send>;

/// The machine's state besides its CPUs.
#[derive(Default)]
struct State {
    body: Option<Body>,
    /// Whether the CPUs other than the first may start.
    released: bool,
    /// Whether the test's body has returned.
    finished: bool,
    /// Whether the CPUs are to end.
    stopped: bool,
    /// How often time has passed since then.
    passed: u32,
    /// CPUs that have ended.
    ended: usize,
    /// Why the test fails: what a thread has panicked with.
    failure: Option<Box<dyn Any + Send>>,
}

/// A simulated machine.
pub(crate) struct Machine {
    config: Config,
    pub(crate) cpus: Box<[Cpu]>,
    state: Mutex<State>,
    /// Notified when a CPU has ended or a thread has failed.
    over: Condvar,
    /// Whether a thread has failed, so that no CPU waits for another any more.
    failed: AtomicBool,
    /// The state of its random generator.
    pub(crate) random: AtomicU64,
    /// The memory, once the kernel has set it up.
    memory: std::sync::OnceLock<&'static Sim>,
    programs: std::sync::Mutex<std::vec::Vec<program::Program>>,
    /// The threads that have run.
    threads: std::sync::Mutex<std::vec::Vec<Weak<context::Turn>>>,
    values: statics::Values,
}

/// The machine and the CPU that run a thread.
#[derive(Clone)]
pub(crate) struct Here {
    pub(crate) machine: Arc<Machine>,
    pub(crate) cpu: usize,
}

threads::thread_local! {
    /// `None` for a thread that no CPU runs: one that has been switched away, or one outside of the machine.
    #[cfg_attr(not(shuttle), expect(clippy::missing_const_for_thread_local, reason = "a model checker's has no such form"))]
    static HERE: RefCell<Option<Here>> = RefCell::new(None);
}

/// What runs this thread.
pub(crate) fn here() -> Option<Here> {
    HERE.with(|h| h.borrow().clone())
}

/// Sets what runs this thread, and returns what ran it before.
pub(crate) fn set_here(new: Option<Here>) -> Option<Here> {
    HERE.with(|h| h.replace(new))
}

/// Calls `f` with the CPU that runs this thread. A thread that no CPU runs gets `default`: it ends, and its destructors turn
/// preemption on.
pub(crate) fn with_cpu<R>(default: R, f: impl FnOnce(&Cpu) -> R) -> R {
    HERE.with(|h| {
        h.borrow()
            .as_ref()
            .map_or(default, |here| f(&here.machine.cpus[here.cpu]))
    })
}

/// As [`with_cpu`], with the machine.
pub(crate) fn with_machine<R>(default: R, f: impl FnOnce(&Machine) -> R) -> R {
    HERE.with(|h| h.borrow().as_ref().map_or(default, |here| f(&here.machine)))
}

/// Keeps `value` as long as the machine that runs this thread.
///
/// # Panics
/// If no machine does.
pub fn keep<T: Send + Sync + 'static>(value: T) -> &'static T {
    let here = here().expect("a machine runs this thread");
    here.machine.values.keep(value)
}

/// Tells the machine what its memory is. Called once, at boot.
pub(crate) fn set_memory(memory: &'static Sim) {
    with_machine((), |m| {
        assert!(m.memory.set(memory).is_ok(), "memory is set up once");
    });
}

/// The machine's memory.
pub(crate) fn memory() -> &'static Sim {
    with_machine(None, |m| m.memory.get().copied()).expect("the memory is set up first")
}

/// The payload by which a thread of the host ends whose thread of the kernel is gone.
struct Gone;

/// Ends this thread of the host, whose destructors run as if on `here`, or else on no CPU.
pub(crate) fn end_thread(here: Option<Here>) -> ! {
    set_here(here);
    resume_unwind(Box::new(Gone))
}

/// Runs `body`, on a new thread of the host, on the CPU that `on` names; and when it has ended, `ended`, on no CPU.
pub(crate) fn start_thread(
    on: Here,
    body: impl FnOnce() + Send + 'static,
    ended: impl FnOnce() + Send + 'static,
) {
    let machine = Arc::downgrade(&on.machine);
    let run = move || {
        set_here(Some(on));
        let result = catch_unwind(AssertUnwindSafe(body));
        set_here(None);
        match result {
            Err(payload) if !payload.is::<Gone>() => fail(&machine, payload),
            _ => ended(),
        }
    };
    // The thread is never joined: it ends when its thread of the kernel is freed.
    let spawned = Builder::new().spawn(run);
    drop(spawned.expect("a thread of the host"));
}

/// Makes the test fail with `payload`.
fn fail(machine: &Weak<Machine>, payload: Box<dyn Any + Send>) {
    // A model checker sees the panic itself.
    if cfg!(shuttle) {
        resume_unwind(payload);
    }
    if let Some(machine) = machine.upgrade() {
        let mut state = machine.state();
        machine.failed.store(true, Relaxed);
        state.failure.get_or_insert(payload);
        machine.over.notify_all();
    }
}

/// Boots a machine, runs `body` in one of its threads, and turns the machine off when `body` has returned and all CPUs halt.
///
/// The kernel is what [`upcalls!`](crate::upcalls!) names. Its `kmain` gets the [`BootInfo`], and makes a thread which calls
/// [`run_body`].
///
/// # Panics
/// With the payload of the first thread that panics; or if all CPUs halt, no timer is armed, and `body` has not returned.
pub fn run(config: Config, body: impl FnOnce() + Send + 'static) {
    assert!(config.cpus > 0 && config.cpus <= crate::MAX_CPUS);
    let machine = Arc::new(Machine {
        config,
        cpus: (0..config.cpus).map(|_| Cpu::new()).collect(),
        state: Mutex::new(State {
            body: Some(Box::new(body)),
            ..State::default()
        }),
        over: Condvar::new(),
        failed: AtomicBool::new(false),
        random: AtomicU64::new(0x9e37_79b9_7f4a_7c15),
        memory: std::sync::OnceLock::new(),
        programs: std::sync::Mutex::default(),
        threads: std::sync::Mutex::default(),
        values: statics::Values::default(),
    });
    for cpu in 0..config.cpus {
        let on = Here {
            machine: machine.clone(),
            cpu,
        };
        start_thread(on, move || start_cpu(cpu), || ());
    }
    let failure = machine.wait_until_over();
    if let Some(payload) = failure {
        // Its threads may still run, so nothing of it is freed.
        core::mem::forget(machine);
        resume_unwind(payload);
    }
    machine.free();
}

/// What a CPU does first.
fn start_cpu(cpu: usize) {
    let here = here().expect("just set");
    let config = here.machine.config;
    if cpu == 0 {
        here.machine.cpus[0].halts.store(false, Relaxed);
        drop(here);
        symbols::kmain(BootInfo {
            ncpus: config.cpus,
            frames: config.frames,
        })
    }
    let mut state = here.machine.state();
    while !state.released && !state.stopped {
        state = wait(&here.machine.cpus[cpu].wake, state);
    }
    drop(state);
    drop(here);
    symbols::ap_main(cpu)
}

fn wait<'a>(on: &Condvar, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
    on.wait(state).expect("no test has failed")
}

/// Lets the other CPUs start. Called once, by the boot CPU. They count as CPUs that run from here on, for each looks for work before
/// it halts.
pub fn release_cpus() {
    with_machine((), |machine| {
        let mut state = machine.state();
        state.released = true;
        let now = machine.latest();
        for cpu in &machine.cpus[1..] {
            cpu.time.store(now, Relaxed);
            cpu.halts.store(false, Relaxed);
        }
        machine.wake_all();
    });
}

/// Runs the body of the test, in the calling thread. Called once, by the kernel's first thread that may sleep.
pub fn run_body() {
    let here = here().expect("a machine runs this thread");
    let body = here.machine.state().body.take();
    let machine = here.machine;
    body.expect("a machine runs one test")();
    machine.state().finished = true;
}

impl Machine {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no test has failed")
    }

    fn wake_all(&self) {
        self.cpus.iter().for_each(|cpu| cpu.wake.notify_all());
    }

    /// Waits until all CPUs have ended, or a thread has failed. Returns why.
    fn wait_until_over(&self) -> Option<Box<dyn Any + Send>> {
        let mut state = self.state();
        while state.failure.is_none() && state.ended < self.cpus.len() {
            state = wait(&self.over, state);
        }
        state.failure.take()
    }

    /// Frees what the kernel keeps in statics. No CPU runs.
    fn free(self: Arc<Self>) {
        // Destructors turn preemption off and look at per-CPU data.
        let here = Here {
            machine: self.clone(),
            cpu: 0,
        };
        set_here(Some(here.clone()));
        self.cpus[0].irqs_on.store(false, Relaxed);
        let threads = core::mem::take(&mut *self.threads.lock().expect("no test has failed"));
        for turn in threads.iter().filter_map(Weak::upgrade) {
            turn.end(here.clone());
        }
        drop(here);
        for cpu in &self.cpus {
            cpu.current.store(core::ptr::null_mut(), Relaxed);
            let space = cpu.space.lock().expect("no test has failed").take();
            drop(space);
        }
        self.values.clear();
        set_here(None);
    }

    /// Records that a thread runs for the first time.
    pub(crate) fn note_thread(&self, turn: &Arc<context::Turn>) {
        let mut threads = self.threads.lock().expect("no test has failed");
        threads.retain(|turn| turn.strong_count() > 0);
        threads.push(Arc::downgrade(turn));
    }

    /// Whether a thread has failed.
    fn has_failed(&self) -> bool {
        self.failed.load(Relaxed)
    }

    /// Whether CPUs are to end, so that nothing may be handed to threads any more.
    pub(crate) fn has_stopped(&self) -> bool {
        self.state().stopped
    }

    /// Whether an interrupt waits for the CPU.
    fn has_interrupt(&self, cpu: &Cpu) -> bool {
        let now = if cpu.halts.load(Relaxed) {
            self.latest()
        } else {
            cpu.time.load(Relaxed)
        };
        cpu.asked.load(Relaxed) || cpu.armed_ns.load(Relaxed) <= now
    }

    /// Asks a CPU to reschedule, at the time `now`.
    pub(crate) fn ask(&self, cpu: usize, now: u64) {
        let Some(cpu) = self.cpus.get(cpu) else {
            return;
        };
        let _state = self.state();
        if !cpu.asked.swap(true, Relaxed) {
            cpu.asked_ns.store(now, Relaxed);
        }
        cpu.wake.notify_all();
    }

    /// Waits until there is an interrupt for `cpu`, or the machine stops; returns whether it does.
    fn halt(&self, cpu: &Cpu) -> bool {
        let mut state = self.state();
        // From here on its timer expires by the others' clocks, too.
        cpu.halts.store(true, Relaxed);
        while !state.stopped && !self.has_interrupt(cpu) {
            if self.all_halt() {
                self.let_time_pass(&mut state);
                continue;
            }
            state = wait(&cpu.wake, state);
        }
        if state.stopped {
            // It halts for good: a CPU that has only just started does not wait for its clock.
            cpu.armed_ns.store(u64::MAX, Relaxed);
            state.ended += 1;
            self.over.notify_all();
        } else {
            self.resume_clock(cpu);
            cpu.halts.store(false, Relaxed);
        }
        state.stopped
    }

    /// Whether every CPU halts, and none has an interrupt. Called with the state locked.
    fn all_halt(&self) -> bool {
        let halts = |cpu: &Cpu| cpu.halts.load(Relaxed) && !self.has_interrupt(cpu);
        self.cpus.iter().all(halts)
    }

    /// Called when every CPU halts. Moves the clock of the CPU whose timer expires first to that timer. Stops the machine
    /// if no timer is armed, which is a failure if the test is not over, or if [`LAST_TIMERS`] have expired after it.
    fn let_time_pass(&self, state: &mut State) {
        let next = self.cpus.iter().map(|cpu| cpu.armed_ns.load(Relaxed)).min();
        match next {
            _ if state.passed == LAST_TIMERS => state.stopped = true,
            Some(at) if at != u64::MAX => {
                state.passed += u32::from(state.finished);
                let first = |cpu: &&Cpu| cpu.armed_ns.load(Relaxed) == at;
                if let Some(cpu) = self.cpus.iter().find(first) {
                    cpu.time.fetch_max(at, Relaxed);
                }
            }
            _ if state.finished => state.stopped = true,
            _ => {
                state.stopped = true;
                state.failure.get_or_insert(Box::new(
                    "every CPU halts, and nothing will wake one: a wake-up was lost",
                ));
                self.over.notify_all();
            }
        }
        self.wake_all();
    }
}

/// Halts this CPU until there is an interrupt.
pub(crate) fn halt() {
    let here = here().expect("a CPU halts");
    let stopped = here.machine.halt(&here.machine.cpus[here.cpu]);
    drop(here);
    if stopped {
        end_thread(None);
    }
}

/// The kinds of interrupts, by the index of their counters.
#[derive(Clone, Copy)]
enum Interrupt {
    Timer = 0,
    Reschedule = 1,
}

/// Takes the interrupts that wait for this CPU, if interrupts are on. Then reschedules if that is wanted and preemption is on.
pub(crate) fn deliver() {
    while let Some(which) = begin_interrupt() {
        match which {
            Interrupt::Timer => symbols::timer_expired(false),
            Interrupt::Reschedule => symbols::reschedule_ipi(),
        }
        with_cpu((), |cpu| {
            cpu.preempt.fetch_sub(1, Relaxed);
            cpu.irqs_on.store(true, Relaxed);
        });
    }
    let wanted = with_cpu(false, |cpu| {
        cpu.irqs_on.load(Relaxed)
            && cpu.preempt.load(Relaxed) == 0
            && cpu.need_resched.load(Relaxed)
    });
    if wanted {
        symbols::preempt_check();
    }
}

/// Enters the handler of an interrupt that waits for this CPU.
fn begin_interrupt() -> Option<Interrupt> {
    let here = here()?;
    let cpu = &here.machine.cpus[here.cpu];
    if !cpu.irqs_on.load(Relaxed) || !here.machine.has_interrupt(cpu) {
        return None;
    }
    let which = if cpu.asked.swap(false, Relaxed) {
        Interrupt::Reschedule
    } else {
        cpu.armed_ns.store(u64::MAX, Relaxed);
        Interrupt::Timer
    };
    cpu.counts[which as usize].fetch_add(1, Relaxed);
    cpu.irqs_on.store(false, Relaxed);
    cpu.preempt.fetch_add(1, Relaxed);
    Some(which)
}
