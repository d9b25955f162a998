//! What an operation that finds nothing to do must not use: locks that others need, numbers, memory.
#![cfg(not(shuttle))]

mod support;
mod support_names;

use hal::uio::IoBuf;
use support::{Calls, on};
use support_names::{as_user, bind, set_mode, user};
use vfs::dynamic::Text;
use vfs::exec::ExecFile;
use vfs::fdtable::FdTable;
use vfs::full_name::{full_name, name_in_fs};
use vfs::pipe::{self, Pipe};
use vm_host::frugal::{alone, locks};
use vm_host::heap::{Heap, asked_under_locks, blocks, learn, refuse_none, refuse_once};

#[global_allocator]
static HEAP: Heap = Heap;

/// Runs `body` as the only test of the program, on a machine with one CPU.
fn alone_on_one(body: impl FnOnce(&Calls) + Send + 'static) {
    alone(|| on(1, || body(&Calls::of_root())));
}

#[test]
fn a_name_is_made_without_the_lock_of_renames() {
    alone_on_one(|root| {
        root.mkdir("/d").unwrap();
        let (top, at) = (root.find("/").unwrap(), root.find("/d").unwrap());
        let taken = locks("directory renames", || {
            assert_eq!(full_name(&top, &at), Ok((b"/d".to_vec(), true)));
            assert_eq!(name_in_fs(&at.dentry), Ok(b"/d".to_vec()));
        });
        assert_eq!(taken, 0);
    });
}

#[test]
fn the_parent_below_the_root_of_a_mount_is_found_without_a_lock() {
    alone_on_one(|root| {
        for dir in ["/d", "/d/e", "/d/e/f", "/m"] {
            root.mkdir(dir).unwrap();
        }
        bind("/d", "/m", 0).unwrap();
        for class in ["directory renames", "mount table"] {
            let taken = locks(class, || {
                let up = root.find("/m/e/f/..").unwrap();
                let e = root.find("/m/e").unwrap();
                assert!(std::sync::Arc::ptr_eq(&up.dentry, &e.dentry));
            });
            assert_eq!(taken, 0, "{class}");
        }
    });
}

#[test]
fn a_program_without_ids_of_its_own_is_not_locked() {
    alone_on_one(|root| {
        root.create("/p").unwrap();
        set_mode("/p", 0o755);
        let run = || ExecFile::open(vfs::FsContext::boot().context(), b"/p").unwrap();
        let plain = run();
        assert_eq!(locks("inode", || assert_eq!(plain.set_ids().uid, None)), 0);
        drop(plain);
        set_mode("/p", 0o4755);
        let with_ids = run();
        assert_eq!(
            locks("inode", || assert_eq!(with_ids.set_ids().uid, Some(0))),
            1
        );
    });
}

#[test]
fn a_pipe_takes_one_number() {
    alone_on_one(|_| {
        let (a, b) = (Pipe::create().unwrap(), Pipe::create().unwrap());
        let first = a.ino();
        assert_eq!([a.ino(), a.ino()], [first, first]);
        assert_eq!(b.ino(), first + 1);
    });
}

#[test]
fn a_pipe_after_another_costs_no_memory_but_its_ends() {
    alone_on_one(|_| {
        let pipe = || {
            blocks(|| {
                let (from, to) = pipe::open_pair(0).unwrap();
                assert_eq!(to.write(&mut IoBuf::Drain(b"x")), Ok(1));
                drop((from, to));
            })
        };
        pipe();
        let cached = pipe();
        pipe::drain();
        assert!(cached < pipe());
    });
}

#[test]
fn a_text_without_memory_fails() {
    alone_on_one(|_| {
        let print = || {
            let mut text = Text::new();
            text.push(&[b'x'; 3000]);
            text.finish().map(|bytes| bytes.len())
        };
        assert_eq!(learn(print), Ok(3000));
        refuse_once(1);
        assert!(print().is_err() && refuse_none());
        assert_eq!(print(), Ok(3000));
    });
}

#[test]
fn a_write_to_a_plain_file_asks_for_no_credentials() {
    alone_on_one(|root| {
        root.create("/plain").unwrap();
        root.create("/special").unwrap();
        set_mode("/special", 0o4755);
        let write = |path: &str| {
            let file = root.open(path, vfs::file::o::WRONLY).unwrap();
            let mut bytes = IoBuf::Drain(b"x");
            locks("thread", || assert_eq!(file.write_at(&mut bytes, 0), Ok(1)))
        };
        as_user(&user(7, &[]), || ());
        assert!(write("/plain") < write("/special"));
    });
}

#[test]
fn descriptors_are_copied_where_their_copier_can_wait_for_memory() {
    alone_on_one(|_| {
        let table = FdTable::new();
        let (end, _other) = pipe::open_pair(0).unwrap();
        table.add(end, false, 0, 100).unwrap();
        asked_under_locks();
        learn(|| drop(table.fork().unwrap()));
        assert_eq!(asked_under_locks(), 0);
    });
}
