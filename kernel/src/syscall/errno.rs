//! How the layers' errors look to programs.

use abi::Errno;
use vm::VmError;

use crate::mm::NoMemory;
use crate::mm::exec::ExecError;

impl From<NoMemory> for Errno {
    fn from(_: NoMemory) -> Errno {
        Errno::ENOMEM
    }
}

/// The VM's errors as mmap(2) and its kin have them.
pub fn vm(e: VmError) -> Errno {
    match e {
        VmError::NoMemory | VmError::NotMapped => Errno::ENOMEM,
        VmError::Exists => Errno::EEXIST,
        VmError::Invalid => Errno::EINVAL,
        VmError::Denied => Errno::EACCES,
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
