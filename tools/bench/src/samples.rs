//! What was measured, one value at a time: the raw data of a report, kept as JSON lines.

use crate::guest::{Boot, Kind, Work};
use crate::names::Line;
use crate::symbols::TIMER;
use anyhow::{Context, Result};
use coherence::record::{Counts, Record};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs;
use std::path::Path;

/// What a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Kernel instructions an operation, iterations of string instructions left out.
    Instructions,
    /// Instructions of programs.
    UserInstructions,
    /// Lines that kernel instructions other than clears and copies moved, an operation, timer ticks subtracted.
    Moves,
    /// The same with ticks.
    MovesGross,
    /// Those of `MovesGross` that are false sharing.
    FalseSharing,
    /// Lines moved by the kernel's clears and copies.
    BulkMoves,
    /// Bytes that the kernel clears, an operation: those that `rep stos` stores.
    Cleared,
    /// Interrupts between CPUs, an operation.
    Ipis,
    /// Timer interrupts, an operation.
    Ticks,
    /// Operations a second.
    Rate,
    /// Seconds of the host's clock that the work took.
    Elapsed,
    /// Processor time that the machine took of the host for the work, in seconds.
    HostSeconds,
    /// Kernel instructions of the hubs, an operation.
    HubInstructions,
    /// Bytes a process.
    Bytes,
    /// Bytes of tables and entries for each mapped page.
    MappingBytes,
}

/// One value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// `pantala`, `linux`, or the name of another reverse map.
    pub system: String,
    /// Case and phase.
    pub case: String,
    /// What it is.
    pub metric: Metric,
    /// CPUs of the machine.
    pub cpus: u32,
    /// Which run, from 0.
    pub run: u32,
    /// The value.
    pub value: f64,
}

impl Sample {
    /// The boot that it is from, named as [`super::plan`] does.
    pub fn boot(&self) -> String {
        let scale = self.case.rsplit_once('-').map(|(_, processes)| processes);
        let scale = scale.and_then(|processes| processes.parse().ok());
        let kind = match (self.metric, scale) {
            (Metric::Instructions | Metric::Cleared, _) if self.case.ends_with(SCARCE) => {
                Kind::Scarce
            }
            (Metric::Instructions | Metric::Cleared, _) if self.case == BUILD => Kind::Build,
            (Metric::Rate | Metric::Elapsed | Metric::HostSeconds, _) => Kind::Rate,
            (Metric::UserInstructions, _) => Kind::Count,
            (Metric::MappingBytes, _) => Kind::Count,
            (Metric::HubInstructions, _) => Kind::Hubs,
            (Metric::Instructions | Metric::Bytes | Metric::Cleared, None) => Kind::Count,
            (Metric::Instructions | Metric::Bytes | Metric::Cleared, Some(processes)) => {
                Kind::Scale(processes)
            }
            _ => Kind::Transfers,
        };
        boot_name(&self.system, kind, self.cpus, self.run)
    }
}

/// What the boot of one run of a kind is called.
pub fn boot_name(system: &str, kind: Kind, cpus: u32, run: u32) -> String {
    format!("{system} {} {cpus} {run}", kind.name())
}

/// The case that builds a program.
pub const BUILD: &str = "large-make";

/// How the names of cases begin that are whole jobs.
pub const JOB: &str = "job-";

/// How the names of cases end that ran where entries were scarce.
const SCARCE: &str = "-scarce";

/// What the plugin says of a phase: counts, and nanoseconds of the guest's clock.
type Phase<'a> = (&'a Counts, u64);

/// The samples of a boot.
pub fn of(boot: &Boot, system: &str, kind: Kind, cpus: u32, run: u32) -> Vec<Sample> {
    let scale = match kind {
        Kind::Scale(processes) => format!("-{processes}"),
        Kind::Scarce => SCARCE.into(),
        _ => String::new(),
    };
    if kind == Kind::Hubs {
        // The same instructions as those of `Count`, which are counted there.
        return Vec::new();
    }
    let mut phases: HashMap<(u16, u8), Phase> = HashMap::new();
    for record in &boot.records {
        if let Record::Phase {
            case,
            phase,
            counts,
            ns,
            ..
        } = record
        {
            phases.insert((*case, *phase), (counts, *ns));
        }
    }
    let phase = |line: &Line| phases.get(&line.key?).copied();
    let null = boot.lines.iter().find(|line| line.name == "null");
    let tick = null.and_then(phase);
    let tick = tick.map_or(Tick::default(), |(counts, ns)| Tick::of(counts, ns));
    let mut samples = Vec::new();
    for line in &boot.lines {
        let values = match line.name.starts_with(JOB) {
            true => of_job(boot.work.as_ref(), phase(line), kind, &tick),
            false => values(boot.clock, line, phase(line), kind, &tick),
        };
        for (metric, value) in values {
            samples.push(Sample {
                system: system.into(),
                case: format!("{}{scale}", line.name),
                metric,
                cpus,
                run,
                value,
            });
        }
    }
    samples
}

/// What a boot of `kind` measures in one case.
fn values(
    clock: f64,
    line: &Line,
    phase: Option<Phase>,
    kind: Kind,
    tick: &Tick,
) -> Vec<(Metric, f64)> {
    if let Some(bytes) = line.bytes {
        // Where the clock counts instructions, the same sleepers have settled in every run.
        let settled = matches!(kind, Kind::Count | Kind::Scale(_));
        let metric = match line.of_mapping {
            true => Metric::MappingBytes,
            false => Metric::Bytes,
        };
        return Vec::from_iter(settled.then_some((metric, bytes)));
    }
    if kind == Kind::Rate {
        // By the host's clock: a guest's may have been set wrong when it booted on a busy host.
        return vec![(Metric::Rate, line.rate * clock)];
    }
    let Some((counts, ns)) = phase else {
        return Vec::new();
    };
    let each = |n: f64| n / line.ops.max(1.0);
    if kind != Kind::Transfers {
        return vec![
            (Metric::Instructions, each(counts.kernel as f64)),
            (Metric::Cleared, each(counts.filled as f64)),
        ];
    }
    let gross = counts.kernel_moves as f64;
    let (ticks, ipis) = interrupts(counts);
    let mut values = vec![
        (Metric::MovesGross, each(gross)),
        (Metric::FalseSharing, each(counts.kernel_false as f64)),
        (Metric::BulkMoves, each(counts.bulk_moves as f64)),
        (Metric::Ticks, each(ticks)),
        (Metric::Ipis, each(ipis)),
    ];
    if line.name != "null" {
        let moves = (gross - tick.moves(ticks, ns)).max(0.0);
        values.push((Metric::Moves, each(moves)));
    }
    values
}

/// What a boot of `kind` measures of a job.
fn of_job(
    work: Option<&Work>,
    phase: Option<Phase>,
    kind: Kind,
    tick: &Tick,
) -> Vec<(Metric, f64)> {
    match (kind, work, phase) {
        (Kind::Rate, Some(work), _) => vec![
            (Metric::Elapsed, work.elapsed),
            (Metric::HostSeconds, work.processor),
        ],
        (Kind::Count, _, Some((counts, _))) => vec![
            (Metric::Instructions, counts.kernel as f64),
            (Metric::UserInstructions, counts.user as f64),
        ],
        (Kind::Transfers, _, Some((counts, ns))) => {
            let ticks = tick.moves(interrupts(counts).0, ns);
            let moves = (counts.kernel_moves as f64 - ticks).max(0.0);
            vec![(Metric::Moves, moves)]
        }
        _ => Vec::new(),
    }
}

fn interrupts(counts: &Counts) -> (f64, f64) {
    let all: u64 = counts.watched.iter().sum();
    let ticks = counts.watched.get(TIMER).copied().unwrap_or(0);
    (ticks as f64, (all - ticks) as f64)
}

/// What a timer tick moves: known from the null case, whose system calls move nothing themselves.
#[derive(Default)]
struct Tick {
    each: f64,
    per_ns: f64,
}

impl Tick {
    fn of(null: &Counts, ns: u64) -> Tick {
        let (ticks, _) = interrupts(null);
        let moves = null.kernel_moves as f64;
        Tick {
            each: if ticks > 0.0 { moves / ticks } else { 0.0 },
            per_ns: if ticks > 0.0 {
                0.0
            } else {
                moves / (ns.max(1) as f64)
            },
        }
    }

    fn moves(&self, ticks: f64, ns: u64) -> f64 {
        self.each * ticks + self.per_ns * ns as f64
    }
}

/// Writes samples, one a line.
///
/// # Errors
/// The file cannot be written.
pub fn write(file: &Path, samples: &[Sample]) -> Result<()> {
    let lines: Result<Vec<String>, _> = samples
        .iter()
        .map(|sample| Ok(serde_json::to_string(sample)? + "\n"))
        .collect();
    let lines = lines.map_err(|error: serde_json::Error| error)?;
    fs::write(file, lines.concat()).with_context(|| format!("cannot write {}", file.display()))
}

/// Reads what [`write()`] wrote.
///
/// # Errors
/// The file cannot be read or is none.
pub fn read(file: &Path) -> Result<Vec<Sample>> {
    let text =
        fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    text.lines()
        .map(|line| serde_json::from_str(line).with_context(|| format!("{line} is no sample")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_tells_the_boot_that_it_is_from() {
        let boot = |case: &str, metric, cpus| {
            let sample = Sample {
                system: "linux".into(),
                case: case.into(),
                metric,
                cpus,
                run: 2,
                value: 1.0,
            };
            sample.boot()
        };
        assert_eq!(boot("null", Metric::Rate, 8), "linux rate 8 2");
        assert_eq!(boot("fork-16m", Metric::Instructions, 1), "linux count 1 2");
        assert_eq!(
            boot("chain-flat-kill-1000", Metric::Instructions, 1),
            "linux scale1000 1 2"
        );
        assert_eq!(
            boot("chain-flat-memory-1000", Metric::Bytes, 1),
            "linux scale1000 1 2"
        );
        assert_eq!(boot("cow", Metric::Ipis, 4), "linux transfers 4 2");
        assert_eq!(boot("cow", Metric::Cleared, 1), "linux count 1 2");
        assert_eq!(boot(BUILD, Metric::Instructions, 1), "linux build 1 2");
        assert_eq!(boot("fork", Metric::HubInstructions, 1), "linux hubs 1 2");
        assert_eq!(boot("job-lua", Metric::Elapsed, 2), "linux rate 2 2");
        assert_eq!(
            boot("job-lua", Metric::UserInstructions, 1),
            "linux count 1 2"
        );
        let scarce = boot("cow-scarce", Metric::Instructions, 1);
        assert_eq!(scarce, "linux scarce 1 2");
    }
}
