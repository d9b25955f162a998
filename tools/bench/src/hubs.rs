//! What the hubs cost: the instructions that count the attachments of objects and list their mapped extents.
//!
//! Mechanism: the plugin tells how often each block of the kernel ran in a phase, and how long its instructions are. The kernel's line
//! tables tell the functions that each instruction was inlined into. An instruction is a hub's if the innermost of them that does not merely help
//! its caller (locks, atomics, pointers, heap) is one of the hubs'.
//!
//! Not seen: functions of others that a hub calls and that were not inlined, such as the heap's slow ways and the deferral of what is
//! freed after a grace period.

use crate::c2c::sites::{frames, is_plumbing};
use crate::guest::{Boot, Guest};
use crate::samples::{Metric, Sample};
use anyhow::Result;
use coherence::record::Record;
use machine::tools;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Where the hubs' functions lie.
const HUBS: [&str; 2] = ["ksync::hub::", "vm::object::hub::"];

/// The hubs' instructions an operation, in each case of a boot that has records of blocks.
///
/// # Errors
/// The functions of the kernel cannot be told.
pub fn samples(guest: &Guest, boot: &Boot, run: u32) -> Result<Vec<Sample>> {
    tools::need(&[("addr2line", "binutils")])?;
    let mut phases: HashMap<(u16, u8), BTreeMap<u64, u64>> = HashMap::new();
    for record in &boot.records {
        if let Record::Block {
            case,
            phase,
            addr,
            times,
            lengths,
            ..
        } = record
        {
            let counts = phases.entry((*case, *phase)).or_default();
            let mut at = *addr;
            for &bytes in lengths {
                *counts.entry(at).or_default() += times;
                at += u64::from(bytes);
            }
        }
    }
    let addresses: BTreeSet<u64> = phases.values().flat_map(BTreeMap::keys).copied().collect();
    let names = frames(&guest.kernel, &addresses)?;
    let hubs = |addr: &u64| names.get(addr).is_some_and(|frames| is_of_hub(frames));
    let of_line = |line: &crate::names::Line| {
        let counts = phases.get(&line.key?)?;
        let sum: u64 = counts
            .iter()
            .filter(|(addr, _)| hubs(addr))
            .map(|(_, times)| times)
            .sum();
        Some(Sample {
            system: guest.system.into(),
            case: line.name.clone(),
            metric: Metric::HubInstructions,
            cpus: 1,
            run,
            value: sum as f64 / line.ops.max(1.0),
        })
    };
    Ok(boot.lines.iter().filter_map(of_line).collect())
}

/// Whether an instruction in these functions, innermost first, is a hub's.
fn is_of_hub(frames: &[String]) -> bool {
    let own = frames.iter().find(|name| !is_plumbing(name));
    own.is_some_and(|name| {
        HUBS.iter()
            .any(|hub| name.trim_start_matches('<').starts_with(hub))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instruction_belongs_to_the_innermost_function_with_work_of_its_own() {
        let of_hub =
            |frames: &[&str]| is_of_hub(&frames.iter().map(|&f| f.to_owned()).collect::<Vec<_>>());
        let member = "ksync::hub::member::Member<T,M,C>::attach_beside";
        assert!(of_hub(&[
            "core::sync::atomic::AtomicU64::load",
            member,
            "vm::map::fork"
        ]));
        assert!(of_hub(&[
            "<ksync::hub::member::Member<T,M,C> as core::ops::drop::Drop>::drop"
        ]));
        assert!(!of_hub(&["vm::object::Object::free_pages", member]));
        assert!(!of_hub(&["vm::map::fork"]) && !of_hub(&[]));
    }
}
