//! What Pantala has set itself for each case: no more than so much.

use crate::samples::{JOB, Metric};

struct Target {
    case: &'static str,
    instructions: f64,
    moves: f64,
}

const fn target(case: &'static str, instructions: f64, moves: f64) -> Target {
    Target {
        case,
        instructions,
        moves,
    }
}

/// Nothing is promised.
const NONE: f64 = f64::INFINITY;

const TARGETS: &[Target] = &[
    target("null", 100.0, NONE),
    target("zfod-touch", 700.0, 0.5),
    target("zfod-map", 900.0, 0.5),
    target("file-own-read", 600.0, 0.2),
    target("file-one-read", 600.0, 0.5),
    target("file-own-around", 150.0, 0.2),
    target("file-one-around", 150.0, 0.5),
    target("file-own-write", 650.0, 0.3),
    target("file-one-write", 650.0, NONE),
    target("cow", 900.0, 0.5),
    target("cow-one-parent", 900.0, 0.5),
    target("mmap", 2000.0, NONE),
    target("fork", 45_000.0, 60.0),
    target("fork-16m", 50_000.0, NONE),
    target("vfork", 15_000.0, NONE),
    target("exec-tiny", 65_000.0, NONE),
    target("exec-static", 140_000.0, 60.0),
    target("exec-dynamic", 270_000.0, 200.0),
    target("chain-flat-create", 40_000.0, 60.0),
    target("chain-flat-pass", 6000.0, 15.0),
    target("chain-flat-kill", 25_000.0, 50.0),
    target("chain-nested-create", 45_000.0, NONE),
    target("chain-nested-kill", 28_000.0, NONE),
];

/// Bytes for a process: of a pipe chain, and of a further sharer of 64 MiB.
const BYTES: [(&str, f64); 3] = [
    ("chain-flat-memory", 31_000.0),
    ("chain-nested-memory", 31_000.0),
    ("region-memory", 8192.0),
];

/// The most that `metric` of `case` may be; none where nothing is promised.
pub fn must(case: &str, metric: Metric) -> Option<f64> {
    if metric == Metric::Bytes {
        return BYTES
            .iter()
            .find(|(name, _)| *name == case)
            .map(|(_, bytes)| *bytes);
    }
    let target = TARGETS.iter().find(|target| target.case == case)?;
    let most = match metric {
        Metric::Instructions => target.instructions,
        Metric::Moves => target.moves,
        _ => NONE,
    };
    most.is_finite().then_some(most)
}

/// Jobs whose kernel instructions are those of a build.
const BUILDS: [&str; 3] = ["job-lua", "job-configure", "job-cargo"];

/// Those whose kernel instructions are those of servers and messages.
const SERVERS: [&str; 5] = [
    "job-hackbench",
    "job-redis",
    "job-nginx",
    "job-selects",
    "job-tpcb",
];

/// The most that `metric` of `case` may be as a share of Linux's; none where nothing is promised.
pub fn share(case: &str, metric: Metric) -> Option<f64> {
    match metric {
        Metric::Elapsed if case.starts_with(JOB) => Some(1.03),
        Metric::Instructions if BUILDS.contains(&case) => Some(0.27),
        Metric::Instructions if SERVERS.contains(&case) => Some(0.5),
        _ => None,
    }
}
