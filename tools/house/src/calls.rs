//! The page on the system calls of Linux says the truth about which have handlers.
//!
//! A row of the page is a number, a name, an answer and a remark. A handler stands on a list as `(nr::__NR_name, handler)`.

use crate::{Finding, Tree};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

/// The answer of a call without a handler.
const ABSENT: &str = "ENOSYS";

/// A row: its line, number, name and answer.
type Row<'a> = (usize, u32, &'a str, &'a str);

/// Rows that `page` lacks or has twice, names that have two numbers, and rows that say ENOSYS where a file below `room` has a handler, or
/// something else where none has.
pub fn check(tree: &Tree, page: &str, room: &str, numbers: &[RangeInclusive<u32>]) -> Vec<Finding> {
    let mut found = Vec::new();
    let Some(document) = tree.with(".md").find(|s| s.path == page) else {
        return vec![Finding::in_table(
            format!("there is no {page}"),
            "name the page on system calls",
        )];
    };
    let rows: Vec<Row<'_>> = document.text.lines().enumerate().filter_map(row).collect();
    let mut wanted: BTreeSet<u32> = numbers.iter().cloned().flatten().collect();
    let mut names = BTreeMap::new();
    let mut fault = |line: usize, what: String, fix: &str| {
        found.push(Finding::new(page, line, what, fix));
    };
    for &(line, number, name, answer) in &rows {
        if !wanted.remove(&number) {
            let what = format!("number {number} stands twice, or is not one of Linux");
            fault(line, what, "take the row out");
        }
        if names.insert(name, answer).is_some() {
            fault(line, format!("{name} stands twice"), "take the row out");
        }
    }
    for number in wanted {
        fault(1, format!("number {number} has no row"), "add its row");
    }
    let handled = handlers(tree, room);
    for &(line, _, name, answer) in &rows {
        match (handled.contains(name), answer == ABSENT) {
            (true, true) => fault(
                line,
                format!("{name} has a handler"),
                "say what it answers: *works*, or an errno",
            ),
            (false, false) => fault(
                line,
                format!("{name} has no handler"),
                "say ENOSYS, and why",
            ),
            _ => {}
        }
    }
    for name in handled.iter().filter(|&name| !names.contains_key(&**name)) {
        fault(1, format!("{name} has no row"), "add its row");
    }
    found
}

fn row((n, line): (usize, &str)) -> Option<Row<'_>> {
    let mut cells = line.strip_prefix('|')?.split('|').map(str::trim);
    let number = cells.next()?.parse().ok()?;
    Some((n + 1, number, cells.next()?, cells.next()?))
}

/// The names of the calls on the lists of handlers.
fn handlers(tree: &Tree, room: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for source in tree.with(".rs").filter(|s| s.path.starts_with(room)) {
        for rest in source.text.split("::__NR_").skip(1) {
            let end = rest
                .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                .unwrap_or(rest.len());
            if rest[end..].starts_with(',') {
                names.insert(rest[..end].to_owned());
            }
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(page: &str, code: &str) -> Vec<String> {
        let tree = Tree::of(&[("doc/calls.md", page), ("kernel/calls/a.rs", code)]);
        let found = check(&tree, "doc/calls.md", "kernel/", &[0..=1, 5..=5]);
        found.into_iter().map(|finding| finding.what).collect()
    }

    const CODE: &str = "const HANDLERS: &[X] = &[(nr::__NR_read, read), (\n nr::__NR_open_at,\n open)];\n\
                        fn f() { u64::from(nr::__NR_gone) }";
    const PAGE: &str = "| n | call | answer |\n|---|---|---|\n| 0 | read | *works* | |\n| 1 | stat | ENOSYS | |\n| 5 | open_at | EPERM | |\n";

    #[test]
    fn a_true_page_has_no_findings() {
        assert_eq!(said(PAGE, CODE), [""; 0]);
    }

    #[test]
    fn handlers_and_their_absence_are_told() {
        let page = PAGE.replace("*works*", "ENOSYS");
        assert_eq!(said(&page, CODE), ["read has a handler"]);
        let page = PAGE.replace("ENOSYS", "EPERM");
        assert_eq!(said(&page, CODE), ["stat has no handler"]);
        let more = CODE.replace("&[(", "&[(nr::__NR_new, new), (");
        assert_eq!(said(PAGE, &more), ["new has no row"]);
    }

    #[test]
    fn each_number_has_one_row() {
        let page = PAGE.replace("| 1 |", "| 0 |");
        let what = "number 0 stands twice, or is not one of Linux";
        assert_eq!(said(&page, CODE), [what, "number 1 has no row"]);
        let page = PAGE.replace("stat", "read");
        let found = said(&page, CODE);
        assert_eq!(found, ["read stands twice", "read has a handler"]);
        assert_eq!(said("", "").len(), 3);
    }
}
