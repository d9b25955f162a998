//! Where programs get superpages.

use ksync::atomic::{AtomicU8, Ordering::Relaxed};

/// Which mappings get superpages: Linux's setting `transparent_hugepage/enabled`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Superpages {
    /// None.
    Never,
    /// Those for which madvise asks.
    Advised,
    /// All for which madvise does not forbid it.
    Always,
}

impl Superpages {
    /// Linux's names of the settings, in its order.
    pub const NAMES: [(&'static str, Superpages); 3] = [
        ("always", Superpages::Always),
        ("madvise", Superpages::Advised),
        ("never", Superpages::Never),
    ];

    /// The setting with this name.
    pub fn named(name: &[u8]) -> Option<Superpages> {
        let mut names = Self::NAMES.iter();
        Some(names.find(|(n, _)| n.as_bytes() == name)?.1)
    }
}

/// The setting. Atomic; a fault goes by what it reads.
pub(crate) struct SuperpageSetting(AtomicU8);

impl SuperpageSetting {
    pub(crate) fn new(which: Superpages) -> Self {
        SuperpageSetting(AtomicU8::new(which as u8))
    }

    #[inline(always)]
    pub(crate) fn get(&self) -> Superpages {
        match self.0.load(Relaxed) {
            0 => Superpages::Never,
            1 => Superpages::Advised,
            _ => Superpages::Always,
        }
    }

    pub(crate) fn set(&self, which: Superpages) {
        self.0.store(which as u8, Relaxed);
    }
}
