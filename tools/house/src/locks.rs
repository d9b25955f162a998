//! `doc/locks.md` has each class of locks with its rank, and each rank in one of its ranges.

use crate::{Finding, Tree, code};
use proc_macro2::{TokenStream, TokenTree};

/// Where the table is.
pub const TABLE: &str = "doc/locks.md";

struct Class {
    file: String,
    line: usize,
    name: String,
    rank: u32,
}

/// Classes and rows without their counterparts, ranks without a range, ranges without a rank.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let Some(table) = tree.file(TABLE) else {
        return vec![Finding::new(
            TABLE,
            1,
            "the table of locks is missing",
            "write it",
        )];
    };
    let (classes, rows, ranges) = (declared(tree), rows(&table.text), ranges(&table.text));
    let mut found = Vec::new();
    for class in &classes {
        found.extend(check_class(class, &rows));
        found.extend(check_rank(class, &ranges));
    }
    for row in rows
        .iter()
        .filter(|row| !classes.iter().any(|c| c.name == row.name))
    {
        found.push(Finding::new(
            TABLE,
            row.line,
            format!("no code declares the lock class \"{}\"", row.name),
            "take the row out, or write the name that the code has",
        ));
    }
    for pair in rows.windows(2).filter(|pair| pair[0].rank > pair[1].rank) {
        found.push(Finding::new(
            TABLE,
            pair[1].line,
            format!("\"{}\" stands below a higher rank", pair[1].name),
            "sort the rows by rank",
        ));
    }
    for (line, from, to) in &ranges {
        if !classes.iter().any(|c| (from..=to).contains(&&c.rank)) {
            found.push(Finding::new(
                TABLE,
                *line,
                format!("no class has a rank from {from} to {to}"),
                "take the range out",
            ));
        }
    }
    found
}

fn check_class(class: &Class, rows: &[Row]) -> Option<Finding> {
    let Class {
        file,
        line,
        name,
        rank,
    } = class;
    match rows.iter().find(|row| row.name == *name) {
        None => Some(Finding::new(
            file,
            *line,
            format!("{TABLE} lacks the lock class \"{name}\""),
            format!("add `| {rank} | {name} | what it guards | which threads share it |`"),
        )),
        Some(row) if row.rank != *rank => Some(Finding::new(
            TABLE,
            row.line,
            format!(
                "\"{name}\" has rank {} here and {rank} in {file}:{line}",
                row.rank
            ),
            "make them equal: the table decides",
        )),
        Some(_) => None,
    }
}

fn check_rank(class: &Class, ranges: &[(usize, u32, u32)]) -> Option<Finding> {
    let rank = class.rank;
    let inside = ranges
        .iter()
        .filter(|(_, from, to)| (*from..=*to).contains(&rank));
    (inside.count() != 1).then(|| {
        Finding::new(
            &class.file,
            class.line,
            format!(
                "the rank {rank} of \"{}\" lies in none, or in several, of the ranges in {TABLE}",
                class.name
            ),
            "take a rank from the range of its subject, or mend the ranges",
        )
    })
}

/// What `lock_class!` declares outside of tests.
fn declared(tree: &Tree) -> Vec<Class> {
    let mut found = Vec::new();
    let of_ours = |path: &str| path.starts_with("crates/") || path.starts_with("kernel/");
    for source in tree.with(".rs") {
        if !of_ours(&source.path)
            || code::is_test_file(&source.path)
            || !source.text.contains("lock_class!")
        {
            continue;
        }
        let Some(file) = code::parse(&source.text) else {
            continue;
        };
        code::each_macro(&file, &mut |call| {
            if call
                .path
                .segments
                .last()
                .is_some_and(|s| s.ident == "lock_class")
                && let Some((name, rank)) = name_and_rank(call.tokens.clone())
            {
                found.push(Class {
                    file: source.path.clone(),
                    line: call.path.segments[0].ident.span().start().line,
                    name,
                    rank,
                });
            }
        });
    }
    found
}

/// The first string and the number behind it, at the top level of the arguments.
fn name_and_rank(tokens: TokenStream) -> Option<(String, u32)> {
    let literals: Vec<String> = tokens
        .into_iter()
        .filter_map(|token| match token {
            TokenTree::Literal(literal) => Some(literal.to_string()),
            _ => None,
        })
        .collect();
    let at = literals.iter().position(|l| l.starts_with('"'))?;
    let rank = literals.get(at + 1)?.parse().ok()?;
    Some((literals[at].trim_matches('"').to_owned(), rank))
}

struct Row {
    line: usize,
    name: String,
    rank: u32,
}

/// The lines below a heading, with their numbers, up to the next one.
fn section<'a>(text: &'a str, heading: &'a str) -> impl Iterator<Item = (usize, &'a str)> {
    let lines = text.lines().enumerate().map(|(n, line)| (n + 1, line));
    lines
        .skip_while(move |(_, line)| *line != heading)
        .skip(1)
        .take_while(|(_, line)| !line.starts_with("## "))
}

fn cells(line: &str) -> Vec<&str> {
    line.split('|').skip(1).map(str::trim).collect()
}

fn rows(text: &str) -> Vec<Row> {
    section(text, "## Classes")
        .filter_map(|(line, text)| {
            let cells = cells(text);
            Some(Row {
                line,
                rank: cells.first()?.parse().ok()?,
                name: (*cells.get(1)?).to_owned(),
            })
        })
        .collect()
}

fn ranges(text: &str) -> Vec<(usize, u32, u32)> {
    section(text, "## Ranges")
        .filter_map(|(line, text)| {
            let cells = cells(text);
            let (from, to) = cells.first()?.split_once('–')?;
            Some((line, from.parse().ok()?, to.parse().ok()?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_one(code: &str, rows: &str) -> usize {
        let table = format!(
            "## Ranges\n\n| 10–39 | x |\n\n## Classes\n\n{rows}\n\n## Measured\n\n| 1 | no class |\n"
        );
        check(&Tree::of(&[(TABLE, &table), ("kernel/src/a.rs", code)])).len()
    }

    #[test]
    fn classes_and_rows_are_compared() {
        let code = "ksync::lock_class!(\n    /// Doc.\n    pub A, \"alpha\", rank = 12\n);";
        assert_eq!(check_one(code, "| 12 | alpha | x | y |"), 0);
        assert_eq!(check_one(code, "| 13 | alpha | x | y |"), 1);
        assert_eq!(
            check_one(code, "| 12 | alpha | x | y |\n| 12 | beta | x | y |"),
            1
        );
        assert_eq!(check_one(code, ""), 1);
        assert_eq!(
            check_one(
                "#[cfg(test)] mod t { lock_class!(A, \"alpha\", rank = 12); }",
                ""
            ),
            1
        );
    }

    #[test]
    fn a_rank_outside_of_the_ranges_is_found() {
        let code = "lock_class!(A, \"alpha\", rank = 9); lock_class!(B, \"beta\", rank = 10);";
        assert_eq!(
            check_one(code, "| 9 | alpha | x | y |\n| 10 | beta | x | y |"),
            1
        );
        assert_eq!(
            check_one(code, "| 10 | beta | x | y |\n| 9 | alpha | x | y |"),
            2
        );
    }
}
