//! Names, directories, links and places that threads on several CPUs use at once.
#![cfg(not(shuttle))]

mod storm;
mod support;
mod support_names;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use cred::Cred;
use hal::uio::IoBuf;
use storm::storm;
use support::{Calls, on};
use support_names::{View, bind, free_all, ino, mount_made, names, nlink, read_rest};
use vfs::dynamic::{Fixed, FixedDir};
use vfs::error::FsError::{Exists, Invalid, IsDir, NoDevAddr, NotDir, NotEmpty, NotFound, Perm};
use vfs::file::{FileRef, Kind, o};
use vfs::full_name::name_in_fs;
use vfs::inode::mode;
use vfs::rename::RenameMode::{Exchange, NoReplace, Replace};
use vm_host::Random;

/// Directories, of which some come and go.
const DIRS: [&str; 6] = ["/a", "/a/s", "/b", "/a/0", "/b/0", "/b/1"];

fn path(random: &mut Random) -> String {
    format!("{}/{}", DIRS[random.below(DIRS.len())], random.below(4))
}

/// One call on names, which may fail only for what other threads may have done.
fn use_names(random: &mut Random, calls: &Calls) {
    let (one, other) = (path(random), path(random));
    let done = match random.below(12) {
        0 | 1 => calls.create(&one),
        2 => calls.mkdir(&one),
        3 => calls.symlink("x", &one),
        4 => calls.unlink(&one),
        5 => calls.rmdir(&one),
        6 => calls.link(&one, &other),
        7 | 8 => calls.rename(&one, &other, Replace),
        9 => calls.rename(&one, &other, Exchange),
        10 => calls.rename(&one, &other, NoReplace),
        _ => calls.list(DIRS[random.below(DIRS.len())]).map(drop),
    };
    let other_threads = [
        Exists,
        NotFound,
        NotDir,
        IsDir,
        NotEmpty,
        Invalid,
        Perm,
        // A directory cannot replace one that it lies in, nor be linked.
        vfs::FsError::Busy,
    ];
    assert!(
        done.is_ok() || other_threads.contains(&done.unwrap_err()),
        "{done:?}"
    );
}

/// Checks the directory at a path and all below it. Returns the number of names, and counts those of each file.
fn check(calls: &Calls, path: &str, files: &mut BTreeMap<u64, (String, u32)>) -> u64 {
    let listed = calls.list(path).unwrap();
    let dir = calls.follow(path).unwrap().dentry.inode.clone();
    assert_eq!(dir.dir().unwrap().len(), listed.len(), "{path}");
    let (mut below, mut dirs) = (listed.len() as u64, 0);
    for name in &listed {
        let path = format!("{}/{name}", path.trim_end_matches('/'));
        let place = calls.find(&path).expect("what is listed exists");
        if place.dentry.inode.is_dir() {
            dirs += 1;
            let up = calls.follow(&format!("{path}/..")).unwrap();
            assert!(Arc::ptr_eq(&up.dentry.inode, &dir));
            below += check(calls, &path, files);
        } else {
            let entry = files.entry(place.dentry.inode.ino);
            entry.or_insert((path, 0)).1 += 1;
        }
    }
    assert_eq!(dir.nlink(), 2 + dirs, "{path}");
    below
}

#[test]
fn links_lists_and_lookups_agree_after_random_calls() {
    on(4, || {
        let calls = Calls::of_root();
        for dir in &DIRS[..3] {
            calls.mkdir(dir).unwrap();
        }
        storm(2500, |_, random| use_names(random, &Calls::of_root()));
        let mut files = BTreeMap::new();
        let below = check(&calls, "/", &mut files);
        for (path, count) in files.values() {
            assert_eq!(nlink(path), *count, "{path}");
        }
        free_all();
        let quota = calls.find("/").unwrap().mount.fs.inodes.unwrap();
        assert_eq!(quota.used(), 1 + below);
        // A name of each kind is there, and none that was never made.
        let dir = calls.open("/a", o::RDONLY | o::DIRECTORY).unwrap();
        let records = read_rest(&dir, 300).unwrap();
        assert!(
            names(&records)
                .iter()
                .all(|n| *n == "s" || n.parse::<u8>().unwrap() < 4)
        );
    });
}

/// Directories that other threads move elsewhere have no part in the name of a working directory, nor in what its `..` is.
#[test]
fn the_name_and_the_parent_of_a_deep_directory_are_right_beside_moves() {
    const DEPTH: usize = 400;
    on(4, || {
        let calls = Calls::of_root();
        for dir in ["/top", "/bound", "/x", "/y", "/x/0", "/x/1", "/x/1/d"] {
            calls.mkdir(dir).unwrap();
        }
        let mut deep = String::from("/top");
        for _ in 0..DEPTH {
            deep.push_str("/e");
            calls.mkdir(&deep).unwrap();
        }
        bind("/top", "/bound", 0).unwrap();
        let within = deep.replacen("top", "bound", 1);
        let view = View::of(Cred::root());
        view.chdir(&within).unwrap();
        let parent = ino(&deep[..deep.len() - 2]);
        let place = calls.find(&deep).unwrap();
        storm(2500, move |n, _| match n {
            0 | 1 => {
                let (calls, from, to) = (Calls::of_root(), format!("/x/{n}"), format!("/y/{n}"));
                assert_eq!(calls.rename(&from, &to, Replace), Ok(()));
                assert_eq!(calls.rename(&to, &from, Replace), Ok(()));
            }
            2 => {
                assert_eq!(view.cwd(), Ok((within.clone(), true)));
                let name = name_in_fs(&place.dentry);
                assert_eq!(name.as_deref(), Ok(deep.as_bytes()));
            }
            _ => assert_eq!(view.ino(".."), Ok(parent)),
        });
        assert_eq!(
            calls.list("/x"),
            Ok(vec![String::from("0"), String::from("1")])
        );
    });
}

/// One thread changes the working directory of a process, another one its root.
#[test]
fn a_change_of_the_root_and_one_of_the_working_directory_both_stay() {
    on(3, || {
        let calls = Calls::of_root();
        for dir in ["/0", "/1"] {
            calls.mkdir(dir).unwrap();
        }
        let fs = vfs::FsContext::boot();
        storm(2500, move |n, random| {
            let (fs, to) = (fs.context(), ["/0", "/1"][random.below(2)]);
            let to = Calls::of_root().find(to).unwrap();
            match n {
                0 => {
                    fs.set_cwd(to.clone());
                    assert!(fs.cwd().unwrap().is(&to));
                }
                1 => {
                    fs.set_root(to.clone());
                    assert!(fs.root().unwrap().is(&to));
                }
                _ => assert!(fs.cwd().is_ok() && fs.root().is_ok()),
            }
        });
    });
}

fn is_same_pipe(one: &FileRef, other: &FileRef) -> bool {
    match (&one.kind, &other.kind) {
        (Kind::Pipe(one), Kind::Pipe(other)) => Arc::ptr_eq(one.pipe(), other.pipe()),
        _ => false,
    }
}

#[test]
fn all_opens_of_a_fifo_have_one_pipe() {
    on(4, || {
        let calls = Calls::of_root();
        calls.mkfifo("/f").unwrap();
        storm(1000, |n, random| {
            let calls = Calls::of_root();
            let open = |how| calls.open("/f", how | o::NONBLOCK);
            let first = if n == 0 {
                match open(o::WRONLY) {
                    Ok(first) => first,
                    Err(e) => return assert_eq!(e, NoDevAddr),
                }
            } else {
                open(o::RDWR).unwrap()
            };
            let second = open([o::RDONLY, o::RDWR][random.below(2)]).unwrap();
            assert!(is_same_pipe(&first, &second));
        });
        let left = calls.open("/f", o::RDONLY | o::NONBLOCK).unwrap();
        let end = left.read(&mut IoBuf::Fill(&mut [0; 9]));
        assert_eq!((end, left.inode().unwrap().kind()), (Ok(0), mode::FIFO));
    });
}

hal::machine_static! {
    /// Whether a text is being printed.
    static PRINTS: AtomicBool = AtomicBool::new(false);
}

static TREE: &[(&str, Fixed)] = &[(
    "file",
    Fixed::File(|out| {
        assert!(!PRINTS.swap(true, SeqCst), "another thread prints it");
        (0..20).for_each(|_| out.push(b"text "));
        PRINTS.store(false, SeqCst);
        Ok(())
    }),
)];

#[test]
fn an_open_file_that_is_made_on_demand_is_printed_by_one_thread_at_a_time() {
    on(4, || {
        let calls = Calls::of_root();
        calls.mkdir("/p").unwrap();
        mount_made("/p", FixedDir(TREE), 0o555).unwrap();
        let file = calls.open("/p/file", o::RDONLY).unwrap();
        storm(2500, move |_, random| {
            let (mut bytes, at) = ([0; 5], 5 * random.below_u64(2));
            let n = file.read_at(&mut IoBuf::Fill(&mut bytes), at);
            assert_eq!((n, &bytes), (Ok(5), b"text "));
        });
    });
}
