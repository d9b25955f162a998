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

/// Defines the cases: the name of each as the script has it, and what is done.
macro_rules! cases {
    ($($name:ident $what:literal)*) => {
        /// The cases of this file.
        pub const CASES: &[Case] = &[$(Case {
            name: concat!("job-", stringify!($name)),
            what: $what,
            phases: &[""],
            prepare: nothing,
            work: |w| job(w, stringify!($name)),
        }),*];
    };
}

cases! {
    lua "build of Lua by gcc and make, four at once"
    configure "configure of zlib"
    cargo "build of nine crates by cargo, four at once"
    hackbench "messages between 160 processes, by sockets and by pipes"
    redis "20,000 SET and 20,000 GET by twenty clients, local socket"
    nginx "2,000 small files from nginx by one client"
    selects "1,600 selects of pgbench by eight clients, local socket"
    tpcb "800 transactions of pgbench by eight clients, local socket"
    sqlite "3,000 inserts into SQLite, each a transaction"
    git "git clone and gc of 20 commits"
    python "start and end of Python, 20 times"
}

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
