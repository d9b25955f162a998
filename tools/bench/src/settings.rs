//! What `make bench` and `make rivals` boot and run, for what they are asked.

use crate::guest::Kind;
use crate::plan::TRANSFER_CPUS;
use crate::samples::BUILD;
use machine::options::Bench;

/// Which comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Of Pantala and Linux.
    Kernels,
    /// Of the reverse maps, too.
    Rivals,
    /// Of the two kernels by a whole job.
    Jobs,
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

/// The cases in which reverse maps have work, or might; but for `large-look`, of which `large-scan` is a quarter: it takes many minutes.
const RIVALS_CASES: [&str; 22] = [
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
    LEAF,
    "large-mapping",
    "large-scan",
    BUILD,
];

/// The cases in which entries of the reverse map run out.
const SCARCE_CASES: [&str; 4] = ["zfod-touch", "file-own-read", "fork", "exec-static"];

/// The cases in which extents come and go, and with them attachments to objects.
const HUB_CASES: [&str; 5] = ["fork", "vfork", "exec-static", "exec-dynamic", "mmap"];

/// The large case that several CPUs have a part in.
const LEAF: &str = "large-leaf";

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
            What::Kernels | What::Jobs => Vec::new(),
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

    /// Seconds that a boot may take.
    pub fn limit(&self) -> u64 {
        match self.what {
            What::Jobs => 7200,
            _ if self.quick => 600,
            _ => 1800,
        }
    }

    /// Numbers of CPUs at which throughput is measured.
    pub fn cpus(&self) -> &'static [u32] {
        match self.what {
            What::Rivals => &[],
            What::Jobs => &[1, 2, 4],
            What::Kernels if self.quick => &[1, 4],
            What::Kernels => &[1, 2, 4, 8],
        }
    }

    /// Numbers of CPUs at which lines moved are counted.
    pub fn transfer_cpus(&self) -> &'static [u32] {
        match self.what {
            What::Kernels | What::Jobs => &[TRANSFER_CPUS],
            What::Rivals => &[TRANSFER_CPUS, 2 * TRANSFER_CPUS],
        }
    }

    /// Processes of the chains whose cost must not grow with their number.
    pub fn scales(&self) -> &'static [u64] {
        let chains = self.only.is_empty() || self.only.iter().any(|case| case.starts_with("chain"));
        if self.quick || !chains || self.what != What::Kernels {
            &[]
        } else {
            &[1000, 10_000, 30_000]
        }
    }

    /// Whether a program is built, in boots of that kind.
    pub fn builds(&self) -> bool {
        let asked = |prefix: &String| BUILD.starts_with(&prefix[..]);
        self.what == What::Rivals && self.only.iter().any(asked)
    }

    /// Whether nothing else is measured.
    pub fn only_builds(&self) -> bool {
        self.builds() && self.only.iter().all(|case| case == BUILD)
    }

    /// The cases of a boot where entries of the reverse map are scarce.
    pub fn scarce(&self) -> Vec<&'static str> {
        self.of_rivals(&SCARCE_CASES)
    }

    /// The cases of a boot that tells the hubs' instructions from the others.
    pub fn hubs(&self) -> Vec<&'static str> {
        self.of_rivals(&HUB_CASES)
    }

    fn of_rivals(&self, cases: &[&'static str]) -> Vec<&'static str> {
        let asked = |case: &&str| self.only.iter().any(|prefix| case.starts_with(&prefix[..]));
        match self.what {
            What::Kernels | What::Jobs => Vec::new(),
            What::Rivals => cases.iter().copied().filter(asked).collect(),
        }
    }

    /// The benchmark's command in boots of `kind`. The null case is always part of it: timer ticks
    /// are told from it. The pause is for Linux, which drops what its console has not sent yet when a
    /// session's first process ends.
    pub fn command(&self, kind: Kind) -> String {
        if self.what == What::Jobs {
            let jobs = self.only.join(",");
            return format!(
                "vmbench --workers 1 --cases null,{jobs}; status=$?; sleep 1; exit $status"
            );
        }
        let scale = match kind {
            Kind::Scale(processes) => {
                return format!(
                    "vmbench --cases chain-flat --chain {processes}; status=$?; sleep 1; exit $status"
                );
            }
            Kind::Scarce | Kind::Hubs => {
                let cases = match kind {
                    Kind::Scarce => self.scarce(),
                    _ => self.hubs(),
                };
                return format!(
                    "vmbench --cases {}; status=$?; sleep 1; exit $status",
                    cases.join(",")
                );
            }
            Kind::Build => {
                return format!("vmbench --cases {BUILD}; status=$?; sleep 1; exit $status");
            }
            _ if self.quick => "--iters 60 --chain 40 --sharers 6",
            // One CPU: chain and sharers as in the targets.
            Kind::Count => "--iters 1000 --chain 500 --sharers 127",
            _ => "--iters 250 --chain 150 --sharers 16",
        };
        let others = self.only.iter().filter(|case| *case != BUILD);
        let together = |case: &String| kind == Kind::Transfers && case == LEAF;
        let (large, mut cases): (Vec<_>, Vec<_>) = others
            .cloned()
            .partition(|case| case.starts_with("large") && !together(case));
        // Last: a kernel may free for seconds what ten thousand processes leave, and that would count for other cases.
        let large = match large.is_empty() || kind != Kind::Count {
            true => String::new(),
            false => format!(
                " && vmbench --sharers {MAPPED_BY} --cases {}",
                large.join(",")
            ),
        };
        if !self.only.is_empty() && !cases.iter().any(|case| case == "null") {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn rivals(only: &[&str]) -> Settings {
        Settings {
            what: What::Rivals,
            quick: false,
            only: only.iter().map(|&case| case.to_owned()).collect(),
            kinds: Vec::new(),
            runs: 1,
            resume: false,
        }
    }

    #[test]
    fn each_case_runs_in_the_boots_that_it_is_for() {
        let all = rivals(&RIVALS_CASES);
        let runs = |kind, case: &str| all.command(kind).contains(case);
        assert!(all.builds() && !all.only_builds());
        assert!(runs(Kind::Build, BUILD) && !runs(Kind::Count, BUILD));
        assert!(runs(Kind::Count, "large-scan") && !runs(Kind::Transfers, "large-scan"));
        assert!(runs(Kind::Count, LEAF) && runs(Kind::Transfers, LEAF));
        assert!(!RIVALS_CASES.contains(&"large-look"));
        assert_eq!(all.hubs(), HUB_CASES);
    }

    #[test]
    fn what_is_asked_for_alone_brings_nothing_else() {
        assert!(rivals(&[BUILD]).only_builds() && !rivals(&["fork"]).builds());
        let look = rivals(&["large-look"]);
        assert!(look.command(Kind::Transfers).contains("--cases null;"));
        assert!(look.command(Kind::Count).contains("--cases large-look;"));
        assert!(look.scarce().is_empty() && look.hubs().is_empty());
    }
}
