//! A terminal of tests.

use proc::group::{Session, Terminal};

/// A terminal with a number.
pub struct Numbered(pub u64);

impl Terminal for Numbered {
    fn number(&self) -> u64 {
        self.0
    }

    fn foreground(&self) -> u32 {
        0
    }

    fn leader_exited(&self, _: &Session) {}

    fn hang_up(&self) {}
}
