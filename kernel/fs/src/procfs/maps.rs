//! /proc/PID/maps: the mappings of an address space.
//!
//! It is printed in parts, so that a process with many mappings makes no long text. What is printed of a mapping was true at
//! some moment; one that is unmapped or made between two parts may be missing.

use ipc::sysv::registry::Object;
use ipc::sysv::shm::Segment;
use mem::Space;
use proc::look::Image;
use task::current::current;
use vfs::context::boot_root;
use vfs::dynamic::Text;
use vfs::error::Result;
use vfs::full_name::full_name;
use vfs::mount;
use vfs::place::Path;
use vfs::put;
use vfs::regular::FileTag;
use vm::map::{EntryFlags, Prot};
use vm::space::EntryInfo;

use super::names::put_octal;

/// Prints the path of a mapped file, as it was first opened, and returns the inode number.
///
/// A mapping keeps only the dentry. So the mount is searched for: the first one of the dentry's file system through
/// which the path can be reached from the boot root. If there is none, or no memory, no path is printed. Sleeps.
fn put_name(out: &mut Text, tag: &FileTag) -> u64 {
    let Some(dentry) = tag.dentry.upgrade() else {
        out.push(b" (deleted)");
        return 0;
    };
    let (ino, dead) = (dentry.inode.ino, dentry.is_dead());
    let mut name = None;
    let _ = mount::for_each(|m| {
        if name.is_none() && m.fs.dev == dentry.inode.dev {
            let at = Path {
                mount: m.clone(),
                dentry: dentry.clone(),
            };
            name = full_name(boot_root()?, &at)
                .ok()
                .filter(|(_, reached)| *reached);
        }
        Ok(())
    });
    if let Some((bytes, _)) = name {
        put_octal(out, &bytes, b"\n");
    }
    if dead {
        out.push(b" (deleted)");
    }
    ino
}

/// Prints the line of maps for a mapping.
pub fn put_line(out: &mut Text, image: &Image, e: &EntryInfo) {
    let start = out.position();
    let has = |prot, c: char| if e.args.prot.contains(prot) { c } else { '-' };
    let shared = if e.args.flags.contains(EntryFlags::SHARED) {
        's'
    } else {
        'p'
    };
    let tag = e.tag.as_ref().and_then(|t| t.downcast_ref::<FileTag>());
    let segment = e.tag.as_ref().and_then(|t| t.downcast_ref::<Segment>());
    let (dev, ino) = match (tag.and_then(|t| t.dentry.upgrade()), segment) {
        (Some(d), _) => (d.inode.dev, d.inode.ino),
        (None, Some(segment)) => (0, segment.id() as u64),
        (None, None) => (0, 0),
    };
    put!(
        out,
        "{:08x}-{:08x} {}{}{}{shared} {:08x} {:02x}:{:02x} {ino}",
        e.args.start,
        e.args.end,
        has(Prot::READ, 'r'),
        has(Prot::WRITE, 'w'),
        has(Prot::EXEC, 'x'),
        e.offset,
        vfs::devices::major(dev),
        vfs::devices::minor(dev),
    );
    if let Some(tag) = tag {
        out.pad(start, 73);
        put_name(out, tag);
    } else if e.args.flags.contains(EntryFlags::SPECIAL) {
        out.pad(start, 73);
        out.push(b"[vdso]");
    } else if let Some(segment) = segment {
        out.pad(start, 73);
        put!(out, "/SYSV{:08x} (deleted)", segment.key());
    } else if e.args.flags.contains(EntryFlags::GROWSDOWN) {
        out.pad(start, 73);
        out.push(b"[stack]");
    } else if e.args.start < image.brk.end && e.args.end > image.brk.start {
        out.pad(start, 73);
        out.push(b"[heap]");
    }
    out.push(b"\n");
}

/// Bytes after which a part of a file with lines for each mapping ends.
const PART: usize = 32 << 10;

/// Calls `put` for each mapping from address `from` on, until the part is long enough. Returns where the next part begins. A
/// caller that is being killed gets only a piece.
pub fn each_mapping(
    image: &Image,
    from: u64,
    out: &mut Text,
    put: &mut dyn FnMut(&mut Text, &Space, &EntryInfo),
) -> Option<u64> {
    let space = image.space.as_ref()?;
    let mut next = None;
    space.for_each_entry(from, &mut |e| {
        put(out, space, e);
        next = (out.position() >= PART).then_some(e.args.end);
        next.is_none() && !current().kill_pending()
    });
    next
}

/// Prints maps.
pub fn maps(image: &Image, from: u64, out: &mut Text) -> Result<Option<u64>> {
    let put = &mut |out: &mut Text, _: &Space, e: &EntryInfo| put_line(out, image, e);
    Ok(each_mapping(image, from, out, put))
}
