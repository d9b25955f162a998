//! Limits on the pages that the pipes of one user may hold, as in pipe(7).
//!
//! The pages that a pipe may hold are charged to the user that opens it first, from that open to its last close: to the creator
//! of a pipe without a name, and to the first opener of a fifo. Beyond the soft limit, a new pipe of a user without privileges
//! holds two pages, and none can be made larger; beyond the hard limit the first open of a pipe fails.

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

/// The charge for the pages of one pipe; that of a fifo is paid by its first opener.
pub(super) struct Room {
    pub payer: Payer,
    pub pages: u32,
    /// Whether an epoll has looked at the pipe for bytes since it was opened first. Such a one is told of each write, as in Linux,
    /// since with EPOLLET it waits for the next write although there are bytes.
    pub listened: bool,
    /// Whether the owner of an end for writing has asked for signals since then: it is told of each read.
    pub reads_told: bool,
    /// User id and group id of a pipe without a name: those for file access of the thread that was charged.
    pub owner: (u32, u32),
}

impl Room {
    pub const NONE: Room = Room {
        payer: Payer::NOBODY,
        pages: 0,
        listened: false,
        reads_told: false,
        owner: (0, 0),
    };

    /// Charges the caller's user for a pipe that is about to be open: for [`DEFAULT_SIZE`], or for fewer pages beyond
    /// [`MAX_SIZE`] or the soft limit. `None`, and no charge, beyond the hard limit. It charges before it looks at the limits,
    /// so that of two calls at once one sees the other's charge. Takes the lock of the thread's credentials.
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
            pages: pages as u32,
            listened: false,
            reads_told: false,
            owner,
        };
        if is_beyond(payer, &USER_HARD) && is_limited() {
            room.end();
            return None;
        }
        Some(room)
    }

    /// Changes the charge to `pages`. Fails with `Perm`, and changes nothing, for more pages than before, if that is beyond
    /// [`MAX_SIZE`] or the payer is beyond a limit, and the caller has no privilege to go beyond. Takes the lock of the
    /// thread's credentials.
    pub fn resize(&mut self, pages: usize) -> Result<()> {
        let before = self.pages as usize;
        if pages <= before {
            self.payer.give_back(Charge::PipePages, before - pages);
        } else {
            let more = pages - before;
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
        self.pages = pages as u32;
        Ok(())
    }

    /// Undoes a [`resize`](Self::resize), regardless of limits; `pages` were charged before it.
    pub fn restore(&mut self, pages: u32) {
        self.payer.charge(Charge::PipePages, pages as usize);
        self.payer.give_back(Charge::PipePages, self.pages as usize);
        self.pages = pages;
    }

    /// Ends the charge.
    pub fn end(self) {
        self.payer.give_back(Charge::PipePages, self.pages as usize);
    }
}
