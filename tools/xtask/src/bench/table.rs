//! The figures for a terminal.

use super::figures::{Figure, Figures, limit, people};
use super::plan::TRANSFER_CPUS;
use super::samples::Metric;
use super::targets;
use std::fmt::Write;

/// A section of the report: one metric at one number of CPUs.
pub struct Section {
    /// Its heading.
    pub title: String,
    /// What it shows.
    pub metric: Metric,
    /// On how many CPUs.
    pub cpus: u32,
    /// Whether less is better.
    pub less_is_better: bool,
}

/// The sections for which there are figures.
pub fn sections(figures: &Figures) -> Vec<Section> {
    let mut sections = Vec::new();
    let mut add = |title: String, metric, cpus, less_is_better| {
        if figures.cpus(metric).contains(&cpus) {
            sections.push(Section {
                title,
                metric,
                cpus,
                less_is_better,
            });
        }
    };
    let n = TRANSFER_CPUS;
    add(
        "kernel instructions an operation, 1 CPU".into(),
        Metric::Instructions,
        1,
        true,
    );
    add(
        format!("lines moved between CPUs an operation, {n} CPUs, timer ticks subtracted"),
        Metric::Moves,
        n,
        true,
    );
    add(
        format!("of them and the ticks', false sharing, {n} CPUs"),
        Metric::FalseSharing,
        n,
        true,
    );
    add(
        format!("lines moved by clears and copies an operation, {n} CPUs"),
        Metric::BulkMoves,
        n,
        true,
    );
    add(
        format!("interrupts between CPUs an operation, {n} CPUs"),
        Metric::Ipis,
        n,
        true,
    );
    add(
        format!("timer interrupts an operation, {n} CPUs"),
        Metric::Ticks,
        n,
        true,
    );
    add(
        "bytes for each process, 1 CPU".into(),
        Metric::Bytes,
        1,
        true,
    );
    for cpus in figures.cpus(Metric::Rate) {
        add(
            format!("operations a second under emulation, {cpus} CPU(s)"),
            Metric::Rate,
            cpus,
            false,
        );
    }
    sections
}

/// A figure and its spread, with an exclamation mark where its runs lie too far apart.
pub fn cell(figure: Option<&Figure>, metric: Metric) -> String {
    let Some(figure) = figure else {
        return "-".into();
    };
    let mark = if figure.strays(metric) { "!" } else { "" };
    match figure.spread {
        None => people(figure.median),
        Some(spread) => format!("{} ±{}{mark}", people(figure.median), percent(spread)),
    }
}

fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if percent > 0.0 && percent < 1.0 {
        format!("{percent:.1}%")
    } else {
        format!("{percent:.0}%")
    }
}

/// How many figures have a spread that is limited, and the names of those beyond it.
pub fn repeatability(figures: &Figures) -> (usize, Vec<String>) {
    let mut limited = 0;
    let mut strays = Vec::new();
    for ((case, metric, cpus, system), figure) in figures.iter() {
        if figure.spread.is_some() && limit(*metric).is_some() {
            limited += 1;
        }
        if figure.strays(*metric) {
            strays.push(format!(
                "{system} {case}, {metric:?} on {cpus} CPU(s): {}",
                cell(Some(figure), *metric)
            ));
        }
    }
    (limited, strays)
}

/// How many times better Pantala is; none where a figure is missing or Linux's is too small to divide by.
pub fn ratio(figures: &Figures, section: &Section, case: &str) -> Option<f64> {
    let of = |system| {
        Some(
            figures
                .get(case, section.metric, section.cpus, system)?
                .median,
        )
    };
    let (ours, theirs) = (of("pantala")?, of("linux")?);
    let (top, bottom) = if section.less_is_better {
        (theirs, ours)
    } else {
        (ours, theirs)
    };
    (bottom > 0.0).then(|| top / bottom)
}

/// Whether a target is met; none where there is none.
pub fn met(figures: &Figures, section: &Section, case: &str) -> Option<(f64, bool)> {
    let must = targets::must(case, section.metric)?;
    let ours = figures.get(case, section.metric, section.cpus, "pantala")?;
    Some((must, ours.median <= must))
}

/// All sections as text.
pub fn render(figures: &Figures) -> String {
    let mut text = String::new();
    for section in sections(figures) {
        let head = ["case", "Pantala", "Linux", "times better", "must"];
        let _ = writeln!(text, "\n{}", section.title);
        let _ = writeln!(
            text,
            "  {:<22} {:>17} {:>17} {:>13} {:>10}",
            head[0], head[1], head[2], head[3], head[4]
        );
        for case in figures.cases(section.metric) {
            let of = |system| {
                let figure = figures.get(case, section.metric, section.cpus, system);
                cell(figure, section.metric)
            };
            let times =
                ratio(figures, &section, case).map_or("-".into(), |times| format!("{times:.2}"));
            let must = match met(figures, &section, case) {
                None => String::new(),
                Some((must, true)) => format!("{} ok", people(must)),
                Some((must, false)) => format!("{} OVER", people(must)),
            };
            let _ = writeln!(
                text,
                "  {case:<22} {:>17} {:>17} {times:>13} {must:>12}",
                of("pantala"),
                of("linux")
            );
        }
    }
    let (limited, strays) = repeatability(figures);
    if limited > 0 {
        let _ = writeln!(
            text,
            "\n{} of {limited} figures repeat within their limit (instructions and bytes 2 %, lines 25 %, of the median)",
            limited - strays.len()
        );
    }
    for stray in strays {
        let _ = writeln!(text, "  ! {stray}");
    }
    text
}
