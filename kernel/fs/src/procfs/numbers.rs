//! Names of entries that are numbers: ids and descriptors.

/// Parses a positive decimal number without sign or leading zero.
pub fn number(name: &[u8]) -> Option<u32> {
    let text = core::str::from_utf8(name).ok()?;
    let n: u32 = text.parse().ok()?;
    (n != 0 && name[0].is_ascii_digit() && name[0] != b'0').then_some(n)
}

/// Prints a decimal number into `out`; returns the digits.
pub fn digits(n: u32, out: &mut [u8; 10]) -> &[u8] {
    let mut at = out.len();
    let mut n = n;
    loop {
        at -= 1;
        out[at] = b'0' + (n % 10) as u8;
        n /= 10;
        if n == 0 {
            return &out[at..];
        }
    }
}
