//! One boot of one kernel, with or without the plugin, and what it said.

use super::names::{Line, Names};
use super::symbols::Symbols;
use crate::options::Machine;
use crate::qemu::{self, Serial};
use anyhow::{Context, Result};
use coherence::record::Record;
use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// A kernel to measure.
pub struct Guest {
    /// The key in samples.
    pub system: &'static str,
    /// The name for people.
    pub title: String,
    /// The kernel's file.
    pub kernel: PathBuf,
    /// Further options on its command line.
    pub options: String,
    /// Names of its functions.
    pub symbols: Symbols,
    /// Entry points of its interrupts, the timer's first (see [`super::symbols::TIMER`]).
    pub watches: Vec<u64>,
}

/// What is shared by all boots.
pub struct Lab {
    /// The image.
    pub initrd: PathBuf,
    /// The plugin.
    pub plugin: PathBuf,
    /// Cases.
    pub names: Names,
    /// Where files go.
    pub dir: PathBuf,
    /// The kernels.
    pub guests: Vec<Guest>,
}

/// What a boot counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Instructions, on one CPU whose clock is its instruction count.
    Count,
    /// Lines moved.
    Transfers,
    /// Operations a second, undisturbed.
    Rate,
}

/// What a boot yielded.
pub struct Boot {
    /// The benchmark's results.
    pub lines: Vec<Line>,
    /// The plugin's.
    pub records: Vec<Record>,
    /// What went wrong.
    pub failed: Vec<String>,
    /// The whole console.
    pub console: String,
}

/// Memory of every machine, in MiB.
const MEMORY: u64 = 1024;

fn machine(cpus: u32, kind: Kind) -> Machine {
    let accel = if kind == Kind::Count {
        "tcg-single"
    } else {
        "tcg"
    };
    Machine {
        cpus,
        mem_mib: MEMORY,
        accel: Some(accel.into()),
        ..Machine::default()
    }
}

impl Lab {
    fn command(&self, guest: &Guest, cmd: &str, cpus: u32, kind: Kind) -> Command {
        let append = qemu::append(Some(cmd), &guest.options);
        let machine = machine(cpus, kind);
        let mut command = qemu::command(
            &machine,
            &guest.kernel,
            &self.initrd,
            &append,
            Serial::Output,
        );
        if kind == Kind::Count {
            // A clock that counts instructions: ticks, and so the counts, come out the same in every run.
            command.args(["-icount", "shift=0,sleep=off"]);
        }
        if kind != Kind::Rate {
            let mode = if kind == Kind::Count {
                "count"
            } else {
                "transfers"
            };
            let mut plugin = self.plugin.clone().into_os_string();
            plugin.push(format!(
                ",mode={mode},mem={MEMORY},out={}",
                self.records(guest, cpus, kind).display()
            ));
            guest
                .watches
                .iter()
                .for_each(|addr| plugin.push(format!(",watch={addr:#x}")));
            command.args([OsString::from("-plugin"), plugin]);
        }
        command
    }

    /// What a boot leaves behind is named after it.
    fn file(&self, guest: &Guest, cpus: u32, kind: Kind, suffix: &str) -> PathBuf {
        let name = format!("{}-{cpus}-{kind:?}.{suffix}", guest.system);
        self.dir.join(name.to_lowercase())
    }

    fn records(&self, guest: &Guest, cpus: u32, kind: Kind) -> PathBuf {
        self.file(guest, cpus, kind, "records.jsonl")
    }

    /// The command line of a boot of two CPUs without plugin, for people.
    pub fn command_line(&self, guest: &Guest) -> String {
        let command = self.command(guest, "vmbench", 2, Kind::Rate);
        let word = |word: &std::ffi::OsStr| {
            let word = word.to_string_lossy();
            if word.contains(' ') {
                format!("'{word}'")
            } else {
                word.into_owned()
            }
        };
        std::iter::once(word(command.get_program()))
            .chain(command.get_args().map(word))
            .collect::<Vec<_>>()
            .join(" ")
    }

    /// Boots `guest`, runs `cmd` and reads what came of it. A guest that dies, or is not done within `limit`, yields
    /// what it had done by then, and a complaint.
    ///
    /// # Errors
    /// QEMU cannot be started, or the plugin has not written its records.
    pub fn boot(
        &self,
        guest: &Guest,
        cmd: &str,
        cpus: u32,
        kind: Kind,
        limit: Duration,
    ) -> Result<Boot> {
        let records = self.records(guest, cpus, kind);
        let _ = fs::remove_file(&records);
        let mut command = self.command(guest, cmd, cpus, kind);
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let (console, timed_out) = watch(child.spawn().context("cannot start QEMU")?, limit)?;
        let log = self.file(guest, cpus, kind, "log");
        fs::write(&log, &console)?;
        let mut failed = complaints(&console);
        if timed_out {
            failed.push(format!(
                "not done after {} s ({})",
                limit.as_secs(),
                log.display()
            ));
        } else if !console.contains("init exited with status") {
            let mut said = console.lines().rev().filter(|line| !line.trim().is_empty());
            let panic = console.lines().find(|line| line.contains("panic: "));
            let last = panic.or(said.next()).unwrap_or("nothing was said");
            failed.push(format!("died: {last} ({})", log.display()));
        } else if cmd.starts_with("vmbench") && !console.contains(" cases right, ") {
            failed.push(format!(
                "vmbench did not come to its end ({})",
                log.display()
            ));
        }
        Ok(Boot {
            lines: self.names.lines(&console),
            records: if kind == Kind::Rate {
                Vec::new()
            } else {
                read_records(&records)?
            },
            failed,
            console,
        })
    }
}

fn complaints(console: &str) -> Vec<String> {
    let failed = console.lines().filter(|line| line.contains("FAILED: "));
    failed.map(|line| line.trim().to_owned()).collect()
}

fn read_records(file: &Path) -> Result<Vec<Record>> {
    let text = fs::read_to_string(file)
        .with_context(|| format!("the plugin has not written {}", file.display()))?;
    text.lines()
        .map(|line| Record::from_line(line).context("a record of the plugin"))
        .collect()
}

/// Everything that QEMU prints until it ends, and whether it had to be ended.
fn watch(mut child: Child, limit: Duration) -> Result<(String, bool)> {
    let mut out = child.stdout.take().context("QEMU's output is not a pipe")?;
    let mut err = child
        .stderr
        .take()
        .context("QEMU's errors are not a pipe")?;
    let (done, ended) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        let mut console = Vec::new();
        let _ = out.read_to_end(&mut console);
        let _ = err.read_to_end(&mut console);
        let _ = done.send(());
        console
    });
    let timed_out = ended.recv_timeout(limit).is_err();
    if timed_out {
        // Asked politely, QEMU lets the plugin write what it has.
        let _ = Command::new("kill").arg(child.id().to_string()).status();
        if ended.recv_timeout(Duration::from_secs(20)).is_err() {
            child.kill()?;
        }
    }
    child.wait()?;
    let console = reader.join().unwrap_or_default();
    Ok((String::from_utf8_lossy(&console).into_owned(), timed_out))
}
