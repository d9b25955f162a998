//! Statistics without shared lines.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A count that one CPU writes, with preemption off, and any CPU reads.
///
/// Incrementing is a plain add to memory, no locked instruction; readers sum the tallies of all CPUs.
#[derive(Default)]
pub struct Tally(AtomicU64);

impl Tally {
    /// A tally of zero.
    pub const fn new() -> Tally {
        Tally(AtomicU64::new(0))
    }

    /// Adds `n`. The caller is the CPU that owns the tally, with preemption off.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// The count at some moment.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

impl VmTotals {
    /// Leaves of 2 MiB that exist now, or did while the counts were added up.
    pub fn leaves(&self) -> u64 {
        (self.promotions + self.leaves_filled).saturating_sub(self.demotions + self.leaves_removed)
    }

    /// Of these, leaves of shared memory and of files.
    pub fn shared_leaves(&self) -> u64 {
        self.shared_leaves_made
            .saturating_sub(self.shared_leaves_gone)
    }
}

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counts of one CPU.
        #[derive(Default)]
        pub struct VmCounts {
            $($(#[$doc])* pub $name: Tally,)*
        }

        /// Sums over CPUs.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct VmTotals {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl VmTotals {
            /// Adds up the counts of some CPUs.
            pub fn sum<'a>(counts: impl Iterator<Item = &'a VmCounts>) -> VmTotals {
                let mut sum = VmTotals::default();
                for count in counts {
                    $(sum.$name += count.$name.get();)*
                }
                sum
            }

            /// Name and value of each.
            pub fn each(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }
        }
    };
}

counts! {
    /// Faults that made a page of zeroes.
    zero_fill,
    /// Faults that entered a page found resident.
    resident,
    /// Faults that found the page-table entry already there, or gave it more rights.
    upgraded,
    /// Pages copied on write.
    cow_copy,
    /// Pages moved to the front layer instead of copied.
    cow_move,
    /// Neighbours mapped by fault-around.
    around,
    /// Attempts of faults that had to start again.
    restarts,
    /// Address spaces forked.
    forks,
    /// Write faults that found a front layer that others may see.
    shadows,
    /// Layers dropped from chains by folding.
    collapses,
    /// Pages copied by folding.
    fold_copy,
    /// Pages scanned by `chaos_scan`.
    scans,
    /// Page-table entries removed by `chaos_scan`.
    scan_removed,
    /// Pages freed by sweeps because no mapping reached them.
    swept,
    /// Leaves of 2 MiB made of tables.
    promotions,
    /// Leaves of 2 MiB filled at once, by one fault.
    leaves_filled,
    /// Leaves of 2 MiB divided into tables.
    demotions,
    /// Leaves of 2 MiB removed whole.
    leaves_removed,
    /// Of the leaves promoted or filled, those of shared memory and of files.
    shared_leaves_made,
    /// Of the leaves divided or removed, those of shared memory and of files.
    shared_leaves_gone,
    /// Chunks of pv entries taken from one pmap for another, or emptied for their own.
    pv_chunks_reclaimed,
    /// Pages unmapped for that.
    pv_entries_reclaimed,
}
