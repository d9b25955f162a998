//! Terminals.
//!
//! Guarantee: a terminal controls a session and a foreground group, never mere ids: as long as the terminal names one,
//! no other session or group gets its id. Once a terminal has hung up, every file that was open on it reads end of file
//! and fails to write, and none of them gets a byte that arrives later. Files of the console are an exception, see
//! `file`.
//!
//! Mechanism: a terminal (`terminal::Tty`) runs the line discipline ([`fscore::ldisc`]) between a *wire* and its open files (`file`). At the other end of
//! the wire is a serial line ([`console`]), or the *master* of a pseudo-terminal ([`pty`]): a file whose reads take what the terminal
//! sends, and whose writes are what it receives. [`pts`] has the numbers and names of pseudo-terminals; doc/terminals.md tells of them.
//! The terminal counts its hang-ups under the lock of the discipline, and a file keeps the count from when it was opened. A
//! file whose count is older is cut off, and every transfer compares the two counts under that lock. `control` has the
//! session and the foreground group, guarded by a spin lock that is taken inside the former lock. Job control follows
//! termios(3) and tty_ioctl(4).

#![no_std]

extern crate alloc;

pub mod console;
mod control;
mod file;
mod ioctl;
mod jobs;
mod line;
mod master;
mod pair;
pub mod pts;
pub mod pty;
mod terminal;
