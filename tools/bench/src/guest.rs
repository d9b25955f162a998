//! One boot of one kernel, with or without the plugin, and what it said.

use crate::names::{Line, Names};
use crate::symbols::Symbols;
use anyhow::{Context, Result};
use coherence::record::Record;
use machine::console::{self, Moment};
use machine::options::{Accel, Machine};
use machine::qemu::{self, Serial};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
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
    /// Options where the clock runs with the host's.
    pub clock_options: String,
    /// Names of its functions.
    pub symbols: Symbols,
    /// Entry points of its interrupts, the timer's first (see [`super::symbols::TIMER`]).
    pub watches: Vec<u64>,
}

/// What is shared by all boots.
pub struct Lab {
    /// The image.
    pub initrd: PathBuf,
    /// The image of boots that build a program, if there is one.
    pub builds: Option<PathBuf>,
    /// The plugin.
    pub plugin: PathBuf,
    /// Cases.
    pub names: Names,
    /// What the time-stamp counter counts in a millisecond.
    pub tsc_khz: u64,
    /// Where files go.
    pub dir: PathBuf,
    /// The machines' processor, as QEMU takes it.
    pub cpu: String,
    /// Their usual memory, in MiB.
    pub memory: u64,
    /// The kernels.
    pub guests: Vec<Guest>,
    /// Why a kernel that was asked for is not among them.
    pub missing: Vec<String>,
}

/// Frames of entries in boots where they are scarce: fewer than the faulting process alone would have.
const FEW: usize = 16;

/// What a boot counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Instructions, on one CPU whose clock is its instruction count.
    Count,
    /// Lines moved.
    Transfers,
    /// Operations a second, undisturbed.
    Rate,
    /// Instructions as for `Count`, with a pipe chain of so many processes.
    Scale(u64),
    /// Instructions as for `Count`, where a reverse map that lists entries may have [`FEW`] frames of them.
    Scarce,
    /// Instructions as for `Count`, of the build of a program.
    Build,
    /// Which functions the instructions of `Count` are in.
    Hubs,
    /// Lines that two CPUs touch in short windows, with the same clock as `Count`.
    Windows,
}

impl Kind {
    /// What `KINDS` chooses by, and what files are named after.
    pub fn name(self) -> String {
        match self {
            Kind::Count => "count".into(),
            Kind::Transfers => "transfers".into(),
            Kind::Rate => "rate".into(),
            Kind::Scale(processes) => format!("scale{processes}"),
            Kind::Scarce => "scarce".into(),
            Kind::Build => "build".into(),
            Kind::Hubs => "hubs".into(),
            Kind::Windows => "windows".into(),
        }
    }

    /// Whether the machine's clock counts instructions.
    fn has_counted_clock(self) -> bool {
        matches!(
            self,
            Kind::Count | Kind::Scale(_) | Kind::Scarce | Kind::Build | Kind::Hubs | Kind::Windows
        )
    }

    /// Memory of the machine, in MiB: the largest chains need more than the `usual`.
    fn memory(self, usual: u64) -> u64 {
        if matches!(self, Kind::Scale(_)) {
            8192
        } else {
            usual
        }
    }
}

/// A boot to be made.
pub struct Trial<'a> {
    /// What init runs.
    pub cmd: &'a str,
    /// CPUs of the machine.
    pub cpus: u32,
    /// What is counted.
    pub kind: Kind,
    /// Which repetition, from 0.
    pub run: u32,
}

/// What a boot yielded.
pub struct Boot {
    /// The benchmark's results.
    pub lines: Vec<Line>,
    /// The plugin's.
    pub records: Vec<Record>,
    /// What went wrong.
    pub failed: Vec<String>,
    /// Whether it was not done within its time.
    pub timed_out: bool,
    /// The whole console.
    pub console: String,
    /// What the work of a job took, if there was one and it came to its end.
    pub work: Option<Work>,
    /// How many times faster than the host's the guest's clock was while the benchmark ran; 1 if that is not known.
    pub clock: f64,
}

/// What work took, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    /// By the host's clock.
    pub elapsed: f64,
    /// Of the host's processors.
    pub processor: f64,
}

fn machine(cpus: u32, kind: Kind, lab: &Lab) -> Machine {
    let accel = if kind.has_counted_clock() {
        Accel::TcgSingle
    } else {
        Accel::Tcg
    };
    Machine {
        cpus,
        mem_mib: kind.memory(lab.memory),
        cpu: lab.cpu.clone(),
        accel: Some(accel),
        ..Machine::default()
    }
}

impl Lab {
    fn initrd_of(&self, kind: Kind) -> &Path {
        match (kind, &self.builds) {
            (Kind::Build, Some(image)) => image,
            _ => &self.initrd,
        }
    }

    fn command(&self, guest: &Guest, trial: &Trial) -> Command {
        let Trial {
            cmd,
            cpus,
            kind,
            run,
        } = *trial;
        let mut options = guest.options.clone();
        if !kind.has_counted_clock() {
            options += &guest.clock_options;
        }
        if kind == Kind::Scarce {
            options += &format!(" pv_chunks={FEW}");
        }
        let append = qemu::append(Some(cmd), &options);
        let machine = machine(cpus, kind, self);
        let mut command = qemu::command(
            &machine,
            &guest.kernel,
            self.initrd_of(kind),
            &append,
            Serial::Output,
        );
        if kind.has_counted_clock() {
            // A clock that counts instructions, and a day and random bits that depend on the number of the run alone: the
            // counts come out the same when measured again, and runs differ in where things lie by chance.
            let seed = (run + 1).to_string();
            command.args(["-icount", "shift=0,sleep=off", "-seed", &seed]);
            command.args(["-rtc", "base=2026-01-01T00:00:00,clock=vm"]);
        }
        if kind != Kind::Rate {
            let mode = match kind {
                Kind::Count | Kind::Scale(_) | Kind::Scarce | Kind::Build => "count",
                Kind::Hubs => "profile",
                Kind::Windows => "windows",
                _ => "transfers",
            };
            let mut plugin = self.plugin.clone().into_os_string();
            plugin.push(format!(
                ",mode={mode},mem={},out={}",
                kind.memory(self.memory),
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

    /// Where the samples go, all of them after each boot.
    pub fn samples(&self) -> PathBuf {
        self.dir.join("samples.jsonl")
    }

    /// What a boot leaves behind is named after it.
    fn file(&self, guest: &Guest, cpus: u32, kind: Kind, suffix: &str) -> PathBuf {
        self.dir
            .join(format!("{}-{cpus}-{}.{suffix}", guest.system, kind.name()))
    }

    /// Where the console of a boot goes.
    pub fn log(&self, guest: &Guest, cpus: u32, kind: Kind) -> PathBuf {
        self.file(guest, cpus, kind, "log")
    }

    /// Where the plugin of a boot writes.
    pub fn records(&self, guest: &Guest, cpus: u32, kind: Kind) -> PathBuf {
        self.file(guest, cpus, kind, "records.jsonl")
    }

    /// The command line of a boot of two CPUs without plugin, for people.
    pub fn command_line(&self, guest: &Guest) -> String {
        self.command_line_of(
            guest,
            &Trial {
                cmd: "vmbench",
                cpus: 2,
                kind: Kind::Rate,
                run: 0,
            },
        )
    }

    /// The command line of a boot, for people.
    pub fn command_line_of(&self, guest: &Guest, trial: &Trial) -> String {
        let command = self.command(guest, trial);
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

    /// Boots `guest`, runs the trial's command and reads what came of it. A guest that dies, or is not done within `limit`, yields
    /// what it had done by then, and a complaint.
    ///
    /// # Errors
    /// QEMU cannot be started, or the plugin has not written its records.
    pub fn boot(&self, guest: &Guest, trial: &Trial, limit: Duration) -> Result<Boot> {
        let Trial {
            cmd, cpus, kind, ..
        } = *trial;
        let records = self.records(guest, cpus, kind);
        let _ = fs::remove_file(&records);
        let mut command = self.command(guest, trial);
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let child = child.spawn().context("cannot start QEMU")?;
        let console::Ended {
            console,
            times,
            timed_out,
            ..
        } = console::watch(child, Some(limit), false)?;
        let log = self.log(guest, cpus, kind);
        fs::write(&log, &console)?;
        let mut failed = complaints(&console);
        if timed_out {
            failed.push(format!(
                "not done after {} s ({})",
                limit.as_secs(),
                log.display()
            ));
        } else if !console.contains("init exited with status") {
            let last = last_words(&console);
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
            timed_out,
            work: work(&console, &times),
            clock: clock(&console, &times),
            console,
        })
    }

    /// The benchmark's results and the plugin's records of the last boot of that kind, from what it left behind.
    pub fn left_behind(
        &self,
        guest: &Guest,
        cpus: u32,
        kind: Kind,
    ) -> Option<(Vec<Line>, Vec<Record>)> {
        let console = fs::read(self.log(guest, cpus, kind)).ok()?;
        let records = read_records(&self.records(guest, cpus, kind)).ok()?;
        Some((
            self.names.lines(&String::from_utf8_lossy(&console)),
            records,
        ))
    }
}

/// How a kernel says why it dies.
const DEATHS: [&str; 4] = ["panic: ", "PANIC: ", "BUG: ", "Oops: "];

/// The line of `console` that says most of why a machine died.
fn last_words(console: &str) -> &str {
    let death = |line: &&str| DEATHS.iter().any(|word| line.contains(word));
    let mut said = console.lines().rev().filter(|line| !line.trim().is_empty());
    let words = console.lines().find(death).or(said.next());
    words.map_or("nothing was said", str::trim)
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

/// What lay between the lines that say that work begins and ends.
fn work(console: &str, times: &[Moment]) -> Option<Work> {
    let at = |line: &str| moment(console.find(line)?, times);
    let (begin, end) = (at("vmbench: work begins")?, at("vmbench: work ends")?);
    Some(Work {
        elapsed: end.at.duration_since(begin.at).as_secs_f64(),
        processor: end.processor.saturating_sub(begin.processor).as_secs_f64(),
    })
}

/// When the text at `at` in the console came.
fn moment(at: usize, times: &[Moment]) -> Option<&Moment> {
    times.get(times.partition_point(|moment| moment.len <= at))
}

/// How many times faster than the host's the guest's clock ran between the first and the last time that it told.
fn clock(console: &str, times: &[Moment]) -> f64 {
    let told = console
        .match_indices("vmbench: clock ")
        .filter_map(|(at, words)| {
            let digits = console[at + words.len()..].split_whitespace().next()?;
            Some((digits.parse::<f64>().ok()?, moment(at, times)?.at))
        });
    let told: Vec<_> = told.collect();
    let (Some(first), Some(last)) = (told.first(), told.last()) else {
        return 1.0;
    };
    let host = last.1.duration_since(first.1).as_secs_f64();
    let guest = (last.0 - first.0) / 1e9;
    // Over less than that the console's own delays would count.
    if host < 0.5 || guest <= 0.0 {
        1.0
    } else {
        guest / host
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_death_is_told_by_its_first_cause() {
        let console = "boot\n[ 1.0] traps: PANIC: double fault\n[ 1.1] Kernel panic - not syncing: x\n[ 1.2] Offset\n\n";
        assert_eq!(last_words(console), "[ 1.0] traps: PANIC: double fault");
        assert_eq!(last_words("a\nb\n\n"), "b");
        assert_eq!(last_words(""), "nothing was said");
    }

    /// The console had so many bytes after so many seconds, of which the machine had used half.
    fn moments(came: &[(usize, u64)]) -> Vec<Moment> {
        let began = Instant::now();
        let moment = |&(len, seconds)| Moment {
            len,
            at: began + Duration::from_secs(seconds),
            processor: Duration::from_millis(500 * seconds),
        };
        came.iter().map(moment).collect()
    }

    #[test]
    fn a_guest_whose_clock_runs_fast_is_found_out() {
        let console = "boot\nvmbench: clock 1000000000\ncase\nvmbench: clock 9000000000\n";
        let times = moments(&[(4, 1), (31, 2), (console.len(), 6)]);
        assert_eq!(clock(console, &times), 2.0);
        assert_eq!(clock("nothing", &times), 1.0);
    }

    #[test]
    fn work_is_timed_from_its_first_line_to_its_last() {
        let console = "boot\nvmbench: work begins\nmade\nvmbench: work ends\nmore\n";
        let end = console.find("more").unwrap();
        let times = moments(&[(5, 1), (26, 3), (31, 9), (end, 13), (console.len(), 20)]);
        let took = Work {
            elapsed: 10.0,
            processor: 5.0,
        };
        assert_eq!(work(console, &times), Some(took));
        assert_eq!(work("vmbench: work begins\n", &times), None);
    }
}
