//! Restartable sequences: rseq(2).
//!
//! Guarantee: whenever a registered thread runs in user mode, the words in its memory name the CPU that it runs on; and if it was
//! preempted or took a signal within a sequence, it goes on at that sequence's abort handler. Mechanism: the switch to such a thread
//! sets a flag, and on its way to user mode the thread does both; a switch meanwhile sets the flag again. A thread without a
//! registration pays a load for each switch, and nothing on its way to user mode.
//!
//! The words are written when the CPU is another than the one that was written last: a write after each switch would copy a page after
//! each fork, in the parent and in the child. For the same reason a thread that comes from a system call does not have its memory looked
//! at, which in a new child is not mapped yet: no sequence may contain a system call, so there is nothing to end. A child that begins on
//! its maker's CPU has neither to do.

use ksync::CpuPin;
use ksync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use hal::UserFrame;
use hal::uaccess::{UserFault, UserPtr};
use task::current::Current;
use task::thread::{Thread, flag};

/// The size and alignment of the structure in user memory, in bytes.
pub const SIZE: u64 = 32;

/// Offsets in it: both CPU numbers, the address of the sequence's descriptor, flags.
const SEQUENCE: u64 = 8;
const FLAGS: u64 = 16;

/// The number of no CPU.
const NO_CPU: u32 = u32::MAX;

/// A thread's registration.
#[derive(Default)]
pub struct Rseq {
    /// The address of the structure, 0 for none. *Own*; the thread's maker sets it before the thread runs.
    at: AtomicU64,
    /// The word that stands before each abort handler. As `at`.
    signature: AtomicU32,
    /// The CPU whose number is in memory; [`NO_CPU`] for none. As `at`.
    written: AtomicU32,
    /// The thread has not run yet, and has its maker's registration. Written by the maker, then by the CPU that runs the thread first.
    inherited: AtomicBool,
}

/// Why a registration was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RseqError {
    /// Another address, or none, is registered; or the address cannot be.
    Invalid,
    /// Another signature is registered.
    NotPermitted,
    /// This is registered already.
    Busy,
    /// The memory is not accessible.
    Fault,
}

impl Rseq {
    /// Copies the registration of the caller, whose memory is copied, to a child that does not run yet.
    pub(super) fn inherit(&self, from: &Rseq) {
        if from.address() == 0 {
            return;
        }
        self.at.store(from.address(), Ordering::Relaxed);
        let signature = from.signature.load(Ordering::Relaxed);
        self.signature.store(signature, Ordering::Relaxed);
        let written = from.written.load(Ordering::Relaxed);
        self.written.store(written, Ordering::Relaxed);
        self.inherited.store(true, Ordering::Relaxed);
    }

    /// Ends the registration, of the calling thread, without a write to its memory.
    pub(super) fn forget(&self) {
        self.at.store(0, Ordering::Relaxed);
    }

    fn address(&self) -> u64 {
        self.at.load(Ordering::Relaxed)
    }
}

/// Registers the structure at `at` for `me`, the caller. It is written before `me` next runs in user mode.
///
/// # Errors
/// [`RseqError`]; nothing has changed.
pub fn register(me: &Current, own: &Rseq, at: u64, signature: u32) -> Result<(), RseqError> {
    match own.address() {
        0 => {}
        now if now != at => return Err(RseqError::Invalid),
        _ if own.signature.load(Ordering::Relaxed) != signature => {
            return Err(RseqError::NotPermitted);
        }
        _ => return Err(RseqError::Busy),
    }
    if at == 0 || !at.is_multiple_of(SIZE) {
        return Err(RseqError::Invalid);
    }
    if !hal::user::in_range(at, SIZE as usize) {
        return Err(RseqError::Fault);
    }
    own.signature.store(signature, Ordering::Relaxed);
    own.written.store(NO_CPU, Ordering::Relaxed);
    own.at.store(at, Ordering::Relaxed);
    me.set(flag::RSEQ);
    Ok(())
}

/// Ends the registration of the caller, and writes to its memory that there is none. Sleeps.
///
/// # Errors
/// [`RseqError`]; nothing has changed.
pub fn unregister(own: &Rseq, at: u64, signature: u32) -> Result<(), RseqError> {
    if at == 0 || own.address() != at {
        return Err(RseqError::Invalid);
    }
    if own.signature.load(Ordering::Relaxed) != signature {
        return Err(RseqError::NotPermitted);
    }
    UserPtr::<[u32; 2]>::new(at)
        .write(&[0, NO_CPU])
        .map_err(|_| RseqError::Fault)?;
    own.forget();
    Ok(())
}

/// A CPU is about to run `t`, after another thread. Called with interrupts off.
#[inline]
pub(super) fn runs_again(pin: &CpuPin, t: &Thread, own: &Rseq) {
    if own.address() == 0 {
        return;
    }
    if own.inherited.load(Ordering::Relaxed) {
        own.inherited.store(false, Ordering::Relaxed);
        if own.written.load(Ordering::Relaxed) == pin.cpu() as u32 {
            return;
        }
    }
    t.set(flag::RSEQ);
}

/// Writes the CPU's number if it is another, and ends the sequence that `me`, the caller, was in. Called on its way to user mode, with interrupts on.
/// Accesses user memory: sleeps.
///
/// # Errors
/// The memory is not accessible, or the sequence's descriptor is malformed. The caller makes that a SIGSEGV.
pub(super) fn resume(me: &Current, own: &Rseq, frame: &mut UserFrame) -> Result<(), UserFault> {
    // Before the number is read: a switch after that sets it again.
    me.clear(flag::RSEQ);
    let at = own.address();
    if at == 0 {
        return Ok(());
    }
    if frame.syscall_number().is_none() {
        leave_sequence(own, frame)?;
    }
    let cpu = ksync::pin().cpu() as u32;
    if own.written.load(Ordering::Relaxed) != cpu {
        UserPtr::<[u32; 2]>::new(at).write(&[cpu, cpu])?;
        own.written.store(cpu, Ordering::Relaxed);
    }
    Ok(())
}

/// If the thread is within a sequence, makes `frame` begin at its abort handler; the thread is in none any more. For a signal, before
/// its handler gets the registers. Accesses user memory: sleeps.
///
/// # Errors
/// The memory is not accessible, or the descriptor of the sequence is malformed. The caller makes that a SIGSEGV.
pub fn leave_sequence(own: &Rseq, frame: &mut UserFrame) -> Result<(), UserFault> {
    let at = own.address();
    if at == 0 {
        return Ok(());
    }
    let descriptor: u64 = UserPtr::new(at + SEQUENCE).read()?;
    if descriptor == 0 {
        return Ok(());
    }
    // Version and flags, the first address, the length in bytes, the abort handler.
    let [head, start, len, abort]: [u64; 4] = UserPtr::new(descriptor).read()?;
    let ends = start.checked_add(len).ok_or(UserFault)?;
    let outside = |addr: u64| addr >= hal::USER_END;
    if head as u32 != 0 || outside(start) || outside(ends) || outside(abort) {
        return Err(UserFault);
    }
    // The handler is not within the sequence.
    if abort.wrapping_sub(start) < len {
        return Err(UserFault);
    }
    let signature: u32 = UserPtr::new(abort.wrapping_sub(4)).read()?;
    if signature != own.signature.load(Ordering::Relaxed) {
        return Err(UserFault);
    }
    let inside = frame.rip.wrapping_sub(start) < len;
    // As in Linux 6.1, no flag has a meaning any more.
    let flags: u32 = UserPtr::new(at + FLAGS).read()?;
    if inside && (flags != 0 || head >> 32 != 0) {
        return Err(UserFault);
    }
    UserPtr::<u64>::new(at + SEQUENCE).write(&0)?;
    if inside {
        frame.rip = abort;
    }
    Ok(())
}
