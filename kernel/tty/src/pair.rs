//! What only a pseudo-terminal has, besides the state of its master.

use alloc::sync::Arc;

use cred::MemoryCharge;
use task::wait::WaitQueue;

use super::pts::Pts;

/// See the module.
pub(super) struct Pair {
    /// Readers of the master.
    pub readers: WaitQueue,
    /// Writers of the master.
    pub writers: WaitQueue,
    /// The terminals of its file system. Constant.
    pub pts: Arc<Pts>,
    /// Its number there. Constant.
    pub index: u32,
    /// For the terminal, its master and its node, to the user that opened the master.
    pub _memory: MemoryCharge,
}
