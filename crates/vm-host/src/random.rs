//! A small generator of pseudo-random numbers (xorshift), so that a failure can be repeated by its seed.

/// Its state, not 0.
pub struct Random(pub u64);

impl Random {
    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        self.below_u64(n as u64) as usize
    }

    /// A number below `n`.
    pub fn below_u64(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % n
    }

    /// A number below a power of two, whose exponent is a random one of `bits`: small numbers as often as large ones.
    pub fn scaled(&mut self, bits: core::ops::Range<u64>) -> u64 {
        let exponent = bits.start + self.below_u64(bits.end - bits.start);
        self.below_u64(1 << exponent)
    }

    /// Whether one of `n` equal chances comes.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below_u64(n) == 0
    }
}
