//! The events of an instance that were not read yet.

use alloc::boxed::Box;
use alloc::collections::LinkedList;
use alloc::vec::Vec;

use cred::{MemoryCharge, Payer};
use vfs::error::{FsError, Result};
use vfs::notify::event::{Event, ev};

/// Bytes of a struct inotify_event without its name.
const HEAD: usize = 16;
/// Bytes of the longest event.
pub(super) const LONGEST: usize = HEAD + 256;

/// The watch descriptor of [`ev::Q_OVERFLOW`].
const NO_WATCH: i32 = -1;

/// An event in a queue.
pub(super) struct Record {
    wd: i32,
    mask: u32,
    cookie: u32,
    /// Empty if there is none.
    name: Box<[u8]>,
    _memory: MemoryCharge,
}

/// A list of one record: what makes it allocates, and what puts it on a queue does not.
pub(super) type One = LinkedList<Record>;

impl Record {
    /// A record that is charged to `payer`.
    fn of(wd: i32, event: &Event, payer: Payer) -> Result<One> {
        let mut name = Vec::new();
        name.try_reserve_exact(event.name.len())
            .map_err(|_| FsError::NoMemory)?;
        name.extend_from_slice(event.name);
        let bytes = size_of::<Record>() + 2 * size_of::<usize>() + name.len();
        Ok(LinkedList::from([Record {
            wd,
            mask: event.mask,
            cookie: event.cookie,
            name: name.into_boxed_slice(),
            _memory: MemoryCharge::new(payer, bytes),
        }]))
    }

    /// As [`of`](Self::of); does not sleep.
    ///
    /// # Errors
    /// `NoMemory`.
    pub fn new(wd: i32, event: &Event, payer: Payer) -> Result<One> {
        mem::admit().map_err(|_| FsError::NoMemory)?;
        Self::of(wd, event, payer)
    }

    /// Whether the event would be the same to a reader. As in Linux, cookies are not compared.
    fn is(&self, wd: i32, event: &Event) -> bool {
        self.wd == wd && self.mask == event.mask && *self.name == *event.name
    }

    /// Bytes of the name as it is read: with a NUL, and filled up with NULs.
    fn name_bytes(&self) -> usize {
        match self.name.len() {
            0 => 0,
            n => (n + 1).next_multiple_of(HEAD),
        }
    }

    /// Bytes of the event as it is read.
    fn bytes(&self) -> usize {
        HEAD + self.name_bytes()
    }

    /// Writes it as a struct inotify_event, and returns its bytes.
    fn print(&self, out: &mut [u8; LONGEST]) -> usize {
        let words = [
            self.wd as u32,
            self.mask,
            self.cookie,
            self.name_bytes() as u32,
        ];
        for (to, word) in out.chunks_exact_mut(4).zip(words) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        let len = self.bytes();
        out[HEAD..len].fill(0);
        out[HEAD..HEAD + self.name.len()].copy_from_slice(&self.name);
        len
    }
}

/// The queue.
pub(super) struct Queue {
    records: LinkedList<Record>,
    /// The record of an overflow; empty while it is in the queue. So there is memory for it when there is none for others.
    overflow: One,
    /// Bytes of all events, as they are read.
    bytes: usize,
    /// The most events.
    most: u64,
    /// The open file is gone.
    closed: bool,
}

impl Queue {
    /// An empty queue for so many events, whose record of an overflow is charged to `payer`. The caller has been admitted.
    ///
    /// # Errors
    /// `NoMemory`.
    pub fn new(most: u64, payer: Payer) -> Result<Queue> {
        Ok(Queue {
            records: LinkedList::new(),
            overflow: Record::of(NO_WATCH, &Event::own(ev::Q_OVERFLOW), payer)?,
            bytes: 0,
            most,
            closed: false,
        })
    }

    /// Whether an event needs no record: because it is the same as the last one, or there is no room, which the queue says then, or
    /// nobody will read it. Returns whether there is something new to read; `None` if it needs a record.
    pub fn absorbs(&mut self, wd: i32, event: &Event) -> Option<bool> {
        if self.closed {
            return Some(false);
        }
        if self.records.len() as u64 >= self.most {
            return Some(self.overflow());
        }
        let same = event.mask & ev::IGNORED == 0
            && self.records.back().is_some_and(|last| last.is(wd, event));
        same.then_some(false)
    }

    /// Appends an event that [`absorbs`](Self::absorbs) has not absorbed.
    pub fn push(&mut self, mut one: One) {
        self.bytes += one.front().map_or(0, Record::bytes);
        self.records.append(&mut one);
    }

    /// Appends the record that events were lost, unless it is there. Returns whether it did.
    pub fn overflow(&mut self) -> bool {
        let one = core::mem::take(&mut self.overflow);
        let new = !self.closed && !one.is_empty();
        if new {
            self.push(one);
        }
        new
    }

    /// Takes the first event, written to `out`, if it has at most `room` bytes. Returns its bytes, and what the caller drops once it
    /// has released the lock; `None` if there is no event.
    ///
    /// # Errors
    /// `Invalid` if the event is larger.
    pub fn take(&mut self, room: usize, out: &mut [u8; LONGEST]) -> Option<Result<(usize, One)>> {
        if self.records.front()?.bytes() > room {
            return Some(Err(FsError::Invalid));
        }
        let rest = self.records.split_off(1);
        let mut one = core::mem::replace(&mut self.records, rest);
        let first = one.front()?;
        let len = first.print(out);
        self.bytes -= len;
        if first.wd == NO_WATCH {
            self.overflow = core::mem::take(&mut one);
        }
        Some(Ok((len, one)))
    }

    /// Whether there is no event.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Bytes of all events, as they are read.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Nothing will be read any more. Returns what the caller drops once it has released the lock.
    pub fn close(&mut self) -> LinkedList<Record> {
        self.closed = true;
        self.bytes = 0;
        core::mem::take(&mut self.records)
    }
}
