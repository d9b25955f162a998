//! How many pages one user's pipes may hold, as pipe(7) has it.
//!
//! What a pipe may hold is charged to the user who made it, from its first opening to its last close. Beyond the soft limit a
//! new pipe of somebody without privileges holds two pages and cannot be made larger; beyond the hard one there is none.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use cred::{Cap, Charge, Payer};
use task::current::current;

use super::{DEFAULT_SIZE, PAGE};
use crate::error::{FsError, Result};

/// Pages of a pipe that is made beyond the soft limit.
const LEAST_PAGES: usize = 2;

/// Largest size, in bytes, that somebody without CAP_SYS_RESOURCE can give to a pipe. Atomic.
pub static MAX_SIZE: AtomicU64 = AtomicU64::new(1 << 20);
/// Pages of a user's pipes beyond which new ones are small; 0 for no limit. Atomic.
pub static USER_SOFT: AtomicU64 = AtomicU64::new(16384);
/// Pages of a user's pipes beyond which there are no new ones; 0 for no limit. Atomic.
pub static USER_HARD: AtomicU64 = AtomicU64::new(0);

fn is_beyond(payer: Payer, limit: &AtomicU64) -> bool {
    let limit = limit.load(Relaxed);
    limit != 0 && payer.is_over(Charge::PipePages, limit)
}

fn is_limited() -> bool {
    !current().cred().beyond_user_limits()
}

/// Pages that are charged for one pipe.
pub(super) struct Room {
    pub payer: Payer,
    pub pages: usize,
    /// User and group of a pipe without a name: those that its maker had for files.
    pub owner: (u32, u32),
}

impl Room {
    pub const NONE: Room = Room {
        payer: Payer::NOBODY,
        pages: 0,
        owner: (0, 0),
    };

    /// For a pipe that the caller makes, or none beyond the hard limit.
    pub fn new() -> Option<Room> {
        let me = current();
        let payer = me.payer();
        let mut pages = DEFAULT_SIZE / PAGE;
        let most = MAX_SIZE.load(Relaxed) as usize / PAGE;
        if pages > most && !me.cred().capable(Cap::SysResource) {
            pages = most;
        }
        payer.charge(Charge::PipePages, pages);
        if is_beyond(payer, &USER_SOFT) && is_limited() {
            payer.give_back(Charge::PipePages, pages);
            payer.charge(Charge::PipePages, LEAST_PAGES);
            pages = LEAST_PAGES;
        }
        let cred = me.cred();
        let owner = (cred.fsuid, cred.fsgid);
        let room = Room {
            payer,
            pages,
            owner,
        };
        if is_beyond(payer, &USER_HARD) && is_limited() {
            room.end();
            return None;
        }
        Some(room)
    }

    /// Charges `pages` instead, as far as the caller may have them.
    pub fn resize(&mut self, pages: usize) -> Result<()> {
        if pages <= self.pages {
            self.payer.give_back(Charge::PipePages, self.pages - pages);
        } else {
            let more = pages - self.pages;
            if pages * PAGE > MAX_SIZE.load(Relaxed) as usize
                && !current().cred().capable(Cap::SysResource)
            {
                return Err(FsError::Perm);
            }
            self.payer.charge(Charge::PipePages, more);
            if (is_beyond(self.payer, &USER_SOFT) || is_beyond(self.payer, &USER_HARD))
                && is_limited()
            {
                self.payer.give_back(Charge::PipePages, more);
                return Err(FsError::Perm);
            }
        }
        self.pages = pages;
        Ok(())
    }

    /// Takes back a resize, to what was charged before it.
    pub fn restore(&mut self, pages: usize) {
        self.payer.charge(Charge::PipePages, pages);
        self.payer.give_back(Charge::PipePages, self.pages);
        self.pages = pages;
    }

    /// Gives everything back.
    pub fn end(self) {
        self.payer.give_back(Charge::PipePages, self.pages);
    }
}
