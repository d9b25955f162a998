//! Restartable sequences: rseq(2).
//!
//! Guarantee: whenever a registered thread runs in user mode, the words in its memory name the CPU that it runs on; and if it was
//! preempted or took a signal within a sequence, it goes on at that sequence's abort handler. Mechanism: the switch to such a thread
//! sets a flag, and on its way to user mode the thread does both; a switch meanwhile sets the flag again. A thread without a
//! registration pays a load for each switch, and nothing on its way to user mode.
//!
//! The words are written where they differ: a write after each switch would copy a page after each fork, in the parent and in the child.
//! They are compared in memory, for programs write there: one allocator keeps a pointer in the first, which the kernel is to remove. For
//! the same reason a child does neither before its first run if that is on the CPU that its memory names.

use ksync::CpuPin;
use ksync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use hal::UserFrame;
use hal::uaccess::{UserFault, UserPtr};
use task::current::Current;
use task::thread::{Thread, flag};

use crate::UserThreadExt;

/// The size and alignment of the structure in user memory, in bytes.
pub const SIZE: u64 = 32;

/// Offsets in it: both CPU numbers, the address of the sequence's descriptor, flags.
const SEQUENCE: u64 = 8;
const FLAGS: u64 = 16;

/// A thread's registration.
#[derive(Default)]
pub struct Rseq {
    /// The address of the structure, 0 for none. *Own*; the thread's maker sets it before the thread runs.
    at: AtomicU64,
    /// The word that stands before each abort handler. As `at`.
    signature: AtomicU32,
    /// The CPU that the memory named when the kernel last looked. As `at`.
    written: AtomicU32,
    /// The thread has not run yet, and its memory is as its maker's was when the kernel had nothing to do there. Written by the maker,
    /// then by the CPU that runs the thread first.
    is_fresh: AtomicBool,
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
    /// Copies the registration of `me`, the caller, whose memory was copied, to a child that does not run yet.
    pub(super) fn inherit(&self, me: &Current) {
        let from = me.rseq();
        if from.address() == 0 {
            return;
        }
        self.at.store(from.address(), Ordering::Relaxed);
        let signature = from.signature.load(Ordering::Relaxed);
        self.signature.store(signature, Ordering::Relaxed);
        let written = from.written.load(Ordering::Relaxed);
        self.written.store(written, Ordering::Relaxed);
        // After a switch since the caller entered the kernel, something is to be done in either's memory.
        self.is_fresh.store(!me.has(flag::RSEQ), Ordering::Relaxed);
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
    own.at.store(at, Ordering::Relaxed);
    me.set(flag::RSEQ);
    Ok(())
}

/// Ends the registration of the caller, and writes to its memory that there is none. Sleeps.
///
/// # Errors
/// [`RseqError`]; nothing has changed.
pub fn unregister(own: &Rseq, at: u64, signature: u32) -> Result<(), RseqError> {
    /// The number of no CPU.
    const NO_CPU: u32 = u32::MAX;
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
    if own.is_fresh.load(Ordering::Relaxed) {
        own.is_fresh.store(false, Ordering::Relaxed);
        if own.written.load(Ordering::Relaxed) == pin.cpu() as u32 {
            return;
        }
    }
    t.set(flag::RSEQ);
}

/// Does what is due in the memory of `me`, the caller, on its way to user mode, with interrupts on; see [`refresh`]. Sleeps.
///
/// # Errors
/// Those of [`refresh`].
pub(super) fn resume(me: &Current, own: &Rseq, frame: &mut UserFrame) -> Result<(), UserFault> {
    // Before the CPU's number is read: a switch after that sets it again.
    me.clear(flag::RSEQ);
    refresh(own, frame)
}

/// If the thread is within a sequence, makes `frame` begin at its abort handler; the thread is in none any more. Then makes its memory
/// name the CPU. Called after a switch, and for a signal before its handler gets the registers. Accesses user memory: sleeps.
///
/// # Errors
/// The memory is not accessible, or the descriptor of the sequence is malformed. The caller makes that a SIGSEGV.
pub fn refresh(own: &Rseq, frame: &mut UserFrame) -> Result<(), UserFault> {
    let at = own.address();
    if at == 0 {
        return Ok(());
    }
    let [cpus, descriptor]: [u64; 2] = UserPtr::new(at).read()?;
    if descriptor != 0 {
        leave_sequence(own, at, descriptor, frame)?;
    }
    let cpu = ksync::pin().cpu() as u32;
    let wanted = u64::from(cpu) << 32 | u64::from(cpu);
    if cpus != wanted {
        UserPtr::new(at).write(&wanted)?;
    }
    own.written.store(cpu, Ordering::Relaxed);
    Ok(())
}

/// Does the former for the sequence that the thread has said it may be in.
fn leave_sequence(
    own: &Rseq,
    at: u64,
    descriptor: u64,
    frame: &mut UserFrame,
) -> Result<(), UserFault> {
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
