//! What most jobs have in common: the machine, the kernel and the image.

use super::values::{Words, mebibytes, spaced, whole};
use anyhow::{Result, ensure};
use clap::builder::{FalseyValueParser, PossibleValuesParser};
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// Which build of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// Optimised, without assertions.
    Release,
    /// With assertions and lock-rank checks.
    Debug,
}

/// What executes a guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Accel {
    /// The processor.
    Kvm,
    /// An emulator with a thread for each CPU.
    Tcg,
    /// An emulator with one thread for all CPUs.
    #[value(skip)]
    TcgSingle,
    /// The same, and the clock counts instructions.
    #[value(skip)]
    Icount,
}

/// The machine to boot.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
#[command(next_help_heading = "machine")]
pub struct Machine {
    /// CPUs
    #[arg(long, env, default_value_t = Machine::default().cpus, value_parser = whole::<1, 256, u32>)]
    pub cpus: u32,
    /// memory: 512M, 4G or a number of MiB
    #[arg(long = "mem", env = "MEM", value_name = "MEM", default_value = "1G", value_parser = mebibytes)]
    pub mem_mib: u64,
    /// NUMA nodes, CPUs and memory split evenly
    #[arg(long, env, default_value_t = Machine::default().nodes, value_parser = whole::<1, 256, u32>)]
    pub nodes: u32,
    /// QEMU's CPU model
    #[arg(long, env, default_value_t = Machine::default().cpu)]
    pub cpu: String,
    /// QEMU's machine type: pc or q35
    #[arg(long, env, default_value_t = Machine::default().machine, value_parser = PossibleValuesParser::new(["pc", "q35"]))]
    pub machine: String,
    /// kvm or tcg; if not said, KVM where it works
    #[arg(long, env)]
    pub accel: Option<Accel>,
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

impl Machine {
    /// Least memory of a node, in MiB.
    const LEAST: u64 = 32;

    /// # Errors
    /// Settings that are right one by one do not fit together; says which would.
    pub(super) fn check(&self) -> Result<()> {
        let nodes = self.nodes;
        ensure!(
            nodes <= self.cpus,
            "NODES={nodes} needs CPUS={nodes} or more: a node has a CPU"
        );
        let least = Self::LEAST * u64::from(nodes);
        ensure!(
            self.mem_mib >= least,
            "NODES={nodes} needs MEM={least}M or more: a node has {}M",
            Self::LEAST
        );
        Ok(())
    }
}

/// How the kernel is built.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "the kernel's build")]
pub struct Build {
    /// with assertions and lock-rank checks
    #[arg(long, env, value_parser = FalseyValueParser::new())]
    pub debug: bool,
}

impl Build {
    /// Which build that is.
    pub fn profile(&self) -> Profile {
        if self.debug {
            Profile::Debug
        } else {
            Profile::Release
        }
    }
}

/// A reverse map: from a page to the entries that map it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Rmap {
    /// Computed from what is mapped.
    #[default]
    Backings,
    /// A list for each page, under a mutex of one byte.
    PvObm,
    /// A list for each page, under locks that are hashed by frame.
    PvStock,
}

impl Rmap {
    /// The feature of the kernel that chooses it; also its name.
    pub fn feature(self) -> Option<&'static str> {
        match self {
            Rmap::Backings => None,
            Rmap::PvObm => Some("pv-obm"),
            Rmap::PvStock => Some("pv-stock"),
        }
    }

    /// The reverse map of a name.
    pub fn named(name: &str) -> Option<Rmap> {
        Rmap::from_str(name, false).ok()
    }
}

/// Which of the designs the kernel is built with.
#[derive(Args, Clone, Copy, Debug, Default)]
#[command(next_help_heading = "the kernel's build")]
pub struct Design {
    /// the reverse map: backings, or pv-obm or pv-stock as FreeBSD has them
    #[arg(long, env, value_enum, default_value_t, hide_possible_values = true)]
    pub rmap: Rmap,
}

/// A build of the kernel.
#[derive(Args, Clone, Debug, Default)]
pub struct Sources {
    /// How it is built.
    #[command(flatten)]
    pub build: Build,
    /// With which designs.
    #[command(flatten)]
    pub design: Design,
}

/// The kernel to boot.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "kernel")]
pub struct Kernel {
    /// another kernel's file, such as a Linux one, to compare with
    #[arg(long, env)]
    pub kernel: Option<PathBuf>,
    /// further options for its command line
    #[arg(long, env, default_value = "", allow_hyphen_values = true)]
    pub append: String,
    /// With which designs it is built, if it is not another one.
    #[command(flatten)]
    pub design: Design,
}

/// The initramfs.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "image")]
pub struct Image {
    /// Debian packages besides the default ones, with spaces between
    #[arg(long, env, default_value = "", value_parser = spaced)]
    pub packages: Words,
    /// a directory whose contents are put into the image's root, too
    #[arg(long, env)]
    pub files: Option<PathBuf>,
    /// a directory with a whole system, say from debootstrap, which is the image's root in place of packages
    #[arg(long, env, conflicts_with = "packages")]
    pub root: Option<PathBuf>,
    /// compressed
    #[arg(long, env, value_parser = FalseyValueParser::new())]
    pub gzip: bool,
}
