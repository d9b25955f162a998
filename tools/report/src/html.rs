//! A report as a page.

use crate::table::{Align, Table};
use crate::{Part, Style, Text};
use maud::{DOCTYPE, Markup, PreEscaped, html};

/// Rules for what every report has, for a light and a dark background; plots may use its colours.
const STYLE: &str = "
:root{color-scheme:light dark;--ink:#1f2328;--paper:#fff;--faint:#d8dee4;--dim:#59636e;--box:#f3f5f7;--good:#0b7a75;--bad:#b00020}
@media(prefers-color-scheme:dark){:root{--ink:#e6e8ea;--paper:#15181c;--faint:#363c44;--dim:#9aa4af;--box:#21262d;--good:#2fb5ad;
--bad:#ff7b89}}
body{font:15px/1.5 system-ui,sans-serif;max-width:1100px;margin:2em auto;padding:0 1em;color:var(--ink);background:var(--paper)}
h1{font-size:1.5em}h2{font-size:1.15em;margin-top:2.4em}table{border-collapse:collapse;font-size:.9em;margin:.6em 0}
td,th{padding:.2em .8em;text-align:right;border-bottom:1px solid var(--faint);font-variant-numeric:tabular-nums;vertical-align:top}
td.text,th.text{text-align:left}th{color:var(--dim);font-weight:600}.wide{overflow-x:auto}code{font-size:.92em;overflow-wrap:anywhere}
pre{white-space:pre-wrap;background:var(--box);padding:.7em;font-size:.8em;overflow-wrap:anywhere}
nav a{color:inherit;margin-right:1.2em;white-space:nowrap}details{margin:.2em 0}summary{cursor:pointer}
.good{color:var(--good)}.bad{color:var(--bad);font-weight:600}.dim{color:var(--dim)}";

pub(crate) fn render(title: &str, style: &str, parts: &[&Part]) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width";
                title { (title) }
                style { (PreEscaped(STYLE)) (PreEscaped(style)) }
            }
            body {
                h1 { (title) }
                (list(parts))
                @for (number, shown) in parts.iter().enumerate() { (part(number, shown)) }
            }
        }
    }
}

/// Links to the headings that ask for one.
fn list(parts: &[&Part]) -> Markup {
    let links: Vec<(usize, &String)> = parts
        .iter()
        .enumerate()
        .filter_map(|(number, part)| match part {
            Part::Heading { short, .. } => Some((number, short.as_ref()?)),
            _ => None,
        })
        .collect();
    html! {
        @if links.len() > 1 {
            nav { @for (number, short) in links { a href={ "#" (anchor(number)) } { (short) } " " } }
        }
    }
}

fn anchor(number: usize) -> String {
    format!("part-{number}")
}

fn part(number: usize, part: &Part) -> Markup {
    match part {
        Part::Heading { text, .. } => html! { h2 id=(anchor(number)) { (text) } },
        Part::Note(note) => html! { p { (spans(note)) } },
        Part::Verbatim(lines) => html! { pre { (lines.trim_end()) } },
        Part::Table(rows) => table(rows),
        Part::Fold(summary, rows) => {
            html! { details { summary { (spans(summary)) } (table(rows)) } }
        }
        Part::Plot(plot) => plot.clone(),
    }
}

fn table(table: &Table) -> Markup {
    let class = |at: usize| match table.columns.get(at).map(|column| column.align) {
        Some(Align::Left) => Some("text"),
        _ => None,
    };
    html! {
        div class="wide" {
            table {
                tr { @for (at, column) in table.columns.iter().enumerate() { th class=[class(at)] { (column.name) } } }
                @for row in &table.rows {
                    tr { @for (at, cell) in row.iter().enumerate() { td class=[class(at)] { (spans(cell)) } } }
                }
            }
        }
    }
}

fn spans(text: &Text) -> Markup {
    html! {
        @for span in &text.0 {
            @match span.style {
                Style::Plain => (span.text),
                Style::Strong => b { (span.text) },
                Style::Code => code { (span.text) },
                Style::Dim => span class="dim" { (span.text) },
                Style::Good => span class="good" { (span.text) },
                Style::Bad => span class="bad" { (span.text) },
            }
        }
    }
}
