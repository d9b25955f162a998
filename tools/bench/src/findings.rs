//! The report on costs: what terminal and page say of the figures.

use crate::compare;
use crate::figures::{Figure, Figures, limit, people};
use crate::guest::{Kind, Lab};
use crate::plan::{Hot, Outcome};
use crate::samples::Metric;
use crate::sections::{Section, cell, met, ratio, sections};
use crate::settings::Settings;
use crate::svg::{self, Panel, Row};
use maud::html;
use report::{Column, Medium, Part, Report, Style, Table, Text};

/// Functions shown for each case.
const TOP: usize = 5;

/// The whole report; `base` has the figures of an earlier run, to compare with.
pub fn report(
    lab: &Lab,
    settings: &Settings,
    figures: &Figures,
    outcome: &Outcome,
    base: Option<&Figures>,
) -> Report {
    let mut report = Report::new("Pantala and Linux, measured side by side", svg::STYLE);
    introduction(&mut report, settings);
    failures(&mut report, Medium::Page, outcome);
    throughput(&mut report, figures);
    for section in sections(figures) {
        part(&mut report, figures, &section);
    }
    repeatability(&mut report, figures);
    if let Some(base) = base {
        compare::add(&mut report, figures, base);
    }
    failures(&mut report, Medium::Terminal, outcome);
    functions(&mut report, &outcome.hot);
    machines(&mut report, lab, settings);
    report
}

fn introduction(report: &mut Report, settings: &Settings) {
    let quick = match settings.quick {
        true => " A quick run: few repetitions.",
        false => "",
    };
    let text = format!(
        "Same machine (QEMU, emulated), same image, same static benchmark; {} run(s) of each kind, medians, ± how far the \
         farthest run lies from the median, with ! where that is more than a figure may stray.{quick} Instructions are exact \
         and made with a clock that counts them; operations a second are those of an emulator and say how the kernels \
         compare, not how fast a processor is.",
        settings.runs
    );
    report.add(Medium::Page, Text::from(text));
    report.add(Medium::Page, svg::key(svg::SYSTEMS, &["Pantala", "Linux"]));
}

/// What went wrong: where it is seen first, at the top of a page and at the end of a terminal's lines.
pub fn failures(report: &mut Report, on: Medium, outcome: &Outcome) {
    for failure in &outcome.failures {
        report.add(on, Text::of(Style::Bad, format!("failed: {failure}")));
    }
}

fn throughput(report: &mut Report, figures: &Figures) {
    let cpus = figures.cpus(Metric::Rate);
    if cpus.len() < 2 {
        return;
    }
    let line = |case: &str, system: &str| {
        let at = |&n: &u32| Some((n, figures.get(case, Metric::Rate, n, system)?.clone()));
        cpus.iter().filter_map(at).collect::<Vec<_>>()
    };
    let panel = |case: &&str| Panel {
        name: (*case).to_owned(),
        lines: [line(case, "pantala"), line(case, "linux")],
    };
    let panels: Vec<Panel> = figures.cases(Metric::Rate).iter().map(panel).collect();
    report.add(
        Medium::Page,
        Part::Heading {
            text: "operations a second (from 0) as CPUs are added (to the right), all workers together".into(),
            short: Some("scaling".into()),
        },
    );
    report.add(Medium::Page, svg::panels(&panels));
}

/// A section: bars, and the table.
pub fn part(report: &mut Report, figures: &Figures, section: &Section) {
    let cases = figures.cases(section.metric);
    report.add(
        Medium::Both,
        Part::Heading {
            text: section.title.clone(),
            short: Some(section.short()),
        },
    );
    let figure = |case: &str, system: &str| figures.get(case, section.metric, section.cpus, system);
    if section.metric != Metric::Rate {
        let row = |case: &&str| Row {
            name: (*case).to_owned(),
            values: ["pantala", "linux"]
                .map(|system| figure(case, system).cloned())
                .into(),
            target: met(figures, section, case).map(|(must, _)| must),
        };
        let rows: Vec<Row> = cases.iter().map(row).collect();
        report.add(Medium::Page, svg::bars(&rows, svg::SYSTEMS));
    }
    let promised = cases
        .iter()
        .any(|case| met(figures, section, case).is_some());
    let mut columns = vec![
        Column::left("case"),
        Column::right("Pantala"),
        Column::right("Linux"),
        Column::right("times better"),
    ];
    columns.extend(promised.then(|| Column::right("must")));
    let mut table = Table::new(columns);
    for case in cases {
        let of = |system| cell(figure(case, system), section.metric);
        let times = ratio(figures, section, case);
        let times = times.map_or("-".into(), |times| format!("{times:.2}"));
        let mut row: Vec<Text> = vec![
            case.into(),
            of("pantala").into(),
            of("linux").into(),
            times.into(),
        ];
        row.extend(promised.then(|| must(figures, section, case)));
        table.row(row);
    }
    report.add(Medium::Both, table);
}

/// What a figure must be, and whether it is.
fn must(figures: &Figures, section: &Section, case: &str) -> Text {
    match met(figures, section, case) {
        None => Text::default(),
        Some((must, true)) => Text::of(Style::Good, format!("{} ok", people(must))),
        Some((must, false)) => Text::of(Style::Bad, format!("{} OVER", people(must))),
    }
}

/// How many of the figures whose spread is limited keep to that, and those that do not.
pub fn repeatability(report: &mut Report, figures: &Figures) {
    let has_limit =
        |metric: Metric, figure: &Figure| figure.spread.is_some() && limit(metric).is_some();
    let limited = figures
        .iter()
        .filter(|(key, figure)| has_limit(key.1, figure));
    let mut strays = Table::new(["system", "case", "figure", "CPUs", ""].map(Column::left));
    let (mut all, mut beyond) = (0, 0);
    for ((case, metric, cpus, system), figure) in limited {
        all += 1;
        if figure.strays(*metric) {
            beyond += 1;
            strays.row([
                system.as_str().into(),
                case.as_str().into(),
                format!("{metric:?}").into(),
                (*cpus).into(),
                cell(Some(figure), *metric).into(),
            ]);
        }
    }
    if all == 0 {
        return;
    }
    report.heading("how well figures repeat");
    report.note(format!(
        "{} of {all} figures repeat within their limit (instructions and bytes 2 %, lines 25 %, of the median)",
        all - beyond
    ));
    if beyond > 0 {
        let summary = Text::from(format!("the {beyond} others"));
        report.add(Medium::Both, Part::Fold(summary, strays));
    }
}

pub fn functions(report: &mut Report, hot: &[Hot]) {
    if hot.is_empty() {
        return;
    }
    let mut table = Table::new([
        Column::left("case"),
        Column::left("system"),
        Column::left("function"),
        Column::right("lines"),
        Column::right("false"),
    ]);
    for entry in hot {
        for (name, moves, falsely) in entry.functions.iter().take(TOP) {
            table.row([
                entry.case.as_str().into(),
                entry.system.into(),
                name.as_str().into(),
                people(*moves as f64 / entry.ops.max(1.0)).into(),
                format!("{:.0}%", *falsely as f64 * 100.0 / (*moves).max(1) as f64).into(),
            ]);
        }
    }
    let text = "functions that move the lines, with lines an operation (ticks included) and the share that is false sharing";
    report.add(
        Medium::Page,
        Part::Heading {
            text: text.into(),
            short: Some("functions".into()),
        },
    );
    report.add(Medium::Page, table);
}

pub fn machines(report: &mut Report, lab: &Lab, settings: &Settings) {
    let text = "command lines".to_owned();
    let short = Some(text.clone());
    report.add(Medium::Page, Part::Heading { text, short });
    for guest in &lab.guests {
        report.add(Medium::Page, Text::from(guest.title.as_str()));
        report.add(Medium::Page, Part::Verbatim(lab.command_line(guest)));
    }
    let command = settings.command(Kind::Rate);
    report.add(
        Medium::Page,
        html! { p { "In the guest: " code { (command) } } },
    );
}
