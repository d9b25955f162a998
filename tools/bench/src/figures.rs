//! Samples brought together: the median of each figure, and how far its runs lie apart.

use crate::samples::{Metric, Sample};
use std::collections::BTreeMap;

/// A figure's runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// The middle value.
    pub median: f64,
    /// How far the run that lies farthest from the median lies from it, as a share of it; none for a single run.
    pub spread: Option<f64>,
}

/// The spread up to which a metric's figure is to be believed, and the value below which it says "none" however its runs differ.
pub fn limit(metric: Metric) -> Option<(f64, f64)> {
    match metric {
        Metric::Instructions
        | Metric::HubInstructions
        | Metric::Bytes
        | Metric::MappingBytes
        | Metric::Cleared => Some((0.02, 1.0)),
        Metric::Moves => Some((0.25, 0.1)),
        _ => None,
    }
}

impl Figure {
    /// From as far below the median to as far above it as the farthest run lies; the median alone for a single run.
    pub fn reach(&self) -> (f64, f64) {
        let off = self.median * self.spread.unwrap_or(0.0);
        ((self.median - off).max(0.0), self.median + off)
    }

    /// Whether its runs lie farther apart than `metric` allows.
    pub fn strays(&self, metric: Metric) -> bool {
        let beyond = |(most, none): (f64, f64)| {
            self.median >= none && self.spread.is_some_and(|spread| spread > most)
        };
        limit(metric).is_some_and(beyond)
    }
}

type Key = (String, Metric, u32, String);

/// All figures: by case, metric, CPUs and system.
pub struct Figures {
    figures: BTreeMap<Key, Figure>,
    /// Cases in the order in which they were first measured.
    order: Vec<String>,
}

impl Figures {
    /// Brings `samples` together.
    pub fn of(samples: &[Sample]) -> Figures {
        let mut groups: BTreeMap<Key, Vec<f64>> = BTreeMap::new();
        let mut order: Vec<String> = Vec::new();
        for sample in samples {
            let key = (
                sample.case.clone(),
                sample.metric,
                sample.cpus,
                sample.system.clone(),
            );
            groups.entry(key).or_default().push(sample.value);
            if !order.contains(&sample.case) {
                order.push(sample.case.clone());
            }
        }
        let figures = groups
            .into_iter()
            .map(|(key, values)| (key, figure(values)))
            .collect();
        Figures { figures, order }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.figures.is_empty()
    }

    /// Cases that have a figure of `metric`.
    pub fn cases(&self, metric: Metric) -> Vec<&str> {
        let has = |case: &&String| {
            self.figures
                .keys()
                .any(|key| key.0 == **case && key.1 == metric)
        };
        self.order.iter().filter(has).map(String::as_str).collect()
    }

    /// Numbers of CPUs at which `metric` was measured.
    pub fn cpus(&self, metric: Metric) -> Vec<u32> {
        let mut cpus: Vec<u32> = self
            .figures
            .keys()
            .filter(|key| key.1 == metric)
            .map(|key| key.2)
            .collect();
        cpus.sort_unstable();
        cpus.dedup();
        cpus
    }

    /// One figure.
    pub fn get(&self, case: &str, metric: Metric, cpus: u32, system: &str) -> Option<&Figure> {
        self.figures
            .get(&(case.to_owned(), metric, cpus, system.to_owned()))
    }

    /// Every figure with its case, metric, CPUs and system.
    pub fn iter(&self) -> impl Iterator<Item = (&Key, &Figure)> {
        self.figures.iter()
    }
}

fn figure(mut values: Vec<f64>) -> Figure {
    values.sort_by(f64::total_cmp);
    let (low, high) = (values[0], values[values.len() - 1]);
    let middle = values.len() / 2;
    let median = if values.len() % 2 == 1 {
        values[middle]
    } else {
        (values[middle - 1] + values[middle]) / 2.0
    };
    let spread = (values.len() > 1).then(|| {
        if median > 0.0 {
            (high - median).max(median - low) / median
        } else {
            0.0
        }
    });
    Figure { median, spread }
}

/// A number with as many digits as people read: 0.34, 17.2, 128,953.
pub fn people(value: f64) -> String {
    if value == 0.0 {
        return "0".into();
    }
    if value.abs() < 10.0 {
        return format!("{value:.2}");
    }
    if value.abs() < 100.0 {
        return format!("{value:.1}");
    }
    let digits = format!("{value:.0}");
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) && !out.ends_with('-') {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(value: f64, run: u32) -> Sample {
        Sample {
            system: "linux".into(),
            case: "null".into(),
            metric: Metric::Rate,
            cpus: 2,
            run,
            value,
        }
    }

    #[test]
    fn the_median_is_in_the_middle_and_the_spread_reaches_the_farthest() {
        let figures = Figures::of(&[sample(11.0, 0), sample(8.0, 1), sample(10.0, 2)]);
        let figure = figures.get("null", Metric::Rate, 2, "linux").unwrap();
        assert_eq!(
            *figure,
            Figure {
                median: 10.0,
                spread: Some(0.2)
            }
        );
        let figures = Figures::of(&[sample(12.0, 0), sample(8.0, 1)]);
        assert_eq!(
            figures
                .get("null", Metric::Rate, 2, "linux")
                .unwrap()
                .median,
            10.0
        );
        assert_eq!(figures.get("null", Metric::Rate, 1, "linux"), None);
        assert_eq!(
            (figures.cases(Metric::Rate), figures.cpus(Metric::Rate)),
            (vec!["null"], vec![2])
        );
    }

    #[test]
    fn figures_whose_runs_differ_too_much_are_told() {
        let strays = |median, spread, metric| Figure { median, spread }.strays(metric);
        assert!(strays(100.0, Some(0.03), Metric::Instructions));
        assert!(!strays(100.0, Some(0.01), Metric::Instructions));
        assert!(!strays(100.0, None, Metric::Instructions));
        assert!(strays(1.0, Some(0.3), Metric::Moves) && !strays(0.01, Some(0.3), Metric::Moves));
        assert!(!strays(100.0, Some(0.9), Metric::Rate));
    }

    #[test]
    fn numbers_are_written_for_people() {
        let written = [0.0, 0.337, 17.25, 128_953.4, 999.6, -1234.0].map(people);
        assert_eq!(written, ["0", "0.34", "17.2", "128,953", "1,000", "-1,234"]);
    }
}
