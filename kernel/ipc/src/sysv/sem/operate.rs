//! semop(2) and semtimedop(2).

use alloc::sync::Arc;
use alloc::vec::Vec;
use ksync::atomic::Ordering::Relaxed;

use task::park::Deadline;

use super::set::{MAX_OPERATIONS, Set, registry};
use super::undo::List;
use super::waiting::{Attempt, Request, Waiting};
use crate::sleeper::Sleeper;
use crate::sysv::error::{Result, SysvError};
use crate::sysv::perm::{Caller, READ, WRITE, flag};
use crate::sysv::registry::Object;

/// Flag of an operation that is undone at the end, with Linux's number.
const UNDO: u16 = 0x1000;

/// A `struct sembuf`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Which semaphore.
    pub number: u16,
    /// What is added; 0 waits for 0.
    pub by: i16,
    /// IPC_NOWAIT and SEM_UNDO.
    pub flags: u16,
}

impl Operation {
    /// Which semaphore.
    pub(super) fn index(&self) -> usize {
        self.number.into()
    }

    pub(super) fn no_wait(&self) -> bool {
        u32::from(self.flags) & flag::NO_WAIT != 0
    }

    /// Whether it has SEM_UNDO.
    pub fn undoes(&self) -> bool {
        self.flags & UNDO != 0
    }
}

/// Checks the number of operations of a call.
///
/// # Errors
/// `Invalid`, `TooBig`.
pub fn check_count(count: u64) -> Result<()> {
    if count == 0 {
        return Err(SysvError::Invalid);
    }
    if count > MAX_OPERATIONS.load(Relaxed) {
        return Err(SysvError::TooBig);
    }
    Ok(())
}

/// Does all the operations at once, and sleeps until that is possible. `list` has the caller's adjustments; it is asked for if an operation has SEM_UNDO.
///
/// # Errors
/// As semop(2) and semtimedop(2) say: `Again` also when the deadline has passed. Nothing is changed.
pub fn operate(
    id: i32,
    operations: Vec<Operation>,
    deadline: Deadline,
    list: Option<&List>,
    caller: Caller<'_>,
) -> Result<()> {
    let set = registry().find(id)?;
    if operations.iter().any(|o| o.index() >= set.len) {
        return Err(SysvError::NoSemaphore);
    }
    let changes = operations.iter().any(|o| o.by != 0);
    let want = if changes { WRITE } else { READ };
    if list.is_some() {
        // An adjustment may need memory. A thread that waits has what that needs.
        mem::admit_process()?;
    }
    let request = Request {
        operations,
        list: list.map(List::number),
        pid: caller.pid,
        sleeper: Sleeper::new(),
    };
    let mut state = set.lock()?;
    set.perm().check(want, caller.cred)?;
    if let Some(list) = list {
        list.prepare(&set, &mut state, caller)?;
    }
    match state.attempt(&request) {
        Attempt::Failed(why) => Err(why),
        Attempt::Done(false) => Ok(()),
        Attempt::Done(true) => {
            let changed = request.operations.iter().filter(|o| o.by != 0);
            state.serve(changed.map(Operation::index));
            Ok(())
        }
        Attempt::Blocked(at) => {
            let request = Arc::new(request);
            let ticket = state.tickets;
            state.tickets += 1;
            state.wait(Waiting {
                request: request.clone(),
                ticket,
                blocked_at: at,
            })?;
            drop(state);
            sleep(&set, &request, deadline)
        }
    }
}

/// Sleeps until a request that is on a list is answered.
fn sleep(set: &Set, request: &Arc<Request>, deadline: Deadline) -> Result<()> {
    request.sleeper.sleep(deadline).unwrap_or_else(|why| {
        let mut state = set.lock_removed();
        if let Some(answer) = request.sleeper.take() {
            return answer;
        }
        state.forget(request);
        Err(why.into())
    })
}
