//! The interrupt descriptor table: one for all CPUs, not written after it has been loaded.
use core::arch::asm;
use core::cell::UnsafeCell;

use super::entry;
use super::gdt::Ist;
use super::gdt::KERNEL_CS;

const NMI: usize = 2;
const BREAKPOINT: usize = 3;
const OVERFLOW: usize = 4;
const DOUBLE_FAULT: usize = 8;
const MACHINE_CHECK: usize = 18;

/// A 64-bit interrupt gate.
#[repr(C)]
#[derive(Clone, Copy)]
struct Gate {
    offset_low: u16,
    selector: u16,
    ist: u8,
    kind: u8,
    offset_middle: u16,
    offset_high: u32,
    reserved: u32,
}

impl Gate {
    const EMPTY: Self = Self {
        offset_low: 0,
        selector: 0,
        ist: 0,
        kind: 0,
        offset_middle: 0,
        offset_high: 0,
        reserved: 0,
    };

    fn interrupt(handler: u64, ist: u8, user_may_call: bool) -> Self {
        Self {
            offset_low: handler as u16,
            selector: KERNEL_CS,
            ist,
            kind: if user_may_call { 0xee } else { 0x8e },
            offset_middle: (handler >> 16) as u16,
            offset_high: (handler >> 32) as u32,
            reserved: 0,
        }
    }
}

#[repr(C, align(4096))]
struct Idt(UnsafeCell<[Gate; 256]>);
// SAFETY: only `init` writes it, on the boot CPU, before any other CPU runs.
unsafe impl Sync for Idt {}
static IDT: Idt = Idt(UnsafeCell::new([Gate::EMPTY; 256]));

/// Fills the table. Called once, by the boot CPU, before [`load`].
pub(super) fn init() {
    for vector in 0..256 {
        let ist = match vector {
            NMI => Ist::Nmi as u8,
            DOUBLE_FAULT => Ist::DoubleFault as u8,
            MACHINE_CHECK => Ist::MachineCheck as u8,
            _ => 0,
        };
        let user_may_call = matches!(vector, BREAKPOINT | OVERFLOW);
        let gate = Gate::interrupt(entry::stub(vector), ist, user_may_call);
        // SAFETY: only the boot CPU runs.
        unsafe { (*IDT.0.get())[vector] = gate };
    }
}

/// Loads the table on this CPU.
pub(super) fn load() {
    #[repr(C, packed(2))]
    struct Pointer {
        limit: u16,
        base: u64,
    }
    let pointer = Pointer {
        limit: 256 * 16 - 1,
        base: IDT.0.get() as u64,
    };
    // SAFETY: the table lives for ever and its gates lead to the entry stubs.
    unsafe { asm!("lidt [{}]", in(reg) &raw const pointer, options(nostack, preserves_flags)) };
}
