//! Inode numbers of the files in memory, and of pipes.

use ksync::atomic::{AtomicU64, Ordering};

use ksync::{Once, PerCpu};

hal::machine_static! {
    /// The next inode number of each CPU; a CPU counts in steps of the number of CPUs.
    static INODES: Once<PerCpu<AtomicU64>> = Once::new();
}

/// Sets the inode numbers up.
pub(super) fn init(ncpus: usize) {
    let _ = INODES.set(PerCpu::new(ncpus, |cpu| {
        AtomicU64::new((cpu + 2 * ncpus) as u64)
    }));
}

/// An inode number that no other inode in memory has.
pub fn new_ino() -> u64 {
    let Some(inodes) = INODES.get() else {
        return 1;
    };
    let pin = ksync::pin();
    // No other CPU writes this counter.
    let mine = inodes.get(&pin);
    let ino = mine.load(Ordering::Relaxed);
    mine.store(ino + inodes.ncpus() as u64, Ordering::Relaxed);
    ino
}
