//! What the memory killer thinks of a process, and what it is told to think.

use cred::Cap;
use proc::process::Process;
use task::current::current;
use vfs::dynamic::Text;
use vfs::error::{FsError, Result};
use vfs::put;

/// Prints what the process costs, in thousandths of memory.
pub fn score(p: &Process, out: &mut Text) -> Result<()> {
    put!(out, "{}\n", proc::oom::score(p));
    Ok(())
}

/// Prints what is added to that.
pub fn adj(p: &Process, out: &mut Text) -> Result<()> {
    put!(out, "{}\n", p.oom_adj());
    Ok(())
}

/// Anybody may make a process of its own a likelier victim, and take that back; a less likely one than root had it, only
/// root.
pub fn set_adj(p: &Process, data: &[u8]) -> Result<()> {
    let adj = core::str::from_utf8(data)
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .filter(|adj| (-1000..=1000).contains(adj))
        .ok_or(FsError::Invalid)?;
    let privileged = current().cred().capable(Cap::SysResource);
    if adj < p.oom_adj_min() && !privileged {
        return Err(FsError::Access);
    }
    p.set_oom_adj(adj, privileged);
    Ok(())
}
