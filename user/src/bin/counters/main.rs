//! `counters [PREFIX...]`: each of the kernel's own counts against a number known by construction.
//!
//! A test reads the counts of /proc/pantala, performs an operation a known number of times, reads the counts again, and
//! compares. The cost of the reading itself is measured beforehand by two readings with nothing between them, and
//! subtracted. The increase must be exact unless the test states why it cannot be. Needs a Pantala kernel; with
//! `lockprof` the lock profile is tested too, with two nodes the origin of pages.

mod counts;
mod events;
mod locks;
mod memory;

use counts::Counts;
use user::sys;

/// The result of a test: passed, or the error.
type Verdict = Result<(), String>;

/// A test, and its requirements on the machine.
struct Test {
    name: &'static str,
    needs: Needs,
    run: fn() -> Verdict,
}

/// A requirement of a test.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Needs {
    Nothing,
    TwoCpus,
    TwoNodes,
    LockProfile,
    /// A person or script that types keys; tested only if named explicitly.
    Keys,
}

impl Needs {
    /// Whether the requirement is met; otherwise the test is skipped.
    fn met(self) -> bool {
        match self {
            Needs::Nothing => true,
            Needs::Keys => std::env::args().any(|arg| arg == "keys"),
            Needs::TwoCpus => counts::lines("cpu") > 1,
            Needs::TwoNodes => counts::lines("node") > 1,
            Needs::LockProfile => {
                counts::lines("cpu") > 1
                    && std::fs::read_to_string("/proc/cmdline")
                        .is_ok_and(|line| line.split_whitespace().any(|word| word == "lockprof"))
            }
        }
    }
}

/// The CPU that tests run on.
const HERE: usize = 0;
/// The CPU of their helpers.
const THERE: usize = 1;

/// Fails unless a count grew by `wanted`.
fn exact(what: &str, grown: i64, wanted: i64) -> Verdict {
    between(what, grown, wanted, wanted)
}

/// Fails unless a count grew by at least `low` and at most `high`.
fn between(what: &str, grown: i64, low: i64, high: i64) -> Verdict {
    if (low..=high).contains(&grown) {
        Ok(())
    } else if low == high {
        Err(format!("{what}: {grown}, not {low}"))
    } else {
        Err(format!("{what}: {grown}, not {low} to {high}"))
    }
}

/// The increase of the counts during `f`, less the cost of reading them.
fn over<T>(f: impl FnOnce() -> T) -> (Counts, T) {
    let mut readings = [const { Counts::new() }; 4];
    // The first reading touches the memory that reading needs; the next two measure its cost.
    for n in [0, 0, 1] {
        readings[n].take();
    }
    readings[2].take();
    let result = f();
    readings[3].take();
    let own = readings[1].since(&readings[0]);
    let grown = readings[3].since(&readings[2]);
    (grown.since(&own), result)
}

/// An empty file without a name.
fn file() -> Result<i32, String> {
    let path = format!("/tmp/counters.{}", std::process::id());
    let error = |errno| format!("{path}: errno {errno}");
    let fd = sys::open(&path, libc::O_RDWR | libc::O_CREAT | libc::O_EXCL, 0o600).map_err(error)?;
    std::fs::remove_file(&path).map_err(|e| e.to_string())?;
    Ok(fd)
}

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let (mut right, mut wrong, mut left_out) = (0, 0, 0);
    // On one CPU, so that its counts can be distinguished.
    let _ = sys::tie_to_cpu(HERE);
    let tests = [memory::TESTS, events::TESTS, locks::TESTS];
    for test in tests.into_iter().flatten() {
        if !wanted.is_empty() && !wanted.iter().any(|p| test.name.starts_with(&**p)) {
            continue;
        }
        if !test.needs.met() {
            println!("{:<24} left out: not on this machine", test.name);
            left_out += 1;
            continue;
        }
        match patiently(test) {
            Ok(()) => {
                println!("{:<24} right", test.name);
                right += 1;
            }
            Err(why) => {
                println!("{:<24} WRONG: {why}", test.name);
                wrong += 1;
            }
        }
    }
    println!("counters: {right} right, {wrong} wrong, {left_out} left out");
    sys::exit(i32::from(wrong > 0 || right == 0))
}

/// Runs a test, and repeats it if it fails. Other activity in the machine, such as reclaim or a host that stalls a CPU,
/// adds to counts at times; a count that is wrong is wrong in each run.
fn patiently(test: &Test) -> Verdict {
    const TRIES: u32 = 5;
    let tries = if test.needs == Needs::Keys { 1 } else { TRIES };
    let mut verdict = in_a_process(test.run);
    for _ in 1..tries {
        let Err(why) = &verdict else { break };
        println!("{:<24} again: {why}", test.name);
        verdict = in_a_process(test.run);
    }
    verdict
}

/// Runs a test in a process of its own, whose memory no other process maps; its error is returned through a pipe.
fn in_a_process(run: fn() -> Verdict) -> Verdict {
    let error = |errno| format!("the test could not run: errno {errno}");
    let (from, to) = sys::pipe(0).map_err(error)?;
    let pid = sys::fork().map_err(error)?;
    if pid == 0 {
        let failed = run().err();
        let text = failed.as_deref().unwrap_or_default();
        let _ = sys::write(to, text.as_bytes());
        sys::exit(i32::from(failed.is_some()))
    }
    let _ = sys::close(to);
    let mut text = Vec::new();
    let mut buf = [0; 512];
    while let Ok(n @ 1..) = sys::read(from, &mut buf) {
        text.extend_from_slice(&buf[..n]);
    }
    let _ = sys::close(from);
    let (_, status) = sys::wait(pid as i64, 0).map_err(error)?;
    if status == 0 {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&text).into_owned();
    Err(if text.is_empty() {
        format!("it died with status {status:#x}")
    } else {
        text
    })
}
