//! Physical memory that is not RAM: registers and ROM.
//!
//! Guarantee: [`read`] and [`write()`] access any physical address, uncached, four bytes at a time where address and length
//! allow it. The effect depends on what is at the address. The caller must not use them for RAM.
//!
//! Mechanism: each CPU has a page of kernel addresses, its window, which it maps to the frame with preemption off. No other
//! CPU uses that page, so the translation is invalidated on this CPU only.
use core::sync::atomic::Ordering;

use super::boot::start_info;
use super::paging::{self, Kind};
use super::{cpu, features, preempt};
use crate::limits::{MAX_CPUS, PAGE_SIZE};

/// Whether any byte of `first..=last` is RAM, by the boot loader's memory map.
pub fn touches_ram(first: u64, last: u64) -> bool {
    start_info::ram().any(|(start, end)| start <= last && first < end)
}

/// The first address above all RAM.
pub fn ram_end() -> u64 {
    start_info::ram().map(|(_, end)| end).max().unwrap_or(0)
}

/// Whether an address is within the physical addresses of the CPU.
pub fn is_valid(address: u64) -> bool {
    address >> features::physical_bits() == 0
}

/// Makes the page tables of all windows, so that none has to be allocated later. Called once, at boot.
///
/// # Errors
/// [`paging::NoTable`] when memory is short.
pub(super) fn init() -> Result<(), paging::NoTable> {
    (0..MAX_CPUS).try_for_each(|cpu| paging::kernel_entry(window(cpu)).map(|_| ()))
}

fn window(cpu: usize) -> u64 {
    paging::WINDOWS + (cpu * PAGE_SIZE) as u64
}

/// Maps this CPU's window to the frame of `address`, and calls `f` with the virtual address of that byte, with preemption off.
/// `None`, without the call, if there is no such physical address.
fn with_window<R>(address: u64, f: impl FnOnce(*mut u8) -> R) -> Option<R> {
    if !is_valid(address) {
        return None;
    }
    let pfn = u32::try_from(address / PAGE_SIZE as u64).ok()?;
    preempt::disable();
    let at = window(cpu::id());
    let entry = paging::kernel_entry(at).ok();
    let result = entry.map(|entry| {
        entry.store(paging::leaf(pfn, Kind::Device), Ordering::SeqCst);
        paging::flush_page(at);
        let result = f((at + address % PAGE_SIZE as u64) as *mut u8);
        entry.store(0, Ordering::SeqCst);
        paging::flush_page(at);
        result
    });
    preempt::enable();
    result
}

/// Reads bytes that lie in one page; zeroes if there is no such address. Panics if they cross the page's end.
pub fn read(address: u64, out: &mut [u8]) {
    assert!(address as usize % PAGE_SIZE + out.len() <= PAGE_SIZE);
    let done = with_window(address, |at| {
        let mut n = 0;
        while n < out.len() {
            // SAFETY: the address is in the window's page, which is mapped; the memory behind it holds plain bytes and no
            // Rust objects.
            unsafe {
                let from = at.add(n);
                if out.len() - n >= 4 && from.addr().is_multiple_of(4) {
                    let word = from.cast::<u32>().read_volatile();
                    out[n..n + 4].copy_from_slice(&word.to_le_bytes());
                    n += 4;
                } else {
                    out[n] = from.read_volatile();
                    n += 1;
                }
            }
        }
    });
    if done.is_none() {
        out.fill(0);
    }
}

/// Writes bytes that lie in one page; does nothing if there is no such address. Panics if they cross the page's end.
pub fn write(address: u64, bytes: &[u8]) {
    assert!(address as usize % PAGE_SIZE + bytes.len() <= PAGE_SIZE);
    debug_assert!(!touches_ram(address, address + bytes.len() as u64));
    let _none = with_window(address, |at| {
        let mut n = 0;
        while n < bytes.len() {
            // SAFETY: as in `read`; the caller writes to no RAM, so no Rust object changes.
            unsafe {
                let to = at.add(n);
                match bytes[n..].first_chunk::<4>() {
                    Some(word) if to.addr().is_multiple_of(4) => {
                        to.cast::<u32>().write_volatile(u32::from_le_bytes(*word));
                        n += 4;
                    }
                    _ => {
                        to.write_volatile(bytes[n]);
                        n += 1;
                    }
                }
            }
        }
    });
}
