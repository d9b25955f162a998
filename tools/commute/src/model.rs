//! What an operation reads and changes, abstractly, and when two of them commute.
//!
//! A cell is a piece of state that some result can depend on: a mapping, the lowest free descriptor, a file's times.
//! State that no call can observe (a reference count, a lock, which frame backs a page) has no cell: two operations
//! that differ only in such state commute, and a kernel is free to keep it per CPU.

/// How the two sides of a pair are related.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mode {
    /// Threads of one process.
    Threads,
    /// Processes with a common parent.
    Processes,
}

impl Mode {
    /// Every mode.
    pub const ALL: [Mode; 2] = [Mode::Threads, Mode::Processes];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Threads => "threads",
            Mode::Processes => "processes",
        }
    }

    /// Whether the two sides share the objects of a `scope`.
    fn shares(self, scope: Scope) -> bool {
        match scope {
            Scope::Process => self == Mode::Threads,
            Scope::System => true,
        }
    }
}

/// What a cell belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// A process: its memory, its descriptors.
    Process,
    /// The whole system.
    System,
}

/// Which side a cell belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// Each side has a cell of its own.
    Mine,
    /// Both sides have the same cell.
    One,
    /// All cells of the scope: the operation copies it.
    All,
}

/// How an operation touches a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// A result depends on it.
    Read,
    /// The operation changes the cell.
    Write,
    /// The operation changes the cell so that the order does not matter: it sets the cell to the same value, or to the
    /// current time.
    Merge,
}

/// One cell touched.
#[derive(Clone, Copy, Debug)]
pub struct Touch {
    how: How,
    scope: Scope,
    name: &'static str,
    of: Of,
}

impl Touch {
    /// A touch of the cell `name`.
    pub const fn new(how: How, scope: Scope, name: &'static str, of: Of) -> Touch {
        Touch {
            how,
            scope,
            name,
            of,
        }
    }

    /// Whether the two touches, on different sides of a pair, may concern the same cell.
    fn meets(&self, other: &Touch, mode: Mode) -> bool {
        if self.scope != other.scope || !mode.shares(self.scope) {
            return false;
        }
        match (self.of, other.of) {
            (Of::All, _) | (_, Of::All) => true,
            (Of::One, Of::One) => self.name == other.name,
            _ => false,
        }
    }

    fn harms(&self, other: &Touch, mode: Mode) -> bool {
        let harmless = matches!(
            (self.how, other.how),
            (How::Read, How::Read) | (How::Merge, How::Merge)
        );
        !harmless && self.meets(other, mode)
    }
}

/// Whether operations that touch `a` and `b`, on different sides, commute.
pub fn commute(a: &[Touch], b: &[Touch], mode: Mode) -> bool {
    !a.iter()
        .any(|mine| b.iter().any(|theirs| mine.harms(theirs, mode)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn touch(how: How, scope: Scope, name: &'static str, of: Of) -> [Touch; 1] {
        [Touch::new(how, scope, name, of)]
    }

    #[test]
    fn reads_commute_and_a_write_commutes_with_neither() {
        let read = touch(How::Read, Scope::System, "x", Of::One);
        let write = touch(How::Write, Scope::System, "x", Of::One);
        let other = touch(How::Write, Scope::System, "y", Of::One);
        assert!(commute(&read, &read, Mode::Threads));
        assert!(!commute(&read, &write, Mode::Threads));
        assert!(!commute(&write, &write, Mode::Processes));
        assert!(commute(&write, &other, Mode::Threads));
    }

    #[test]
    fn what_each_side_has_for_itself_never_meets() {
        let mine = touch(How::Write, Scope::System, "x", Of::Mine);
        assert!(commute(&mine, &mine, Mode::Threads));
    }

    #[test]
    fn sharing_decides_which_scopes_meet() {
        let brk = touch(How::Write, Scope::Process, "brk", Of::One);
        let fd = touch(How::Write, Scope::Process, "lowest", Of::One);
        let commutes = |what: &[Touch]| Mode::ALL.map(|mode| commute(what, what, mode));
        assert_eq!(commutes(&brk), [false, true]);
        assert_eq!(commutes(&fd), [false, true]);
    }

    #[test]
    fn a_copy_of_everything_meets_every_change() {
        let copy = touch(How::Read, Scope::Process, "", Of::All);
        let mine = touch(How::Write, Scope::Process, "x", Of::Mine);
        assert!(!commute(&copy, &mine, Mode::Threads));
        assert!(commute(&copy, &mine, Mode::Processes));
        assert!(commute(&copy, &copy, Mode::Threads));
    }

    #[test]
    fn changes_that_come_to_the_same_commute_but_are_seen() {
        let merge = touch(How::Merge, Scope::System, "times", Of::One);
        let read = touch(How::Read, Scope::System, "times", Of::One);
        assert!(commute(&merge, &merge, Mode::Threads));
        assert!(!commute(&merge, &read, Mode::Threads));
    }
}
