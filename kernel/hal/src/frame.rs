//! The registers that an entry to the kernel saves.

/// The `vector` of a frame that a system call made. It is none of the CPU's 256 vectors.
pub const VECTOR_SYSCALL: u64 = 0x100;

/// User data segment, as Linux programs see it.
pub(crate) const USER_SS: u16 = 0x2b;
/// User 64-bit code segment, as Linux programs see it.
pub(crate) const USER_CS: u16 = 0x33;

/// Flags that sigreturn(2) and ptrace(2) may set: CF PF AF ZF SF TF DF OF RF AC ID.
const USER_FLAGS: u64 = 0x0025_0dd5;
/// NT: the program's own, which neither a handler nor sigreturn(2) changes, as in Linux.
const KEPT_FLAGS: u64 = 0x4000;
/// Flags that are always set in user mode: IF, and the bit that is always 1.
const FIXED_FLAGS: u64 = 0x202;

/// All registers of the interrupted context, in the order of Linux's `pt_regs`, with the vector added.
///
/// The frame of a thread's user registers lies at the top of its kernel stack. Code that changes `rip`, `rsp` or a general
/// register there changes what user mode resumes with. Flags are changed by [`Self::set_flags`], and the segments cannot be
/// changed, so the return to user mode cannot fault.
///
/// A system call saves its arguments, its number, `rip`, `rsp` and the flags. The other registers are preserved by the
/// kernel's own code, or follow from these. They are stored in the frame only for a call that needs the full register frame
/// (see `syscall::FULL_FRAME`), and before signals and other work on the way to user mode.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct UserFrame {
    /// R15. [`Self`] says when the frame has this register and the next five.
    pub r15: u64,
    /// R14.
    pub r14: u64,
    /// R13.
    pub r13: u64,
    /// R12.
    pub r12: u64,
    /// RBP.
    pub rbp: u64,
    /// RBX.
    pub rbx: u64,
    /// R11.
    pub r11: u64,
    /// R10.
    pub r10: u64,
    /// R9.
    pub r9: u64,
    /// R8.
    pub r8: u64,
    /// RAX.
    pub rax: u64,
    /// RCX.
    pub rcx: u64,
    /// RDX.
    pub rdx: u64,
    /// RSI.
    pub rsi: u64,
    /// RDI.
    pub rdi: u64,
    /// Exception or interrupt vector, or [`VECTOR_SYSCALL`].
    pub vector: u64,
    /// The exception's error code (0 if it has none), or the number of the system call.
    pub error: u64,
    /// The address at which the context resumes.
    pub rip: u64,
    cs: u64,
    flags: u64,
    /// RSP.
    pub rsp: u64,
    ss: u64,
}

const _: () = assert!(size_of::<UserFrame>() == 176);

/// The same registers, seen from an exception handler.
pub type TrapFrame = UserFrame;

impl UserFrame {
    /// A frame that starts user code at `rip` with stack `rsp` and all other registers zero.
    pub fn new_user(rip: u64, rsp: u64) -> Self {
        Self {
            rip,
            rsp,
            cs: u64::from(USER_CS),
            ss: u64::from(USER_SS),
            flags: FIXED_FLAGS,
            ..Self::default()
        }
    }

    /// Argument `i`, below 6, of a system call, in the order of the kernel's ABI.
    #[inline(always)]
    pub fn get(&self, i: usize) -> u64 {
        match i {
            0 => self.rdi,
            1 => self.rsi,
            2 => self.rdx,
            3 => self.r10,
            4 => self.r8,
            _ => self.r9,
        }
    }

    /// Argument `i`, if its C type is `int`.
    #[inline(always)]
    pub fn int(&self, i: usize) -> i32 {
        self.get(i) as i32
    }

    /// Argument `i`, if its C type is `unsigned int`.
    #[inline(always)]
    pub fn uint(&self, i: usize) -> u32 {
        self.get(i) as u32
    }

    /// Argument `i`, if its C type is `size_t`.
    #[inline(always)]
    pub fn size(&self, i: usize) -> usize {
        self.get(i) as usize
    }

    /// The number of the system call that made this frame; `None` if none did, or after [`Self::forget_syscall`].
    pub fn syscall_number(&self) -> Option<u64> {
        (self.vector == VECTOR_SYSCALL).then_some(self.error)
    }

    /// Makes the frame look as if no system call had made it, so that a signal does not restart the call.
    pub fn forget_syscall(&mut self) {
        self.vector = 0;
        self.error = u64::MAX;
    }

    /// The flags register.
    pub fn flags(&self) -> u64 {
        self.flags
    }

    /// Sets the flags that a user may set. NT stays as it is; the others keep the values that user mode needs.
    pub fn set_flags(&mut self, flags: u64) {
        self.flags = flags & USER_FLAGS | self.flags & KEPT_FLAGS | FIXED_FLAGS;
    }

    /// Code segment. Its privilege level distinguishes user mode from kernel mode.
    pub fn cs(&self) -> u64 {
        self.cs
    }

    /// Stack segment.
    pub fn ss(&self) -> u64 {
        self.ss
    }

    /// Whether the context was in user mode.
    #[inline]
    pub fn in_user_mode(&self) -> bool {
        self.cs & 3 != 0
    }

    /// Whether the context had interrupts enabled.
    #[cfg(target_os = "none")]
    #[inline]
    pub(crate) fn interrupts_on(&self) -> bool {
        self.flags & 0x200 != 0
    }
}

/// Offsets of the frame's fields, for the entry code.
#[cfg(target_os = "none")]
pub(crate) mod offset {
    use super::UserFrame;
    use core::mem::offset_of;
    pub(crate) const R15: usize = offset_of!(UserFrame, r15);
    pub(crate) const R14: usize = offset_of!(UserFrame, r14);
    pub(crate) const R13: usize = offset_of!(UserFrame, r13);
    pub(crate) const R12: usize = offset_of!(UserFrame, r12);
    pub(crate) const RBP: usize = offset_of!(UserFrame, rbp);
    pub(crate) const RBX: usize = offset_of!(UserFrame, rbx);
    pub(crate) const R11: usize = offset_of!(UserFrame, r11);
    pub(crate) const R10: usize = offset_of!(UserFrame, r10);
    pub(crate) const R9: usize = offset_of!(UserFrame, r9);
    pub(crate) const R8: usize = offset_of!(UserFrame, r8);
    pub(crate) const RAX: usize = offset_of!(UserFrame, rax);
    pub(crate) const RCX: usize = offset_of!(UserFrame, rcx);
    pub(crate) const RDX: usize = offset_of!(UserFrame, rdx);
    pub(crate) const RSI: usize = offset_of!(UserFrame, rsi);
    pub(crate) const RDI: usize = offset_of!(UserFrame, rdi);
    pub(crate) const VECTOR: usize = offset_of!(UserFrame, vector);
    pub(crate) const ERROR: usize = offset_of!(UserFrame, error);
    pub(crate) const RIP: usize = offset_of!(UserFrame, rip);
    pub(crate) const CS: usize = offset_of!(UserFrame, cs);
    pub(crate) const FLAGS: usize = offset_of!(UserFrame, flags);
    pub(crate) const RSP: usize = offset_of!(UserFrame, rsp);
    pub(crate) const SS: usize = offset_of!(UserFrame, ss);
    pub(crate) const SIZE: usize = size_of::<UserFrame>();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_that_are_set_leave_nt_as_it_is() {
        let mut frame = UserFrame::new_user(0x1000, 0x2000);
        frame.set_flags(u64::MAX);
        assert_eq!(frame.flags(), USER_FLAGS | FIXED_FLAGS);
        // SYSCALL saves the flags of the program as they are.
        frame.flags |= KEPT_FLAGS;
        frame.set_flags(0);
        assert_eq!(frame.flags(), KEPT_FLAGS | FIXED_FLAGS);
    }
}
