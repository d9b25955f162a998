//! Path names: splitting, limits and classification.
//!
//! A path is bytes without NUL. Empty components and a trailing slash carry meaning only in one
//! way: a path that ends in a slash must name a directory.

use crate::bytes;

/// Longest path including its terminating NUL.
pub const PATH_MAX: usize = 4096;
/// Longest single component.
pub const NAME_MAX: usize = 255;
/// Symbolic links followed in one lookup before it fails.
pub const MAX_LINKS: u32 = 40;

/// One component of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Component<'a> {
    /// `.`: stay.
    Here,
    /// `..`: the parent, which is the directory itself at the root.
    Up,
    /// A name to look up.
    Name(&'a [u8]),
}

/// Classifies one non-empty component.
pub fn classify(name: &[u8]) -> Component<'_> {
    match name {
        b"." => Component::Here,
        b".." => Component::Up,
        _ => Component::Name(name),
    }
}

/// Strips leading slashes.
#[inline]
pub fn trim_start(mut path: &[u8]) -> &[u8] {
    while let [b'/', rest @ ..] = path {
        path = rest;
    }
    path
}

/// Fewer than eight bytes as a word; those of one length differ where the bytes do.
#[inline]
fn short_word(bytes: &[u8]) -> u64 {
    match (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        // The two overlap where there are fewer than eight.
        (Some(&first), Some(&last)) => {
            u64::from(u32::from_le_bytes(first)) | u64::from(u32::from_le_bytes(last)) << 32
        }
        _ => bytes
            .iter()
            .fold(0, |word, &byte| word << 8 | u64::from(byte)),
    }
}

/// Splits the next component off a path that may start with slashes.
///
/// Returns the component and the rest (which starts with a slash if one followed), or `None`
/// when nothing but slashes remains.
pub fn next(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let path = trim_start(path);
    if path.is_empty() {
        return None;
    }
    Some(path.split_at(bytes::find(path, b'/').unwrap_or(path.len())))
}

/// Whether nothing but slashes is left.
pub fn is_done(rest: &[u8]) -> bool {
    rest.iter().all(|&b| b == b'/')
}

/// Splits a path into the directory part, the last component, and whether slashes followed it.
///
/// The last component of `/` and of the empty path is empty.
pub fn split_last(path: &[u8]) -> (&[u8], &[u8], bool) {
    let end = path.iter().rposition(|&b| b != b'/').map_or(0, |i| i + 1);
    let body = &path[..end];
    let start = body.iter().rposition(|&b| b == b'/').map_or(0, |i| i + 1);
    (&body[..start], &body[start..], end != path.len())
}

/// A name's hash, as the directory tables use it: a multiply for each eight bytes, folded so that the low bits depend on
/// every byte.
#[inline]
pub fn hash(name: &[u8]) -> u32 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |h: u64, word: u64| {
        let h = (h ^ word).wrapping_mul(FACTOR);
        h ^ h >> 32
    };
    let mut h = name.len() as u64;
    let (words, tail) = name.as_chunks::<8>();
    for &word in words {
        h = mix(h, u64::from_le_bytes(word));
    }
    if !tail.is_empty() {
        h = mix(h, short_word(tail));
    }
    (h.wrapping_mul(FACTOR) >> 32) as u32
}

/// Whether two names are the same, compared by words.
#[inline]
pub fn same(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    let ((a, a_tail), (b, b_tail)) = (a.as_chunks::<8>(), b.as_chunks::<8>());
    let words = |(a, b): (&[u8; 8], &[u8; 8])| u64::from_le_bytes(*a) == u64::from_le_bytes(*b);
    // Of equal lengths, so the words say it all.
    a.iter().zip(b).all(words) && short_word(a_tail) == short_word(b_tail)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(mut p: &[u8]) -> Vec<&[u8]> {
        let mut v = Vec::new();
        while let Some((c, rest)) = next(p) {
            v.push(c);
            p = rest;
        }
        v
    }

    #[test]
    fn components_skip_repeated_slashes() {
        assert_eq!(all(b"//a///b/c//"), [b"a", b"b", b"c"]);
        assert!(all(b"///").is_empty());
        assert!(all(b"").is_empty());
    }

    #[test]
    fn last_component_and_trailing_slash() {
        assert_eq!(split_last(b"/a/b"), (&b"/a/"[..], &b"b"[..], false));
        assert_eq!(split_last(b"a//"), (&b""[..], &b"a"[..], true));
        assert_eq!(split_last(b"/"), (&b""[..], &b""[..], true));
        assert_eq!(split_last(b""), (&b""[..], &b""[..], false));
    }

    #[test]
    fn dots_are_special_only_alone() {
        assert_eq!(classify(b"."), Component::Here);
        assert_eq!(classify(b".."), Component::Up);
        assert_eq!(classify(b"..."), Component::Name(b"..."));
    }

    #[test]
    fn hash_spreads_neighbours() {
        let mut low = std::collections::HashSet::new();
        for i in 0..1024 {
            low.insert(hash(format!("file{i}").as_bytes()) & 1023);
        }
        assert!(low.len() > 550, "only {} of 1024 slots used", low.len());
    }

    #[test]
    fn words_say_what_bytes_say() {
        let text = b"usr/lib/x86_64-linux-gnu/libc.so.6/and-some-more-of-it";
        for from in 0..text.len() {
            for to in from..=text.len() {
                let part = &text[from..to];
                let copy = part.to_vec();
                assert!(same(part, &copy) && hash(part) == hash(&copy));
                for at in 0..part.len() {
                    let mut other = copy.clone();
                    other[at] ^= 0x20;
                    assert!(!same(part, &other), "{part:?} differs at {at}");
                }
            }
        }
        assert!(!same(b"a", b"ab") && !same(b"a\0", b"a"));
    }

    #[test]
    fn hash_tells_short_names_apart() {
        let mut seen = std::collections::HashSet::new();
        for len in 0..4_u32 {
            for n in 0..26_u32.pow(len).min(5000) {
                let name: Vec<u8> = (0..len)
                    .map(|i| b'a' + (n / 26_u32.pow(i) % 26) as u8)
                    .collect();
                assert!(seen.insert(hash(&name)), "{name:?}");
            }
        }
    }
}
