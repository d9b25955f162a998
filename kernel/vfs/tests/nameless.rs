//! Files without a name, as `O_TMPFILE` makes them: which of them get one, and when their contents go.
#![cfg(not(shuttle))]

mod support;
mod support_names;

use cred::Cred;
use support::{Calls, on};
use support_names::{USER, View, free_all, ino, inode, set_mode, user};
use vfs::error::FsError::{self, Access, Exists, NotDir, NotFound, NotSupported};
use vfs::file::{FileRef, o};
use vfs::inode::mode;
use vfs::lost::{Unused, until_used};
use vfs::setattr::NewMode;
use vfs::tmpfs;
use vfs::walk::Last;

/// Root's calls and those of a user, with a directory that all may write, `/all`.
fn with(check: impl FnOnce(&Calls, &Calls) + Send + 'static) {
    on(1, || {
        let root = Calls::of_root();
        root.mkdir("/all").unwrap();
        set_mode("/all", 0o777);
        check(&root, &Calls::of(user(USER, &[])));
    });
}

/// A file without a name in the directory at a path.
fn nameless(calls: &Calls, dir: &str) -> Result<FileRef, FsError> {
    calls.open(dir, o::RDWR | o::TMPFILE)
}

/// linkat(2) with the open file as the source.
fn name(file: &FileRef, path: &str) -> Result<(), FsError> {
    View::of(Cred::root()).walk(|walk| {
        let (dir, last) = walk.parent(path.as_bytes())?;
        let Last::Name(name, _) = last else {
            return Err(Exists);
        };
        let inode = file.inode().ok_or(FsError::BadFd)?;
        tmpfs::link(walk.cred, inode, &dir, name, true)
    })
}

#[test]
fn a_file_without_a_name_gets_one_by_a_link() {
    with(|root, _| {
        let file = nameless(root, "/all").unwrap();
        let own = file.inode().unwrap().clone();
        assert_eq!((own.nlink(), root.list("/all")), (0, Ok(vec![])));
        file.write(&mut hal::uio::IoBuf::Drain(b"text")).unwrap();
        assert_eq!(name(&file, "/all/f"), Ok(()));
        assert_eq!((own.nlink(), ino("/all/f")), (1, own.ino));
        assert_eq!(name(&file, "/all/f"), Err(Exists));
        assert_eq!(own.nlink(), 1, "the count of a failed link is taken back");
        assert_eq!(name(&file, "/all/g"), Ok(()));
        drop(file);
        root.unlink("/all/f").unwrap();
        assert_eq!(root.read("/all/g"), Ok(b"text".to_vec()));
    });
}

#[test]
fn a_file_that_has_lost_its_last_name_gets_none() {
    with(|root, _| {
        let file = nameless(root, "/all").unwrap();
        name(&file, "/all/f").unwrap();
        root.unlink("/all/f").unwrap();
        assert_eq!(name(&file, "/all/f"), Err(NotFound));
        root.create("/g").unwrap();
        let open = root.open("/g", o::RDONLY).unwrap();
        root.link("/g", "/h").unwrap();
        root.unlink("/g").unwrap();
        assert_eq!(name(&open, "/g"), Ok(()), "it still has a name");
        root.unlink("/g").unwrap();
        root.unlink("/h").unwrap();
        assert_eq!(name(&open, "/g"), Err(NotFound));
        assert_eq!(root.find("/g").err(), Some(NotFound));
    });
}

#[test]
fn an_exclusive_file_without_a_name_gets_none() {
    with(|root, _| {
        let file = root.open("/all", o::RDWR | o::TMPFILE | o::EXCL).unwrap();
        assert_eq!(name(&file, "/all/f"), Err(NotFound));
        assert_eq!(file.inode().unwrap().nlink(), 0);
        assert_eq!(root.list("/all"), Ok(vec![]));
    });
}

#[test]
fn a_file_without_a_name_is_made_where_a_name_might_be() {
    with(|root, user| {
        root.create("/f").unwrap();
        root.mkdir("/d").unwrap();
        let open = |path, flags| user.open(path, flags | o::TMPFILE).err();
        assert_eq!(open("/all", o::RDONLY), Some(FsError::Invalid));
        assert_eq!(open("/f", o::RDWR), Some(NotDir));
        assert_eq!(open("/absent", o::RDWR), Some(NotFound));
        assert_eq!(open("/d", o::RDWR), Some(Access));
        set_mode("/d", 0o772);
        assert_eq!(
            open("/d", o::RDWR),
            Some(Access),
            "it must be searched, too"
        );
        set_mode("/d", 0o773);
        assert_eq!(open("/d", o::RDWR), None);
        let file = nameless(user, "/all").unwrap();
        let own = file.inode().unwrap();
        assert_eq!((own.uid(), own.mode()), (USER, mode::REG | 0o644));
    });
}

#[test]
fn the_contents_of_a_file_without_a_name_go_with_the_last_close() {
    with(|root, _| {
        let quota = root.find("/").unwrap().mount.fs.quota.unwrap();
        free_all();
        let before = quota.used();
        let file = nameless(root, "/all").unwrap();
        let bytes = vec![1; 5 * 4096];
        assert_eq!(
            file.write(&mut hal::uio::IoBuf::Drain(&bytes)),
            Ok(bytes.len())
        );
        assert_eq!(quota.used(), before + 5);
        drop(file);
        free_all();
        assert_eq!(quota.used(), before);
    });
}

#[test]
fn what_is_no_directory_of_files_in_memory_has_no_nameless_files() {
    with(|root, _| {
        root.create("/all/f").unwrap();
        set_mode("/all/f", 0o777);
        let place = root.find("/all/f").unwrap();
        let made = tmpfs::create_nameless(root.cred(), &place, NewMode::exact(0o600), false);
        assert_eq!(made.err(), Some(NotSupported));
    });
}

/// By a link of procfs, which leads to the file itself.
#[test]
fn a_file_that_is_found_again_after_its_contents_have_gone_is_not_found() {
    with(|root, _| {
        root.create("/all/f").unwrap();
        let file = inode("/all/f");
        let mut lost = 0;
        let used: Result<(), FsError> = until_used(|| {
            lost += 1;
            assert!(lost < 100, "the call goes on");
            Err(Unused::Lost(file.clone()))
        });
        assert_eq!((used, lost), (Err(NotFound), 2));
    });
}
