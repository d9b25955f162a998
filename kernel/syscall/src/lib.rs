//! System calls: the only layer that knows errno.
//!
//! A handler is a function from the registers with the call's arguments to a value or an [`Errno`]. Each subject
//! keeps its handlers in one file and exports them as a list. The lists are joined at compile time into one table,
//! indexed by the number of the call. A number without a handler fails with ENOSYS; the first use of each is logged
//! by name. The entry code saves only the registers that a handler may change. The few calls that need all of them stand on
//! lists of their own (FULL_FRAME) and run in a second step.

#![no_std]
#![cfg(target_os = "none")]

extern crate alloc;

use core::sync::atomic::{AtomicU64, Ordering};

use hal::UserFrame;

pub use self::call::{Args, Handler};
pub use self::errno::Errno;
pub use self::exec::exec_init;

mod adjtime;
mod aio;
mod call;
mod cpu_clock;
mod credentials;
mod dir;
mod epoll;
mod errno;
mod eventfd;
mod exec;
mod file;
mod fsutil;
mod futex;
mod handles;
mod ids;
mod inotify;
mod ioctl;
mod klog;
mod lock;
mod membarrier;
mod memfd;
mod mempolicy;
mod mlock;
mod mm;
mod mount;
mod mqueue;
mod openat2;
mod others;
mod owner;
mod path;
mod pidfd;
mod pipe;
mod poll;
mod prctl;
mod process;
mod rseq;
mod sched;
mod schedattr;
mod signal;
mod signalfd;
mod socket;
mod splice;
mod stat;
mod sysv;
mod time;
mod timerfd;
mod timers;
mod versioned;
mod xattr;

/// Length of the table. Linux's numbers for x86-64 end below it; at or above it, calls fail with ENOSYS and are not
/// logged.
const TABLE_LEN: usize = 512;

/// The handlers of each file; a new file adds its list here.
const SUBJECTS: &[&[(u32, Handler)]] = &[
    adjtime::HANDLERS,
    credentials::HANDLERS,
    dir::HANDLERS,
    aio::HANDLERS,
    epoll::HANDLERS,
    eventfd::HANDLERS,
    file::HANDLERS,
    futex::HANDLERS,
    handles::HANDLERS,
    ids::HANDLERS,
    inotify::HANDLERS,
    ioctl::HANDLERS,
    klog::HANDLERS,
    lock::HANDLERS,
    memfd::HANDLERS,
    mempolicy::HANDLERS,
    mlock::HANDLERS,
    mm::HANDLERS,
    mount::HANDLERS,
    mqueue::HANDLERS,
    openat2::HANDLERS,
    others::HANDLERS,
    path::HANDLERS,
    pidfd::HANDLERS,
    pipe::HANDLERS,
    poll::HANDLERS,
    prctl::HANDLERS,
    process::HANDLERS,
    rseq::HANDLERS,
    sched::HANDLERS,
    schedattr::HANDLERS,
    signal::HANDLERS,
    signalfd::HANDLERS,
    socket::HANDLERS,
    splice::HANDLERS,
    stat::HANDLERS,
    sysv::msg::HANDLERS,
    sysv::sem::HANDLERS,
    sysv::shm::HANDLERS,
    time::HANDLERS,
    timers::HANDLERS,
    timerfd::HANDLERS,
    xattr::HANDLERS,
];

/// The calls that need the full register frame. [`TABLE`] has [`need_full_frame`] in their place.
const FULL_FRAME: &[&[(u32, Handler)]] = &[
    exec::FULL_FRAME,
    membarrier::FULL_FRAME,
    process::FULL_FRAME,
    signal::FULL_FRAME,
];

/// Calls whose handlers in [`SUBJECTS`] return EFULLFRAME for some arguments, and what is done then.
const SOMETIMES_FULL_FRAME: &[&[(u32, Handler)]] = &[futex::FULL_FRAME];

const fn fill(
    mut table: [Handler; TABLE_LEN],
    lists: &[&[(u32, Handler)]],
    instead: Option<Handler>,
) -> [Handler; TABLE_LEN] {
    let mut taken = [false; TABLE_LEN];
    let mut s = 0;
    while s < lists.len() {
        let calls = lists[s];
        let mut i = 0;
        while i < calls.len() {
            let (nr, handler) = calls[i];
            assert!(!taken[nr as usize], "two handlers for one system call");
            taken[nr as usize] = true;
            table[nr as usize] = match instead {
                Some(instead) => instead,
                None => handler,
            };
            i += 1;
        }
        s += 1;
    }
    table
}

/// Handlers that run with the registers that every call saves, by number.
static TABLE: [Handler; TABLE_LEN] = fill(
    fill([unknown; TABLE_LEN], SUBJECTS, None),
    FULL_FRAME,
    Some(need_full_frame),
);

/// Handlers that run with the full register frame, by number.
static FULL_FRAME_TABLE: [Handler; TABLE_LEN] = fill(
    fill([unknown; TABLE_LEN], FULL_FRAME, None),
    SOMETIMES_FULL_FRAME,
    None,
);

/// The numbers without a handler that have been logged: one bit each. Atomic.
static LOGGED: [AtomicU64; TABLE_LEN / 64] = [const { AtomicU64::new(0) }; TABLE_LEN / 64];

/// Performs the call whose number and arguments are in `frame`, and returns the value for RAX: EFULLFRAME, negated,
/// if it has to be done by [`dispatch_full_frame`].
///
/// Called by the entry code, on the thread's kernel stack, with interrupts on.
#[inline]
pub fn dispatch(frame: &mut UserFrame) -> u64 {
    match TABLE.get(frame.error as usize) {
        Some(handler) => as_return(handler(frame)),
        None => Errno::ENOSYS.as_return(),
    }
}

/// Performs the call if [`dispatch`] has returned EFULLFRAME for it, and stores the result in `frame`. Interrupts and
/// preemption are on.
pub fn dispatch_full_frame(frame: &mut UserFrame) {
    if frame.rax == Errno::EFULLFRAME.as_return()
        && let Some(handler) = FULL_FRAME_TABLE.get(frame.error as usize)
    {
        frame.rax = as_return(handler(frame));
    }
}

#[inline(always)]
fn as_return(result: Result<u64, Errno>) -> u64 {
    result.unwrap_or_else(Errno::as_return)
}

/// Handler, in [`TABLE`], of the calls that need all registers. The entry code then saves these and calls
/// [`dispatch_full_frame`].
fn need_full_frame(_: &mut Args) -> Result<u64, Errno> {
    Err(Errno::EFULLFRAME)
}

#[cold]
fn unknown(a: &mut Args) -> Result<u64, Errno> {
    let nr = a.error as usize;
    let bit = 1u64 << (nr % 64);
    // The load avoids a write: a program that probes in a loop must not write a line that CPUs share.
    let word = &LOGGED[nr / 64];
    if word.load(Ordering::Relaxed) & bit == 0 && word.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
        let name = syscalls::Sysno::new(nr).map_or("?", |n| n.name());
        hal::kprintln!("system call {nr} ({name}) is not there: ENOSYS");
    }
    Err(Errno::ENOSYS)
}
