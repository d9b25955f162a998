//! What users may do with files of others: permissions, sticky directories, owners, and the bits that changes clear.
#![cfg(not(shuttle))]

mod support;

use cred::Cred;
use support::users::user;
use support::{Calls, on};
use vfs::error::FsError::{self, Access, Perm};
use vfs::file::o;
use vfs::rename::RenameMode::Replace;
use vfs::setattr::{chmod, chown};

const USER: u32 = 1000;
const OTHER: u32 = 1001;
/// A group that only the tests that say so make the user a member of.
const TEAM: u32 = 50;

/// Root's calls and those of a user, in a file system with a directory for all, `/all`.
fn with(check: impl FnOnce(&Calls, &Calls) + Send + 'static) {
    on(1, || {
        let root = Calls::of_root();
        root.mkdir("/all").unwrap();
        mode(&root, "/all", 0o777);
        check(&root, &Calls::of(user(USER, &[])));
    });
}

fn mode(root: &Calls, path: &str, bits: u32) {
    let place = root.find(path).unwrap();
    chmod(root.cred(), &place.dentry.inode, bits).unwrap();
}

fn give(root: &Calls, path: &str, uid: u32, gid: u32) {
    let place = root.find(path).unwrap();
    chown(root.cred(), &place.dentry.inode, Some(uid), Some(gid)).unwrap();
}

/// The permission bits of a file.
fn bits(root: &Calls, path: &str) -> u32 {
    root.find(path).unwrap().dentry.inode.mode() & 0o7777
}

/// A change of permissions or owner by `caller`.
fn change(
    caller: &Calls,
    path: &str,
    how: impl FnOnce(&Cred, &vfs::inode::Inode) -> vfs::error::Result<()>,
) -> Result<(), FsError> {
    // Found by root: search permission is another matter.
    let place = Calls::of_root().find(path)?;
    how(caller.cred(), &place.dentry.inode)
}

#[test]
fn a_directory_without_search_permission_hides_what_is_in_it() {
    with(|root, user| {
        root.mkdir("/private").unwrap();
        root.create("/private/f").unwrap();
        mode(root, "/private/f", 0o666);
        mode(root, "/private", 0o766);
        assert_eq!(user.find("/private/f").err(), Some(Access));
        assert_eq!(user.find("/private/absent").err(), Some(Access));
        assert_eq!(user.create("/private/new"), Err(Access));
        assert_eq!(user.unlink("/private/f"), Err(Access));
        assert_eq!(user.rename("/private/f", "/all/f", Replace), Err(Access));
        mode(root, "/private", 0o711);
        assert!(user.find("/private/f").is_ok());
        assert_eq!(user.read("/private/f"), Ok(Vec::new()));
    });
}

#[test]
fn a_directory_without_write_permission_keeps_its_names() {
    with(|root, user| {
        root.mkdir("/fixed").unwrap();
        root.create("/fixed/f").unwrap();
        mode(root, "/fixed/f", 0o666);
        assert_eq!(user.create("/fixed/new"), Err(Access));
        assert_eq!(user.mkdir("/fixed/new"), Err(Access));
        assert_eq!(user.symlink("f", "/fixed/new"), Err(Access));
        assert_eq!(user.unlink("/fixed/f"), Err(Access));
        assert_eq!(user.link("/fixed/f", "/fixed/new"), Err(Access));
        assert_eq!(user.rename("/fixed/f", "/fixed/g", Replace), Err(Access));
        assert_eq!(
            user.write("/fixed/f", 0, b"x"),
            Ok(1),
            "the file is his to write"
        );
    });
}

#[test]
fn the_class_of_the_caller_alone_counts() {
    with(|root, user| {
        root.create("/all/f").unwrap();
        give(root, "/all/f", USER, USER);
        // The owner has fewer rights than everybody.
        mode(root, "/all/f", 0o077);
        assert_eq!(user.read("/all/f").err(), Some(Access));
        give(root, "/all/f", OTHER, USER);
        mode(root, "/all/f", 0o707);
        assert_eq!(user.read("/all/f").err(), Some(Access), "the group's");
        mode(root, "/all/f", 0o070);
        assert_eq!(user.read("/all/f"), Ok(Vec::new()));
        give(root, "/all/f", OTHER, TEAM);
        assert_eq!(user.read("/all/f").err(), Some(Access));
        let member = Calls::of(self::user(USER, &[TEAM]));
        assert_eq!(member.read("/all/f"), Ok(Vec::new()));
    });
}

#[test]
fn root_reads_and_writes_what_nobody_may() {
    with(|root, _| {
        root.create("/all/f").unwrap();
        give(root, "/all/f", OTHER, OTHER);
        mode(root, "/all/f", 0);
        assert_eq!(root.write("/all/f", 0, b"x"), Ok(1));
        assert_eq!(root.read("/all/f"), Ok(b"x".to_vec()));
    });
}

#[test]
fn each_way_to_open_asks_for_its_own_right() {
    with(|root, user| {
        root.create("/all/f").unwrap();
        for (bits, read, write) in [
            (4, true, false),
            (2, false, true),
            (6, true, true),
            (1, false, false),
        ] {
            mode(root, "/all/f", bits);
            let open = |flags| user.open("/all/f", flags).is_ok();
            assert_eq!(open(o::RDONLY), read, "{bits:o}");
            assert_eq!(open(o::WRONLY), write, "{bits:o}");
            assert_eq!(open(o::RDWR), read && write, "{bits:o}");
            assert_eq!(open(o::RDONLY | o::TRUNC), read && write, "{bits:o}");
        }
    });
}

#[test]
fn a_sticky_directory_keeps_the_files_of_others() {
    with(|root, user| {
        mode(root, "/all", 0o1777);
        for (name, uid) in [("/all/own", USER), ("/all/theirs", OTHER)] {
            root.create(name).unwrap();
            give(root, name, uid, uid);
        }
        assert_eq!(user.unlink("/all/theirs"), Err(Perm));
        assert_eq!(user.rename("/all/theirs", "/all/x", Replace), Err(Perm));
        assert_eq!(user.rename("/all/own", "/all/theirs", Replace), Err(Perm));
        assert_eq!(user.rename("/all/own", "/all/x", Replace), Ok(()));
        assert_eq!(user.unlink("/all/x"), Ok(()));
        assert_eq!(root.unlink("/all/theirs"), Ok(()));
    });
}

#[test]
fn the_owner_of_a_sticky_directory_may_remove_what_is_in_it() {
    with(|root, user| {
        root.mkdir("/all/mine").unwrap();
        give(root, "/all/mine", USER, USER);
        mode(root, "/all/mine", 0o1777);
        root.create("/all/mine/f").unwrap();
        assert_eq!(user.unlink("/all/mine/f"), Ok(()));
    });
}

#[test]
fn a_directory_moves_to_another_parent_only_if_its_dots_may_be_written() {
    with(|root, user| {
        root.mkdir("/all/theirs").unwrap();
        root.mkdir("/all/into").unwrap();
        mode(root, "/all/into", 0o777);
        // Its new parent is written into it.
        assert_eq!(
            user.rename("/all/theirs", "/all/into/d", Replace),
            Err(Access)
        );
        assert_eq!(user.rename("/all/theirs", "/all/renamed", Replace), Ok(()));
        mode(root, "/all/renamed", 0o777);
        assert_eq!(user.rename("/all/renamed", "/all/into/d", Replace), Ok(()));
    });
}

#[test]
fn only_the_owner_changes_permissions() {
    with(|root, user| {
        root.create("/all/f").unwrap();
        mode(root, "/all/f", 0o666);
        assert_eq!(
            change(user, "/all/f", |cred, f| chmod(cred, f, 0o777)),
            Err(Perm)
        );
        assert_eq!(bits(root, "/all/f"), 0o666);
        give(root, "/all/f", USER, USER);
        assert_eq!(
            change(user, "/all/f", |cred, f| chmod(cred, f, 0o700)),
            Ok(())
        );
        assert_eq!(bits(root, "/all/f"), 0o700);
    });
}

#[test]
fn nobody_gives_a_file_away() {
    with(|root, user| {
        root.create("/all/f").unwrap();
        give(root, "/all/f", USER, USER);
        let to = |uid, gid| change(user, "/all/f", |cred, f| chown(cred, f, uid, gid));
        assert_eq!(to(Some(OTHER), None), Err(Perm));
        assert_eq!(to(Some(0), None), Err(Perm));
        assert_eq!(to(Some(USER), Some(USER)), Ok(()));
        assert_eq!(to(None, Some(TEAM)), Err(Perm));
        let member = Calls::of(self::user(USER, &[TEAM]));
        let own = change(&member, "/all/f", |cred, f| {
            chown(cred, f, None, Some(TEAM))
        });
        assert_eq!(own, Ok(()));
    });
}

#[test]
fn a_new_owner_ends_the_set_bits() {
    with(|root, user| {
        root.create("/all/f").unwrap();
        give(root, "/all/f", USER, USER);
        mode(root, "/all/f", 0o6755);
        give(root, "/all/f", OTHER, OTHER);
        assert_eq!(bits(root, "/all/f"), 0o755);
        // A bit that stands without the group's permission to execute is no privilege.
        mode(root, "/all/f", 0o2745);
        give(root, "/all/f", USER, USER);
        assert_eq!(bits(root, "/all/f"), 0o2745);
        // A call that changes nothing clears the bits, too, so a stranger may not make it.
        mode(root, "/all/f", 0o4755);
        give(root, "/all/f", OTHER, OTHER);
        mode(root, "/all/f", 0o4755);
        assert_eq!(
            change(user, "/all/f", |cred, f| chown(cred, f, None, None)),
            Err(Perm)
        );
        assert_eq!(bits(root, "/all/f"), 0o4755);
    });
}

#[test]
fn only_members_set_the_group_bit() {
    with(|root, _| {
        root.create("/all/f").unwrap();
        give(root, "/all/f", USER, TEAM);
        for (groups, left) in [(&[][..], 0o755), (&[TEAM][..], 0o2755)] {
            let owner = Calls::of(user(USER, groups));
            assert_eq!(
                change(&owner, "/all/f", |cred, f| chmod(cred, f, 0o2755)),
                Ok(())
            );
            assert_eq!(bits(root, "/all/f"), left);
        }
    });
}

#[test]
fn a_set_group_directory_passes_its_group_on() {
    with(|root, user| {
        root.mkdir("/all/team").unwrap();
        give(root, "/all/team", 0, TEAM);
        mode(root, "/all/team", 0o2777);
        user.create("/all/team/f").unwrap();
        user.mkdir("/all/team/d").unwrap();
        user.create("/all/own").unwrap();
        let gid = |path: &str| root.find(path).unwrap().dentry.inode.gid();
        assert_eq!(
            (gid("/all/team/f"), gid("/all/team/d"), gid("/all/own")),
            (TEAM, TEAM, USER)
        );
        assert_eq!(bits(root, "/all/team/d") & 0o2000, 0o2000);
        assert_eq!(bits(root, "/all/team/f") & 0o2000, 0);
    });
}

#[test]
fn what_a_user_makes_is_his() {
    with(|root, user| {
        user.create("/all/f").unwrap();
        user.mkdir("/all/d").unwrap();
        user.symlink("f", "/all/l").unwrap();
        user.mkfifo("/all/p").unwrap();
        for name in ["/all/f", "/all/d", "/all/l", "/all/p"] {
            let inode = root.find(name).unwrap().dentry.inode.clone();
            assert_eq!((inode.uid(), inode.gid()), (USER, USER), "{name}");
        }
    });
}

#[test]
fn a_link_leads_where_its_reader_may_go() {
    with(|root, user| {
        root.mkdir("/private").unwrap();
        root.create("/private/f").unwrap();
        root.symlink("/private/f", "/all/l").unwrap();
        mode(root, "/private", 0o700);
        assert_eq!(user.read("/all/l").err(), Some(Access));
        assert!(user.readlink("/all/l").is_ok());
        assert!(root.read("/all/l").is_ok());
    });
}
