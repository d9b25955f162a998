//! Decompression of gzip streams (RFC 1951 and 1952), piece by piece.
//!
//! Guarantee: any input yields output or an error, in bounded memory (a window of 64 KiB and two code tables); a member
//! whose output does not have the length and checksum of its trailer yields an error. The tables are indexed by as many
//! bits as the longest code has, so that a symbol takes one look-up.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use crate::cpio::{Corrupt, Source};

/// Window: twice the farthest distance, so that output can run ahead of its reader.
const WINDOW: usize = 1 << 16;
/// Farthest distance, and most bytes decoded ahead of the reader.
const AHEAD: usize = 1 << 15;

/// A table of codes: entry = symbol << 4 | bits, 0 for an impossible code.
struct Codes {
    table: Vec<u16>,
    bits: u32,
}

impl Codes {
    fn new() -> Self {
        Codes {
            table: Vec::new(),
            bits: 0,
        }
    }

    /// Builds the table from code lengths. Incomplete codes are allowed, over-full ones not.
    fn build(&mut self, lengths: &[u8]) -> Result<(), Corrupt> {
        let mut count = [0u32; 16];
        for &l in lengths {
            count[l as usize] += 1;
        }
        count[0] = 0;
        let mut next = [0u32; 16];
        let mut code = 0u32;
        for bits in 1..16 {
            code = (code + count[bits - 1]) << 1;
            next[bits] = code;
            if code + count[bits] > 1 << bits {
                return Err(Corrupt);
            }
        }
        self.bits = (1..16).rev().find(|&b| count[b as usize] > 0).unwrap_or(1);
        self.table.clear();
        self.table.resize(1 << self.bits, 0);
        for (symbol, &len) in lengths.iter().enumerate() {
            if len == 0 {
                continue;
            }
            let len = u32::from(len);
            let code = next[len as usize];
            next[len as usize] += 1;
            // The first bit of a code is the lowest in the input.
            let mut at = (code.reverse_bits() >> (32 - len)) as usize;
            while at < self.table.len() {
                self.table[at] = (symbol as u16) << 4 | len as u16;
                at += 1 << len;
            }
        }
        Ok(())
    }
}

/// State of decoding between two pieces of output.
enum State {
    Member,
    Block,
    Stored(usize),
    Codes,
    Match(usize, usize),
    Trailer,
    End,
}

/// A gzip stream being decompressed: one or more members, then the end or something else.
pub struct Inflate<'a> {
    input: &'a [u8],
    pos: usize,
    hold: u64,
    bits: u32,
    state: State,
    last: bool,
    literals: Codes,
    distances: Codes,
    window: Box<[u8]>,
    /// Bytes of output of this member, and in total.
    member: u64,
    total: u64,
    taken: u64,
    crc: u32,
    crc_table: Box<[u32]>,
}

const LENGTH_BASE: [u16; 29] = [
    3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 15, 17, 19, 23, 27, 31, 35, 43, 51, 59, 67, 83, 99, 115, 131,
    163, 195, 227, 258,
];
const LENGTH_EXTRA: [u8; 29] = [
    0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0,
];
const DISTANCE_BASE: [u16; 30] = [
    1, 2, 3, 4, 5, 7, 9, 13, 17, 25, 33, 49, 65, 97, 129, 193, 257, 385, 513, 769, 1025, 1537,
    2049, 3073, 4097, 6145, 8193, 12289, 16385, 24577,
];
/// The order in which a block stores the lengths of the codes for code lengths.
const ORDER: [u8; 19] = [
    16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15,
];

/// Whether `bytes` begin like a gzip stream.
pub fn is_gzip(bytes: &[u8]) -> bool {
    bytes.starts_with(&[0x1f, 0x8b])
}

impl<'a> Inflate<'a> {
    /// Starts at the first byte of a gzip stream.
    pub fn new(input: &'a [u8]) -> Self {
        let crc_table = (0..256u32)
            .map(|i| {
                (0..8).fold(i, |c, _| {
                    if c & 1 != 0 {
                        c >> 1 ^ 0xedb8_8320
                    } else {
                        c >> 1
                    }
                })
            })
            .collect();
        Inflate {
            input,
            pos: 0,
            hold: 0,
            bits: 0,
            state: State::Member,
            last: false,
            literals: Codes::new(),
            distances: Codes::new(),
            window: vec![0; WINDOW].into_boxed_slice(),
            member: 0,
            total: 0,
            taken: 0,
            crc: !0,
            crc_table,
        }
    }

    /// Input bytes that belong to the stream; all of them, once it has ended.
    pub fn consumed(&self) -> usize {
        self.pos
    }

    fn refill(&mut self) {
        while self.bits <= 56 && self.pos < self.input.len() {
            self.hold |= u64::from(self.input[self.pos]) << self.bits;
            self.pos += 1;
            self.bits += 8;
        }
    }

    fn take(&mut self, n: u32) -> Result<u32, Corrupt> {
        if self.bits < n {
            self.refill();
            if self.bits < n {
                return Err(Corrupt);
            }
        }
        let v = (self.hold & ((1 << n) - 1)) as u32;
        self.hold >>= n;
        self.bits -= n;
        Ok(v)
    }

    fn symbol(&mut self, distance: bool) -> Result<usize, Corrupt> {
        if self.bits < 15 {
            self.refill();
        }
        let codes = if distance {
            &self.distances
        } else {
            &self.literals
        };
        let entry = codes.table[self.hold as usize & (codes.table.len() - 1)];
        let len = u32::from(entry & 15);
        if len == 0 || len > self.bits {
            return Err(Corrupt);
        }
        self.hold >>= len;
        self.bits -= len;
        Ok(usize::from(entry >> 4))
    }

    /// Returns whole bytes to the input.
    fn align(&mut self) {
        let odd = self.bits % 8;
        self.hold >>= odd;
        self.bits -= odd;
        self.pos -= (self.bits / 8) as usize;
        self.bits = 0;
        self.hold = 0;
    }

    fn byte(&mut self) -> Result<u8, Corrupt> {
        let b = *self.input.get(self.pos).ok_or(Corrupt)?;
        self.pos += 1;
        Ok(b)
    }

    fn emit(&mut self, b: u8) {
        self.window[self.total as usize % WINDOW] = b;
        self.total += 1;
        self.member += 1;
        self.crc = self.crc >> 8 ^ self.crc_table[((self.crc ^ u32::from(b)) & 0xff) as usize];
    }

    fn member_header(&mut self) -> Result<(), Corrupt> {
        let mut head = [0; 10];
        for b in &mut head {
            *b = self.byte()?;
        }
        let flags = head[3];
        if !is_gzip(&head) || head[2] != 8 || flags & 0xe0 != 0 {
            return Err(Corrupt);
        }
        if flags & 4 != 0 {
            let len = usize::from(self.byte()?) | usize::from(self.byte()?) << 8;
            self.pos += len;
        }
        for field in [8, 16] {
            while flags & field != 0 && self.byte()? != 0 {}
        }
        if flags & 2 != 0 {
            self.pos += 2;
        }
        self.member = 0;
        self.crc = !0;
        self.last = false;
        Ok(())
    }

    fn block(&mut self) -> Result<State, Corrupt> {
        if self.last {
            self.align();
            return Ok(State::Trailer);
        }
        self.last = self.take(1)? == 1;
        match self.take(2)? {
            0 => {
                self.align();
                let mut b = [0u8; 4];
                for x in &mut b {
                    *x = self.byte()?;
                }
                let (len, check) = (
                    u16::from_le_bytes([b[0], b[1]]),
                    u16::from_le_bytes([b[2], b[3]]),
                );
                if len != !check {
                    return Err(Corrupt);
                }
                Ok(State::Stored(usize::from(len)))
            }
            1 => {
                let mut lengths = [8u8; 288];
                lengths[144..256].fill(9);
                lengths[256..280].fill(7);
                self.literals.build(&lengths)?;
                self.distances.build(&[5; 30])?;
                Ok(State::Codes)
            }
            2 => {
                self.dynamic()?;
                Ok(State::Codes)
            }
            _ => Err(Corrupt),
        }
    }

    /// Reads the code tables of a block.
    fn dynamic(&mut self) -> Result<(), Corrupt> {
        let nlit = self.take(5)? as usize + 257;
        let ndist = self.take(5)? as usize + 1;
        let ncode = self.take(4)? as usize + 4;
        if nlit > 286 || ndist > 30 {
            return Err(Corrupt);
        }
        let mut lengths = [0u8; 320];
        for &at in &ORDER[..ncode] {
            lengths[at as usize] = self.take(3)? as u8;
        }
        self.literals.build(&lengths[..19])?;
        lengths.fill(0);
        let mut n = 0;
        while n < nlit + ndist {
            let (value, repeat) = match self.symbol(false)? {
                16 if n == 0 => return Err(Corrupt),
                16 => (lengths[n - 1], 3 + self.take(2)? as usize),
                17 => (0, 3 + self.take(3)? as usize),
                18 => (0, 11 + self.take(7)? as usize),
                s => (s as u8, 1),
            };
            if n + repeat > nlit + ndist {
                return Err(Corrupt);
            }
            lengths[n..n + repeat].fill(value);
            n += repeat;
        }
        self.literals.build(&lengths[..nlit])?;
        self.distances.build(&lengths[nlit..nlit + ndist])
    }

    /// Decodes one symbol of a block.
    fn code(&mut self) -> Result<State, Corrupt> {
        let symbol = self.symbol(false)?;
        if symbol < 256 {
            self.emit(symbol as u8);
            return Ok(State::Codes);
        }
        if symbol == 256 {
            return Ok(State::Block);
        }
        let at = symbol - 257;
        let base = usize::from(*LENGTH_BASE.get(at).ok_or(Corrupt)?);
        let len = base + self.take(u32::from(LENGTH_EXTRA[at]))? as usize;
        let at = self.symbol(true)?;
        let base = usize::from(*DISTANCE_BASE.get(at).ok_or(Corrupt)?);
        let extra = (at as u32 / 2).saturating_sub(1);
        let distance = base + self.take(extra)? as usize;
        if distance as u64 > self.member {
            return Err(Corrupt);
        }
        Ok(State::Match(len, distance))
    }

    fn trailer(&mut self) -> Result<State, Corrupt> {
        let mut b = [0u8; 8];
        for x in &mut b {
            *x = self.byte()?;
        }
        let crc = u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
        let len = u32::from_le_bytes([b[4], b[5], b[6], b[7]]);
        if crc != !self.crc || len != self.member as u32 {
            return Err(Corrupt);
        }
        Ok(if is_gzip(&self.input[self.pos..]) {
            State::Member
        } else {
            State::End
        })
    }

    /// Decodes until a large enough piece of output is ready or the stream ends.
    fn advance(&mut self) -> Result<(), Corrupt> {
        let until = self.taken + AHEAD as u64 - 258;
        while self.total < until {
            self.state = match self.state {
                State::Member => {
                    self.member_header()?;
                    State::Block
                }
                State::Block => self.block()?,
                State::Stored(0) => State::Block,
                State::Stored(n) => {
                    let b = self.byte()?;
                    self.emit(b);
                    State::Stored(n - 1)
                }
                State::Codes => self.code()?,
                State::Match(len, distance) => {
                    for _ in 0..len {
                        let b = self.window[(self.total as usize).wrapping_sub(distance) % WINDOW];
                        self.emit(b);
                    }
                    State::Codes
                }
                State::Trailer => self.trailer()?,
                State::End => return Ok(()),
            };
        }
        Ok(())
    }
}

impl Source for Inflate<'_> {
    fn fill(&mut self) -> Result<&[u8], Corrupt> {
        if self.taken == self.total {
            self.advance()?;
        }
        let from = self.taken as usize % WINDOW;
        let len = ((self.total - self.taken) as usize).min(WINDOW - from);
        Ok(&self.window[from..from + len])
    }

    fn consume(&mut self, n: usize) {
        self.taken += n as u64;
    }
}

/// Lets a reader borrow the stream.
impl<S: Source> Source for &mut S {
    fn fill(&mut self) -> Result<&[u8], Corrupt> {
        (**self).fill()
    }
    fn consume(&mut self, n: usize) {
        (**self).consume(n);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gzip(data: &[u8], level: u8) -> Vec<u8> {
        let mut out = vec![0x1f, 0x8b, 8, 8, 0, 0, 0, 0, 0, 3, b'n', 0];
        out.extend(miniz_oxide::deflate::compress_to_vec(data, level));
        let mut crc = !0u32;
        for &b in data {
            crc ^= u32::from(b);
            for _ in 0..8 {
                crc = if crc & 1 != 0 {
                    crc >> 1 ^ 0xedb8_8320
                } else {
                    crc >> 1
                };
            }
        }
        out.extend((!crc).to_le_bytes());
        out.extend((data.len() as u32).to_le_bytes());
        out
    }

    fn all(input: &[u8]) -> Result<Vec<u8>, Corrupt> {
        let mut z = Inflate::new(input);
        let mut out = Vec::new();
        loop {
            let piece = z.fill()?;
            if piece.is_empty() {
                return Ok(out);
            }
            let n = piece.len();
            out.extend_from_slice(piece);
            z.consume(n);
        }
    }

    fn sample() -> Vec<u8> {
        let mut x = 1u32;
        (0..300_000)
            .map(|i| {
                x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                if i / 5000 % 2 == 0 {
                    (x >> 28) as u8
                } else {
                    b"some text that repeats "[i % 23]
                }
            })
            .collect()
    }

    #[test]
    fn round_trips_at_every_level() {
        let data = sample();
        for level in [0, 1, 6, 9] {
            assert_eq!(all(&gzip(&data, level)).unwrap(), data, "level {level}");
        }
        assert_eq!(all(&gzip(b"", 6)).unwrap(), b"");
    }

    #[test]
    fn members_follow_one_another_and_the_rest_is_left() {
        let mut z = gzip(b"one ", 6);
        z.extend(gzip(b"two", 6));
        let end = z.len();
        z.extend(b"\x00\x00070701");
        assert_eq!(all(&z).unwrap(), b"one two");
        let mut s = Inflate::new(&z);
        while !s.fill().unwrap().is_empty() {
            let n = s.fill().unwrap().len();
            s.consume(n);
        }
        assert_eq!(s.consumed(), end);
    }

    #[test]
    fn damage_is_found() {
        let data = sample();
        let good = gzip(&data, 6);
        for at in (0..good.len())
            .step_by(97)
            .chain(good.len() - 8..good.len())
        {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            // Some header fields (time, name) are not checked; damage anywhere else must be noticed.
            if let Ok(out) = all(&bad) {
                assert!(at < 12, "undetected damage at {at}");
                assert_eq!(out, data);
            }
        }
        for cut in (0..good.len()).step_by(101) {
            assert!(all(&good[..cut]).is_err(), "undetected truncation at {cut}");
        }
    }
}
