//! Path names: splitting, limits and classification.
//!
//! A path is bytes without NUL. Empty components and a trailing slash matter only in one way: a path that ends in a
//! slash must name a directory.

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

/// Up to seven bytes as a word; for equal lengths, different bytes give different words.
#[inline]
fn short_word(bytes: &[u8]) -> u64 {
    match (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        // The two overlap if there are fewer than eight bytes.
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
/// The directory part ends in a slash unless it is empty. The last component of `/` and of the empty path is empty.
pub fn split_last(path: &[u8]) -> (&[u8], &[u8], bool) {
    let end = path.iter().rposition(|&b| b != b'/').map_or(0, |i| i + 1);
    let body = &path[..end];
    let start = body.iter().rposition(|&b| b == b'/').map_or(0, |i| i + 1);
    (&body[..start], &body[start..], end != path.len())
}

/// Makes a hash unpredictable.
#[derive(Clone, Copy, Debug)]
pub struct Secret {
    /// The initial value of a hash.
    pub begin: u64,
    /// The factor that each word is multiplied by.
    pub factor: u64,
}

impl Secret {
    /// No secret: for hashes that may be predictable.
    pub const NONE: Secret = Secret {
        begin: 0,
        factor: 0x9e37_79b9_7f4a_7c15,
    };

    /// A secret made of random bits. Long runs of equal bits at the ends of the factor are avoided, because they would
    /// mix little.
    pub fn new(begin: u64, factor: u64) -> Secret {
        Secret {
            begin,
            factor: factor ^ Self::NONE.factor | 1 << 63 | 1,
        }
    }
}

/// A name's hash, as used by the directory tables: one multiplication for each eight bytes, whose halves are folded, so
/// that all bits depend on every byte. Without the secret nobody can construct names with equal hashes: the effect of a
/// changed factor on the upper half of a product depends on the other factor.
#[inline]
pub fn hash(secret: Secret, name: &[u8]) -> u32 {
    let fold = |word: u64| {
        let product = u128::from(word) * u128::from(secret.factor);
        product as u64 ^ (product >> 64) as u64
    };
    let mix = |h: u64, word: u64| fold(h ^ word);
    let mut h = secret.begin ^ name.len() as u64;
    let (words, tail) = name.as_chunks::<8>();
    for &word in words {
        h = mix(h, u64::from_le_bytes(word));
    }
    if !tail.is_empty() {
        h = mix(h, short_word(tail));
    }
    (fold(h) >> 32) as u32
}

/// Whether two names are the same, compared by words.
#[inline]
pub fn same(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    let ((a, a_tail), (b, b_tail)) = (a.as_chunks::<8>(), b.as_chunks::<8>());
    let words = |(a, b): (&[u8; 8], &[u8; 8])| u64::from_le_bytes(*a) == u64::from_le_bytes(*b);
    // The lengths are equal, so comparing the words suffices.
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
            low.insert(hash(Secret::NONE, format!("file{i}").as_bytes()) & 1023);
        }
        assert!(low.len() > 550, "only {} of 1024 slots used", low.len());
    }

    /// Changes of two words that cancel each other whatever value precedes them: when a product was folded onto its own
    /// word, they produced any number of names with the same hash.
    #[test]
    fn no_secret_shares_its_collisions() {
        const CHANGES: [(u64, u64); 2] = [(1 << 63, 1 << 63 | 1 << 31), (1 << 63, 1 << 63)];
        let mut agree = 0;
        for n in 1..=1000u64 {
            let secret = Secret::new(
                n.wrapping_mul(0xd134_2543_de82_ef95),
                n.wrapping_mul(0xaf25_1af3_b0f0_25b5),
            );
            for (first, second) in CHANGES {
                let words = |a: u64, b: u64| {
                    let mut name = a.to_le_bytes().to_vec();
                    name.extend(b.to_le_bytes());
                    hash(secret, &name)
                };
                let (a, b) = (0x6162_6364_6566_6768, 0x6970_7172_7374_7576);
                agree += usize::from(words(a, b) == words(a ^ first, b ^ second));
            }
        }
        assert!(agree <= 1, "{agree} of 2000 agree");
    }

    #[test]
    fn another_secret_is_another_hash() {
        let of = |begin, factor| hash(Secret::new(begin, factor), b"name");
        assert_ne!(of(1, 2), of(2, 2));
        assert_ne!(of(1, 2), of(1, 4));
    }

    #[test]
    fn words_say_what_bytes_say() {
        let text = b"usr/lib/x86_64-linux-gnu/libc.so.6/and-some-more-of-it";
        for from in 0..text.len() {
            for to in from..=text.len() {
                let part = &text[from..to];
                let copy = part.to_vec();
                assert!(same(part, &copy) && hash(Secret::NONE, part) == hash(Secret::NONE, &copy));
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
                assert!(seen.insert(hash(Secret::NONE, &name)), "{name:?}");
            }
        }
    }
}
