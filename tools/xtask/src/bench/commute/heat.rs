//! The map, call by call: how many of the cases of a pair conflict, as SVG.

use super::verdict::Tally;
use commute::call::Call;
use std::fmt::Write;

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

/// A square map; rows and columns are [`Call::ALL`].
pub fn map(title: &str, tallies: &[Vec<Tally>]) -> String {
    let size = CELL * Call::ALL.len() as f64;
    let (width, height) = (LEFT + size + 4.0, TOP + size + 4.0);
    let mut svg =
        format!("<svg viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{title}\">");
    for (index, call) in Call::ALL.iter().enumerate() {
        let at = CELL * index as f64 + CELL / 2.0;
        let _ = write!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{name}</text>\
             <text x=\"0\" y=\"0\" transform=\"translate({:.1},{:.1}) rotate(-55)\">{name}</text>",
            LEFT - 5.0,
            TOP + at + 4.0,
            LEFT + at + 2.0,
            TOP - 5.0,
            name = call.name()
        );
    }
    for (row, line) in tallies.iter().enumerate() {
        for (column, tally) in line.iter().enumerate() {
            cell(&mut svg, row, column, tally);
        }
    }
    svg + "</svg>"
}

fn cell(svg: &mut String, row: usize, column: usize, tally: &Tally) {
    let (x, y) = (LEFT + CELL * column as f64, TOP + CELL * row as f64);
    let calls = format!("{} and {}", Call::ALL[row].name(), Call::ALL[column].name());
    if tally.judged == 0 {
        let _ = write!(
            svg,
            "<rect class=\"none\" x=\"{x}\" y=\"{y}\" width=\"{CELL}\" height=\"{CELL}\">\
             <title>{calls}: no case was judged</title></rect>"
        );
        return;
    }
    let percent = tally.percent(tally.conflicting());
    let (fill, dark) = colour(percent / 100.0);
    let _ = write!(
        svg,
        "<rect class=\"cell\" x=\"{x}\" y=\"{y}\" width=\"{CELL}\" height=\"{CELL}\" fill=\"{fill}\">\
         <title>{calls}: {} of {} cases conflict, {} of them by false sharing, {} only by atomic instructions; {} rarely</title></rect>",
        tally.conflicting(),
        tally.judged,
        tally.falsely,
        tally.atomic,
        tally.rare
    );
    if tally.conflicting() > 0 {
        let class = if dark { "number light" } else { "number" };
        let _ = write!(
            svg,
            "<text class=\"{class}\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            x + CELL / 2.0,
            y + CELL / 2.0 + 3.5,
            people(percent)
        );
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
pub fn key() -> String {
    let mut svg = String::from("<svg class=\"scale\" viewBox=\"0 0 420 30\">");
    for step in 0..=10 {
        let share = f64::from(step) / 10.0;
        let _ = write!(
            svg,
            "<rect class=\"cell\" x=\"{}\" y=\"2\" width=\"18\" height=\"12\" fill=\"{}\"/>",
            2 + 18 * step,
            colour(share).0
        );
    }
    svg + "<text x=\"2\" y=\"26\">0</text><text x=\"200\" y=\"26\" text-anchor=\"end\">100 % conflict</text>\
           <rect class=\"none\" x=\"240\" y=\"2\" width=\"18\" height=\"12\"/><text x=\"264\" y=\"12\">no case</text></svg>"
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
        let svg = super::map("x", &map);
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
