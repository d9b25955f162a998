//! Plots as SVG: grouped bars on a logarithmic axis, and small panels of lines. A thin line through the end of a bar, or
//! through a point, is the spread of its runs.

use crate::figures::{Figure, people};
use maud::{Markup, html};

/// What the plots need of a page's style; the systems' colours differ in lightness, too.
pub const STYLE: &str = "
:root{--ours:#0b7a75;--bytes:#3f6fb5;--hashed:#8a4fa0;--theirs:#d08030;--mark:#1f2328}
@media(prefers-color-scheme:dark){:root{--ours:#2fb5ad;--theirs:#d9924a;--mark:#fff}}
svg{width:100%;height:auto}svg.panel{width:238px;height:167px;margin:2px}svg text{font:12px system-ui,sans-serif;fill:var(--ink)}
svg text.axis{font-size:11px;fill:var(--dim)}svg text.name{font-size:13px}.grid{stroke:var(--faint)}.target{stroke:var(--mark);stroke-width:2.5}
.ours{fill:var(--ours)}.bytes{fill:var(--bytes)}.hashed{fill:var(--hashed)}.theirs{fill:var(--theirs)}polyline.ours{fill:none}polyline.theirs{fill:none}
polyline.ours,line.ours{stroke:var(--ours)}polyline.theirs,line.theirs{stroke:var(--theirs)}.spread{stroke:var(--ink)}
.key{display:inline-block;width:.8em;height:.8em;margin:0 .3em 0 1em}.key.ours{background:var(--ours)}.key.bytes{background:var(--bytes)}.key.hashed{background:var(--hashed)}.key.theirs{background:var(--theirs)}
.key.mark{background:var(--mark);width:.18em}";

/// Classes of Pantala and Linux, by which the page colours them, in the order in which they are drawn.
pub const SYSTEMS: &[&str] = &["ours", "theirs"];

/// Classes of the reverse maps, and of Linux.
pub const RIVALS: &[&str] = &["ours", "bytes", "hashed", "theirs"];

/// A row of bars: a name, and a value for each system.
pub struct Row {
    /// The case.
    pub name: String,
    /// The systems' values.
    pub values: Vec<Option<Figure>>,
    /// Drawn as a mark on the axis.
    pub target: Option<f64>,
}

const LEFT: f64 = 190.0;
const WIDTH: f64 = 620.0;
const BAR: f64 = 11.0;
const TOP: f64 = 26.0;

/// A number of a drawing.
fn at(value: f64) -> String {
    format!("{value:.1}")
}

/// What the colours of systems mean, in words.
pub fn key(systems: &[&str], words: &[&str]) -> Markup {
    html! {
        p {
            @for (class, word) in systems.iter().zip(words) { span class={ "key " (class) } {} (word) " " }
            span class="key mark" {} "must be no more (thin lines: spread)"
        }
    }
}

/// A logarithmic axis that begins a power of ten below the smallest value.
struct Axis {
    low: f64,
    high: f64,
}

impl Axis {
    /// For all values of `rows`; none if there is none above zero.
    fn of(rows: &[Row]) -> Option<Axis> {
        let values = || {
            rows.iter().flat_map(|row| {
                let medians = row.values.iter().flatten().map(|figure| figure.median);
                medians.chain(row.target)
            })
        };
        let smallest = values().filter(|&v| v > 0.0).fold(f64::INFINITY, f64::min);
        let low = (smallest.max(0.01).log10() - 0.05).floor();
        let largest = values().fold(0.0, f64::max).max(0.02);
        let high = largest.log10().ceil().max(low + 1.0);
        smallest.is_finite().then_some(Axis { low, high })
    }

    /// Where `value` lies.
    fn x(&self, value: f64) -> f64 {
        let share = (value.max(1e-9).log10() - self.low) / (self.high - self.low);
        LEFT + WIDTH * share.clamp(0.0, 1.0)
    }
}

/// Height of a row, of so many bars.
fn row_height(bars: usize) -> f64 {
    (BAR + 1.0) * bars as f64 + 8.0
}

/// Horizontal bars, one for each system in each row.
pub fn bars(rows: &[Row], systems: &[&str]) -> Markup {
    let each = row_height(systems.len());
    let Some(axis) = Axis::of(rows) else {
        return html! { p { "No figures." } };
    };
    let height = TOP + each * rows.len() as f64 + 8.0;
    let width = LEFT + WIDTH + 90.0;
    html! {
        svg viewBox={ "0 0 " (width) " " (height) } role="img" style={ "max-width:" (width) "px" } {
            @for power in axis.low as i32..=axis.high as i32 {
                @let x = at(axis.x(10f64.powi(power)));
                line class="grid" x1=(x) x2=(x) y1=(TOP) y2=(height) {}
                text class="axis" x=(x) y=(TOP - 8.0) text-anchor="middle" { (people(10f64.powi(power))) }
            }
            @for (index, row) in rows.iter().enumerate() {
                (group(row, TOP + each * index as f64 + 4.0, systems, &axis))
            }
        }
    }
}

/// One row; its bars begin at `y`.
fn group(row: &Row, y: f64, systems: &[&str], axis: &Axis) -> Markup {
    html! {
        text class="name" x=(LEFT - 8.0) y=(at(y + row_height(systems.len()) / 2.0 - 1.0)) text-anchor="end" { (row.name) }
        @for (which, value) in row.values.iter().enumerate() {
            @if let Some(figure) = value {
                (bar(figure, systems[which], y + (BAR + 1.0) * which as f64, row.target, axis))
            }
        }
        @if let Some(target) = row.target {
            @let x = at(axis.x(target));
            line class="target" x1=(x) x2=(x) y1=(at(y - 2.0)) y2=(at(y + row_height(systems.len()) - 7.0)) {}
        }
    }
}

fn bar(figure: &Figure, system: &str, top: f64, target: Option<f64>, axis: &Axis) -> Markup {
    let (low, high) = figure.reach();
    let (low, end, high) = (axis.x(low), axis.x(figure.median), axis.x(high));
    let number = people(figure.median);
    // Beside the target's mark, not under it.
    let room = high - 3.0..high + 6.0 + 7.0 * number.len() as f64;
    let mark = target
        .map(|target| axis.x(target))
        .filter(|at| room.contains(at));
    let middle = at(top + BAR / 2.0);
    html! {
        rect x=(LEFT) y=(at(top)) width=(at((end - LEFT).max(1.0))) height=(BAR) class=(system) {}
        text class="value" x=(at(mark.unwrap_or(high) + 4.0)) y=(at(top + 9.5)) { (number) }
        @if high - low > 2.0 {
            line class="spread" x1=(at(low)) x2=(at(high)) y1=(middle) y2=(middle) {}
        }
    }
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
pub fn panels(panels: &[Panel]) -> Markup {
    html! { @for one in panels { (panel(one)) } }
}

fn panel(panel: &Panel) -> Markup {
    let points = || panel.lines.iter().flatten();
    let most = points().map(|point| point.1.reach().1).fold(0.0, f64::max);
    let last = f64::from(points().map(|point| point.0).max().unwrap_or(1));
    let last = last.log2().max(1.0);
    let x = |cpus: u32| at(14.0 + (PANEL.0 - 34.0) * f64::from(cpus).log2() / last);
    let y = |value: f64| at(PANEL.1 - 22.0 - (PANEL.1 - 62.0) * value / most.max(1e-9));
    let mut cpus: Vec<u32> = points().map(|point| point.0).collect();
    cpus.sort_unstable();
    cpus.dedup();
    let path = |line: &[(u32, Figure)]| {
        let point = |(n, value): &(u32, Figure)| format!("{},{}", x(*n), y(value.median));
        line.iter().map(point).collect::<Vec<_>>().join(" ")
    };
    html! {
        svg class="panel" viewBox={ "0 0 " (PANEL.0) " " (PANEL.1) } width=(PANEL.0) height=(PANEL.1) {
            text class="name" x="4" y="14" { (panel.name) }
            text class="axis" x="4" y="29" { "up to " (people(most)) "/s" }
            line class="grid" x1="10" x2=(PANEL.0 - 10.0) y1=(y(0.0)) y2=(y(0.0)) {}
            @for &n in &cpus {
                text class="axis" x=(x(n)) y=(PANEL.1 - 7.0) text-anchor="middle" { (n) }
            }
            @for (line, system) in panel.lines.iter().zip(SYSTEMS) {
                polyline class=(system) stroke-width="2" points=(path(line)) {}
                @for (n, value) in line {
                    line class=(system) x1=(x(*n)) x2=(x(*n)) y1=(y(value.reach().0)) y2=(y(value.reach().1)) {}
                    circle cx=(x(*n)) cy=(y(value.median)) r="2.6" class=(system) {}
                }
            }
        }
    }
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
            values: values.map(|value| value.map(figure)).into(),
            target: None,
        };
        let drawn = |rows: &[Row]| bars(rows, SYSTEMS).into_string();
        let svg = drawn(&[
            row("a<b", [Some(10.0), Some(1000.0)]),
            row("c", [None, Some(0.0)]),
        ]);
        let widths: Vec<f64> = svg
            .split(" width=\"")
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
        assert_ne!(drawn(&[with_mark]), drawn(&[row("d", [Some(100.0), None])]));
        assert!(drawn(&[]).contains("No figures"));
        assert!(!svg.contains("spread"));
        let mut wide = row("e", [Some(100.0), None]);
        wide.values[0].as_mut().unwrap().spread = Some(0.5);
        assert!(drawn(&[wide]).contains("spread"));
    }
}
