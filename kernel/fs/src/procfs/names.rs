//! How procfs prints names that users choose, so that no name ends its line or its field and begins another.

use vfs::dynamic::Text;
use vfs::put;

/// Prints a name with the bytes of `special` in octal, as files with one path in a line do.
pub fn put_octal(out: &mut Text, name: &[u8], special: &[u8]) {
    for &b in name {
        if special.contains(&b) {
            put!(out, "\\{b:03o}");
        } else {
            out.push(&[b]);
        }
    }
}

/// The part of a thread's name before the first zero byte.
fn until_zero(comm: &[u8; 16]) -> &[u8] {
    comm.split(|&b| b == 0).next().unwrap_or(&[])
}

/// Prints a thread's name as it is. A reader must expect any byte there but zero.
pub fn put_comm(out: &mut Text, comm: &[u8; 16]) {
    out.push(until_zero(comm));
}

/// Prints a thread's name within one line: a newline and a backslash as they are written in C.
pub fn put_comm_in_line(out: &mut Text, comm: &[u8; 16]) {
    for &b in until_zero(comm) {
        match b {
            b'\n' => out.push(b"\\n"),
            b'\\' => out.push(b"\\\\"),
            _ => out.push(&[b]),
        }
    }
}
