//! Access control lists and attributes changed by one CPU and used by another, with a switch possible at every access to an atomic.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p vfs --release --test shuttle_xattrs`; `PANTALA_SCHEDULES` says how many schedules each
//! test tries.
#![cfg(shuttle)]

mod support;
mod support_names;
mod support_xattrs;

use cred::Cred;
use fscore::perm::{READ, WRITE};
use support::threads::{everywhere, spawn, wait_for_ends};
use support::{Calls, on};
use support_names::{OTHER, TEAM, USER, give, inode, set_mode, user};
use support_xattrs::{ACCESS, get, raw, remove, set};
use vfs::error::{FsError, Result};
use vfs::rights::permitted;
use vfs::setattr::chmod;
use vfs::xattr::ops;
use vfs::xattr::store::How;

/// The bytes of a list: the owner has all rights, the others none.
fn list(group: u16, mask: Option<u16>) -> Vec<u8> {
    let none = u32::MAX;
    let mut entries = vec![(1u16, 7u16, none)];
    entries.extend(mask.map(|_| (2, 7, USER)));
    entries.push((4, group, none));
    entries.extend(mask.map(|mask| (0x10, mask, none)));
    entries.push((0x20, 0, none));
    raw(&entries)
}

/// A file of which the group may read.
fn file() {
    Calls::of_root().create("/f").expect("a free name");
    give("/f", OTHER, TEAM);
    set_mode("/f", 0o740);
}

/// A member of the group, which may read and not write, whatever happens meanwhile.
fn group_reads() {
    let (file, member) = (inode("/f"), user(7, &[TEAM]));
    assert_eq!(permitted(&member, &file, WRITE), Err(FsError::Access));
    assert_eq!(permitted(&member, &file, READ), Ok(()));
}

#[test]
fn the_mask_of_a_list_that_comes_is_not_taken_for_the_rights_of_the_group() {
    everywhere(|| {
        on(2, || {
            file();
            spawn(None, || {
                set("/f", ACCESS, &list(4, Some(7))).expect("memory")
            });
            group_reads();
            wait_for_ends(1);
            let named = user(USER, &[]);
            assert_eq!(permitted(&named, &inode("/f"), WRITE), Ok(()));
        });
    });
}

#[test]
fn the_mask_of_a_list_that_goes_is_not_taken_for_the_rights_of_the_group() {
    everywhere(|| {
        on(2, || {
            file();
            set("/f", ACCESS, &list(4, Some(7))).expect("memory");
            spawn(None, || set("/f", ACCESS, &list(4, None)).expect("memory"));
            group_reads();
            wait_for_ends(1);
            assert_eq!(get("/f", ACCESS), Err(FsError::NoData));
            group_reads();
        });
    });
}

#[test]
fn a_chmod_beside_a_list_leaves_mode_and_mask_equal() {
    everywhere(|| {
        on(2, || {
            file();
            set("/f", ACCESS, &list(4, Some(7))).expect("memory");
            spawn(None, || {
                chmod(&Cred::root(), &inode("/f"), 0o750).expect("root may")
            });
            set("/f", ACCESS, &list(4, Some(6))).expect("memory");
            wait_for_ends(1);
            let mask = get("/f", ACCESS).expect("a list")[4 + 3 * 8 + 2];
            assert_eq!(inode("/f").mode() >> 3 & 7, u32::from(mask));
            assert!(matches!(mask, 5 | 6), "{mask}");
        });
    });
}

#[test]
fn two_changes_at_once_are_both_there() {
    everywhere(|| {
        on(2, || {
            file();
            set("/f", "trusted.gone", b"x").expect("memory");
            spawn(None, || {
                set("/f", "trusted.a", b"aa").expect("memory");
                remove("/f", "trusted.gone").expect("is there");
            });
            set("/f", "trusted.b", b"b").expect("memory");
            let theirs = get("/f", "trusted.a");
            assert!(matches!(
                theirs.as_deref(),
                Ok(b"aa") | Err(FsError::NoData)
            ));
            wait_for_ends(1);
            assert_eq!(get("/f", "trusted.a").as_deref(), Ok(&b"aa"[..]));
            assert_eq!(get("/f", "trusted.b").as_deref(), Ok(&b"b"[..]));
            assert_eq!(get("/f", "trusted.gone"), Err(FsError::NoData));
        });
    });
}
