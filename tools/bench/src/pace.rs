//! How long a run of boots will still take.
//!
//! Mechanism: each boot has a weight, the seconds that it takes on two idle cores; what the boots so far took beyond
//! their weights tells how much slower this host is.

use crate::guest::Kind;
use std::time::{Duration, Instant};

/// The time that a run takes, and how far it is.
pub struct Pace {
    weights: Vec<f64>,
    done: usize,
    began: Instant,
    /// When the boot that is going on began.
    since: Instant,
}

/// Seconds of a boot on two idle cores.
pub fn weight(system: &str, kind: Kind, cpus: u32, quick: bool) -> f64 {
    let linux = system == "linux";
    // Linux takes a while to get to init, under the plugin that looks at every access above all.
    let boot = match (linux, kind) {
        (true, Kind::Transfers) => 20.0,
        (true, _) => 7.0,
        (false, _) => 1.0,
    };
    let work = match kind {
        Kind::Count | Kind::Scarce => 20.0,
        Kind::Build => 60.0,
        Kind::Hubs => 10.0,
        Kind::Transfers => 60.0,
        Kind::Windows => 120.0,
        Kind::Rate => 8.0 + 6.0 * f64::from(cpus),
        Kind::Scale(processes) => processes as f64 / 500.0,
    };
    let work = if linux { 2.5 * work } else { work };
    boot + if quick { 0.2 * work } else { work }
}

impl Pace {
    /// Boots of these weights begin now.
    pub fn new(weights: Vec<f64>) -> Pace {
        let now = Instant::now();
        Pace {
            weights,
            done: 0,
            began: now,
            since: now,
        }
    }

    /// A boot has ended.
    pub fn step(&mut self) {
        self.done += 1;
        self.since = Instant::now();
    }

    /// Time since the beginning.
    pub fn gone(&self) -> Duration {
        self.began.elapsed()
    }

    /// Time until the end, as far as can be told.
    pub fn left(&self) -> Duration {
        let taken = self.since.duration_since(self.began).as_secs_f64();
        left(
            &self.weights,
            self.done,
            taken,
            self.since.elapsed().as_secs_f64(),
        )
    }
}

fn left(weights: &[f64], done: usize, taken: f64, current: f64) -> Duration {
    let (past, rest) = weights.split_at(done.min(weights.len()));
    let planned: f64 = past.iter().sum();
    let slower = if planned > 0.0 { taken / planned } else { 1.0 };
    let first = rest.first().copied().unwrap_or(0.0) * slower;
    let others: f64 = rest.iter().skip(1).sum::<f64>() * slower;
    Duration::from_secs_f64((first - current).max(0.0) + others)
}

/// `75` seconds as 1:15.
pub fn people(time: Duration) -> String {
    format!("{}:{:02}", time.as_secs() / 60, time.as_secs() % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_host_takes_as_much_longer_as_it_took_so_far() {
        let seconds =
            |done, taken, current| left(&[10.0, 20.0, 30.0], done, taken, current).as_secs();
        assert_eq!(seconds(0, 0.0, 0.0), 60);
        assert_eq!(seconds(0, 0.0, 4.0), 56);
        assert_eq!(seconds(1, 20.0, 10.0), 90);
        assert_eq!(seconds(1, 20.0, 99.0), 60);
        assert_eq!(seconds(3, 99.0, 0.0), 0);
    }

    #[test]
    fn times_are_written_in_minutes() {
        assert_eq!(people(Duration::from_secs(75)), "1:15");
    }
}
