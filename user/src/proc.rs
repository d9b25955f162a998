//! Readers for the few /proc and /sys files that several programs read.

use std::fs;

/// The value of `key` in /proc/meminfo, in bytes.
pub fn meminfo(key: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    line.trim()
        .trim_end_matches("kB")
        .trim()
        .parse::<u64>()
        .ok()
        .map(|kib| kib * 1024)
}

/// The reverse map that a Pantala kernel was built with.
pub fn rmap() -> Option<String> {
    let text = fs::read_to_string("/proc/pantala/design").ok()?;
    text.lines()
        .find_map(|line| line.strip_prefix("rmap="))
        .map(str::to_owned)
}

/// The value of option `key` on the kernel's command line, with `%XX` decoded.
///
/// A command with blanks and quotes survives any kernel's splitting of its command line that way.
pub fn boot_option(key: &str) -> Option<String> {
    let text = fs::read_to_string("/proc/cmdline").ok()?;
    let raw = text
        .split_whitespace()
        .find_map(|word| word.strip_prefix(key)?.strip_prefix('='))?;
    Some(percent_decode(raw))
}

/// Decodes `%XX`; other characters are kept.
pub fn percent_decode(raw: &str) -> String {
    let bytes = raw.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        let hex = (bytes[i] == b'%').then(|| raw.get(i + 1..i + 3)).flatten();
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                out.push(byte);
                i += 3;
            }
            None => {
                out.push(bytes[i]);
                i += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_decoding_restores_blanks_quotes_and_percent_signs() {
        assert_eq!(percent_decode("echo%20%22a%22%20100%25"), "echo \"a\" 100%");
        assert_eq!(percent_decode("100%"), "100%");
        assert_eq!(percent_decode("%zz"), "%zz");
    }
}
