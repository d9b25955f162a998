//! The kernel's symbol table, for backtraces.
//!
//! `xtask` appends it to the linked image as one more segment, directly behind the last byte of the image. It consists of the
//! magic number, the size of the whole table in bytes, and the number of symbols; then, for each symbol, sorted by address,
//! its offset from the image's start and the offset of its name; then the names, each ended by a zero byte. All numbers have
//! 32 bits. With an image without the table, backtraces print bare addresses.
use core::sync::atomic::{AtomicU64, Ordering};

use super::memory;

/// "PSYM", little-endian.
const MAGIC: u32 = 0x4d59_5350;
/// Bytes before the first symbol.
const HEADER: usize = 12;
/// The largest table that is accepted, in bytes.
const LIMIT: u64 = 32 << 20;

/// Bytes of the table, a multiple of the page size; 0 if there is none. Written once, at boot.
static SIZE: AtomicU64 = AtomicU64::new(0);

/// Bytes of the table behind the image, in whole pages.
pub(super) fn size() -> u64 {
    SIZE.load(Ordering::Relaxed)
}

fn base() -> *const u8 {
    (memory::image().end + memory::KERNEL_BASE) as *const u8
}

fn word(offset: usize) -> u32 {
    // SAFETY: at boot the first GiB is mapped at the kernel's base, and later all of the table is; callers stay within it.
    unsafe { base().add(offset).cast::<u32>().read_unaligned() }
}

/// Finds the table behind the image. Returns its size, as [`size`] does from now on.
pub(super) fn find() -> u64 {
    if word(0) == MAGIC && u64::from(word(4)) <= LIMIT {
        SIZE.store(u64::from(word(4)).next_multiple_of(4096), Ordering::Relaxed);
    }
    size()
}

/// The mangled name of the function in which an address lies, and the address's offset in it.
pub(super) fn lookup(address: u64) -> Option<(&'static str, u64)> {
    if size() == 0 || !memory::is_text(address) {
        return None;
    }
    let offset = (address - memory::KERNEL_BASE - memory::image().start) as u32;
    let count = word(8) as usize;
    let start_of = |index: usize| word(HEADER + 8 * index);
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = (low + high) / 2;
        if start_of(middle) <= offset {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    let index = low.checked_sub(1)?;
    let names = HEADER + 8 * count;
    let name = names + word(HEADER + 8 * index + 4) as usize;
    let limit = word(4) as usize;
    // SAFETY: as in `word`; the name lies within the table, or is cut to nothing.
    let bytes = unsafe {
        core::slice::from_raw_parts(base().add(name.min(limit)), limit.saturating_sub(name))
    };
    let end = bytes.iter().position(|&byte| byte == 0)?;
    let name = str::from_utf8(&bytes[..end]).ok()?;
    Some((name, u64::from(offset - start_of(index))))
}
