//! System calls: the only layer that speaks errno.
//!
//! A call is a function from its six arguments to a value or an [`Errno`].  Each subject keeps
//! its calls in one file and exports them as a list; the lists are joined at compile time into
//! one table indexed by number.  A number without a handler answers ENOSYS and is logged once,
//! by name.  A call saves only the registers that its handler may change; the few that need them all
//! stand on lists of their own and run in a second step.

#![no_std]
#![cfg(target_os = "none")]

extern crate alloc;

use core::sync::atomic::{AtomicU64, Ordering};

use hal::UserFrame;

pub use self::call::{Args, Handler};
pub use self::errno::Errno;
pub use self::process::exec_init;

mod call;
mod credentials;
mod dir;
mod errno;
mod eventfd;
mod file;
mod fsutil;
mod futex;
mod ids;
mod ioctl;
mod klog;
mod lock;
mod mempolicy;
mod mlock;
mod mm;
mod mount;
mod path;
mod pipe;
mod poll;
mod prctl;
mod process;
mod sched;
mod signal;
mod socket;
mod stat;
mod time;
mod xattr;

/// Numbers at or above this are unknown (x86-64 ends below 512).
const TABLE_LEN: usize = 512;

/// Every file's calls; a new subject adds its list here.
const SUBJECTS: &[&[(u32, Handler)]] = &[
    credentials::HANDLERS,
    dir::HANDLERS,
    eventfd::HANDLERS,
    file::HANDLERS,
    futex::HANDLERS,
    ids::HANDLERS,
    ioctl::HANDLERS,
    klog::HANDLERS,
    lock::HANDLERS,
    mempolicy::HANDLERS,
    mlock::HANDLERS,
    mm::HANDLERS,
    mount::HANDLERS,
    path::HANDLERS,
    pipe::HANDLERS,
    poll::HANDLERS,
    prctl::HANDLERS,
    process::HANDLERS,
    sched::HANDLERS,
    signal::HANDLERS,
    socket::HANDLERS,
    stat::HANDLERS,
    time::HANDLERS,
    xattr::HANDLERS,
];

/// The calls that need the full register frame: [`SUBJECTS`] has them as [`need_full_frame`].
const FULL_FRAME: &[&[(u32, Handler)]] = &[process::FULL_FRAME, signal::FULL_FRAME];

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

/// What runs with the registers that every call saves.
static TABLE: [Handler; TABLE_LEN] = fill(
    fill([unknown; TABLE_LEN], SUBJECTS, None),
    FULL_FRAME,
    Some(need_full_frame),
);

/// What runs with all registers.
static FULL_FRAME_TABLE: [Handler; TABLE_LEN] = fill([unknown; TABLE_LEN], FULL_FRAME, None);

/// Which unknown numbers have been logged: one bit each.  Atomic.
static LOGGED: [AtomicU64; TABLE_LEN / 64] = [const { AtomicU64::new(0) }; TABLE_LEN / 64];

/// Carries out the call that the frame asks for and returns what the user finds in RAX.
///
/// Called by the entry code on the thread's kernel stack with interrupts on.
#[inline]
pub fn dispatch(frame: &mut UserFrame) -> u64 {
    match TABLE.get(frame.error as usize) {
        Some(handler) => as_return(handler(frame)),
        None => Errno::ENOSYS.as_return(),
    }
}

/// Carries the call out if [`dispatch`] has only found that it needs the full register frame.
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

/// Stands for a call that needs all registers: the entry code comes back with them.
fn need_full_frame(_: &mut Args) -> Result<u64, Errno> {
    Err(Errno::EFULLFRAME)
}

/// Calls that every C library tries at its start and does without: absent, and not worth a line in the log.
const PROBED: [usize; 2] = [
    abi::raw::general::__NR_rseq as usize,
    abi::raw::general::__NR_clone3 as usize,
];

#[cold]
fn unknown(a: &mut Args) -> Result<u64, Errno> {
    let nr = a.error as usize;
    if PROBED.contains(&nr) {
        return Err(Errno::ENOSYS);
    }
    let bit = 1u64 << (nr % 64);
    // Read first: a program that probes in a loop must not write a shared line.
    let word = &LOGGED[nr / 64];
    if word.load(Ordering::Relaxed) & bit == 0 && word.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
        let name = syscalls::Sysno::new(nr).map_or("?", |n| n.name());
        hal::kprintln!("system call {nr} ({name}) is not there: ENOSYS");
    }
    Err(Errno::ENOSYS)
}
