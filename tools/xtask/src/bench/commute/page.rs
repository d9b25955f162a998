//! The maps side by side, the lines in the way and every conflict, as one page without script.

use super::super::guest::Lab;
use super::super::svg::escape;
use super::verdict::{Judged, by_calls};
use super::{Outcome, culprit, heat, plan, table};
use commute::call::Call;
use std::fmt::Write;

const STYLE: &str = "
body{font:15px/1.45 system-ui,sans-serif;max-width:1240px;margin:2em auto;padding:0 1em;color:#222;background:#fff}
h1{font-size:1.5em}h2{font-size:1.15em;margin-top:2em}table{border-collapse:collapse;font-size:.88em}
td,th{padding:.18em .7em;text-align:right;border-bottom:1px solid #e4e4e4;vertical-align:top}
td.l,th.l{text-align:left}td.sub{padding-left:2em}code{font-size:.92em;overflow-wrap:anywhere}
.maps{display:flex;flex-wrap:wrap;gap:24px}.maps figure{margin:0;flex:1 1 520px;max-width:600px}
figcaption{font-weight:600;margin-bottom:.3em}svg{width:100%;height:auto}svg.scale{width:420px}
svg text{font:11px system-ui,sans-serif;fill:#333}svg text.number{font-size:9.5px}svg text.light{fill:#fff}
.cell{stroke:#ddd;stroke-width:.6}.none{fill:#eceff1;stroke:#ddd;stroke-width:.6}
pre{white-space:pre-wrap;background:#f5f5f5;padding:.7em;font-size:.8em;overflow-wrap:anywhere}
.over{color:#b00020;font-weight:600}details{margin:.2em 0}summary{cursor:pointer}.tag{color:#777;font-size:.9em}";

/// Culprits shown for each kernel.
const TOP: usize = 30;

/// The whole page.
pub fn render(lab: &Lab, outcomes: &[Outcome]) -> String {
    let mut html = format!(
        "<!DOCTYPE html><html lang=\"en\"><meta charset=\"utf-8\"><title>Commuting operations</title><style>{STYLE}</style>\
         <h1>Operations that commute, and the kernel lines that they share</h1>\
         <p>Each case is two operations whose results do not depend on their order, one on each of two CPUs. It conflicts if, in \
         most of three warm rounds, both CPUs' kernels touch a 64-byte line that one of them changes: then the two \
         cannot scale. A cell is the share of a pair's cases that conflict; point at it for counts.</p>"
    );
    summary(&mut html, outcomes);
    html += "<h2>Share of cases that conflict</h2><div class=\"maps\">";
    for outcome in outcomes {
        let map = heat::map(&outcome.guest.title, &by_calls(&outcome.judged));
        let _ = write!(
            html,
            "<figure><figcaption>{}</figcaption>{map}</figure>",
            escape(&outcome.guest.title)
        );
    }
    let _ = write!(html, "</div>{}", heat::key());
    for outcome in outcomes {
        errors(&mut html, outcome);
        culprits(&mut html, outcome);
    }
    for outcome in outcomes {
        conflicts(&mut html, outcome);
    }
    html += "<h2>Command lines</h2>";
    for outcome in outcomes {
        let _ = write!(
            html,
            "<p>{}</p><pre>{}</pre>",
            escape(&outcome.guest.title),
            escape(&lab.command_line_of(outcome.guest, &plan::trial("commute")))
        );
    }
    html + "</html>"
}

fn summary(html: &mut String, outcomes: &[Outcome]) {
    *html += "<table><tr><th class=\"l\">kernel<th>cases<th>free<th>rarely shared<th>conflict<th>by false sharing alone\
              <th>by atomics alone<th>wrong<th>disturbed by ticks</tr>";
    for (name, tally) in table::rows(outcomes) {
        let class = if name.starts_with(' ') { "l sub" } else { "l" };
        let share = |some: usize| format!("{:.1} %", tally.percent(some));
        let _ = write!(
            html,
            "<tr><td class=\"{class}\">{}<td>{}<td><b>{}</b><td>{}<td>{}<td>{}<td>{}<td>{}<td>{}</tr>",
            escape(name.trim()),
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
    *html += "</table>";
}

fn errors(html: &mut String, outcome: &Outcome) {
    for failure in &outcome.failed {
        let _ = write!(html, "<p class=\"over\">failed: {}</p>", escape(failure));
    }
    for one in outcome.judged.iter().filter(|one| one.is_wrong()) {
        let name = escape(&one.case.name());
        let _ = write!(
            html,
            "<p class=\"over\">wrong in {}: {name}</p>",
            outcome.guest.system
        );
    }
}

fn line(line: &culprit::Line) -> String {
    let datum = line.datum.as_deref().map(escape);
    let datum = datum.map_or(String::new(), |name| format!("<b>{name}</b> "));
    let falsely = match line.false_sharing {
        true => " <span class=\"tag\">false sharing</span>",
        false => "",
    };
    let [first, second] = [0, 1].map(|index| escape(&line.cpus[index]));
    format!("{datum}<code>{first}</code> | <code>{second}</code>{falsely}")
}

fn culprits(html: &mut String, outcome: &Outcome) {
    let _ = write!(
        html,
        "<h2>Lines in the way in {}</h2><table><tr><th>cases<th>no other line<th class=\"l\">who changes it, who touches it\
         <th class=\"l\">for example</tr>",
        escape(&outcome.guest.title)
    );
    for culprit in outcome.culprits.iter().take(TOP) {
        let _ = write!(
            html,
            "<tr><td>{}<td>{}<td class=\"l\">{}<td class=\"l\">{}</tr>",
            culprit.cases,
            culprit.alone,
            line(&culprit.line),
            escape(&culprit.example)
        );
    }
    *html += "</table>";
}

/// Every case that conflicts, under its pair of calls, with the first of its lines.
fn conflicts(html: &mut String, outcome: &Outcome) {
    let _ = write!(
        html,
        "<h2>Every conflict in {}</h2>",
        escape(&outcome.guest.title)
    );
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
            let _ = write!(
                html,
                "<details><summary>{} and {}: {}</summary><table>",
                a.name(),
                b.name(),
                found.len()
            );
            for one in found {
                let named = one
                    .lines
                    .first()
                    .map(|l| culprit::describe(&outcome.guest.symbols, l));
                let _ = write!(
                    html,
                    "<tr><td class=\"l\">{}<td>{}<td class=\"l\">{}</tr>",
                    escape(&one.case.name()),
                    one.lines.len(),
                    named.as_ref().map_or(String::new(), line)
                );
            }
            *html += "</table></details>";
        }
    }
}
