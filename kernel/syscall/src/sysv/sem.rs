//! semget(2), semop(2), semtimedop(2), semctl(2).

use abi::raw::general as nr;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;

use hal::uaccess::UserPtr;
use ipc::sysv::registry::Wanted;
use ipc::sysv::sem::undo::List;
use ipc::sysv::sem::{self, Operation, Set, Shown};
use ksync::atomic::{AtomicU64, Ordering::Relaxed};
use proc::{UndoSlot, sem_undo};
use task::park::Deadline;
use zerocopy::IntoBytes;

use super::{as_caller, command, new_owner, perm_words};
use crate::call::{Args, Handler};
use crate::errno::Errno;
use crate::time::read_timespec;

/// The calls of this file.
pub const HANDLERS: &[(u32, Handler)] = &[
    (nr::__NR_semget, semget),
    (nr::__NR_semop, |a: &mut Args| operate(a, Deadline::Never)),
    (nr::__NR_semtimedop, semtimedop),
    (nr::__NR_semctl, semctl),
];

/// Commands of semctl(2) alone, with Linux's numbers.
mod only {
    pub const GETPID: i32 = 11;
    pub const GETVAL: i32 = 12;
    pub const GETALL: i32 = 13;
    pub const GETNCNT: i32 = 14;
    pub const GETZCNT: i32 = 15;
    pub const SETVAL: i32 = 16;
    pub const SETALL: i32 = 17;
    pub const STAT: i32 = 18;
    pub const INFO: i32 = 19;
    pub const STAT_ANY: i32 = 20;
}

/// Words of a `struct semid64_ds`.
const DS: usize = 13;

fn semget(a: &mut Args) -> Result<u64, Errno> {
    let (key, len, flags) = (a.int(0), a.int(1), a.uint(2));
    let id = as_caller(|caller| sem::get(Wanted { key, flags }, len, caller))?;
    Ok(id as u64)
}

fn semtimedop(a: &mut Args) -> Result<u64, Errno> {
    // As in Linux, the time is read before all else, and a wait for no time at all is one.
    let deadline = match a.get(3) {
        0 => Deadline::Never,
        at => Deadline::after(read_timespec(at)?),
    };
    operate(a, deadline)
}

/// A vector with room for `len`.
fn room<T>(len: usize) -> Result<Vec<T>, Errno> {
    let mut room = Vec::new();
    room.try_reserve_exact(len).map_err(|_| Errno::ENOMEM)?;
    Ok(room)
}

/// The rest of both calls. A signal ends the wait with EINTR, whatever its handler's flags.
fn operate(a: &mut Args, deadline: Deadline) -> Result<u64, Errno> {
    let (id, at, count) = (a.int(0), a.get(1), u64::from(a.uint(2)));
    if id < 0 {
        return Err(Errno::EINVAL);
    }
    sem::check_count(count)?;
    let count = count as usize;
    let mut operations = room(count)?;
    for n in 0..count {
        let [number, by, flags]: [u16; 3] = UserPtr::new(at).add(n).read()?;
        operations.push(Operation {
            number,
            by: by as i16,
            flags,
        });
    }
    let slot = if operations.iter().any(Operation::undoes) {
        mem::admit_process()?;
        sem_undo::own()
    } else {
        None
    };
    let list = slot.as_ref().and_then(list);
    as_caller(|caller| sem::operate(id, operations, deadline, list, caller))?;
    Ok(0)
}

/// The list of adjustments in a slot, which is made if it is empty.
fn list(slot: &Arc<UndoSlot>) -> Option<&List> {
    let make: fn() -> Box<dyn Any + Send + Sync> = || Box::new(List::new());
    slot.get_or_make(make).downcast_ref()
}

/// semctl(2).
fn semctl(a: &mut Args) -> Result<u64, Errno> {
    let (id, number, cmd, arg) = (a.int(0), a.int(1), a.int(2), a.get(3));
    if id < 0 {
        return Err(Errno::EINVAL);
    }
    match cmd {
        command::INFO | only::INFO => return info(arg, cmd == only::INFO),
        command::STAT => {
            let shown = as_caller(|c| sem::registry().find(id)?.stat(false, c))?;
            UserPtr::new(arg).write(&words(&shown))?;
        }
        only::STAT | only::STAT_ANY => {
            let shown = as_caller(|c| {
                let set = sem::registry().at_argument(id)?;
                Set::stat(&set, cmd == only::STAT_ANY, c)
            })?;
            UserPtr::new(arg).write(&words(&shown))?;
            return Ok(shown.perm.id as u64);
        }
        command::SET => {
            let words: [u64; DS] = UserPtr::new(arg).read()?;
            as_caller(|c| sem::set_owner(id, new_owner(&words), c))?;
        }
        command::REMOVE => as_caller(|c| sem::remove(id, c))?,
        only::GETALL => read_all(id, arg)?,
        only::SETALL => write_all(id, arg)?,
        only::SETVAL => as_caller(|c| sem::write(id, number, arg as i32, c))?,
        only::GETVAL | only::GETPID | only::GETNCNT | only::GETZCNT => {
            let one = as_caller(|c| sem::registry().find(id)?.read(number, c))?;
            return Ok(match cmd {
                only::GETVAL => one.value as u64,
                only::GETPID => one.pid.into(),
                only::GETNCNT => one.want_more.into(),
                _ => one.want_zero.into(),
            });
        }
        _ => return Err(Errno::EINVAL),
    }
    Ok(0)
}

fn read_all(id: i32, to: u64) -> Result<(), Errno> {
    let values = as_caller(|c| sem::read_all(id, c))?;
    hal::user::copy_out(to, values.as_bytes())?;
    Ok(())
}

fn write_all(id: i32, from: u64) -> Result<(), Errno> {
    let len = as_caller(|c| sem::check_write(id, c))?;
    let mut values: Vec<u16> = room(len)?;
    values.resize(len, 0);
    hal::user::copy_in(values.as_mut_bytes(), from)?;
    Ok(as_caller(|c| sem::write_all(id, &values, c))?)
}

/// The words of a `struct semid64_ds`.
fn words(s: &Shown) -> [u64; DS] {
    let mut out = [0; DS];
    out[..6].copy_from_slice(&perm_words(&s.perm));
    (out[6], out[8], out[10]) = (s.operated, s.changed, s.len as u64);
    out
}

/// IPC_INFO and, with `sums`, SEM_INFO: a `struct seminfo`.
fn info(buf: u64, sums: bool) -> Result<u64, Errno> {
    let int = |limit: &AtomicU64| limit.load(Relaxed) as u32;
    let all = int(&sem::MAX_SEMAPHORES);
    let operations = int(&sem::MAX_OPERATIONS);
    let most = sem::MAX_VALUE as u32;
    let (size, adjustment) = if sums {
        let sums = sem::sums();
        (sums.sets as u32, sums.semaphores as u32)
    } else {
        (20, most)
    };
    let (sets, of_set) = (int(&sem::MAX_SETS), int(&sem::MAX_PER_SET));
    let out = [
        all, sets, all, all, of_set, operations, operations, size, most, adjustment,
    ];
    UserPtr::new(buf).write(&out)?;
    Ok(sem::registry().highest().into())
}
