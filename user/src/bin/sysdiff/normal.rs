//! The table of what is normalized before two kernels are compared. Everything else must be equal.

use crate::board::{ACTORS, board, state};
use std::sync::atomic::Ordering;

/// What is normalized, how, and why it may differ.
pub const TABLE: &[(&str, &str, &str)] = &[
    (
        "process and thread numbers",
        "the actor's name; R, the referee; init; none",
        "any free number may be given",
    ),
    (
        "addresses",
        "pages from the start of the arena; elsewhere \"away\"",
        "where a mapping without MAP_FIXED lies is open",
    ),
    (
        "times",
        "those set by utimensat as they are, others \"now\" and whether they have changed",
        "two machines have two clocks",
    ),
    (
        "inode numbers",
        "names of one file share a number, counted from 0 in each list of files",
        "any free number may be given",
    ),
    ("directory order", "names are sorted", "open in POSIX"),
    (
        "pages of one word",
        "a checksum of 16 bits",
        "an answer is kept for each call",
    ),
];

/// The name of a pid or tid.
pub fn pid(number: i32) -> Pid {
    Pid(number)
}

/// See [`pid`].
pub struct Pid(i32);

impl std::fmt::Display for Pid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let board = board();
        // A reused pid is the newest actor's.
        let named = (0..ACTORS).rev().find(|&id| {
            let cell = &board.cells[id];
            !cell.is(state::NONE) && cell.tid.load(Ordering::SeqCst) == self.0
        });
        match (named, self.0) {
            (Some(id), _) => write!(f, "P{id}"),
            (None, 0) => f.write_str("none"),
            (None, 1) => f.write_str("init"),
            (None, number) if number == board.referee.load(Ordering::SeqCst) => f.write_str("R"),
            (None, number) if number < 0 => write!(f, "{number}"),
            (None, _) => f.write_str("other"),
        }
    }
}

/// Times before this one were set by a program.
pub const SET_BEFORE: i64 = 1_000_000;

/// A time of a file.
pub fn time(seconds: i64, nanoseconds: i64) -> Time {
    Time(seconds, nanoseconds)
}

/// See [`time`].
pub struct Time(i64, i64);

impl std::fmt::Display for Time {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0 < SET_BEFORE {
            write!(f, "{}.{}", self.0, self.1)
        } else {
            f.write_str("now")
        }
    }
}

/// An address, as pages from the start of the arena.
pub fn address(addr: u64) -> Address {
    Address(addr)
}

/// See [`address`].
pub struct Address(u64);

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        use crate::calls::memory::{ARENA, PAGE, PAGES};
        if (ARENA..ARENA + PAGES * PAGE).contains(&self.0) {
            write!(f, "@{}", (self.0 - ARENA) / PAGE)
        } else {
            f.write_str("away")
        }
    }
}
