//! Sets of CPUs that change while others look.

use core::sync::atomic::{AtomicU64, Ordering};

const WORDS: usize = hal::MAX_CPUS / 64;

/// A set of CPUs.  Each word is atomic, the whole is not: for affinities, where a reader may
/// see a change half done.
pub struct CpuMask([AtomicU64; WORDS]);

impl CpuMask {
    /// All CPUs that there could be.
    pub const fn all() -> Self {
        CpuMask([const { AtomicU64::new(u64::MAX) }; WORDS])
    }

    /// The CPUs whose bits are set in `words`.
    pub fn from_words(words: [u64; WORDS]) -> Self {
        CpuMask(words.map(AtomicU64::new))
    }

    /// One CPU.
    pub fn one(cpu: usize) -> Self {
        let mut words = [0; WORDS];
        words[cpu / 64] = 1 << (cpu % 64);
        Self::from_words(words)
    }

    /// Its words, lowest CPUs first.
    pub fn words(&self) -> [u64; WORDS] {
        core::array::from_fn(|i| self.0[i].load(Ordering::Relaxed))
    }

    /// An independent copy.
    pub fn copy(&self) -> Self {
        Self::from_words(self.words())
    }

    /// Becomes `other`.
    pub fn assign(&self, other: &CpuMask) {
        for (mine, theirs) in self.0.iter().zip(&other.0) {
            mine.store(theirs.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Whether `cpu` is in it.
    #[inline]
    pub fn has(&self, cpu: usize) -> bool {
        self.0[cpu / 64].load(Ordering::Relaxed) & 1 << (cpu % 64) != 0
    }

    /// Its first CPU below `ncpus`.
    pub fn first(&self, ncpus: usize) -> Option<usize> {
        (0..ncpus).find(|&cpu| self.has(cpu))
    }
}
