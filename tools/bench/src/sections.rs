//! The sections of the report on costs, and what a figure looks like in them.

use crate::figures::{Figure, Figures, people};
use crate::plan::TRANSFER_CPUS;
use crate::samples::Metric;
use crate::targets;

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

impl Section {
    /// What a list of sections calls it.
    pub fn short(&self) -> String {
        let title = self.title.split(" an operation").next();
        let title = title.unwrap_or_default().split(" under ").next();
        let cpus = match self.metric {
            Metric::Rate | Metric::Elapsed | Metric::HostSeconds => {
                format!(", {} CPU(s)", self.cpus)
            }
            _ => String::new(),
        };
        title.unwrap_or_default().to_owned() + &cpus
    }
}

fn section(title: String, metric: Metric, cpus: u32) -> Section {
    Section {
        title,
        metric,
        cpus,
        less_is_better: metric != Metric::Rate,
    }
}

fn instructions() -> Section {
    let title = "kernel instructions an operation, 1 CPU";
    section(title.into(), Metric::Instructions, 1)
}

fn lines(cpus: u32) -> Section {
    let title =
        format!("lines moved between CPUs an operation, {cpus} CPUs, timer ticks subtracted");
    section(title, Metric::Moves, cpus)
}

fn hubs() -> Section {
    let title = "kernel instructions of the hubs an operation: counts of attachments, lists of extents; 1 CPU";
    section(title.into(), Metric::HubInstructions, 1)
}

fn cleared() -> Section {
    let title = "bytes that the kernel clears an operation, 1 CPU";
    section(title.into(), Metric::Cleared, 1)
}

fn bytes() -> Section {
    let title = "bytes for each process, 1 CPU";
    section(title.into(), Metric::Bytes, 1)
}

fn mappings() -> Section {
    let title = "bytes of tables and entries for each mapped page of 4 KiB, 1 CPU";
    section(title.into(), Metric::MappingBytes, 1)
}

/// Those of the sections for which there are figures.
fn measured(mut sections: Vec<Section>, figures: &Figures) -> Vec<Section> {
    sections.retain(|section| figures.cpus(section.metric).contains(&section.cpus));
    sections
}

/// The sections of a comparison of reverse maps.
pub fn rivals(figures: &Figures) -> Vec<Section> {
    let lines = [TRANSFER_CPUS, 2 * TRANSFER_CPUS].map(lines);
    let sections = [instructions(), hubs()]
        .into_iter()
        .chain(lines)
        .chain([bytes(), mappings()]);
    measured(sections.collect(), figures)
}

/// The sections for which there are figures.
pub fn sections(figures: &Figures) -> Vec<Section> {
    let n = TRANSFER_CPUS;
    let mut sections = vec![
        instructions(),
        cleared(),
        lines(n),
        section(
            format!("of them and the ticks', false sharing, {n} CPUs"),
            Metric::FalseSharing,
            n,
        ),
        section(
            format!("lines moved by clears and copies an operation, {n} CPUs"),
            Metric::BulkMoves,
            n,
        ),
        section(
            format!("interrupts between CPUs an operation, {n} CPUs"),
            Metric::Ipis,
            n,
        ),
        section(
            format!("timer interrupts an operation, {n} CPUs"),
            Metric::Ticks,
            n,
        ),
        bytes(),
    ];
    sections.extend(figures.cpus(Metric::Rate).into_iter().map(|cpus| {
        let title = format!("operations a second under emulation, {cpus} CPU(s)");
        section(title, Metric::Rate, cpus)
    }));
    measured(sections, figures)
}

/// The sections of whole jobs.
pub fn jobs(figures: &Figures) -> Vec<Section> {
    let lines =
        format!("lines moved between CPUs by a job, {TRANSFER_CPUS} CPUs, timer ticks subtracted");
    let mut sections = vec![
        section(
            "kernel instructions of a job, 1 CPU".into(),
            Metric::Instructions,
            1,
        ),
        section(
            "instructions of a job's programs, 1 CPU".into(),
            Metric::UserInstructions,
            1,
        ),
        section(lines, Metric::Moves, TRANSFER_CPUS),
    ];
    for cpus in figures.cpus(Metric::Elapsed) {
        let title = format!("seconds that a job takes under emulation, {cpus} CPU(s)");
        sections.push(section(title, Metric::Elapsed, cpus));
        let title = format!("seconds of the host's processors that a job takes, {cpus} CPU(s)");
        sections.push(section(title, Metric::HostSeconds, cpus));
    }
    measured(sections, figures)
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
    let of_linux = || {
        let share = targets::share(case, section.metric)?;
        let linux = figures.get(case, section.metric, section.cpus, "linux")?;
        Some(share * linux.median)
    };
    let must = targets::must(case, section.metric).or_else(of_linux)?;
    let ours = figures.get(case, section.metric, section.cpus, "pantala")?;
    Some((must, ours.median <= must))
}
