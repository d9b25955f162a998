//! The table of programs and kernels, for the terminal and as `doc/accept.md`.

use super::kept::{Kept, Outcome, Verdict};
use crate::test::spec::Spec;
use std::fmt::Write;

/// The kernels of the page.
const SYSTEMS: [&str; 2] = ["pantala", "linux"];

/// A program, and what came of it on each of [`SYSTEMS`].
struct Row {
    program: String,
    makes_sure: String,
    cells: [Option<Outcome>; 2],
}

/// All programs.
pub struct Table {
    rows: Vec<Row>,
    titles: [String; 2],
}

/// The results that there are. `titles` names kernels for people; others keep their key.
pub fn of(specs: &[Spec], kept: &Kept, titles: &[(&'static str, String)]) -> Table {
    let row = |spec: &Spec| Row {
        program: spec.name.clone(),
        makes_sure: spec.makes_sure.clone(),
        cells: SYSTEMS.map(|system| kept.get(&spec.name, system).cloned()),
    };
    let title = |system: &str| {
        let known = titles.iter().find(|(name, _)| *name == system);
        known.map_or(system.to_owned(), |(_, title)| title.clone())
    };
    Table {
        rows: specs.iter().map(row).collect(),
        titles: SYSTEMS.map(title),
    }
}

fn cell(outcome: Option<&Outcome>) -> String {
    match outcome.map(|outcome| &outcome.verdict) {
        Some(Verdict::Right(seconds)) if *seconds > 0.0 => format!("right, {seconds:.1} s"),
        Some(Verdict::Right(_)) => "right".into(),
        Some(Verdict::Wrong(why)) => format!("WRONG: {why}"),
        None => "not run".into(),
    }
}

impl Table {
    /// Whether one of these programs is not right on Pantala, and not known to be wrong on Linux, too.
    pub fn is_worse(&self, chosen: &[Spec]) -> bool {
        let worse = |row: &&Row| match &row.cells {
            [Some(ours), theirs] => {
                ours.is_wrong() && !theirs.as_ref().is_some_and(Outcome::is_wrong)
            }
            _ => false,
        };
        let named = |row: &&Row| chosen.iter().any(|spec| spec.name == row.program);
        self.rows.iter().filter(named).any(|row| worse(&row))
    }

    /// For the terminal.
    pub fn text(&self) -> String {
        let width = self.rows.iter().map(|row| row.program.len()).max();
        let width = width.unwrap_or_default();
        let mut text = String::new();
        for row in &self.rows {
            let [ours, theirs] = row.cells.each_ref().map(|one| cell(one.as_ref()));
            let _ = writeln!(text, "  {:width$}  {ours:18}  {theirs}", row.program);
        }
        let [ours, theirs] = &self.titles;
        format!("\n  {:width$}  {ours:18}  {theirs}\n{text}", "program")
    }

    /// The page.
    pub fn page(&self) -> String {
        let [ours, theirs] = &self.titles;
        let mut page = format!(
            "# Programs that run\n\n`make accept` boots each of these on Pantala and on Linux, in the same emulated machine with the same \
             image of Debian's\npackages, checks what it did, and writes this page. Seconds are those of the guest's clock, measured once beside \
             whatever else the\nhost did: they say that nothing hangs, and do not compare the kernels. Both kernels run with `norandmaps`, because an \
             emulator\ntranslates code anew at each new address.\n\n\
             | program | what is made sure | {ours} | its commit | {theirs} |\n|---|---|---|---|---|\n"
        );
        for row in &self.rows {
            let [ours, theirs] = row.cells.each_ref().map(|one| cell(one.as_ref()));
            let commit = row.cells[0].as_ref().map_or("", |outcome| &outcome.commit);
            let (program, makes_sure) = (&row.program, &row.makes_sure);
            let _ = writeln!(
                page,
                "| {program} | {makes_sure} | {ours} | {commit} | {theirs} |"
            );
        }
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(cells: [Option<Verdict>; 2]) -> Table {
        let outcome = |verdict| Outcome {
            program: "redis".into(),
            system: "linux".into(),
            key: 0,
            verdict,
            commit: "0123abcd".into(),
        };
        let row = Row {
            program: "redis".into(),
            makes_sure: "it serves".into(),
            cells: cells.map(|cell| cell.map(outcome)),
        };
        Table {
            rows: vec![row],
            titles: ["Pantala".into(), "Linux".into()],
        }
    }

    fn spec(name: &str) -> Spec {
        Spec::parse(name, "makes_sure = 'x'\ntimeout = 1\n[[on]]\ncpus = 1\n").unwrap()
    }

    #[test]
    fn only_what_is_right_on_linux_is_asked_for() {
        let wrong = || Some(Verdict::Wrong("late".into()));
        let right = || Some(Verdict::Right(1.0));
        let worse = |cells| table(cells).is_worse(&[spec("redis")]);
        assert!(worse([wrong(), right()]) && worse([wrong(), None]));
        assert!(!worse([wrong(), wrong()]) && !worse([right(), wrong()]));
        assert!(!table([wrong(), right()]).is_worse(&[spec("nginx")]));
    }

    #[test]
    fn a_row_tells_both_kernels() {
        let text = table([
            Some(Verdict::Right(2.25)),
            Some(Verdict::Wrong("late".into())),
        ])
        .text();
        assert!(
            text.contains("redis  ") && text.contains("right, 2.2 s"),
            "{text}"
        );
        assert!(
            text.contains("WRONG: late") && text.contains("Linux"),
            "{text}"
        );
    }
}
