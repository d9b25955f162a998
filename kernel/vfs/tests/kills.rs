//! Calls on files that would take long, by a thread that is killed.
#![cfg(not(shuttle))]

mod support;
mod support_names;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use cred::Cred;
use hal::uio::IoBuf;
use support::{Calls, on};
use support_names::{View, bind, ino, inode, mount_made};
use task::current::current;
use task::thread::flag;
use vfs::dynamic::{DynDir, DynFile, Dynamic, Emit, Text};
use vfs::error::FsError::{Interrupted, NotFound};
use vfs::error::Result;
use vfs::file::o;
use vfs::inode::Inode;
use vfs::lost::{Unused, until_used};

/// Bytes that a read copies between two looks for a kill.
const SLICE: usize = 1 << 20;

/// Runs `act` in a thread that is killed meanwhile.
fn killed<R>(act: impl FnOnce() -> R) -> R {
    current().set(flag::KILLED);
    let result = act();
    current().clear(flag::KILLED);
    result
}

#[test]
fn a_long_read_ends_with_a_part() {
    on(1, || {
        let calls = Calls::of_root();
        calls.create("/f").unwrap();
        calls.truncate("/f", 3 * SLICE as u64).unwrap();
        let file = calls.open("/f", o::RDONLY).unwrap();
        let read = |bytes: &mut [u8]| file.read_at(&mut IoBuf::Fill(bytes), 0);
        let mut bytes = vec![0; 2 * SLICE + 1];
        assert_eq!(read(&mut bytes), Ok(2 * SLICE + 1));
        assert_eq!(killed(|| read(&mut bytes)), Ok(SLICE));
        assert_eq!(killed(|| read(&mut bytes[..SLICE])), Ok(SLICE));
    });
}

#[test]
fn a_walk_out_of_a_deep_directory_of_a_bound_one_ends() {
    on(1, || {
        let calls = Calls::of_root();
        calls.mkdir("/b").unwrap();
        let mut deep = String::from("/top");
        calls.mkdir(&deep).unwrap();
        bind("/top", "/b", 0).unwrap();
        for _ in 0..50 {
            deep.push_str("/e");
            calls.mkdir(&deep).unwrap();
        }
        let view = View::of(Cred::root());
        view.chdir(&deep.replacen("top", "b", 1)).unwrap();
        assert_eq!(view.ino(".."), Ok(ino(&deep[..deep.len() - 2])));
        assert_eq!(killed(|| view.ino("..")), Err(Interrupted));
    });
}

hal::machine_static! {
    /// Lookups of the name below.
    static LOOKUPS: AtomicUsize = AtomicUsize::new(0);
}

/// A directory with a name that another thread seems to make and to remove all the time: every second lookup finds it.
struct Flickers;

impl DynDir for Flickers {
    fn lookup(&self, this: &Inode, _: &[u8]) -> Result<Arc<Inode>> {
        match LOOKUPS.fetch_add(1, SeqCst) % 2 {
            0 => Err(NotFound),
            _ => Ok(Dynamic::File(Box::new(Empty)).inode(this.dev, 2, 0o644, (0, 0))),
        }
    }
    fn list(&self, _: &Inode, _: u64, _: &mut Emit) -> Result<()> {
        Ok(())
    }
}

struct Empty;

impl DynFile for Empty {
    fn print(&self, _: &mut Text) -> Result<()> {
        Ok(())
    }
}

/// open(2) looks a name up, does not find it, and finds it when it is about to make it, again and again.
#[test]
fn an_open_that_loses_each_race_ends() {
    on(1, || {
        let calls = Calls::of_root();
        calls.mkdir("/p").unwrap();
        mount_made("/p", Flickers, 0o777).unwrap();
        let opened = killed(|| calls.open("/p/name", o::RDONLY | o::CREAT));
        assert_eq!(opened.err(), Some(Interrupted));
        assert_eq!(LOOKUPS.load(SeqCst), 2);
    });
}

/// Each file that a call finds loses its last name before the call uses it, and another file gets the name.
#[test]
fn a_call_that_loses_each_file_it_finds_ends() {
    on(1, || {
        let calls = Calls::of_root();
        let files = ["/a", "/b"].map(|path| {
            calls.create(path).unwrap();
            inode(path)
        });
        let mut lost = 0;
        let used: Result<()> = killed(|| {
            until_used(|| {
                lost += 1;
                assert!(lost < 100, "the call goes on");
                Err(Unused::Lost(files[lost % 2].clone()))
            })
        });
        assert_eq!((used, lost), (Err(Interrupted), 1));
    });
}
