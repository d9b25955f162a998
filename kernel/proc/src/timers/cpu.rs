//! Clocks of CPU time, and sleeps by them.

use alloc::sync::Arc;

use task::current::current;
use task::park::{Deadline, Interruptible, Step, park};
use task::thread::{Thread, flag};
use task::wait::Waiter;

use super::watch::{CpuClock, Handle, Owner, Part, Shown, Watch, Whose};
use crate::process::Process;
use crate::{UserThreadExt, ids};

/// A process or a thread of it, whose CPU time a clock shows.
pub struct Measured {
    process: Arc<Process>,
    shown: Shown,
}

/// Why a sleep ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SleepError {
    /// There is no memory.
    NoMemory,
    /// It has been reaped, or the thread has ended.
    Gone,
    /// A signal is pending; so many nanoseconds of CPU time are left.
    Signal(u64),
}

/// Whether a thread is one of a process.
pub(super) fn is_of(t: &Thread, p: &Process) -> bool {
    core::ptr::eq(&**t.process(), p)
}

/// Whether the thread `tid` of `p` will still end, or is the leader, which stays as long as its process.
pub(super) fn lives(p: &Process, tid: u32) -> bool {
    let pin = ksync::pin();
    tid == p.pid() || ids::thread(&pin, tid).is_some_and(|t| is_of(t, p) && !t.has(flag::KILLED))
}

/// The CPU time so far of a thread, up to the last switch or tick.
pub(super) fn of_thread(t: &Thread, part: Part) -> u64 {
    let times = t.times();
    match part {
        Part::User => times.user_ns,
        Part::All => times.user_ns + times.sys_ns,
    }
}

impl Process {
    /// What waits for the CPU time of the process. Allocates at first.
    fn cpu_watch(&self) -> &Arc<Watch> {
        let watch = &self.seldom().cpu_watch;
        watch.get_or_init(|| Watch::new(self.pid()))
    }
}

impl Measured {
    /// The process, with all its threads, ended ones included.
    pub fn process(process: Arc<Process>, part: Part) -> Self {
        let whose = Whose::Process;
        Measured {
            process,
            shown: Shown { whose, part },
        }
    }

    /// A thread.
    pub fn thread(t: &Thread, part: Part) -> Self {
        let whose = Whose::Thread(t.tid());
        Measured {
            process: t.process().clone(),
            shown: Shown { whose, part },
        }
    }

    /// What a clock of that process shows.
    pub(super) fn by(process: Arc<Process>, shown: Shown) -> Self {
        Measured { process, shown }
    }

    /// The CPU time so far, in nanoseconds, up to the last switch or tick of the threads that run on other CPUs. `None` for what has
    /// been reaped.
    pub fn time(&self) -> Option<u64> {
        let me = current();
        if is_of(&me, &self.process) {
            me.charge_now();
        }
        if self.process.is_reaped() {
            return None;
        }
        match self.shown.whose {
            Whose::Process => {
                let times = self.process.times_of_threads();
                Some(match self.shown.part {
                    Part::User => times.user_ns,
                    Part::All => times.user_ns + times.sys_ns,
                })
            }
            Whose::Thread(tid) => {
                let pin = ksync::pin();
                let t = ids::thread(&pin, tid).filter(|t| is_of(t, &self.process));
                t.map(|t| of_thread(t, self.shown.part))
            }
        }
    }

    /// The clock, for a timer. Allocates.
    pub fn clock(&self) -> CpuClock {
        CpuClock {
            watch: self.process.cpu_watch().clone(),
            shown: self.shown,
        }
    }

    /// Makes the entry of `owner` wait until the CPU time is `at`.
    pub(super) fn wait_for(&self, handle: &mut Handle, owner: Owner, at: u64) {
        let lives = |tid| lives(&self.process, tid);
        let watch = self.process.cpu_watch();
        watch.put(handle, owner, (self.shown, at), lives);
        // Its threads look at what waits.
        self.process.seldom().changed();
    }

    /// Sleeps until the CPU time is `until`, in nanoseconds; for ever, if what is measured ends. Late by a tick, or by the rest of a system call
    /// of the threads that use the time. Keeps nothing of the process meanwhile but its watch. Allocates.
    ///
    /// # Errors
    /// [`SleepError`].
    pub fn sleep_until(self, until: u64) -> Result<(), SleepError> {
        mem::admit().map_err(|_| SleepError::NoMemory)?;
        if self.time().ok_or(SleepError::Gone)? >= until {
            return Ok(());
        }
        let clock = self.clock();
        let handle = clock.watch.handle(current().process().pid());
        let mut sleep = Sleep {
            clock,
            handle: handle.ok_or(SleepError::NoMemory)?,
            until,
            begins: Some(self),
        };
        let slept = park(
            &mut sleep,
            Deadline::Never,
            Interruptible::Yes,
            |sleep: &mut Sleep, waiter| {
                if sleep.goes_on(waiter) {
                    Step::Wait
                } else {
                    Step::Done(())
                }
            },
        );
        let Sleep { clock, handle, .. } = &mut sleep;
        // One whose time has come has slept well, whatever else has come.
        let came = !clock.watch.take(handle);
        if slept.is_ok() || came {
            return Ok(());
        }
        let now = clock.measured().and_then(|measured| measured.time());
        let left = now.map_or(0, |now| until.saturating_sub(now));
        Err(SleepError::Signal(left))
    }
}

/// A sleep by a clock of CPU time.
struct Sleep {
    clock: CpuClock,
    handle: Handle,
    until: u64,
    /// What is measured, until the sleep has begun.
    begins: Option<Measured>,
}

impl Sleep {
    /// Begins the sleep, or looks after a wake-up whether it is over.
    fn goes_on(&mut self, waiter: &Waiter) -> bool {
        let sleeper = waiter.registration();
        match self.begins.take() {
            None => self.clock.watch.renew(&self.handle, sleeper),
            Some(measured) => {
                measured.wait_for(&mut self.handle, Owner::Sleeper(sleeper), self.until);
                true
            }
        }
    }
}

impl CpuClock {
    /// What it measures; `None` for a process that has been reaped.
    pub(super) fn measured(&self) -> Option<Measured> {
        let process = ids::find_process(self.watch.pid()).filter(|p| self.is_of(p))?;
        Some(Measured::by(process, self.shown))
    }

    /// Whether it measures `p` or a thread of it.
    fn is_of(&self, p: &Process) -> bool {
        let watch = p.seldom.get().and_then(|seldom| seldom.cpu_watch.get());
        watch.is_some_and(|watch| Arc::ptr_eq(watch, &self.watch))
    }
}
