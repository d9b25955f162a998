//! The tree at boot: root file system, devices, the initramfs, and init's first descriptors.

use alloc::string::String;
use alloc::sync::Arc;

use cred::Cred;
use mem::Initrd;
use vfs::context::{self, FsContext, FsUse, Origin, boot_root};
use vfs::error::{FsError, Result};
use vfs::fdtable::FdTable;
use vfs::file::o;
use vfs::inode::mode;
use vfs::mount::{self, FsKind, Path};
use vfs::setattr::NewMode;
use vfs::tmpfs::{self, Settings, What};
use vfs::walk::{Walk, Want};
use vfs::{dentry, devices, open, pipe, quota};

use super::initramfs::{self, UnpackError};
use super::procfs;
use crate::devfs;

/// What the first process begins with.
pub struct Boot {
    /// The console, three times.
    pub files: Arc<FdTable>,
    /// The root, as root and working directory.
    pub fs: FsUse,
}

/// Sets everything up: the root with the initramfs's content, and the devices on /dev.
///
/// The memory of the ramdisk is given back when it has been unpacked.
pub fn init(initrd: &Initrd, cmdline: &[u8]) -> Result<Boot, UnpackError> {
    let ncpus = hal::cpu::count();
    drivers::random::init(ncpus);
    devices::set_open(devfs::open);
    dentry::init();
    tmpfs::init(ncpus);
    pipe::init(ncpus);
    procfs::set_command_line(cmdline);
    let fs = tmpfs::new_super(FsKind::Tmpfs, Settings::new(0o755)).map_err(UnpackError::Setup)?;
    let (root, limits) = (fs.root.clone(), [fs.quota, fs.inodes]);
    for limit in limits.into_iter().flatten() {
        // What the image brings may be more than half of memory.
        quota::resize(limit, u64::from(u32::MAX)).map_err(UnpackError::Setup)?;
    }
    let mount = mount::attach(fs, root.clone(), None, String::from("rootfs"), 0)
        .map_err(UnpackError::Setup)?;
    context::set_root(Path {
        mount,
        dentry: root,
    });
    if let Some(image) = initrd.bytes {
        initramfs::unpack(image)?;
        mem::release_initrd();
    }
    for limit in limits.into_iter().flatten() {
        // Half of what the image has left, and what it takes.
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

/// Makes the device nodes and shows them on /dev.
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
    Ok(())
}

/// The descriptors that the first process begins with: the console, three times.
fn first_files() -> Result<Arc<FdTable>> {
    let cred = Cred::root();
    let root = boot_root()?;
    let walk = Walk {
        cred: &cred,
        root: Origin::At(root),
        base: Origin::At(root),
    };
    // Not as the controlling terminal: that is for init to choose.
    let console = open::open(
        &walk,
        b"/dev/console",
        o::RDWR | o::NOCTTY,
        NewMode::exact(0),
    )?;
    let files = FdTable::new();
    for _ in 0..3 {
        files.add(console.clone(), false, 0, 3)?;
    }
    Ok(files)
}
