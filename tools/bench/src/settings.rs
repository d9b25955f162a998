//! What `make bench` and `make rivals` boot and run, for what they are asked.

use crate::guest::Kind;
use crate::plan::TRANSFER_CPUS;
use machine::options::Bench;

/// Which comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Of Pantala and Linux.
    Kernels,
    /// Of the reverse maps, too.
    Rivals,
}

/// See the settings of the same names.
pub struct Settings {
    /// Which comparison.
    pub what: What,
    /// Few cases, few repetitions.
    pub quick: bool,
    /// Prefixes of cases; empty is all.
    pub only: Vec<String>,
    /// Kinds of boots, by prefix; empty is all.
    pub kinds: Vec<String>,
    /// Runs of each kind.
    pub runs: u32,
    /// Boots of the last run that ended well are not made again.
    pub resume: bool,
}

/// The cases of a quick run.
const QUICK_CASES: [&str; 8] = [
    "null",
    "zfod-touch",
    "file-one-read",
    "cow",
    "mmap",
    "fork",
    "exec-static",
    "chain-flat",
];

/// The cases in which reverse maps have work, or might; but for `large-look`, which takes many minutes.
const RIVALS_CASES: [&str; 19] = [
    "zfod",
    "file-own-read",
    "file-own-around",
    "file-one-read",
    "cow",
    "mmap",
    "mremap",
    "fork",
    "vfork",
    "exec-static",
    "exec-dynamic",
    "chain-flat",
    "region",
    "null",
    "large-fork",
    "large-shrink",
    "large-huge",
    "large-promote",
    "large-make",
];

/// The cases in which entries of the reverse map run out.
const SCARCE_CASES: [&str; 4] = ["zfod-touch", "file-own-read", "fork", "exec-static"];

/// Processes that map the page that is cut off.
const MAPPED_BY: u64 = 10_000;

impl Settings {
    /// With what is not said filled in.
    pub fn of(asked: &Bench, what: What) -> Settings {
        let quick = asked.quick;
        let only = match what {
            _ if !asked.only.is_empty() => asked.only.to_vec(),
            What::Rivals => RIVALS_CASES.map(str::to_owned).to_vec(),
            What::Kernels if quick => QUICK_CASES.map(str::to_owned).to_vec(),
            What::Kernels => Vec::new(),
        };
        Settings {
            what,
            quick,
            only,
            kinds: asked.kinds.to_vec(),
            runs: asked
                .runs
                .unwrap_or(if quick || what == What::Rivals { 1 } else { 3 }),
            resume: asked.resume,
        }
    }

    /// Numbers of CPUs at which throughput is measured.
    pub fn cpus(&self) -> &'static [u32] {
        match self.what {
            What::Rivals => &[],
            What::Kernels if self.quick => &[1, 4],
            What::Kernels => &[1, 2, 4, 8],
        }
    }

    /// Numbers of CPUs at which lines moved are counted.
    pub fn transfer_cpus(&self) -> &'static [u32] {
        match self.what {
            What::Kernels => &[TRANSFER_CPUS],
            What::Rivals => &[TRANSFER_CPUS, 2 * TRANSFER_CPUS],
        }
    }

    /// Processes of the chains whose cost must not grow with their number.
    pub fn scales(&self) -> &'static [u64] {
        let chains = self.only.is_empty() || self.only.iter().any(|case| case.starts_with("chain"));
        if self.quick || !chains || self.what == What::Rivals {
            &[]
        } else {
            &[1000, 10_000, 30_000]
        }
    }

    /// The cases of a boot where entries of the reverse map are scarce.
    pub fn scarce(&self) -> Vec<&'static str> {
        let asked = |case: &&str| self.only.iter().any(|prefix| case.starts_with(&prefix[..]));
        match self.what {
            What::Kernels => Vec::new(),
            What::Rivals => SCARCE_CASES.into_iter().filter(asked).collect(),
        }
    }

    /// The benchmark's command in boots of `kind`. The null case is always part of it: timer ticks
    /// are told from it. The pause is for Linux, which drops what its console has not sent yet when a
    /// session's first process ends.
    pub fn command(&self, kind: Kind) -> String {
        let scale = match kind {
            Kind::Scale(processes) => {
                return format!(
                    "vmbench --cases chain-flat --chain {processes}; status=$?; sleep 1; exit $status"
                );
            }
            Kind::Scarce => {
                return format!(
                    "vmbench --cases {}; status=$?; sleep 1; exit $status",
                    self.scarce().join(",")
                );
            }
            _ if self.quick => "--iters 60 --chain 40 --sharers 6",
            // One CPU: chain and sharers as in the targets.
            Kind::Count => "--iters 1000 --chain 500 --sharers 127",
            _ => "--iters 250 --chain 150 --sharers 16",
        };
        let (large, mut cases): (Vec<_>, Vec<_>) = self
            .only
            .iter()
            .cloned()
            .partition(|case| case.starts_with("large"));
        // Last: a kernel may free for seconds what ten thousand processes leave, and that would count for other cases.
        let large = match large.is_empty() || kind != Kind::Count {
            true => String::new(),
            false => format!(
                " && vmbench --sharers {MAPPED_BY} --cases {}",
                large.join(",")
            ),
        };
        if !cases.is_empty() && !cases.iter().any(|case| case == "null") {
            cases.push("null".into());
        }
        let cases = if cases.is_empty() {
            String::new()
        } else {
            format!(" --cases {}", cases.join(","))
        };
        format!("vmbench {scale}{cases}{large}; status=$?; sleep 1; exit $status")
    }
}
