//! The figures as a page that needs nothing else: no script, no file beside it.

use super::figures::Figures;
use super::guest::Lab;
use super::plan::{Hot, Outcome};
use super::samples::Metric;
use super::settings::Settings;
use super::svg::{self, COLOURS, Panel, Row, escape};
use super::table::{self, Section, sections};
use super::targets;
use std::fmt::Write;

const STYLE: &str = "
body{font:15px/1.45 system-ui,sans-serif;max-width:960px;margin:2em auto;padding:0 1em;color:#222;background:#fff}
h1{font-size:1.5em}h2{font-size:1.15em;margin-top:2em}table{border-collapse:collapse;font-size:.9em}
td,th{padding:.15em .7em;text-align:right;border-bottom:1px solid #e4e4e4}td:first-child,th:first-child{text-align:left}
pre{white-space:pre-wrap;background:#f5f5f5;padding:.7em;font-size:.8em;overflow-wrap:anywhere}
svg{width:100%;height:auto}svg.panel{width:200px;height:140px;margin:4px}svg text{font:11px system-ui,sans-serif;fill:#333}
svg text.axis{fill:#777}svg text.name{font-size:12px}.grid{stroke:#ddd}.target{stroke:#111;stroke-width:2}
.over{color:#b00020;font-weight:600}.ok{color:#0b7a75}.nobr{white-space:nowrap}.key{display:inline-block;width:.8em;height:.8em;margin:0 .3em 0 1em}";

/// The whole page.
pub fn render(lab: &Lab, settings: &Settings, figures: &Figures, outcome: &Outcome) -> String {
    let mut html = format!(
        "<!DOCTYPE html><html lang=\"en\"><meta charset=\"utf-8\"><title>Pantala and Linux</title><style>{STYLE}</style>\
         <h1>Pantala and Linux, measured side by side</h1>"
    );
    let _ = write!(
        html,
        "<p>Same machine (QEMU, emulated), same image, same static benchmark; {} run(s) of each kind, medians, ± half the \
         distance between the extremes.{} Instructions are exact and made with a clock that counts them; \
         operations a second are those of an emulator and say how the kernels compare, not how fast a processor is.\
         <span class=\"nobr\"><span class=\"key\" style=\"background:{}\"></span>Pantala \
         <span class=\"key\" style=\"background:{}\"></span>Linux \
         <span class=\"key\" style=\"background:#111;width:.15em\"></span>target</span></p>",
        settings.runs,
        if settings.quick {
            " A quick run: few repetitions."
        } else {
            ""
        },
        COLOURS[0],
        COLOURS[1]
    );
    for failure in &outcome.failures {
        let _ = write!(html, "<p class=\"over\">failed: {}</p>", escape(failure));
    }
    throughput(&mut html, figures);
    for section in sections(figures) {
        part(&mut html, figures, &section);
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
        escape(&settings.command())
    );
    html
}

fn throughput(html: &mut String, figures: &Figures) {
    let cpus = figures.cpus(Metric::Rate);
    if cpus.len() < 2 {
        return;
    }
    let line = |case: &str, system: &str| {
        let at = |&n: &u32| Some((n, figures.get(case, Metric::Rate, n, system)?.median));
        cpus.iter().filter_map(at).collect::<Vec<_>>()
    };
    let panel = |case: &&str| Panel {
        name: (*case).to_owned(),
        lines: [line(case, "pantala"), line(case, "linux")],
    };
    let panels: Vec<Panel> = figures.cases(Metric::Rate).iter().map(panel).collect();
    let _ = write!(
        html,
        "<h2>Operations a second as CPUs are added, all workers together</h2>{}",
        svg::panels(&panels)
    );
}

fn part(html: &mut String, figures: &Figures, section: &Section) {
    let cases = figures.cases(section.metric);
    let _ = write!(html, "<h2>{}</h2>", escape(&section.title));
    if section.metric != Metric::Rate {
        let value = |case: &str, system: &str| {
            Some(
                figures
                    .get(case, section.metric, section.cpus, system)?
                    .median,
            )
        };
        let row = |case: &&str| Row {
            name: (*case).to_owned(),
            values: [value(case, "pantala"), value(case, "linux")],
            target: targets::must(case, section.metric),
        };
        *html += &svg::bars(&cases.iter().map(row).collect::<Vec<_>>());
    }
    *html += "<table><tr><th>case<th>Pantala<th>Linux<th>times better<th>must</tr>";
    for case in cases {
        let of = |system| table::cell(figures.get(case, section.metric, section.cpus, system));
        let times =
            table::ratio(figures, section, case).map_or("-".into(), |times| format!("{times:.2}"));
        let must = match table::met(figures, section, case) {
            None => String::new(),
            Some((must, met)) => {
                let class = if met { "ok" } else { "over" };
                format!(
                    "<span class=\"{class}\">{}</span>",
                    super::figures::people(must)
                )
            }
        };
        let _ = write!(
            html,
            "<tr><td>{}<td>{}<td>{}<td>{times}<td>{must}</tr>",
            escape(case),
            of("pantala"),
            of("linux")
        );
    }
    *html += "</table>";
}

fn functions(html: &mut String, hot: &[Hot]) {
    if hot.is_empty() {
        return;
    }
    *html += "<h2>Who moves the lines: functions, with lines an operation (ticks included) and the share that is false sharing</h2>\
              <table><tr><th>case<th>system<th>function<th>lines<th>false</tr>";
    for entry in hot {
        for (name, moves, falsely) in entry.functions.iter().take(5) {
            let _ = write!(
                html,
                "<tr><td>{}<td>{}<td>{}<td>{}<td>{:.0}%</tr>",
                escape(&entry.case),
                entry.system,
                escape(name),
                super::figures::people(*moves as f64 / entry.ops.max(1.0)),
                *falsely as f64 * 100.0 / (*moves).max(1) as f64
            );
        }
    }
    *html += "</table>";
}
