//! `make pcm`: whose memory CPUs use, node by node.

use crate::observe::{WORK, boot};
use anyhow::{Context, Result, ensure};
use coherence::record::{Counts, Record};
use machine::options::{Profile, Run};
use machine::{build, tools};
use report::{Column, Medium, Report, Table, Text};
use std::collections::BTreeMap;
use std::fs;

/// Prints, for each node, the accesses of its CPUs to its own memory and to other nodes'.
///
/// # Errors
/// Something cannot be built, or the machine did not end by itself.
pub fn run(asked: &Run) -> Result<u8> {
    ensure!(
        asked.setup.machine.nodes > 1,
        "pcm is for machines with several nodes: NODES=2 CPUS=4"
    );
    let kernel = build::kernel_for(&asked.setup.system.kernel, Profile::Release)?;
    let cmd = format!("pcm -c {}", asked.work.cmd.as_deref().unwrap_or(WORK));
    let (status, records) = boot(asked, &kernel, &cmd, "")?;
    let mut nodes: BTreeMap<u64, Counts> = BTreeMap::new();
    for line in fs::read_to_string(&records)?.lines() {
        if let Record::Cpu { node, counts, .. } = Record::from_line(line)? {
            add(nodes.entry(node).or_default(), &counts);
        }
    }
    let file = tools::build_dir()?.join("pcm.html");
    report(&nodes).publish(&file)?;
    status.context("the machine ended without init having ended")
}

/// Accesses of all, of the kernel and of programs, node by node, in thousands.
fn report(nodes: &BTreeMap<u64, Counts>) -> Report {
    let mut report = Report::new("Accesses to local and remote memory, node by node", "");
    report.heading("accesses");
    let mut table = Table::new([
        Column::left(""),
        Column::right("local k"),
        Column::right("remote k"),
        Column::right("local:remote"),
        Column::right("the kernel's"),
        Column::right("programs'"),
    ]);
    let ratio = |local: u64, remote: u64| -> Text {
        format!("{:.1}:1", local as f64 / remote.max(1) as f64).into()
    };
    let mut row = |name: Text, c: &Counts| {
        table.row([
            name,
            (c.local / 1000).into(),
            (c.remote / 1000).into(),
            ratio(c.local, c.remote),
            ratio(c.kernel_local, c.kernel_remote),
            ratio(c.local - c.kernel_local, c.remote - c.kernel_remote),
        ]);
    };
    let mut all = Counts::default();
    for (node, counts) in nodes {
        row(format!("node {node}").into(), counts);
        add(&mut all, counts);
    }
    row("all".into(), &all);
    report.add(Medium::Both, table);
    report
}

/// Adds the accesses of `counts`.
fn add(sum: &mut Counts, counts: &Counts) {
    sum.local += counts.local;
    sum.remote += counts.remote;
    sum.kernel_local += counts.kernel_local;
    sum.kernel_remote += counts.kernel_remote;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_local_to_remote() {
        let counts = Counts {
            local: 9_000_000,
            remote: 1_000_000,
            kernel_local: 5_000_000,
            kernel_remote: 500_000,
            ..Counts::default()
        };
        let text = report(&BTreeMap::from([(1, counts)])).text();
        let row: Vec<&str> = text.lines().nth(3).unwrap().split_whitespace().collect();
        assert_eq!(
            row,
            ["node", "1", "9000", "1000", "9.0:1", "10.0:1", "8.0:1"]
        );
        assert!(text.lines().nth(4).unwrap().starts_with("  all"));
    }
}
