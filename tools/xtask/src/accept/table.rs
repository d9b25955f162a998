//! The table of programs and kernels, for the terminal and as `doc/accept.md`.

use super::kept::{Kept, Verdict};
use crate::test::spec::Spec;
use anyhow::Result;
use machine::tools;
use std::fmt::Write;
use std::process::Command;

/// The kernels of the page.
const SYSTEMS: [&str; 2] = ["pantala", "linux"];

/// A program, and what came of it on each of [`SYSTEMS`].
struct Row {
    program: String,
    makes_sure: String,
    cells: [Option<Verdict>; 2],
}

/// All programs.
pub struct Table {
    rows: Vec<Row>,
    titles: [String; 2],
}

/// The results that there are. `titles` names kernels for people; others keep their key.
pub fn of(specs: &[Spec], kept: &Kept, titles: &[(&'static str, String)]) -> Table {
    let verdict = |spec: &Spec, system: &str| {
        kept.get(&spec.name, system)
            .map(|outcome| outcome.verdict.clone())
    };
    let row = |spec: &Spec| Row {
        program: spec.name.clone(),
        makes_sure: spec.makes_sure.clone(),
        cells: SYSTEMS.map(|system| verdict(spec, system)),
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

fn cell(verdict: Option<&Verdict>) -> String {
    match verdict {
        Some(Verdict::Right(seconds)) if *seconds > 0.0 => format!("right, {seconds:.1} s"),
        Some(Verdict::Right(_)) => "right".into(),
        Some(Verdict::Wrong(why)) => format!("WRONG: {why}"),
        None => "not run".into(),
    }
}

impl Table {
    /// Whether each program has a result on each kernel.
    pub fn is_whole(&self) -> bool {
        let cells = || self.rows.iter().flat_map(|row| &row.cells);
        cells().all(Option::is_some)
    }

    /// Whether one of these programs is not right on Pantala, and not known to be wrong on Linux, too.
    pub fn is_worse(&self, chosen: &[Spec]) -> bool {
        let worse = |row: &&Row| match &row.cells {
            [Some(Verdict::Wrong(_)), other] => !matches!(other, Some(Verdict::Wrong(_))),
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
    ///
    /// # Errors
    /// The tree's commit is not known.
    pub fn page(&self) -> Result<String> {
        let mut git = Command::new("git");
        git.current_dir(tools::root()).args([
            "describe",
            "--always",
            "--dirty",
            "--abbrev=8",
            "--exclude=*",
        ]);
        let head = tools::output(&mut git, "git describe")?;
        let [ours, theirs] = &self.titles;
        let mut page = format!(
            "# Programs that run\n\n`make accept` boots each of these on Pantala and on Linux, in the same emulated machine with the same \
             image of Debian's\npackages, and checks what it did. It wrote this page, on commit {}. Seconds are those of the guest's clock, \
             measured\nonce beside whatever else the host did: they say that nothing hangs, and do not compare the kernels. Both kernels \
             run with\n`norandmaps`, because an emulator translates code anew at each new address.\n\n\
             | program | what is made sure | {ours} | {theirs} |\n|---|---|---|---|\n",
            head.trim()
        );
        for row in &self.rows {
            let [ours, theirs] = row.cells.each_ref().map(|one| cell(one.as_ref()));
            let (program, makes_sure) = (&row.program, &row.makes_sure);
            let _ = writeln!(page, "| {program} | {makes_sure} | {ours} | {theirs} |");
        }
        Ok(page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(cells: [Option<Verdict>; 2]) -> Table {
        let row = Row {
            program: "redis".into(),
            makes_sure: "it serves".into(),
            cells,
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
        assert!(!table([right(), None]).is_whole() && table([right(), wrong()]).is_whole());
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
