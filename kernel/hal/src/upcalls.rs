//! The functions of the kernel above that this crate calls: one trait, bound at link time.
//!
//! The calls use symbols that [`upcalls!`](crate::upcalls!) defines, as `ksync` does for its platform, so that link-time
//! optimisation can inline them.

#[cfg(target_os = "none")]
use vm::Growth;

#[cfg(not(target_os = "none"))]
use crate::sim::info::BootInfo;
#[cfg(target_os = "none")]
use crate::x86::boot::info::BootInfo;

#[cfg(target_os = "none")]
use crate::frame::TrapFrame;
use crate::frame::UserFrame;
use crate::user_fault::UserFault;

/// The result of a page fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handled {
    /// The access can be repeated.
    Resolved,
    /// The access is not possible. A thread in user mode has a signal pending.
    Unresolved,
}

/// The functions of the kernel above. A simulated machine has no system calls, exceptions or devices, and asks nothing about
/// the running thread.
pub trait Upcalls {
    /// Enters the kernel on the boot CPU, on its final stack, with interrupts off.
    fn kmain(info: BootInfo) -> !;
    /// Enters the kernel on another CPU, on its final stack, with interrupts off. Called once
    /// [`release_cpus`](crate::release_cpus) has been called.
    fn ap_main(cpu: usize) -> !;
    /// Carries out a system call, given the registers that every call saves. Returns the value for RAX. Interrupts and
    /// preemption are on.
    #[cfg(target_os = "none")]
    fn syscall(frame: &mut UserFrame) -> u64;
    /// Whether work must be done between a system call and user mode. A quiescent state; interrupts are off.
    #[cfg(target_os = "none")]
    fn work_after_syscall(result: u64) -> bool;
    /// Carries out a system call for which there is such work, with the full register frame. Interrupts and preemption are
    /// on.
    #[cfg(target_os = "none")]
    fn syscall_full_frame(frame: &mut UserFrame);
    /// Handles a page fault at `va`, in user mode or in a user copy with preemption on. Interrupts are on.
    fn page_fault(va: u64, error: u64, from_user: bool) -> Handled;
    /// Makes a page of the current process accessible, because the kernel is about to copy with preemption off. Sleeps.
    ///
    /// # Errors
    /// The program may not access it so.
    fn fault_in(va: u64, write: bool) -> Result<(), UserFault>;
    /// Handles an exception in user mode. Interrupts are on.
    #[cfg(target_os = "none")]
    fn user_exception(frame: &mut TrapFrame, vector: u64, error: u64);
    /// Called before user mode: a quiescent state. Interrupts are off on entry and on return.
    fn before_user_return(frame: &mut UserFrame);
    /// The timer interrupt. Interrupts are off.
    fn timer_expired(from_user: bool);
    /// Another CPU asks this one to look at its run queue. Interrupts are off.
    fn reschedule_ipi();
    /// Reschedules if that is requested; preemption is on. Interrupts may be on or off, and are so again on return.
    fn preempt_check();
    /// A byte has been received on the console. Interrupts are off.
    #[cfg(target_os = "none")]
    fn serial_input(byte: u8);
    /// Whether the running thread has been killed.
    #[cfg(target_os = "none")]
    fn must_stop() -> bool;
    /// Whether the present limits of the running thread's process allow a stack to grow as `to` says.
    #[cfg(target_os = "none")]
    fn may_grow(to: &Growth) -> bool;
}

/// The symbols that the linker binds.
pub(crate) mod symbols {
    use super::{BootInfo, Handled, UserFault, UserFrame};
    #[cfg(target_os = "none")]
    use super::{Growth, TrapFrame};
    // SAFETY: only `upcalls!` defines these names, with these types.
    unsafe extern "Rust" {
        #[link_name = "__pantala_hal_kmain"]
        pub safe fn kmain(info: BootInfo) -> !;
        #[link_name = "__pantala_hal_ap_main"]
        pub safe fn ap_main(cpu: usize) -> !;
        #[cfg(target_os = "none")]
        #[link_name = "__pantala_hal_syscall"]
        pub safe fn syscall(frame: &mut UserFrame) -> u64;
        #[cfg(target_os = "none")]
        #[link_name = "__pantala_hal_work_after_syscall"]
        pub safe fn work_after_syscall(result: u64) -> bool;
        #[cfg(target_os = "none")]
        #[link_name = "__pantala_hal_syscall_full_frame"]
        pub safe fn syscall_full_frame(frame: &mut UserFrame);
        #[link_name = "__pantala_hal_page_fault"]
        pub safe fn page_fault(va: u64, error: u64, from_user: bool) -> Handled;
        #[link_name = "__pantala_hal_fault_in"]
        pub safe fn fault_in(va: u64, write: bool) -> Result<(), UserFault>;
        #[cfg(target_os = "none")]
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
        #[cfg(target_os = "none")]
        #[link_name = "__pantala_hal_serial_input"]
        pub safe fn serial_input(byte: u8);
        #[cfg(target_os = "none")]
        #[link_name = "__pantala_hal_must_stop"]
        pub safe fn must_stop() -> bool;
        #[cfg(target_os = "none")]
        #[link_name = "__pantala_hal_may_grow"]
        pub safe fn may_grow(to: &Growth) -> bool;
    }
}

/// Makes `$t`, an [`Upcalls`], the kernel above this crate. To be used exactly once in a binary: a second use fails to link.
#[macro_export]
macro_rules! upcalls {
    ($t:ty) => {
        #[allow(unsafe_code, reason = "the names belong to hal, and a second definition fails to link")]
        const _: () = {
            use $crate::upcalls::{Handled, Upcalls};
            use $crate::{BootInfo, UserFault, UserFrame};
    $crate::__upcall!($t, "__pantala_hal_kmain", kmain(info: BootInfo) -> !);
    $crate::__upcall!($t, "__pantala_hal_ap_main", ap_main(cpu: usize) -> !);
    $crate::__upcall!($t, "__pantala_hal_page_fault",
                page_fault(va: u64, error: u64, from_user: bool) -> Handled);
    $crate::__upcall!($t, "__pantala_hal_fault_in", fault_in(va: u64, write: bool) -> Result<(), UserFault>);
    $crate::__upcall!($t, "__pantala_hal_before_user_return", before_user_return(frame: &mut UserFrame) -> ());
    $crate::__upcall!($t, "__pantala_hal_timer_expired", timer_expired(from_user: bool) -> ());
    $crate::__upcall!($t, "__pantala_hal_reschedule_ipi", reschedule_ipi() -> ());
    $crate::__upcall!($t, "__pantala_hal_preempt_check", preempt_check() -> ());
        };
        #[cfg(target_os = "none")]
        #[allow(unsafe_code, reason = "the names belong to hal, and a second definition fails to link")]
        const _: () = {
            use $crate::upcalls::Upcalls;
            use $crate::{TrapFrame, UserFrame};
    $crate::__upcall!($t, "__pantala_hal_syscall", syscall(frame: &mut UserFrame) -> u64);
    $crate::__upcall!($t, "__pantala_hal_work_after_syscall", work_after_syscall(result: u64) -> bool);
    $crate::__upcall!($t, "__pantala_hal_syscall_full_frame", syscall_full_frame(frame: &mut UserFrame) -> ());
    $crate::__upcall!($t, "__pantala_hal_user_exception",
                user_exception(frame: &mut TrapFrame, vector: u64, error: u64) -> ());
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
