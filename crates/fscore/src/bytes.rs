//! Strings of bytes, eight at a time.

/// Position of the first `byte`.
#[inline]
pub fn find(bytes: &[u8], byte: u8) -> Option<usize> {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let (words, tail) = bytes.as_chunks::<8>();
    for (n, &word) in words.iter().enumerate() {
        let zero_there = u64::from_le_bytes(word) ^ (ONES * u64::from(byte));
        // The lowest set bit marks the first byte that is zero; higher set bits may be wrong.
        let found = zero_there.wrapping_sub(ONES) & !zero_there & (ONES << 7);
        if found != 0 {
            return Some(n * 8 + found.trailing_zeros() as usize / 8);
        }
    }
    let at = tail.iter().position(|&b| b == byte)?;
    Some(words.len() * 8 + at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_find_what_bytes_find() {
        let text = b"usr/lib/x86_64-linux-gnu/libc.so.6/\0and\0-some-more\x80\xff\x01-of-it";
        for from in 0..text.len() {
            for to in from..=text.len() {
                let part = &text[from..to];
                for byte in [0, b'/', b'-', 0x80, 0xff, b'!'] {
                    assert_eq!(find(part, byte), part.iter().position(|&b| b == byte));
                }
            }
        }
        assert_eq!(find(b"\xaf\x2e\x30\x2f\x2f", b'/'), Some(3));
        assert_eq!(find(b"\xaf\x2e\x30\xff\x00\x80\x01\x2f", b'/'), Some(7));
        assert_eq!(find(b"\x01\x01\x01\x01\x01\x01\x01\x00", 0), Some(7));
    }
}
