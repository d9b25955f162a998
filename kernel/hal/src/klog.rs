//! The kernel's log: the last bytes that it printed, for syslog(2).
//!
//! Guarantee: appending takes no lock and may happen anywhere, in interrupts and panics too. A reader gets what was
//! printed, in order, except that bytes which another CPU is just writing may still be old ones.
//!
//! Positions count bytes since boot; the ring keeps the last [`SIZE`].

use core::fmt::{self, Write};
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Bytes kept.
pub const SIZE: usize = 32 << 10;

/// Atomic, each byte by itself.
static RING: [AtomicU8; SIZE] = [const { AtomicU8::new(0) }; SIZE];
/// The position behind the last byte. Atomic.
static END: AtomicU64 = AtomicU64::new(0);

fn slot(at: u64) -> &'static AtomicU8 {
    &RING[at as usize % SIZE]
}

struct Log;

impl Write for Log {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        append(text.as_bytes());
        Ok(())
    }
}

/// Appends bytes; carriage returns are left out.
pub fn append(bytes: &[u8]) {
    let kept = || bytes.iter().copied().filter(|&b| b != b'\r');
    let at = END.fetch_add(kept().count() as u64, Ordering::Relaxed);
    for (i, byte) in kept().enumerate() {
        slot(at + i as u64).store(byte, Ordering::Relaxed);
    }
}

/// Begins a message at time `ns`: level and time, unless a line is unfinished.
pub fn begin(ns: u64) {
    let end = end();
    if end == 0 || slot(end - 1).load(Ordering::Relaxed) == b'\n' {
        let us = ns / 1000;
        // Writing to the ring cannot fail.
        let _ = write!(Log, "<6>[{:5}.{:06}] ", us / 1_000_000, us % 1_000_000);
    }
}

/// The position behind the last byte.
pub fn end() -> u64 {
    END.load(Ordering::Relaxed)
}

/// Copies bytes from position `from` on; returns how many. Those that the ring has lost are passed over: the caller
/// begins no earlier than [`first`].
pub fn read(from: u64, out: &mut [u8]) -> usize {
    let n = out.len().min(end().saturating_sub(from) as usize);
    for (i, byte) in out[..n].iter_mut().enumerate() {
        *byte = slot(from + i as u64).load(Ordering::Relaxed);
    }
    n
}

/// The oldest position that the ring still has.
pub fn first() -> u64 {
    end().saturating_sub(SIZE as u64)
}

/// The position behind the next line end from `from` on, if there is one.
pub fn next_line(from: u64) -> Option<u64> {
    (from..end())
        .find(|&at| slot(at).load(Ordering::Relaxed) == b'\n')
        .map(|at| at + 1)
}
