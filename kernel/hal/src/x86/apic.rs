//! The local APIC: in x2APIC mode if the CPU has it, otherwise through registers in memory.
use core::hint::spin_loop;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use super::vectors::VECTOR_SPURIOUS;
use super::{features, irq, msr, paging};

const REGISTER_ID: u32 = 0x02;
const REGISTER_EOI: u32 = 0x0b;
const REGISTER_SPURIOUS: u32 = 0x0f;
const REGISTER_ERROR: u32 = 0x28;
const REGISTER_ICR: u32 = 0x30;
const REGISTER_ICR_HIGH: u32 = 0x31;
const REGISTER_TIMER: u32 = 0x32;
const REGISTER_LINT0: u32 = 0x35;
const REGISTER_LINT1: u32 = 0x36;
const REGISTER_TIMER_INITIAL: u32 = 0x38;
const REGISTER_TIMER_CURRENT: u32 = 0x39;
const REGISTER_TIMER_DIVIDE: u32 = 0x3e;

const MASKED: u32 = 1 << 16;
const DELIVERY_NMI: u32 = 4 << 8;
const DELIVERY_INIT: u32 = 5 << 8;
const DELIVERY_STARTUP: u32 = 6 << 8;
const LEVEL_ASSERT: u32 = 1 << 14;
const PENDING: u32 = 1 << 12;
const TIMER_TSC_DEADLINE: u32 = 2 << 17;

/// Address of the mapped registers; null in x2APIC mode. Written once, at boot.
static REGISTERS: AtomicPtr<u32> = AtomicPtr::new(ptr::null_mut());

fn read(register: u32) -> u32 {
    let base = REGISTERS.load(Ordering::Relaxed);
    // SAFETY: either the registers are mapped, 16 bytes apart, or the CPU is in x2APIC mode.
    unsafe {
        if base.is_null() {
            msr::read(msr::X2APIC + register) as u32
        } else {
            base.add(register as usize * 4).read_volatile()
        }
    }
}

fn write(register: u32, value: u32) {
    let base = REGISTERS.load(Ordering::Relaxed);
    // SAFETY: as in `read`; callers write defined values to defined registers.
    unsafe {
        if base.is_null() {
            msr::write(msr::X2APIC + register, u64::from(value));
        } else {
            base.add(register as usize * 4).write_volatile(value);
        }
    }
}

/// Maps the registers, unless the CPU has x2APIC mode. Called once, on the boot CPU, before [`enable`].
///
/// # Errors
/// [`paging::NoTable`] when memory is short.
pub(super) fn map() -> Result<(), paging::NoTable> {
    if !features::has(features::X2APIC) {
        // SAFETY: every CPU this kernel runs on has the register.
        let base = unsafe { msr::read(msr::APIC_BASE) } & 0x000f_ffff_ffff_f000;
        REGISTERS.store(paging::map_device(base, 4096)?.cast(), Ordering::Relaxed);
    }
    Ok(())
}

/// Enables this CPU's local APIC, with LINT0 and the timer masked and LINT1 delivering NMIs.
pub(super) fn enable() {
    const GLOBAL_ENABLE: u64 = 1 << 11;
    const X2APIC_ENABLE: u64 = 1 << 10;
    const SOFTWARE_ENABLE: u32 = 1 << 8;
    // SAFETY: turns on a mode that CPUID says is there.
    unsafe {
        let mut base = msr::read(msr::APIC_BASE) | GLOBAL_ENABLE;
        msr::write(msr::APIC_BASE, base);
        if features::has(features::X2APIC) {
            base |= X2APIC_ENABLE;
            msr::write(msr::APIC_BASE, base);
        }
    }
    // First: while it is disabled by this bit, as after INIT, all its local vectors are masked and stay so.
    write(
        REGISTER_SPURIOUS,
        SOFTWARE_ENABLE | u32::from(VECTOR_SPURIOUS),
    );
    write(REGISTER_LINT0, MASKED);
    write(REGISTER_LINT1, DELIVERY_NMI);
    write(REGISTER_TIMER, MASKED);
    write(REGISTER_ERROR, 0);
}

/// APIC id of this CPU.
pub(super) fn id() -> u32 {
    let id = read(REGISTER_ID);
    if features::has(features::X2APIC) {
        id
    } else {
        id >> 24
    }
}

/// Acknowledges the interrupt in service.
#[inline]
pub(super) fn end_of_interrupt() {
    write(REGISTER_EOI, 0);
}

/// Writes the command register. In memory that takes two writes, and a wait until an earlier command has been sent: with
/// interrupts off, because a handler may send, too.
fn send(apic_id: u32, command: u32) {
    if REGISTERS.load(Ordering::Relaxed).is_null() {
        // The write to this register is not ordered after earlier stores, and the target must see them.
        core::sync::atomic::fence(Ordering::SeqCst);
        // SAFETY: the CPU is in x2APIC mode, and the instructions touch no memory. `mfence; lfence` orders earlier stores
        // before the write, as the manual asks.
        unsafe {
            core::arch::asm!("mfence", "lfence", options(nostack, preserves_flags));
            msr::write(
                msr::X2APIC + REGISTER_ICR,
                u64::from(apic_id) << 32 | u64::from(command),
            );
        }
        return;
    }
    let flags = irq::save();
    while read(REGISTER_ICR) & PENDING != 0 {
        spin_loop();
    }
    write(REGISTER_ICR_HIGH, apic_id << 24);
    write(REGISTER_ICR, command);
    irq::restore(flags);
}

/// Sends an interrupt to the CPU with this APIC id.
pub(super) fn send_interrupt(apic_id: u32, vector: u8) {
    send(apic_id, LEVEL_ASSERT | u32::from(vector));
}

/// Sends a non-maskable interrupt.
pub(super) fn send_nmi(apic_id: u32) {
    send(apic_id, LEVEL_ASSERT | DELIVERY_NMI);
}

/// Sends INIT to another CPU, which then waits for [`send_startup`].
pub(super) fn send_init(apic_id: u32) {
    send(apic_id, LEVEL_ASSERT | DELIVERY_INIT);
}

/// Starts another CPU in real mode at `page * 4096`.
pub(super) fn send_startup(apic_id: u32, page: u8) {
    send(apic_id, LEVEL_ASSERT | DELIVERY_STARTUP | u32::from(page));
}

/// Makes this CPU's timer interrupt at `vector`, by TSC deadline or by a counter. It is not started yet.
pub(super) fn timer_init(vector: u8) {
    const DIVIDE_BY_16: u32 = 3;
    write(REGISTER_TIMER_DIVIDE, DIVIDE_BY_16);
    let mode = if features::has(features::TSC_DEADLINE) {
        TIMER_TSC_DEADLINE
    } else {
        0
    };
    write(REGISTER_TIMER, mode | u32::from(vector));
    // The mode must be set before the first deadline is.
    core::sync::atomic::fence(Ordering::SeqCst);
}

/// Starts the counter; 0 stops it.
pub(super) fn timer_start(count: u32) {
    write(REGISTER_TIMER_INITIAL, count);
}

/// What is left of the counter.
pub(super) fn timer_left() -> u32 {
    read(REGISTER_TIMER_CURRENT)
}

/// Masks the timer, for calibration.
pub(super) fn timer_mask() {
    const DIVIDE_BY_16: u32 = 3;
    write(REGISTER_TIMER_DIVIDE, DIVIDE_BY_16);
    write(REGISTER_TIMER, MASKED);
}
