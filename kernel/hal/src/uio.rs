//! One side of a transfer: where a read puts its bytes, or where a write takes them from.
//!
//! Files, pipes and devices move bytes through an [`IoBuf`], which may be a user range, a vector of user ranges, or kernel
//! memory. A copy that moves some bytes returns their number, and fails only if it moves none. One step of a copy never
//! crosses the end of a user page, so a copy that faults has moved whole pieces of pages.

use alloc::vec::Vec;

use crate::uaccess::{UserFault, UserRange};
use crate::user;

/// Bytes of a page, the unit in which user memory may be absent.
const PAGE: u64 = crate::limits::PAGE_SIZE as u64;

/// The far side of a transfer.
pub enum IoBuf<'a> {
    /// One user range.
    User(UserRange),
    /// Several user ranges, from `readv` and the like, used from first to last.
    Vector {
        /// The range that is being used.
        head: UserRange,
        /// The ranges after it, the last one first.
        rest: Vec<UserRange>,
        /// Bytes left in all of them.
        left: usize,
    },
    /// Kernel memory that the transfer fills.
    Fill(&'a mut [u8]),
    /// Kernel memory that the transfer reads.
    Drain(&'a [u8]),
}

impl IoBuf<'_> {
    /// A user range.
    pub const fn user(addr: u64, len: usize) -> IoBuf<'static> {
        IoBuf::User(UserRange::new(addr, len))
    }

    /// Several user ranges, in order.
    pub fn vector(mut ranges: Vec<UserRange>) -> IoBuf<'static> {
        let left = ranges.iter().map(|r| r.len).sum();
        ranges.reverse();
        let head = ranges.pop().unwrap_or(UserRange::new(0, 0));
        IoBuf::Vector {
            head,
            rest: ranges,
            left,
        }
    }

    /// Bytes still to be moved.
    pub fn remaining(&self) -> usize {
        match self {
            IoBuf::User(r) => r.len,
            IoBuf::Vector { left, .. } => *left,
            IoBuf::Fill(s) => s.len(),
            IoBuf::Drain(s) => s.len(),
        }
    }

    /// Skips all that is left, and returns how many bytes that was.
    pub fn discard(&mut self) -> usize {
        let n = self.remaining();
        self.advance(n);
        n
    }

    /// Drops all but the next `n` bytes.
    pub fn limit(&mut self, n: usize) {
        match self {
            IoBuf::User(r) => r.len = r.len.min(n),
            IoBuf::Vector { left, .. } => *left = (*left).min(n),
            IoBuf::Fill(s) => {
                let keep = s.len().min(n);
                *s = &mut core::mem::take(s)[..keep];
            }
            IoBuf::Drain(s) => *s = &s[..s.len().min(n)],
        }
    }

    /// Copies `bytes` to the far side, as many as it has room for, and returns how many. Fails only if not even the first
    /// piece, of one page at most, can be written; kernel memory that is read from never can. Sleeps for a missing page, unless
    /// preemption is off.
    pub fn put(&mut self, bytes: &[u8]) -> Result<usize, UserFault> {
        let mut done = 0;
        while done < bytes.len() && self.remaining() > 0 {
            let src = &bytes[done..];
            let step = match self {
                IoBuf::Fill(s) => {
                    let n = s.len().min(src.len());
                    s[..n].copy_from_slice(&src[..n]);
                    Ok(n)
                }
                IoBuf::Drain(_) => Err(UserFault),
                _ => {
                    let r = self.piece(src.len());
                    user::copy_out(r.addr, &src[..r.len]).map(|()| r.len)
                }
            };
            match step {
                Ok(n) => self.advance(n),
                Err(fault) if done == 0 => return Err(fault),
                Err(_) => break,
            }
            done += step.unwrap_or(0);
        }
        Ok(done)
    }

    /// Copies from the far side to `bytes`, as many as it has, and returns how many. Fails, and sleeps, as [`Self::put`]; memory
    /// that is to be filled cannot be read.
    pub fn take(&mut self, bytes: &mut [u8]) -> Result<usize, UserFault> {
        let mut done = 0;
        while done < bytes.len() && self.remaining() > 0 {
            let dst = &mut bytes[done..];
            let step = match self {
                IoBuf::Drain(s) => {
                    let n = s.len().min(dst.len());
                    dst[..n].copy_from_slice(&s[..n]);
                    Ok(n)
                }
                IoBuf::Fill(_) => Err(UserFault),
                _ => {
                    let r = self.piece(dst.len());
                    user::copy_in(&mut dst[..r.len], r.addr).map(|()| r.len)
                }
            };
            match step {
                Ok(n) => self.advance(n),
                Err(fault) if done == 0 => return Err(fault),
                Err(_) => break,
            }
            done += step.unwrap_or(0);
        }
        Ok(done)
    }

    /// Makes the page of the next byte accessible. Called with preemption on, after a copy has failed with preemption off.
    /// `write` says whether the kernel is going to write there.
    pub fn fault_in(&self, write: bool) -> Result<(), UserFault> {
        match self {
            IoBuf::User(r) => r.fault_in(write),
            IoBuf::Vector { head, .. } => head.fault_in(write),
            IoBuf::Fill(_) | IoBuf::Drain(_) => Ok(()),
        }
    }

    /// The next piece of user memory: at most `max` bytes, within one page.
    fn piece(&self, max: usize) -> UserRange {
        let (mut r, left) = match self {
            IoBuf::User(r) => (*r, r.len),
            IoBuf::Vector { head, left, .. } => (*head, *left),
            IoBuf::Fill(_) | IoBuf::Drain(_) => (UserRange::new(0, 0), 0),
        };
        let to_page_end = (PAGE - r.addr % PAGE) as usize;
        r.len = r.len.min(left).min(max).min(to_page_end);
        r
    }

    /// Skips `n` bytes that have been moved.
    fn advance(&mut self, n: usize) {
        match self {
            IoBuf::User(r) => r.skip(n),
            IoBuf::Vector { head, rest, left } => {
                *left -= n.min(*left);
                let mut n = n;
                loop {
                    let step = n.min(head.len);
                    head.skip(step);
                    n -= step;
                    if head.len > 0 {
                        break;
                    }
                    match rest.pop() {
                        Some(next) => *head = next,
                        None => break,
                    }
                }
            }
            IoBuf::Fill(s) => {
                let n = n.min(s.len());
                *s = &mut core::mem::take(s)[n..];
            }
            IoBuf::Drain(s) => *s = &s[n.min(s.len())..],
        }
    }
}
