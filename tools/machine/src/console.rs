//! The console of a machine that runs, until it ends or its time is over.

use anyhow::{Context, Result};
use std::io::{Read, Write};
use std::process::{Child, ChildStdout, Command};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// What a machine is given to end by itself once it has been asked to.
const GRACE: Duration = Duration::from_secs(20);

/// How far the console was by when: its length in bytes, and the time.
pub type Times = Vec<(usize, Instant)>;

/// How a machine ended.
pub struct Ended {
    /// Everything that it printed, QEMU's complaints at the end if they are a pipe.
    pub console: String,
    /// When.
    pub times: Times,
    /// QEMU's exit code.
    pub code: Option<i32>,
    /// Whether it had to be ended.
    pub timed_out: bool,
}

/// Follows a QEMU whose output is a pipe; with `echo` the console also goes to standard output as it comes. After `limit`
/// (none: never) the machine is ended: asked politely first, so that a plugin writes what it has.
///
/// # Errors
/// The output is no pipe, or QEMU cannot be waited for.
pub fn watch(mut child: Child, limit: Option<Duration>, echo: bool) -> Result<Ended> {
    let out = child.stdout.take().context("QEMU's output is not a pipe")?;
    let err = child.stderr.take();
    let (done, ended) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        let (mut console, times) = read(out, echo);
        if let Some(mut err) = err {
            let _ = err.read_to_end(&mut console);
        }
        let _ = done.send(());
        (console, times)
    });
    let timed_out = match limit {
        Some(limit) => ended.recv_timeout(limit).is_err(),
        None => ended.recv().is_err(),
    };
    if timed_out {
        let _ = Command::new("kill").arg(child.id().to_string()).status();
        if ended.recv_timeout(GRACE).is_err() {
            child.kill()?;
        }
    }
    let code = child.wait()?.code();
    let (console, times) = reader.join().unwrap_or_default();
    Ok(Ended {
        console: String::from_utf8_lossy(&console).into_owned(),
        times,
        code,
        timed_out,
    })
}

fn read(mut out: ChildStdout, echo: bool) -> (Vec<u8>, Times) {
    let (mut console, mut times) = (Vec::new(), Vec::new());
    let mut chunk = [0; 4096];
    while let Ok(len @ 1..) = out.read(&mut chunk) {
        console.extend_from_slice(&chunk[..len]);
        times.push((console.len(), Instant::now()));
        if echo {
            let mut terminal = std::io::stdout().lock();
            let _ = terminal
                .write_all(&chunk[..len])
                .and_then(|()| terminal.flush());
        }
    }
    (console, times)
}
