//! A report for the terminal.

use crate::table::{Align, Table};
use crate::{Part, Text};
use std::fmt::Write;

/// What stands before a row.
const INDENT: &str = "  ";
/// What stands between columns.
const GAP: &str = "  ";

pub(crate) fn render<'a>(parts: impl Iterator<Item = &'a Part>) -> String {
    let mut text = String::new();
    for part in parts {
        match part {
            Part::Heading { text: heading, .. } => line(&mut text, &format!("\n{heading}")),
            Part::Note(note) => line(&mut text, &note.to_string()),
            Part::Verbatim(lines) => lines
                .lines()
                .for_each(|one| line(&mut text, &format!("{INDENT}{one}"))),
            Part::Table(rows) => table(&mut text, rows),
            Part::Fold(summary, rows) => {
                line(&mut text, &summary.to_string());
                table(&mut text, rows);
            }
            // Its figures are in a table.
            Part::Plot(_) => {}
        }
    }
    text
}

fn line(text: &mut String, line: &str) {
    text.push_str(line.trim_end_matches(' '));
    text.push('\n');
}

fn table(text: &mut String, table: &Table) {
    let heads: Vec<Text> = table
        .columns
        .iter()
        .map(|column| column.name.as_str().into())
        .collect();
    let rows = || table.rows.iter().take(table.shown);
    let widths: Vec<usize> = heads
        .iter()
        .enumerate()
        .map(|(at, head)| {
            let cells = rows().filter_map(|row| row.get(at));
            cells.map(Text::width).max().unwrap_or(0).max(head.width())
        })
        .collect();
    let named = heads.iter().any(|head| head.width() > 0);
    for row in named.then_some(&heads).into_iter().chain(rows()) {
        let mut out = String::from(INDENT);
        for ((cell, width), column) in row.iter().zip(&widths).zip(&table.columns) {
            let blank = " ".repeat(width - cell.width());
            let _infallible = match column.align {
                Align::Left => write!(out, "{cell}{blank}{GAP}"),
                Align::Right => write!(out, "{blank}{cell}{GAP}"),
            };
        }
        line(text, &out);
    }
    if table.hidden() > 0 {
        line(
            text,
            &format!("{INDENT}({} more on the page)", table.hidden()),
        );
    }
}
