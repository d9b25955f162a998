//! timerfd(2): timers that are read as files.
//!
//! Guarantee: a read returns the number of times that the timer has expired since the last read, or since it was set. However short the interval, a timer
//! causes one interrupt for each time that it is read. Setting the clock moves the timers on real time that were set to a time of that clock,
//! and ends the reads of those that asked for it (TFD_TIMER_CANCEL_ON_SET).
//!
//! Mechanism: a timer is on a CPU's wheel until its first expiry; a read, or a look at its setting, counts the intervals that have
//! passed since, and arms it again, as in Linux. The wheel and a change of the clock find timers by number. The lock of a
//! timer orders its settings, its expiry and the reads. The wheel takes an expired timer off before `expired` takes the lock: in between it is set but not armed,
//! and a new setting makes that expiry void.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::any::Any;

use cred::MemoryCharge;
use hal::uio::IoBuf;
use ksync::{CpuPin, IrqSpin, Once};
use task::current::current;
use task::park::{Deadline, Interruptible, Step, park};
use task::time;
use task::timer::{self, FileTimers, TimerNode};
use task::wait::{WaitQueue, Waiter};
use vfs::anon_inode::AnonInode;
use vfs::dynamic::Text;
use vfs::error::{FsError, Result};
use vfs::file::{File, FileOps, FileRef, Kind, o};
use vfs::poll::PollMask;
use vfs::put;

use crate::numbers::{self, Number, Numbered, Table};

ksync::lock_class!(pub TimerFileLock, "timer file", rank = 150);

/// Bytes of a count: the least that a read must offer.
const LEN: usize = 8;

/// A setting, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Setting {
    /// Time to the next expiry, or the time of the clock at which it comes; 0 for never.
    pub value: u64,
    /// Time between expiries, 0 for a timer that expires once.
    pub interval: u64,
}

/// How a setting is meant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mode {
    /// The value is a time of the clock.
    pub absolute: bool,
    /// Reads fail once real time is set, if the timer is on real time and the value is a time of it.
    pub cancel_on_set: bool,
}

/// What a timer's lock guards.
struct State {
    /// The next expiry, or the last one while `expired`: a time of real time if `real`, else monotonic; 0 for none.
    at: u64,
    real: bool,
    interval: u64,
    /// Expiries that no read has taken.
    ticks: u64,
    /// The timer has expired and was not armed since.
    expired: bool,
    /// Whether setting real time cancels it.
    cancels: bool,
    /// The changes of real time that it has seen.
    steps: u64,
    /// The flags of the last setting.
    how: u32,
}

impl State {
    fn now(&self) -> u64 {
        if self.real {
            time::realtime_ns()
        } else {
            time::monotonic_ns()
        }
    }

    /// The next expiry in monotonic time.
    fn due(&self) -> u64 {
        if self.real {
            time::real_to_monotonic(self.at)
        } else {
            self.at
        }
    }

    /// Whether real time was set since it was last asked, for a timer that this cancels.
    fn take_step(&mut self) -> bool {
        let steps = time::steps();
        self.cancels && core::mem::replace(&mut self.steps, steps) != steps
    }
}

/// A timer.
struct Timer {
    /// Constant.
    number: Number<Timer>,
    /// Whether it is on real time; else on monotonic time, which is that since boot. Constant.
    real: bool,
    node: TimerNode,
    state: IrqSpin<State, TimerFileLock>,
    readers: WaitQueue,
    _memory: MemoryCharge,
}

hal::machine_static! {
    static TIMERS: Once<Table<Timer>> = Once::new();
}

impl Numbered for Timer {
    fn table() -> Option<&'static Table<Self>> {
        TIMERS.get()
    }

    fn number(&self) -> &Number<Self> {
        &self.number
    }
}

static WHEEL: FileTimers = FileTimers {
    node: |pin, number| Some(&Timer::table()?.get(pin, number)?.node),
    expired: |pin, number| {
        if let Some(timer) = Timer::table().and_then(|t| t.get(pin, number)) {
            timer.expired(pin);
        }
    },
};

pub(crate) fn init(ncpus: usize) {
    TIMERS.get_or_init(|| Table::new(ncpus));
    timer::set_file_timers(&WHEEL);
}

/// Bytes of the table of timers, which never shrinks: for the accounting of the heap.
pub(crate) fn table_bytes() -> usize {
    Timer::table().map_or(0, Table::bytes)
}

impl Timer {
    /// The wheel has taken the timer off.
    fn expired(&self, _: &CpuPin) {
        let mut state = self.state.lock();
        // One that was set anew, or turned off, meanwhile.
        if self.node.armed() || state.at == 0 || state.expired || state.due() > self.node.at() {
            return;
        }
        state.expired = true;
        state.ticks += 1;
        drop(state);
        self.readers.wake_all();
    }

    /// Arms the timer for its next expiry. The caller holds the lock.
    fn arm(&self, state: &State) {
        timer::cancel_file(self.number.get(), &self.node);
        timer::arm_file(self.number.get(), &self.node, state.due());
    }

    /// Counts the intervals that have passed since the timer has expired, and arms it for the next. The caller holds the lock.
    fn go_on(&self, state: &mut State) {
        if !state.expired || state.interval == 0 {
            return;
        }
        // Of real time that was set back, no interval has passed.
        let passed = state.now().saturating_sub(state.at) / state.interval + 1;
        state.ticks += passed - 1;
        state.at = state
            .at
            .saturating_add(passed.saturating_mul(state.interval));
        state.expired = false;
        self.arm(state);
    }

    /// The setting now, as time left. The caller holds the lock.
    fn setting(&self, state: &State) -> Setting {
        let value = if state.at == 0 || state.expired {
            0
        } else {
            // One that is expiring now is still set.
            state.at.saturating_sub(state.now()).max(1)
        };
        let interval = state.interval;
        Setting { value, interval }
    }

    /// The expiries since the last time; `None` if there were none.
    ///
    /// # Errors
    /// `Cancelled`: real time was set.
    fn take(&self) -> Option<Result<u64>> {
        let mut state = self.state.lock();
        let cancelled = state.take_step();
        if state.ticks == 0 && !cancelled {
            return None;
        }
        self.go_on(&mut state);
        if state.expired {
            (state.at, state.expired) = (0, false);
        }
        let ticks = core::mem::take(&mut state.ticks);
        Some(if cancelled {
            Err(FsError::Cancelled)
        } else {
            Ok(ticks)
        })
    }

    /// Real time was set.
    fn clock_was_set(&self) {
        let mut state = self.state.lock();
        let cancelled = state.cancels && state.steps != time::steps();
        if cancelled {
            // So that a poll finds it.
            state.ticks += 1;
        }
        if state.real && state.at != 0 && !state.expired {
            self.arm(&state);
        }
        drop(state);
        if cancelled {
            self.readers.wake_all();
        }
    }
}

/// The open file of a timer.
pub struct TimerFile {
    timer: Arc<Timer>,
    inode: AnonInode,
}

/// Makes a timer that is not set, on real time or on monotonic time and charged to the caller's user, and opens it with O_NONBLOCK if `flags` has that.
///
/// # Errors
/// `NoMemory`.
pub fn make(real: bool, flags: u32) -> Result<FileRef> {
    mem::admit().map_err(|_| FsError::NoMemory)?;
    let number = Timer::table().and_then(Table::alloc);
    let timer = Arc::new(Timer {
        number: number.ok_or(FsError::NoMemory)?,
        real,
        node: TimerNode::new(),
        state: IrqSpin::new(State {
            at: 0,
            real: false,
            interval: 0,
            ticks: 0,
            expired: false,
            cancels: false,
            steps: time::steps(),
            how: 0,
        }),
        readers: WaitQueue::new(),
        _memory: MemoryCharge::new(current().payer(), size_of::<Timer>()),
    });
    numbers::publish(&timer);
    let file = TimerFile {
        timer,
        inode: AnonInode::new(),
    };
    let flags = flags & o::NONBLOCK | o::RDWR;
    Ok(File::open(None, Kind::Other(Box::new(file)), flags))
}

/// The timer that an open file is.
///
/// # Errors
/// `Invalid` if it is none.
fn timer_of(file: &FileRef) -> Result<&Timer> {
    let file: &TimerFile = file.ops_as().ok_or(FsError::Invalid)?;
    Ok(&file.timer)
}

/// timerfd_gettime(2).
///
/// # Errors
/// `Invalid` if the file is no timer.
pub fn get(file: &FileRef) -> Result<Setting> {
    let timer = timer_of(file)?;
    let mut state = timer.state.lock();
    timer.go_on(&mut state);
    Ok(timer.setting(&state))
}

/// timerfd_settime(2): sets the timer, or turns it off if the value is 0. Expiries that nobody has read are forgotten. Returns the old setting,
/// and whether the new one is cancelled at once, because real time was set since the last such setting: it is set all the same, as in Linux.
///
/// # Errors
/// `Invalid` if the file is no timer.
pub fn set(file: &FileRef, new: Setting, mode: Mode) -> Result<(Setting, bool)> {
    let timer = timer_of(file)?;
    let mut state = timer.state.lock();
    timer.go_on(&mut state);
    let old = timer.setting(&state);
    timer::cancel_file(timer.number.get(), &timer.node);
    state.real = timer.real && mode.absolute;
    state.cancels = state.real && mode.cancel_on_set;
    state.how = u32::from(mode.absolute) | u32::from(mode.cancel_on_set) << 1;
    state.interval = new.interval;
    (state.ticks, state.expired) = (0, false);
    let mut cancelled = false;
    state.at = match new.value {
        0 => 0,
        value if mode.absolute => value,
        value => state.now().saturating_add(value),
    };
    if state.at != 0 {
        timer.arm(&state);
        cancelled = state.take_step();
    }
    Ok((old, cancelled))
}

/// Real time was set: moves the timers on it, and cancels those that asked for that.
pub fn clock_was_set() {
    if let Some(timers) = Timer::table() {
        timers.each(Timer::clock_was_set);
    }
}

impl FileOps for TimerFile {
    fn read(&self, file: &File, buf: &mut IoBuf, _: u64) -> Result<usize> {
        if buf.remaining() < LEN {
            return Err(FsError::Invalid);
        }
        let taken = match self.timer.take() {
            Some(taken) => taken,
            None if file.nonblocking() => return Err(FsError::WouldBlock),
            None => {
                let mut timer = &*self.timer;
                let (deadline, signals) = (Deadline::Never, Interruptible::Yes);
                park(&mut timer, deadline, signals, |timer, w| {
                    w.listen(&timer.readers);
                    timer.take().map_or(Step::Wait, Step::Done)
                })
                .map_err(|_| FsError::Interrupted)?
            }
        };
        match buf.put(&taken?.to_ne_bytes())? {
            LEN => Ok(LEN),
            _ => Err(FsError::Fault),
        }
    }

    fn seekable(&self) -> bool {
        false
    }

    fn seeks_in_vain(&self) -> bool {
        true
    }

    fn poll(&self, _: &File, waiter: Option<&mut Waiter>) -> PollMask {
        if let Some(waiter) = waiter {
            waiter.listen(&self.timer.readers);
        }
        if self.timer.state.lock().ticks > 0 {
            PollMask::READ
        } else {
            PollMask::NONE
        }
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn anon_inode(&self) -> Option<&AnonInode> {
        Some(&self.inode)
    }

    fn print_info(&self, _: &File, out: &mut Text) -> Result<()> {
        let timer = &self.timer;
        let (ticks, how, setting) = {
            let state = timer.state.lock();
            (state.ticks, state.how, timer.setting(&state))
        };
        let clock = if timer.real { 0 } else { 1 };
        let (value, interval) = (setting.value, setting.interval);
        put!(
            out,
            "clockid: {clock}\nticks: {ticks}\nsettime flags: 0{how:o}\n"
        );
        for (name, ns) in [("it_value", value), ("it_interval", interval)] {
            put!(
                out,
                "{name}: ({}, {})\n",
                ns / 1_000_000_000,
                ns % 1_000_000_000
            );
        }
        Ok(())
    }

    fn label(&self) -> &'static str {
        "anon_inode:[timerfd]"
    }

    fn close(&self, _: &File) {
        let mut state = self.timer.state.lock();
        state.at = 0;
        timer::cancel_file(self.timer.number.get(), &self.timer.node);
        drop(state);
        numbers::withdraw(&*self.timer, 0);
    }
}
