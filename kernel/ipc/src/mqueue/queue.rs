//! A queue, and its ends.

use alloc::collections::{BinaryHeap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;

use cred::{Cred, MemoryCharge};
use hal::PAGE_SIZE;
use ksync::Spin;
use task::wait::WaitQueue;
use vfs::error::{FsError, Result};

use super::claim::{Claim, Counted, Shape};
use super::notice::Registration;
use super::transfer::{Message, Receiver, Sender};

ksync::lock_class!(pub QueueLock, "POSIX message queue", rank = 84);

/// What a queue's lock guards.
pub(super) struct State {
    /// Has room for as many as the queue may have.
    pub messages: BinaryHeap<Message>,
    /// The number of the next message that enters.
    next: u64,
    /// Bytes of the messages.
    pub bytes: usize,
    /// Threads that wait for a message. Empty unless there is none.
    pub receivers: VecDeque<Arc<Receiver>>,
    /// Threads that wait for room. Empty unless there is none.
    pub senders: VecDeque<Sender>,
    /// What is to happen when a message comes.
    pub registration: Option<Registration>,
    /// Open files.
    opens: usize,
    /// Whether it has a name.
    named: bool,
    /// What its maker is charged; `None` once it has ended.
    claim: Option<Claim>,
}

/// A queue. See `doc/mqueue.md`.
pub(super) struct Queue {
    /// Constant.
    pub shape: Shape,
    pub state: Spin<State, QueueLock>,
    /// Those that poll.
    pub pollers: WaitQueue,
    _memory: MemoryCharge,
}

impl Queue {
    /// An empty queue with a name and one open file, charged to the user of `cred`, whom RLIMIT_MSGQUEUE permits `limit` bytes. Its size is what the
    /// program asks for by `wanted`, as in [`Shape::new`].
    ///
    /// # Errors
    /// Those of [`Counted::new`], [`Shape::new`] and [`Claim::new`], in this order, as in Linux; `NoMemory`.
    pub fn new(wanted: Option<[i64; 2]>, cred: &Cred, limit: u64) -> Result<Arc<Queue>> {
        let counted = Counted::new(cred)?;
        let shape = Shape::new(wanted, cred)?;
        let claim = Claim::new(counted, shape, cred, limit)?;
        let mut places = Vec::new();
        places
            .try_reserve_exact(shape.messages)
            .map_err(|_| FsError::NoMemory)?;
        let bytes = size_of::<Queue>() + shape.messages * size_of::<Message>();
        Ok(Arc::new(Queue {
            shape,
            state: Spin::new(State {
                messages: BinaryHeap::from(places),
                next: 0,
                bytes: 0,
                receivers: VecDeque::new(),
                senders: VecDeque::new(),
                registration: None,
                opens: 1,
                named: true,
                claim: Some(claim),
            }),
            pollers: WaitQueue::new(),
            _memory: MemoryCharge::names(cred.payer, bytes),
        }))
    }

    /// Bytes of the heap that it takes now, with its messages.
    pub fn bytes(&self) -> usize {
        let state = self.state.lock();
        let texts = state
            .messages
            .iter()
            .map(|message| in_heap(message.text.capacity()));
        size_of::<Queue>()
            + in_heap(state.messages.capacity() * size_of::<Message>())
            + texts.sum::<usize>()
    }

    /// Counts another open file.
    ///
    /// # Errors
    /// `NotFound` if the queue has ended.
    pub fn reopen(&self) -> Result<()> {
        let mut state = self.state.lock();
        if state.is_gone() {
            return Err(FsError::NotFound);
        }
        state.opens += 1;
        Ok(())
    }

    /// An open file is closed.
    pub fn closed(&self) {
        self.leave(|state| state.opens -= 1);
    }

    /// The name is removed.
    pub fn unlinked(&self) {
        self.leave(|state| state.named = false);
    }

    /// Takes something away that keeps the queue, and ends it if nothing else does.
    fn leave(&self, take: impl FnOnce(&mut State)) {
        let mut state = self.state.lock();
        take(&mut state);
        if !state.is_gone() {
            return;
        }
        let rest = (
            core::mem::take(&mut state.messages),
            state.registration.take(),
            state.claim.take(),
        );
        drop(state);
        drop(rest);
    }
}

/// Bytes that the heap takes at most for so many: see `vm::slab`.
fn in_heap(bytes: usize) -> usize {
    match bytes {
        0 => 0,
        small if small < PAGE_SIZE => small.next_power_of_two(),
        large => large.next_multiple_of(PAGE_SIZE),
    }
}

impl State {
    fn is_gone(&self) -> bool {
        self.opens == 0 && !self.named
    }

    /// Puts a message in, for which there is room.
    pub fn enter(&mut self, mut message: Message) {
        debug_assert!(
            self.messages.len() < self.messages.capacity(),
            "a place for each message"
        );
        message.is_in_queue();
        message.number = self.next;
        self.next += 1;
        self.bytes += message.text.len();
        self.messages.push(message);
    }

    /// Takes the first message out.
    pub fn take(&mut self) -> Option<Message> {
        let message = self.messages.pop()?;
        self.bytes -= message.text.len();
        Some(message)
    }
}
