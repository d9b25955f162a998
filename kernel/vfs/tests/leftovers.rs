//! What takes too long to free at once is freed by the background thread.
#![cfg(not(shuttle))]

mod support;
mod support_names;

use std::sync::Arc;

use cred::Payer;
use support::{Calls, on};
use support_names::{free_all, mount_new, umount};
use vfs::dentry::Dentry;
use vfs::leftover::finish;
use vfs::tmpfs::Settings;

#[test]
fn a_long_chain_of_removed_directories_is_left() {
    on(1, || {
        let inode = Calls::of_root().find("/").unwrap().dentry.inode.clone();
        let before = Arc::strong_count(&inode);
        for (length, left) in [(20, false), (200, true)] {
            let mut end = None;
            for _ in 0..length {
                end = Some(Dentry::new(end, b"d", inode.clone(), Payer::NOBODY));
            }
            drop(end);
            assert_eq!(Arc::strong_count(&inode) > before, left, "{length}");
            assert_eq!(finish(), left, "{length}");
            assert_eq!(Arc::strong_count(&inode), before);
        }
    });
}

#[test]
fn the_pages_of_a_file_system_that_has_gone_are_left() {
    on(1, || {
        let root = Calls::of_root();
        root.mkdir("/m").unwrap();
        let mut settings = Settings::new(0o755);
        settings.limit = Some(20);
        mount_new("/m", settings, 0).unwrap();
        root.create("/m/f").unwrap();
        root.write("/m/f", 0, &[1; 3 * 4096]).unwrap();
        let quota = root.find("/m").unwrap().mount.fs.quota.unwrap();
        free_all();
        assert_eq!((quota.used(), finish()), (3, false));
        umount("/m", false).unwrap();
        for _ in 0..5 {
            mem::epoch().drain();
        }
        assert_eq!(quota.used(), 3, "grace periods alone do not free them");
        assert!(finish());
        free_all();
        assert_eq!(quota.used(), 0);
    });
}
