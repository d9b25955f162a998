//! Limits and intervals that no program sees.
//!
//! They are values of a [`Vm`](crate::Vm), not constants of the code, so that tests can make them small: then each hint
//! is refreshed, and each limit reached, within a few operations.

/// See the module. Const once the machine runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tuning {
    /// Of so many copying faults on a layer, one asks whether only its space can see the layer: the answer is on a
    /// cache line that all users of the object share. A power of two.
    pub ask_every: u32,
    /// Number of copying faults after which folding is tried again, when it last found nothing to do. A power of two.
    pub fold_every: u32,
    /// Pages that one step of folding looks at, with the map's lock held.
    pub fold_step: usize,
    /// A copying fault tries to fold a chain with more layers than this.
    pub fault_depth: usize,
    /// A fork folds a chain of more than `copy_depth` layers down to this many. The difference is the number of
    /// generations of a deep family that share the work of one fold.
    pub fork_depth: usize,
    /// A fork folds a chain of more than this many layers, and may copy pages for that. Copying faults keep most chains
    /// shorter. A shared page is copied once each time its layer grows by a certain factor; the fewer layers a chain
    /// may have, the smaller that factor is.
    pub copy_depth: usize,
    /// No chain is ever longer.
    pub hard_depth: usize,
    /// Checks made in one slice of a sweep, with the maps' locks held: pages times attachments.
    pub sweep_looks: usize,
    /// Slices of an object's sweep in one round of the background work, at least one. The next round goes on.
    pub sweep_slices: usize,
    /// Whether one fault fills a leaf of 2 MiB, where superpages are wanted and memory suffices.
    pub fill_leaves: bool,
}

impl Tuning {
    /// For a kernel.
    pub const DEFAULT: Tuning = Tuning {
        ask_every: 16,
        fold_every: 64,
        fold_step: 256,
        fault_depth: 5,
        fork_depth: 8,
        copy_depth: 12,
        hard_depth: 16,
        sweep_looks: 512,
        sweep_slices: 128,
        fill_leaves: true,
    };

    /// For tests.
    pub const SMALL: Tuning = Tuning {
        ask_every: 1,
        fold_every: 2,
        fold_step: 4,
        fault_depth: 2,
        fork_depth: 3,
        copy_depth: 4,
        hard_depth: 6,
        sweep_looks: 2,
        sweep_slices: 8,
        fill_leaves: true,
    };
}
