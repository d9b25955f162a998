//! The I/O APICs: all pins are masked but that of the serial port.
use core::ptr;

use super::acpi::Platform;
use super::lock::BootLock;
use super::vectors::VECTOR_SERIAL;
use super::{paging, percpu};

/// The ISA interrupt of COM1.
const SERIAL_IRQ: u8 = 4;

/// The pin of the serial port.
struct Line {
    registers: *mut u32,
    pin: u32,
    /// Polarity and trigger mode, as bits of the redirection entry.
    mode: u32,
}

// SAFETY: the pointer is to device registers, which are accessed under the lock only.
unsafe impl Send for Line {}

static SERIAL: BootLock<Option<Line>> = BootLock::new(None);

/// Writes one of the indirectly addressed registers.
///
/// # Safety
/// `registers` must be a mapped I/O APIC.
unsafe fn write(registers: *mut u32, index: u32, value: u32) {
    // SAFETY: the index goes to the select register, the value to the window 16 bytes further. The caller holds the lock.
    unsafe {
        registers.write_volatile(index);
        registers.add(4).write_volatile(value);
    }
}

/// # Safety
/// `registers` must be a mapped I/O APIC.
unsafe fn read(registers: *mut u32, index: u32) -> u32 {
    // SAFETY: as in `write`.
    unsafe {
        registers.write_volatile(index);
        registers.add(4).read_volatile()
    }
}

const MASKED: u32 = 1 << 16;

/// Masks all pins of all I/O APICs, and records the pin of the serial port.
///
/// # Errors
/// [`paging::NoTable`] when memory is short.
pub(super) fn init(platform: &Platform) -> Result<(), paging::NoTable> {
    let (gsi, mode) = platform.isa_route(SERIAL_IRQ);
    for apic in platform.io_apics() {
        let registers = paging::map_device(u64::from(apic.address), 4096)?.cast::<u32>();
        let mut serial = SERIAL.lock();
        // SAFETY: just mapped; the table of pins starts at register 0x10, two registers each.
        unsafe {
            let pins = (read(registers, 1) >> 16 & 0xff) + 1;
            for pin in 0..pins {
                write(registers, 0x10 + 2 * pin, MASKED);
            }
            if gsi >= apic.first_gsi && gsi - apic.first_gsi < pins {
                *serial = Some(Line {
                    registers,
                    pin: gsi - apic.first_gsi,
                    mode,
                });
            }
        }
    }
    Ok(())
}

/// Routes the serial port's interrupt to the boot CPU.
pub(super) fn enable_serial() {
    let serial = SERIAL.lock();
    let Some(line) = &*serial else { return };
    let target = percpu::of(0).map_or(0, |area| area.apic_id);
    debug_assert!(!ptr::eq(line.registers, ptr::null()));
    // SAFETY: a mapped I/O APIC; the vector has a handler.
    unsafe {
        write(line.registers, 0x11 + 2 * line.pin, target << 24);
        write(
            line.registers,
            0x10 + 2 * line.pin,
            line.mode | u32::from(VECTOR_SERIAL),
        );
    }
}
