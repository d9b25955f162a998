//! Where programs get superpages.

use ksync::atomic::{AtomicU32, Ordering::Relaxed};

/// The value with this name.
fn value_named<T: Copy>(names: &[(&str, T)], name: &[u8]) -> Option<T> {
    Some(names.iter().find(|(n, _)| n.as_bytes() == name)?.1)
}

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
        value_named(&Self::NAMES, name)
    }
}

/// Which files in memory, and which shared memory, get superpages: Linux's setting `transparent_hugepage/shmem_enabled`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum SharedSuperpages {
    /// None.
    Never,
    /// Where mappings for which madvise asks are touched.
    Advised,
    /// All, as far as a superpage lies within the size.
    WithinSize,
    /// All.
    Always,
    /// None, not even for the kernel's own uses: for emergencies.
    Deny,
    /// All, also where file systems were mounted without: for tests.
    Force,
}

impl SharedSuperpages {
    /// Linux's names of the settings, in its order.
    pub const NAMES: [(&'static str, SharedSuperpages); 6] = [
        ("always", SharedSuperpages::Always),
        ("within_size", SharedSuperpages::WithinSize),
        ("advise", SharedSuperpages::Advised),
        ("never", SharedSuperpages::Never),
        ("deny", SharedSuperpages::Deny),
        ("force", SharedSuperpages::Force),
    ];

    /// The setting with this name.
    pub fn named(name: &[u8]) -> Option<SharedSuperpages> {
        value_named(&Self::NAMES, name)
    }
}

/// Both settings, in one word. Atomic; a fault goes by what it reads.
pub(crate) struct SuperpageSettings(AtomicU32);

/// In the word: the setting for private memory.
const PRIVATE: u32 = 0xf;
/// In the word: the setting for shared memory.
const SHARED: u32 = 0xf0;
const SHARED_SHIFT: u32 = 4;
/// In the word: one of them gives superpages to memory for which madvise has not asked.
const UNASKED: u32 = 1 << 8;

impl SuperpageSettings {
    /// No superpages.
    pub(crate) fn new() -> Self {
        SuperpageSettings(AtomicU32::new(0))
    }

    /// Whether memory for which madvise has not asked may get superpages.
    #[inline(always)]
    pub(crate) fn are_for_all(&self) -> bool {
        self.0.load(Relaxed) & UNASKED != 0
    }

    /// That for private memory.
    pub(crate) fn private(&self) -> Superpages {
        private(self.0.load(Relaxed))
    }

    /// That for shared memory.
    pub(crate) fn shared(&self) -> SharedSuperpages {
        shared(self.0.load(Relaxed))
    }

    pub(crate) fn set_private(&self, which: Superpages) {
        self.change(PRIVATE, which as u32);
    }

    pub(crate) fn set_shared(&self, which: SharedSuperpages) {
        self.change(SHARED, (which as u32) << SHARED_SHIFT);
    }

    fn change(&self, part: u32, to: u32) {
        let changed = |word: u32| {
            let word = word & !part & !UNASKED | to;
            let asks = matches!(private(word), Superpages::Always)
                || matches!(
                    shared(word),
                    SharedSuperpages::WithinSize
                        | SharedSuperpages::Always
                        | SharedSuperpages::Force
                );
            Some(if asks { word | UNASKED } else { word })
        };
        // It always changes the word.
        let _before = self.0.fetch_update(Relaxed, Relaxed, changed);
    }
}

fn private(word: u32) -> Superpages {
    match word & PRIVATE {
        0 => Superpages::Never,
        1 => Superpages::Advised,
        _ => Superpages::Always,
    }
}

fn shared(word: u32) -> SharedSuperpages {
    use SharedSuperpages::{Advised, Always, Deny, Force, Never, WithinSize};
    match (word & SHARED) >> SHARED_SHIFT {
        0 => Never,
        1 => Advised,
        2 => WithinSize,
        3 => Always,
        4 => Deny,
        _ => Force,
    }
}
