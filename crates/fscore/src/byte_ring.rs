//! A queue of bytes of a fixed capacity.
//!
//! Guarantee: bytes come out in the order in which they went in, and none goes in beyond the capacity. No lock, and no memory but what
//! [`ByteRing::new`] takes.

use alloc::boxed::Box;
use alloc::vec::Vec;

/// See the module.
pub struct ByteRing {
    bytes: Box<[u8]>,
    /// Where the first byte is.
    head: usize,
    len: usize,
}

impl ByteRing {
    /// An empty one for `capacity` bytes; `None` if there is no memory.
    pub fn new(capacity: usize) -> Option<ByteRing> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(capacity).ok()?;
        bytes.resize(capacity, 0);
        Some(ByteRing {
            bytes: bytes.into_boxed_slice(),
            head: 0,
            len: 0,
        })
    }

    /// Bytes in it.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a byte; returns false, and drops it, if there is no room.
    pub fn push(&mut self, byte: u8) -> bool {
        if self.len == self.bytes.len() {
            return false;
        }
        let at = (self.head + self.len) % self.bytes.len();
        self.bytes[at] = byte;
        self.len += 1;
        true
    }

    /// Moves the first bytes to `out`, as many as there are and fit; returns their number.
    pub fn take(&mut self, out: &mut [u8]) -> usize {
        let n = self.len.min(out.len());
        let first = n.min(self.bytes.len() - self.head);
        out[..first].copy_from_slice(&self.bytes[self.head..self.head + first]);
        out[first..n].copy_from_slice(&self.bytes[..n - first]);
        self.len -= n;
        self.head = if self.len == 0 {
            0
        } else {
            (self.head + n) % self.bytes.len()
        };
        n
    }

    /// Drops all but the first `n` bytes.
    pub fn truncate(&mut self, n: usize) {
        self.len = self.len.min(n);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    #[test]
    fn it_is_a_queue_with_a_bound() {
        let (mut ring, mut queue) = (ByteRing::new(7).unwrap(), VecDeque::new());
        let mut random = 1u32;
        for step in 0..20_000u32 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let n = (random >> 20) as usize % 9;
            match random >> 30 {
                0 | 1 => {
                    for i in 0..n {
                        let byte = (step as usize + i) as u8;
                        let fits = queue.len() < 7;
                        assert_eq!(ring.push(byte), fits);
                        if fits {
                            queue.push_back(byte);
                        }
                    }
                }
                2 => {
                    let mut out = [0; 9];
                    let got = ring.take(&mut out[..n]);
                    let expected: Vec<u8> = queue.drain(..n.min(queue.len())).collect();
                    assert_eq!(out[..got], expected);
                }
                _ => {
                    ring.truncate(n);
                    queue.truncate(n);
                }
            }
            assert_eq!(
                (ring.len(), ring.is_empty()),
                (queue.len(), queue.is_empty())
            );
        }
    }
}
