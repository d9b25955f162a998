//! memfd_create(2), and the seals of fcntl(2).

use abi::raw::general as nr;
use hal::uaccess::{StrError, read_cstr};
use task::current::current;
use vfs::file::{File, FileRef, o};
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

/// Maps pages of a file, `object` from an offset on. The seals of one that is mapped as shared are checked, and admit no other until the
/// mapping is made; mprotect does not permit later what they forbid.
///
/// # Errors
/// EPERM where a seal forbids it; those of the mapping.
#[inline(never)]
pub(super) fn map_file<'a>(
    file: &FileRef,
    (object, offset): (&'a ObjectRef, u64),
    mut args: MapArgs<'a>,
) -> Result<u64, Errno> {
    let writes = args.prot.contains(Prot::WRITE);
    let shared = args.flags.contains(EntryFlags::SHARED);
    let mappable = shared.then(|| seals::admit_mapping(file, writes));
    let mappable = mappable.transpose()?;
    if mappable
        .as_ref()
        .is_some_and(|mappable| !mappable.may_write)
    {
        args.maxprot = args.maxprot.difference(Prot::WRITE);
    }
    args.source = Source::Object(object, offset);
    in_space(|space| space.map(mem::vm(), &args))
}
