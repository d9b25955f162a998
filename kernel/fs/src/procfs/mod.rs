//! procfs: processes and the state of the kernel, as text.
//!
//! The fixed entries are one table of functions that print them (`system`). The directory of a process is made when
//! it is looked up (`process`) and holds a weak reference to the process. So its files fail with `NoProcess` once the
//! process has been reaped, even if a new process has the same pid; the reference keeps nothing alive but the memory
//! block of the `Process` itself.

mod cpuinfo;
mod descriptors;
mod limits;
mod links;
mod login;
mod maps;
mod memory;
mod names;
mod network;
mod numbers;
mod oom;
mod pagemap;
mod pantala;
mod process;
mod settings;
mod smaps;
mod status;
mod system;
mod sysvipc;
mod tree;
mod whom;

use alloc::boxed::Box;
use alloc::sync::Arc;

use cred::Payer;
use proc::{UserThreadExt, ids};
use task::current::current;
use vfs::dentry::Dentry;
use vfs::dynamic::{DynDir, DynLink, Dynamic, Emit, Entry, FixedDir, Target, Text, ino_below};
use vfs::error::{FsError, Result};
use vfs::inode::{Inode, mode};
use vfs::mount::new_dev;
use vfs::put;
use vfs::superblock::{FsKind, Super};

use self::numbers::{digits, number};

pub use self::process::named_by;
pub use self::system::set_command_line;

/// Makes a procfs, to be mounted.
pub fn new_super() -> Result<Arc<Super>> {
    let dev = new_dev();
    let root = Dynamic::Dir(Box::new(Root)).inode(dev, 1, 0o555, (0, 0));
    Ok(Arc::new(Super {
        kind: FsKind::Proc,
        dev,
        root: Dentry::new(None, b"", root, Payer::NOBODY),
        quota: None,
        inodes: None,
    }))
}

/// The fixed entries of the root.
const FIXED: FixedDir = FixedDir(system::ROOT);
/// Directory cookies of processes begin here; those of the fixed entries are smaller.
const PROCESSES: u64 = 1 << 16;

/// The root directory: the fixed entries, `self` and `thread-self`, and the processes.
struct Root;

impl DynDir for Root {
    fn lookup(&self, this: &Inode, name: &[u8]) -> Result<Arc<Inode>> {
        let link = |which| {
            let node = Dynamic::Link(Box::new(which));
            Ok(node.inode(this.dev, ino_below(this.ino, name), 0o777, (0, 0)))
        };
        match name {
            b"self" => return link(Caller::Process),
            b"thread-self" => return link(Caller::Thread),
            _ => {}
        }
        if let Some(id) = number(name) {
            // Linux, too, finds /proc/TID of every thread but lists only processes.
            let process = ids::find_process(id)
                .or_else(|| ids::find_thread(id).map(|t| t.process().clone()))
                .ok_or(FsError::NotFound)?;
            return Ok(process::directory(this.dev, this.ino, &process, id));
        }
        FIXED.lookup(this, name)
    }

    fn list(&self, this: &Inode, from: u64, emit: &mut Emit) -> Result<()> {
        if from < PROCESSES {
            let mut full = false;
            let mut last = from;
            FIXED.list(this, from, &mut |e| {
                last = e.next;
                full = !emit(e);
                !full
            })?;
            if full {
                return Ok(());
            }
            for (i, name) in [&b"self"[..], b"thread-self"].into_iter().enumerate() {
                let cookie = FIXED.0.len() as u64 + 2 + i as u64;
                let ino = ino_below(this.ino, name);
                if cookie >= last
                    && !emit(Entry {
                        next: cookie + 1,
                        ino,
                        kind: mode::LNK,
                        name,
                    })
                {
                    return Ok(());
                }
            }
        }
        let first = from.saturating_sub(PROCESSES).max(1) as u32;
        ids::each_process(first, |p| {
            let mut buf = [0; 10];
            let name = digits(p.pid(), &mut buf);
            let next = PROCESSES + u64::from(p.pid()) + 1;
            emit(Entry {
                next,
                ino: ino_below(this.ino, name),
                kind: mode::DIR,
                name,
            })
        });
        Ok(())
    }
}

/// The links `self` and `thread-self`, whose targets depend on the thread that reads them.
enum Caller {
    Process,
    Thread,
}

impl DynLink for Caller {
    fn target(&self) -> Result<Target> {
        let mut text = Text::new();
        self.text(&mut text)?;
        Ok(Target::Text(text.finish()?))
    }

    fn text(&self, out: &mut Text) -> Result<()> {
        let me = current();
        let pid = me.process().pid();
        match self {
            Caller::Process => put!(out, "{pid}"),
            Caller::Thread => put!(out, "{pid}/task/{}", me.tid()),
        }
        Ok(())
    }
}
