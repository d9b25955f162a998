//! msgsnd(2) and msgrcv(2).

use alloc::sync::Arc;
use alloc::vec::Vec;

use cred::Cred;
use ksync::Spin;
use task::park::Deadline;

use super::queue::{Message, Queue, State, registry};
use crate::sleeper::Sleeper;
use crate::sysv::error::{Result, SysvError};
use crate::sysv::perm::{Caller, OwnPerm, READ, WRITE};
use crate::sysv::present::now;
use crate::sysv::registry::Object;
use crate::sysv::trim::trim;

ksync::lock_class!(pub ToSendLock, "message to send", rank = 86);

/// Which message a receiver takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The first one.
    Any,
    /// The first one of this type.
    Of(i64),
    /// The first one of another type.
    Except(i64),
    /// The first one of the lowest type, if that is no more than this.
    UpTo(i64),
}

/// What a receiver asks for.
#[derive(Clone, Copy, Debug)]
pub struct Want {
    /// Which message.
    pub choice: Choice,
    /// The bytes that it has room for.
    pub room: usize,
    /// Whether a longer message is cut.
    pub cuts: bool,
    /// Whether it waits for one.
    pub waits: bool,
}

impl Want {
    fn takes(&self, kind: i64) -> bool {
        match self.choice {
            Choice::Any => true,
            Choice::Of(wanted) => kind == wanted,
            Choice::Except(unwanted) => kind != unwanted,
            Choice::UpTo(most) => kind <= most,
        }
    }

    fn fits(&self, message: &Message) -> Result<()> {
        if message.text.len() > self.room && !self.cuts {
            return Err(SysvError::TooBig);
        }
        Ok(())
    }
}

/// What a waiting receiver is answered.
enum Answer {
    Message(Message),
    /// The queue's settings have changed: it looks again whether it may receive.
    Again,
    Failed(SysvError),
}

/// A thread that waits for a message.
pub(super) struct Receiver {
    want: Want,
    pid: u32,
    sleeper: Sleeper<Answer>,
}

/// A thread that waits for room, and its message.
pub(super) struct Sender {
    /// Taken under the queue's lock.
    message: Spin<Option<Message>, ToSendLock>,
    len: u64,
    pid: u32,
    /// Those of the thread, which do not change while it sleeps.
    cred: Cred,
    sleeper: Sleeper<Result<()>>,
}

impl State {
    /// Whether a message of so many bytes has room.
    fn has_room(&self, len: u64) -> bool {
        self.bytes + len <= self.most && (self.messages.len() as u64) < self.most
    }

    /// Gives a message, which has room, to the first receiver that takes it, or else puts it into the queue. `NoMemory`, with the
    /// message, if there is no memory for its place.
    fn deliver(&mut self, message: Message, pid: u32) -> core::result::Result<(), Message> {
        let mut at = 0;
        while let Some(receiver) = self.receivers.get(at) {
            if !receiver.want.takes(message.kind) {
                at += 1;
                continue;
            }
            let Some(receiver) = self.receivers.remove(at) else {
                break;
            };
            trim(&mut self.receivers);
            match receiver.want.fits(&message) {
                Err(why) => receiver.sleeper.answer(Answer::Failed(why)),
                Ok(()) => {
                    self.note_sent(pid);
                    self.note_received(receiver.pid);
                    receiver.sleeper.answer(Answer::Message(message));
                    return Ok(());
                }
            }
        }
        if self.messages.try_reserve(1).is_err() {
            return Err(message);
        }
        self.note_sent(pid);
        self.bytes += message.text.len() as u64;
        self.messages.push_back(message);
        Ok(())
    }

    fn note_sent(&mut self, pid: u32) {
        (self.sent, self.last_sender) = (now(), pid);
    }

    fn note_received(&mut self, pid: u32) {
        (self.received, self.last_receiver) = (now(), pid);
    }

    /// The place of the message that a receiver takes.
    fn find(&self, want: &Want) -> Option<usize> {
        let kinds = self.messages.iter().map(|m| m.kind).enumerate();
        let mut fitting = kinds.filter(|&(_, kind)| want.takes(kind));
        match want.choice {
            // Of those with the lowest type, the first one.
            Choice::UpTo(_) => fitting.min_by_key(|&(at, kind)| (kind, at)),
            _ => fitting.next(),
        }
        .map(|(at, _)| at)
    }

    /// Takes the message that a receiver wants out of the queue, and lets senders have its room that the queue's `owner` permits.
    fn take(&mut self, want: &Want, pid: u32, owner: &OwnPerm) -> Option<Result<Message>> {
        let at = self.find(want)?;
        if let Err(why) = want.fits(&self.messages[at]) {
            return Some(Err(why));
        }
        let message = self.messages.remove(at)?;
        trim(&mut self.messages);
        self.bytes -= message.text.len() as u64;
        self.note_received(pid);
        self.serve_senders(owner);
        Some(Ok(message))
    }

    /// Sends for the senders that wait, in the order in which they came, what has room. Those that may not send any more fail instead.
    pub(super) fn serve_senders(&mut self, owner: &OwnPerm) {
        if self.senders.is_empty() {
            return;
        }
        let (perm, mut at) = (owner.get(), 0);
        while let Some(sender) = self.senders.get(at) {
            if !self.has_room(sender.len) {
                at += 1;
                continue;
            }
            let Some(sender) = self.senders.remove(at) else {
                return;
            };
            trim(&mut self.senders);
            if let Err(why) = perm.check(WRITE, &sender.cred) {
                sender.sleeper.answer(Err(why));
                continue;
            }
            let message = sender.message.lock().take();
            let sent = message.map_or(Ok(()), |message| self.deliver(message, sender.pid));
            // A message that found no memory is dropped after this.
            let answer = sent.as_ref().map_err(|_| SysvError::NoMemory);
            sender.sleeper.answer(answer.copied());
        }
    }

    /// Makes the receivers that wait look again whether they may.
    pub(super) fn recheck_receivers(&mut self) {
        for receiver in core::mem::take(&mut self.receivers) {
            receiver.sleeper.answer(Answer::Again);
        }
    }

    /// Answers all that wait: the queue is removed.
    pub(super) fn answer_all(&mut self, why: SysvError) {
        for receiver in core::mem::take(&mut self.receivers) {
            receiver.sleeper.answer(Answer::Failed(why));
        }
        for sender in core::mem::take(&mut self.senders) {
            sender.sleeper.answer(Err(why));
        }
    }
}

/// Sends a message, and with `waits` sleeps until there is room for it.
///
/// # Errors
/// As msgsnd(2) says. The message was not sent.
pub fn send(id: i32, message: Message, waits: bool, caller: Caller<'_>) -> Result<()> {
    let queue = registry().find(id)?;
    let mut state = queue.lock()?;
    queue.perm().check(WRITE, caller.cred)?;
    let len = message.text.len() as u64;
    if state.has_room(len) {
        let sent = state.deliver(message, caller.pid);
        drop(state);
        return sent.map_err(|_| SysvError::NoMemory);
    }
    if !waits {
        return Err(SysvError::Again);
    }
    let room = state.senders.try_reserve(1);
    room.map_err(|_| SysvError::NoMemory)?;
    let sender = Arc::new(Sender {
        message: Spin::new(Some(message)),
        len,
        pid: caller.pid,
        cred: caller.cred.clone(),
        sleeper: Sleeper::new(),
    });
    state.senders.push_back(sender.clone());
    drop(state);
    sender.sleeper.sleep(Deadline::Never).unwrap_or_else(|why| {
        let mut state = queue.lock_removed();
        if let Some(answer) = sender.sleeper.take() {
            return answer;
        }
        state.senders.retain(|other| !Arc::ptr_eq(other, &sender));
        trim(&mut state.senders);
        Err(why.into())
    })
}

/// Receives a message, and sleeps for one if the caller waits.
///
/// # Errors
/// As msgrcv(2) says. No message is taken.
pub fn receive(id: i32, want: Want, caller: Caller<'_>) -> Result<Message> {
    let queue = registry().find(id)?;
    loop {
        let mut state = queue.lock()?;
        queue.perm().check(READ, caller.cred)?;
        if let Some(taken) = state.take(&want, caller.pid, &queue.perm) {
            return taken;
        }
        if !want.waits {
            return Err(SysvError::NoMessage);
        }
        let room = state.receivers.try_reserve(1);
        room.map_err(|_| SysvError::NoMemory)?;
        let receiver = Arc::new(Receiver {
            want,
            pid: caller.pid,
            sleeper: Sleeper::new(),
        });
        state.receivers.push_back(receiver.clone());
        drop(state);
        match wait(&queue, &receiver)? {
            Answer::Message(message) => return Ok(message),
            Answer::Failed(why) => return Err(why),
            Answer::Again => {}
        }
    }
}

/// Sleeps until a receiver that is on the list is answered.
fn wait(queue: &Queue, receiver: &Arc<Receiver>) -> Result<Answer> {
    receiver.sleeper.sleep(Deadline::Never).or_else(|why| {
        let mut state = queue.lock_removed();
        if let Some(answer) = receiver.sleeper.take() {
            return Ok(answer);
        }
        state
            .receivers
            .retain(|other| !Arc::ptr_eq(other, receiver));
        trim(&mut state.receivers);
        Err(why.into())
    })
}

/// A copy of the message at a place in the queue, which stays (MSG_COPY): its type and text.
///
/// # Errors
/// As msgrcv(2) says.
pub fn copy(id: i32, place: u64, want: Want, caller: Caller<'_>) -> Result<(i64, Vec<u8>)> {
    let queue = registry().find(id)?;
    let state = queue.lock()?;
    queue.perm().check(READ, caller.cred)?;
    let place = usize::try_from(place).ok();
    let message = place.and_then(|at| state.messages.get(at));
    let message = message.ok_or(SysvError::NoMessage)?;
    want.fits(message)?;
    let mut text = Vec::new();
    let room = text.try_reserve_exact(message.text.len());
    room.map_err(|_| SysvError::NoMemory)?;
    text.extend_from_slice(&message.text);
    Ok((message.kind, text))
}
