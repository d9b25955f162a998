//! kmsg: what is written goes to the console, a line at a time.
//!
//! The kernel keeps no log yet, so reading finds nothing and would wait for ever; it says so.

use core::sync::atomic::{AtomicBool, Ordering};

use cred::{Cap, Cred};
use hal::console;
use hal::uio::IoBuf;
use vfs::error::{FsError, Result};
use vfs::file::{File, FileOps};
use vfs::poll::PollMask;

/// Longest record: what does not fit is refused, as on Linux.
const RECORD: usize = 992;
const PIECE: usize = 248;

/// Whether reading the log, too, needs a right (/proc/sys/kernel/dmesg_restrict): it tells addresses. Atomic.
pub static RESTRICTED: AtomicBool = AtomicBool::new(true);

/// Whether `cred` may use the log; `reading` what is there already, and no more than that.
pub fn may_use(cred: &Cred, reading: bool) -> bool {
    reading && !RESTRICTED.load(Ordering::Relaxed)
        || cred.capable(Cap::Syslog)
        || cred.capable(Cap::SysAdmin)
}

/// The device.
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

/// Drops a leading `<N>`.
fn strip_level(text: &[u8]) -> &[u8] {
    if text.first() != Some(&b'<') {
        return text;
    }
    match text.iter().position(|&b| b == b'>') {
        Some(end) if text[1..end].iter().all(u8::is_ascii_digit) => &text[end + 1..],
        _ => text,
    }
}
