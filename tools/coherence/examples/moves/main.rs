//! Prints which function moved which field of which type between CPUs.
//!
//! `cargo run --release -p coherence --example moves -- RECORDS KERNEL [CASE OPERATIONS]`, where RECORDS is the
//! plugin's output with `mode=transfers,labels=ADDRESS` and KERNEL the kernel that ran, built with `heap-labels` and
//! full debug information (doc/bench.md). With a case, counts are per operation. Bulk clears and copies are left out.

mod sites;
mod types;

use coherence::labels::{Label, Place};
use coherence::record::{Cause, Record};
use sites::Sites;
use std::collections::BTreeMap;
use std::error::Error;
use types::Types;

/// Rows shown for each phase.
const TOP: usize = 150;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (Some(records), Some(kernel)) = (args.first(), args.get(1)) else {
        return Err("usage: moves RECORDS KERNEL [CASE OPERATIONS]".into());
    };
    let wanted: Option<u16> = args.get(2).map(|case| case.parse()).transpose()?;
    let operations: f64 = args.get(3).map_or(Ok(1.0), |n| n.parse())?;
    let mut labels: BTreeMap<u32, Label> = BTreeMap::new();
    let mut phases: Vec<(u16, u8, Vec<Cause>)> = Vec::new();
    for line in std::fs::read_to_string(records)?.lines() {
        match Record::from_line(line)? {
            Record::Label { number, label } => drop(labels.insert(number, label)),
            Record::Phase {
                case,
                phase,
                causes,
                ..
            } if wanted.is_none_or(|wanted| wanted == case) => phases.push((case, phase, causes)),
            _ => {}
        }
    }
    let all = || phases.iter().flat_map(|(_, _, causes)| causes);
    let used = all().filter_map(|cause| match cause.place {
        Place::Heap { label, .. } => labels.get(&label),
        _ => None,
    });
    let sites = Sites::read(kernel, all().map(|cause| cause.pc), used)?;
    let types = Types::read(kernel)?;
    for (case, phase, causes) in &phases {
        print_phase(*case, *phase, causes, operations, |cause| {
            let what = match cause.place {
                Place::User => "user memory".into(),
                Place::Stack => "kernel stack".into(),
                Place::Frame => "page table or contents".into(),
                Place::Page { offset } => types.field("vm::page::Page", offset),
                Place::Static { addr } => sites.static_at(addr),
                Place::Heap { label, offset } => match labels.get(&label) {
                    Some(label) => sites.object(label, offset, &types),
                    None => "heap".into(),
                },
            };
            (what, sites.function(cause.pc))
        });
    }
    Ok(())
}

fn print_phase(
    case: u16,
    phase: u8,
    causes: &[Cause],
    operations: f64,
    name: impl Fn(&Cause) -> (String, String),
) {
    let mut rows: BTreeMap<(String, String), (u64, u64)> = BTreeMap::new();
    for cause in causes {
        let row = rows.entry(name(cause)).or_default();
        *row = (row.0 + cause.moves, row.1 + cause.false_sharing);
    }
    let mut rows: Vec<_> = rows.into_iter().collect();
    rows.sort_by_key(|(_, (moves, _))| std::cmp::Reverse(*moves));
    println!("case {case}, phase {phase}: lines moved, of these by false sharing, what, by whom");
    for ((what, who), (moves, falsely)) in rows.into_iter().take(TOP) {
        let (moves, falsely) = (moves as f64 / operations, falsely as f64 / operations);
        println!("{moves:10.3} {falsely:10.3}  {what:<48} {who}");
    }
}
