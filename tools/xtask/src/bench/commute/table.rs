//! The same for the terminal.

use super::Outcome;
use super::heat::people;
use super::verdict::{Judged, Tally, by_calls};
use commute::call::Call;
use commute::model::Mode;
use std::fmt::Write;

/// Culprits that the terminal shows.
const TOP: usize = 12;

/// The map of one kernel and its worst lines.
pub fn render(outcome: &Outcome) -> String {
    let mut text = format!(
        "\n{}: cases that conflict, in percent\n\n",
        outcome.guest.title
    );
    let short = |call: &Call| call.name().chars().take(4).collect::<String>();
    let _ = write!(text, "{:9}", "");
    for call in &Call::ALL {
        let _ = write!(text, "{:>5}", short(call));
    }
    text.push('\n');
    for (call, row) in Call::ALL.iter().zip(by_calls(&outcome.judged)) {
        let _ = write!(text, "{:9}", call.name());
        for tally in &row {
            let cell = match (tally.judged, tally.conflicting()) {
                (0, _) => "-".into(),
                (_, 0) => ".".into(),
                (_, some) => people(tally.percent(some)).to_string(),
            };
            let _ = write!(text, "{cell:>5}");
        }
        text.push('\n');
    }
    culprits(&mut text, outcome);
    text
}

fn culprits(text: &mut String, outcome: &Outcome) {
    let _ = writeln!(text, "\nlines in the way (cases; cases with no other)");
    for culprit in outcome.culprits.iter().take(TOP) {
        let line = &culprit.line;
        let datum = line
            .datum
            .as_deref()
            .map_or(String::new(), |name| format!("{name}: "));
        let falsely = if line.false_sharing {
            " (false sharing)"
        } else {
            ""
        };
        let [first, second] = &line.cpus;
        let _ = writeln!(
            text,
            "{:6} {:6}  {datum}{first} | {second}{falsely}",
            culprit.cases, culprit.alone
        );
    }
    let wrong: Vec<&Judged> = outcome.judged.iter().filter(|one| one.is_wrong()).collect();
    for one in wrong.iter().take(TOP) {
        let _ = writeln!(text, "wrong: {}", one.case.name());
    }
    for failure in &outcome.failed {
        let _ = writeln!(text, "failed: {failure}");
    }
}

/// The fractions of all kernels.
pub fn summary(outcomes: &[Outcome]) -> String {
    let mut text = format!(
        "\n{:34}{:>8}{:>9}{:>9}{:>10}{:>9}{:>9}{:>7}{:>11}\n",
        "", "cases", "free", "rarely", "conflict", "falsely", "atomics", "wrong", "disturbed"
    );
    for (name, tally) in rows(outcomes) {
        let share = |some: usize| format!("{:.1}%", tally.percent(some));
        let _ = writeln!(
            text,
            "{name:34}{:>8}{:>9}{:>9}{:>10}{:>9}{:>9}{:>7}{:>11}",
            tally.judged,
            share(tally.free),
            share(tally.rare),
            share(tally.conflicting()),
            share(tally.falsely),
            share(tally.atomic),
            tally.wrong,
            tally.disturbed
        );
    }
    text
}

/// Each kernel as a whole and in each mode.
pub fn rows(outcomes: &[Outcome]) -> Vec<(String, Tally)> {
    let mut rows = Vec::new();
    for outcome in outcomes {
        let title = outcome.guest.title.split(" (").next().unwrap_or_default();
        rows.push((title.to_owned(), Tally::of(&outcome.judged)));
        for mode in Mode::ALL {
            let here = outcome.judged.iter().filter(|one| one.case.mode == mode);
            rows.push((format!("  {}", mode.name()), Tally::of(here)));
        }
    }
    rows
}
