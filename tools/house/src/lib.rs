//! The rules of CONTRIBUTING.md that a machine can check.
//!
//! Each module has one rule or a few that belong together: functions from the text of the repository ([`Tree`]) to
//! [`Finding`]s, with unit tests that show a bad example of each. `tests/house.rs` applies them to the repository itself.
//! [`table`] has everything that names a file, a crate or a number: a change of the layout changes that file alone.

pub mod arrows;
pub mod calls;
pub mod code;
pub mod documents;
pub mod imports;
pub mod locks;
pub mod manifests;
pub mod rings;
pub mod rooms;
pub mod sizes;
pub mod table;
pub mod tree;
pub mod words;

pub use tree::Tree;

use std::fmt;

/// A breach of a rule: where, what, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The file, relative to the repository.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// What is wrong.
    pub what: String,
    /// How to mend it.
    pub fix: String,
}

impl Finding {
    /// A finding; lines count from 1.
    pub fn new(
        file: &str,
        line: usize,
        what: impl Into<String>,
        fix: impl Into<String>,
    ) -> Finding {
        Finding {
            file: file.to_owned(),
            line,
            what: what.into(),
            fix: fix.into(),
        }
    }

    /// A finding about an entry of [`table`].
    pub fn in_table(what: impl Into<String>, fix: impl Into<String>) -> Finding {
        Finding::new("tools/house/src/table.rs", 1, what, fix)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Finding {
            file,
            line,
            what,
            fix,
        } = self;
        write!(out, "{file}:{line}: {what}\n    fix: {fix}")
    }
}
