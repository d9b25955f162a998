//! Page faults of programs, and of the kernel's copies to and from user memory.

use ksync::atomic::Ordering;

use hal::user::UserFault;
use mem::vm;
use vm::{Access, FaultError};

use super::oom;
use crate::signal::{SigInfo, code, sig};

/// Bits of the error code that the CPU pushes (Intel SDM vol. 3, "Page-Fault Exceptions").
mod bit {
    pub const WRITE: u64 = 1 << 1;
    pub const FETCH: u64 = 1 << 4;
}

/// Handles a page fault at `va`, whose error code is `error`.
///
/// Called with interrupts and preemption on. A stack grows on any fault in its reach, whatever the stack pointer is, as
/// in Linux since 4.20. Sleeps: for pages, locks of the memory, and memory itself.
///
/// # Errors
/// The access is not allowed, or there is no memory even after a wait (SIGKILL); the value is the signal for the thread, which
/// has not been sent.
pub fn page_fault(va: u64, error: u64) -> Result<(), SigInfo> {
    let access = match error {
        e if e & bit::FETCH != 0 => Access::Exec,
        e if e & bit::WRITE != 0 => Access::Write,
        _ => Access::Read,
    };
    match crate::with_space(|space| space.fault(vm(), va, access)) {
        Some(Ok(())) => {
            let count = &crate::current().usage.minor_faults;
            count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            Ok(())
        }
        Some(Err(failure)) => failed(va, access, failure),
        None => Err(SigInfo::fault(sig::SEGV, code::SEGV_MAPERR, va)),
    }
}

/// A fault has failed: returns the signal for the thread, or tries again after memory may have become free.
#[cold]
#[inline(never)]
fn failed(va: u64, access: Access, first: FaultError) -> Result<(), SigInfo> {
    let (mut tries, mut failure) = (0, first);
    loop {
        return Err(match failure {
            FaultError::NotMapped => SigInfo::fault(sig::SEGV, code::SEGV_MAPERR, va),
            FaultError::Denied => SigInfo::fault(sig::SEGV, code::SEGV_ACCERR, va),
            FaultError::Bus => SigInfo::fault(sig::BUS, code::BUS_ADRERR, va),
            FaultError::NoMemory if oom::reclaim_for(tries) => {
                tries += 1;
                match crate::with_space(|space| space.fault(vm(), va, access)) {
                    Some(Err(again)) => failure = again,
                    _ => return Ok(()),
                }
                continue;
            }
            FaultError::NoMemory => SigInfo::kernel(sig::KILL),
        });
    }
}

/// Makes a page of the current process accessible to the kernel, which is about to copy with faults disabled.
///
/// # Errors
/// The program may not access the page in this way.
pub fn fault_in(va: u64, write: bool) -> Result<(), UserFault> {
    let error = if write { bit::WRITE } else { 0 };
    page_fault(va, error).map_err(|_| UserFault)
}
