//! The console of a machine that runs, until it ends or its time is over.

use anyhow::{Context, Result};
use std::io::{Read, Write};
use std::process::{Child, ChildStdout, Command};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// What a machine is given to end by itself once it has been asked to.
const GRACE: Duration = Duration::from_secs(20);

/// How far the console was by when.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// Its length in bytes.
    pub len: usize,
    /// The time.
    pub at: Instant,
    /// The processor time that QEMU had used, as far as the host tells: to a hundredth of a second.
    pub processor: Duration,
}

/// How a machine ended.
pub struct Ended {
    /// Everything that it printed, QEMU's complaints at the end if they are a pipe.
    pub console: String,
    /// When.
    pub times: Vec<Moment>,
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
    let pid = child.id();
    let reader = std::thread::spawn(move || {
        let (mut console, times) = read(out, pid, echo);
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

fn read(mut out: ChildStdout, pid: u32, echo: bool) -> (Vec<u8>, Vec<Moment>) {
    let (mut console, mut times) = (Vec::new(), Vec::new());
    let mut chunk = [0; 4096];
    while let Ok(len @ 1..) = out.read(&mut chunk) {
        console.extend_from_slice(&chunk[..len]);
        times.push(Moment {
            len: console.len(),
            at: Instant::now(),
            processor: processor_time(pid).unwrap_or_default(),
        });
        if echo {
            let mut terminal = std::io::stdout().lock();
            let _ = terminal
                .write_all(&chunk[..len])
                .and_then(|()| terminal.flush());
        }
    }
    (console, times)
}

/// What a process and its threads have used of the processors.
fn processor_time(pid: u32) -> Option<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    ticks_used(&stat).map(|ticks| Duration::from_millis(ticks * 10))
}

/// User's and system's hundredths of a second in a line of `/proc/PID/stat`. The name in parentheses may contain anything.
fn ticks_used(stat: &str) -> Option<u64> {
    let mut words = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut next = || words.next()?.parse::<u64>().ok();
    Some(next()? + next()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_read_behind_any_name() {
        let stat = "7 (a) b) S 1 7 7 0 -1 0 10 0 0 0 123 45 0 0 20 0 1 0 99";
        assert_eq!(ticks_used(stat), Some(168));
        assert_eq!(ticks_used("7 (a"), None);
        assert!(processor_time(std::process::id()).is_some());
    }
}
