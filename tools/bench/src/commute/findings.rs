//! The report on commuting operations: the maps side by side, the lines in the way and every conflict.

use super::verdict::{Judged, Tally, by_calls};
use super::{Outcome, culprit, heat, plan};
use crate::guest::Lab;
use commute::call::Call;
use commute::model::Mode;
use maud::html;
use report::{Column, Medium, Part, Report, Style, Table, Text};

/// Culprits shown for each kernel, on the page and on a terminal.
const TOP: [usize; 2] = [30, 12];

const INTRODUCTION: &str = "Each case is two operations whose results do not depend on their order, one on each of two CPUs. It conflicts \
     if, in most of three warm rounds, both CPUs' kernels touch a 64-byte line that one of them changes: then the two cannot \
     scale. A cell is the share of a pair's cases that conflict; point at it for counts.";

/// The whole report.
pub fn report(lab: &Lab, outcomes: &[Outcome]) -> Report {
    let title = "Operations that commute, and the kernel lines that they share";
    let mut report = Report::new(title, heat::STYLE);
    report.add(Medium::Page, Text::from(INTRODUCTION));
    // A terminal is read from its end.
    report.add(Medium::Page, summary(outcomes));
    maps(&mut report, outcomes);
    for outcome in outcomes {
        terminal_map(&mut report, outcome);
        culprits(&mut report, outcome);
        errors(&mut report, outcome);
    }
    for outcome in outcomes {
        conflicts(&mut report, outcome);
    }
    for outcome in outcomes {
        let text = format!("command line of {}", outcome.guest.title);
        let short = Some(text.clone());
        report.add(Medium::Page, Part::Heading { text, short });
        let line = lab.command_line_of(outcome.guest, &plan::trial("commute"));
        report.add(Medium::Page, Part::Verbatim(line));
    }
    report.add(Medium::Terminal, Text::from(""));
    report.add(Medium::Terminal, summary(outcomes));
    report
}

/// The fractions of all kernels, as a whole and in each mode.
fn summary(outcomes: &[Outcome]) -> Table {
    let counts = [
        "cases",
        "free",
        "rarely",
        "conflict",
        "falsely",
        "atomics",
        "wrong",
        "disturbed",
    ];
    let columns = std::iter::once(Column::left("")).chain(counts.map(Column::right));
    let mut table = Table::new(columns);
    let mut row = |name: Text, tally: Tally| {
        let share = |some: usize| Text::from(format!("{:.1}%", tally.percent(some)));
        table.row([
            name,
            tally.judged.into(),
            Text::of(Style::Strong, share(tally.free)),
            share(tally.rare),
            share(tally.conflicting()),
            share(tally.falsely),
            share(tally.atomic),
            tally.wrong.into(),
            tally.disturbed.into(),
        ]);
    };
    for outcome in outcomes {
        let title = outcome.guest.title.split(" (").next().unwrap_or_default();
        row(Text::of(Style::Strong, title), Tally::of(&outcome.judged));
        for mode in Mode::ALL {
            let here = outcome.judged.iter().filter(|one| one.case.mode == mode);
            row(format!("in {}", mode.name()).into(), Tally::of(here));
        }
    }
    table
}

fn maps(report: &mut Report, outcomes: &[Outcome]) {
    let text = "share of cases that conflict".to_owned();
    let short = Some("maps".into());
    report.add(Medium::Page, Part::Heading { text, short });
    report.add(
        Medium::Page,
        html! {
            div class="maps" {
                @for outcome in outcomes {
                    figure {
                        figcaption { (outcome.guest.title) }
                        (heat::map(&outcome.guest.title, &by_calls(&outcome.judged)))
                    }
                }
            }
            (heat::key())
        },
    );
}

/// The map of one kernel in numbers.
fn terminal_map(report: &mut Report, outcome: &Outcome) {
    let text = format!("{}: cases that conflict, in percent", outcome.guest.title);
    report.add(Medium::Terminal, Part::Heading { text, short: None });
    let short = |call: &Call| call.name().chars().take(4).collect::<String>();
    let calls = Call::ALL.iter().map(|call| Column::right(short(call)));
    let mut table = Table::new(std::iter::once(Column::left("")).chain(calls));
    for (call, row) in Call::ALL.iter().zip(by_calls(&outcome.judged)) {
        let cells = row
            .iter()
            .map(|tally| match (tally.judged, tally.conflicting()) {
                (0, _) => "-".into(),
                (_, 0) => ".".into(),
                (_, some) => heat::people(tally.percent(some)).into(),
            });
        table.row(std::iter::once(call.name().into()).chain(cells));
    }
    report.add(Medium::Terminal, table);
}

fn errors(report: &mut Report, outcome: &Outcome) {
    for failure in &outcome.failed {
        report.note(Text::of(Style::Bad, format!("failed: {failure}")));
    }
    for one in outcome.judged.iter().filter(|one| one.is_wrong()) {
        let text = format!("wrong in {}: {}", outcome.guest.system, one.case.name());
        report.note(Text::of(Style::Bad, text));
    }
}

fn line(line: &culprit::Line) -> Text {
    let [first, second] = &line.cpus;
    let mut text = Text::default();
    if let Some(datum) = &line.datum {
        text = text.then(Style::Strong, datum).then(Style::Plain, ": ");
    }
    text = text.then(Style::Code, first).then(Style::Plain, " | ");
    text = text.then(Style::Code, second);
    if line.false_sharing {
        text = text.then(Style::Dim, " (false sharing)");
    }
    text
}

fn culprits(report: &mut Report, outcome: &Outcome) {
    let text = format!("lines in the way in {}", outcome.guest.title);
    let short = Some(text.clone());
    report.add(Medium::Both, Part::Heading { text, short });
    let [most, on_terminal] = TOP;
    let mut table = Table::new([
        Column::right("cases"),
        Column::right("no other line"),
        Column::left("changed by, touched by"),
        Column::left("for example"),
    ]);
    for culprit in outcome.culprits.iter().take(most) {
        table.row([
            culprit.cases.into(),
            culprit.alone.into(),
            line(&culprit.line),
            culprit.example.as_str().into(),
        ]);
    }
    report.add(Medium::Both, table.shown(on_terminal));
}

/// Every case that conflicts, under its pair of calls, with the first of its lines.
fn conflicts(report: &mut Report, outcome: &Outcome) {
    let text = format!("every conflict in {}", outcome.guest.title);
    let short = Some(text.clone());
    report.add(Medium::Page, Part::Heading { text, short });
    for (row, a) in Call::ALL.iter().enumerate() {
        for b in &Call::ALL[row..] {
            let pair = |one: &&Judged| {
                let calls = one.case.calls();
                one.conflicts() && (calls == [*a, *b] || calls == [*b, *a])
            };
            let found: Vec<&Judged> = outcome.judged.iter().filter(pair).collect();
            if found.is_empty() {
                continue;
            }
            let mut table = Table::new([
                Column::left("case"),
                Column::right("lines"),
                Column::left("the first"),
            ]);
            for one in &found {
                let first = one.lines.first();
                let named = first.map(|first| culprit::describe(&outcome.guest.symbols, first));
                table.row([
                    one.case.name().into(),
                    one.lines.len().into(),
                    named.as_ref().map_or(Text::default(), line),
                ]);
            }
            let summary = format!("{} and {}: {}", a.name(), b.name(), found.len());
            report.add(Medium::Page, Part::Fold(summary.into(), table));
        }
    }
}
