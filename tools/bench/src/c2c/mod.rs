//! `make c2c`: what moved between CPUs, cache to cache: by which function, of which type, which field.
//!
//! The kernel is built with the feature `heap-labels` and full debug information; the plugin's records name places by
//! address ([`coherence::labels`]), [`sites`] and [`types`] give them names (doc/bench.md). Bulk clears and copies are left out.

pub mod sites;
mod types;

use crate::observe::{WORK, boot};
use anyhow::{Context, Result};
use coherence::labels::{Label, Place};
use coherence::record::{Cause, Record};
use machine::options::Run;
use machine::progress::step;
use machine::{build, tools};
use report::{Column, Medium, Report, Table};
use sites::Sites;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use types::Types;

/// Rows of each phase on a terminal.
const TOP: usize = 150;

/// Prints what moved between CPUs.
///
/// # Errors
/// Something cannot be built, or the machine did not end by itself.
pub fn run(asked: &Run) -> Result<u8> {
    tools::need(&[("nm", "binutils"), ("addr2line", "binutils")])?;
    let kernel = build::labelled_kernel()?;
    let symbols = tools::output(Command::new("nm").arg(&kernel), "nm")?;
    let table = symbols
        .lines()
        .find_map(|line| line.strip_suffix(" heap_labels_table")?.split(' ').next())
        .context("the kernel does not tell what its heap holds")?;
    let cmd = asked.work.cmd.as_deref().unwrap_or(WORK);
    let (status, records) = boot(asked, &kernel, cmd, &format!(",labels={table}"))?;
    let file = tools::build_dir()?.join("c2c.html");
    report(&records, &kernel)?.publish(&file)?;
    status.context("the machine ended without init having ended")
}

/// What the plugin's `records` say has moved in `kernel`, by name.
fn report(records: &Path, kernel: &Path) -> Result<Report> {
    let _step = step("naming what moved");
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
            } => phases.push((case, phase, causes)),
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
    let name = |cause: &Cause| {
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
    };
    let mut report = Report::new("What moves between CPUs, cache to cache", "");
    for (case, phase, causes) in &phases {
        report.heading(format!("case {case}, phase {phase}"));
        report.add(Medium::Both, moved(causes, name));
    }
    Ok(report)
}

/// The causes of one phase, by what moved and what moved it.
fn moved(causes: &[Cause], name: impl Fn(&Cause) -> (String, String)) -> Table {
    let mut rows: BTreeMap<(String, String), (u64, u64)> = BTreeMap::new();
    for cause in causes {
        let row = rows.entry(name(cause)).or_default();
        *row = (row.0 + cause.moves, row.1 + cause.false_sharing);
    }
    let mut rows: Vec<_> = rows.into_iter().collect();
    rows.sort_by_key(|(_, (moves, _))| std::cmp::Reverse(*moves));
    let mut table = Table::new([
        Column::right("lines moved"),
        Column::right("by false sharing"),
        Column::left("what"),
        Column::left("by which function"),
    ]);
    for ((what, function), (moves, falsely)) in rows {
        table.row([moves.into(), falsely.into(), what.into(), function.into()]);
    }
    table.shown(TOP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_of_one_name_are_one_row_and_the_largest_comes_first() {
        let cause = |pc, moves| Cause {
            pc,
            place: Place::User,
            moves,
            false_sharing: 1,
        };
        let name = |cause: &Cause| ("user memory".to_owned(), format!("f{}", cause.pc));
        let mut report = Report::new("", "");
        let causes = [cause(1, 3), cause(2, 4), cause(1, 2)];
        report.add(Medium::Both, moved(&causes, name));
        let text = report.text();
        let rows: Vec<Vec<&str>> = text
            .lines()
            .skip(1)
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(
            rows,
            [
                ["5", "2", "user", "memory", "f1"],
                ["4", "1", "user", "memory", "f2"]
            ]
        );
    }
}
