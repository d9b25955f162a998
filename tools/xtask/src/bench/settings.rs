//! What `make bench` is asked for, by variables: QUICK, ONLY, KINDS, SYSTEMS, BASE, LINUX, THP, RUNS, RESUME.

use super::guest::Kind;
use anyhow::{Context, Result, ensure};
use std::env;
use std::path::PathBuf;

/// See the names of the variables.
pub struct Settings {
    /// Few cases, few repetitions.
    pub quick: bool,
    /// Prefixes of cases; empty is all (or the quick choice).
    pub only: Vec<String>,
    /// Kinds of boots, by prefix: count, transfers, rate, scale; empty is all.
    pub kinds: Vec<String>,
    /// `pantala`, `linux`; empty is both.
    pub systems: Vec<String>,
    /// Samples of an earlier run to compare with.
    pub base: Option<PathBuf>,
    /// Linux's version, `6.1` or `6.12`.
    pub linux: String,
    /// Linux's transparent huge pages: `never` or `always`.
    pub thp: String,
    /// Runs of each kind.
    pub runs: u32,
    /// Boots of the last run that ended well are not made again.
    pub resume: bool,
}

/// Keys of the kernels.
const SYSTEMS: [&str; 2] = ["pantala", "linux"];
/// What kinds of boots are chosen by.
const KINDS: [&str; 4] = ["count", "transfers", "rate", "scale"];

/// The cases of a quick run.
const QUICK_CASES: &str = "null,zfod-touch,file-one-read,cow,mmap,fork,exec-static,chain-flat";

impl Settings {
    /// Reads the variables.
    ///
    /// # Errors
    /// One of them makes no sense.
    pub fn from_environment() -> Result<Settings> {
        let text = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
        let set = |name: &str| text(name).is_some_and(|value| value != "0");
        let quick = set("QUICK");
        let only = text("ONLY").or(quick.then(|| QUICK_CASES.into()));
        let runs = text("RUNS")
            .map(|runs| runs.parse())
            .transpose()
            .context("RUNS")?;
        let thp = text("THP").unwrap_or_else(|| "never".into());
        ensure!(
            matches!(&thp[..], "never" | "always" | "madvise"),
            "THP must be never, madvise or always"
        );
        let list = |text: Option<String>| -> Vec<String> {
            let words = text.iter().flat_map(|list| list.split(','));
            words.map(str::to_owned).collect()
        };
        let (kinds, systems) = (list(text("KINDS")), list(text("SYSTEMS")));
        let known = |kind: &String| {
            KINDS
                .iter()
                .any(|known| known.starts_with(&kind[..]) || kind.starts_with(known))
        };
        ensure!(
            kinds.iter().all(known),
            "KINDS are of {}; SYSTEMS chooses kernels",
            KINDS.join(",")
        );
        let known = |system: &String| SYSTEMS.contains(&&system[..]);
        ensure!(
            systems.iter().all(known),
            "SYSTEMS are of {}",
            SYSTEMS.join(",")
        );
        Ok(Settings {
            quick,
            kinds,
            systems,
            resume: set("RESUME"),
            only: list(only),
            base: text("BASE").map(PathBuf::from),
            linux: text("LINUX").unwrap_or_else(|| "6.1".into()),
            thp,
            runs: runs.unwrap_or(if quick { 1 } else { 3 }).max(1),
        })
    }

    /// Whether boots of `system` are asked for.
    pub fn wants(&self, system: &str) -> bool {
        self.systems.is_empty() || self.systems.iter().any(|wanted| wanted == system)
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
