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

hal::machine_static! {
    static HOSTNAME: Spin<Name, lock::ProcessLock> = {
        let mut bytes = [0; NAME_MAX];
        let name = b"pantala";
        let mut i = 0;
        while i < name.len() {
            bytes[i] = name[i];
            i += 1;
        }
        Spin::new(Name {
            bytes,
            len: name.len(),
        })
    };
}

/// The version of Linux whose interface this is. glibc refuses to start below 3.2, and programs choose by it which
/// system calls they try.
pub const RELEASE: &[u8] = b"6.1.0-pantala";
/// What `uname -v` shows.
pub const VERSION: &[u8] = concat!("Pantala ", env!("CARGO_PKG_VERSION")).as_bytes();

/// Copies the host name to `out`; returns its length in bytes.
pub fn hostname(out: &mut [u8; NAME_MAX]) -> usize {
    let name = HOSTNAME.lock();
    *out = name.bytes;
    name.len
}

/// Sets the host name; bytes beyond [`NAME_MAX`] are cut off.
pub fn set_hostname(new: &[u8]) {
    let mut name = HOSTNAME.lock();
    let n = new.len().min(NAME_MAX);
    name.bytes = [0; NAME_MAX];
    name.bytes[..n].copy_from_slice(&new[..n]);
    name.len = n;
}
