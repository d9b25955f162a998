//! The hash of names in directories.

use fscore::path::{self, Secret};
use ksync::Once;

hal::machine_static! {
    /// The key of the hash, so that a program cannot choose names whose hashes collide. Set at boot, before there is a name.
    static SECRET: Once<Secret> = Once::new();
}

/// Chooses the key at random.
pub(super) fn init() {
    let mut bits = [[0; 8]; 2];
    bits.iter_mut().for_each(|word| drivers::random::fill(word));
    let [begin, factor] = bits.map(u64::from_le_bytes);
    let _ = SECRET.set(Secret::new(begin, factor));
}

/// The hash of a name.
#[inline]
pub fn name_hash(name: &[u8]) -> u32 {
    path::hash(SECRET.get().copied().unwrap_or(Secret::NONE), name)
}
