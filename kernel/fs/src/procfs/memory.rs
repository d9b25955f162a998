//! Files of /proc/PID about the memory of the process.
//!
//! Guarantee: a file that was opened with permission to inspect the process goes on to show the address space of that
//! moment and never another one. After an execve of the process it shows what is left of the old address space:
//! nothing, unless another process shares it.
//!
//! Mechanism: the open file keeps the [`Image`] that the permission check returned.

use alloc::boxed::Box;
use alloc::sync::Arc;

use elfload::stack::AUXV_BYTES;
use hal::PAGE_SIZE;
use proc::look::Image;
use proc::process::Process;
use vfs::dynamic::{DynFile, Text};
use vfs::error::Result;

use super::whom::{Whom, look};

/// Prints a file of this kind: a part of it, from the address on that the part before returned, or 0. Returns that of the
/// next part.
pub type Print = fn(&Image, u64, &mut Text) -> Result<Option<u64>>;

/// Such a file, not open yet.
pub struct MemoryFile {
    pub whom: Whom,
    pub print: Print,
}

/// Such a file, open.
struct Open {
    whom: Whom,
    image: Image,
    print: Print,
}

impl MemoryFile {
    /// The memory of the process of a file like this, for a caller that may inspect it.
    pub fn shown(whom: &Whom) -> Result<Image> {
        let p = whom.find()?;
        look(&p, whom.tid).or_else(|denied| {
            // A zombie or kernel process has no memory, so there is nothing to hide.
            let image = p.image();
            image.space.is_none().then_some(image).ok_or(denied)
        })
    }
}

impl DynFile for MemoryFile {
    fn pollable(&self) -> bool {
        false
    }

    fn print(&self, out: &mut Text) -> Result<()> {
        (self.print)(&Self::shown(&self.whom)?, 0, out).map(drop)
    }

    fn open(&self, _: u32) -> Result<Option<Box<dyn DynFile>>> {
        let mut image = Self::shown(&self.whom)?;
        // The reference to the executable would make writing to it fail with `TextBusy` as long as this file is open.
        image.program.exe = None;
        Ok(Some(Box::new(Open {
            whom: self.whom.clone(),
            image,
            print: self.print,
        })))
    }
}

impl DynFile for Open {
    fn pollable(&self) -> bool {
        false
    }

    fn print(&self, out: &mut Text) -> Result<()> {
        self.print_part(0, out).map(drop)
    }

    fn print_part(&self, from: u64, out: &mut Text) -> Result<Option<u64>> {
        let address = |image: &Image| image.space.as_ref().map(Arc::as_ptr);
        // As long as the process has the same address space, its present break and arguments are shown.
        match self.whom.find().map(|p| p.image()) {
            Ok(now) if address(&now) == address(&self.image) => (self.print)(&now, from, out),
            _ => (self.print)(&self.image, from, out),
        }
    }
}

/// Passes the bytes of a range of addresses to `take`, piece by piece, until it returns false, or up to the first byte that
/// cannot be read.
fn read(image: &Image, (start, end): (u64, u64), mut take: impl FnMut(&[u8]) -> bool) {
    let Some(space) = &image.space else {
        return;
    };
    let mut piece = [0u8; 256];
    let mut at = start;
    while at < end {
        let n = piece.len().min((end - at) as usize);
        match space.read_at(mem::vm(), at, &mut piece[..n]) {
            Ok(n) if n > 0 && take(&piece[..n]) => at += n as u64,
            _ => break,
        }
    }
}

/// Copies a range of addresses to `out`, up to the first byte that cannot be read.
fn copy(image: &Image, range: (u64, u64), out: &mut Text) {
    read(image, range, |piece| {
        out.push(piece);
        true
    });
}

/// The most bytes of a title (Linux's limit).
const TITLE_MAX: u64 = PAGE_SIZE as u64;

/// Prints cmdline, which needs no permission: the arguments; or, if the program has written over the last one's end, the title
/// that it has put there, which may reach into the environment.
pub fn cmdline(p: &Arc<Process>, _: u32, out: &mut Text) -> Result<()> {
    let image = p.image();
    let (start, end) = image.program.args;
    let mut last = 0;
    read(&image, (start.max(end.saturating_sub(1)), end), |byte| {
        last = byte[0];
        true
    });
    if last == 0 {
        copy(&image, (start, end), out);
        return Ok(());
    }
    let end = image.program.env_end.max(end).min(start + TITLE_MAX);
    read(&image, (start, end), |piece| {
        let title = piece.split_inclusive(|&byte| byte == 0).next();
        out.push(title.unwrap_or(piece));
        !piece.contains(&0)
    });
    Ok(())
}

/// Prints environ.
pub fn environ(image: &Image, _: u64, out: &mut Text) -> Result<Option<u64>> {
    copy(image, image.program.env(), out);
    Ok(None)
}

/// Prints auxv: the vector as it is in the program's memory, where the program may have changed it.
pub fn auxv(image: &Image, _: u64, out: &mut Text) -> Result<Option<u64>> {
    let start = image.program.auxv;
    copy(image, (start, start + AUXV_BYTES), out);
    Ok(None)
}
