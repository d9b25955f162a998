//! Which processes may be killed when memory is out.

use crate::process::Process;

/// Whether the killer may choose `p`.
pub(super) fn is_eligible(p: &Process) -> bool {
    p.pid() != 1 && !p.is_kernel() && !p.is_zombie() && p.oom_adj() > -1000
}
