//! Boots Pantala under the plugin and says what it saw: whose memory CPUs use, and what moves between them.

use crate::options::{Options, Profile};
use crate::progress::step;
use crate::qemu::{self, Serial};
use crate::{bench, build, image, run, toolchain, tools};
use anyhow::{Context, Result, ensure};
use coherence::record::{Counts, Record};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// What runs if nothing else is asked for: faults, processes, programs, pipes.
const WORK: &str =
    "vmbench --cases zfod-touch,file-one-read,fork,exec-static,chain-flat --iters 100 --chain 40";

/// Boots `kernel` with the command asked for, the plugin looking at every memory access; returns init's status, if it
/// ended, and the records.
fn boot(options: &Options, kernel: &Path, cmd: &str, more: &str) -> Result<(Option<u8>, PathBuf)> {
    tools::need(&[("qemu-system-x86_64", "qemu-system-x86")])?;
    let initrd = image::make(options)?;
    let plugin = bench::plugin()?;
    let records = tools::build_dir()?.join("observed.jsonl");
    let append = qemu::append(Some(cmd), &options.append);
    let machine = crate::options::Machine {
        accel: Some("tcg".into()),
        ..options.machine.clone()
    };
    let mut command = qemu::command(&machine, kernel, &initrd, &append, Serial::Output);
    command.arg("-plugin").arg(format!(
        "{},mode=transfers,mem={},nodes={},out={}{more}",
        plugin.display(),
        machine.mem_mib,
        machine.nodes,
        records.display()
    ));
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start QEMU")?;
    let (code, console, _) = run::watch(child, options.timeout.map(Duration::from_secs))?;
    Ok((qemu::init_status(code, &console), records))
}

/// Prints, for each node, the accesses of its CPUs to its own memory and to other nodes'.
///
/// # Errors
/// Something cannot be built, or the machine did not end by itself.
pub fn pcm(options: &Options) -> Result<u8> {
    ensure!(
        options.machine.nodes > 1,
        "pcm is for machines with several nodes: NODES=2 CPUS=4"
    );
    let kernel = build::kernel_for(options, Profile::Release)?;
    let cmd = format!("pcm -c {}", options.cmd.as_deref().unwrap_or(WORK));
    let (status, records) = boot(options, &kernel, &cmd, "")?;
    let mut nodes: BTreeMap<u64, Counts> = BTreeMap::new();
    for line in fs::read_to_string(&records)?.lines() {
        if let Record::Cpu { node, counts, .. } = Record::from_line(line)? {
            let sum = nodes.entry(node).or_default();
            sum.local += counts.local;
            sum.remote += counts.remote;
            sum.kernel_local += counts.kernel_local;
            sum.kernel_remote += counts.kernel_remote;
        }
    }
    print!("{}", accesses(&nodes));
    status.context("the machine ended without init having ended")
}

/// Accesses of all, of the kernel and of programs, node by node, in thousands.
fn accesses(nodes: &BTreeMap<u64, Counts>) -> String {
    let mut text = format!(
        "\n{:<9} {:>12} {:>12} {:>8}   {:>8} {:>9}\n",
        "accesses", "local k", "remote k", "ratio", "kernel", "programs"
    );
    let ratio = |local: u64, remote: u64| format!("{:.1}:1", local as f64 / remote.max(1) as f64);
    let mut row = |name: &str, c: &Counts| {
        text += &format!(
            "{name:<9} {:>12} {:>12} {:>8}   {:>8} {:>9}\n",
            c.local / 1000,
            c.remote / 1000,
            ratio(c.local, c.remote),
            ratio(c.kernel_local, c.kernel_remote),
            ratio(c.local - c.kernel_local, c.remote - c.kernel_remote)
        );
    };
    let mut all = Counts::default();
    for (node, counts) in nodes {
        row(&format!("node {node}"), counts);
        all.local += counts.local;
        all.remote += counts.remote;
        all.kernel_local += counts.kernel_local;
        all.kernel_remote += counts.kernel_remote;
    }
    row("all", &all);
    text
}

/// Prints what moved between CPUs: by whom, of which type, which field.
///
/// # Errors
/// Something cannot be built, or the machine did not end by itself.
pub fn moves(options: &Options) -> Result<u8> {
    tools::need(&[("nm", "binutils"), ("addr2line", "binutils")])?;
    let kernel = build::labelled_kernel()?;
    let symbols = tools::output(Command::new("nm").arg(&kernel), "nm")?;
    let table = symbols
        .lines()
        .find_map(|line| line.strip_suffix(" heap_labels_table")?.split(' ').next())
        .context("the kernel does not tell what its heap holds")?;
    let cmd = options.cmd.as_deref().unwrap_or(WORK);
    let (status, records) = boot(options, &kernel, cmd, &format!(",labels={table}"))?;
    let _step = step("naming what moved");
    let mut command = toolchain::cargo();
    command
        .current_dir(tools::root())
        .args(["run", "--quiet", "--release", "--package", "coherence"])
        .args(["--example", "moves", "--"])
        .args([&records, &kernel]);
    tools::run(&mut command, "the list of moves")?;
    status.context("the machine ended without init having ended")
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
        let text = accesses(&BTreeMap::from([(1, counts)]));
        let row: Vec<&str> = text.lines().nth(2).unwrap().split_whitespace().collect();
        assert_eq!(
            row,
            ["node", "1", "9000", "1000", "9.0:1", "10.0:1", "8.0:1"]
        );
        assert!(text.lines().nth(3).unwrap().starts_with("all"));
    }
}
