//! rseq(2): restartable sequences.

use abi::raw::general as nr;
use proc::UserThreadExt;
use proc::rseq::{self, RseqError};
use task::current::current;

use super::errno::Errno;
use crate::call::{Args, Handler};

/// The call of this file.
pub const HANDLERS: &[(u32, Handler)] = &[(nr::__NR_rseq, call)];

const UNREGISTER: u32 = 1;

impl From<RseqError> for Errno {
    fn from(e: RseqError) -> Errno {
        match e {
            RseqError::Invalid => Errno::EINVAL,
            RseqError::NotPermitted => Errno::EPERM,
            RseqError::Busy => Errno::EBUSY,
            RseqError::Fault => Errno::EFAULT,
        }
    }
}

fn call(a: &mut Args) -> Result<u64, Errno> {
    let (at, len, flags, signature) = (a.get(0), a.uint(1), a.uint(2), a.uint(3));
    if flags & !UNREGISTER != 0 || u64::from(len) != rseq::SIZE {
        return Err(Errno::EINVAL);
    }
    let me = current();
    if flags == UNREGISTER {
        rseq::unregister(me.rseq(), at, signature)?;
    } else {
        rseq::register(&me, me.rseq(), at, signature)?;
    }
    Ok(0)
}
