//! Boots Pantala under the plugin, which looks at every memory access.

use crate::lab;
use anyhow::{Context, Result};
use machine::console::{self, Ended};
use machine::options::{Accel, Machine, Run};
use machine::qemu::{self, Serial};
use machine::{image, tools};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

/// What runs if nothing else is asked for: faults, processes, programs, pipes.
pub const WORK: &str =
    "vmbench --cases zfod-touch,file-one-read,fork,exec-static,chain-flat --iters 100 --chain 40";

/// Boots `kernel` on the machine asked for; init runs `cmd`, and the plugin takes `more` arguments. Returns init's status, if it
/// ended, and the plugin's records.
///
/// # Errors
/// Something cannot be built, or QEMU cannot be started.
pub fn boot(asked: &Run, kernel: &Path, cmd: &str, more: &str) -> Result<(Option<u8>, PathBuf)> {
    tools::need(&[("qemu-system-x86_64", "qemu-system-x86")])?;
    let initrd = image::make(&asked.setup.system.image)?;
    let plugin = lab::plugin()?;
    let records = tools::build_dir()?.join("observed.jsonl");
    let append = qemu::append(Some(cmd), &asked.setup.options());
    let machine = Machine {
        accel: Some(Accel::Tcg),
        ..asked.setup.machine.clone()
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
    let limit = asked.work.timeout.map(Duration::from_secs);
    let Ended { console, code, .. } = console::watch(child, limit, true)?;
    Ok((qemu::init_status(code, &console), records))
}
