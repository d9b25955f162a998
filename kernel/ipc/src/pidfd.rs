//! pidfd_open(2): processes as files.
//!
//! Guarantee: the file names one process, also after its pid has been given to another one, and can be read, as poll(2) says, once that process has
//! ended. Mechanism: the file has a reference to the process, whose pid is not given out again meanwhile; the end of the process wakes a
//! queue of its own, so however many files and epolls wait for that, a signal does not look at them.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::any::Any;

use cred::MemoryCharge;
use proc::exit;
use proc::process::Process;
use task::current::current;
use task::wait::Waiter;
use vfs::anon_inode::AnonInode;
use vfs::dynamic::Text;
use vfs::error::{FsError, Result};
use vfs::file::{File, FileOps, FileRef, Kind, o};
use vfs::poll::PollMask;
use vfs::put;

/// The open file of a process.
pub struct PidFile {
    process: Arc<Process>,
    inode: AnonInode,
    /// For the record of the process, which stays for as long.
    _memory: MemoryCharge,
}

/// Opens a process, with O_NONBLOCK if `flags` has that.
///
/// # Errors
/// `NoMemory`.
pub fn make(process: Arc<Process>, flags: u32) -> Result<FileRef> {
    mem::admit().map_err(|_| FsError::NoMemory)?;
    // What a poll needs.
    exit::ended(&process);
    let file = PidFile {
        process,
        inode: AnonInode::new(),
        _memory: MemoryCharge::new(current().payer(), size_of::<Process>()),
    };
    let flags = flags & o::NONBLOCK | o::RDWR;
    Ok(File::open(None, Kind::Other(Box::new(file)), flags))
}

/// The process that an open file names; `None` if the file is of another kind.
pub fn process(file: &FileRef) -> Option<&Arc<Process>> {
    Some(&file.ops_as::<PidFile>()?.process)
}

impl FileOps for PidFile {
    fn seekable(&self) -> bool {
        false
    }

    fn poll(&self, _: &File, waiter: Option<&mut Waiter>) -> PollMask {
        if let Some(waiter) = waiter {
            waiter.listen(exit::ended(&self.process));
        }
        if exit::has_ended(&self.process) {
            PollMask::READ
        } else {
            PollMask::NONE
        }
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn anon_inode(&self) -> Option<&AnonInode> {
        Some(&self.inode)
    }

    /// The pid is -1 once the process has been waited for.
    fn print_info(&self, _: &File, out: &mut Text) -> Result<()> {
        let pid = match self.process.is_reaped() {
            true => -1,
            false => i64::from(self.process.pid()),
        };
        put!(out, "Pid:\t{pid}\nNSpid:\t{pid}\n");
        Ok(())
    }

    fn label(&self) -> &'static str {
        "anon_inode:[pidfd]"
    }
}
