//! Bounds and frequencies that no program sees.
//!
//! They are values of a [`Vm`](crate::Vm), not of the code, so that tests make them small: then each hint is asked, and each bound met,
//! within a few operations.

/// See the module. Const once the machine runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tuning {
    /// How many times a fault that copies asks whether a layer is its space's alone, for one look: the answer lies on a line that
    /// is shared with those who share the object. A power of two.
    pub ask_every: u32,
    /// How many faults that copy find nothing to fold before it is tried again. A power of two.
    pub fold_every: u32,
    /// Pages that one step of folding looks at, during which the map stays locked.
    pub fold_step: usize,
    /// Layers of a chain beyond which a fault that copies folds it.
    pub fault_depth: usize,
    /// Layers of a chain down to which a fork folds it that finds more than `copy_depth`. The distance between the two is how
    /// many generations of a deep family share one look at its layers.
    pub fork_depth: usize,
    /// Layers of a chain beyond which a fork folds it, and may copy. Faults that copy keep most chains below. A shared page of
    /// memory is copied once for each time that the layer it is in grows by a factor, and the fewer layers there may be,
    /// the smaller that is.
    pub copy_depth: usize,
    /// No chain is longer, whatever happens.
    pub hard_depth: usize,
    /// Looks of one slice of a sweep, during which the maps stay locked: pages times attachments.
    pub sweep_looks: usize,
}

impl Tuning {
    /// As kernels run.
    pub const DEFAULT: Tuning = Tuning {
        ask_every: 16,
        fold_every: 64,
        fold_step: 256,
        fault_depth: 5,
        fork_depth: 8,
        copy_depth: 12,
        hard_depth: 16,
        sweep_looks: 512,
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
    };
}
