//! Events of a file that the watches of its directory are told, too, with its name.

use alloc::sync::Arc;

use super::event::Event;
use super::table;
use crate::dentry::Dentry;

/// Bytes of the longest name.
const NAME_MAX: usize = 255;

/// Tells what has happened to the file at `dentry`: the directory's watches first, then its own. `opened` says whether it has
/// happened through a file that was opened by this name. No spin lock is held; may try for the directory's lock.
#[inline]
pub fn tell(dentry: &Arc<Dentry>, what: u32, opened: bool) {
    if dentry.may_be_watched() {
        tell_watches(dentry, what, opened);
    }
}

#[cold]
#[inline(never)]
fn tell_watches(dentry: &Arc<Dentry>, what: u32, opened: bool) {
    let event = Event {
        unlinked: opened && dentry.is_dead(),
        ..Event::own(dentry.inode.event(what))
    };
    if dentry.is_in_watched() {
        let mut copy = [0; NAME_MAX];
        let (len, dir) = {
            let pin = ksync::pin();
            let (name, dir) = dentry.place(&pin);
            let len = name.len().min(NAME_MAX);
            copy[..len].copy_from_slice(&name[..len]);
            (len, dir.cloned())
        };
        if let Some(dir) = dir {
            if dir.inode.is_watched() {
                let name = &copy[..len];
                table::tell(&*dir.inode, &Event { name, ..event });
            } else {
                dentry.forget_watched(&dir);
            }
        }
    }
    if dentry.inode.is_watched() {
        table::tell(&*dentry.inode, &event);
    }
}
