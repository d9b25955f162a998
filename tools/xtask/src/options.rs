//! What the command line and the environment ask for.
//!
//! A setting may be given as a flag (`--cpus 8`) or, as `make` hands them on, as a variable (`CPUS=8`); the
//! flag wins.

use anyhow::{Context, Result, bail, ensure};
use std::env;
use std::path::PathBuf;

/// Shown by `help` and after a mistake.
pub const USAGE: &str = "\
usage: cargo xtask JOB [SETTINGS]        (or: make JOB NAME=VALUE...)

jobs:
  kernel      build the kernel: build/pantala
  image       make an initramfs from Debian packages: build/initramfs.cpio
  run         boot, run CMD or the tour, power off; the status is that of CMD
  shell       boot to an interactive shell (Ctrl-A X leaves, Ctrl-A C is QEMU's monitor)
  test        host tests, boot tests, and a comparison with Linux's answers
  host-test   host tests alone
  boot-test   boot tests alone; names as further arguments choose among them
  soak        storms for MINUTES (60) of the guest's clock on 4 CPUs, release and debug; and vmbench at full size on 8
              CPUs, five times; names as further arguments choose among them
  bench       compare with Linux: table, build/bench/report.html and samples (QUICK=1, ONLY=CASES,
              BASE=SAMPLES, RUNS=N, RESUME=1: only what the last run left out, SYSTEMS=pantala or linux,
              KINDS=count,transfers,rate,scale, LINUX=6.1 or 6.12, THP=never or always)
  commute     which pairs of commuting operations touch common kernel lines, here and in Linux: table,
              build/commute/report.html (QUICK=1, ONLY=CALLS or CALL:CALL,
              EVERY=N: one case in N, 4 if not said; SYSTEMS=pantala or linux; AGAIN=1: no run)
  diff        random programs of system calls on Linux and here, results compared (MINUTES=10, SEED=N;
              SEED=N KEEP=STEPS: one program; ANSWERS=1: keep Linux's answers for the tests)
  diff-test   the comparison with Linux's answers alone
  pcm         local and remote memory accesses by node while CMD or a benchmark runs (CPUS=4 NODES=2)
  moves       what moves between CPUs meanwhile: by whom, of which type, which field
  miri        tests of ksync and vm under an interpreter that checks the language's rules
  mutants     mutation tests of ksync and vm
  clean       remove what was built

settings (flag, variable, default):
  --cpus N          CPUS      2        CPUs of the machine
  --mem SIZE        MEM       1G       its memory
  --nodes N         NODES     1        NUMA nodes, CPUs and memory split evenly
  --cmd COMMAND     CMD       the tour shell command that init runs
  --packages LIST   PACKAGES  see doc  Debian packages in the image, besides the default ones
  --cpu MODEL       CPU       max      QEMU's CPU model
  --machine TYPE    MACHINE   q35      pc or q35
  --append OPTIONS  APPEND             further options for the kernel's command line
  --kernel FILE     KERNEL    built    another kernel, such as a Linux one, to compare with
  --accel KIND      ACCEL     probed   kvm or tcg
  --timeout SECS    TIMEOUT   none     end the machine after so long
  --debug           DEBUG=1            kernel with assertions and lock-rank checks
  --gzip            GZIP=1             compress the initramfs";

/// The number in variable `name`, if it is set and not empty.
///
/// # Errors
/// It is no number.
pub fn number(name: &str) -> Result<Option<u64>> {
    let text = env::var(name).ok().filter(|text| !text.is_empty());
    text.map(|text| text.parse().with_context(|| format!("{name}={text}")))
        .transpose()
}

/// One job of this program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Job {
    /// Print the usage.
    Help,
    /// Build the kernel.
    Kernel,
    /// Build the programs of the image.
    User,
    /// Make the initramfs.
    Image,
    /// Boot and run a command.
    Run,
    /// Boot to a shell.
    Shell,
    /// All tests.
    Test,
    /// Tests that need no machine.
    HostTest,
    /// Tests in QEMU.
    BootTest,
    /// Long tests in QEMU.
    Soak,
    /// Measure beside Linux.
    Bench,
    /// Count the commuting pairs that share no line, beside Linux.
    Commute,
    /// Compare with Linux.
    Diff,
    /// Compare with Linux's answers.
    DiffTest,
    /// Count accesses to local and remote memory.
    Pcm,
    /// Name what moves between CPUs.
    Moves,
    /// Tests under Miri.
    Miri,
    /// Mutation tests.
    Mutants,
    /// Remove what was built.
    Clean,
}

/// Which build of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// Optimised, without assertions.
    Release,
    /// With assertions and lock-rank checks.
    Debug,
}

/// The machine to boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// CPUs.
    pub cpus: u32,
    /// Memory in MiB.
    pub mem_mib: u64,
    /// NUMA nodes; divides `cpus` or is at most that.
    pub nodes: u32,
    /// QEMU's CPU model.
    pub cpu: String,
    /// QEMU's machine type.
    pub machine: String,
    /// Accelerator; none means the probe decides.
    pub accel: Option<String>,
}

impl Default for Machine {
    fn default() -> Self {
        Machine {
            cpus: 2,
            mem_mib: 1024,
            nodes: 1,
            cpu: "max".into(),
            machine: "q35".into(),
            accel: None,
        }
    }
}

/// Everything asked for.
#[derive(Clone, Debug)]
pub struct Options {
    /// What to do.
    pub job: Job,
    /// On which machine.
    pub machine: Machine,
    /// With which kernel.
    pub profile: Profile,
    /// A kernel to boot instead of ours.
    pub kernel: Option<PathBuf>,
    /// The command that init runs; none is the tour.
    pub cmd: Option<String>,
    /// Packages besides the default ones.
    pub packages: Vec<String>,
    /// Further options for the kernel.
    pub append: String,
    /// Compress the initramfs.
    pub gzip: bool,
    /// Seconds after which the machine is ended.
    pub timeout: Option<u64>,
    /// Names of boot tests; empty is all.
    pub names: Vec<String>,
}

impl Options {
    /// Reads environment and command line.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn parse() -> Result<Options> {
        let mut options = Options {
            job: Job::Help,
            machine: Machine::default(),
            profile: Profile::Release,
            kernel: None,
            cmd: None,
            packages: Vec::new(),
            append: String::new(),
            gzip: false,
            timeout: None,
            names: Vec::new(),
        };
        for name in [
            "cpus", "mem", "nodes", "cmd", "packages", "cpu", "machine", "append", "kernel",
            "accel", "timeout",
        ] {
            let variable = name.to_uppercase();
            if let Some(value) = env::var(&variable).ok().filter(|value| !value.is_empty()) {
                options
                    .set(name, &value)
                    .with_context(|| format!("{variable}={value}"))?;
            }
        }
        let set = |variable: &str| {
            env::var(variable).is_ok_and(|value| !matches!(value.as_str(), "" | "0"))
        };
        options.gzip = set("GZIP");
        options.profile = if set("DEBUG") {
            Profile::Debug
        } else {
            Profile::Release
        };
        options.arguments()?;
        options.check()?;
        Ok(options)
    }

    fn arguments(&mut self) -> Result<()> {
        let mut parser = lexopt::Parser::from_env();
        let mut job = None;
        while let Some(argument) = parser.next()? {
            match argument {
                lexopt::Arg::Long("debug") => self.profile = Profile::Debug,
                lexopt::Arg::Long("gzip") => self.gzip = true,
                lexopt::Arg::Long("help") | lexopt::Arg::Short('h') => job = Some(Job::Help),
                lexopt::Arg::Long(name) => {
                    let name = name.to_owned();
                    let value = parser.value()?.to_string_lossy().into_owned();
                    self.set(&name, &value)
                        .with_context(|| format!("--{name} {value}"))?;
                }
                lexopt::Arg::Value(word) if job.is_none() => {
                    job = Some(job_named(&word.to_string_lossy())?)
                }
                lexopt::Arg::Value(word) => self.names.push(word.to_string_lossy().into_owned()),
                other => return Err(other.unexpected().into()),
            }
        }
        self.job = job.unwrap_or(Job::Help);
        ensure!(
            self.names.is_empty() || matches!(self.job, Job::BootTest | Job::Soak),
            "unexpected argument {}",
            self.names[0]
        );
        Ok(())
    }

    fn set(&mut self, name: &str, value: &str) -> Result<()> {
        match name {
            "cpus" => self.machine.cpus = value.parse()?,
            "mem" => self.machine.mem_mib = mebibytes(value)?,
            "nodes" => self.machine.nodes = value.parse()?,
            "cpu" => self.machine.cpu = value.into(),
            "machine" => self.machine.machine = value.into(),
            "accel" => self.machine.accel = Some(value.into()),
            "kernel" => self.kernel = Some(value.into()),
            "cmd" => self.cmd = Some(value.into()),
            "packages" => self.packages = value.split_whitespace().map(str::to_owned).collect(),
            "append" => self.append = value.into(),
            "timeout" => self.timeout = Some(value.parse()?),
            _ => bail!("no such setting"),
        }
        Ok(())
    }

    fn check(&self) -> Result<()> {
        let machine = &self.machine;
        ensure!((1..=256).contains(&machine.cpus), "CPUS must be 1 to 256");
        ensure!(
            (1..=machine.cpus).contains(&machine.nodes),
            "NODES must be 1 to CPUS"
        );
        ensure!(
            matches!(machine.machine.as_str(), "pc" | "q35"),
            "MACHINE must be pc or q35"
        );
        let accel = machine.accel.as_deref();
        ensure!(
            matches!(accel, None | Some("kvm" | "tcg")),
            "ACCEL must be kvm or tcg"
        );
        ensure!(
            machine.mem_mib / u64::from(machine.nodes) >= 32,
            "at least 32M of memory for each node"
        );
        Ok(())
    }
}

fn job_named(word: &str) -> Result<Job> {
    Ok(match word {
        "help" => Job::Help,
        "build" | "kernel" => Job::Kernel,
        "user" => Job::User,
        "image" => Job::Image,
        "run" => Job::Run,
        "shell" => Job::Shell,
        "test" => Job::Test,
        "host-test" => Job::HostTest,
        "boot-test" => Job::BootTest,
        "soak" => Job::Soak,
        "bench" => Job::Bench,
        "commute" => Job::Commute,
        "diff" => Job::Diff,
        "diff-test" => Job::DiffTest,
        "pcm" => Job::Pcm,
        "moves" => Job::Moves,
        "miri" => Job::Miri,
        "mutants" => Job::Mutants,
        "clean" => Job::Clean,
        _ => bail!("no job is named {word}"),
    })
}

/// `512M`, `4G` or a plain number of MiB.
///
/// # Errors
/// Not such a size.
pub fn mebibytes(text: &str) -> Result<u64> {
    let (digits, factor) = match text.chars().last().context("an empty size")? {
        'M' | 'm' => (&text[..text.len() - 1], 1),
        'G' | 'g' => (&text[..text.len() - 1], 1024),
        _ => (text, 1),
    };
    let number: u64 = digits
        .parse()
        .with_context(|| format!("{text} is not a size"))?;
    number.checked_mul(factor).context("too large")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_in_mebibytes_unless_they_say_otherwise() {
        assert_eq!(mebibytes("512").unwrap(), 512);
        assert_eq!(mebibytes("512M").unwrap(), 512);
        assert_eq!(mebibytes("4G").unwrap(), 4096);
        assert!(mebibytes("").is_err());
        assert!(mebibytes("G").is_err());
        assert!(mebibytes("99999999999999999999G").is_err());
    }
}
