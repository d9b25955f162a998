//! Descriptors of processes: pidfd_open(2), pidfd_send_signal(2), pidfd_getfd(2) and CLONE_PIDFD.

use abi::raw::general as nr;
use alloc::sync::Arc;
use cred::LookAs;
use hal::uaccess::UserPtr;
use ipc::pidfd;
use mem::Space;
use proc::UserThreadExt;
use proc::fork::{ForkError, Opening};
use proc::ids;
use proc::process::Process;
use proc::signal::{self, code};
use task::current::current;
use vfs::error::FsError;
use vfs::file::{FileRef, o};

use super::credentials::not_permitted;
use super::errno::Errno;
use super::fsutil::{Slot, install, real_file};
use super::signal::{info_from_me, may, signal_or_zero, user_info};
use crate::call::{Args, Handler};

/// The calls of this file.
pub const HANDLERS: &[(u32, Handler)] = &[
    (nr::__NR_pidfd_open, open),
    (nr::__NR_pidfd_send_signal, send_signal),
    (nr::__NR_pidfd_getfd, get_fd),
];

/// pidfd_open(2). As on Linux 6.1, a thread that is no leader has none.
fn open(a: &mut Args) -> Result<u64, Errno> {
    let (pid, flags) = (a.int(0), a.uint(1));
    if flags & !o::NONBLOCK != 0 || pid <= 0 {
        return Err(Errno::EINVAL);
    }
    let pid = pid as u32;
    let Some(process) = ids::find_process(pid) else {
        let thread = ids::find_thread(pid).is_some();
        return Err(if thread { Errno::EINVAL } else { Errno::ESRCH });
    };
    Ok(install(pidfd::make(process, flags)?, o::CLOEXEC)?)
}

/// The descriptor that clone(2) opens with CLONE_PIDFD. It is taken back if the call fails.
pub(super) struct OpenedByClone {
    /// Where its number is stored.
    at: u64,
    reserved: Option<(Slot, FileRef)>,
}

impl OpenedByClone {
    pub(super) fn new(at: u64) -> Self {
        let reserved = None;
        OpenedByClone { at, reserved }
    }
}

impl Opening for OpenedByClone {
    fn prepare(&mut self, process: &Arc<Process>) -> Result<(), ForkError> {
        let file = pidfd::make(process.clone(), 0).map_err(|_| ForkError::NoMemory)?;
        let no_descriptor = |e| match e {
            FsError::TooManyFiles => ForkError::TooManyFiles,
            _ => ForkError::NoMemory,
        };
        let slot = Slot::new(0).map_err(no_descriptor)?;
        let fd = slot.reserve_number().map_err(no_descriptor)?;
        // From here on the drop takes it back.
        self.reserved = Some((slot, file));
        let stored = UserPtr::<i32>::new(self.at).write(&fd);
        stored.map_err(|_| ForkError::Fault)
    }

    fn complete(&mut self) {
        if let Some((slot, file)) = self.reserved.take() {
            let _ = slot.fill(Ok(file), o::CLOEXEC);
        }
    }
}

impl Drop for OpenedByClone {
    fn drop(&mut self) {
        if let Some((slot, _)) = self.reserved.take() {
            let _ = slot.fill(Err(FsError::Invalid), 0);
        }
    }
}

/// The process that an open file names.
///
/// # Errors
/// EBADF if it names none.
pub fn process_of(file: &FileRef) -> Result<&Process, Errno> {
    pidfd::process(file).map(|p| &**p).ok_or(Errno::EBADF)
}

/// pidfd_send_signal(2): kill(2) without a siginfo, else rt_sigqueueinfo(2). The file is one of [`open`], or /proc/PID.
fn send_signal(a: &mut Args) -> Result<u64, Errno> {
    if a.uint(3) != 0 {
        return Err(Errno::EINVAL);
    }
    let file = real_file(a.int(0))?;
    // A directory of /proc may outlive its process.
    let named = fs::procfs::named_by(&file);
    let process = match &named {
        Some(process) => process.as_deref(),
        None => Some(process_of(&file)?),
    };
    let signo = signal_or_zero(a.uint(1));
    let info = if a.get(2) == 0 {
        info_from_me(signo.unwrap_or(0), code::USER)
    } else {
        let number: u32 = UserPtr::new(a.get(2)).read()?;
        if number != a.uint(1) {
            return Err(Errno::EINVAL);
        }
        let own = process.is_some_and(|p| core::ptr::eq(p, &**current().process()));
        user_info(a.get(2), signo.unwrap_or(0), own)?
    };
    let process = process.filter(|p| !p.is_reaped()).ok_or(Errno::ESRCH)?;
    let signo = signo?;
    may(process, &process.cred(), signo)?;
    if signo != 0 {
        signal::queue_process(process, info)?;
    }
    Ok(0)
}

/// pidfd_getfd(2): a descriptor of the caller's for an open file of the process, which the caller may look into.
fn get_fd(a: &mut Args) -> Result<u64, Errno> {
    if a.uint(2) != 0 {
        return Err(Errno::EINVAL);
    }
    let named = real_file(a.int(0))?;
    let process = process_of(&named)?;
    let may_look = || -> Result<Option<Arc<Space>>, Errno> {
        let shown = process.image_shown(None, LookAs::Real);
        Ok(shown.map_err(not_permitted)?.space)
    };
    loop {
        if process.is_reaped() {
            return Err(Errno::ESRCH);
        }
        let before = may_look()?;
        let file = process.open_file(a.int(1));
        // The program that opened it may be another than the one that was asked about, even if the caller may look into the one after
        // that. Each program has memory of its own, and that of the first is held meanwhile.
        let after = may_look()?;
        let same = match (&before, &after) {
            (Some(before), Some(after)) => Arc::ptr_eq(before, after),
            (before, after) => before.is_none() && after.is_none(),
        };
        if same {
            return Ok(install(file.ok_or(Errno::EBADF)?, o::CLOEXEC)?);
        }
    }
}
