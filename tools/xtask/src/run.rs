//! Boots Pantala for people: once through a command, or to a shell.

use anyhow::{Context, Result, bail};
use machine::console::{self, Ended};
use machine::options::{Run, Setup};
use machine::qemu::{self, Serial};
use machine::{build, image, tools};
use std::io::IsTerminal;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Status given when the machine did not end by itself within the time asked for, as `timeout` does.
const TIMED_OUT: u8 = 124;

/// Makes sure of what booting needs and returns the machine's command line.
fn prepare(setup: &Setup, serial: Serial, cmd: Option<&str>) -> Result<Command> {
    tools::need(&[("qemu-system-x86_64", "qemu-system-x86")])?;
    let kernel = build::kernel_for(&setup.system.kernel, setup.build.profile())?;
    let initrd = image::make(&setup.system.image)?;
    let append = qemu::append(cmd, &setup.options());
    eprintln!(
        "booting: {} CPUs, {} MiB, {} node(s), {}, {}",
        setup.machine.cpus,
        setup.machine.mem_mib,
        setup.machine.nodes,
        setup.machine.machine,
        qemu::accel(&setup.machine)
    );
    Ok(qemu::command(
        &setup.machine,
        &kernel,
        &initrd,
        &append,
        serial,
    ))
}

/// Boots, runs the command or the tour, and returns init's status.
///
/// # Errors
/// Something cannot be built, or the guest did not end by way of init.
pub fn run(asked: &Run) -> Result<u8> {
    let mut command = prepare(&asked.setup, Serial::Output, asked.work.cmd.as_deref())?;
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start QEMU")?;
    let limit = asked.work.timeout;
    let ended = console::watch(child, limit.map(Duration::from_secs), true)?;
    let Ended { console, code, .. } = ended;
    if ended.timed_out {
        eprintln!("xtask: ended after {} s", limit.unwrap_or_default());
        return Ok(TIMED_OUT);
    }
    match qemu::init_status(code, &console) {
        Some(status) => Ok(status),
        None => bail!("the machine ended without init having ended (QEMU's status: {code:?})"),
    }
}

/// Boots to a shell on this terminal.
///
/// # Errors
/// Something cannot be built, or QEMU cannot be started.
pub fn shell(setup: &Setup) -> Result<u8> {
    let mut command = prepare(setup, Serial::Terminal, Some("shell"))?;
    if std::io::stdin().is_terminal() {
        eprintln!(
            "Ctrl-A X ends the machine; every other key goes to the shell, `exit` powers off."
        );
    }
    let status = command.status().context("cannot start QEMU")?;
    // The console went straight to the terminal, so the low seven bits of the shell's status are all there is.
    Ok(status.code().map_or(1, |code| {
        if code & 1 == 1 {
            (code >> 1) as u8
        } else {
            code as u8
        }
    }))
}
