//! Readiness: the operations that would not block.

use core::ops::{BitAnd, BitOr, BitOrAssign};

/// A set of poll(2) events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PollMask(pub u16);

impl PollMask {
    /// No event.
    pub const NONE: PollMask = PollMask(0);
    /// There is urgent data.
    pub const PRI: PollMask = PollMask(2);
    /// An error, or a pipe that has no reader.
    pub const ERR: PollMask = PollMask(8);
    /// The other side has been closed.
    pub const HUP: PollMask = PollMask(16);
    /// The descriptor is not open.
    pub const NVAL: PollMask = PollMask(32);
    /// The other side writes no more.
    pub const RDHUP: PollMask = PollMask(0x2000);
    /// A read would not block.
    pub const READ: PollMask = PollMask(1 | 64);
    /// A write would not block.
    pub const WRITE: PollMask = PollMask(4 | 256);
    /// What regular files and simple devices report: they never block.
    pub const ALWAYS: PollMask = PollMask(1 | 64 | 4 | 256);

    /// Whether any event of `other` is in the set.
    pub fn intersects(self, other: PollMask) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether the set is empty.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl BitOr for PollMask {
    type Output = PollMask;
    fn bitor(self, o: PollMask) -> PollMask {
        PollMask(self.0 | o.0)
    }
}

impl BitAnd for PollMask {
    type Output = PollMask;
    fn bitand(self, o: PollMask) -> PollMask {
        PollMask(self.0 & o.0)
    }
}

impl BitOrAssign for PollMask {
    fn bitor_assign(&mut self, o: PollMask) {
        self.0 |= o.0;
    }
}
