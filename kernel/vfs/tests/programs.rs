//! Programs: which files may be executed, with which ids, beside writers, and the cache of those that are executed often.
#![cfg(not(shuttle))]

mod support;
mod support_names;

use std::sync::Arc;

use support::{Calls, on, threads};
use support_names::{
    OTHER, TEAM, USER, as_user, bind, free_all, give, mount_plain, nlink, set_mode, umount, user,
};
use vfs::dentry::Dentry;
use vfs::dynamic::{DynFile, Dynamic, Text};
use vfs::error::FsError::{self, Access, NotFound, TextBusy};
use vfs::exec::ExecFile;
use vfs::exec_cache::{self, OFTEN};
use vfs::file::{FileRef, o};
use vfs::place::{Path, flag};

/// Opens the program at a path for execution, with the thread's credentials.
fn run(path: &str) -> Result<ExecFile, FsError> {
    ExecFile::open(vfs::FsContext::boot().context(), path.as_bytes())
}

fn write(path: &str) -> Result<FileRef, FsError> {
    Calls::of_root().open(path, o::WRONLY)
}

fn with_program(check: impl FnOnce(&Calls) + Send + 'static) {
    on(1, || {
        let root = Calls::of_root();
        root.create("/p").unwrap();
        root.write("/p", 0, b"#!").unwrap();
        set_mode("/p", 0o755);
        check(&root);
    });
}

#[test]
fn a_program_is_a_regular_file_that_the_caller_may_execute() {
    with_program(|root| {
        root.mkdir("/d").unwrap();
        root.symlink("p", "/l").unwrap();
        root.mkfifo("/fifo").unwrap();
        set_mode("/fifo", 0o777);
        assert!(run("/p").is_ok() && run("/l").is_ok() && run("p").is_ok());
        assert_eq!(run("/d").err(), Some(Access));
        assert_eq!(run("/fifo").err(), Some(Access));
        assert_eq!(run("/absent").err(), Some(NotFound));
        assert_eq!(run("/p/").err(), Some(FsError::NotDir));
        set_mode("/p", 0o644);
        assert_eq!(run("/p").err(), Some(Access), "not even root");
        set_mode("/p", 0o711);
        let stranger = user(OTHER, &[]);
        as_user(&stranger, || {
            let program = run("/p").unwrap();
            assert!(!program.is_readable());
        });
        assert!(run("/p").unwrap().is_readable());
        set_mode("/p", 0o700);
        as_user(&stranger, || assert_eq!(run("/p").err(), Some(Access)));
    });
}

#[test]
fn the_ids_of_a_program_are_those_that_its_bits_give() {
    with_program(|_| {
        give("/p", USER, TEAM);
        for (bits, uid, gid) in [
            (0o755, None, None),
            (0o4755, Some(USER), None),
            (0o2755, None, Some(TEAM)),
            (0o6755, Some(USER), Some(TEAM)),
            // Without the group's permission to execute the bit is no privilege.
            (0o2745, None, None),
            (0o6741, Some(USER), None),
        ] {
            set_mode("/p", bits);
            let ids = run("/p").unwrap().set_ids();
            assert_eq!((ids.uid, ids.gid), (uid, gid), "{bits:o}");
        }
    });
}

#[test]
fn a_file_is_either_executed_or_written() {
    with_program(|root| {
        let program = run("/p").unwrap();
        assert_eq!(write("/p").err(), Some(TextBusy));
        assert_eq!(root.open("/p", o::RDWR | o::TRUNC).err(), Some(TextBusy));
        assert_eq!(root.truncate("/p", 0), Err(TextBusy));
        assert!(root.open("/p", o::RDONLY).is_ok());
        assert!(run("/p").is_ok());
        let mut text = [0; 8];
        assert_eq!(
            (program.read_at(0, &mut text), &text[..2]),
            (Ok(2), &b"#!"[..])
        );
        assert_eq!(program.size(), 2);
        drop(program);
        free_all();
        let writer = write("/p").unwrap();
        assert_eq!(run("/p").err(), Some(TextBusy));
        drop(writer);
        free_all();
        assert!(run("/p").is_ok());
    });
}

/// Runs a program so often that the cache keeps it.
fn run_often(path: &str) {
    for _ in 0..2 * OFTEN {
        run(path).unwrap();
    }
}

/// Whether the cache keeps the program at a path.
fn is_kept(path: &str) -> bool {
    let place = Calls::of_root().follow(path).unwrap();
    vfs::exec_cache::find(&ksync::pin(), &place.mount, &place.dentry).is_some()
}

#[test]
fn a_program_that_is_executed_often_is_kept_until_it_is_written() {
    with_program(|root| {
        run("/p").unwrap();
        assert!(!is_kept("/p"));
        run_often("/p");
        assert!(is_kept("/p"));
        // A cached program is executed by those that may, and not by others.
        set_mode("/p", 0o700);
        as_user(&user(OTHER, &[]), || {
            assert_eq!(run("/p").err(), Some(Access))
        });
        set_mode("/p", 0o4755);
        assert_eq!(run("/p").unwrap().set_ids().uid, Some(0));
        assert_eq!(root.write("/p", 0, b"new"), Ok(3));
        assert!(!is_kept("/p"));
        let mut text = [0; 8];
        let program = run("/p").unwrap();
        assert_eq!(
            (program.read_at(0, &mut text), &text[..3]),
            (Ok(3), &b"new"[..])
        );
        run_often("/p");
        assert_eq!(write("/p").err(), Some(TextBusy), "somebody runs it");
    });
}

/// Nobody runs the program, so it can be written, also while the cache closes it for another reason.
#[test]
fn a_program_is_written_while_another_thread_takes_it_out_of_the_cache() {
    on(2, || {
        let root = Calls::of_root();
        root.create("/p").unwrap();
        set_mode("/p", 0o755);
        for _ in 0..10 {
            run_often("/p");
            assert!(is_kept("/p"));
            threads::spawn(None, || {
                exec_cache::forget(|_| true);
            });
            while is_kept("/p") {
                hal::time::spin_ns(1000);
                task::sched::yield_now();
            }
            assert!(write("/p").is_ok());
        }
    });
}

#[test]
fn a_program_without_a_name_is_not_kept() {
    with_program(|root| {
        root.link("/p", "/q").unwrap();
        run_often("/p");
        let quota = root.find("/").unwrap().mount.fs.quota.unwrap();
        let before = quota.used();
        root.unlink("/p").unwrap();
        root.unlink("/q").unwrap();
        free_all();
        assert_eq!(quota.used(), before - 1, "its page is freed");
    });
}

#[test]
fn a_program_that_is_kept_does_not_keep_its_mount_busy() {
    with_program(|root| {
        root.mkdir("/m").unwrap();
        mount_plain("/m").unwrap();
        root.create("/m/p").unwrap();
        set_mode("/m/p", 0o755);
        run_often("/m/p");
        assert!(is_kept("/m/p"));
        let program = run("/m/p").unwrap();
        assert_eq!(umount("/m", false), Err(FsError::Busy));
        drop(program);
        assert_eq!(umount("/m", false), Ok(()));
    });
}

#[test]
fn a_program_that_is_kept_goes_with_its_detached_mount_and_with_no_other() {
    with_program(|root| {
        for dir in ["/m", "/n"] {
            root.mkdir(dir).unwrap();
            mount_plain(dir).unwrap();
        }
        root.create("/m/p").unwrap();
        set_mode("/m/p", 0o755);
        run_often("/p");
        run_often("/m/p");
        assert_eq!(umount("/n", false), Ok(()));
        assert!(is_kept("/p") && is_kept("/m/p"), "another mount has gone");
        let place = root.find("/m/p").unwrap();
        let (mount, dentry) = (place.mount.clone(), Arc::downgrade(&place.dentry));
        drop(place);
        assert_eq!(umount("/m", true), Ok(()));
        drop(mount);
        free_all();
        assert!(is_kept("/p") && dentry.upgrade().is_none());
    });
}

/// The file may have lost its name, or its mount may have been detached, between the look at them and this.
#[test]
fn a_program_that_has_gone_meanwhile_is_not_kept() {
    with_program(|root| {
        root.mkdir("/m").unwrap();
        mount_plain("/m").unwrap();
        root.create("/m/p").unwrap();
        for path in ["/p", "/m/p"] {
            let place = root.find(path).unwrap();
            let file = root.open(path, o::RDONLY).unwrap();
            match path {
                "/p" => root.unlink("/p").unwrap(),
                _ => umount("/m", true).unwrap(),
            }
            drop(exec_cache::keep(file));
            let found = exec_cache::find(&ksync::pin(), &place.mount, &place.dentry);
            assert!(found.is_none(), "{path}");
        }
    });
}

/// A set of the cache may have the programs of several mounts.
#[test]
fn a_program_is_kept_for_the_mount_by_which_it_was_found() {
    const MOUNTS: usize = 100;
    with_program(|root| {
        run_often("/p");
        for n in 0..MOUNTS {
            root.mkdir(&format!("/{n}")).unwrap();
            bind("/", &format!("/{n}"), flag::NOEXEC).unwrap();
            assert_eq!(run(&format!("/{n}/p")).err(), Some(Access));
        }
        assert!(run("/p").is_ok());
    });
}

/// A file of procfs whose mode says that it may be executed.
#[test]
fn a_file_made_on_demand_is_no_program() {
    with_program(|root| {
        let node = Dynamic::File(Box::new(Made)).inode(9, 1, 0o755, (0, 0));
        let top = root.find("/").unwrap();
        let dentry = Dentry::new(None, b"made", node, cred::Payer::NOBODY);
        let place = Path {
            mount: top.mount,
            dentry,
        };
        assert_eq!(ExecFile::at(place).err(), Some(Access));
    });
}

struct Made;

impl DynFile for Made {
    fn print(&self, _: &mut Text) -> Result<(), FsError> {
        Ok(())
    }
}

#[test]
fn more_programs_than_the_cache_has_places_are_executed() {
    with_program(|root| {
        for n in 0..200 {
            let path = format!("/{n}");
            root.link("/p", &path).unwrap();
            run_often(&path);
        }
        let kept = (0..200).filter(|n| is_kept(&format!("/{n}"))).count();
        assert!((1..=128).contains(&kept), "{kept}");
        assert_eq!(nlink("/p"), 201);
        assert_eq!(root.write("/p", 0, b"new"), Ok(3));
        assert!(
            (0..200).all(|n| !is_kept(&format!("/{n}"))),
            "they are one file"
        );
    });
}
