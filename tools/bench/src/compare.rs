//! What became better or worse since an earlier run.

use crate::figures::{Figures, people};
use crate::samples::Metric;
use report::{Column, Medium, Report, Style, Table, Text};

/// The change that is taken for real: twice what the metric's runs are expected to differ by.
fn threshold(metric: Metric) -> f64 {
    match metric {
        Metric::Instructions
        | Metric::HubInstructions
        | Metric::Bytes
        | Metric::MappingBytes
        | Metric::Cleared => 0.04,
        Metric::Rate => 0.3,
        _ => 0.5,
    }
}

/// Adds the changes beyond the threshold, and beyond the runs' own spread.
pub fn add(report: &mut Report, now: &Figures, base: &Figures) {
    let mut table = Table::new([
        Column::left(""),
        Column::left("system"),
        Column::left("case"),
        Column::left("figure"),
        Column::right("CPUs"),
        Column::right("before"),
        Column::right("now"),
        Column::right("change"),
    ]);
    let mut same = 0;
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
        let verdict = match better {
            true => Text::of(Style::Good, "better"),
            false => Text::of(Style::Bad, "WORSE"),
        };
        table.row([
            verdict,
            system.as_str().into(),
            case.as_str().into(),
            format!("{metric:?}").into(),
            (*cpus).into(),
            people(before.median).into(),
            people(figure.median).into(),
            format!("{:+.0}%", change * 100.0).into(),
        ]);
    }
    report.heading("since the earlier run");
    if !table.is_empty() {
        report.add(Medium::Both, table);
    }
    report.note(format!("{same} figures are as they were"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::Sample;

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
        let told = |metric, before, now| {
            let mut report = Report::new("", "");
            add(&mut report, &figures(metric, now), &figures(metric, before));
            report.text()
        };
        assert!(told(Metric::Instructions, 100.0, 110.0).contains("WORSE"));
        assert!(told(Metric::Instructions, 100.0, 90.0).contains("better"));
        assert!(told(Metric::Instructions, 100.0, 102.0).contains("1 figures are as they were"));
        assert!(told(Metric::Rate, 100.0, 200.0).contains("better"));
        assert!(told(Metric::Rate, 100.0, 50.0).contains("WORSE"));
        assert!(told(Metric::Moves, 0.0, 0.0).contains("1 figures"));
    }
}
