//! syslog(2): the kernel's log.

use core::sync::atomic::{AtomicU64, Ordering};

use abi::raw::general as nr;
use fs::devfs::kmsg;
use hal::klog;
use hal::uio::IoBuf;
use task::current::current;
use task::park::{self, Deadline, Interruptible, ParkError};
use task::time;

use super::errno::Errno;
use crate::call::{Args, Handler};

/// The calls of this file.
pub const HANDLERS: &[(u32, Handler)] = &[(nr::__NR_syslog, syslog)];

const CLOSE: u32 = 0;
const OPEN: u32 = 1;
const READ: u32 = 2;
const READ_ALL: u32 = 3;
const READ_CLEAR: u32 = 4;
const CLEAR: u32 = 5;
const CONSOLE_OFF: u32 = 6;
const CONSOLE_ON: u32 = 7;
const CONSOLE_LEVEL: u32 = 8;
const SIZE_UNREAD: u32 = 9;
const SIZE_BUFFER: u32 = 10;

/// Position in the log up to which READ has returned it, in bytes since boot. Atomic.
static READ_TO: AtomicU64 = AtomicU64::new(0);
/// Position in the log before which READ_ALL returns nothing, because of CLEAR. Atomic.
static CLEARED_TO: AtomicU64 = AtomicU64::new(0);

fn syslog(a: &mut Args) -> Result<u64, Errno> {
    let (what, out, len) = (a.uint(0), a.get(1), a.int(2));
    if !kmsg::may_use(&current().cred(), matches!(what, READ_ALL | SIZE_BUFFER)) {
        return Err(Errno::EPERM);
    }
    match what {
        CLOSE | OPEN | CONSOLE_OFF | CONSOLE_ON => Ok(0),
        READ | READ_ALL | READ_CLEAR if out == 0 || len < 0 => Err(Errno::EINVAL),
        READ | READ_ALL | READ_CLEAR if len == 0 => Ok(0),
        READ => read_new(out, len as usize),
        READ_ALL => read_all(out, len as usize),
        READ_CLEAR => {
            let n = read_all(out, len as usize)?;
            // What is printed between the two is cleared unread.
            CLEARED_TO.store(klog::end(), Ordering::Relaxed);
            Ok(n)
        }
        CLEAR => {
            CLEARED_TO.store(klog::end(), Ordering::Relaxed);
            Ok(0)
        }
        // Messages have no levels, so the console's level is accepted and has no effect.
        CONSOLE_LEVEL if (1..=8).contains(&len) => Ok(0),
        // Another thread may read on between the two looks.
        SIZE_UNREAD => Ok(klog::end().saturating_sub(unread_from())),
        SIZE_BUFFER => Ok(klog::SIZE as u64),
        _ => Err(Errno::EINVAL),
    }
}

fn unread_from() -> u64 {
    READ_TO.load(Ordering::Relaxed).max(klog::first())
}

/// Copies the positions `from..to` of the log to user memory at `out`; returns the number of bytes, fewer if only some can be
/// written. EFAULT if a whole piece cannot.
fn put(out: u64, mut from: u64, to: u64) -> Result<u64, Errno> {
    let mut buf = IoBuf::user(out, (to - from) as usize);
    let began = from;
    while from < to {
        let mut piece = [0; 256];
        let want = piece.len().min((to - from) as usize);
        let n = klog::read(from, &mut piece[..want]);
        if n == 0 || buf.put(&piece[..n]).map_err(super::fsutil::fault)? < n {
            break;
        }
        from += n as u64;
    }
    Ok(from - began)
}

/// READ_ALL: copies as many whole lines from the end of the log as fit into `len` bytes.
fn read_all(out: u64, len: usize) -> Result<u64, Errno> {
    let end = klog::end();
    let oldest = klog::first().max(CLEARED_TO.load(Ordering::Relaxed));
    let mut from = oldest.max(end.saturating_sub(len as u64));
    if from > 0 && from != CLEARED_TO.load(Ordering::Relaxed) {
        from = klog::next_line(from - 1).unwrap_or(end);
    }
    put(out, from.min(end), end)
}

/// Nanoseconds between two looks of a waiting READ. It polls, because code that prints may run in any context, where
/// it cannot wake threads.
const LOOK_NS: u64 = time::SECOND / 10;

/// READ: copies what no READ has returned yet. Waits until there is something. Two threads that read at once may get the same
/// bytes.
fn read_new(out: u64, len: usize) -> Result<u64, Errno> {
    loop {
        let (from, end) = (unread_from(), klog::end());
        if from < end {
            let to = end.min(from + len as u64);
            let n = put(out, from, to)?;
            READ_TO.store(from + n, Ordering::Relaxed);
            return Ok(n);
        }
        if park::sleep_until(Deadline::after(LOOK_NS), Interruptible::Yes) == Err(ParkError::Signal)
        {
            return Err(Errno::ERESTARTSYS);
        }
    }
}
