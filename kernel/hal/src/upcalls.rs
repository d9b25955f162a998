//! What this crate calls of the kernel above it: one trait, bound at link time.
//!
//! The calls go through symbols that [`upcalls!`](crate::upcalls!) defines, as those of `ksync`'s platform do, so that
//! link-time optimisation inlines them.

use vm::Growth;

use crate::boot::info::BootInfo;
use crate::frame::{TrapFrame, UserFrame};
use crate::user::UserFault;

/// What became of a page fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handled {
    /// The access can be tried again.
    Resolved,
    /// It cannot; in user mode the thread has a signal pending.
    Unresolved,
}

/// The kernel, as this crate sees it.
pub trait Upcalls {
    /// The boot CPU's way into the kernel, on its final stack, interrupts off.
    fn kmain(info: BootInfo) -> !;
    /// Another CPU's way into the kernel, on its final stack, interrupts off. The CPU was let go by
    /// [`release_cpus`](crate::smp::release_cpus).
    fn ap_main(cpu: usize) -> !;
    /// A system call, with the registers that all calls save; returns what goes to RAX. Interrupts and preemption are on.
    fn syscall(frame: &mut UserFrame) -> u64;
    /// Whether anything is to be done between a system call and user mode. A quiescent point; interrupts are off.
    fn work_after_syscall(result: u64) -> bool;
    /// A system call for which there is such work, with a full register frame. Interrupts and preemption are on.
    fn syscall_full_frame(frame: &mut UserFrame);
    /// A page fault at `va`: in user mode, or of a user copy with faults allowed. Interrupts are on.
    fn page_fault(va: u64, error: u64, from_user: bool) -> Handled;
    /// Makes a page of the current process reachable for the kernel, which is about to copy with faults off.
    ///
    /// # Errors
    /// The program may not access it so.
    fn fault_in(va: u64, write: bool) -> Result<(), UserFault>;
    /// An exception in user mode. Interrupts are on.
    fn user_exception(frame: &mut TrapFrame, vector: u64, error: u64);
    /// The way back to user mode, a quiescent point. Interrupts are off on entry and on return.
    fn before_user_return(frame: &mut UserFrame);
    /// The timer's interrupt. Interrupts are off.
    fn timer_expired(from_user: bool);
    /// Another CPU asks for a look at the run queue. Interrupts are off.
    fn reschedule_ipi();
    /// Preemption is possible and wanted. Interrupts may be on or off, and stay so.
    fn preempt_check();
    /// A byte from the console. Interrupts are off.
    fn serial_input(byte: u8);
    /// Whether the running thread is to die.
    fn must_stop() -> bool;
    /// Whether the limits of the running thread's process, as they are now, let a stack grow so.
    fn may_grow(to: &Growth) -> bool;
}

/// The link-time binding.
pub(crate) mod symbols {
    use super::{BootInfo, Growth, Handled, TrapFrame, UserFault, UserFrame};
    // SAFETY: `upcalls!` is the only definer of these names, with these very types.
    unsafe extern "Rust" {
        #[link_name = "__pantala_hal_kmain"]
        pub safe fn kmain(info: BootInfo) -> !;
        #[link_name = "__pantala_hal_ap_main"]
        pub safe fn ap_main(cpu: usize) -> !;
        #[link_name = "__pantala_hal_syscall"]
        pub safe fn syscall(frame: &mut UserFrame) -> u64;
        #[link_name = "__pantala_hal_work_after_syscall"]
        pub safe fn work_after_syscall(result: u64) -> bool;
        #[link_name = "__pantala_hal_syscall_full_frame"]
        pub safe fn syscall_full_frame(frame: &mut UserFrame);
        #[link_name = "__pantala_hal_page_fault"]
        pub safe fn page_fault(va: u64, error: u64, from_user: bool) -> Handled;
        #[link_name = "__pantala_hal_fault_in"]
        pub safe fn fault_in(va: u64, write: bool) -> Result<(), UserFault>;
        #[link_name = "__pantala_hal_user_exception"]
        pub safe fn user_exception(frame: &mut TrapFrame, vector: u64, error: u64);
        #[link_name = "__pantala_hal_before_user_return"]
        pub safe fn before_user_return(frame: &mut UserFrame);
        #[link_name = "__pantala_hal_timer_expired"]
        pub safe fn timer_expired(from_user: bool);
        #[link_name = "__pantala_hal_reschedule_ipi"]
        pub safe fn reschedule_ipi();
        #[link_name = "__pantala_hal_preempt_check"]
        pub safe fn preempt_check();
        #[link_name = "__pantala_hal_serial_input"]
        pub safe fn serial_input(byte: u8);
        #[link_name = "__pantala_hal_must_stop"]
        pub safe fn must_stop() -> bool;
        #[link_name = "__pantala_hal_may_grow"]
        pub safe fn may_grow(to: &Growth) -> bool;
    }
}

/// Makes `$t`, an [`Upcalls`], the kernel above this crate. Exactly once per binary: a second one fails to link.
#[macro_export]
macro_rules! upcalls {
    ($t:ty) => {
        #[allow(unsafe_code, reason = "the names belong to hal, and a second definition fails to link")]
        const _: () = {
            use $crate::upcalls::{Handled, Upcalls};
            use $crate::{BootInfo, TrapFrame, UserFault, UserFrame};
    $crate::__upcall!($t, "__pantala_hal_kmain", kmain(info: BootInfo) -> !);
    $crate::__upcall!($t, "__pantala_hal_ap_main", ap_main(cpu: usize) -> !);
    $crate::__upcall!($t, "__pantala_hal_syscall", syscall(frame: &mut UserFrame) -> u64);
    $crate::__upcall!($t, "__pantala_hal_work_after_syscall", work_after_syscall(result: u64) -> bool);
    $crate::__upcall!($t, "__pantala_hal_syscall_full_frame", syscall_full_frame(frame: &mut UserFrame) -> ());
    $crate::__upcall!($t, "__pantala_hal_page_fault",
                page_fault(va: u64, error: u64, from_user: bool) -> Handled);
    $crate::__upcall!($t, "__pantala_hal_fault_in", fault_in(va: u64, write: bool) -> Result<(), UserFault>);
    $crate::__upcall!($t, "__pantala_hal_user_exception",
                user_exception(frame: &mut TrapFrame, vector: u64, error: u64) -> ());
    $crate::__upcall!($t, "__pantala_hal_before_user_return", before_user_return(frame: &mut UserFrame) -> ());
    $crate::__upcall!($t, "__pantala_hal_timer_expired", timer_expired(from_user: bool) -> ());
    $crate::__upcall!($t, "__pantala_hal_reschedule_ipi", reschedule_ipi() -> ());
    $crate::__upcall!($t, "__pantala_hal_preempt_check", preempt_check() -> ());
    $crate::__upcall!($t, "__pantala_hal_serial_input", serial_input(byte: u8) -> ());
    $crate::__upcall!($t, "__pantala_hal_must_stop", must_stop() -> bool);
    $crate::__upcall!($t, "__pantala_hal_may_grow", may_grow(to: &vm::Growth) -> bool);
        };
    };
}

/// One symbol of [`upcalls!`](crate::upcalls).
#[doc(hidden)]
#[macro_export]
macro_rules! __upcall {
    ($t:ty, $symbol:literal, $name:ident($($a:ident: $at:ty),*) -> $r:ty) => {
        // SAFETY: the name belongs to hal, and a second definition fails to link.
        #[inline]
        #[unsafe(export_name = $symbol)]
        extern "Rust" fn $name($($a: $at),*) -> $r {
            <$t as Upcalls>::$name($($a),*)
        }
    };
}
