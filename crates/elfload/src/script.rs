//! The `#!` line of a script (execve(2), "Interpreter scripts").

/// Bytes of a file that may contain the line; the rest is ignored, as in Linux.
pub const LINE_MAX: usize = 256;

/// An interpreter and its one optional argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Script<'a> {
    /// Path of the interpreter; never empty.
    pub interp: &'a [u8],
    /// The rest of the line as one argument, blanks inside kept.
    pub arg: Option<&'a [u8]>,
}

fn blank(b: &u8) -> bool {
    *b == b' ' || *b == b'\t'
}

fn trim(mut s: &[u8]) -> &[u8] {
    while let [b, rest @ ..] = s
        && blank(b)
    {
        s = rest;
    }
    while let [rest @ .., b] = s
        && blank(b)
    {
        s = rest;
    }
    s
}

/// Splits the first line of a file. `None` if it is not a script; `Some(None)` for a script without an interpreter, or
/// whose interpreter's path is cut off.
pub fn parse(first: &[u8]) -> Option<Option<Script<'_>>> {
    let rest = first.strip_prefix(b"#!")?;
    let window = &rest[..rest.len().min(LINE_MAX - 2)];
    let ended = window.iter().position(|&b| b == b'\n' || b == 0);
    let line = trim(&window[..ended.unwrap_or(window.len())]);
    let split = line.iter().position(blank);
    let interp = &line[..split.unwrap_or(line.len())];
    // Without a line end the path itself may be cut off; a cut-off argument is accepted.
    let cut = ended.is_none() && split.is_none() && window.len() == LINE_MAX - 2;
    if interp.is_empty() || cut {
        return Some(None);
    }
    let arg = split.map(|n| trim(&line[n..])).filter(|a| !a.is_empty());
    Some(Some(Script { interp, arg }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_lines() {
        let s = |l| parse(l).unwrap().unwrap();
        assert_eq!(
            s(b"#!/bin/sh\necho"),
            Script {
                interp: b"/bin/sh",
                arg: None
            }
        );
        assert_eq!(
            s(b"#! /bin/sh \t\n"),
            Script {
                interp: b"/bin/sh",
                arg: None
            }
        );
        assert_eq!(
            s(b"#!/usr/bin/env  bash -x \n"),
            Script {
                interp: b"/usr/bin/env",
                arg: Some(b"bash -x")
            }
        );
        assert_eq!(
            s(b"#!/bin/sh"),
            Script {
                interp: b"/bin/sh",
                arg: None
            }
        );
        assert_eq!(parse(b"\x7fELF"), None);
        assert_eq!(parse(b"#"), None);
        assert_eq!(parse(b"#!\n"), Some(None));
        assert_eq!(parse(b"#!   \nx"), Some(None));
    }

    #[test]
    fn refuses_a_cut_path() {
        let mut long = [b'a'; 400];
        long[..3].copy_from_slice(b"#!/");
        assert_eq!(parse(&long), Some(None));
        long[100] = b' ';
        assert!(parse(&long).unwrap().is_some());
    }
}
