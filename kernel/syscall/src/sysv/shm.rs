//! shmget(2), shmat(2), shmdt(2), shmctl(2).

use abi::raw::general as nr;
use cred::Cap;
use hal::USER_END;
use hal::uaccess::UserPtr;
use ipc::sysv::registry::Wanted;
use ipc::sysv::shm::{self, Segment, Shown};
use ksync::atomic::Ordering::Relaxed;
use proc::{Resource, UserThreadExt};
use task::current::current;
use vm::space::{MapArgs, MapFlags, Source};
use vm::{EntryFlags, MapProt as Prot, VmError};

use super::{as_caller, command, new_owner, pair, perm_words};
use crate::call::{Args, Handler};
use crate::errno::{Errno, vm as errno};
use crate::mlock::{lock_by_default, may_lock};
use crate::mm::{PAGE, admit_map, pages, space};

/// The calls of this file.
pub const HANDLERS: &[(u32, Handler)] = &[
    (nr::__NR_shmget, shmget),
    (nr::__NR_shmat, shmat),
    (nr::__NR_shmdt, shmdt),
    (nr::__NR_shmctl, shmctl),
];

/// Flags of shmget(2) and shmat(2), with Linux's numbers.
mod flag {
    pub const HUGETLB: u32 = 0o4000;
    pub const RDONLY: u32 = 0o10000;
    pub const RND: u32 = 0o20000;
    pub const REMAP: u32 = 0o40000;
    pub const EXEC: u32 = 0o100000;
}

/// Commands of shmctl(2) alone, with Linux's numbers.
mod only {
    pub const LOCK: i32 = 11;
    pub const UNLOCK: i32 = 12;
    pub const STAT: i32 = 13;
    pub const INFO: i32 = 14;
    pub const STAT_ANY: i32 = 15;
}

/// Words of a `struct shmid64_ds`.
const DS: usize = 14;

/// shmget(2). SHM_NORESERVE asks for what is always so. The pool of huge pages is empty, so SHM_HUGETLB fails.
fn shmget(a: &mut Args) -> Result<u64, Errno> {
    let (key, size, flags) = (a.int(0), a.get(1), a.uint(2));
    let wanted = Wanted { key, flags };
    let huge = flags & flag::HUGETLB != 0;
    let id = as_caller(|caller| {
        if huge && !caller.cred.capable(Cap::IpcLock) && !caller.cred.in_group(0) {
            return Err(Errno::EPERM);
        }
        if huge {
            return Err(Errno::ENOMEM);
        }
        Ok(shm::get(wanted, size, caller)?)
    })?;
    Ok(id as u64)
}

/// Where shmat(2) is to map: the address, and how binding it is.
///
/// # Errors
/// EINVAL.
fn placement(addr: u64, flags: u32) -> Result<(u64, MapFlags), Errno> {
    let remap = flags & flag::REMAP != 0;
    if addr == 0 && remap || !addr.is_multiple_of(PAGE) && flags & flag::RND == 0 {
        return Err(Errno::EINVAL);
    }
    let at = addr / PAGE * PAGE;
    if at == 0 && remap {
        return Err(Errno::EINVAL);
    }
    let fixed = addr != 0;
    let place = MapFlags {
        fixed,
        noreplace: fixed && !remap,
        ..MapFlags::default()
    };
    Ok((at, place))
}

/// shmat(2): returns the address.
fn shmat(a: &mut Args) -> Result<u64, Errno> {
    let (id, flags) = (a.int(0), a.uint(2));
    let (addr, mut place) = placement(a.get(1), flags)?;
    let (writes, executes) = (flags & flag::RDONLY == 0, flags & flag::EXEC != 0);
    let held = as_caller(|caller| shm::hold(id, (writes, executes), caller))?;
    let len = pages(held.size()).ok_or(Errno::ENOMEM)?;
    if place.fixed {
        let end = addr.checked_add(len).ok_or(Errno::EINVAL)?;
        if addr < vm::space::USER_LOW {
            return Err(Errno::EPERM);
        }
        if end > USER_END {
            return Err(Errno::ENOMEM);
        }
    }
    let mut prot = Prot::READ;
    prot.set(Prot::WRITE, writes);
    prot.set(Prot::EXEC, executes);
    let maxprot = if writes {
        Prot::all()
    } else {
        Prot::all().difference(Prot::WRITE)
    };
    let mut kind = EntryFlags::SHARED;
    lock_by_default(&mut kind, &mut place);
    if kind.contains(EntryFlags::LOCKED) {
        may_lock(&*space()?, len, None, Errno::EAGAIN)?;
    }
    let replaced = place.fixed && !place.noreplace;
    admit_map(len, false, replaced.then_some(addr))?;
    let args = MapArgs {
        addr,
        len,
        prot,
        maxprot,
        flags: kind,
        place,
        source: Source::Object(held.object(), 0),
    };
    // What is mapped there already is no error of mmap(2), whose EEXIST this would be.
    space()?.map(mem::vm(), &args).map_err(|why| match why {
        VmError::Exists => Errno::EINVAL,
        why => errno(why),
    })
}

/// shmdt(2). As in Linux, it detaches also what mprotect(2) or munmap(2) has left of an attachment.
fn shmdt(a: &mut Args) -> Result<u64, Errno> {
    let addr = a.get(0);
    if !addr.is_multiple_of(PAGE) {
        return Err(Errno::EINVAL);
    }
    let unmapped = space()?.unmap_object(mem::vm(), addr, &shm::is_segment);
    unmapped.map_err(|why| match why {
        VmError::NotMapped => Errno::EINVAL,
        why => errno(why),
    })?;
    Ok(0)
}

/// shmctl(2).
fn shmctl(a: &mut Args) -> Result<u64, Errno> {
    let (id, cmd, buf) = (a.int(0), a.int(1), a.get(2));
    if id < 0 || cmd < 0 {
        return Err(Errno::EINVAL);
    }
    match cmd {
        command::INFO => return info(buf),
        only::INFO => return totals(buf),
        command::STAT => {
            let shown = as_caller(|c| shm::registry().find(id)?.stat(false, c))?;
            UserPtr::new(buf).write(&words(&shown))?;
        }
        only::STAT | only::STAT_ANY => {
            let shown = as_caller(|c| {
                let segment = shm::registry().at_argument(id)?;
                Segment::stat(&segment, cmd == only::STAT_ANY, c)
            })?;
            UserPtr::new(buf).write(&words(&shown))?;
            return Ok(shown.perm.id as u64);
        }
        command::SET => {
            let words: [u64; DS] = UserPtr::new(buf).read()?;
            as_caller(|c| shm::set(id, new_owner(&words), c))?;
        }
        command::REMOVE => as_caller(|c| shm::remove(id, c))?,
        only::LOCK | only::UNLOCK => {
            let limit = current().process().rlimit(Resource::Memlock);
            as_caller(|c| shm::lock(id, cmd == only::LOCK, limit, c))?;
        }
        _ => return Err(Errno::EINVAL),
    }
    Ok(0)
}

/// The words of a `struct shmid64_ds`.
fn words(s: &Shown) -> [u64; DS] {
    let [attached, detached, changed] = s.times;
    let mut out = [0; DS];
    out[..6].copy_from_slice(&perm_words(&s.perm));
    out[6..12].copy_from_slice(&[
        s.size,
        attached,
        detached,
        changed,
        pair(s.maker, s.last_pid),
        s.attached,
    ]);
    out
}

/// IPC_INFO: a `struct shminfo64`.
fn info(buf: u64) -> Result<u64, Errno> {
    let most = shm::MAX_SEGMENTS.load(Relaxed);
    let mut out = [0u64; 9];
    out[..5].copy_from_slice(&[
        shm::MAX_BYTES.load(Relaxed),
        1,
        most,
        most,
        shm::MAX_PAGES.load(Relaxed),
    ]);
    UserPtr::new(buf).write(&out)?;
    Ok(shm::registry().highest().into())
}

/// SHM_INFO: a `struct shm_info`.
fn totals(buf: u64) -> Result<u64, Errno> {
    let t = shm::totals();
    UserPtr::new(buf).write(&[t.segments as u64, t.pages, t.resident, 0, 0, 0])?;
    Ok(shm::registry().highest().into())
}
