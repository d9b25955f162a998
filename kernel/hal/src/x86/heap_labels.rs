//! Reports each heap object to a tool outside the machine, which sees the addresses of the kernel's stores but not the
//! values.
//!
//! Only in kernels built with the feature `heap-labels`. A message is a sequence of stores to [`TABLE`], one word for each
//! byte and one for the message's end; the next store after that is to the object. The message for a new object has two bytes
//! of its size, and then three bytes of each of three return addresses as offsets from the kernel's base, all with the least
//! significant byte first. An empty message says that the object is about to be freed. `tools/coherence` reads the messages.
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use super::memory::KERNEL_BASE;
use super::{backtrace, irq, stack};

/// The words to which the stores are made. Atomic; their values mean nothing.
#[unsafe(export_name = "heap_labels_table")]
static TABLE: [AtomicU64; 257] = [const { AtomicU64::new(0) }; 257];

/// Return addresses in a message.
const SITES: usize = 3;

/// Reports that `object`, of `size` bytes, has been allocated. Does nothing for null.
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

/// Reports that `object` is about to be freed.
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
    // SAFETY: the object is being allocated or freed, so nothing else uses it and its contents are undefined.
    unsafe { object.write_volatile(0) };
}

/// Return addresses of the callers, innermost first, as offsets from the kernel's base; 0 beyond the last.
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
