//! Whole jobs of programs, one operation each: run only if their names are asked for, where the image has the programs.
//!
//! `/usr/lib/pantala/jobs` prepares and checks them; only the work between is a timed phase. It is the work of many processes, which
//! are on all CPUs, so there is one worker, on all of them.

use crate::harness::{Case, NOT_HERE, Worker, err};
use crate::memory::nothing;
use std::process::{Command, Stdio};
use user::sys;

/// What the names of these cases begin with.
pub const PREFIX: &str = "job-";

const SCRIPT: &str = "/usr/lib/pantala/jobs";

const fn case(
    name: &'static str,
    what: &'static str,
    work: fn(&mut Worker) -> Result<(), String>,
) -> Case {
    Case {
        name,
        what,
        phases: &[""],
        prepare: nothing,
        work,
    }
}

/// The cases of this file.
pub const CASES: &[Case] = &[
    case(
        "job-lua",
        "build of Lua by gcc and make, four at once",
        |w| job(w, "lua"),
    ),
    case("job-configure", "configure of zlib", |w| {
        job(w, "configure")
    }),
    case(
        "job-cargo",
        "build of nine crates by cargo, four at once",
        |w| job(w, "cargo"),
    ),
    case(
        "job-hackbench",
        "messages between 160 processes, by sockets and by pipes",
        |w| job(w, "hackbench"),
    ),
    case(
        "job-redis",
        "20,000 SET and 20,000 GET by twenty clients, local socket",
        |w| job(w, "redis"),
    ),
    case(
        "job-nginx",
        "2,000 small files from nginx by one client",
        |w| job(w, "nginx"),
    ),
    case(
        "job-selects",
        "1,600 selects of pgbench by eight clients, local socket",
        |w| job(w, "selects"),
    ),
    case(
        "job-tpcb",
        "800 transactions of pgbench by eight clients, local socket",
        |w| job(w, "tpcb"),
    ),
    case(
        "job-sqlite",
        "3,000 inserts into SQLite, each a transaction",
        |w| job(w, "sqlite"),
    ),
    case("job-git", "git clone and gc of 20 commits", |w| {
        job(w, "git")
    }),
    case("job-python", "start and end of Python, 20 times", |w| {
        job(w, "python")
    }),
];

fn job(w: &mut Worker, name: &str) -> Result<(), String> {
    if w.plan.workers > 1 {
        return Err(format!("{NOT_HERE}a job takes --workers 1"));
    }
    let place = format!("{}/job-{name}", w.plan.dir);
    let _ = std::fs::remove_dir_all(&place);
    std::fs::create_dir_all(&place).map_err(|error| format!("{place}: {error}"))?;
    let run = |step: &str| {
        let mut command = Command::new(SCRIPT);
        let command = command
            .args([step, name])
            .current_dir(&place)
            .stdin(Stdio::null());
        match command.status() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("{step}: {status}")),
            Err(error) => Err(format!("{NOT_HERE}{SCRIPT}: {error}")),
        }
    };
    sys::tie_to_cpus(&w.plan.cpus).map_err(err("sched_setaffinity"))?;
    run("prepare")?;
    // The host's clock, and the processor time that the machine takes of the host, are read when these lines come.
    println!("vmbench: work begins");
    w.start_on_all()?;
    let worked = run("work");
    w.stop_on_all(0)?;
    println!("vmbench: work ends");
    worked?;
    run("check")
}
