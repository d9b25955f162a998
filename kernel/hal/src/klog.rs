//! The kernel log: the last bytes that the kernel printed, for syslog(2).
//!
//! Guarantee: appending takes no lock and may be done anywhere, also in interrupt handlers and panics. A reader gets the
//! printed bytes in order, except that bytes which another CPU is still writing may be older ones.
//!
//! Positions count bytes since boot. The ring has the last [`SIZE`] bytes.

use core::fmt::{self, Write};
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Bytes of the ring.
pub const SIZE: usize = 32 << 10;

/// Atomic, byte by byte.
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

/// Appends level and time `ns` (nanoseconds since boot), unless the last line has not ended. Called at the beginning of a
/// message.
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

/// Copies bytes from position `from` on, and returns how many. `from` must not be below [`first`]: what the ring has lost
/// reads as later bytes.
pub fn read(from: u64, out: &mut [u8]) -> usize {
    let n = out.len().min(end().saturating_sub(from) as usize);
    for (i, byte) in out[..n].iter_mut().enumerate() {
        *byte = slot(from + i as u64).load(Ordering::Relaxed);
    }
    n
}

/// The oldest position whose byte the ring still has.
pub fn first() -> u64 {
    end().saturating_sub(SIZE as u64)
}

/// The position behind the first line feed at or after `from`; `None` if there is none.
pub fn next_line(from: u64) -> Option<u64> {
    (from..end())
        .find(|&at| slot(at).load(Ordering::Relaxed) == b'\n')
        .map(|at| at + 1)
}
