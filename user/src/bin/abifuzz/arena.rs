//! Memory that random pointers point into.

use crate::random::Random;
use user::sys;

/// Memory that pointer arguments point into: a page, a read-only page, a hole.
pub struct Arena {
    base: u64,
}

/// Bytes of a page.
pub const PAGE: u64 = 4096;

impl Arena {
    /// Maps it, and fills it with small numbers, pointers and names.
    pub fn new(random: &mut Random) -> Arena {
        let rw = libc::PROT_READ | libc::PROT_WRITE;
        let base = sys::mmap(
            0,
            6 * PAGE,
            rw,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
        .unwrap_or(0x1000);
        for at in (base..base + 3 * PAGE).step_by(8) {
            // Structures of small numbers and zeroes pass the checks of more calls.
            let word = match random.below(4) {
                0 => random.next(),
                1 => 0,
                2 => base + random.below(6 * PAGE),
                _ => random.below(100),
            };
            sys::poke64(at, word);
        }
        for (slot, name) in [".", "a", "b/c", "..", "/dev/null", "/proc/self/maps", ""]
            .iter()
            .enumerate()
        {
            for (i, byte) in name.bytes().chain([0]).enumerate() {
                sys::poke(base + PAGE + slot as u64 * 32 + i as u64, byte);
            }
        }
        let _ = sys::call(
            libc::SYS_mprotect,
            &[base + 3 * PAGE, PAGE, libc::PROT_READ as u64],
        );
        let _ = sys::munmap(base + 4 * PAGE, PAGE);
        Arena { base }
    }

    /// An address in it or in a hole, or one that is none.
    pub fn pointer(&self, random: &mut Random) -> u64 {
        match random.below(12) {
            0 => 0,
            1 => 8,
            2 => self.base + 4 * PAGE - random.below(64),
            3 => self.base + 4 * PAGE + random.below(PAGE),
            4 => 0xffff_8000_0000_0000 + (random.next() >> 20),
            5 => 0x0000_7fff_ffff_f000 - random.below(16),
            6 => random.next(),
            7 => u64::MAX - random.below(4096),
            8 | 9 => self.base + PAGE + random.below(7) * 32,
            _ => self.base + random.below(3 * PAGE / 8) * 8,
        }
    }
}
