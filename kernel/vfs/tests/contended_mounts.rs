//! File systems that come and go, programs and files without names, used by threads on several CPUs at once.
#![cfg(not(shuttle))]

mod storm;
mod support;
mod support_names;

use std::sync::{Arc, Mutex};

use cred::Payer;
use hal::uio::IoBuf;
use storm::storm;
use support::{Calls, on};
use support_names::{bind, free_all, mount_new, set_mode, umount};
use vfs::dentry::Dentry;
use vfs::error::FsError::{self, Busy, Exists, Invalid, NoSpace, NotFound, TextBusy};
use vfs::error::Result;
use vfs::exec::ExecFile;
use vfs::exec_cache::OFTEN;
use vfs::file::o;
use vfs::inode::Inode;
use vfs::mount;
use vfs::tmpfs::Settings;
use vm::Quota;
use vm_host::Random;

/// Whether a call succeeded, which may fail only for what other threads may have done.
fn done<T>(result: Result<T>, other_threads: &[FsError]) -> bool {
    let error = result.err();
    assert!(
        error.is_none_or(|e| other_threads.contains(&e)),
        "{error:?}"
    );
    error.is_none()
}

fn mounts() -> usize {
    let mut n = 0;
    let count = |_: &_| {
        n += 1;
        Ok(())
    };
    mount::for_each(count).unwrap();
    n
}

/// The quotas of all file systems that were made, and files in them, which may outlive them.
#[derive(Default)]
struct Seen {
    quotas: Mutex<Vec<&'static Quota>>,
    files: Mutex<Vec<Arc<Inode>>>,
}

impl Seen {
    /// A file that was put here, and is taken away or not.
    fn file(&self, random: &mut Random) -> Option<Arc<Inode>> {
        let mut files = self.files.lock().unwrap();
        match files.len() {
            0 => None,
            n if n > 3 => files.pop(),
            n => Some(files[random.below(n)].clone()),
        }
    }
}

/// What other threads may have done; and pages that were freed wait for the end of a grace period.
const AWAY: [FsError; 5] = [NotFound, Exists, Busy, Invalid, NoSpace];

/// Mounts a new file system with some files and directories, and has it go again.
fn come_and_go(random: &mut Random, seen: &Seen) {
    let calls = Calls::of_root();
    let mut settings = Settings::new(0o755);
    (settings.limit, settings.inodes) = (Some(50), Some(50));
    if !done(mount_new("/m", settings, 0), &AWAY) {
        return;
    }
    done(calls.create("/m/f"), &AWAY);
    if random.one_in(3) {
        done(calls.write("/m/f", 5000, b"x"), &AWAY);
    }
    for n in 0..random.below(4) {
        done(calls.mkdir(&format!("/m/{n}")), &AWAY);
    }
    if let Ok(place) = calls.find("/m/f") {
        let fs = &place.mount.fs;
        let quotas = [fs.quota, fs.inodes];
        seen.quotas.lock().unwrap().extend(quotas.iter().flatten());
        seen.files.lock().unwrap().push(place.dentry.inode.clone());
    }
    done(umount("/m", random.one_in(2)), &[Busy, Invalid, NotFound]);
}

/// Makes a chain of directories and removes it, while its end is in use.
fn dig(n: usize) {
    const DEPTH: usize = 40;
    let calls = Calls::of_root();
    let (mut path, mut made) = (format!("/{n}"), Vec::new());
    while made.len() < DEPTH && done(calls.mkdir(&path), &[NoSpace]) {
        made.push(path.clone());
        path.push_str("/d");
    }
    let end = made.last().map(|path| calls.find(path).unwrap());
    for path in made.iter().rev() {
        calls.rmdir(path).unwrap();
    }
    drop(end);
}

fn finish_often() {
    for _ in 0..4 {
        vfs::leftover::finish();
    }
}

fn use_mounts(n: usize, random: &mut Random, seen: &Seen) {
    let calls = Calls::of_root();
    match (n, random.below(6)) {
        (0 | 1, 0) => dig(n),
        (0 | 1, 1) => {
            done(bind("/file", "/over", 0), &AWAY);
            done(umount("/over", true), &[Busy, Invalid]);
        }
        (0 | 1, _) => come_and_go(random, seen),
        (_, 0 | 1) => {
            done(calls.find("/m/f"), &AWAY);
            done(calls.find("/m/f/.."), &[FsError::NotDir, NotFound]);
            assert!(mounts() > 0);
        }
        (_, 2) => {
            if let Some(file) = seen.file(random) {
                assert!(file.resident() <= 1);
            }
        }
        _ => finish_often(),
    }
}

#[test]
fn nothing_is_left_of_file_systems_that_have_gone() {
    on(4, || {
        let calls = Calls::of_root();
        for dir in ["/m", "/d"] {
            calls.mkdir(dir).unwrap();
        }
        calls.create("/file").unwrap();
        calls.write("/file", 0, b"file").unwrap();
        calls.create("/over").unwrap();
        let seen = Arc::new(Seen::default());
        let theirs = seen.clone();
        storm(400, move |n, random| use_mounts(n, random, &theirs));
        while mounts() > 1 {
            let path = if umount("/over", true).is_ok() {
                "/over"
            } else {
                "/m"
            };
            done(umount(path, true), &[Invalid]);
        }
        seen.files.lock().unwrap().clear();
        free_all();
        let quotas = seen.quotas.lock().unwrap();
        assert!(!quotas.is_empty() && quotas.iter().all(|q| q.used() == 0 && q.objects() == 0));
        assert_eq!(
            calls.list("/"),
            Ok(["d", "file", "m", "over"].map(String::from).to_vec())
        );
        assert_eq!(calls.read("/file").unwrap(), b"file");
    });
}

#[test]
fn long_chains_of_directories_are_freed_by_one_thread_beside_others() {
    const LENGTH: usize = 40;
    on(4, || {
        let inode = Calls::of_root().find("/").unwrap().dentry.inode.clone();
        let (before, theirs) = (Arc::strong_count(&inode), inode.clone());
        storm(1000, move |n, _| {
            if n == 0 {
                return finish_often();
            }
            let mut end = None;
            for _ in 0..LENGTH {
                end = Some(Dentry::new(end, b"d", theirs.clone(), Payer::NOBODY));
            }
            drop(end);
        });
        free_all();
        assert_eq!(Arc::strong_count(&inode), before);
    });
}

fn run(path: &str) -> Result<ExecFile> {
    ExecFile::open(vfs::FsContext::boot().context(), path.as_bytes())
}

fn text(program: &ExecFile) -> [u8; 4] {
    let mut bytes = [0; 4];
    assert_eq!(program.read_at(0, &mut bytes), Ok(4));
    bytes
}

/// Runs a program, writes it, or gives it another name and takes that away, which takes it out of the cache.
fn use_program(n: usize, random: &mut Random) {
    let (calls, path) = (Calls::of_root(), ["/p", "/q"][random.below(2)]);
    match random.below(4) {
        0 => drop(done(calls.write(path, 0, &[n as u8; 4]), &[TextBusy])),
        1 => {
            let name = format!("/{n}");
            calls.link(path, &name).unwrap();
            if let Ok(program) = run(&name) {
                calls.unlink(&name).unwrap();
                text(&program);
            } else {
                calls.unlink(&name).unwrap();
            }
        }
        _ => {
            for _ in 0..OFTEN {
                let Ok(program) = run(path) else {
                    return;
                };
                let before = text(&program);
                assert_eq!(before, [before[0]; 4]);
                assert_eq!(text(&program), before, "it is not written meanwhile");
            }
        }
    }
}

#[test]
fn no_program_is_written_while_it_runs() {
    on(4, || {
        let calls = Calls::of_root();
        for path in ["/p", "/q"] {
            calls.create(path).unwrap();
            calls.write(path, 0, &[9; 4]).unwrap();
            set_mode(path, 0o755);
        }
        storm(300, use_program);
        let quota = calls.find("/").unwrap().mount.fs.quota.unwrap();
        for path in ["/p", "/q"] {
            assert_eq!(calls.write(path, 0, b"text"), Ok(4), "nobody runs it");
            calls.unlink(path).unwrap();
        }
        free_all();
        assert_eq!((quota.used(), calls.list("/")), (0, Ok(Vec::new())));
    });
}

/// Makes a file, opens it, and takes its names away, as other threads do.
fn use_file(n: usize, random: &mut Random) {
    const OTHERS: [FsError; 3] = [NotFound, Exists, NoSpace];
    let calls = Calls::of_root();
    let name = format!("/{n}");
    match random.below(6) {
        0 | 1 => {
            if done(calls.create("/f"), &OTHERS) {
                done(calls.write("/f", 0, b"contents"), &OTHERS);
            }
        }
        2 => {
            done(calls.unlink("/f"), &OTHERS);
        }
        3 => {
            if done(calls.link("/f", &name), &OTHERS) {
                calls.unlink(&name).unwrap();
            }
        }
        _ => {
            let Ok(file) = calls.open("/f", o::RDONLY) else {
                return;
            };
            for _ in 0..50 {
                let mut bytes = [0; 9];
                let n = file.read_at(&mut IoBuf::Fill(&mut bytes), 0).unwrap();
                assert!(n == 0 || bytes == *b"contents\0");
                let (size, blocks) = file.attr().map(|a| (a.size, a.blocks)).unwrap();
                assert!(size >= n as u64 && blocks <= 8);
            }
        }
    }
}

#[test]
fn an_open_file_keeps_its_contents_and_a_closed_one_without_names_loses_them() {
    on(4, || {
        storm(2500, use_file);
        let calls = Calls::of_root();
        done(calls.unlink("/f"), &[NotFound]);
        free_all();
        let fs = calls.find("/").unwrap().mount.fs.clone();
        let (pages, files) = (fs.quota.unwrap(), fs.inodes.unwrap());
        assert_eq!((pages.used(), pages.objects(), files.used()), (0, 0, 1));
    });
}
