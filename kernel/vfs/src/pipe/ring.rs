//! The bytes of a pipe: nothing at first, then a small buffer, then pages.
//!
//! An idle pipe owns no buffer until its first write, and 512 bytes as long as it never holds
//! more. What does not fit is moved to pages, which come one by one and go again when the pipe has
//! been emptied, but for a few.

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

/// A byte queue with a limit.
///
/// `read` and `len` describe the content; a byte's place is its index modulo what the store can
/// hold.
pub struct Ring {
    store: Store,
    read: usize,
    len: usize,
    /// Most bytes held; a whole number of pages.
    limit: usize,
    /// Bytes of the buffers, and of the list of pages.
    held: usize,
    /// Bytes of what is around the ring.
    around: usize,
    /// Both, charged while somebody has the pipe open; brought up to date at the end of each change.
    charge: MemoryCharge,
}

fn buffer(bytes: usize) -> Result<Box<[u8]>> {
    mem::admit_process().map_err(|_| FsError::NoMemory)?;
    Ok(vec![0; bytes].into_boxed_slice())
}

impl Ring {
    /// An empty ring that will hold `limit` bytes.
    pub const fn new(limit: usize) -> Self {
        Ring {
            store: Store::None,
            read: 0,
            len: 0,
            limit,
            held: 0,
            around: 0,
            charge: MemoryCharge::NONE,
        }
    }

    /// `payer` pays for the ring from now on, and for `more` bytes around it.
    pub fn begin(&mut self, payer: Payer, more: usize, limit: usize) {
        self.around = more;
        self.charge = MemoryCharge::new(payer, more + self.held);
        self.limit = limit;
    }

    /// Charges what is held now; somebody has the pipe open.
    fn settle(&mut self) {
        let due = self.around + self.held;
        if self.charge.bytes() != due {
            self.charge.resize(due);
        }
    }

    /// Bytes held.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Bytes that still fit.
    pub fn room(&self) -> usize {
        self.limit - self.len
    }

    /// The most it holds.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Forgets the content and everything but a small buffer, for which nobody pays.
    pub fn reset(&mut self, limit: usize) {
        self.charge = MemoryCharge::NONE;
        self.read = 0;
        self.len = 0;
        self.limit = limit;
        if let Store::Pages(_) = self.store {
            self.store = Store::None;
            self.held = 0;
        }
    }

    /// Frees every buffer.
    pub fn release(&mut self) {
        self.reset(self.limit);
        self.store = Store::None;
        self.held = 0;
    }

    /// Moves to pages. Needs memory for the list and for what is held.
    fn promote(&mut self, limit: usize) -> Result<()> {
        let mut pages: Vec<Option<Box<[u8]>>> = Vec::new();
        pages
            .try_reserve_exact(limit / PAGE)
            .map_err(|_| FsError::NoMemory)?;
        pages.resize_with(limit / PAGE, || None);
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
        self.held = list + self.len.div_ceil(PAGE) * PAGE;
        self.store = Store::Pages(pages);
        self.read = 0;
        self.limit = limit;
        Ok(())
    }

    /// Changes the limit, which must be a whole number of pages and hold the content.
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
                self.limit = limit;
                Ok(())
            }
        }
    }

    /// The contiguous bytes from `skip` bytes after the read position on, as far as they go.
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

    /// Makes sure that there is a buffer where the next byte goes, for a write of `want` bytes.
    fn prepare(&mut self, want: usize) -> Result<()> {
        match &mut self.store {
            Store::None if want <= SMALL => {
                self.store = Store::Small(buffer(SMALL)?);
                self.read = 0;
                self.held = SMALL;
            }
            Store::None => self.promote(self.limit)?,
            Store::Small(b) if self.len + want > b.len() => self.promote(self.limit)?,
            _ => {}
        }
        if let Store::Pages(p) = &mut self.store {
            let at = (self.read + self.len) % (p.len() * PAGE);
            let slot = &mut p[at / PAGE];
            if slot.is_none() {
                *slot = Some(buffer(PAGE)?);
                self.held += PAGE;
            }
        }
        Ok(())
    }

    /// The contiguous free bytes where the next byte goes.
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

    /// Takes bytes from `buf` until it or the room is used up. Fails only if nothing was taken.
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

    /// Gives bytes to `buf` until it or the content is used up. Fails only if nothing was given.
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

    /// Keeps the read position small, and gives back pages when the ring is empty.
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
                    self.held -= freed * PAGE;
                }
            }
        }
    }
}
