//! What an entry waits for, and what is reported.

use vfs::poll::PollMask;

/// Flags of epoll_ctl(2) beside the events, without their prefix EPOLL.
pub mod flag {
    /// Only one of several epolls with this flag is to be woken.
    pub const EXCLUSIVE: u32 = 1 << 28;
    /// The system stays awake while the event is handled: ignored, as there is no suspend.
    pub const WAKEUP: u32 = 1 << 29;
    /// The entry is turned off by its first event.
    pub const ONESHOT: u32 = 1 << 30;
    /// Events are reported as they come, not as long as they last.
    pub const ET: u32 = 1 << 31;
    /// All of these.
    pub const ALL: u32 = EXCLUSIVE | WAKEUP | ONESHOT | ET;
}

/// Events of an entry with the program's word: a struct epoll_event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// Events of poll(2), and the flags of [`flag`].
    pub events: u32,
    /// The program's word.
    pub data: u64,
}

impl Event {
    /// Bytes of a struct epoll_event of x86-64, which has no padding.
    pub const BYTES: usize = 12;

    /// From the bytes of a struct epoll_event.
    pub fn from_bytes(bytes: [u8; Self::BYTES]) -> Event {
        let [a, b, c, d, data @ ..] = bytes;
        Event {
            events: u32::from_ne_bytes([a, b, c, d]),
            data: u64::from_ne_bytes(data),
        }
    }

    /// The bytes of a struct epoll_event.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&self.events.to_ne_bytes());
        bytes[4..].copy_from_slice(&self.data.to_ne_bytes());
        bytes
    }

    /// The events of poll(2) that are wanted; none if the entry is off.
    pub fn wanted(self) -> PollMask {
        PollMask(self.events as u16)
    }

    /// As an entry keeps it: errors and hang-ups are always wanted.
    pub(super) fn complete(self) -> Event {
        let always = PollMask::ERR | PollMask::HUP;
        Event {
            events: self.events | u32::from(always.0),
            ..self
        }
    }
}
