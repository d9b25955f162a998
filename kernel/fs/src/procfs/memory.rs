//! Files about the memory of a process.
//!
//! Guarantee: an open file goes on to show the memory that its opener was allowed to see, and no other: after an execve
//! of the process it is empty, whatever the new program is.

use alloc::boxed::Box;
use alloc::sync::Arc;

use proc::look::Image;
use proc::process::Process;
use vfs::dynamic::{DynFile, Text};
use vfs::error::Result;

use super::process::{Whom, look};

/// Prints something about memory.
pub type Print = fn(&Image, &mut Text) -> Result<()>;

/// Such a file.
pub struct MemoryFile {
    pub whom: Whom,
    pub print: Print,
}

/// An open one.
struct Open {
    whom: Whom,
    image: Image,
    print: Print,
}

impl MemoryFile {
    fn shown(&self) -> Result<Image> {
        let p = self.whom.find()?;
        look(&p, self.whom.tid).or_else(|denied| {
            // Where there is no memory there is nothing to hide.
            let image = p.image();
            image.space.is_none().then_some(image).ok_or(denied)
        })
    }
}

impl DynFile for MemoryFile {
    fn print(&self, out: &mut Text) -> Result<()> {
        (self.print)(&self.shown()?, out)
    }

    fn open(&self, _: u32) -> Result<Option<Box<dyn DynFile>>> {
        let mut image = self.shown()?;
        // Else the file could not be written as long as this is open.
        image.program.exe = None;
        Ok(Some(Box::new(Open {
            whom: self.whom.clone(),
            image,
            print: self.print,
        })))
    }
}

impl DynFile for Open {
    fn print(&self, out: &mut Text) -> Result<()> {
        let address = |image: &Image| image.space.as_ref().map(Arc::as_ptr);
        // What has changed since, of the same memory.
        match self.whom.find().map(|p| p.image()) {
            Ok(now) if address(&now) == address(&self.image) => (self.print)(&now, out),
            _ => (self.print)(&self.image, out),
        }
    }
}

/// Copies a range of memory to `out`, as far as it can be read.
fn copy(image: &Image, (start, end): (u64, u64), out: &mut Text) {
    let Some(space) = &image.space else {
        return;
    };
    let mut piece = [0u8; 256];
    let mut at = start;
    while at < end {
        let n = piece.len().min((end - at) as usize);
        match space.read_at(mem::vm(), at, &mut piece[..n]) {
            Ok(n) if n > 0 => {
                out.push(&piece[..n]);
                at += n as u64;
            }
            _ => break,
        }
    }
}

/// cmdline, which everybody may read.
pub fn cmdline(p: &Arc<Process>, _: u32, out: &mut Text) -> Result<()> {
    let image = p.image();
    copy(&image, image.program.args, out);
    Ok(())
}

/// environ.
pub fn environ(image: &Image, out: &mut Text) -> Result<()> {
    copy(image, image.program.env, out);
    Ok(())
}
