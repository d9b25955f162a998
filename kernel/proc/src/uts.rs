//! The names that uname(2) returns.

use ksync::Spin;

use super::lock;

/// Longest name in bytes, as on Linux.
pub const NAME_MAX: usize = 64;

/// A name and its length.
struct Name {
    bytes: [u8; NAME_MAX],
    len: usize,
}

impl Name {
    const fn new(text: &[u8]) -> Name {
        let mut bytes = [0; NAME_MAX];
        let mut i = 0;
        while i < text.len() {
            bytes[i] = text[i];
            i += 1;
        }
        Name {
            bytes,
            len: text.len(),
        }
    }
}

/// A name of the machine that can be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// Its own.
    Host,
    /// That of its NIS domain.
    Domain,
}

hal::machine_static! {
    static HOST: Spin<Name, lock::ProcessLock> = Spin::new(Name::new(b"pantala"));
}
hal::machine_static! {
    static DOMAIN: Spin<Name, lock::ProcessLock> = Spin::new(Name::new(b"(none)"));
}

impl Which {
    fn name(self) -> &'static Spin<Name, lock::ProcessLock> {
        match self {
            Which::Host => &HOST,
            Which::Domain => &DOMAIN,
        }
    }

    /// Copies the name to `out`; returns its length in bytes.
    pub fn get(self, out: &mut [u8; NAME_MAX]) -> usize {
        let name = self.name().lock();
        *out = name.bytes;
        name.len
    }

    /// Sets the name; bytes beyond [`NAME_MAX`] are cut off.
    pub fn set(self, new: &[u8]) {
        let new = &new[..new.len().min(NAME_MAX)];
        *self.name().lock() = Name::new(new);
    }
}

/// The version of Linux whose interface this is. glibc refuses to start below 3.2, and programs choose by it which
/// system calls they try.
pub const RELEASE: &[u8] = b"6.1.0-pantala";
/// What `uname -v` shows.
pub const VERSION: &[u8] = concat!("Pantala ", env!("CARGO_PKG_VERSION")).as_bytes();
