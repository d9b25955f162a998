//! Decompression of gzip streams (RFC 1952), piece by piece. The format of the members is read here; `miniz_oxide` decodes
//! the data in them, and `crc32fast` makes their checksums.
//!
//! Guarantee: any input yields output or an error, in bounded memory (a buffer of 64 KiB and a decoder of 11 KiB); a member
//! whose output does not have the length and checksum of its trailer yields an error.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::inflate_flags::TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
use miniz_oxide::inflate::core::{DecompressorOxide, TINFL_LZ_DICT_SIZE, decompress_with_limit};

use crate::cpio::{Corrupt, Source};

/// The farthest distance, at which output may repeat earlier output.
const WINDOW: usize = TINFL_LZ_DICT_SIZE;
/// Bytes of the buffer: the window, and a piece of new output as large.
const BUFFER: usize = 2 * WINDOW;

/// What the rest of the input begins with.
#[derive(Clone, Copy)]
enum State {
    Header,
    Data,
    End,
}

/// A gzip stream being decompressed: one or more members, then the end or something else.
pub struct Decoder<'a> {
    rest: &'a [u8],
    state: State,
    /// The one decoder, see [`on_heap`].
    inflate: Vec<DecompressorOxide>,
    /// The last output of this member, up to `filled`; the reader has taken what is before `taken`. The decoder finds all
    /// that it may repeat before `filled`, and takes a distance to before the buffer for a defect, which it is.
    buffer: Box<[u8]>,
    taken: usize,
    filled: usize,
    /// Checksum and length of this member's output.
    crc: crc32fast::Hasher,
    len: u32,
}

/// Whether `bytes` begin like a gzip stream.
pub fn is_gzip(bytes: &[u8]) -> bool {
    bytes.starts_with(&[0x1f, 0x8b])
}

/// Makes a decoder, which is larger than a kernel stack. `Box::default` would build it on the stack; this is compiled to
/// build it in the vector's memory.
#[inline(never)]
fn on_heap() -> Vec<DecompressorOxide> {
    let mut one = Vec::new();
    one.resize_with(1, DecompressorOxide::default);
    one
}

impl<'a> Decoder<'a> {
    /// Starts at the first byte of a gzip stream.
    pub fn new(input: &'a [u8]) -> Self {
        Decoder {
            rest: input,
            state: State::Header,
            inflate: on_heap(),
            buffer: vec![0; BUFFER].into_boxed_slice(),
            taken: 0,
            filled: 0,
            crc: crc32fast::Hasher::new(),
            len: 0,
        }
    }

    /// The input behind the stream, once the stream has ended.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], Corrupt> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or(Corrupt)?;
        self.rest = rest;
        Ok(*bytes)
    }

    fn skip(&mut self, n: usize) -> Result<(), Corrupt> {
        self.rest = self.rest.get(n..).ok_or(Corrupt)?;
        Ok(())
    }

    /// Reads the header of a member, and prepares for its data. Extra field, name, comment and the header's checksum are
    /// skipped.
    fn header(&mut self) -> Result<State, Corrupt> {
        let head: [u8; 10] = self.bytes()?;
        let flags = head[3];
        if !is_gzip(&head) || head[2] != 8 || flags & 0xe0 != 0 {
            return Err(Corrupt);
        }
        if flags & 4 != 0 {
            let extra = u16::from_le_bytes(self.bytes()?);
            self.skip(usize::from(extra))?;
        }
        for text in [8, 16] {
            while flags & text != 0 && self.bytes()? != [0] {}
        }
        if flags & 2 != 0 {
            self.skip(2)?;
        }
        self.inflate[0].init();
        self.taken = 0;
        self.filled = 0;
        self.crc.reset();
        self.len = 0;
        Ok(State::Data)
    }

    /// Decodes the next piece, which ends with the member's data at the latest. The reader has taken all output.
    fn data(&mut self) -> Result<State, Corrupt> {
        if self.filled == BUFFER {
            self.buffer.copy_within(BUFFER - WINDOW.., 0);
            self.filled = WINDOW;
        }
        let (status, read, written) = decompress_with_limit(
            &mut self.inflate[0],
            self.rest,
            &mut self.buffer,
            self.filled,
            WINDOW,
            TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF,
        );
        self.rest = &self.rest[read..];
        self.taken = self.filled;
        self.filled += written;
        self.crc.update(&self.buffer[self.taken..self.filled]);
        self.len = self.len.wrapping_add(written as u32);
        match status {
            TINFLStatus::HasMoreOutput => Ok(State::Data),
            // The last piece is not handed on before the checksum is known to be right.
            TINFLStatus::Done => self.trailer(),
            _ => Err(Corrupt),
        }
    }

    /// Checks the checksum and the length of the member's output. Another member may follow directly.
    fn trailer(&mut self) -> Result<State, Corrupt> {
        let crc = u32::from_le_bytes(self.bytes()?);
        let len = u32::from_le_bytes(self.bytes()?);
        if crc != self.crc.clone().finalize() || len != self.len {
            return Err(Corrupt);
        }
        Ok(if is_gzip(self.rest) {
            State::Header
        } else {
            State::End
        })
    }
}

impl Source for Decoder<'_> {
    fn fill(&mut self) -> Result<&[u8], Corrupt> {
        while self.taken == self.filled {
            self.state = match self.state {
                State::Header => self.header()?,
                State::Data => self.data()?,
                State::End => break,
            };
        }
        Ok(&self.buffer[self.taken..self.filled])
    }

    fn consume(&mut self, n: usize) {
        self.taken += n;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A member with a name, whose compressed data are `raw` and whose output is `data`.
    fn member(raw: &[u8], data: &[u8]) -> Vec<u8> {
        let mut out = vec![0x1f, 0x8b, 8, 8, 0, 0, 0, 0, 0, 3, b'n', 0];
        out.extend(raw);
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

    fn gzip(data: &[u8], level: u8) -> Vec<u8> {
        member(&miniz_oxide::deflate::compress_to_vec(data, level), data)
    }

    fn all(input: &[u8]) -> Result<Vec<u8>, Corrupt> {
        let mut z = Decoder::new(input);
        let mut out = Vec::new();
        loop {
            let piece = z.fill()?;
            if piece.is_empty() {
                return Ok(out);
            }
            let n = piece.len();
            assert!(n <= WINDOW);
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
        z.extend(b"\x00\x00070701");
        assert_eq!(all(&z).unwrap(), b"one two");
        let mut s = Decoder::new(&z);
        while !s.fill().unwrap().is_empty() {
            let n = s.fill().unwrap().len();
            s.consume(n);
        }
        assert_eq!(s.rest(), b"\x00\x00070701");
    }

    #[test]
    fn optional_header_fields_are_skipped() {
        let plain = gzip(b"data", 6);
        let mut z = vec![0x1f, 0x8b, 8, 4 | 8 | 16 | 2, 0, 0, 0, 0, 0, 3];
        z.extend(b"\x03\x00abcname\0comment\0\x12\x34");
        z.extend(&plain[12..]);
        assert_eq!(all(&z).unwrap(), b"data");
        for cut in 0..z.len() {
            assert_eq!(all(&z[..cut]), Err(Corrupt), "cut at {cut}");
        }
        z[3] |= 0x20;
        assert_eq!(all(&z), Err(Corrupt), "a reserved flag");
    }

    /// Compressed data: `text` as it is, then 3 bytes of earlier output. `code` is the distance:
    /// the bits of its fixed code, and the further bits from the lowest.
    fn repetition(text: &[u8], code: &str) -> Vec<u8> {
        let mut out = Vec::new();
        for part in text.chunks(WINDOW) {
            let len = part.len() as u16;
            out.push(0);
            out.extend(len.to_le_bytes());
            out.extend((!len).to_le_bytes());
            out.extend(part);
        }
        // The last block, with fixed codes: a length of 3, the distance, the end.
        let bits = ["1", "10", "0000001", code, "0000000"].concat();
        for byte in bits.as_bytes().chunks(8) {
            let bit = |byte, (i, &bit)| byte | (bit - b'0') << i;
            out.push(byte.iter().enumerate().fold(0, bit));
        }
        out
    }

    #[test]
    fn output_repeats_output_of_its_own_member_alone() {
        let first = gzip(&[b'x'; 100], 6);
        let two = repetition(b"ab", "00001");
        assert_eq!(all(&member(&two, b"ababa")).unwrap(), b"ababa");
        let three = repetition(b"ab", "00010");
        for data in [b"abxab", b"ab\0ab"] {
            let bad = member(&three, data);
            assert_eq!(all(&bad), Err(Corrupt));
            assert_eq!(all(&[&first[..], &bad].concat()), Err(Corrupt));
        }
    }

    #[test]
    fn output_repeats_the_farthest_output() {
        // 32768 = 24577 + 8191.
        let farthest = ["11101", "1111111111111"].concat();
        for n in [0, 1, WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW + 5] {
            let mut data = sample()[..WINDOW + n].to_vec();
            let raw = repetition(&data, &farthest);
            data.extend_from_within(n..n + 3);
            assert_eq!(all(&member(&raw, &data)).unwrap(), data, "{n} bytes before");
        }
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
