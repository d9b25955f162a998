//! The jobs, and what each may be asked for.

use super::machine::{Build, Design, Image, Kernel, Machine, Sources};
use super::values::{Words, kinds, listed, systems, whole};
use crate::qemu;
use clap::builder::{FalseyValueParser, PossibleValuesParser};
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// One job of the programs behind the Makefile.
#[derive(Clone, Debug, Subcommand)]
pub enum Job {
    /// build the kernel: build/pantala
    #[command(alias = "build")]
    Kernel(Sources),
    /// build the programs of the image
    User,
    /// make an initramfs from Debian packages: build/initramfs.cpio
    Image(Image),
    /// boot, run CMD or the tour, power off; the status is that of CMD
    Run(Run),
    /// boot to an interactive shell (Ctrl-A X leaves, Ctrl-A C is QEMU's monitor)
    Shell(Setup),
    /// host tests, boot tests, and a comparison with Linux's answers
    Test(Setup),
    /// host tests alone
    HostTest(Design),
    /// boot tests alone; names as further arguments choose among them
    BootTest(BootTests),
    /// storms for MINUTES of the guest's clock on 4 CPUs, release and debug; vmbench at full size on 8 CPUs, five times
    Soak(Soak),
    /// the programs of the jobs, on Pantala and on Linux, results checked: table, doc/accept.md; goes on where it was cut off
    Accept(Accept),
    /// compare with Linux: table, build/bench/report.html and samples
    Bench(Bench),
    /// compare the three reverse maps, and Linux: table, build/rivals/report.html and samples
    Rivals(Bench),
    /// which pairs of commuting operations touch common kernel lines, here and in Linux: table, build/commute/report.html
    Commute(Commute),
    /// random programs of system calls on Linux and here, results compared
    Diff(Diff),
    /// the comparison with Linux's answers alone
    DiffTest(Setup),
    /// local and remote memory accesses by node while CMD or a benchmark runs (CPUS=4 NODES=2)
    Pcm(Run),
    /// what moves between CPUs (cache to cache) meanwhile: by whom, of which type, which field
    C2c(Run),
    /// tests of ksync and vm under an interpreter that checks the language's rules
    Miri,
    /// mutation tests of ksync, vm, task, vfs and proc: table, build/mutants/report.html
    Mutants(Mutants),
    /// remove what was built
    Clean,
    /// this page
    Help,
}

impl Job {
    /// What it boots, if the machine may be chosen.
    pub(super) fn setup(&self) -> Option<&Setup> {
        match self {
            Job::Run(run) | Job::Pcm(run) | Job::C2c(run) => Some(&run.setup),
            Job::Shell(setup) | Job::Test(setup) | Job::DiffTest(setup) => Some(setup),
            Job::BootTest(tests) => Some(&tests.setup),
            Job::Soak(soak) => Some(&soak.setup),
            Job::Kernel(_)
            | Job::User
            | Job::Image(_)
            | Job::HostTest(_)
            | Job::Accept(_)
            | Job::Bench(_)
            | Job::Rivals(_)
            | Job::Commute(_)
            | Job::Diff(_)
            | Job::Miri
            | Job::Mutants(_)
            | Job::Clean
            | Job::Help => None,
        }
    }
}

/// What is booted, and on what.
#[derive(Args, Clone, Debug, Default)]
pub struct Setup {
    /// On which machine.
    #[command(flatten)]
    pub machine: Machine,
    /// What.
    #[command(flatten)]
    pub system: System,
    /// Which build of the kernel.
    #[command(flatten)]
    pub build: Build,
    /// programs lie at random addresses in an emulated machine, too, which makes work up to twice as slow there; tests always do so
    #[arg(long, env, help_heading = "machine", value_parser = FalseyValueParser::new())]
    pub randmaps: bool,
}

impl Setup {
    /// What is added to the kernel's command line. An emulator translates code anew at each new address, so programs lie at the same
    /// ones unless that is asked for.
    pub fn options(&self) -> String {
        let append = &self.system.kernel.append;
        match !self.randmaps && qemu::accel(&self.machine).starts_with("tcg") {
            true => format!("norandmaps {append}").trim_end().to_owned(),
            false => append.clone(),
        }
    }
}

/// What is booted on machines that the job chooses.
#[derive(Args, Clone, Debug, Default)]
pub struct System {
    /// Which kernel.
    #[command(flatten)]
    pub kernel: Kernel,
    /// With which image.
    #[command(flatten)]
    pub image: Image,
}

/// What runs in the guest, and for how long.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "guest")]
pub struct Work {
    /// shell command that init runs; if not said, the tour (pcm, c2c: a benchmark)
    #[arg(long, env, allow_hyphen_values = true)]
    pub cmd: Option<String>,
    /// end the machine after so many seconds
    #[arg(long, env, value_parser = whole::<1, { u64::MAX }, u64>)]
    pub timeout: Option<u64>,
}

/// A boot that runs a command.
#[derive(Args, Clone, Debug)]
pub struct Run {
    /// What it runs.
    #[command(flatten)]
    pub work: Work,
    /// What is booted.
    #[command(flatten)]
    pub setup: Setup,
}

/// Boot tests.
#[derive(Args, Clone, Debug)]
pub struct BootTests {
    /// beginnings of the tests' names; none: all
    pub names: Vec<String>,
    /// What is booted.
    #[command(flatten)]
    pub setup: Setup,
}

/// Tests that take long.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "soak")]
pub struct Soak {
    /// minutes of each storm
    #[arg(long, env, default_value_t = 60, value_parser = whole::<1, { u64::MAX }, u64>)]
    pub minutes: u64,
    /// beginnings of the tests' names; none: all
    pub names: Vec<String>,
    /// What is booted.
    #[command(flatten)]
    pub setup: Setup,
}

/// Which kernels are measured.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "kernels compared")]
pub struct Kernels {
    /// pantala or linux; if not said, both
    #[arg(long, env, default_value = "", value_parser = systems)]
    pub systems: Words,
    /// Linux's series, such as 6.1 or 6.12
    #[arg(long, env, default_value = "6.1")]
    pub linux: String,
    /// Linux's transparent huge pages: never, madvise or always, which is for Pantala, too
    #[arg(long, env, default_value = "never", value_parser = PossibleValuesParser::new(["never", "madvise", "always"]))]
    pub thp: String,
}

impl Kernels {
    /// Whether boots of `system` are asked for.
    pub fn wants(&self, system: &str) -> bool {
        self.systems.is_empty() || self.systems.iter().any(|wanted| wanted == system)
    }
}

/// Programs on both kernels.
#[derive(Args, Clone, Debug)]
pub struct Accept {
    /// beginnings of the programs' names; none: all
    pub names: Vec<String>,
    /// Which kernels.
    #[command(flatten)]
    pub kernels: Kernels,
    /// Which of Pantala's.
    #[command(flatten)]
    pub kernel: Kernel,
}

/// A comparison of costs.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "bench")]
pub struct Bench {
    /// few cases, few repetitions
    #[arg(long, env, value_parser = FalseyValueParser::new())]
    pub quick: bool,
    /// cases by prefix, with commas between
    #[arg(long, env, default_value = "", value_parser = listed)]
    pub only: Words,
    /// kinds of boots: count, transfers, rate, scale, and for rivals scarce, build and hubs; if not said, all; jobs, or
    /// jobs-count and so on, are those of whole jobs, and come alone
    #[arg(long, env, default_value = "", value_parser = kinds)]
    pub kinds: Words,
    /// runs of each kind; if not said, 3, or 1 when quick
    #[arg(long, env, value_parser = whole::<1, 1000, u32>)]
    pub runs: Option<u32>,
    /// samples of an earlier run to compare with
    #[arg(long, env)]
    pub base: Option<PathBuf>,
    /// make only the boots that the last run left out
    #[arg(long, env, value_parser = FalseyValueParser::new())]
    pub resume: bool,
    /// Which kernels.
    #[command(flatten)]
    pub kernels: Kernels,
    /// What Pantala is, and what runs on all of them.
    #[command(flatten)]
    pub system: System,
}

/// A count of commuting pairs that share lines.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "commute")]
pub struct Commute {
    /// one case in 32
    #[arg(long, env, value_parser = FalseyValueParser::new())]
    pub quick: bool,
    /// CALL or CALL:CALL, with commas between
    #[arg(long, env, default_value = "", value_parser = listed)]
    pub only: Words,
    /// one case in so many; if not said, 4, or 1 with ONLY
    #[arg(long, env, value_parser = whole::<1, 65_535, u16>)]
    pub every: Option<u16>,
    /// no run: the report once more, from the records that are there
    #[arg(long, env, value_parser = FalseyValueParser::new())]
    pub again: bool,
    /// Which kernels.
    #[command(flatten)]
    pub kernels: Kernels,
    /// What Pantala is, and what runs on all of them.
    #[command(flatten)]
    pub system: System,
}

/// A comparison of results.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "diff")]
pub struct Diff {
    /// minutes to play
    #[arg(long, env, default_value_t = 10, value_parser = whole::<0, { u64::MAX }, u64>)]
    pub minutes: u64,
    /// the first program; if not said, by the clock
    #[arg(long, env, value_parser = whole::<0, { u64::MAX }, u64>)]
    pub seed: Option<u64>,
    /// with SEED: that program alone, and of it these steps: all, or like 1,3-9
    #[arg(long, env)]
    pub keep: Option<String>,
    /// keep Linux's answers for the tests
    #[arg(long, env, value_parser = FalseyValueParser::new())]
    pub answers: bool,
    /// What is compared.
    #[command(flatten)]
    pub system: System,
    /// Which build of it.
    #[command(flatten)]
    pub build: Build,
}

/// Mutation tests.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "mutants")]
pub struct Mutants {
    /// points whose name contains this
    #[arg(long, env, default_value = "")]
    pub only: String,
    /// test programs whose name contains this; results are kept apart
    #[arg(long, env, default_value = "")]
    pub tests: String,
    /// how many at once; if not said, as many as there are processors
    #[arg(long, env, value_parser = whole::<1, 65_535, u16>)]
    pub jobs: Option<u16>,
    /// print the names of the points alone
    #[arg(long, env, value_parser = FalseyValueParser::new())]
    pub list: bool,
    /// On which reverse map; a run on another than the default is of that one's own files.
    #[command(flatten)]
    pub design: Design,
}
