//! The kernel's page tables.
//!
//! Guarantee: once `seal` has run, kernel text is read-only, read-only data is not executable, and no memory is both writable
//! and executable, at whichever address it is mapped. Every entry of the upper half of the root that is ever used is filled
//! at boot. So the root of a process copies the entries 256 to 511 once, and no later change of kernel mappings concerns it.
//!
//! Layout: the direct map at [`memory::DIRECT_MAP`]; kernel stacks at `STACKS`; device registers at `MMIO`; on machines with
//! several nodes the page array at `PAGES`; the image in the last 2 GiB.
use core::arch::asm;
use core::sync::atomic::{AtomicU64, Ordering};

use vm::asid::Tag;

use super::lock::BootLock;
use super::memory::{self, KERNEL_BASE};
use super::{features, frames};

/// Start of the region of kernel stacks: 512 GiB, one entry of the root.
pub(super) const STACKS: u64 = 0xffff_c900_0000_0000;
/// End of the region of kernel stacks.
pub(super) const STACKS_END: u64 = STACKS + (1 << 39);
/// Start of the region of the page array, if that is not in the direct map: one entry of the root.
pub(super) const PAGES: u64 = 0xffff_ea00_0000_0000;
/// Start of the region of device registers: one entry of the root.
const MMIO: u64 = 0xffff_d000_0000_0000;
/// Start of the CPUs' windows on physical memory, in the upper half of that region.
pub(super) const WINDOWS: u64 = MMIO + (1 << 38);

const PRESENT: u64 = 1 << 0;
const WRITE: u64 = 1 << 1;
const WRITE_THROUGH: u64 = 1 << 3;
const CACHE_DISABLE: u64 = 1 << 4;
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
const LARGE: u64 = 1 << 7;
const GLOBAL: u64 = 1 << 8;
const NO_EXECUTE: u64 = 1 << 63;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// Access rights and memory type of a kernel mapping.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Text,
    ReadOnly,
    Data,
    Device,
}

impl Kind {
    fn bits(self) -> u64 {
        let common = PRESENT
            | ACCESSED
            | DIRTY
            | if features::has(features::GLOBAL) {
                GLOBAL
            } else {
                0
            };
        let no_execute = if features::has(features::NX) {
            NO_EXECUTE
        } else {
            0
        };
        common
            | match self {
                Self::Text => 0,
                Self::ReadOnly => no_execute,
                Self::Data => WRITE | no_execute,
                Self::Device => WRITE | no_execute | CACHE_DISABLE | WRITE_THROUGH,
            }
    }
}

/// Physical address of the kernel's root. Written once, at boot.
static ROOT: AtomicU64 = AtomicU64::new(0);
/// Held while the kernel's tables are changed. The CPUs read the entries at any time.
static TABLES: BootLock<Next> = BootLock::new(Next { mmio: MMIO });

struct Next {
    /// The next free address of the region of device registers.
    mmio: u64,
}

/// Memory for a page table ran out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoTable;

type Table = [AtomicU64; 512];

fn table(physical: u64) -> &'static Table {
    // SAFETY: the kernel's page tables are whole frames in the direct map, and are never freed.
    unsafe { &*memory::direct(physical & ADDRESS).cast::<Table>() }
}

fn index(va: u64, level: u32) -> usize {
    (va >> (12 + 9 * level)) as usize & 511
}

/// The table to which `entry` leads, which is made if it is missing: with [`TABLES`] locked, or at boot.
fn descend(entry: &AtomicU64) -> Result<&'static Table, NoTable> {
    let value = entry.load(Ordering::Acquire);
    if value & PRESENT != 0 {
        debug_assert!(value & LARGE == 0, "a large kernel mapping is in the way");
        return Ok(table(value));
    }
    let new = u64::from(frames::alloc_zeroed(0).ok_or(NoTable)?) << 12;
    entry.store(new | PRESENT | WRITE | ACCESSED, Ordering::Release);
    Ok(table(new))
}

/// Maps `len` bytes at physical address `pa` to `va` in the tables under `root`, with the largest pages that fit. All three
/// are multiples of the page size, and nothing is mapped at `va` yet. If it fails, a part may be mapped.
fn map_range(root: u64, mut va: u64, mut pa: u64, len: u64, kind: Kind) -> Result<(), NoTable> {
    let end = pa + len;
    let top_level = if features::has(features::PAGES_1G) {
        2
    } else {
        1
    };
    while pa < end {
        let fits = |level: u32| {
            let size = 1u64 << (12 + 9 * level);
            (va | pa) & (size - 1) == 0 && end - pa >= size
        };
        let level = (1..=top_level)
            .rev()
            .find(|&level| fits(level))
            .unwrap_or(0);
        let mut at = table(root);
        for upper in (level + 1..4).rev() {
            at = descend(&at[index(va, upper)])?;
        }
        let large = if level > 0 { LARGE } else { 0 };
        at[index(va, level)].store(pa | kind.bits() | large, Ordering::Release);
        let size = 1u64 << (12 + 9 * level);
        va += size;
        pa += size;
    }
    Ok(())
}

/// Builds the kernel's tables and loads them on the boot CPU. `ram` has the physical ranges for the direct map, which are
/// page-aligned and do not overlap. `extra` bytes behind the image (the symbol table) are mapped read-only.
///
/// # Errors
/// [`NoTable`] when memory is short.
pub(super) fn build(ram: impl Iterator<Item = (u64, u64)>, extra: u64) -> Result<(), NoTable> {
    let root = u64::from(frames::alloc_zeroed(0).ok_or(NoTable)?) << 12;
    let image = memory::image();
    let sections = [
        (image.start, image.text_end, Kind::Text),
        (image.text_end, image.rodata_end, Kind::ReadOnly),
        (image.rodata_end, image.end, Kind::Data),
        (image.end, image.end + extra, Kind::ReadOnly),
    ];
    for (start, end, kind) in sections {
        map_range(root, KERNEL_BASE + start, start, end - start, kind)?;
    }
    for (start, end) in ram {
        // The image's text and read-only data are read-only in the direct map, too.
        let cuts = [
            (start, end.min(image.start), Kind::Data),
            (
                start.max(image.start),
                end.min(image.rodata_end),
                Kind::ReadOnly,
            ),
            (start.max(image.rodata_end), end, Kind::Data),
        ];
        for (from, to, kind) in cuts {
            if from < to {
                map_range(root, memory::DIRECT_MAP + from, from, to - from, kind)?;
            }
        }
    }
    // Mappings are added to the other regions later, below entries of the root that are filled from now on.
    descend(&table(root)[index(STACKS, 3)])?;
    descend(&table(root)[index(MMIO, 3)])?;
    ROOT.store(root, Ordering::Release);
    // SAFETY: the new tables map all that the kernel uses of what the old ones map.
    unsafe { write_cr3(root) };
    Ok(())
}

/// Loads the kernel's root. Called on each other CPU when it starts.
pub(super) fn load_kernel_root() {
    // SAFETY: the kernel's root maps all of the kernel.
    unsafe { write_cr3(ROOT.load(Ordering::Acquire)) };
}

/// Frame number of the kernel's root table. Every other root has a copy of its entries 256 to 511.
pub fn kernel_root() -> u32 {
    (ROOT.load(Ordering::Acquire) >> 12) as u32
}

/// Clears the root of the boot page tables, which map everything writable and executable. Called once no CPU uses them any
/// more.
pub(super) fn seal() {
    unsafe extern "C" {
        static boot_pml4: Table;
    }
    // SAFETY: the boot tables are part of the image and no CPU has them loaded.
    for entry in unsafe { &boot_pml4 } {
        entry.store(0, Ordering::Relaxed);
    }
}

/// Maps `len` bytes of the page array, `offset` bytes from its start. Called at boot, before any other root is made.
///
/// # Errors
/// [`NoTable`] when memory is short.
pub(super) fn map_pages(offset: u64, pa: u64, len: u64) -> Result<(), NoTable> {
    let root = ROOT.load(Ordering::Acquire);
    map_range(root, PAGES + offset, pa, len, Kind::Data)
}

/// Maps device registers, uncached and for good. Returns their virtual address.
///
/// # Errors
/// [`NoTable`] when memory is short.
pub(super) fn map_device(pa: u64, len: u64) -> Result<*mut u8, NoTable> {
    let first = pa & !0xfff;
    let size = (pa + len).next_multiple_of(4096) - first;
    let mut next = TABLES.lock();
    let va = next.mmio;
    let root = ROOT.load(Ordering::Acquire);
    for offset in (0..size).step_by(4096) {
        map_range(root, va + offset, first + offset, 4096, Kind::Device)?;
    }
    next.mmio += size;
    Ok((va + (pa - first)) as *mut u8)
}

/// The entry of a 4 KiB page in the kernel's tables. Tables above it are made if they are missing, under the lock of the tables.
///
/// # Errors
/// [`NoTable`] when memory is short.
pub(super) fn kernel_entry(va: u64) -> Result<&'static AtomicU64, NoTable> {
    // Tables are never freed, so the lock is needed only where one is missing.
    let is_there = |entry: &AtomicU64| entry.load(Ordering::Acquire) & PRESENT != 0;
    let mut changes = None;
    let mut at = table(ROOT.load(Ordering::Acquire));
    for upper in (1..4).rev() {
        let entry = &at[index(va, upper)];
        if changes.is_none() && !is_there(entry) {
            changes = Some(TABLES.lock());
        }
        at = descend(entry)?;
    }
    Ok(&at[index(va, 0)])
}

/// A present entry for a frame.
pub(super) fn leaf(pfn: u32, kind: Kind) -> u64 {
    u64::from(pfn) << 12 | kind.bits()
}

/// The frame number of an entry.
pub(super) fn leaf_frame(entry: u64) -> u32 {
    ((entry & ADDRESS) >> 12) as u32
}

/// Whether a kernel address is mapped. For code that must not fault, such as a panic.
pub(super) fn is_mapped(va: u64) -> bool {
    if va < memory::DIRECT_MAP || ROOT.load(Ordering::Acquire) == 0 {
        return false;
    }
    let mut at = table(ROOT.load(Ordering::Acquire));
    for level in (0..4).rev() {
        let entry = at[index(va, level)].load(Ordering::Acquire);
        if entry & PRESENT == 0 {
            return false;
        }
        if level == 0 || entry & LARGE != 0 {
            return true;
        }
        at = table(entry);
    }
    false
}

/// Loads the root table of an address space on this CPU, which invalidates all translations that are not global. The caller,
/// the code of address spaces, ensures that the frame is a root whose upper half is the kernel's.
#[inline]
pub fn load_root(pfn: u32) {
    // SAFETY: the upper half is the kernel's, as the caller ensures.
    unsafe { write_cr3(u64::from(pfn) << 12) };
}

/// As [`load_root`], for translations with the identifier of `tag`, which stay valid if `tag` says so. On a CPU without
/// identifiers, all translations that are not global are invalidated.
#[inline]
pub fn load_tagged_root(pfn: u32, tag: Tag) {
    const KEEP: u64 = 1 << 63;
    let root = u64::from(pfn) << 12;
    let value = if features::has(features::PCID) {
        root | u64::from(tag.asid) | if tag.keep { KEEP } else { 0 }
    } else {
        root
    };
    // SAFETY: the upper half is the kernel's, as the caller ensures; the identifier has less than 12 bits, and KEEP is set
    // only if the CPU supports it.
    unsafe { write_cr3(value) };
}

/// Frame number of the root table that this CPU has loaded.
#[inline]
pub fn loaded_root() -> u32 {
    let cr3: u64;
    // SAFETY: reads a control register.
    unsafe { asm!("mov {}, cr3", out(reg) cr3, options(nostack, preserves_flags, nomem)) };
    ((cr3 & ADDRESS) >> 12) as u32
}

/// # Safety
/// The root's upper half must map the kernel.
#[inline]
unsafe fn write_cr3(value: u64) {
    // SAFETY: as the caller vouches.
    unsafe { asm!("mov cr3, {}", in(reg) value, options(nostack, preserves_flags)) };
}

/// Invalidates the translation of one page on this CPU, also if it is global.
#[inline]
pub fn flush_page(va: u64) {
    // SAFETY: invalidating a translation is always allowed.
    unsafe { asm!("invlpg [{}]", in(reg) va, options(nostack, preserves_flags)) };
}

/// Invalidates all translations on this CPU that are not global.
#[inline]
pub fn flush_user() {
    // SAFETY: CR3 gets the value that it has.
    unsafe {
        asm!("mov {0}, cr3", "mov cr3, {0}", out(reg) _, options(nostack, preserves_flags));
    }
}

/// Invalidates all translations on this CPU, global ones included.
pub fn flush_all() {
    if !features::has(features::GLOBAL) {
        flush_user();
        return;
    }
    if features::has(features::INVPCID) {
        const EVERYTHING: u64 = 2;
        let nothing = [0u64; 2];
        // SAFETY: invalidating translations is always allowed; this type ignores the descriptor.
        unsafe {
            asm!("invpcid {}, [{}]", in(reg) EVERYTHING, in(reg) &raw const nothing,
                 options(nostack, preserves_flags));
        }
        return;
    }
    const PGE: u64 = 1 << 7;
    let flags = super::irq::save();
    // SAFETY: PGE is cleared and set again; nothing else changes.
    unsafe {
        let mut cr4: u64;
        asm!("mov {}, cr4", out(reg) cr4, options(nostack, preserves_flags));
        asm!("mov cr4, {}", in(reg) cr4 & !PGE, options(nostack, preserves_flags));
        asm!("mov cr4, {}", in(reg) cr4, options(nostack, preserves_flags));
    }
    super::irq::restore(flags);
}

/// The address of the last page fault on this CPU. To be read before interrupts are enabled.
#[inline]
pub(super) fn fault_address() -> u64 {
    let address: u64;
    // SAFETY: reads a control register.
    unsafe { asm!("mov {}, cr2", out(reg) address, options(nostack, preserves_flags, nomem)) };
    address
}
