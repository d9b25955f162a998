//! Packing of directory records as `getdents64` and `getdents` lay them out.

/// Bytes before the name of a 64-bit record: inode, cookie, length, type.
pub const HEADER64: usize = 19;

/// Length of the record for a name of `name_len` bytes: header, name, NUL, padded to 8.
pub fn record_len(name_len: usize) -> usize {
    (HEADER64 + name_len + 1).next_multiple_of(8)
}

/// Writes one record to the front of `out`; `None` if it does not fit.
///
/// `next` is the cookie that continues after this record. Returns the bytes used.
pub fn pack64(out: &mut [u8], ino: u64, next: u64, kind: u8, name: &[u8]) -> Option<usize> {
    let len = record_len(name.len());
    let out = out.get_mut(..len)?;
    out.fill(0);
    out[0..8].copy_from_slice(&ino.to_le_bytes());
    out[8..16].copy_from_slice(&next.to_le_bytes());
    out[16..18].copy_from_slice(&(len as u16).to_le_bytes());
    out[18] = kind;
    out[HEADER64..HEADER64 + name.len()].copy_from_slice(name);
    Some(len)
}

/// As [`pack64`], in the older layout, in which the type is the record's last byte.
pub fn pack_old(out: &mut [u8], ino: u64, next: u64, kind: u8, name: &[u8]) -> Option<usize> {
    let len = (18 + name.len() + 2).next_multiple_of(8);
    let out = out.get_mut(..len)?;
    out.fill(0);
    out[0..8].copy_from_slice(&ino.to_le_bytes());
    out[8..16].copy_from_slice(&next.to_le_bytes());
    out[16..18].copy_from_slice(&(len as u16).to_le_bytes());
    out[18..18 + name.len()].copy_from_slice(name);
    out[len - 1] = kind;
    Some(len)
}

/// The directory-record type of a mode.
pub fn type_of(mode: u32) -> u8 {
    ((mode & 0o170_000) >> 12) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_layout() {
        let mut b = [0xffu8; 64];
        let n = pack64(&mut b, 7, 9, 4, b"abc").unwrap();
        assert_eq!(n, 24);
        assert_eq!(b[0], 7);
        assert_eq!(b[8], 9);
        assert_eq!((b[16], b[17], b[18]), (24, 0, 4));
        assert_eq!(&b[19..24], b"abc\0\0");
        assert_eq!(b[24], 0xff);
    }

    #[test]
    fn too_small() {
        assert_eq!(pack64(&mut [0; 23], 1, 2, 4, b"abc"), None);
        assert_eq!(pack_old(&mut [0; 23], 1, 2, 4, b"abc"), None);
    }

    #[test]
    fn types() {
        assert_eq!(type_of(0o040_755), 4);
        assert_eq!(type_of(0o100_644), 8);
        assert_eq!(type_of(0o120_777), 10);
    }
}
