//! Limits on the pages that the pipes of one user may hold, as in pipe(7).
//!
//! The pages that a pipe may hold are charged to the user that created it, from its first open to its last close. Beyond the
//! soft limit, a new pipe of a user without privileges holds two pages and cannot be made larger; beyond the hard limit it
//! cannot be made.

use ksync::atomic::AtomicU64;
use ksync::atomic::Ordering::Relaxed;

use cred::{Cap, Charge, Payer};
use task::current::current;

use super::ring::PAGE;
use crate::error::{FsError, Result};

/// Bytes that a new pipe can hold.
pub const DEFAULT_SIZE: usize = 65536;
/// Pages of a pipe that is made beyond the soft limit.
const LEAST_PAGES: usize = 2;

hal::machine_static! {
    /// The largest size, in bytes, to which a process without CAP_SYS_RESOURCE can set a pipe. Atomic.
    pub static MAX_SIZE: AtomicU64 = AtomicU64::new(1 << 20);
    /// Pages of a user's pipes beyond which new pipes are small; 0 for no limit. Atomic.
    pub static USER_SOFT: AtomicU64 = AtomicU64::new(16384);
    /// Pages of a user's pipes beyond which there are no new pipes; 0 for no limit. Atomic.
    pub static USER_HARD: AtomicU64 = AtomicU64::new(0);
}

fn is_beyond(payer: Payer, limit: &AtomicU64) -> bool {
    let limit = limit.load(Relaxed);
    limit != 0 && payer.is_over(Charge::PipePages, limit)
}

fn is_limited() -> bool {
    !current().cred().beyond_user_limits()
}

/// The charge for the pages of one pipe.
pub(super) struct Room {
    pub payer: Payer,
    pub pages: usize,
    /// User id and group id of a pipe without a name: the creator's for files.
    pub owner: (u32, u32),
}

impl Room {
    pub const NONE: Room = Room {
        payer: Payer::NOBODY,
        pages: 0,
        owner: (0, 0),
    };

    /// Charges the caller's user for a new pipe; `None` beyond the hard limit.
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

    /// Changes the charge to `pages`. Fails with `Perm` if the caller may not have so many.
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

    /// Undoes a [`resize`](Self::resize); `pages` were charged before it.
    pub fn restore(&mut self, pages: usize) {
        self.payer.charge(Charge::PipePages, pages);
        self.payer.give_back(Charge::PipePages, self.pages);
        self.pages = pages;
    }

    /// Ends the charge.
    pub fn end(self) {
        self.payer.give_back(Charge::PipePages, self.pages);
    }
}
