//! /dev/kmsg: each record that a program writes is printed on the console, followed by a newline if it does not end
//! in one. It is not added to the kernel's log.
//!
//! Reading always fails with `WouldBlock`: the log can be read by syslog(2) only.

use core::sync::atomic::{AtomicBool, Ordering};

use cred::{Cap, Cred};
use hal::console;
use hal::uio::IoBuf;
use vfs::error::{FsError, Result};
use vfs::file::{File, FileOps};
use vfs::poll::PollMask;

/// Longest record in bytes; a longer one is refused, as on Linux.
const RECORD: usize = 992;
/// Bytes copied at a time.
const PIECE: usize = 248;

/// Whether reading the log needs CAP_SYSLOG (/proc/sys/kernel/dmesg_restrict), because the log shows addresses of the
/// kernel. Atomic.
pub static RESTRICTED: AtomicBool = AtomicBool::new(true);

/// Whether `cred` permits an operation on the log. `reading` is true for operations that only read what the log holds
/// and change nothing; those are open to every user unless [`RESTRICTED`] is set. All others need CAP_SYSLOG or
/// CAP_SYS_ADMIN.
pub fn may_use(cred: &Cred, reading: bool) -> bool {
    reading && !RESTRICTED.load(Ordering::Relaxed)
        || cred.capable(Cap::Syslog)
        || cred.capable(Cap::SysAdmin)
}

/// The file operations of /dev/kmsg.
pub struct Kmsg;

impl FileOps for Kmsg {
    fn read(&self, _: &File, _: &mut IoBuf, _: u64) -> Result<usize> {
        Err(FsError::WouldBlock)
    }

    fn write(&self, _: &File, buf: &mut IoBuf, _: u64) -> Result<usize> {
        let total = buf.remaining();
        if total > RECORD {
            return Err(FsError::Invalid);
        }
        let mut piece = [0; PIECE];
        let mut first = true;
        let mut last = b'\n';
        while buf.remaining() > 0 {
            // If this fails, what was copied before has been printed.
            let n = buf.take(&mut piece)?;
            let mut text = &piece[..n];
            if core::mem::take(&mut first) {
                text = strip_level(text);
            }
            for part in text.split_inclusive(|&b| b == b'\n') {
                console::write_bytes(part.strip_suffix(b"\n").unwrap_or(part));
                if part.ends_with(b"\n") {
                    console::write_bytes(b"\r\n");
                }
            }
            last = text.last().copied().unwrap_or(last);
        }
        if last != b'\n' {
            console::write_bytes(b"\r\n");
        }
        Ok(total)
    }

    fn seekable(&self) -> bool {
        false
    }

    fn poll(&self, _: &File, _: Option<&mut task::wait::Waiter>) -> PollMask {
        PollMask::WRITE
    }
}

/// Removes a leading `<N>`, the level of a record.
fn strip_level(text: &[u8]) -> &[u8] {
    if text.first() != Some(&b'<') {
        return text;
    }
    match text.iter().position(|&b| b == b'>') {
        Some(end) if text[1..end].iter().all(u8::is_ascii_digit) => &text[end + 1..],
        _ => text,
    }
}
