//! The bytes of a pipe, or of one direction of a stream socket: no buffer at first, then a small one, then pages.
//!
//! An idle pipe has no buffer until its first write, and a buffer of 512 bytes as long as it never holds more. When more is
//! written, the bytes are moved to pages. These are allocated one by one and freed, but for a few, when the pipe becomes
//! empty.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use cred::{MemoryCharge, Payer};
use hal::uio::IoBuf;

use crate::error::{FsError, Result};

/// Bytes of the first buffer.
const SMALL: usize = 512;
/// Bytes of a page of the ring.
pub const PAGE: usize = 4096;
/// Pages that an empty pipe keeps.
const KEEP: usize = 2;

enum Store {
    None,
    Small(Box<[u8]>),
    Pages(Vec<Option<Box<[u8]>>>),
}

/// A queue of bytes with a limit.
///
/// `read` and `len` describe the content: the byte at index `i` lies at `i` modulo the capacity of the store.
pub struct Ring {
    store: Store,
    read: usize,
    len: usize,
    /// The most bytes that it may hold, 2 GiB at most.
    limit: u32,
    /// A thread is moving the first bytes elsewhere and has not taken them out yet: nobody else reads meanwhile, see
    /// [`splice`](super::splice).
    pub front_held: bool,
    /// Bytes of the buffers and of the array of pages: little more than the limit, which is 2 GiB at most.
    held: u32,
    /// Bytes charged besides: of the pipe and its open files.
    around: u32,
    /// The charge for both, while the pipe is open; updated at the end of each change.
    charge: MemoryCharge,
}

/// Allocates a buffer. Waits for memory; `NoMemory` if there is none for a long time, or the thread is killed.
fn buffer(bytes: usize) -> Result<Box<[u8]>> {
    mem::admit_process().map_err(|_| FsError::NoMemory)?;
    Ok(vec![0; bytes].into_boxed_slice())
}

impl Ring {
    /// An empty ring that may hold `limit` bytes.
    pub const fn new(limit: usize) -> Self {
        Ring {
            store: Store::None,
            read: 0,
            len: 0,
            limit: limit as u32,
            front_held: false,
            held: 0,
            around: 0,
            charge: MemoryCharge::NONE,
        }
    }

    /// Charges the ring to `payer` from now on, with `more` bytes besides, and sets its limit in bytes.
    pub fn begin(&mut self, payer: Payer, more: usize, limit: usize) {
        self.around = more as u32;
        self.charge = MemoryCharge::new(payer, self.due());
        self.limit = limit as u32;
    }

    /// Bytes to be charged.
    fn due(&self) -> usize {
        self.around as usize + self.held as usize
    }

    /// Updates the charge. The pipe is open.
    fn settle(&mut self) {
        let due = self.due();
        if self.charge.bytes() != due {
            self.charge.resize(due);
        }
    }

    /// Bytes in the ring.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes that can still be written.
    pub fn room(&self) -> usize {
        self.limit().saturating_sub(self.len)
    }

    /// The most bytes that it may hold.
    pub fn limit(&self) -> usize {
        self.limit as usize
    }

    /// Drops the content and all buffers but a small one, ends the charge, and sets the limit.
    pub fn reset(&mut self, limit: usize) {
        self.charge = MemoryCharge::NONE;
        self.read = 0;
        self.len = 0;
        self.limit = limit as u32;
        if let Store::Pages(_) = self.store {
            self.store = Store::None;
            self.held = 0;
        }
    }

    /// Drops the content and all buffers, and ends the charge.
    pub fn release(&mut self) {
        self.reset(self.limit());
        self.store = Store::None;
        self.held = 0;
    }

    /// Moves the content to pages, and sets the limit. Allocates the array of pages, and pages for the content; may wait for
    /// memory. Fails with `NoMemory`; then nothing has changed. The caller updates the charge.
    fn promote(&mut self, limit: usize) -> Result<()> {
        let mut pages: Vec<Option<Box<[u8]>>> = Vec::new();
        pages
            .try_reserve_exact(limit.div_ceil(PAGE))
            .map_err(|_| FsError::NoMemory)?;
        pages.resize_with(limit.div_ceil(PAGE), || None);
        for slot in pages.iter_mut().take(self.len.div_ceil(PAGE)) {
            *slot = Some(buffer(PAGE)?);
        }
        let mut moved = 0;
        while moved < self.len {
            let at = moved;
            let page = pages[at / PAGE].as_mut().ok_or(FsError::NoMemory)?;
            let piece = self.front(moved);
            let n = piece.len().min(PAGE - at % PAGE);
            page[at % PAGE..at % PAGE + n].copy_from_slice(&piece[..n]);
            moved += n;
        }
        let list = pages.len() * size_of::<Option<Box<[u8]>>>();
        self.held = (list + self.len.div_ceil(PAGE) * PAGE) as u32;
        self.store = Store::Pages(pages);
        self.read = 0;
        self.limit = limit as u32;
        Ok(())
    }

    /// Changes the limit to `limit` bytes, a multiple of [`PAGE`]. Fails with `Busy` if the ring holds more, or with
    /// `NoMemory`.
    pub fn resize(&mut self, limit: usize) -> Result<()> {
        if limit < self.len {
            return Err(FsError::Busy);
        }
        match self.store {
            Store::Pages(_) => {
                let moved = self.promote(limit);
                self.settle();
                moved
            }
            _ => {
                self.limit = limit as u32;
                Ok(())
            }
        }
    }

    /// Changes the limit to `limit` bytes, any number. The ring may hold more, and has no room then; its buffers stay. Fails with
    /// `NoMemory`, and changes nothing.
    pub fn limit_to(&mut self, limit: usize) -> Result<()> {
        if let Store::Pages(p) = &self.store
            && limit > p.len() * PAGE
        {
            let moved = self.promote(limit);
            self.settle();
            return moved;
        }
        self.limit = limit.min(1 << 31) as u32;
        Ok(())
    }

    /// Copies the bytes from `skip` bytes after the read position on into `buf`, and takes none; returns how many. Fails, with
    /// `Fault`, only if nothing was copied.
    pub fn copy(&self, skip: usize, buf: &mut IoBuf) -> Result<usize> {
        let mut done = 0;
        while buf.remaining() > 0 && skip + done < self.len {
            match buf.put(self.front(skip + done)) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if done == 0 => return Err(e.into()),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// The bytes from `skip` bytes after the read position on that lie one behind the other in one buffer.
    fn front(&self, skip: usize) -> &[u8] {
        let left = self.len - skip;
        match &self.store {
            Store::None => &[],
            Store::Small(b) => {
                let at = (self.read + skip) % b.len();
                &b[at..(at + left).min(b.len())]
            }
            Store::Pages(p) => {
                let at = (self.read + skip) % (p.len() * PAGE);
                let from = at % PAGE;
                match &p[at / PAGE] {
                    Some(page) => &page[from..(from + left).min(PAGE)],
                    None => &[],
                }
            }
        }
    }

    /// Allocates the buffer for the next byte, if it is missing, given that `want` bytes are to be written. May wait for memory,
    /// and fail with `NoMemory`.
    fn prepare(&mut self, want: usize) -> Result<()> {
        match &mut self.store {
            Store::None if want <= SMALL => {
                self.store = Store::Small(buffer(SMALL)?);
                self.read = 0;
                self.held = SMALL as u32;
            }
            Store::None => self.promote(self.limit())?,
            Store::Small(b) if self.len + want > b.len() => self.promote(self.limit())?,
            _ => {}
        }
        if let Store::Pages(p) = &mut self.store {
            let at = (self.read + self.len) % (p.len() * PAGE);
            let slot = &mut p[at / PAGE];
            if slot.is_none() {
                *slot = Some(buffer(PAGE)?);
                self.held += PAGE as u32;
            }
        }
        Ok(())
    }

    /// The free bytes, one behind the other in one buffer, where the next byte goes.
    fn back(&mut self) -> &mut [u8] {
        let room = self.room();
        let end = self.read + self.len;
        match &mut self.store {
            Store::None => &mut [],
            Store::Small(b) => {
                let size = b.len();
                let room = room.min(size - self.len);
                let at = end % size;
                &mut b[at..(at + room).min(size)]
            }
            Store::Pages(p) => {
                let at = end % (p.len() * PAGE);
                let from = at % PAGE;
                match &mut p[at / PAGE] {
                    Some(page) => &mut page[from..(from + room).min(PAGE)],
                    None => &mut [],
                }
            }
        }
    }

    /// Writes bytes from `buf` until it or the room is used up. Fails, with `Fault` or `NoMemory`, only if nothing was written;
    /// else an error just ends it. May wait for memory.
    pub fn fill(&mut self, buf: &mut IoBuf) -> Result<usize> {
        let mut done = 0;
        while buf.remaining() > 0 && self.room() > 0 {
            let want = buf.remaining().min(self.room());
            let step = self.prepare(want).and_then(|()| Ok(buf.take(self.back())?));
            match step {
                Ok(0) => break,
                Ok(n) => {
                    self.len += n;
                    done += n;
                }
                Err(e) if done == 0 => {
                    self.settle();
                    return Err(e);
                }
                Err(_) => break,
            }
        }
        self.settle();
        Ok(done)
    }

    /// Reads bytes into `buf` until it is full or the ring is empty. Fails, with `Fault`, only if nothing was read. Bytes that
    /// cannot be copied stay.
    pub fn drain(&mut self, buf: &mut IoBuf) -> Result<usize> {
        let mut done = 0;
        while buf.remaining() > 0 && self.len > 0 {
            match buf.put(self.front(0)) {
                Ok(0) => break,
                Ok(n) => {
                    self.read += n;
                    self.len -= n;
                    done += n;
                }
                Err(e) if done == 0 => return Err(e.into()),
                Err(_) => break,
            }
        }
        self.wrap();
        self.settle();
        Ok(done)
    }

    /// Copies the first bytes to `out`, as many as there are and as fit; returns their number. They stay.
    pub fn peek(&self, out: &mut [u8]) -> usize {
        let n = out.len().min(self.len);
        let mut done = 0;
        while done < n {
            let piece = self.front(done);
            let step = piece.len().min(n - done);
            out[done..done + step].copy_from_slice(&piece[..step]);
            done += step;
        }
        n
    }

    /// Drops the first `n` bytes, which are there.
    pub fn drop_front(&mut self, n: usize) {
        self.read += n;
        self.len -= n;
        self.wrap();
        self.settle();
    }

    /// Keeps the read position within the store, and frees pages if the ring is empty.
    fn wrap(&mut self) {
        match &mut self.store {
            Store::None => {}
            Store::Small(b) => self.read %= b.len(),
            Store::Pages(p) => {
                self.read %= p.len() * PAGE;
                if self.len == 0 {
                    self.read = 0;
                    let spare = p.iter_mut().skip(KEEP);
                    let freed = spare.filter_map(Option::take).count();
                    self.held -= (freed * PAGE) as u32;
                }
            }
        }
    }
}
