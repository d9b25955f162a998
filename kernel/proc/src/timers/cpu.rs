//! Clocks of CPU time, and sleeps by them.

use alloc::sync::Arc;

use task::current::current;
use task::park::{Deadline, Interruptible, Step, park};
use task::thread::{Thread, flag};
use task::wait::Waiter;

use super::watch::{CpuClock, Entry, Owner, Part, Watch, Whose};
use crate::process::Process;
use crate::{UserThreadExt, ids};

/// A process or a thread of it, whose CPU time a clock shows.
pub struct Measured {
    process: Arc<Process>,
    whose: Whose,
    part: Part,
}

/// Why a sleep ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SleepError {
    /// There is no memory, or too many wait for that process.
    NoMemory,
    /// It has been reaped, or the thread has ended.
    Gone,
    /// A signal is pending.
    Signal,
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
            whose,
            part,
        }
    }

    /// A thread.
    pub fn thread(t: &Thread, part: Part) -> Self {
        Measured {
            process: t.process().clone(),
            whose: Whose::Thread(t.tid()),
            part,
        }
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
        match self.whose {
            Whose::Process => {
                let times = self.process.times_of_threads();
                Some(match self.part {
                    Part::User => times.user_ns,
                    Part::All => times.user_ns + times.sys_ns,
                })
            }
            Whose::Thread(tid) => {
                let pin = ksync::pin();
                let t = ids::thread(&pin, tid).filter(|t| is_of(t, &self.process));
                t.map(|t| of_thread(t, self.part))
            }
        }
    }

    /// The clock, for a timer. Allocates.
    pub fn clock(&self) -> CpuClock {
        CpuClock {
            watch: self.process.cpu_watch().clone(),
            whose: self.whose,
            part: self.part,
        }
    }

    /// Makes the threads of the process look at what waits.
    pub(super) fn changed(&self) {
        self.process.seldom().changed();
    }

    /// Makes `owner`, for which room is promised, wait until the CPU time is `at`.
    pub(super) fn wait_for(&self, owner: Owner, at: u64) {
        let entry = Entry {
            owner,
            whose: self.whose,
            part: self.part,
            at,
        };
        self.process
            .cpu_watch()
            .put(entry, |tid| lives(&self.process, tid));
        self.changed();
    }

    /// Sleeps until the CPU time is `until`, in nanoseconds; for ever, if what is measured ends. Late by a tick, or by the rest of a system call
    /// of the threads that use the time. Allocates.
    ///
    /// # Errors
    /// [`SleepError`].
    pub fn sleep_until(&self, until: u64) -> Result<(), SleepError> {
        mem::admit().map_err(|_| SleepError::NoMemory)?;
        let me = current();
        let (own, owner) = (me.process().pid(), Owner::Sleeper(me.tid()));
        let watch = self.process.cpu_watch();
        if self.time().ok_or(SleepError::Gone)? >= until {
            return Ok(());
        }
        if !watch.promise(own) {
            return Err(SleepError::NoMemory);
        }
        self.wait_for(owner, until);
        let mut state = (&**watch, owner);
        let slept = park(
            &mut state,
            Deadline::Never,
            Interruptible::Yes,
            |(watch, owner), waiter: &mut Waiter| {
                waiter.listen(&watch.sleepers);
                if watch.has(*owner) {
                    Step::Wait
                } else {
                    Step::Done(())
                }
            },
        );
        let came = !watch.has(owner);
        watch.remove(owner);
        watch.end_promise(own);
        match slept {
            Err(_) if !came => Err(SleepError::Signal),
            _ => Ok(()),
        }
    }
}

impl CpuClock {
    /// What it measures; `None` for a process that has been reaped.
    pub(super) fn measured(&self) -> Option<Measured> {
        let process = ids::find_process(self.watch.pid()).filter(|p| self.is_of(p))?;
        Some(Measured {
            process,
            whose: self.whose,
            part: self.part,
        })
    }

    fn is_of(&self, p: &Process) -> bool {
        let watch = p.seldom.get().and_then(|seldom| seldom.cpu_watch.get());
        watch.is_some_and(|watch| Arc::ptr_eq(watch, &self.watch))
    }
}
