//! What the machine calls.
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::arch::{self, BootInfo, TrapFrame, UserFrame};

/// What became of a page fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handled {
    /// The access can be tried again, or the user was sent a signal.
    Resolved,
    /// The kernel's access fails.
    Unresolved,
}

static ARRIVED: AtomicUsize = AtomicUsize::new(0);

/// On CPU 0, interrupts off, on its final stack.
pub fn kmain(info: BootInfo) -> ! {
    crate::kprintln!("Pantala on {} CPUs", info.ncpus);
    for range in info.memory {
        crate::kprintln!(
            "node {}: frames {:#x} to {:#x}",
            range.node,
            range.start,
            range.end
        );
    }
    arch::release_cpus();
    while ARRIVED.load(Ordering::Acquire) + 1 < info.ncpus {
        arch::cpu::relax();
    }
    crate::kprintln!("CPU 0 of {} is up", info.ncpus);
    arch::power::off()
}

/// On every other CPU, interrupts off, on its final stack.
pub fn ap_main(cpu: usize) -> ! {
    crate::kprintln!("CPU {cpu} is up");
    ARRIVED.fetch_add(1, Ordering::Release);
    loop {
        arch::cpu::halt_until_interrupt();
    }
}

/// A system call; interrupts on.
pub fn syscall(frame: &mut UserFrame) {
    frame.rax = (-38i64).cast_unsigned();
}

/// A page fault on a user address; interrupts on, may sleep.
pub fn page_fault(_: &mut TrapFrame, _address: u64, _error: u64, _from_user: bool) -> Handled {
    Handled::Unresolved
}

/// An exception in user mode; interrupts on, may sleep.
pub fn user_exception(frame: &mut TrapFrame, vector: u64, error: u64) {
    panic!(
        "exception {vector} ({error:#x}) in user mode at {:#x}",
        frame.rip
    );
}

/// The one-shot timer of this CPU fired; interrupts off, on the interrupt stack.
pub fn timer_expired(_from_user: bool) {}

/// Another CPU asks this one to look at its run queue; interrupts off, on the interrupt stack.
pub fn reschedule_ipi() {}

/// Last thing before user mode; interrupts off on entry and exit.
pub fn before_user_return(_: &mut UserFrame) {}

/// An interrupt of kernel mode ends while a reschedule is wanted and allowed; interrupts off on entry and exit,
/// on the thread's stack. Also called, with interrupts on, when preemption comes back on.
pub fn preempt_check() {}

/// A byte from the serial line; interrupts off, on the interrupt stack.
pub fn serial_input(_: u8) {}
