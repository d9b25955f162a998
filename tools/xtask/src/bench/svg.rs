//! Plots as SVG text: paired bars on a logarithmic axis, and small panels of lines. A thin line through the end of a bar, or
//! through a point, is the spread of its runs.

use super::figures::{Figure, people};
use std::fmt::Write;

/// Classes of the systems, by which the page colours them, in the order in which they are drawn.
const SYSTEMS: [&str; 2] = ["ours", "theirs"];

/// A row of paired bars: a name, and a value for each system.
pub struct Row {
    /// The case.
    pub name: String,
    /// Pantala's and Linux's value.
    pub values: [Option<Figure>; 2],
    /// Drawn as a mark on the axis.
    pub target: Option<f64>,
}

const LEFT: f64 = 190.0;
const WIDTH: f64 = 620.0;
const BAR: f64 = 11.0;
const ROW: f64 = 32.0;
const TOP: f64 = 26.0;

/// Escapes what HTML would take for markup.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// Paired horizontal bars; the axis is logarithmic and begins a power of ten below the smallest value.
pub fn bars(rows: &[Row]) -> String {
    let values = || {
        rows.iter().flat_map(|row| {
            row.values
                .iter()
                .flatten()
                .map(|figure| figure.median)
                .chain(row.target)
        })
    };
    let smallest = values().filter(|&v| v > 0.0).fold(f64::INFINITY, f64::min);
    if !smallest.is_finite() {
        return "<p>No figures.</p>".into();
    }
    let low = (smallest.max(0.01).log10() - 0.05).floor();
    let high = values()
        .fold(0.0, f64::max)
        .max(0.02)
        .log10()
        .ceil()
        .max(low + 1.0);
    let x = |value: f64| {
        LEFT + WIDTH * ((value.max(1e-9).log10() - low) / (high - low)).clamp(0.0, 1.0)
    };
    let height = TOP + ROW * rows.len() as f64 + 8.0;
    let mut svg = format!(
        "<svg viewBox=\"0 0 {} {height}\" role=\"img\" style=\"max-width:{}px\">",
        LEFT + WIDTH + 90.0,
        LEFT + WIDTH + 90.0
    );
    for power in low as i32..=high as i32 {
        let at = x(10f64.powi(power));
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{height}\"/>\
             <text class=\"axis\" x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            TOP - 8.0,
            people(10f64.powi(power))
        );
    }
    for (index, row) in rows.iter().enumerate() {
        let y = TOP + ROW * index as f64 + 4.0;
        let _ = write!(
            svg,
            "<text class=\"name\" x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 8.0,
            y + 15.0,
            escape(&row.name)
        );
        for (which, value) in row.values.iter().enumerate() {
            let (top, Some(value)) = (y + BAR * which as f64 + which as f64, value) else {
                continue;
            };
            let (low, high) = value.reach();
            let (low, end, high) = (x(low), x(value.median), x(high));
            let number = people(value.median);
            // Beside the target's mark, not under it.
            let room = high - 3.0..high + 6.0 + 7.0 * number.len() as f64;
            let mark = row.target.map(x).filter(|at| room.contains(at));
            let label = mark.unwrap_or(high) + 4.0;
            let _ = write!(
                svg,
                "<rect x=\"{LEFT}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{BAR}\" class=\"{}\"/>\
                 <text class=\"value\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                (end - LEFT).max(1.0),
                SYSTEMS[which],
                label,
                top + 9.5,
                number
            );
            if high - low > 2.0 {
                let middle = top + BAR / 2.0;
                let _ = write!(
                    svg,
                    "<line class=\"spread\" x1=\"{low:.1}\" x2=\"{high:.1}\" y1=\"{middle:.1}\" y2=\"{middle:.1}\"/>"
                );
            }
        }
        if let Some(target) = row.target {
            let at = x(target);
            let _ = write!(
                svg,
                "<line class=\"target\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{:.1}\" y2=\"{:.1}\"/>",
                y - 2.0,
                y + 2.0 * BAR + 3.0
            );
        }
    }
    svg + "</svg>"
}

/// One panel: for each system the values at each number of CPUs.
pub struct Panel {
    /// The case.
    pub name: String,
    /// Points (CPUs, value) of each system.
    pub lines: [Vec<(u32, Figure)>; 2],
}

const PANEL: (f64, f64) = (200.0, 140.0);

/// Small panels beside each other, each with its own vertical axis from 0.
pub fn panels(panels: &[Panel]) -> String {
    panels.iter().map(panel).collect::<Vec<_>>().concat()
}

fn panel(panel: &Panel) -> String {
    let points = || panel.lines.iter().flatten();
    let most = points().map(|point| point.1.reach().1).fold(0.0, f64::max);
    let last = f64::from(points().map(|point| point.0).max().unwrap_or(1))
        .log2()
        .max(1.0);
    let x = |cpus: u32| 14.0 + (PANEL.0 - 34.0) * f64::from(cpus).log2() / last;
    let y = |value: f64| PANEL.1 - 22.0 - (PANEL.1 - 62.0) * value / most.max(1e-9);
    let mut svg = format!(
        "<svg class=\"panel\" viewBox=\"0 0 {} {}\" width=\"{}\" height=\"{}\">\
         <text class=\"name\" x=\"4\" y=\"14\">{}</text><text class=\"axis\" x=\"4\" y=\"29\">up to {}/s</text>\
         <line class=\"grid\" x1=\"10\" x2=\"{}\" y1=\"{:.1}\" y2=\"{:.1}\"/>",
        PANEL.0,
        PANEL.1,
        PANEL.0,
        PANEL.1,
        escape(&panel.name),
        people(most),
        PANEL.0 - 10.0,
        y(0.0),
        y(0.0)
    );
    let mut cpus: Vec<u32> = points().map(|point| point.0).collect();
    cpus.sort_unstable();
    cpus.dedup();
    for &n in &cpus {
        let at = x(n);
        let _ = write!(
            svg,
            "<text class=\"axis\" x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{n}</text>",
            PANEL.1 - 7.0
        );
    }
    for (line, system) in panel.lines.iter().zip(SYSTEMS) {
        let path: Vec<String> = line
            .iter()
            .map(|(n, value)| format!("{:.1},{:.1}", x(*n), y(value.median)))
            .collect();
        let _ = write!(
            svg,
            "<polyline class=\"{system}\" stroke-width=\"2\" points=\"{}\"/>",
            path.join(" ")
        );
        for (n, value) in line {
            let (at, (low, high)) = (x(*n), value.reach());
            let _ = write!(
                svg,
                "<line class=\"{system}\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{:.1}\" y2=\"{:.1}\"/>\
                 <circle cx=\"{at:.1}\" cy=\"{:.1}\" r=\"2.6\" class=\"{system}\"/>",
                y(low),
                y(high),
                y(value.median)
            );
        }
    }
    svg + "</svg>"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_of_larger_values_are_longer_and_missing_ones_absent() {
        let figure = |median| Figure {
            median,
            spread: None,
        };
        let row = |name: &str, values: [Option<f64>; 2]| Row {
            name: name.into(),
            values: values.map(|value| value.map(figure)),
            target: None,
        };
        let svg = bars(&[
            row("a<b", [Some(10.0), Some(1000.0)]),
            row("c", [None, Some(0.0)]),
        ]);
        let widths: Vec<f64> = svg
            .split("width=\"")
            .skip(1)
            .filter_map(|part| part.split('"').next()?.parse().ok())
            .collect();
        assert_eq!(widths.len(), 3, "{svg}");
        assert!(widths[0] < widths[1] && widths[2] <= 1.0, "{widths:?}");
        assert!(svg.contains("a&lt;b"));
        let with_mark = Row {
            target: Some(105.0),
            ..row("d", [Some(100.0), None])
        };
        assert_ne!(bars(&[with_mark]), bars(&[row("d", [Some(100.0), None])]));
        assert!(bars(&[]).contains("No figures"));
        assert!(!svg.contains("spread"));
        let mut wide = row("e", [Some(100.0), None]);
        wide.values[0].as_mut().unwrap().spread = Some(0.5);
        assert!(bars(&[wide]).contains("spread"));
    }
}
