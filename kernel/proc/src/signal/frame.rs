//! The frame on the user's stack that a handler runs on, as Linux lays it out.
//!
//! From low to high addresses: return address, ucontext, siginfo, then (64-byte aligned) the floating-point state. The
//! handler begins with a stack pointer 8 below a multiple of 16, as after a call.

use hal::uaccess::{UserFault, UserPtr};
use hal::{UserFrame, fpu, user};
use task::current::Current;

use super::action::{Action, SA_ONSTACK, SA_RESTORER};
use super::altstack::{AltStack, SS_AUTODISARM};
use super::info::{SigFields, SigInfo};
use super::set::SigSet;
use super::thread::{SignalExt, change_altstack};

/// 64-bit words of the ucontext: flags, link, stack (3), registers (32), mask.
const UCONTEXT_WORDS: usize = 38;
/// Return address, ucontext, siginfo.
const FRAME_BYTES: u64 = 8 + UCONTEXT_WORDS as u64 * 8 + 128;
/// Bytes below the stack pointer in which leaf functions keep data.
const RED_ZONE: u64 = 128;

const UC_FP_XSTATE: u64 = 1;
const UC_SIGCONTEXT_SS: u64 = 2;
const UC_STRICT_RESTORE_SS: u64 = 4;

/// The vector of page faults.
const PAGE_FAULT: u64 = 14;

/// Word indices in the ucontext.
mod uc {
    pub const FLAGS: usize = 0;
    pub const STACK: usize = 2;
    pub const REGS: usize = 5;
    pub const RIP: usize = REGS + 16;
    pub const EFLAGS: usize = REGS + 17;
    pub const SEGMENTS: usize = REGS + 18;
    pub const ERR: usize = REGS + 19;
    pub const TRAPNO: usize = REGS + 20;
    pub const OLDMASK: usize = REGS + 21;
    pub const CR2: usize = REGS + 22;
    pub const FPSTATE: usize = REGS + 23;
    pub const SIGMASK: usize = REGS + 32;
}

/// General registers in the order of Linux's sigcontext.
fn registers(f: &mut UserFrame) -> [&mut u64; 17] {
    [
        &mut f.r8, &mut f.r9, &mut f.r10, &mut f.r11, &mut f.r12, &mut f.r13, &mut f.r14,
        &mut f.r15, &mut f.rdi, &mut f.rsi, &mut f.rbp, &mut f.rbx, &mut f.rdx, &mut f.rax,
        &mut f.rcx, &mut f.rsp, &mut f.rip,
    ]
}

/// Pushes a frame for the handler of `info`, and makes `frame` begin at the handler. Writes to user memory: may sleep.
///
/// # Errors
/// The action has no SA_RESTORER, the alternate stack that the thread is on or enters has no room, or the memory cannot be written.
/// `frame` and the alternate stack are unchanged.
pub(super) fn push(
    me: &Current,
    frame: &mut UserFrame,
    info: &SigInfo,
    action: &Action,
    old_mask: u64,
) -> Result<(), UserFault> {
    if action.flags & SA_RESTORER == 0 {
        return Err(UserFault);
    }
    let stack = me.altstack();
    let mut sp = frame.rsp.wrapping_sub(RED_ZONE);
    let enters = action.flags & SA_ONSTACK != 0 && stack.size != 0 && !stack.is_in_use(sp);
    if enters {
        sp = stack.sp.wrapping_add(stack.size);
    }
    let fp = sp.wrapping_sub(fpu::signal_size() as u64) & !63;
    let base = (fp.wrapping_sub(FRAME_BYTES) & !15).wrapping_sub(8);
    if (enters || stack.is_in_use(frame.rsp)) && !stack.contains(base) {
        // The alternate stack has no room for the frame.
        return Err(UserFault);
    }
    me.machine()
        .save_fpu_to(|at, bytes| user::copy_out(fp + at as u64, bytes))?;
    write_context(frame, info, (base, fp), old_mask, &stack)?;
    let siginfo = base + 8 + UCONTEXT_WORDS as u64 * 8;
    UserPtr::<[u64; 16]>::new(siginfo).write(&info.to_raw())?;
    UserPtr::<u64>::new(base).write(&action.restorer)?;
    // As in Linux, whether or not the handler runs on it; sigreturn restores it.
    if stack.flags & SS_AUTODISARM != 0 {
        me.set_altstack(AltStack::DISABLED);
    }
    frame.forget_syscall();
    frame.rsp = base;
    frame.rip = action.handler;
    frame.rdi = u64::from(info.signo);
    // Also without SA_SIGINFO, as in Linux.
    frame.rsi = siginfo;
    frame.rdx = base + 8;
    frame.rax = 0;
    // The ABI wants the direction flag clear on entry; single-stepping ends here, and RF goes, too, as in Linux.
    frame.set_flags(frame.flags() & !0x0001_0500);
    Ok(())
}

/// Writes the ucontext of `frame` above the return address, which is at `base`. The floating-point state is at `fp`.
fn write_context(
    frame: &mut UserFrame,
    info: &SigInfo,
    (base, fp): (u64, u64),
    old_mask: u64,
    stack: &AltStack,
) -> Result<(), UserFault> {
    let mut words = [0u64; UCONTEXT_WORDS];
    words[uc::FLAGS] = UC_FP_XSTATE | UC_SIGCONTEXT_SS | UC_STRICT_RESTORE_SS;
    words[uc::STACK..uc::STACK + 3].copy_from_slice(&[stack.sp, stack.flags.into(), stack.size]);
    let segments = frame.cs() & 0xffff | (frame.ss() & 0xffff) << 48;
    let (flags, error, vector) = (frame.flags(), frame.error, frame.vector);
    for (word, reg) in words[uc::REGS..].iter_mut().zip(registers(frame)) {
        *word = *reg;
    }
    words[uc::EFLAGS] = flags;
    words[uc::SEGMENTS] = segments;
    words[uc::ERR] = if vector < 32 { error } else { 0 };
    words[uc::TRAPNO] = if vector < 32 { vector } else { 0 };
    if let (PAGE_FAULT, SigFields::Fault { addr }) = (vector, &info.fields) {
        words[uc::CR2] = *addr;
    }
    words[uc::OLDMASK] = old_mask;
    words[uc::FPSTATE] = fp;
    words[uc::SIGMASK] = old_mask;
    UserPtr::<[u64; UCONTEXT_WORDS]>::new(base + 8).write(&words)
}

/// rt_sigreturn(2): restores registers, mask and alternate stack from the frame at the stack pointer. Reads user memory: may
/// sleep.
///
/// # Errors
/// The frame cannot be read: general registers, mask and alternate stack are unchanged. Or it returns to no user address: all of
/// it has been restored. The caller makes that a SIGSEGV.
pub fn sigreturn(me: &Current, frame: &mut UserFrame) -> Result<(), UserFault> {
    // The handler's `ret` has popped the return address.
    let context = frame.rsp;
    let mut words: [u64; UCONTEXT_WORDS] = UserPtr::new(context).read()?;
    let fp = words[uc::FPSTATE];
    if fp != 0 {
        me.machine().load_fpu_from(
            |at, bytes| user::copy_in(bytes, fp.wrapping_add(at as u64)),
            UserFault,
        )?;
    }
    for (word, reg) in words[uc::REGS..].iter_mut().zip(registers(frame)) {
        *reg = *word;
    }
    frame.rip = words[uc::RIP];
    frame.set_flags(words[uc::EFLAGS]);
    frame.forget_syscall();
    // restart_syscall(2) does not continue a call that a handler interrupted. A call that is to be restarted is
    // restarted by the registers that were just restored.
    me.take_restart();
    // As in Linux: by the rules of sigaltstack(2), so it does not change for a thread that goes on running on it.
    let [sp, flags, size] = [words[uc::STACK], words[uc::STACK + 1], words[uc::STACK + 2]];
    let _ = change_altstack(me, frame.rsp, [sp, flags, size]);
    me.set_blocked(SigSet(words[uc::SIGMASK]));
    if frame.rip >= hal::USER_END {
        return Err(UserFault);
    }
    Ok(())
}
