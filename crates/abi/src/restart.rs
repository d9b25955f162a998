//! What a system call returns when a signal came, for the code that delivers signals: results that no program sees, but a
//! tracer. Linux's numbers.

/// The call is interrupted: EINTR.
pub const INTERRUPTED: u64 = (crate::raw::errno::EINTR as u64).wrapping_neg();
/// Restart the call, or fail with EINTR if a handler without SA_RESTART runs (ERESTARTSYS).
pub const UNLESS_HANDLED: u64 = 512_u64.wrapping_neg();
/// Restart the call, after whatever handlers (ERESTARTNOINTR).
pub const ALWAYS: u64 = 513_u64.wrapping_neg();
/// Restart the call only where no handler runs (ERESTARTNOHAND).
pub const WITHOUT_HANDLER: u64 = 514_u64.wrapping_neg();
/// As [`WITHOUT_HANDLER`], through restart_syscall(2) (ERESTART_RESTARTBLOCK).
pub const BY_BLOCK: u64 = 516_u64.wrapping_neg();
