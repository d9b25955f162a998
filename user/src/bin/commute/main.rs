//! `commute`: runs the cases of the crate `commute`, two operations on two CPUs, and checks every result.
//!
//! Guarantee: each case is run in both orders, and must return the same results in both; a case that fails is reported
//! by name, ends only the processes that ran it, and makes the exit status 1. The same static binary runs on Linux.
//! Mechanism: see [`pair`]. An observer of the machine recognizes windows by stores to a marker page
//! (`commute::marker`): of the five rounds of a case the first two, one in each order, warm up and are marked as
//! windows that do not count.

mod act;
mod board;
mod files;
mod memory;
mod pair;
mod process;
mod world;

use commute::cases::{Case, Choice};
use commute::marker::Marker;
use user::sys;

const USAGE: &str =
    "usage: commute [--only CALL,CALL:CALL,...] [--every N] [--dir DIR] [--programs DIR] [--list]

--only      pairs with such a call, or just such pairs
--every     one case in N, spread evenly
--dir       where files are made (default /tmp)
--programs  where tiny-true lies (default: beside this program)";

/// Cases that one pair of actors runs before it is replaced.
const BATCH: usize = 24;

struct Options {
    choice: Choice,
    list: bool,
    dir: String,
    programs: String,
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Options, String> {
    let here = std::env::current_exe()
        .ok()
        .and_then(|path| Some(path.parent()?.display().to_string()));
    let mut options = Options {
        choice: Choice::default(),
        list: false,
        dir: "/tmp".into(),
        programs: here.unwrap_or_else(|| "/usr/bin".into()),
    };
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} wants a value"));
        match arg.as_str() {
            "--only" => options.choice.only = value()?.split(',').map(str::to_owned).collect(),
            "--every" => {
                options.choice.every = value()?.parse().map_err(|_| "not a number".to_owned())?;
            }
            "--dir" => options.dir = value()?,
            "--programs" => options.programs = value()?,
            "--list" => options.list = true,
            "--help" | "-h" => return Err(USAGE.into()),
            other => return Err(format!("unknown argument {other}\n{USAGE}")),
        }
    }
    Ok(options)
}

/// Runs all cases; returns how many failed.
fn run(cases: &[Case]) -> Result<usize, String> {
    let mut wrong = 0;
    let mut next = 0;
    while next < cases.len() {
        let mode = cases[next].mode;
        let same = cases[next..].iter().take_while(|case| case.mode == mode);
        let batch = &cases[next..next + same.take(BATCH).count()];
        match pair::run(mode, batch)? {
            None => next += batch.len(),
            Some((done, message)) => {
                let failed = batch.get(done).unwrap_or(&batch[batch.len() - 1]);
                println!(
                    "commute FAILED: case {} {}: {message}",
                    failed.number,
                    failed.name()
                );
                tell_wrong(failed);
                wrong += 1;
                next += done + 1;
            }
        }
    }
    Ok(wrong)
}

/// Announces a failed case to an observer, by an empty window.
fn tell_wrong(case: &Case) {
    let [high, low] = case.number.to_be_bytes().map(Marker::Digit);
    for marker in [high, low, Marker::Open, Marker::Close, Marker::Wrong] {
        board::mark(marker);
    }
}

/// Starts the second CPU of a machine that was booted with one (Linux's `maxcpus=1`). An emulator that runs CPUs in
/// turns switches to the second CPU only when the first one pauses, which the kernel does not do while it waits; so
/// another process executes `pause` meanwhile.
fn start_second_cpu() {
    const SWITCH: &str = "/sys/devices/system/cpu/cpu1/online";
    if sys::cpus().len() > 1 || std::fs::metadata(SWITCH).is_err() {
        return;
    }
    match sys::fork() {
        Ok(0) => loop {
            std::hint::spin_loop();
        },
        Ok(pid) => {
            let _ = std::fs::write(SWITCH, "1");
            let _ = sys::call(libc::SYS_kill, &[pid, libc::SIGKILL as u64]);
            let _ = sys::wait(pid as i64, 0);
        }
        Err(_) => {}
    }
}

fn start(options: &Options) -> Result<usize, String> {
    let cases = options.choice.cases()?;
    if options.list {
        cases
            .iter()
            .for_each(|case| println!("{} {}", case.number, case.name()));
        return Ok(0);
    }
    start_second_cpu();
    if sys::cpus().len() < 2 {
        return Err("two CPUs are needed".into());
    }
    board::make()?;
    world::make(&options.dir, &options.programs)?;
    let wrong = run(&cases);
    world::remove(&options.dir);
    let wrong = wrong?;
    println!(
        "commute: {} cases right, {wrong} wrong",
        cases.len() - wrong
    );
    Ok(wrong)
}

fn main() {
    let options = parse(std::env::args().skip(1)).unwrap_or_else(|message| {
        eprintln!("{message}");
        sys::exit(2)
    });
    match start(&options) {
        Ok(wrong) => sys::exit(i32::from(wrong > 0)),
        Err(message) => {
            eprintln!("commute: {message}");
            sys::exit(1)
        }
    }
}
