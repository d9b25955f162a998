//! The model of a table.

use crate::Text;

/// How a column's cells stand in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    Left,
    Right,
}

/// A column.
#[derive(Clone, Debug)]
pub struct Column {
    pub(crate) name: String,
    pub(crate) align: Align,
}

impl Column {
    /// Of words.
    pub fn left(name: impl Into<String>) -> Self {
        let (name, align) = (name.into(), Align::Left);
        Column { name, align }
    }

    /// Of numbers.
    pub fn right(name: impl Into<String>) -> Self {
        let (name, align) = (name.into(), Align::Right);
        Column { name, align }
    }
}

/// Rows and columns.
#[derive(Clone, Debug)]
pub struct Table {
    pub(crate) columns: Vec<Column>,
    pub(crate) rows: Vec<Vec<Text>>,
    /// Most rows on a terminal.
    pub(crate) shown: usize,
}

impl Table {
    /// A table without rows.
    pub fn new(columns: impl IntoIterator<Item = Column>) -> Self {
        Table {
            columns: columns.into_iter().collect(),
            rows: Vec::new(),
            shown: usize::MAX,
        }
    }

    /// With at most so many rows on a terminal; the page has them all.
    pub fn shown(mut self, rows: usize) -> Self {
        self.shown = rows;
        self
    }

    /// Adds a row: a cell for each column.
    pub fn row(&mut self, cells: impl IntoIterator<Item = Text>) {
        let cells: Vec<Text> = cells.into_iter().collect();
        debug_assert_eq!(cells.len(), self.columns.len(), "{cells:?}");
        self.rows.push(cells);
    }

    /// Whether it has no row.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Rows that a terminal does not show.
    pub(crate) fn hidden(&self) -> usize {
        self.rows.len().saturating_sub(self.shown)
    }
}
