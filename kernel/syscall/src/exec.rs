//! execve(2) and execveat(2), and the start of init.

use alloc::format;
use alloc::vec::Vec;

use abi::raw::general as nr;
use cred::MemoryCharge;
use elfload::AuxInfo;
use elfload::stack::Strings;
use hal::uaccess::{self, StrError, UserPtr};
use hal::{PAGE_SIZE, UserFrame};
use proc::exec::{self, ExecFailed, PRIVILEGED_STACK};
use proc::image::{self, ExecError, Manner, Request};
use proc::rlimit::Resource;
use proc::{UserThreadExt, account, with_fs};
use task::account::charge_large;
use task::current::current;
use vfs::ExecFile;
use vfs::inode::mode;
use vfs::walk::Want;

use super::errno::Errno;
use super::fsutil::{Caller, at, file, user_path, with_files};
use crate::call::{Args, Handler};

/// The calls of this file, which replace the full register frame.
pub const FULL_FRAME: &[(u32, Handler)] =
    &[(nr::__NR_execve, execve), (nr::__NR_execveat, execveat)];

/// Linux's MAX_ARG_STRLEN: the longest argument in bytes, with its NUL.
const ARG_MAX: usize = 128 << 10;
/// Bytes that arguments and environment together may always have, however small the stack's limit is.
const ARGS_MIN: u64 = 128 << 10;
/// Most bytes that arguments and environment together may have: three quarters of Linux's default stack.
const ARGS_MAX: u64 = 6 << 20;

/// Reads a vector of strings, which a null pointer ends, from user memory. Address 0 stands for an empty vector.
/// `limit` is the space for the strings in bytes. Also returns the charge for their memory, if that is more than a
/// page.
///
/// # Errors
/// EFAULT, E2BIG, ENOMEM.
fn read_strings(addr: u64, limit: usize) -> Result<(Strings, MemoryCharge), Errno> {
    let mut strings = Strings::new();
    let (mut room, mut charge) = (PAGE_SIZE, MemoryCharge::NONE);
    if addr == 0 {
        return Ok((strings, charge));
    }
    for i in 0.. {
        let at: u64 = UserPtr::new(addr).add(i).read()?;
        if at == 0 {
            break;
        }
        let s = uaccess::read_cstr(at, ARG_MAX).map_err(|e| match e {
            StrError::Fault => Errno::EFAULT,
            StrError::TooLong => Errno::E2BIG,
            StrError::NoMemory => Errno::ENOMEM,
        })?;
        strings
            .push(&s, limit)
            .map_err(|e| Errno::from(ExecError::from(e)))?;
        if strings.room() > room {
            room = strings.room();
            charge = charge_large(room);
        }
    }
    Ok((strings, charge))
}

/// execve(2). As on Linux, EAGAIN if the caller has changed to a user with too many threads (RLIMIT_NPROC). If it succeeds, the
/// registers in `a` are the new program's.
fn execve(a: &mut Args) -> Result<u64, Errno> {
    let path = user_path(a.get(0))?;
    execute([a.get(1), a.get(2)], a, || {
        Ok(Program::named(image::open(&path)?, path))
    })
}

/// execveat(2): as execve(2), for a file that is named from a directory, or by its descriptor.
fn execveat(a: &mut Args) -> Result<u64, Errno> {
    let (dirfd, flags) = (a.int(0), a.uint(4));
    if flags & !(at::EMPTY_PATH | at::SYMLINK_NOFOLLOW) != 0 {
        return Err(Errno::EINVAL);
    }
    let path = user_path(a.get(1))?;
    execute([a.get(2), a.get(3)], a, || open_at(dirfd, path, flags))
}

/// A program to be executed.
struct Program {
    file: ExecFile,
    /// The name that it is called by.
    name: Vec<u8>,
    /// Whether the name cannot be opened once the program runs.
    hidden: bool,
}

impl Program {
    fn named(file: ExecFile, name: Vec<u8>) -> Program {
        Program {
            file,
            name,
            hidden: false,
        }
    }
}

/// Opens the file of an execveat. As in Linux, one that is named by or from a descriptor is called by its name below /dev/fd; if
/// the descriptor is closed by execve, an interpreter of a script could not open that.
///
/// # Errors
/// Those of a lookup; ELOOP for a symbolic link that is not to be followed; EACCES for what has no path, such as a pipe.
fn open_at(dirfd: i32, path: Vec<u8>, flags: u32) -> Result<Program, Errno> {
    let follow = flags & at::SYMLINK_NOFOLLOW == 0;
    let want = Want {
        follow,
        directory: false,
    };
    let own = path.is_empty() && flags & at::EMPTY_PATH != 0;
    let place = if own && dirfd != at::FDCWD {
        file(dirfd)?.path.clone().ok_or(Errno::EACCES)?
    } else {
        Caller::now().find(dirfd, &path, flags, want)?
    };
    if !follow && place.dentry.inode.kind() == mode::LNK {
        return Err(Errno::ELOOP);
    }
    let opened = ExecFile::at(place)?;
    if dirfd == at::FDCWD || path.first() == Some(&b'/') {
        return Ok(Program::named(opened, path));
    }
    let mut name = format!("/dev/fd/{dirfd}").into_bytes();
    if !own {
        name.push(b'/');
        name.extend(path);
    }
    Ok(Program {
        file: opened,
        name,
        hidden: with_files(|files| files.cloexec(dirfd))?,
    })
}

/// Runs the program that `open` finds, with the arguments and the environment at two user addresses. `a` receives its first
/// registers.
///
/// # Errors
/// As for execve(2).
fn execute(
    [argv, envp]: [u64; 2],
    a: &mut Args,
    open: impl FnOnce() -> Result<Program, Errno>,
) -> Result<u64, Errno> {
    if !account::may_exec(&current()) {
        return Err(Errno::EAGAIN);
    }
    let limit = argument_limit();
    let (mut argv, _argv_charge) = read_strings(argv, limit)?;
    // Both together have that much.
    let (envp, _envp_charge) = read_strings(envp, limit.saturating_sub(argv.footprint()))?;
    if argv.count() == 0 {
        // A program may rely on its own name being there; Linux adds an empty one, too.
        argv.push(b"", limit)
            .map_err(|e| Errno::from(ExecError::from(e)))?;
    }
    run(open()?, argv, envp, a)?;
    Ok(0)
}

fn argument_limit() -> usize {
    let stack = current().process().rlimit(Resource::Stack);
    (stack / 4).clamp(ARGS_MIN, ARGS_MAX) as usize
}

/// Makes the calling process run a program. `frame` receives its first registers.
///
/// # Errors
/// As for execve(2); the old program goes on.
fn run(program: Program, argv: Strings, envp: Strings, frame: &mut UserFrame) -> Result<(), Errno> {
    let me = current();
    let p = me.process();
    let Program {
        file,
        name: path,
        hidden,
    } = program;
    let name = path.rsplit(|&b| b == b'/').next().unwrap_or(&path).to_vec();
    let limit = argument_limit().saturating_sub(envp.footprint());
    let found = image::find(Request {
        file,
        name: path,
        hidden,
        argv,
        envp,
        limit,
    })?;
    // Until the program runs.
    let mut unshared = None;
    let after = me.cred().after_exec(found.file().set_ids(), || {
        unshared = with_fs(|fs| fs.keep_unshared()).flatten();
        unshared.is_none()
    });
    let (hwcap, hwcap2) = hal::hwcap();
    let aux = AuxInfo {
        uid: after.cred.uid.into(),
        euid: after.cred.euid.into(),
        gid: after.cred.gid.into(),
        egid: after.cred.egid.into(),
        secure: after.secure,
        hwcap,
        hwcap2,
        ..AuxInfo::default()
    };
    let [stack, space_limit, data_limit] =
        p.rlimits([Resource::Stack, Resource::As, Resource::Data]);
    let loaded = found.load(&Manner {
        stack_limit: if after.secure {
            stack.min(PRIVILEGED_STACK)
        } else {
            stack
        },
        space_limit,
        data_limit,
        shake: after.plain_layout || p.randomize(),
        aux,
    })?;
    match exec::commit(loaded, &name, after, frame) {
        Ok(()) => Ok(()),
        Err(ExecFailed::NoMemory) => Err(Errno::ENOMEM),
        // The thread dies before it could see this.
        Err(ExecFailed::Dying) => Err(Errno::EINTR),
    }
}

/// The environment that Linux gives init, before what the command line adds.
const INIT_ENV: [&[u8]; 2] = [b"HOME=/", b"TERM=linux"];

/// Makes the calling thread, whose process has no address space yet, run init; returns init's first registers.
///
/// # Errors
/// As for execve(2).
pub fn exec_init(path: &[u8], args: &[Vec<u8>], env: &[Vec<u8>]) -> Result<UserFrame, Errno> {
    let limit = ARGS_MAX as usize;
    let gather = |front: &[&[u8]], rest: &[Vec<u8>]| {
        let mut s = Strings::new();
        for word in front.iter().copied().chain(rest.iter().map(Vec::as_slice)) {
            s.push(word, limit)
                .map_err(|e| Errno::from(ExecError::from(e)))?;
        }
        Ok::<Strings, Errno>(s)
    };
    let mut frame = UserFrame::new_user(0, 0);
    let envp = gather(&INIT_ENV, env)?;
    run(
        Program::named(image::open(path)?, path.to_vec()),
        gather(&[path], args)?,
        envp,
        &mut frame,
    )?;
    Ok(frame)
}
