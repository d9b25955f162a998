//! `vmbench`: the cost of faults, mappings, processes and pipes.
//!
//! Guarantee: each case checks its results; a wrong result makes the exit status 1. One line per result, made of
//! `key=value` words and starting with `vmbench`. The same static binary runs on Linux.
//! Mechanism: see `harness`; the numbers of repetitions are fixed, so that counting instructions is meaningful.

mod harness;
mod jobs;
mod large;
mod memory;
mod pipes;
mod process;

use harness::{Case, Outcome, Plan, Unit};
use user::sys;

const USAGE: &str = "usage: vmbench [--cases PREFIX,...] [--workers N] [--iters PERMILLE] [--quick] [--table]
               [--chain PROCESSES] [--sharers PROCESSES] [--dir DIR] [--dynamic PROGRAM] [--programs DIR] [--source DIR] [--list] [--tsc-khz]

--workers   processes that do each case at once, tied to one CPU each (default: one for each CPU)
--iters     repetitions in permille of each case's own (default 1000)
--quick     the same as --iters 100 --chain 50 --sharers 8
--table     print for people instead of one parseable line a result
--tsc-khz   print how many thousand times a second this machine's time-stamp counter counts";

struct Options {
    cases: Vec<String>,
    table: bool,
    list: bool,
    plan: Plan,
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Options, String> {
    let cpus = sys::cpus();
    let here = std::env::current_exe()
        .ok()
        .and_then(|path| Some(path.parent()?.display().to_string()));
    let plan = Plan {
        workers: cpus.len(),
        cpus,
        permille: 1000,
        chain: 500,
        sharers: 127,
        dir: "/tmp".into(),
        dynamic: "/usr/bin/true".into(),
        programs: here.unwrap_or_else(|| "/usr/bin".into()),
        source: "/src".into(),
    };
    let mut options = Options {
        cases: Vec::new(),
        table: false,
        list: false,
        plan,
    };
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} wants a value"));
        let number = |text: String| {
            text.parse::<u64>()
                .map_err(|_| format!("{text} is not a number"))
        };
        match arg.as_str() {
            "--cases" => options.cases = value()?.split(',').map(str::to_owned).collect(),
            "--workers" => options.plan.workers = number(value()?)?.clamp(1, 1024) as usize,
            "--iters" => options.plan.permille = number(value()?)?,
            "--chain" => options.plan.chain = number(value()?)?.max(1),
            "--sharers" => options.plan.sharers = number(value()?)?.max(1),
            "--dir" => options.plan.dir = value()?,
            "--dynamic" => options.plan.dynamic = value()?,
            "--programs" => options.plan.programs = value()?,
            "--source" => options.plan.source = value()?,
            "--quick" => {
                (
                    options.plan.permille,
                    options.plan.chain,
                    options.plan.sharers,
                ) = (100, 50, 8)
            }
            "--table" => options.table = true,
            "--list" => options.list = true,
            "--tsc-khz" => {
                println!("{}", tsc_khz());
                sys::exit(0)
            }
            "--help" | "-h" => return Err(USAGE.into()),
            other => return Err(format!("unknown argument {other}\n{USAGE}")),
        }
    }
    Ok(options)
}

fn all_cases() -> impl Iterator<Item = (usize, &'static Case)> {
    memory::CASES
        .iter()
        .chain(process::CASES)
        .chain(pipes::CASES)
        .chain(large::CASES)
        .chain(jobs::CASES)
        .enumerate()
}

fn print(outcome: &Outcome, options: &Options) {
    let Outcome {
        name,
        what,
        ops,
        ns_per_op,
        ops_per_s,
        bytes,
    } = outcome;
    let workers = options.plan.workers;
    match (options.table, bytes) {
        (true, Some((bytes, Unit::Process))) => {
            println!("  {name:<22} {bytes:>12.0} bytes per process");
        }
        (true, Some((bytes, Unit::Mapping))) => {
            println!("  {name:<22} {bytes:>12.1} bytes per mapped page");
        }
        (true, None) => println!("  {name:<22} {ns_per_op:>12.0} ns {ops_per_s:>14.0} /s   {what}"),
        (false, Some((bytes, Unit::Process))) => println!(
            "vmbench case={name} workers={workers} processes={ops} bytes_per_process={bytes:.0}"
        ),
        (false, Some((bytes, Unit::Mapping))) => println!(
            "vmbench case={name} workers={workers} mappings={ops} bytes_per_mapping={bytes:.2}"
        ),
        (false, None) => println!(
            "vmbench case={name} workers={workers} ops={ops} ns_per_op={ns_per_op:.1} ops_per_s={ops_per_s:.0}"
        ),
    }
}

/// Runs a case in a process of its own, so that memory and open files left by its preparation do not slow later cases;
/// returns whether its results were right.
fn run_apart(number: usize, case: &Case, options: &Options) -> bool {
    memory::reset_fault_around();
    let report = || match harness::run(number, case, &options.plan) {
        Ok(outcomes) => {
            outcomes.iter().for_each(|outcome| print(outcome, options));
            true
        }
        Err(message) if message.starts_with(harness::NOT_HERE) => {
            println!("vmbench: {} is {message}", case.name);
            true
        }
        Err(message) => {
            println!(
                "vmbench case={} workers={} FAILED: {message}",
                case.name, options.plan.workers
            );
            false
        }
    };
    match sys::fork() {
        Ok(0) => sys::exit(i32::from(!report())),
        Ok(pid) => sys::wait(pid as i64, 0).is_ok_and(|(_, status)| status == 0),
        Err(errno) => {
            println!("vmbench case={} FAILED: fork: errno {errno}", case.name);
            false
        }
    }
}

/// The frequency of the time-stamp counter, measured against the monotonic clock. Each end of the interval is the
/// closest of many readings of both clocks, so that an interruption between two readings does not matter.
fn tsc_khz() -> u64 {
    let look = |_| {
        let (before, tsc) = (sys::now_ns(), sys::tsc());
        let after = sys::now_ns();
        (after - before, before / 2 + after / 2, tsc)
    };
    let closest = || (0..200).map(look).min().unwrap_or_default();
    let (_, ns, tsc) = closest();
    harness::nap(500_000_000);
    let (_, later_ns, later_tsc) = closest();
    let elapsed = later_ns.saturating_sub(ns).max(1);
    (later_tsc.saturating_sub(tsc)).saturating_mul(1_000_000) / elapsed
}

/// Prints the guest's time: a reader that records when the line arrives can compare this machine's clock with its own.
fn tell_time(options: &Options) {
    if !options.table && !options.list {
        println!("vmbench: clock {}", sys::now_ns());
    }
}

fn main() {
    let options = match parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(message) => {
            eprintln!("{message}");
            sys::exit(2)
        }
    };
    let wanted = |case: &Case| {
        let special = [large::PREFIX, jobs::PREFIX];
        let usual = !special.iter().any(|prefix| case.name.starts_with(prefix));
        let asked = options.cases.is_empty() && (options.list || usual);
        asked
            || options
                .cases
                .iter()
                .any(|prefix| case.name.starts_with(prefix.as_str()))
    };
    let (mut run, mut failed) = (0u32, 0u32);
    if options.table && !options.list {
        let workers = options.plan.workers;
        println!(
            "  {:<22} {:>15} {:>17}   operation ({workers} workers)",
            "case", "time of one", "all together"
        );
    }
    tell_time(&options);
    for (number, case) in all_cases().filter(|(_, case)| wanted(case)) {
        run += 1;
        if options.list {
            println!("{:<16} {}", case.name, case.what);
            continue;
        }
        failed += u32::from(!run_apart(number, case, &options));
    }
    tell_time(&options);
    if !options.list {
        println!("vmbench: {} cases right, {failed} wrong", run - failed);
    }
    sys::exit(i32::from(failed > 0 || run == 0))
}
