//! System calls: the only layer that speaks errno.
//!
//! A call is a function from its six arguments to a value or an [`Errno`].  Each subject keeps
//! its calls in one file and exports them as a list; the lists are joined at compile time into
//! one table indexed by number.  A number without a handler answers ENOSYS and is logged once,
//! by name.

use core::sync::atomic::{AtomicU64, Ordering};

use abi::Errno;

use crate::arch::UserFrame;

pub mod cred;
pub mod dir;
pub mod errno;
pub mod file;
pub mod fsutil;
pub mod futex;
pub mod ids;
pub mod ioctl;
pub mod klog;
pub mod mempolicy;
pub mod mm;
pub mod mount;
pub mod path;
pub mod pipe;
pub mod poll;
pub mod proc;
pub mod sched;
pub mod signal;
pub mod socket;
pub mod time;
pub mod xattr;

/// The arguments of a call: the user's registers as they were at entry.
pub struct Args<'a> {
    /// The frame; fork, execve and sigreturn change it.
    pub frame: &'a mut UserFrame,
}

impl Args<'_> {
    /// Argument `i` of 0..6, in the order of the System V ABI for Linux calls.
    #[inline(always)]
    pub fn get(&self, i: usize) -> u64 {
        let f = &*self.frame;
        match i {
            0 => f.rdi,
            1 => f.rsi,
            2 => f.rdx,
            3 => f.r10,
            4 => f.r8,
            _ => f.r9,
        }
    }

    /// Argument `i` where the ABI has an `int`.
    #[inline(always)]
    pub fn int(&self, i: usize) -> i32 {
        self.get(i) as i32
    }

    /// Argument `i` where the ABI has an `unsigned int`.
    #[inline(always)]
    pub fn uint(&self, i: usize) -> u32 {
        self.get(i) as u32
    }

    /// Argument `i` where the ABI has a `size_t`.
    #[inline(always)]
    pub fn size(&self, i: usize) -> usize {
        self.get(i) as usize
    }
}

/// What carries a call out.
pub type Handler = fn(&mut Args) -> Result<u64, Errno>;

/// Numbers at or above this are unknown (x86-64 ends below 512).
const TABLE_LEN: usize = 512;

/// Every file's calls; a new subject adds its list here.
const SUBJECTS: &[&[(u32, Handler)]] = &[
    cred::HANDLERS,
    dir::HANDLERS,
    file::HANDLERS,
    futex::HANDLERS,
    ids::HANDLERS,
    ioctl::HANDLERS,
    klog::HANDLERS,
    mempolicy::HANDLERS,
    mm::HANDLERS,
    mount::HANDLERS,
    path::HANDLERS,
    pipe::HANDLERS,
    poll::HANDLERS,
    proc::HANDLERS,
    sched::HANDLERS,
    signal::HANDLERS,
    socket::HANDLERS,
    time::HANDLERS,
    xattr::HANDLERS,
];

static TABLE: [Option<Handler>; TABLE_LEN] = {
    let mut table: [Option<Handler>; TABLE_LEN] = [None; TABLE_LEN];
    let mut s = 0;
    while s < SUBJECTS.len() {
        let calls = SUBJECTS[s];
        let mut i = 0;
        while i < calls.len() {
            let (nr, handler) = calls[i];
            assert!(
                table[nr as usize].is_none(),
                "two handlers for one system call"
            );
            table[nr as usize] = Some(handler);
            i += 1;
        }
        s += 1;
    }
    table
};

/// Which unknown numbers have been logged: one bit each.  Atomic.
static LOGGED: [AtomicU64; TABLE_LEN / 64] = [const { AtomicU64::new(0) }; TABLE_LEN / 64];

/// Carries out the call that the frame asks for and stores its result there.
///
/// Called by the entry code on the thread's kernel stack with interrupts on.
#[inline]
pub fn dispatch(frame: &mut UserFrame) {
    let nr = frame.rax as usize;
    let result = match TABLE.get(nr) {
        Some(Some(handler)) => handler(&mut Args { frame }),
        _ => Err(unknown(nr)),
    };
    frame.rax = match result {
        Ok(value) => value,
        Err(errno) => errno.as_return(),
    };
}

#[cold]
fn unknown(nr: usize) -> Errno {
    if nr < TABLE_LEN {
        let bit = 1u64 << (nr % 64);
        // Read first: a program that probes in a loop must not write a shared line.
        let word = &LOGGED[nr / 64];
        if word.load(Ordering::Relaxed) & bit == 0
            && word.fetch_or(bit, Ordering::Relaxed) & bit == 0
        {
            let name = syscalls::Sysno::new(nr).map_or("?", |n| n.name());
            crate::kprintln!("system call {nr} ({name}) is not there: ENOSYS");
        }
    }
    Errno::ENOSYS
}
