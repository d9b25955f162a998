//! msgctl(2).

use ksync::atomic::Ordering::Relaxed;

use cred::Cap;

use super::queue::{MAX_BYTES, Queue, State, registry};
use crate::sysv::error::{Result, SysvError};
use crate::sysv::perm::{Caller, NewOwner, Perm, READ};
use crate::sysv::present::now;
use crate::sysv::registry::Object;

/// What IPC_STAT and /proc show of a queue.
#[derive(Clone, Copy, Debug)]
pub struct Shown {
    /// Owner and mode.
    pub perm: Perm,
    /// Seconds of real time, or 0: of the last message sent, the last one received, and the last change.
    pub times: [u64; 3],
    /// Bytes of the messages.
    pub bytes: u64,
    /// Messages.
    pub messages: u64,
    /// The limit on both.
    pub most: u64,
    /// The process that last sent one, or 0.
    pub last_sender: u32,
    /// The process that last received one, or 0.
    pub last_receiver: u32,
}

/// What MSG_INFO shows.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sums {
    /// Queues.
    pub queues: usize,
    /// Their messages.
    pub messages: u64,
    /// Bytes of these.
    pub bytes: u64,
}

/// What IPC_SET changes.
#[derive(Clone, Copy, Debug)]
pub struct NewSettings {
    /// Owner and mode.
    pub owner: NewOwner,
    /// The limit on bytes, and on messages.
    pub most: u64,
}

/// Queues and messages. Takes the queues' locks, one after the other.
pub fn sums() -> Sums {
    let mut sums = Sums {
        queues: registry().count(),
        ..Sums::default()
    };
    registry().each(|queue| {
        if let Some(s) = queue.shown() {
            sums.messages += s.messages;
            sums.bytes += s.bytes;
        }
    });
    sums
}

impl Queue {
    /// What is shown of it, if the caller may read it; `all` for MSG_STAT_ANY, for which anybody may. Sleeps.
    ///
    /// # Errors
    /// `Denied`, `Removed`.
    pub fn stat(&self, all: bool, caller: Caller<'_>) -> Result<Shown> {
        let state = self.lock()?;
        if !all {
            self.perm().check(READ, caller.cred)?;
        }
        Ok(self.show(&state))
    }

    /// What is shown of it; `None` if it was removed. Sleeps.
    pub fn shown(&self) -> Option<Shown> {
        Some(self.show(&*self.lock().ok()?))
    }

    fn show(&self, state: &State) -> Shown {
        Shown {
            perm: self.perm(),
            times: [state.sent, state.received, state.changed],
            bytes: state.bytes,
            messages: state.messages.len() as u64,
            most: state.most,
            last_sender: state.last_sender,
            last_receiver: state.last_receiver,
        }
    }
}

/// IPC_SET. Receivers that wait look again whether they may, and senders whether there is room. Sleeps.
///
/// # Errors
/// `Invalid`; `NotOwner`, also for a limit above that of new queues without the privilege.
pub fn set(id: i32, new: NewSettings, caller: Caller<'_>) -> Result<()> {
    let queue = registry().find(id)?;
    let mut state = queue.lock()?;
    queue.perm().check_owner(caller.cred)?;
    if new.most > MAX_BYTES.load(Relaxed) && !caller.cred.capable(Cap::SysResource) {
        return Err(SysvError::NotOwner);
    }
    queue.perm.set_owner(new.owner, caller.cred)?;
    state.most = new.most;
    state.changed = now();
    state.recheck_receivers();
    state.serve_senders(&queue.perm);
    Ok(())
}

/// IPC_RMID: threads that wait fail with `Removed`. Sleeps.
///
/// # Errors
/// `Invalid`, `NotOwner`.
pub fn remove(id: i32, caller: Caller<'_>) -> Result<()> {
    let queue = registry().remove(id, |queue| queue.perm.take_key(caller.cred))?;
    let mut state = queue.lock_removed();
    state.removed = true;
    state.answer_all(SysvError::Removed);
    state.bytes = 0;
    let messages = core::mem::take(&mut state.messages);
    drop(state);
    drop(messages);
    Ok(())
}
