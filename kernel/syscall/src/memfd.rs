//! memfd_create(2), and the seals of fcntl(2).

use abi::raw::general as nr;
use hal::uaccess::{StrError, read_cstr};
use task::current::current;
use vfs::file::{File, FileRef, o};
use vfs::seals::Mappable;
use vfs::{memfd, seals};
use vm::space::{MapArgs, Source};
use vm::{EntryFlags, MapProt as Prot, ObjectRef};

use super::errno::Errno;
use super::fsutil::install;
use super::mm::in_space;
use crate::call::{Args, Handler};

/// The call of this file.
pub const HANDLERS: &[(u32, Handler)] = &[(nr::__NR_memfd_create, memfd_create)];

/// The longest name in bytes, its final NUL included.
const NAME_MAX: usize = 250;

/// memfd_create(2). There are no huge pages for files, so MFD_HUGETLB is unknown.
fn memfd_create(a: &mut Args) -> Result<u64, Errno> {
    let flags = a.uint(1);
    if flags & !(nr::MFD_CLOEXEC | nr::MFD_ALLOW_SEALING) != 0 {
        return Err(Errno::EINVAL);
    }
    let name = read_cstr(a.get(0), NAME_MAX).map_err(|e| match e {
        StrError::Fault => Errno::EFAULT,
        StrError::TooLong => Errno::EINVAL,
        StrError::NoMemory => Errno::ENOMEM,
    })?;
    let sealable = flags & nr::MFD_ALLOW_SEALING != 0;
    let file = memfd::create(&current().cred(), &name, sealable)?;
    let cloexec = if flags & nr::MFD_CLOEXEC != 0 {
        o::CLOEXEC
    } else {
        0
    };
    Ok(install(file, cloexec)?)
}

/// F_ADD_SEALS and F_GET_SEALS of fcntl(2).
pub(super) fn control(file: &File, cmd: u32, arg: u64) -> Result<u64, Errno> {
    if cmd == nr::F_GET_SEALS {
        return Ok(seals::get(file)?.into());
    }
    // As in Linux, the argument is an unsigned int, and more is refused.
    let seals = u32::try_from(arg).map_err(|_| Errno::EINVAL)?;
    seals::add(file, seals)?;
    Ok(0)
}

/// Maps pages of a file, `object` from an offset on, as far as its seals allow.
#[inline(never)]
pub(super) fn map_file<'a>(
    file: &FileRef,
    (object, offset): (&'a ObjectRef, u64),
    mut args: MapArgs<'a>,
) -> Result<u64, Errno> {
    let shared = args.flags.contains(EntryFlags::SHARED);
    let _kept = may_map(file, shared, args.prot, &mut args.maxprot)?;
    args.source = Source::Object(object, offset);
    in_space(|space| space.map(mem::vm(), &args))
}

/// Checks the seals of a file that is to be mapped, if it is as shared; `most` loses what mprotect must not permit later. What is returned is
/// to be kept until the mapping is made.
///
/// # Errors
/// EPERM where a seal forbids it.
fn may_map<'a>(
    file: &'a FileRef,
    shared: bool,
    prot: Prot,
    most: &mut Prot,
) -> Result<Option<Mappable<'a>>, Errno> {
    if !shared {
        return Ok(None);
    }
    let mappable = seals::admit_mapping(file, prot.contains(Prot::WRITE))?;
    if !mappable.may_write {
        *most = most.difference(Prot::WRITE);
    }
    Ok(Some(mappable))
}
