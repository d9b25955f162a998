//! The functions that the entry code calls: for exceptions, interrupts and system calls, and before user mode.
use core::sync::atomic::Ordering;

use super::cpu::IN_HANDLER;
use super::vectors::{VECTOR_CALL, VECTOR_RESCHEDULE, VECTOR_SERIAL, VECTOR_TIMER};
use super::{
    apic, console, entry, ipi, irq, msr, panic, percpu, preempt, sample, time, timer, user_copy,
};
use crate::frame::{TrapFrame, UserFrame};
use crate::limits::USER_END;
use crate::upcalls::{Handled, symbols as upcall};

const GENERAL_PROTECTION: u64 = 13;
const PAGE_FAULT: u64 = 14;
/// The bit of a page fault's error that is set if the page is mapped.
const PROTECTION: u64 = 1;
const NMI: u64 = 2;

/// Sets `syscall` up on this CPU.
pub(super) fn init_syscall() {
    /// Flags that `syscall` clears, so that the user's do not have an effect in the kernel: TF IF DF IOPL NT RF AC ID.
    const CLEARED: u64 = 0x0025_7700;
    // SAFETY: every 64-bit CPU has these registers, and the entry code is written for these values.
    unsafe {
        msr::write(msr::STAR, 0x20 << 48 | 0x10 << 32);
        msr::write(msr::LSTAR, entry::syscall_address());
        msr::write(msr::SFMASK, CLEARED);
    }
}

/// What [`syscall`] returns to the entry code, in RAX and RDX.
#[repr(C)]
pub(super) struct Done {
    result: u64,
    /// Not 0 if [`syscall_full_frame`] must be called next.
    more: u64,
}

/// A system call. Interrupts are off on entry and on return. The frame holds only the registers that every call saves.
/// `sysret` can return from it: only [`syscall_full_frame`] changes it, and a `syscall` instruction below [`USER_END`] leaves
/// a canonical return address.
pub(super) extern "C" fn syscall(frame: &mut UserFrame) -> Done {
    irq::enable();
    let result = upcall::syscall(frame);
    irq::disable();
    Done {
        result,
        more: upcall::work_after_syscall(result).into(),
    }
}

/// Called after [`syscall`], with all registers in the frame: to carry out a call that needs them, or to do work before user
/// mode.
pub(super) extern "C" fn syscall_full_frame(frame: &mut UserFrame) {
    irq::enable();
    upcall::syscall_full_frame(frame);
    irq::disable();
    leave_to_user(frame);
}

/// An exception. Runs on the thread's stack, and may sleep if it comes from user mode. In the kernel only the instructions of
/// user copies may cause one, and resume at their error exits; any other is a panic.
pub(super) extern "C" fn exception(frame: &mut TrapFrame) {
    let from_user = frame.in_user_mode();
    if frame.vector == PAGE_FAULT {
        page_fault(frame, from_user);
    } else if from_user {
        irq::enable();
        upcall::user_exception(frame, frame.vector, frame.error);
    } else if !user_copy::fix_up(frame) {
        panic::kernel_fault(frame, None);
    }
    if from_user {
        irq::disable();
        leave_to_user(frame);
    }
}

/// A page fault. One in user mode is resolved, or leaves the thread with a signal pending. One in a user copy is resolved, which
/// may sleep, if interrupts and preemption were on; if not, or if it cannot be resolved, the copy resumes at its error exit. Any
/// other one in the kernel is a panic.
fn page_fault(frame: &mut TrapFrame, from_user: bool) {
    let address = super::paging::fault_address();
    let error = frame.error;
    if from_user {
        if address >= USER_END {
            // As in Linux: the error that a handler is shown does not tell which kernel addresses are mapped.
            frame.error |= PROTECTION;
        }
        irq::enable();
        // Resolved or not, the thread continues at its frame: if not, it has a signal pending.
        let _: Handled = upcall::page_fault(address, error, true);
        return;
    }
    if address >= USER_END || !user_copy::is_copy(frame.rip) {
        panic::kernel_fault(frame, Some(address));
    }
    if frame.interrupts_on() && preempt::count() == 0 {
        irq::enable();
        let handled = upcall::page_fault(address, error, false);
        irq::disable();
        if handled == Handled::Resolved {
            return;
        }
    }
    user_copy::fix_up(frame);
}

/// An interrupt from user mode. Runs on the thread's stack.
pub(super) extern "C" fn interrupt_from_user(frame: &mut TrapFrame) {
    interrupt(frame);
    leave_to_user(frame);
}

/// An interrupt. One from kernel mode runs on the CPU's interrupt stack.
pub(super) extern "C" fn interrupt(frame: &mut TrapFrame) {
    preempt::enter_interrupt();
    let area = percpu::area();
    let spent = area.irq_ticks.load(Ordering::Relaxed);
    let origin = time::ticks().saturating_sub(spent);
    area.irq_ticks.store(origin | IN_HANDLER, Ordering::Relaxed);
    let counts = &area.irq_counts;
    // Only this CPU writes its counts.
    let count = |kind: usize| {
        counts[kind].store(counts[kind].load(Ordering::Relaxed) + 1, Ordering::Relaxed)
    };
    match frame.vector as u8 {
        VECTOR_TIMER => {
            count(0);
            apic::end_of_interrupt();
            sample::tick(frame);
            timer::expired(frame);
        }
        VECTOR_RESCHEDULE => {
            count(1);
            apic::end_of_interrupt();
            upcall::reschedule_ipi();
        }
        VECTOR_CALL => {
            count(2);
            apic::end_of_interrupt();
            ipi::serve();
        }
        VECTOR_SERIAL => {
            count(3);
            console::receive();
            apic::end_of_interrupt();
        }
        // Spurious interrupts of the APIC, and those of the masked PIC, are not acknowledged.
        _ => {}
    }
    // No handler enables interrupts, so no time is counted twice.
    let spent = time::ticks().saturating_sub(origin).max(spent);
    area.irq_ticks.store(spent, Ordering::Relaxed);
    preempt::leave_interrupt();
}

/// Called at the end of an interrupt from kernel mode, on the thread's own stack, with interrupts off.
pub(super) extern "C" fn preempt() {
    upcall::preempt_check();
}

/// NMI, double fault, machine check.
pub(super) extern "C" fn paranoid(frame: &mut TrapFrame) {
    if frame.vector == NMI {
        panic::on_nmi(frame);
    } else {
        panic::kernel_fault(frame, None);
    }
}

/// The last step before user mode: does pending work, and then checks the address, so that the return itself cannot fault.
#[inline]
fn leave_to_user(frame: &mut UserFrame) {
    upcall::before_user_return(frame);
    if frame.rip >= USER_END {
        bad_return_address(frame);
    }
}

/// The frame's address is not a user address. As in Linux, this is a general protection fault.
#[cold]
fn bad_return_address(frame: &mut UserFrame) {
    while frame.rip >= USER_END {
        irq::enable();
        upcall::user_exception(frame, GENERAL_PROTECTION, 0);
        irq::disable();
        upcall::before_user_return(frame);
    }
}

/// Enters user mode with the registers of `frame`, as at the end of a system call.
///
/// Called on the thread's own kernel stack, with preemption on.
pub fn enter_user(frame: &UserFrame) -> ! {
    let mut frame = *frame;
    irq::disable();
    leave_to_user(&mut frame);
    // SAFETY: interrupts are off, the CPU is in kernel mode, and nothing on this stack is used again but the frame, which is
    // not overwritten before its registers are loaded.
    unsafe { entry::load_frame(&raw const frame) }
}
