//! Segment descriptors and the task-state segment of each CPU.
use core::arch::asm;
use core::mem::size_of;

/// Kernel code segment.
pub(super) const KERNEL_CS: u16 = 0x10;
/// Kernel data segment.
const KERNEL_SS: u16 = 0x18;
/// Selector of the task-state segment.
const TSS_SELECTOR: u16 = 0x40;

/// Entries of the interrupt stack table, counted from 1 as the CPU does.
#[derive(Clone, Copy)]
pub(super) enum Ist {
    Nmi = 1,
    DoubleFault = 2,
    MachineCheck = 3,
}

/// The descriptor table; its selectors are those of [`super::frame`].
#[repr(C, align(8))]
pub(super) struct Gdt([u64; 10]);

impl Gdt {
    pub(super) const fn new() -> Self {
        Self([
            0,
            0,
            0x00af_9b00_0000_ffff, // 0x10 kernel code
            0x00cf_9300_0000_ffff, // 0x18 kernel data
            // 0x20, the base that sysret counts from, must stay empty: sysret reads no descriptor, and with 32-bit user
            // code a program could enter the kernel by the 32-bit `syscall`, for which there is no entry.
            0,
            0x00cf_f300_0000_ffff, // 0x28 user data
            0x00af_fb00_0000_ffff, // 0x30 user code
            0,
            0, // 0x40 TSS, two slots
            0,
        ])
    }
}

/// The 64-bit task-state segment, as far as the CPU reads it.
#[repr(C, packed(4))]
pub(super) struct Tss {
    reserved: u32,
    rsp: [u64; 3],
    reserved_1: u64,
    ist: [u64; 7],
    reserved_2: u64,
    reserved_3: u16,
    io_map: u16,
}

const _: () = assert!(size_of::<Tss>() == 104);

impl Tss {
    pub(super) const fn new() -> Self {
        Self {
            reserved: 0,
            rsp: [0; 3],
            reserved_1: 0,
            ist: [0; 7],
            reserved_2: 0,
            reserved_3: 0,
            // Beyond the limit: user mode may touch no port.
            io_map: size_of::<Tss>() as u16,
        }
    }

    pub(super) fn set_kernel_stack(&mut self, top: u64) {
        self.rsp[0] = top;
    }

    pub(super) fn set_ist(&mut self, which: Ist, top: u64) {
        self.ist[which as usize - 1] = top;
    }
}

#[repr(C, packed(2))]
struct Pointer {
    limit: u16,
    base: u64,
}

/// Loads this CPU's descriptor table and task register.
///
/// # Safety
/// `gdt` and `tss` must be those of the CPU that runs this, for good, and not yet in use otherwise.
pub(super) unsafe fn load(gdt: *mut Gdt, tss: *mut Tss) {
    // SAFETY: the caller owns both; the descriptors are the ones the kernel is written for, and
    // the segment registers are reloaded from them at once.
    unsafe {
        let tss = tss as u64;
        let limit = (size_of::<Tss>() - 1) as u64;
        (*gdt).0[8] = limit | (tss & 0xff_ffff) << 16 | 0x89 << 40 | (tss >> 24 & 0xff) << 56;
        (*gdt).0[9] = tss >> 32;
        let pointer = Pointer {
            limit: (size_of::<Gdt>() - 1) as u16,
            base: gdt as u64,
        };
        asm!(
            "lgdt [{pointer}]",
            "push {cs}",
            "lea {scratch}, [rip + 2f]",
            "push {scratch}",
            "retfq",
            "2:",
            "mov ss, {ss:e}",
            "ltr {tss:x}",
            // There are no local descriptors. A CPU starts with a table of them at address 0, which is a program's: a
            // selector of that table would have the CPU read there with the kernel's rights.
            "lldt {none:x}",
            pointer = in(reg) &raw const pointer,
            cs = in(reg) u64::from(KERNEL_CS),
            ss = in(reg) u32::from(KERNEL_SS),
            tss = in(reg) TSS_SELECTOR,
            none = in(reg) 0u16,
            scratch = out(reg) _,
        );
    }
}
