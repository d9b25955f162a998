//! The errno that programs get for the errors of each layer.

use hal::uaccess::UserFault;
use mem::NoMemory;
use proc::image::ExecError;
use vm::VmError;

abi::errno_type! {
    /// A Linux error number.
    pub struct Errno;
}

impl From<UserFault> for Errno {
    fn from(_: UserFault) -> Errno {
        Errno::EFAULT
    }
}

impl From<NoMemory> for Errno {
    fn from(_: NoMemory) -> Errno {
        Errno::ENOMEM
    }
}

/// The errno of a VM error, for mmap(2) and the other calls on memory.
pub fn vm(e: VmError) -> Errno {
    match e {
        VmError::NoMemory | VmError::NotMapped => Errno::ENOMEM,
        VmError::Exists => Errno::EEXIST,
        VmError::Invalid => Errno::EINVAL,
        VmError::Denied => Errno::EACCES,
        VmError::Refused => Errno::EPERM,
    }
}

impl From<ExecError> for Errno {
    fn from(e: ExecError) -> Errno {
        match e {
            ExecError::File(e) => e.into(),
            ExecError::Format(_) | ExecError::Script => Errno::ENOEXEC,
            ExecError::Loop => Errno::ELOOP,
            ExecError::BadInterp => Errno::ELIBBAD,
            ExecError::TooBig => Errno::E2BIG,
            ExecError::NoMemory | ExecError::Space => Errno::ENOMEM,
        }
    }
}
