//! What became better or worse since an earlier run.

use super::figures::{Figures, people};
use super::samples::Metric;
use std::fmt::Write;

/// The change that is taken for real: twice what the metric's runs are expected to differ by.
fn threshold(metric: Metric) -> f64 {
    match metric {
        Metric::Instructions | Metric::Bytes => 0.04,
        Metric::Rate => 0.3,
        _ => 0.5,
    }
}

/// Changes beyond the threshold, and beyond the runs' own spread, as text.
pub fn render(now: &Figures, base: &Figures) -> String {
    let (mut text, mut same) = (String::from("\nsince the earlier run\n"), 0);
    for ((case, metric, cpus, system), figure) in now.iter() {
        let Some(before) = base.get(case, *metric, *cpus, system) else {
            continue;
        };
        let spread = figure
            .spread
            .unwrap_or(0.0)
            .max(before.spread.unwrap_or(0.0));
        let change = figure.median / before.median - 1.0;
        if !change.is_finite() || change.abs() <= threshold(*metric).max(spread) {
            same += 1;
            continue;
        }
        let better = (change < 0.0) == (*metric != Metric::Rate);
        let word = if better { "better" } else { "WORSE" };
        let _ = writeln!(
            text,
            "  {word:<6} {system:<8} {case:<22} {metric:?} on {cpus} CPU(s): {} -> {} ({:+.0}%)",
            people(before.median),
            people(figure.median),
            change * 100.0
        );
    }
    let _ = writeln!(text, "  {same} figures are as they were");
    text
}

#[cfg(test)]
mod tests {
    use super::super::samples::Sample;
    use super::*;

    fn figures(metric: Metric, value: f64) -> Figures {
        let sample = Sample {
            system: "pantala".into(),
            case: "null".into(),
            metric,
            cpus: 1,
            run: 0,
            value,
        };
        Figures::of(&[sample])
    }

    #[test]
    fn only_changes_beyond_the_noise_are_told_and_by_their_sense() {
        let told = |metric, before, now| render(&figures(metric, now), &figures(metric, before));
        assert!(told(Metric::Instructions, 100.0, 110.0).contains("WORSE"));
        assert!(told(Metric::Instructions, 100.0, 90.0).contains("better"));
        assert!(told(Metric::Instructions, 100.0, 102.0).contains("1 figures are as they were"));
        assert!(told(Metric::Rate, 100.0, 200.0).contains("better"));
        assert!(told(Metric::Rate, 100.0, 50.0).contains("WORSE"));
        assert!(told(Metric::Moves, 0.0, 0.0).contains("1 figures"));
    }
}
