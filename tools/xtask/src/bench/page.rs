//! The figures as a page that needs nothing else: no script, no file beside it.

use super::figures::Figures;
use super::guest::Lab;
use super::plan::{Hot, Outcome};
use super::samples::Metric;
use super::settings::Settings;
use super::svg::{self, Panel, Row, escape};
use super::table::{self, Section, sections};
use super::targets;
use std::fmt::Write;

/// Colours by name, for a light and a dark background; the two systems' differ in lightness, too.
const STYLE: &str = "
:root{color-scheme:light dark;--ink:#1f2328;--paper:#fff;--faint:#d8dee4;--dim:#59636e;--box:#f3f5f7;--ours:#0b7a75;--theirs:#d08030;
--mark:#1f2328;--bad:#b00020}
@media(prefers-color-scheme:dark){:root{--ink:#e6e8ea;--paper:#15181c;--faint:#363c44;--dim:#9aa4af;--box:#21262d;--ours:#2fb5ad;
--theirs:#d9924a;--mark:#fff;--bad:#ff7b89}}
body{font:15px/1.5 system-ui,sans-serif;max-width:1000px;margin:2em auto;padding:0 1em;color:var(--ink);background:var(--paper)}
h1{font-size:1.5em}h2{font-size:1.15em;margin-top:2.4em}table{border-collapse:collapse;font-size:.9em;margin:.6em 0}
td,th{padding:.2em .8em;text-align:right;border-bottom:1px solid var(--faint);font-variant-numeric:tabular-nums}
td:first-child,th:first-child,td.text,th.text{text-align:left}th{color:var(--dim);font-weight:600}
pre{white-space:pre-wrap;background:var(--box);padding:.7em;font-size:.8em;overflow-wrap:anywhere}.wide{overflow-x:auto}
svg{width:100%;height:auto}svg.panel{width:238px;height:167px;margin:2px}svg text{font:12px system-ui,sans-serif;fill:var(--ink)}
svg text.axis{font-size:11px;fill:var(--dim)}svg text.name{font-size:13px}.grid{stroke:var(--faint)}.target{stroke:var(--mark);stroke-width:2.5}
.ours{fill:var(--ours)}.theirs{fill:var(--theirs)}polyline.ours{fill:none}polyline.theirs{fill:none}
polyline.ours,line.ours{stroke:var(--ours)}polyline.theirs,line.theirs{stroke:var(--theirs)}.spread{stroke:var(--ink)}
.over{color:var(--bad);font-weight:600}.ok{color:var(--ours)}.nobr{white-space:nowrap}
.key{display:inline-block;width:.8em;height:.8em;margin:0 .3em 0 1em}.key.ours{background:var(--ours)}.key.theirs{background:var(--theirs)}
.key.mark{background:var(--mark);width:.18em}nav a{color:inherit;margin-right:1.2em;white-space:nowrap}";

/// The whole page; `change` is what a comparison with an earlier run says.
pub fn render(
    lab: &Lab,
    settings: &Settings,
    figures: &Figures,
    outcome: &Outcome,
    change: Option<&str>,
) -> String {
    let mut html = format!(
        "<!DOCTYPE html><html lang=\"en\"><meta charset=\"utf-8\"><title>Pantala and Linux</title>\
         <meta name=\"viewport\" content=\"width=device-width\"><style>{STYLE}</style>\
         <h1>Pantala and Linux, measured side by side</h1>"
    );
    let _ = write!(
        html,
        "<p>Same machine (QEMU, emulated), same image, same static benchmark; {} run(s) of each kind, medians, ± how far \
         the farthest run lies from the median, with ! where that is more than a figure may stray.{} Instructions are exact and made with a clock that counts them; \
         operations a second are those of an emulator and say how the kernels compare, not how fast a processor is.\
         <span class=\"nobr\"><span class=\"key ours\"></span>Pantala \
         <span class=\"key theirs\"></span>Linux \
         <span class=\"key mark\"></span>must be no more</span> (thin lines: spread)</p>",
        settings.runs,
        if settings.quick {
            " A quick run: few repetitions."
        } else {
            ""
        }
    );
    for failure in &outcome.failures {
        let _ = write!(html, "<p class=\"over\">failed: {}</p>", escape(failure));
    }
    navigation(&mut html, figures);
    repeatability(&mut html, figures);
    throughput(&mut html, figures);
    for section in sections(figures) {
        part(&mut html, figures, &section);
    }
    if let Some(change) = change {
        let _ = write!(
            html,
            "<h2>Compared with the earlier run</h2><pre>{}</pre>",
            escape(change.trim())
        );
    }
    functions(&mut html, &outcome.hot);
    html += "<h2>Command lines</h2>";
    for guest in &lab.guests {
        let _ = write!(
            html,
            "<p>{}</p><pre>{}</pre>",
            escape(&guest.title),
            escape(&lab.command_line(guest))
        );
    }
    let _ = write!(
        html,
        "<p>In the guest: <code>{}</code></p></html>",
        escape(&settings.command(super::guest::Kind::Rate))
    );
    html
}

fn anchor(section: &Section) -> String {
    format!("{:?}-{}", section.metric, section.cpus).to_lowercase()
}

fn navigation(html: &mut String, figures: &Figures) {
    *html += "<nav>";
    for section in sections(figures) {
        let title = section.title.split(" an operation").next();
        let title = title.unwrap_or_default().split(" under ").next();
        let cpus = if section.metric == Metric::Rate {
            format!(", {} CPU(s)", section.cpus)
        } else {
            String::new()
        };
        let (to, title) = (anchor(&section), escape(title.unwrap_or_default()));
        let _ = write!(html, "<a href=\"#{to}\">{title}{cpus}</a> ");
    }
    *html += "</nav>";
}

fn repeatability(html: &mut String, figures: &Figures) {
    let (limited, strays) = table::repeatability(figures);
    if limited == 0 {
        return;
    }
    let _ = write!(
        html,
        "<p>{} of {limited} figures of instructions, bytes (limit 2 %) and lines (25 %) repeat within their limit.</p>",
        limited - strays.len()
    );
    if !strays.is_empty() {
        let lines = strays.iter().map(|stray| escape(stray)).collect::<Vec<_>>();
        let _ = write!(
            html,
            "<details><summary>the {} others</summary><pre>{}</pre></details>",
            strays.len(),
            lines.join("\n")
        );
    }
}

fn throughput(html: &mut String, figures: &Figures) {
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
    let _ = write!(
        html,
        "<h2>Operations a second (from 0) as CPUs are added (to the right), all workers together</h2>{}",
        svg::panels(&panels)
    );
}

fn part(html: &mut String, figures: &Figures, section: &Section) {
    let cases = figures.cases(section.metric);
    let _ = write!(
        html,
        "<h2 id=\"{}\">{}</h2>",
        anchor(section),
        escape(&section.title)
    );
    if section.metric != Metric::Rate {
        let value = |case: &str, system: &str| {
            let figure = figures.get(case, section.metric, section.cpus, system);
            figure.cloned()
        };
        let row = |case: &&str| Row {
            name: (*case).to_owned(),
            values: [value(case, "pantala"), value(case, "linux")],
            target: targets::must(case, section.metric),
        };
        *html += &svg::bars(&cases.iter().map(row).collect::<Vec<_>>());
    }
    let promised = cases
        .iter()
        .any(|case| targets::must(case, section.metric).is_some());
    let head = if promised { "<th>must" } else { "" };
    let _ = write!(
        html,
        "<div class=\"wide\"><table><tr><th>case<th>Pantala<th>Linux<th>times better{head}</tr>"
    );
    for case in cases {
        let of = |system| {
            let figure = figures.get(case, section.metric, section.cpus, system);
            table::cell(figure, section.metric)
        };
        let times =
            table::ratio(figures, section, case).map_or("-".into(), |times| format!("{times:.2}"));
        let must = match table::met(figures, section, case) {
            None if promised => "<td>".into(),
            None => String::new(),
            Some((must, met)) => {
                let class = if met { "ok" } else { "over" };
                format!(
                    "<td><span class=\"{class}\">{}</span>",
                    super::figures::people(must)
                )
            }
        };
        let _ = write!(
            html,
            "<tr><td>{}<td>{}<td>{}<td>{times}{must}</tr>",
            escape(case),
            of("pantala"),
            of("linux")
        );
    }
    *html += "</table></div>";
}

fn functions(html: &mut String, hot: &[Hot]) {
    if hot.is_empty() {
        return;
    }
    *html += "<h2>Who moves the lines: functions, with lines an operation (ticks included) and the share that is false sharing</h2>\
              <div class=\"wide\"><table><tr><th>case<th class=\"text\">system<th class=\"text\">function<th>lines<th>false</tr>";
    for entry in hot {
        for (name, moves, falsely) in entry.functions.iter().take(5) {
            let _ = write!(
                html,
                "<tr><td>{}<td class=\"text\">{}<td class=\"text\">{}<td>{}<td>{:.0}%</tr>",
                escape(&entry.case),
                entry.system,
                escape(name),
                super::figures::people(*moves as f64 / entry.ops.max(1.0)),
                *falsely as f64 * 100.0 / (*moves).max(1) as f64
            );
        }
    }
    *html += "</table></div>";
}
