//! What `make bench` boots and runs, for what it is asked.

use crate::guest::Kind;
use machine::options::Bench;

/// See the settings of the same names.
pub struct Settings {
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

impl Settings {
    /// With what is not said filled in.
    pub fn of(asked: &Bench) -> Settings {
        let quick = asked.quick;
        let only = if quick && asked.only.is_empty() {
            QUICK_CASES.map(str::to_owned).to_vec()
        } else {
            asked.only.to_vec()
        };
        Settings {
            quick,
            only,
            kinds: asked.kinds.to_vec(),
            runs: asked.runs.unwrap_or(if quick { 1 } else { 3 }),
            resume: asked.resume,
        }
    }

    /// Numbers of CPUs at which throughput is measured.
    pub fn cpus(&self) -> &'static [u32] {
        if self.quick { &[1, 4] } else { &[1, 2, 4, 8] }
    }

    /// Processes of the chains whose cost must not grow with their number.
    pub fn scales(&self) -> &'static [u64] {
        let chains = self.only.is_empty() || self.only.iter().any(|case| case.starts_with("chain"));
        if self.quick || !chains {
            &[]
        } else {
            &[1000, 10_000, 30_000]
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
            _ if self.quick => "--iters 60 --chain 40 --sharers 6",
            // One CPU: chain and sharers as in the targets.
            Kind::Count => "--iters 1000 --chain 500 --sharers 127",
            _ => "--iters 250 --chain 150 --sharers 16",
        };
        let mut cases = self.only.clone();
        if !cases.is_empty() && !cases.iter().any(|case| case == "null") {
            cases.push("null".into());
        }
        let cases = if cases.is_empty() {
            String::new()
        } else {
            format!(" --cases {}", cases.join(","))
        };
        format!("vmbench {scale}{cases}; status=$?; sleep 1; exit $status")
    }
}
