//! The file systems at boot: the root, the device nodes on /dev, the content of the initramfs, and init's first
//! descriptors.

use alloc::string::String;
use alloc::sync::Arc;

use cred::Cred;
use mem::Initrd;
use vfs::context::{self, FsContext, FsUse, Origin, boot_root};
use vfs::error::{FsError, Result};
use vfs::fdtable::FdTable;
use vfs::file::o;
use vfs::inode::mode;
use vfs::mount;
use vfs::place::Path;
use vfs::setattr::NewMode;
use vfs::superblock::FsKind;
use vfs::tmpfs::{self, Settings, What};
use vfs::walk::{Walk, Want};
use vfs::{devices, memfd, open, quota};

use super::initramfs::{self, UnpackError};
use super::procfs;
use crate::devfs;

/// What init begins with.
pub struct Boot {
    /// Its descriptors: 0, 1 and 2 are the console.
    pub files: Arc<FdTable>,
    /// Its root and working directory, both the root of the root file system.
    pub fs: FsUse,
}

/// Mounts the root file system, unpacks the initramfs into it, frees the memory of the RAM disk and mounts the device
/// nodes on /dev. Called once, by the boot thread, before init.
///
/// # Errors
/// See [`UnpackError`].
pub fn init(initrd: &Initrd, cmdline: &[u8]) -> Result<Boot, UnpackError> {
    let ncpus = hal::cpu::count();
    drivers::random::init(ncpus);
    devices::set_open(devfs::open);
    vfs::init(ncpus);
    ipc::init(ncpus);
    procfs::set_command_line(cmdline);
    let fs = tmpfs::new_super(FsKind::Tmpfs, Settings::new(0o755)).map_err(UnpackError::Setup)?;
    let limits = [fs.quota, fs.inodes];
    for limit in limits.into_iter().flatten() {
        // The image may need more than the default limit of half of memory.
        quota::resize(limit, u64::from(u32::MAX)).map_err(UnpackError::Setup)?;
    }
    context::mount_root(fs).map_err(UnpackError::Setup)?;
    memfd::mount().map_err(UnpackError::Setup)?;
    ipc::mqueue::mount().map_err(UnpackError::Setup)?;
    if let Some(image) = initrd.bytes {
        initramfs::unpack(image)?;
        mem::release_initrd();
    }
    for limit in limits.into_iter().flatten() {
        // The default limit is half of all memory; with half of what the image uses added, half of the memory that
        // the image leaves is free for new files.
        quota::resize(limit, quota::default_limit() + limit.used() / 2)
            .map_err(UnpackError::Setup)?;
    }
    mount_devices().map_err(UnpackError::Setup)?;
    let files = first_files().map_err(UnpackError::Setup)?;
    Ok(Boot {
        files,
        fs: FsContext::boot(),
    })
}

/// Makes the file system of device nodes and mounts it on /dev, which is made unless the image has it.
fn mount_devices() -> Result<()> {
    let fs = tmpfs::new_super(FsKind::Devtmpfs, Settings::new(0o755))?;
    devices::set_nodes(fs.clone());
    let cred = Cred::root();
    let root = boot_root()?;
    match tmpfs::create(&cred, root, b"dev", &What::Dir, NewMode::exact(0o755)) {
        Ok(_) | Err(FsError::Exists) => {}
        Err(e) => return Err(e),
    }
    let walk = Walk {
        cred: &cred,
        root: Origin::At(root),
        base: Origin::At(root),
    };
    let over = walk.find(b"/dev", Want::DIRECTORY)?;
    let top = fs.root.clone();
    let mount = mount::attach(fs, top.clone(), Some(over), String::from("devtmpfs"), 0)?;
    let dir = Path { mount, dentry: top };
    for &(name, number, perm) in devfs::NODES {
        tmpfs::create(
            &cred,
            &dir,
            name.as_bytes(),
            &What::Device(mode::CHR, number),
            NewMode::exact(perm),
        )?;
    }
    for (name, to) in [
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
    ] {
        tmpfs::create(
            &cred,
            &dir,
            name.as_bytes(),
            &What::Link(to.as_bytes()),
            NewMode::exact(0o777),
        )?;
    }
    tmpfs::create(&cred, &dir, b"shm", &What::Dir, NewMode::exact(0o1777))?;
    tmpfs::create(&cred, &dir, b"pts", &What::Dir, NewMode::exact(0o755))?;
    Ok(())
}

/// Makes init's descriptors: 0, 1 and 2 are the console.
fn first_files() -> Result<Arc<FdTable>> {
    let cred = Cred::root();
    let root = boot_root()?;
    let walk = Walk {
        cred: &cred,
        root: Origin::At(root),
        base: Origin::At(root),
    };
    // O_NOCTTY: init itself decides which terminal controls its session.
    let console = open::open(
        &walk,
        b"/dev/console",
        o::RDWR | o::NOCTTY,
        NewMode::exact(0),
        &|| Ok(()),
    )?;
    let files = FdTable::new();
    for _ in 0..3 {
        files.add(console.clone(), false, 0, 3)?;
    }
    Ok(files)
}
