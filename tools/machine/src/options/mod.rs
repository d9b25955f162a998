//! The command line of every job, declared once: each program reads it, and `make help` prints it.
//!
//! A setting may be given as a flag (`--cpus 8`) or, as `make` hands them on, as a variable (`CPUS=8`); the flag wins, and
//! an empty variable is none. A setting's variable is its flag in capitals, and names it in messages.

mod jobs;
mod machine;
mod values;

pub use jobs::{
    Accept, Bench, BootTests, Commute, Diff, Job, Kernels, Mutants, Run, Setup, Soak, System, Work,
};
pub use machine::{Accel, Build, Design, Image, Kernel, Machine, Profile, Rmap, Sources};
pub use values::{Words, mebibytes};

use crate::help;
use clap::{Command, CommandFactory, FromArgMatches, Parser};
use std::ffi::OsString;

/// What the programs behind the Makefile read.
#[derive(Parser)]
#[command(
    name = "xtask",
    bin_name = "cargo xtask",
    about = "Builds, runs, tests and measures Pantala",
    disable_help_subcommand = true
)]
struct Cli {
    #[command(subcommand)]
    job: Option<Job>,
}

/// The job that command line and environment ask for; after a mistake, says what to write instead and ends the program.
pub fn read() -> Job {
    job_of(std::env::args_os()).unwrap_or_else(|error| error.exit())
}

fn job_of(words: impl IntoIterator<Item = OsString>) -> Result<Job, clap::Error> {
    let mut command = command();
    let matches = command.try_get_matches_from_mut(words)?;
    let job = Cli::from_arg_matches(&matches)?.job.unwrap_or(Job::Help);
    if let Some(Err(error)) = job.setup().map(|setup| setup.machine.check()) {
        return Err(command.error(clap::error::ErrorKind::ValueValidation, error));
    }
    Ok(job)
}

/// The declaration, with the page of help that [`help`] makes of it.
fn command() -> Command {
    let command = without_empty_variables(Cli::command());
    let text = help::text(&command);
    command.override_help(text)
}

/// The page of help: every job and every setting.
pub fn help() -> String {
    help::text(&Cli::command())
}

/// `make` cannot take a variable back that it has been given, but can empty it.
fn without_empty_variables(command: Command) -> Command {
    command
        .mut_args(|arg| {
            let variable = arg.get_env().and_then(std::env::var_os);
            if variable.is_some_and(|value| value.is_empty()) {
                arg.env(None::<&'static str>)
            } else {
                arg
            }
        })
        .mut_subcommands(without_empty_variables)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(line: &str) -> Result<Job, String> {
        let words = std::iter::once("xtask").chain(line.split_whitespace());
        job_of(words.map(OsString::from)).map_err(|error| error.to_string())
    }

    fn machine(line: &str) -> Machine {
        match job(line) {
            Ok(Job::Run(run)) => run.setup.machine,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn programs_lie_at_random_addresses_where_code_is_not_translated_anew() {
        let options = |line: &str| match job(line) {
            Ok(Job::Run(run)) => run.setup.options(),
            other => panic!("{line}: {other:?}"),
        };
        assert_eq!(
            options("run --accel tcg --append vmchaos"),
            "norandmaps vmchaos"
        );
        assert_eq!(
            options("run --accel tcg --append vmchaos --randmaps"),
            "vmchaos"
        );
        assert_eq!(options("run --accel kvm"), "");
    }

    #[test]
    fn the_declaration_has_no_contradiction() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_is_not_said_is_the_default_machine() {
        assert_eq!(machine("run"), Machine::default());
        let asked = machine("run --cpus 8 --mem 4G --nodes 2 --accel tcg");
        assert_eq!((asked.cpus, asked.mem_mib, asked.nodes), (8, 4096, 2));
        assert_eq!(asked.accel, Some(Accel::Tcg));
    }

    #[test]
    fn mistakes_are_told_with_what_is_right() {
        let told = |line: &str, what: &str| {
            let message = job(line).unwrap_err();
            assert!(message.contains(what), "{line}: {message}");
        };
        told("run --cpus 300", "write a whole number from 1 to 256");
        told("run --cpus 2 --nodes 3", "NODES=3 needs CPUS=3 or more");
        told("run --nodes 2 --mem 40M", "MEM=64M or more");
        told("run --machine z", "pc, q35");
        told("run --accel xen", "kvm, tcg");
        told("soak --minutes x", "write a whole number, 1 or more");
        told("run --mem much", "512M, 4G or a number of MiB");
        told("bench --kinds cuont", "count, transfers, rate, scale");
        told("bench --systems bsd", "pantala, linux");
        told("comute", "a similar subcommand exists: 'commute'");
        told("kernel extra", "unexpected argument 'extra'");
    }

    #[test]
    fn names_choose_among_boot_tests() {
        let Ok(Job::BootTest(tests)) = job("boot-test s30 s40") else {
            panic!("not a boot test");
        };
        assert_eq!(tests.names, ["s30", "s40"]);
        assert!(matches!(job("build"), Ok(Job::Kernel(_))));
        assert!(matches!(job(""), Ok(Job::Help)));
    }
}
