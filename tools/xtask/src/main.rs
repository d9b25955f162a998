//! Builds, runs and tests Pantala; the Makefile's targets call it.
//!
//! Guarantee: the exit status of `run` is that of the guest's init. Jobs that measure are done by `tools/bench`, mutation
//! tests by `tools/mutants`: those programs are built here when they are asked for, and take this one's place.

mod accept;
mod diff;
mod run;
mod test;

use anyhow::{Context, Result};
use machine::options::{self, Job};
use machine::{build, image};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    machine::main("xtask", dispatch)
}

fn dispatch(job: &Job) -> Result<u8> {
    match job {
        Job::Help => print!("{}", options::help()),
        Job::Kernel(asked) => println!(
            "{}",
            build::kernel(asked.build.profile(), asked.design.rmap)?.display()
        ),
        Job::User => println!("{}", build::user()?.display()),
        Job::Image(asked) => println!("{}", image::make(asked)?.display()),
        Job::Run(asked) => return run::run(asked),
        Job::Shell(setup) => return run::shell(setup),
        Job::Test(setup) => return test::all(setup),
        Job::HostTest(design) => return test::host_only(*design),
        Job::BootTest(asked) => return test::boot_only(asked),
        Job::Soak(asked) => return test::soak(asked),
        Job::Accept(asked) => return accept::run(asked),
        Job::Diff(asked) => return diff::run(asked),
        Job::DiffTest(setup) => return test::diff_only(setup),
        Job::Miri => return test::miri(),
        Job::Bench(_) | Job::Rivals(_) | Job::Commute(_) | Job::Pcm(_) | Job::C2c(_) => {
            become_tool("bench")?
        }
        Job::Mutants(_) => become_tool("mutants")?,
        Job::Clean => build::clean()?,
    }
    Ok(0)
}

/// Builds the program `name` below `tools` and goes on as that, with the same command line, which it reads by the same declaration.
fn become_tool(name: &str) -> Result<()> {
    let error = Command::new(build::tool(name)?)
        .args(std::env::args_os().skip(1))
        .exec();
    Err(error).with_context(|| format!("cannot start {name}"))
}
