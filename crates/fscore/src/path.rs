//! Path names: splitting, limits and classification.
//!
//! A path is bytes without NUL. Empty components and a trailing slash carry meaning only in one
//! way: a path that ends in a slash must name a directory.

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
pub fn trim_start(path: &[u8]) -> &[u8] {
    let skip = path.iter().take_while(|&&b| b == b'/').count();
    &path[skip..]
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
    let end = path.iter().position(|&b| b == b'/').unwrap_or(path.len());
    Some((&path[..end], &path[end..]))
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

/// A name's hash, as the directory tables use it (FNV-1a, folded by a final multiply so that the
/// low bits depend on every byte).
pub fn hash(name: &[u8]) -> u32 {
    let mut h: u64 = 0xcbf2_9ce4_8422_2325;
    for &b in name {
        h = (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3);
    }
    (h ^ (h >> 32))
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_shr(32) as u32
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
}
