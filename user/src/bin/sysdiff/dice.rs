//! Random choices that depend only on the seed and the step, so that leaving out a step does not change those of
//! others.

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// The stream of step `step` of the program of `seed`.
    pub fn of(seed: u64, step: u32) -> Dice {
        let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(step) << 40);
        dice.next();
        dice
    }

    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }

    /// A number below `bound`, which is not zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 16) % bound
    }

    /// True `percent` times of a hundred.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of `choices`.
    pub fn of_these<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// A random subset of the bits in `bits`, each with its percentage, joined.
    pub fn bits(&mut self, bits: &[(i32, u64)]) -> i32 {
        bits.iter().fold(
            0,
            |all, &(bit, percent)| if self.chance(percent) { all | bit } else { all },
        )
    }

    /// A random index into `weights`, with these frequencies.
    pub fn weighted(&mut self, weights: impl Iterator<Item = u32> + Clone) -> usize {
        let all: u32 = weights.clone().sum();
        let mut left = self.below(u64::from(all.max(1))) as u32;
        for (index, weight) in weights.enumerate() {
            if left < weight {
                return index;
            }
            left -= weight;
        }
        0
    }
}

/// A checksum of `bytes` (FNV-1a).
pub fn digest(bytes: &[u8]) -> u64 {
    add_digest(0xcbf2_9ce4_8422_2325, bytes)
}

/// Continues the checksum `hash` with `bytes`.
pub fn add_digest(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// The part of a checksum that a line shows.
pub fn short(hash: u64) -> u16 {
    (hash ^ hash >> 16 ^ hash >> 32 ^ hash >> 48) as u16
}
