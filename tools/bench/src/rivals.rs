//! `make rivals`: the three reverse maps, and Linux, in the same machine with the same programs, side by side.
//!
//! Guarantee: as for `make bench` ([`measure`](crate::measure)). The three kernels are built from one tree, and differ in the feature
//! that chooses the reverse map alone. Linux gives huge pages to memory that asks for them, as Pantala does.

use crate::figures::Figures;
use crate::guest::Lab;
use crate::plan::{self, Outcome};
use crate::sections::{self, Section, cell};
use crate::settings::{Settings, What};
use crate::svg::{self, Row};
use crate::{findings, lab};
use anyhow::Result;
use machine::options;
use report::{Column, Medium, Part, Report, Table, Text};

/// Keys in samples, and what people call them; the first is what the others are compared with.
const SYSTEMS: [(&str, &str); 4] = [
    ("pantala", "backings"),
    ("pv-obm", "pv-obm"),
    ("pv-stock", "pv-stock"),
    ("linux", "Linux"),
];

/// Memory of the machines, in MiB: ten thousand processes, or a parent of 1 GiB, have room.
const MEMORY: u64 = 4096;

/// Runs everything and writes `build/rivals/`.
///
/// # Errors
/// Something cannot be built, or no boot gave any figure.
pub fn run(asked: &options::Bench) -> Result<u8> {
    let settings = Settings::of(asked, What::Rivals);
    let mut kernels = asked.kernels.clone();
    if kernels.thp == "never" {
        kernels.thp = "madvise".into();
    }
    let mut lab = lab::of(&asked.system, &kernels, "rivals")?;
    lab.memory = MEMORY;
    if kernels.wants("pantala") {
        lab::add_rivals(&mut lab, &asked.system.kernel, &kernels.thp)?;
    }
    if settings.builds() {
        lab::add_builds(&mut lab, &asked.system.image);
    }
    let outcome = plan::carry_out(&lab, &settings)?;
    let figures = outcome.figures()?;
    tell(&lab, &settings, &figures, &outcome).publish(&lab.dir.join("report.html"))?;
    println!("samples: {}", lab.samples().display());
    Ok(u8::from(!outcome.failures.is_empty()))
}

fn tell(lab: &Lab, settings: &Settings, figures: &Figures, outcome: &Outcome) -> Report {
    let mut report = Report::new("Three reverse maps, and Linux", svg::STYLE);
    let text = format!(
        "Same machine (QEMU, emulated), same image, same static benchmark; {} run(s), medians. backings is the default, with one record \
         for each mapped extent; pv-obm and pv-stock, FreeBSD's two schemes, have an entry for each mapped page. What they mean: \
         doc/rivals.md.",
        settings.runs
    );
    report.add(Medium::Page, Text::from(text));
    report.add(
        Medium::Page,
        svg::key(svg::RIVALS, &SYSTEMS.map(|(_, name)| name)),
    );
    findings::failures(&mut report, Medium::Page, outcome);
    for section in sections::rivals(figures) {
        part(&mut report, figures, &section);
    }
    findings::repeatability(&mut report, figures);
    findings::failures(&mut report, Medium::Terminal, outcome);
    findings::functions(&mut report, &outcome.hot);
    findings::machines(&mut report, lab, settings);
    report
}

/// A section: bars, and the table, in which each but the first is given as a multiple of that, too.
fn part(report: &mut Report, figures: &Figures, section: &Section) {
    let cases = figures.cases(section.metric);
    report.add(
        Medium::Both,
        Part::Heading {
            text: section.title.clone(),
            short: Some(format!("{}, {} CPU(s)", section.short(), section.cpus)),
        },
    );
    let figure = |case: &str, system: &str| figures.get(case, section.metric, section.cpus, system);
    let row = |case: &&str| Row {
        name: (*case).to_owned(),
        values: SYSTEMS
            .map(|(system, _)| figure(case, system).cloned())
            .into(),
        target: None,
    };
    let rows: Vec<Row> = cases.iter().map(row).collect();
    report.add(Medium::Page, svg::bars(&rows, svg::RIVALS));
    let columns = SYSTEMS.iter().enumerate().flat_map(|(place, (_, name))| {
        let times = (place > 0).then(|| Column::right("times"));
        std::iter::once(Column::right(*name)).chain(times)
    });
    let mut table = Table::new(
        std::iter::once(Column::left("case"))
            .chain(columns)
            .collect::<Vec<_>>(),
    );
    for case in cases {
        let mut row: Vec<Text> = vec![case.into()];
        for (place, (system, _)) in SYSTEMS.iter().enumerate() {
            row.push(cell(figure(case, system), section.metric).into());
            if place > 0 {
                row.push(times(figures, section, case, system).into());
            }
        }
        table.row(row);
    }
    report.add(Medium::Both, table);
}

/// How many times the default's figure another's is; a dash where one is missing or the default's is next to nothing.
fn times(figures: &Figures, section: &Section, case: &str, system: &str) -> String {
    let of = |system| figures.get(case, section.metric, section.cpus, system);
    match (of(SYSTEMS[0].0), of(system)) {
        (Some(ours), Some(other)) if ours.median >= 0.05 => {
            format!("{:.2}", other.median / ours.median)
        }
        _ => "-".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{Metric, Sample};

    #[test]
    fn each_reverse_map_is_told_as_a_multiple_of_the_default() {
        let sample = |system: &str, value| Sample {
            system: system.into(),
            case: "fork".into(),
            metric: Metric::Instructions,
            cpus: 1,
            run: 0,
            value,
        };
        let figures = Figures::of(&[sample("pantala", 200.0), sample("pv-obm", 300.0)]);
        let mut report = Report::new("", "");
        for section in sections::rivals(&figures) {
            part(&mut report, &figures, &section);
        }
        let text = report.text();
        assert!(text.contains("fork") && text.contains("1.50"), "{text}");
        let section = &sections::rivals(&figures)[0];
        assert_eq!(times(&figures, section, "fork", "linux"), "-");
    }
}
