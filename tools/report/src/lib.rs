//! Reports: one model of headings, notes, tables and plots, and two renderers of it.
//!
//! Guarantee: what terminal and page both show is said once, so they cannot differ; text is escaped wherever it stands on
//! the page, which needs nothing else: no script, no file beside it.
//! [`Report::text`] is for the terminal, [`Report::html`] for a browser. Plots are markup, and for the page alone.

mod html;
mod span;
mod table;
mod text;

pub use span::{Span, Style, Text};
pub use table::{Column, Table};

use maud::Markup;
use std::path::Path;
use std::{fs, io};

/// Where a part of a report is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// On the terminal and on the page.
    Both,
    /// On the terminal, in place of a plot, say.
    Terminal,
    /// On the page, for a terminal is not made for it.
    Page,
}

/// A part of a report.
#[derive(Clone, Debug)]
pub enum Part {
    /// The heading of what follows.
    Heading {
        /// As it stands there.
        text: String,
        /// What a list of headings calls it; none: it is not listed.
        short: Option<String>,
    },
    /// A paragraph.
    Note(Text),
    /// Text that keeps its spaces and lines.
    Verbatim(String),
    /// Rows and columns.
    Table(Table),
    /// Rows and columns that the page folds away behind one line.
    Fold(Text, Table),
    /// A drawing.
    Plot(Markup),
}

/// A report in the making.
#[derive(Clone, Debug)]
pub struct Report {
    title: String,
    /// Rules of style that plots need.
    style: &'static str,
    parts: Vec<(Medium, Part)>,
}

impl Report {
    /// A report without any part; `style` is what its plots need beside the page's own rules.
    pub fn new(title: impl Into<String>, style: &'static str) -> Self {
        Report {
            title: title.into(),
            style,
            parts: Vec::new(),
        }
    }

    /// Adds a part.
    pub fn add(&mut self, on: Medium, part: impl Into<Part>) {
        self.parts.push((on, part.into()));
    }

    /// Adds a heading for both.
    pub fn heading(&mut self, text: impl Into<String>) {
        let text = text.into();
        self.add(Medium::Both, Part::Heading { text, short: None });
    }

    /// Adds a paragraph for both.
    pub fn note(&mut self, text: impl Into<Text>) {
        self.add(Medium::Both, text.into());
    }

    /// For the terminal.
    pub fn text(&self) -> String {
        text::render(self.parts_on(Medium::Terminal))
    }

    /// For a browser.
    pub fn html(&self) -> String {
        let parts: Vec<&Part> = self.parts_on(Medium::Page).collect();
        html::render(&self.title, self.style, &parts).into_string()
    }

    /// Prints it, writes the page to `file`, and says where that is.
    ///
    /// # Errors
    /// The file cannot be written; the error names it.
    pub fn publish(&self, file: &Path) -> io::Result<()> {
        print!("{}", self.text());
        fs::write(file, self.html()).map_err(|error| {
            let text = format!("cannot write {}: {error}", file.display());
            io::Error::new(error.kind(), text)
        })?;
        println!("report: {}", file.display());
        Ok(())
    }

    fn parts_on(&self, medium: Medium) -> impl Iterator<Item = &Part> {
        let here = move |on: Medium| on == Medium::Both || on == medium;
        self.parts
            .iter()
            .filter(move |(on, _)| here(*on))
            .map(|(_, part)| part)
    }
}

impl From<Text> for Part {
    fn from(text: Text) -> Self {
        Part::Note(text)
    }
}

impl From<Table> for Part {
    fn from(table: Table) -> Self {
        Part::Table(table)
    }
}

impl From<Markup> for Part {
    fn from(plot: Markup) -> Self {
        Part::Plot(plot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let mut report = Report::new("a & b", "");
        report.heading("costs <of> all");
        let mut table = Table::new([Column::left("case"), Column::right("lines")]).shown(1);
        table.row(["fork".into(), Text::of(Style::Bad, "17 OVER")]);
        table.row(["<exec>".into(), 3.into()]);
        report.add(Medium::Both, table);
        report.add(Medium::Terminal, Text::from("for the terminal"));
        report.add(Medium::Page, maud::html! { svg {} });
        report
    }

    #[test]
    fn the_terminal_gets_columns_and_no_more_rows_than_it_should() {
        let text = report().text();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "",
                "costs <of> all",
                "  case    lines",
                "  fork  17 OVER",
                "  (1 more on the page)",
                "for the terminal"
            ]
        );
    }

    #[test]
    fn the_page_gets_every_row_and_escapes_it() {
        let html = report().html();
        assert!(html.contains("<title>a &amp; b</title>"), "{html}");
        assert!(html.contains("costs &lt;of&gt; all") && html.contains("&lt;exec&gt;"));
        assert!(html.contains("<span class=\"bad\">17 OVER</span>"));
        assert!(html.contains("<svg></svg>") && !html.contains("for the terminal"));
    }

    #[test]
    fn long_pages_begin_with_a_list_of_headings() {
        let mut report = report();
        for short in ["one", "two"] {
            report.add(
                Medium::Both,
                Part::Heading {
                    text: format!("part {short}"),
                    short: Some(short.into()),
                },
            );
        }
        let html = report.html();
        assert!(html.contains("<nav>") && html.matches("href=\"#").count() == 2);
    }
}
