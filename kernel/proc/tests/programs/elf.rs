//! ELF files that the loader accepts.

use super::{MEMORY, PAGE};

/// Where the code of the programs is: that of the functions of the tests.
const CODE: u64 = 0x40_0000;

/// Bytes of the file header and of one program header.
const HEADER: usize = 64;
const SEGMENT: usize = 56;

/// Kinds of segments, and their accesses.
pub const LOAD: u32 = 1;
pub const INTERP: u32 = 3;
pub const EXEC: u32 = 1;
pub const WRITE: u32 = 2;
pub const READ: u32 = 4;

/// A program header.
#[derive(Clone, Copy)]
pub struct Segment {
    pub kind: u32,
    pub access: u32,
    pub offset: u64,
    pub addr: u64,
    pub file_len: u64,
    pub len: u64,
}

/// A file with these segments, and `tail` behind the headers.
pub fn file(entry: u64, segments: &[Segment], tail: &[u8]) -> Vec<u8> {
    let mut all = b"\x7fELF\x02\x01\x01".to_vec();
    all.resize(16, 0);
    all.extend(2u16.to_le_bytes());
    all.extend(62u16.to_le_bytes());
    all.extend(1u32.to_le_bytes());
    for word in [entry, HEADER as u64, 0] {
        all.extend(word.to_le_bytes());
    }
    all.extend(0u32.to_le_bytes());
    for half in [HEADER, SEGMENT, segments.len(), 64, 0, 0] {
        all.extend((half as u16).to_le_bytes());
    }
    for s in segments {
        all.extend(s.kind.to_le_bytes());
        all.extend(s.access.to_le_bytes());
        for word in [s.offset, s.addr, s.addr, s.file_len, s.len, PAGE] {
            all.extend(word.to_le_bytes());
        }
    }
    all.extend(tail);
    all
}

/// The segments of a program: its code, and sixteen pages that it may write from [`MEMORY`] on.
pub fn segments() -> [Segment; 2] {
    let code = Segment {
        kind: LOAD,
        access: READ | EXEC,
        offset: 0,
        addr: CODE,
        file_len: HEADER as u64,
        len: PAGE,
    };
    let data = Segment {
        kind: LOAD,
        access: READ | WRITE,
        offset: 0,
        addr: MEMORY,
        file_len: 0,
        len: 16 * PAGE,
    };
    [code, data]
}

/// A program that begins at `entry`.
pub fn program(entry: u64) -> Vec<u8> {
    file(entry, &segments(), &[])
}

/// As [`program`], to be loaded by the dynamic linker at `linker`.
pub fn dynamic(entry: u64, linker: &str) -> Vec<u8> {
    let path = [linker.as_bytes(), &[0]].concat();
    let [code, data] = segments();
    let interp = Segment {
        kind: INTERP,
        access: READ,
        offset: (HEADER + 3 * SEGMENT) as u64,
        addr: 0,
        file_len: path.len() as u64,
        len: path.len() as u64,
    };
    file(entry, &[interp, code, data], &path)
}
