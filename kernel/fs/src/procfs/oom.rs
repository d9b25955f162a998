//! /proc/PID/oom_score and oom_score_adj: how likely the memory killer is to choose a process.

use cred::Cap;
use proc::process::Process;
use task::current::current;
use vfs::dynamic::Text;
use vfs::error::{FsError, Result};
use vfs::put;

/// Prints the process's score: its memory, in thousandths of all memory, with the adjustment added.
pub fn score(p: &Process, out: &mut Text) -> Result<()> {
    put!(out, "{}\n", proc::oom::score(p));
    Ok(())
}

/// Prints the adjustment that is added to the score.
pub fn adj(p: &Process, out: &mut Text) -> Result<()> {
    put!(out, "{}\n", p.oom_adj());
    Ok(())
}

/// Sets the adjustment, -1000 to 1000. Every caller that may write the file may raise the value, and lower it again
/// down to the lowest that was set with CAP_SYS_RESOURCE; below that it needs that capability.
///
/// # Errors
/// `Invalid` if the text is no such number, `Access` without the capability.
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
