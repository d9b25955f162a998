//! Where physical memory is mapped: the direct map, and the addresses of the kernel image.
use core::ptr::NonNull;

use crate::limits::PAGE_SIZE;

/// Virtual address of physical address zero.
pub const DIRECT_MAP: u64 = 0xffff_8880_0000_0000;
/// Difference between the addresses at which the kernel image is linked and loaded.
pub(super) const KERNEL_BASE: u64 = 0xffff_ffff_8000_0000;

unsafe extern "C" {
    static __image_start: u8;
    static __text_start: u8;
    static __text_end: u8;
    static __rodata_end: u8;
    static __image_end: u8;
}

/// Physical bounds of the parts of the image: text, read-only data and writable data, one behind the other. All are multiples
/// of the page size.
pub(super) struct Image {
    pub(super) start: u64,
    pub(super) text_end: u64,
    pub(super) rodata_end: u64,
    pub(super) end: u64,
}

/// The bounds of the image as linked; the symbol table behind it is not included.
pub(super) fn image() -> Image {
    let physical = |symbol: *const u8| symbol as u64 - KERNEL_BASE;
    Image {
        start: physical(&raw const __image_start),
        text_end: physical(&raw const __text_end),
        rodata_end: physical(&raw const __rodata_end),
        end: physical(&raw const __image_end),
    }
}

/// Whether an address lies in the kernel's text.
pub(super) fn is_text(address: u64) -> bool {
    (&raw const __text_start as u64..&raw const __text_end as u64).contains(&address)
}

/// The virtual address, in the direct map, of a physical address.
#[inline]
pub fn direct(physical: u64) -> *mut u8 {
    (DIRECT_MAP + physical) as *mut u8
}

/// The address of a page frame's bytes in the direct map.
#[inline]
pub fn frame(pfn: u32) -> NonNull<u8> {
    let address = DIRECT_MAP + u64::from(pfn) * PAGE_SIZE as u64;
    // The address is not null, because the direct map does not begin at zero.
    NonNull::new(address as *mut u8).unwrap_or(NonNull::dangling())
}

/// The bytes of the initial RAM disk, which the boot loader has filled. They do not change until their frames are given to
/// the allocator, and must not be read after that.
pub fn boot_bytes(start: u64, end: u64) -> &'static [u8] {
    // SAFETY: the direct map covers the loader's modules, and nothing writes to them.
    unsafe { core::slice::from_raw_parts(direct(start), (end - start) as usize) }
}
