//! Power-off, reset, and an exit code for the emulator.
use core::arch::asm;
use core::sync::atomic::{AtomicBool, Ordering};

use super::acpi::Power;
use super::lock::BootLock;
use super::{console, cpu, irq, port, time};

/// Port of QEMU's isa-debug-exit device, as the tests configure it.
const DEBUG_EXIT: u16 = 0xf4;

/// Whether the command line has `pantala.exit=debug`. Atomic.
static EXIT_WANTED: AtomicBool = AtomicBool::new(false);
static POWER: BootLock<Option<Power>> = BootLock::new(None);

pub(super) fn init(power: Power) {
    *POWER.lock() = Some(power);
}

fn registers() -> Power {
    (*POWER.lock()).unwrap_or_default()
}

/// Turns the machine off; halts if that fails.
pub fn off() -> ! {
    const SLEEP_ENABLE: u16 = 1 << 13;
    irq::disable();
    let power = registers();
    // SAFETY: writes to these ports only turn the machine off.
    unsafe {
        if power.has_s5 {
            if let Some(register) = power.sleep_control {
                const SLEEP_ENABLE_REDUCED: u8 = 1 << 5;
                port::write_u8(register, power.sleep_type[0] << 2 | SLEEP_ENABLE_REDUCED);
            }
            for (register, sleep_type) in power.pm1_control.into_iter().zip(power.sleep_type) {
                if register != 0 {
                    let kept = port::read_u16(register) & !(0x7 << 10);
                    port::write_u16(register, kept | u16::from(sleep_type) << 10 | SLEEP_ENABLE);
                }
            }
        }
        // The ports at which QEMU and Bochs have the register, if ACPI names none.
        for register in [0x604, 0xb004] {
            port::write_u16(register, SLEEP_ENABLE);
        }
    }
    // An emulator may take a while to exit.
    time::spin_ns(2_000_000_000);
    kprintln!("power off failed; the machine is halted");
    cpu::stop()
}

/// Resets the machine.
pub fn reboot() -> ! {
    irq::disable();
    // SAFETY: writes to these ports only reset the machine.
    unsafe {
        if let Some((register, value)) = registers().reset {
            port::write_u8(register, value);
            time::spin_ns(10_000_000);
        }
        // The chipset's reset control register, then the keyboard controller's pulse.
        port::write_u8(0xcf9, 0x02);
        port::write_u8(0xcf9, 0x06);
        time::spin_ns(10_000_000);
        port::write_u8(0x64, 0xfe);
        time::spin_ns(10_000_000);
        // With no handler for it, the exception resets the CPU.
        #[repr(C, packed(2))]
        struct Pointer(u16, u64);
        let nothing = Pointer(0, 0);
        asm!("lidt [{}]", "int3", in(reg) &raw const nothing);
    }
    cpu::stop()
}

/// Sets whether [`debug_exit`] has an effect, as `pantala.exit=debug` asks.
pub fn use_debug_exit(wanted: bool) {
    EXIT_WANTED.store(wanted, Ordering::Relaxed);
}

/// Whether [`debug_exit`] has an effect.
pub fn uses_debug_exit() -> bool {
    EXIT_WANTED.load(Ordering::Relaxed)
}

/// Makes an emulator that has an isa-debug-exit device exit with status `code * 2 + 1`, once the console has sent what was
/// written to it. Returns if there is no such device, or [`use_debug_exit`] has not asked for it.
pub fn debug_exit(code: u8) {
    if !uses_debug_exit() {
        return;
    }
    console::drain();
    // SAFETY: the write ends the emulator, or has no effect.
    unsafe { port::write_u32(DEBUG_EXIT, u32::from(code)) };
}
