//! The map, call by call: how many of the cases of a pair conflict, as SVG.

use super::verdict::Tally;
use commute::call::Call;
use maud::{Markup, html};

const CELL: f64 = 25.0;
const LEFT: f64 = 62.0;
const TOP: f64 = 58.0;

/// Colours from none to all; light to dark, so that they can be told apart without hue.
const SCALE: [(u8, u8, u8); 5] = [
    (0xff, 0xff, 0xff),
    (0xfd, 0xd9, 0xa0),
    (0xf5, 0x93, 0x4c),
    (0xcf, 0x3f, 0x2a),
    (0x7a, 0x08, 0x1c),
];

/// What the map needs of a page's style. Maps are light on any background, for their scale goes from white to dark.
pub const STYLE: &str = "
.maps{display:flex;flex-wrap:wrap;gap:24px}.maps figure{margin:0;flex:1 1 520px;max-width:600px}
figcaption{font-weight:600;margin-bottom:.3em}svg{width:100%;height:auto}svg.scale{width:420px}
svg text{font:11px system-ui,sans-serif;fill:var(--ink)}svg text.number{font-size:9.5px;fill:#333}svg text.light{fill:#fff}
.cell{stroke:#ddd;stroke-width:.6}.none{fill:#eceff1;stroke:#ddd;stroke-width:.6}";

/// A square map; rows and columns are [`Call::ALL`].
pub fn map(title: &str, tallies: &[Vec<Tally>]) -> Markup {
    let size = CELL * Call::ALL.len() as f64;
    let (width, height) = (LEFT + size + 4.0, TOP + size + 4.0);
    html! {
        svg viewBox={ "0 0 " (width) " " (height) } role="img" aria-label=(title) {
            @for (index, call) in Call::ALL.iter().enumerate() {
                @let middle = CELL * index as f64 + CELL / 2.0;
                @let turned = format!("translate({:.1},{:.1}) rotate(-55)", LEFT + middle + 2.0, TOP - 5.0);
                text x=(LEFT - 5.0) y=(TOP + middle + 4.0) text-anchor="end" { (call.name()) }
                text x="0" y="0" transform=(turned) { (call.name()) }
            }
            @for (row, line) in tallies.iter().enumerate() {
                @for (column, tally) in line.iter().enumerate() { (cell(row, column, tally)) }
            }
        }
    }
}

fn cell(row: usize, column: usize, tally: &Tally) -> Markup {
    let (x, y) = (LEFT + CELL * column as f64, TOP + CELL * row as f64);
    let calls = format!("{} and {}", Call::ALL[row].name(), Call::ALL[column].name());
    if tally.judged == 0 {
        return html! {
            rect class="none" x=(x) y=(y) width=(CELL) height=(CELL) { title { (calls) ": no case was judged" } }
        };
    }
    let percent = tally.percent(tally.conflicting());
    let (fill, dark) = colour(percent / 100.0);
    let counts = format!(
        "{calls}: {} of {} cases conflict, {} of them by false sharing, {} only by atomic instructions; {} rarely",
        tally.conflicting(),
        tally.judged,
        tally.falsely,
        tally.atomic,
        tally.rare
    );
    html! {
        rect class="cell" x=(x) y=(y) width=(CELL) height=(CELL) fill=(fill) { title { (counts) } }
        @if tally.conflicting() > 0 {
            text.number.light[dark] x=(x + CELL / 2.0) y=(y + CELL / 2.0 + 3.5) text-anchor="middle" { (people(percent)) }
        }
    }
}

/// A share in percent, such that only none is 0 and only all is 100.
pub fn people(percent: f64) -> u32 {
    match percent.round() as u32 {
        0 if percent > 0.0 => 1,
        100 if percent < 100.0 => 99,
        whole => whole,
    }
}

/// The colour of a share, and whether it is dark.
pub fn colour(share: f64) -> (String, bool) {
    let at = share.clamp(0.0, 1.0) * (SCALE.len() - 1) as f64;
    let from = (at as usize).min(SCALE.len() - 2);
    let (a, b) = (SCALE[from], SCALE[from + 1]);
    let mix =
        |a: u8, b: u8| (f64::from(a) + (f64::from(b) - f64::from(a)) * (at - from as f64)) as u8;
    let text = format!(
        "#{:02x}{:02x}{:02x}",
        mix(a.0, b.0),
        mix(a.1, b.1),
        mix(a.2, b.2)
    );
    (text, share > 0.6)
}

/// What the colours mean.
pub fn key() -> Markup {
    html! {
        svg class="scale" viewBox="0 0 420 30" {
            @for step in 0..=10 {
                rect class="cell" x=(2 + 18 * step) y="2" width="18" height="12" fill=(colour(f64::from(step) / 10.0).0) {}
            }
            text x="2" y="26" { "0" }
            text x="200" y="26" text-anchor="end" { "100 % conflict" }
            rect class="none" x="240" y="2" width="18" height="12" {}
            text x="264" y="12" { "no case" }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_for_each_pair_and_numbers_only_where_something_conflicts() {
        let n = Call::ALL.len();
        let free = Tally {
            judged: 4,
            free: 4,
            ..Tally::default()
        };
        let mut map = vec![vec![free; n]; n];
        map[0][1] = Tally {
            judged: 3,
            free: 1,
            rare: 1,
            ..Tally::default()
        };
        map[2][2] = Tally::default();
        let svg = super::map("x", &map).into_string();
        assert_eq!(svg.matches("class=\"cell\"").count(), n * n - 1);
        assert_eq!(svg.matches("class=\"none\"").count(), 1);
        assert_eq!(svg.matches("class=\"number").count(), 1);
        assert!(svg.contains(">33<"), "a third conflicts");
    }

    #[test]
    fn only_none_is_0_and_only_all_is_100() {
        assert_eq!(
            [0.0, 0.01, 49.6, 99.99, 100.0].map(people),
            [0, 1, 50, 99, 100]
        );
        assert_eq!(colour(0.0), ("#ffffff".into(), false));
        assert_eq!(colour(1.0), ("#7a081c".into(), true));
    }
}
