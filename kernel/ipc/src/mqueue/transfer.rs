//! mq_timedsend(2) and mq_timedreceive(2).

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cmp::{Ordering, Reverse};

use cred::MemoryCharge;
use task::current::current;
use task::park::{Deadline, ParkError};
use vfs::attr;
use vfs::error::{FsError, Result};
use vfs::file::File;

use super::file::queue;
use super::notice;
use super::queue::Queue;
use crate::sleeper::Sleeper;
use crate::sysv::trim::trim;

/// A message.
#[derive(Debug)]
pub struct Message {
    /// Its priority, below [`PRIORITIES`](super::PRIORITIES).
    pub priority: u32,
    /// What it says.
    pub text: Vec<u8>,
    /// When it has entered the queue, among the others there.
    pub(super) number: u64,
    /// For its sender, as long as it is in no queue.
    memory: MemoryCharge,
}

impl Message {
    /// A message, which the caller's user is charged for until it is in a queue, whose maker has been charged for all that it can have.
    pub fn new(priority: u32, text: Vec<u8>) -> Message {
        let bytes = size_of::<Message>() + text.len();
        Message {
            priority,
            text,
            number: 0,
            memory: MemoryCharge::new(current().payer(), bytes),
        }
    }

    /// It enters a queue: its sender is not charged any more.
    pub(super) fn is_in_queue(&mut self) {
        self.memory = MemoryCharge::NONE;
    }

    /// The greatest is received first.
    fn order(&self) -> (u32, Reverse<u64>) {
        (self.priority, Reverse(self.number))
    }
}

impl Ord for Message {
    fn cmp(&self, other: &Self) -> Ordering {
        self.order().cmp(&other.order())
    }
}

impl PartialOrd for Message {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Message {
    fn eq(&self, other: &Self) -> bool {
        self.order() == other.order()
    }
}

impl Eq for Message {}

/// A thread that waits for a message.
pub(super) type Receiver = Sleeper<Message>;

/// A thread that waits for room, and its message.
pub(super) struct Sender {
    message: Message,
    sleeper: Arc<Sleeper<()>>,
}

/// Checks that a message of so many bytes may be sent through an open file.
///
/// # Errors
/// `BadFd` for a file that is no queue or not open for writing; `MessageTooLong`.
pub fn check_send(file: &File, len: usize) -> Result<()> {
    let queue = queue(file)?;
    if !file.writable() {
        return Err(FsError::BadFd);
    }
    if len > queue.shape.size {
        return Err(FsError::MessageTooLong);
    }
    Ok(())
}

/// Checks that a message may be received through an open file by a caller with room for so many bytes.
///
/// # Errors
/// `BadFd` for a file that is no queue or not open for reading; `MessageTooLong` without room for any message.
pub fn check_room(file: &File, room: usize) -> Result<()> {
    let queue = queue(file)?;
    if !file.readable() {
        return Err(FsError::BadFd);
    }
    if room < queue.shape.size {
        return Err(FsError::MessageTooLong);
    }
    Ok(())
}

/// A thread's sleep on an answer.
///
/// # Errors
/// `NoMemory`.
fn sleeper<R: Send>() -> Result<Arc<Sleeper<R>>> {
    mem::admit_process().map_err(|_| FsError::NoMemory)?;
    Ok(Arc::new(Sleeper::new()))
}

fn why(end: ParkError) -> FsError {
    match end {
        ParkError::Timeout => FsError::TimedOut,
        ParkError::Signal => FsError::Interrupted,
    }
}

/// Sends a message that was [checked](check_send); sleeps until there is room for it, unless the file has O_NONBLOCK.
///
/// # Errors
/// `BadFd`, `WouldBlock`, `TimedOut`, `Interrupted`, `NoMemory`. The message was not sent.
pub fn send(file: &File, message: Message, deadline: Deadline) -> Result<()> {
    let queue = queue(file)?;
    let mut ready = None;
    loop {
        let mut state = queue.state.lock();
        if state.messages.len() < queue.shape.messages {
            if let Some(receiver) = state.receivers.pop_front() {
                trim(&mut state.receivers);
                receiver.answer(message);
                drop(state);
            } else {
                state.enter(message);
                let told = notice::due(&mut state);
                drop(state);
                queue.pollers.wake_all();
                // It may wait for memory.
                told.into_iter().for_each(|told| told.notice.arrived());
            }
            touch(file);
            return Ok(());
        }
        if file.nonblocking() {
            return Err(FsError::WouldBlock);
        }
        if let Some(sleeper) = ready.take() {
            let room = state.senders.try_reserve(1);
            room.map_err(|_| FsError::NoMemory)?;
            state.senders.push_back(Sender {
                message,
                sleeper: Arc::clone(&sleeper),
            });
            drop(state);
            return wait_for_room(queue, &sleeper, deadline);
        }
        drop(state);
        ready = Some(sleeper()?);
    }
}

/// Sleeps as a sender that is on the list.
fn wait_for_room(queue: &Queue, sleeper: &Arc<Sleeper<()>>, deadline: Deadline) -> Result<()> {
    sleeper.sleep(deadline).or_else(|end| {
        let mut state = queue.state.lock();
        if sleeper.take().is_some() {
            return Ok(());
        }
        let is_own = |sender: &Sender| Arc::ptr_eq(&sender.sleeper, sleeper);
        let at = state.senders.iter().position(is_own);
        let own = at.and_then(|at| state.senders.remove(at));
        trim(&mut state.senders);
        drop(state);
        drop(own);
        Err(why(end))
    })
}

/// Receives the first message, for a caller whose room was [checked](check_room); sleeps for one, unless the file has O_NONBLOCK.
///
/// # Errors
/// `BadFd`, `WouldBlock`, `TimedOut`, `Interrupted`, `NoMemory`. No message is taken.
pub fn receive(file: &File, deadline: Deadline) -> Result<Message> {
    let queue = queue(file)?;
    let mut ready = None;
    loop {
        let mut state = queue.state.lock();
        if let Some(message) = state.take() {
            if let Some(sender) = state.senders.pop_front() {
                trim(&mut state.senders);
                state.enter(sender.message);
                sender.sleeper.answer(());
                drop(state);
            } else {
                drop(state);
                queue.pollers.wake_all();
            }
            touch(file);
            return Ok(message);
        }
        if file.nonblocking() {
            return Err(FsError::WouldBlock);
        }
        if let Some(receiver) = ready.take() {
            let room = state.receivers.try_reserve(1);
            room.map_err(|_| FsError::NoMemory)?;
            state.receivers.push_back(Arc::clone(&receiver));
            drop(state);
            return wait_for_message(queue, &receiver, deadline);
        }
        drop(state);
        ready = Some(sleeper()?);
    }
}

/// Sleeps as a receiver that is on the list.
fn wait_for_message(queue: &Queue, own: &Arc<Receiver>, deadline: Deadline) -> Result<Message> {
    own.sleep(deadline).or_else(|end| {
        let mut state = queue.state.lock();
        if let Some(message) = own.take() {
            return Ok(message);
        }
        state.receivers.retain(|other| !Arc::ptr_eq(other, own));
        trim(&mut state.receivers);
        Err(why(end))
    })
}

/// Sets the times of the queue's inode to now.
fn touch(file: &File) {
    if let Some(inode) = file.inode() {
        let now = attr::now();
        inode.set_times(Some(now), Some(now));
    }
}
