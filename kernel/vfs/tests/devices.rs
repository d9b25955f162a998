//! Device nodes: which opens reach a driver.
#![cfg(not(shuttle))]

mod support;
mod support_names;

use support::{Calls, on};
use support_names::set_mode;
use vfs::devices::{self, number};
use vfs::error::{FsError, Result};
use vfs::file::{Kind, o};
use vfs::inode::mode;
use vfs::place::Path;
use vfs::setattr::NewMode;
use vfs::tmpfs::{self, What};

/// A driver that refuses every open in a way of its own: it tells the minor number by its error.
fn refuse(node: &Path, _flags: u32) -> Result<Kind> {
    Err(match devices::minor(node.dentry.inode.rdev) {
        1 => FsError::Busy,
        _ => FsError::NoDevice,
    })
}

#[test]
fn character_devices_have_drivers_and_block_devices_have_none() {
    on(1, || {
        devices::set_open(refuse);
        let root = Calls::of_root();
        let top = root.find("/").unwrap();
        let open = |name: &str, kind, minor| {
            let what = What::Device(kind, number(1, minor));
            let new = NewMode::exact(0o600);
            tmpfs::create(root.cred(), &top, name.as_bytes(), &what, new).unwrap();
            set_mode(&format!("/{name}"), 0o600);
            root.open(&format!("/{name}"), o::RDONLY).err()
        };
        assert_eq!(open("one", mode::CHR, 1), Some(FsError::Busy));
        assert_eq!(open("two", mode::CHR, 2), Some(FsError::NoDevice));
        assert_eq!(open("disk", mode::BLK, 1), Some(FsError::NoDevAddr));
    });
}
