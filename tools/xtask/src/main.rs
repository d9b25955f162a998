//! Builds, runs and tests Pantala; the Makefile's targets call it.
//!
//! Guarantee: a missing tool is named with the Debian package that has it; everything made lies under `build/`
//! and `target/`; the exit status of `run` is that of the guest's init.
//! One file a job: `bench`, `build`, `diff`, `image`, `qemu` (and `kvm`), `run`, `test`.

mod bench;
mod build;
mod diff;
mod image;
mod kvm;
mod observe;
mod options;
mod progress;
mod qemu;
mod run;
mod symbols;
mod test;
mod toolchain;
mod tools;

use options::{Job, Options};
use std::process::ExitCode;

fn main() -> ExitCode {
    let options = match Options::parse() {
        Ok(options) => options,
        Err(error) => {
            eprintln!("xtask: {error:#}\n\n{}", options::USAGE);
            return ExitCode::from(2);
        }
    };
    match dispatch(&options) {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::from(1)
        }
    }
}

fn dispatch(options: &Options) -> anyhow::Result<u8> {
    match options.job {
        Job::Help => println!("{}", options::USAGE),
        Job::Kernel => {
            let kernel = build::kernel(options.profile)?;
            println!("{}", kernel.display());
        }
        Job::User => println!("{}", build::user()?.display()),
        Job::Image => println!("{}", image::make(options)?.display()),
        Job::Run => return run::run(options),
        Job::Shell => return run::shell(options),
        Job::Test => return test::all(options),
        Job::HostTest => return test::host_only(),
        Job::BootTest => return test::boot_only(options),
        Job::Soak => return test::soak(options),
        Job::Bench => return bench::run(options),
        Job::Commute => return bench::commute::run(options),
        Job::Diff => return diff::run(options),
        Job::DiffTest => return test::diff_only(options),
        Job::Pcm => return observe::pcm(options),
        Job::Moves => return observe::moves(options),
        Job::Miri => return test::miri(),
        Job::Mutants => return test::mutants(),
        Job::Clean => build::clean()?,
    }
    Ok(0)
}
