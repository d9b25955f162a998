//! Boots Pantala for people: once through a command, or to a shell.

use crate::options::Options;
use crate::qemu::{self, Serial};
use crate::{build, image, tools};
use anyhow::{Context, Result, bail};
use std::io::{IsTerminal, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// Status given when the machine did not end by itself within the time asked for, as `timeout` does.
const TIMED_OUT: u8 = 124;

/// Makes sure of what booting needs and returns the machine's command line.
fn prepare(options: &Options, serial: Serial, cmd: Option<&str>) -> Result<Command> {
    tools::need(&[("qemu-system-x86_64", "qemu-system-x86")])?;
    let kernel = build::kernel_for(options, options.profile)?;
    let initrd = image::make(options)?;
    let append = qemu::append(cmd, &options.append);
    eprintln!(
        "booting: {} CPUs, {} MiB, {} node(s), {}, {}",
        options.machine.cpus,
        options.machine.mem_mib,
        options.machine.nodes,
        options.machine.machine,
        qemu::accel(&options.machine)
    );
    Ok(qemu::command(
        &options.machine,
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
pub fn run(options: &Options) -> Result<u8> {
    let mut command = prepare(options, Serial::Output, options.cmd.as_deref())?;
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start QEMU")?;
    let (code, console, timed_out) = watch(child, options.timeout.map(Duration::from_secs))?;
    if timed_out {
        eprintln!(
            "xtask: ended after {} s",
            options.timeout.unwrap_or_default()
        );
        return Ok(TIMED_OUT);
    }
    match qemu::init_status(code, &console) {
        Some(status) => Ok(status),
        None => bail!("the machine ended without init having ended (QEMU's status: {code:?})"),
    }
}

/// Copies the console to standard output until the machine ends.
pub fn watch(mut child: Child, limit: Option<Duration>) -> Result<(Option<i32>, String, bool)> {
    let mut pipe = child.stdout.take().context("QEMU's output is not a pipe")?;
    let (done, ended) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        let (mut console, mut buf) = (Vec::new(), [0; 4096]);
        while let Ok(n @ 1..) = pipe.read(&mut buf) {
            console.extend_from_slice(&buf[..n]);
            let mut out = std::io::stdout().lock();
            let _ = out.write_all(&buf[..n]).and_then(|()| out.flush());
        }
        let _ = done.send(());
        console
    });
    let timed_out = match limit {
        Some(limit) => ended.recv_timeout(limit).is_err(),
        None => ended.recv().is_err(),
    };
    if timed_out {
        child.kill()?;
    }
    let status = child.wait()?;
    let console = reader.join().unwrap_or_default();
    Ok((
        status.code(),
        String::from_utf8_lossy(&console).into_owned(),
        timed_out,
    ))
}

/// Boots to a shell on this terminal.
///
/// # Errors
/// Something cannot be built, or QEMU cannot be started.
pub fn shell(options: &Options) -> Result<u8> {
    let mut command = prepare(options, Serial::Terminal, Some("shell"))?;
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
