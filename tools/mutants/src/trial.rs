//! One test in a process of its own, and how it ends.

use crate::points::{Kind, Part, Point};
use anyhow::Result;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Processor time that any mutant may use beyond what its test takes.
const EXTRA: Duration = Duration::from_secs(2);
/// A mutant may take this many times as long as no mutant.
const TIMES: u32 = 8;
/// A process all of whose threads sleep for so long, of wall time, waits for something that will not come.
const STUCK: Duration = Duration::from_secs(4);
/// Random schedules of a model of the kernel's crates. Each boots a machine, and most that fail do so in one of the schedules that
/// are enumerated.
const KERNEL_SCHEDULES: &str = "20";
/// Ticks a second of the times in `/proc`.
const TICKS: u64 = 100;

/// A test program, as built.
#[derive(Clone, Debug)]
pub struct Program {
    /// The file.
    pub path: PathBuf,
    /// Its name without what cargo adds; behind the package's for tests of the kernel.
    pub name: String,
    /// The part of the tree that it tests.
    pub part: Part,
    /// A hash of its contents: results hold as long as it stays.
    pub hash: u64,
    /// Whether it is a loom model: it sees orderings.
    pub model: bool,
    /// Whether it runs under a model checker.
    pub schedules: bool,
}

/// A test of a program, as it is without a mutant.
#[derive(Clone, Debug)]
pub struct Trial {
    /// Where it is.
    pub program: Program,
    /// Its name there.
    pub test: String,
    /// Processor time that it takes.
    pub time: Duration,
    /// Whether it panics in good health, as one that tests a panic does.
    pub panics: bool,
    /// Points that it reaches.
    pub reaches: BTreeSet<usize>,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Passed,
    Failed,
    /// Ended from here: it took too long, or slept for good.
    Hung,
}

impl Trial {
    /// Runs `test` without a mutant. `cover` is a file of the caller's own.
    ///
    /// # Errors
    /// It fails.
    pub fn measure(program: &Program, test: &str, cover: &Path) -> Result<Self> {
        let _absent = fs::remove_file(cover);
        let mut child = command(program, test).env("PANTALA_COVER", cover).spawn()?;
        let (end, time) = watch(&mut child, Duration::MAX)?;
        if end != End::Passed {
            anyhow::bail!("{} of {} fails without a mutant", test, program.name);
        }
        let reached = fs::read_to_string(cover).unwrap_or_default();
        Ok(Self {
            program: program.clone(),
            test: test.into(),
            time,
            panics: reached.lines().any(|line| line == "panics"),
            reaches: reached.lines().filter_map(|id| id.parse().ok()).collect(),
        })
    }

    /// What people see of it.
    pub fn name(&self) -> String {
        format!("{} {}", self.program.name, self.test)
    }

    /// Whether the mutant could make a difference to it.
    pub fn concerns(&self, point: &Point) -> bool {
        // The host's processor is stronger than most orderings that are asked of it.
        self.program.part == point.part()
            && self.reaches.contains(&point.id)
            && (point.kind != Kind::Order || self.program.model)
    }

    /// Whether it notices the mutant, by failing or by not ending; and the processor time that it takes with it.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn notices(&self, point: &Point) -> Result<(bool, Duration)> {
        let mut command = command(&self.program, &self.test);
        command.env("PANTALA_MUTANT", point.id.to_string());
        if !self.panics {
            // Threads that wait for one that panicked need not wait.
            command.env("PANTALA_FAIL_FAST", "1");
        }
        let (end, time) = watch(&mut command.spawn()?, self.time * TIMES + EXTRA)?;
        Ok((end != End::Passed, time))
    }
}

fn command(program: &Program, test: &str) -> Command {
    let mut command = Command::new(&program.path);
    command
        .args([test, "--exact", "--test-threads=1"])
        .current_dir(program.path.parent().unwrap_or(Path::new(".")))
        .env("RUST_BACKTRACE", "0")
        .env("PROPTEST_RNG_SEED", "1")
        .env("PROPTEST_MAX_SHRINK_ITERS", "0")
        .env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "1")
        .env("SHUTTLE_RANDOM_SEED", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    if program.part == Part::Kernel {
        command.env("PANTALA_SCHEDULES", KERNEL_SCHEDULES);
    }
    command
}

/// The tests of a program.
///
/// # Errors
/// It cannot be started.
pub fn list(program: &Program) -> Result<Vec<String>> {
    let out = Command::new(&program.path)
        .args(["--list", "--format", "terse"])
        .output()?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let name = |line: &str| Some(line.strip_suffix(": test")?.to_owned());
    Ok(text.lines().filter_map(name).collect())
}

/// Waits for the end, and makes it if the process uses more than `limit` of processor time, or sleeps for good. The
/// machine's other work thus changes no result.
fn watch(child: &mut Child, limit: Duration) -> Result<(End, Duration)> {
    let (mut last, mut since) = (Duration::ZERO, Instant::now());
    let mut pause = Duration::from_millis(1);
    loop {
        let Some((state, used)) = usage(&format!("/proc/{}/stat", child.id())) else {
            anyhow::bail!("no /proc to watch a test in");
        };
        if state == 'Z' {
            let passed = child.wait()?.success();
            return Ok((if passed { End::Passed } else { End::Failed }, used));
        }
        if used != last {
            (last, since) = (used, Instant::now());
        }
        if used > limit || (since.elapsed() > STUCK && all_sleep(child.id())) {
            child.kill()?;
            child.wait()?;
            return Ok((End::Hung, used));
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// State and processor time so far, from a `stat` file of a process or thread.
fn usage(stat: &str) -> Option<(char, Duration)> {
    let text = fs::read_to_string(stat).ok()?;
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    Some((
        fields.first()?.chars().next()?,
        Duration::from_millis(ticks * 1000 / TICKS),
    ))
}

fn all_sleep(pid: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return false;
    };
    threads.flatten().all(|thread| {
        let stat = thread.path().join("stat");
        usage(&stat.to_string_lossy()).is_none_or(|(state, _)| state == 'S')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(script: &str, limit: Duration) -> End {
        let mut child = Command::new("sh").args(["-c", script]).spawn().unwrap();
        watch(&mut child, limit).unwrap().0
    }

    #[test]
    fn ends_are_told_apart() {
        let long = Duration::from_secs(60);
        assert_eq!(run("exit 0", long), End::Passed);
        assert_eq!(run("exit 3", long), End::Failed);
        assert_eq!(
            run("while :; do :; done", Duration::from_millis(100)),
            End::Hung
        );
    }
}
