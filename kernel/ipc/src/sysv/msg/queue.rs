//! Queues and messages.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use ksync::atomic::{AtomicU64, Ordering::Relaxed};

use ksync::{Mutex, MutexGuard, Once};

use super::transfer::{Receiver, Sender};
use crate::sysv::charge::Charged;
use crate::sysv::error::{Result, SysvError};
use crate::sysv::perm::{Caller, OwnPerm, Perm};
use crate::sysv::present::now;
use crate::sysv::registry::{Object, Registry, Wanted};

ksync::lock_class!(pub QueueLock, "message queue", rank = 58);

hal::machine_static! {
    static QUEUES: Once<Registry<Queue>> = Once::new();
    /// /proc/sys/kernel/msgmax: bytes of a message. Atomic, as those that follow.
    pub static MAX_MESSAGE: AtomicU64 = AtomicU64::new(8192);
    /// /proc/sys/kernel/msgmnb: bytes of a new queue.
    pub static MAX_BYTES: AtomicU64 = AtomicU64::new(16384);
    /// /proc/sys/kernel/msgmni: queues.
    pub static MAX_QUEUES: AtomicU64 = AtomicU64::new(32000);
}

pub(in crate::sysv) fn init() {
    QUEUES.get_or_init(Registry::new);
}

/// The queues.
///
/// # Panics
/// Before they are set up, at boot.
pub fn registry() -> &'static Registry<Queue> {
    QUEUES.get().expect("set up at boot")
}

/// A message.
#[derive(Debug)]
pub struct Message {
    /// Its type, at least 1.
    pub kind: i64,
    /// What it says.
    pub text: Vec<u8>,
    bytes: Charged,
}

impl Message {
    /// A message, which its sender is charged for until it is received.
    ///
    /// # Errors
    /// `NoMemory`, also beyond the sender's limit.
    pub fn new(kind: i64, text: Vec<u8>, caller: Caller<'_>) -> Result<Message> {
        let size = size_of::<Message>() + text.len();
        let bytes = Charged::bytes(caller.cred, size).map_err(|_| SysvError::NoMemory)?;
        Ok(Message { kind, text, bytes })
    }
}

/// What a queue's lock guards.
pub(super) struct State {
    pub removed: bool,
    /// Seconds of real time, or 0: of the last message sent, the last one received, and the last change.
    pub sent: u64,
    pub received: u64,
    pub changed: u64,
    pub last_sender: u32,
    pub last_receiver: u32,
    /// Bytes of the messages, and the limit on them, and on the number of messages.
    pub bytes: u64,
    pub most: u64,
    pub messages: VecDeque<Message>,
    pub receivers: VecDeque<Arc<Receiver>>,
    pub senders: VecDeque<Arc<Sender>>,
}

/// A message queue.
pub struct Queue {
    id: i32,
    bytes: Charged,
    pub(super) perm: OwnPerm,
    state: Mutex<State, QueueLock>,
}

/// Finds a queue, or makes one (msgget(2)). Sleeps.
///
/// # Errors
/// As msgget(2) says; `NoSpace` also beyond the user's limit.
pub fn get(wanted: Wanted, caller: Caller<'_>) -> Result<i32> {
    let most = MAX_QUEUES.load(Relaxed);
    registry().get(
        wanted,
        caller,
        most,
        |_| Ok(()),
        |id| make(id, wanted, caller),
    )
}

fn make(id: i32, wanted: Wanted, caller: Caller<'_>) -> Result<Arc<Queue>> {
    let bytes = Charged::bytes(caller.cred, size_of::<Queue>())?;
    Ok(Arc::new(Queue {
        id,
        bytes,
        perm: OwnPerm::new(Perm::new(wanted.key, id, wanted.flags, caller.cred)),
        state: Mutex::new(State {
            removed: false,
            sent: 0,
            received: 0,
            changed: now(),
            last_sender: 0,
            last_receiver: 0,
            bytes: 0,
            most: MAX_BYTES.load(Relaxed),
            messages: VecDeque::new(),
            receivers: VecDeque::new(),
            senders: VecDeque::new(),
        }),
    }))
}

impl Queue {
    /// Locks the queue. Sleeps.
    ///
    /// # Errors
    /// `Removed`.
    pub(super) fn lock(&self) -> Result<MutexGuard<'_, State, QueueLock>> {
        let state = self.state.lock();
        if state.removed {
            return Err(SysvError::Removed);
        }
        Ok(state)
    }

    /// Locks the queue, which may have been removed: then nothing is in it. Sleeps.
    pub(super) fn lock_removed(&self) -> MutexGuard<'_, State, QueueLock> {
        self.state.lock()
    }
}

impl Object for Queue {
    fn id(&self) -> i32 {
        self.id
    }

    fn perm(&self) -> Perm {
        self.perm.get()
    }

    fn bytes(&self) -> usize {
        let state = self.state.lock();
        let messages: usize = state.messages.iter().map(|m| m.bytes.amount()).sum();
        self.bytes.amount() + messages + state.messages.capacity() * size_of::<Message>()
    }

    fn give_back(&self) {
        self.bytes.give_back();
    }
}
