//! Sets of CPUs that may be changed while others read them.

use ksync::atomic::{AtomicU64, Ordering};

const WORDS: usize = hal::MAX_CPUS / 64;

/// A set of CPUs. Each word is atomic, the whole is not: it is for affinities, where a reader may see a change half made.
pub struct CpuMask([AtomicU64; WORDS]);

impl CpuMask {
    /// All CPUs that could exist.
    pub const fn all() -> Self {
        CpuMask([const { AtomicU64::new(u64::MAX) }; WORDS])
    }

    /// The CPUs whose bits are set in `words`.
    pub fn from_words(words: [u64; WORDS]) -> Self {
        CpuMask(words.map(AtomicU64::new))
    }

    /// The set of one CPU.
    pub fn one(cpu: usize) -> Self {
        let mut words = [0; WORDS];
        words[cpu / 64] = 1 << (cpu % 64);
        Self::from_words(words)
    }

    /// The words of the set, lowest CPUs first.
    pub fn words(&self) -> [u64; WORDS] {
        core::array::from_fn(|i| self.0[i].load(Ordering::Relaxed))
    }

    /// A copy of the set.
    pub fn copy(&self) -> Self {
        Self::from_words(self.words())
    }

    /// Makes this set equal to `other`.
    pub fn assign(&self, other: &CpuMask) {
        for (mine, theirs) in self.0.iter().zip(&other.0) {
            mine.store(theirs.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Whether `cpu` is in the set.
    #[inline]
    pub fn has(&self, cpu: usize) -> bool {
        self.0[cpu / 64].load(Ordering::Relaxed) & 1 << (cpu % 64) != 0
    }

    /// The lowest CPU of the set that is below `ncpus`.
    pub fn first(&self, ncpus: usize) -> Option<usize> {
        (0..ncpus).find(|&cpu| self.has(cpu))
    }
}
