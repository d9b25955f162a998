//! Tells an observer outside the machine, which sees where the kernel stores but not what, which objects the heap gives out.
//!
//! For kernels built with the feature `heap-labels` only. A message is spelled by stores to [`TABLE`], a word for each byte
//! and one for the end; the store after it is to the object. A message of an object made has two bytes of its size and,
//! least significant byte first, three of each of three return addresses, as offsets from the kernel's base; an empty
//! one says that the object is about to go. `tools/coherence` understands them.
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use super::memory::KERNEL_BASE;
use super::{backtrace, irq, stack};

/// What is stored to; atomic, its values mean nothing.
#[unsafe(export_name = "heap_labels_table")]
static TABLE: [AtomicU64; 257] = [const { AtomicU64::new(0) }; 257];

/// Return addresses told.
const SITES: usize = 3;

/// Tells that `object`, of `size` bytes, was made.
#[inline(never)]
pub fn made(object: *mut u8, size: usize) {
    if object.is_null() {
        return;
    }
    let sites = callers();
    let size = size.min(0xffff) as u64;
    let flags = irq::save();
    (0..2).for_each(|n| spell(size >> (8 * n)));
    for site in sites {
        (0..3).for_each(|n| spell(site >> (8 * n)));
    }
    end(object);
    irq::restore(flags);
}

/// Tells that `object` is about to be freed.
pub fn gone(object: *mut u8) {
    let flags = irq::save();
    end(object);
    irq::restore(flags);
}

fn spell(byte: u64) {
    TABLE[(byte & 0xff) as usize].store(0, Relaxed);
}

fn end(object: *mut u8) {
    TABLE[256].store(0, Relaxed);
    // SAFETY: the object is being given out or taken back, so nobody else uses it and its contents are undefined.
    unsafe { object.write_volatile(0) };
}

/// Return addresses of the callers, as offsets from the kernel's base; 0 beyond the last.
fn callers() -> [u64; SITES] {
    let mut rbp = backtrace::frame_pointer();
    let mut sites = [0; SITES];
    for site in &mut sites {
        if !rbp.is_multiple_of(8) || !stack::is_stack(rbp) || !stack::is_stack(rbp + 15) {
            break;
        }
        // SAFETY: both words are mapped memory of this thread's stack.
        let (next, address) = unsafe { (*(rbp as *const u64), *((rbp + 8) as *const u64)) };
        *site = address.wrapping_sub(KERNEL_BASE);
        if next <= rbp {
            break;
        }
        rbp = next;
    }
    sites
}
