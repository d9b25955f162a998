//! futex(2) and robust lists.

use abi::raw::general as nr;
use alloc::vec::Vec;
use cred::LookAs;
use hal::uaccess::UserPtr;
use proc::futex::waitv::{self, Wanted};
use proc::futex::{self, FutexError, pi};
use proc::signal::RestartBlock;
use proc::{SignalExt, UserThreadExt, ids};
use task::current::current;
use task::park::Deadline;
use task::time;

use super::credentials::not_permitted;
use super::errno::Errno;
use super::time::read_timespec;
use crate::call::{Args, Handler};

/// The calls of this file.
pub const HANDLERS: &[(u32, Handler)] = &[
    (nr::__NR_futex, futex),
    (nr::__NR_futex_waitv, futex_waitv),
    (nr::__NR_set_robust_list, set_robust_list),
    (nr::__NR_get_robust_list, get_robust_list),
    (nr::__NR_set_tid_address, set_tid_address),
];

/// What [`futex()`] leaves to a call with the full register frame: only that can begin again after a handler.
pub const FULL_FRAME: &[(u32, Handler)] = &[(nr::__NR_futex, sleep_for_lock)];

const PRIVATE: u32 = nr::FUTEX_PRIVATE_FLAG;
const REALTIME: u32 = nr::FUTEX_CLOCK_REALTIME;

/// futex(2). A wait without a timeout that a signal interrupts is restarted as read(2) is; one with a timeout, see [`wait_until`]; for a lock with
/// priority inheritance, see [`sleep_for_lock`]. A timeout in real time does not follow later steps of that clock.
fn futex(a: &mut Args) -> Result<u64, Errno> {
    let (addr, op, value) = (a.get(0), a.uint(1), a.uint(2));
    let shared = op & PRIVATE == 0;
    let command = op & !(PRIVATE | REALTIME);
    const TWO_CLOCKS: [u32; 3] = [
        nr::FUTEX_WAIT_BITSET,
        nr::FUTEX_WAIT_REQUEUE_PI,
        nr::FUTEX_LOCK_PI2,
    ];
    if op & REALTIME != 0 && !TWO_CLOCKS.contains(&command) {
        return Err(Errno::ENOSYS);
    }
    // The count is an int. As on Linux, zero or less still wakes one thread.
    let count = (value as i32).max(1) as u32;
    match command {
        nr::FUTEX_WAIT => wait_relative(a, shared, value),
        nr::FUTEX_WAIT_BITSET => {
            let bits = a.uint(5);
            if a.get(3) == 0 {
                futex::wait(addr, shared, value, bits, Deadline::Never)?;
                return Ok(0);
            }
            let until = absolute(a.get(3), op & REALTIME != 0)?;
            wait_until(addr, shared, value, bits, until)
        }
        nr::FUTEX_WAKE => Ok(futex::wake(addr, shared, count, futex::ANY)?.into()),
        nr::FUTEX_WAKE_BITSET => Ok(futex::wake(addr, shared, count, a.uint(5))?.into()),
        nr::FUTEX_REQUEUE | nr::FUTEX_CMP_REQUEUE => {
            let (wake, moves) = (a.int(2), a.int(3));
            if wake < 0 || moves < 0 {
                return Err(Errno::EINVAL);
            }
            let expected = (command == nr::FUTEX_CMP_REQUEUE).then(|| a.uint(5));
            let (woken, moved) =
                futex::requeue(addr, a.get(4), shared, wake as u32, moves as u32, expected)?;
            // futex(2) says that FUTEX_REQUEUE returns only the number of threads woken. Linux adds the number of
            // those moved, and so does this.
            Ok(u64::from(woken) + u64::from(moved))
        }
        nr::FUTEX_WAKE_OP => wake_op(a, shared, count),
        nr::FUTEX_LOCK_PI | nr::FUTEX_LOCK_PI2 | nr::FUTEX_WAIT_REQUEUE_PI => {
            Err(Errno::EFULLFRAME)
        }
        nr::FUTEX_TRYLOCK_PI => Ok(pi::try_lock(addr, shared).map(|()| 0)?),
        nr::FUTEX_UNLOCK_PI => Ok(pi::unlock(addr, shared).map(|()| 0)?),
        nr::FUTEX_CMP_REQUEUE_PI => {
            let (wake, moves) = (a.int(2), a.int(3));
            if wake < 0 || moves < 0 {
                return Err(Errno::EINVAL);
            }
            let (wake, moves) = (wake as u32, moves as u32);
            Ok(pi::requeue(addr, a.get(4), shared, wake, moves, a.uint(5))?.into())
        }
        _ => Err(Errno::ENOSYS),
    }
}

/// A time that a program gave, in monotonic nanoseconds; `real` is its clock.
fn absolute(at: u64, real: bool) -> Result<u64, Errno> {
    let ns = read_timespec(at)?;
    Ok(match real {
        true => time::real_to_monotonic(ns),
        false => ns,
    })
}

/// The commands of futex(2) that sleep for a lock with priority inheritance. If a signal interrupts the sleep the call begins again, after a handler,
/// too, for the timeout is a time; FUTEX_LOCK_PI's is in real time.
fn sleep_for_lock(a: &mut Args) -> Result<u64, Errno> {
    let (addr, op) = (a.get(0), a.uint(1));
    let shared = op & PRIVATE == 0;
    let command = op & !(PRIVATE | REALTIME);
    let real = op & REALTIME != 0 || command == nr::FUTEX_LOCK_PI;
    let deadline = match a.get(3) {
        0 => Deadline::Never,
        at => Deadline::At(absolute(at, real)?),
    };
    let slept = if command == nr::FUTEX_WAIT_REQUEUE_PI {
        pi::wait_requeue(addr, a.uint(2), a.get(4), shared, deadline)
    } else {
        pi::lock(addr, shared, deadline)
    };
    match slept {
        Err(FutexError::Signal) => Err(Errno::ERESTARTNOINTR),
        r => r.map(|()| 0).map_err(Errno::from),
    }
}

/// FUTEX_WAKE_OP. Its last argument has four bits of operation, four of comparison, and two signed operands of twelve
/// bits: one for the operation, one for the comparison.
fn wake_op(a: &Args, shared: bool, count: u32) -> Result<u64, Errno> {
    let code = a.uint(5);
    let signed = |bits: u32| ((bits << 20) as i32) >> 20;
    let (operand, compared) = (signed(code >> 12), signed(code));
    let operand = if code >> 28 & nr::FUTEX_OP_OPARG_SHIFT != 0 {
        1u32 << (operand & 31)
    } else {
        operand as u32
    };
    let (operation, comparison) = (code >> 28 & 7, code >> 24 & 15);
    if operation > nr::FUTEX_OP_XOR || comparison > nr::FUTEX_OP_CMP_GE {
        return Err(Errno::ENOSYS);
    }
    let change = |old: u32| match operation {
        nr::FUTEX_OP_SET => operand,
        nr::FUTEX_OP_ADD => old.wrapping_add(operand),
        nr::FUTEX_OP_OR => old | operand,
        nr::FUTEX_OP_ANDN => old & !operand,
        _ => old ^ operand,
    };
    let then = |old: u32| {
        let order = (old as i32).cmp(&compared);
        match comparison {
            nr::FUTEX_OP_CMP_EQ => order.is_eq(),
            nr::FUTEX_OP_CMP_NE => order.is_ne(),
            nr::FUTEX_OP_CMP_LT => order.is_lt(),
            nr::FUTEX_OP_CMP_LE => order.is_le(),
            nr::FUTEX_OP_CMP_GT => order.is_gt(),
            _ => order.is_ge(),
        }
    };
    let others = (a.int(3)).max(1) as u32;
    let woken = futex::wake_op((a.get(0), count), (a.get(4), others), shared, change, then)?;
    Ok(woken.into())
}

/// futex_waitv(2). The timeout is a time of one of two clocks. A wait that a signal interrupts is restarted as read(2) is.
fn futex_waitv(a: &mut Args) -> Result<u64, Errno> {
    const FUTEX_32: u32 = 2;
    let (list, count, at) = (a.get(0), a.uint(1) as usize, a.get(3));
    if a.uint(2) != 0 || !(1..=waitv::MOST).contains(&count) || list == 0 {
        return Err(Errno::EINVAL);
    }
    let deadline = match (at, a.uint(4)) {
        (0, _) => Deadline::Never,
        (_, nr::CLOCK_MONOTONIC) => Deadline::At(read_timespec(at)?),
        (_, nr::CLOCK_REALTIME) => Deadline::At(time::real_to_monotonic(read_timespec(at)?)),
        _ => return Err(Errno::EINVAL),
    };
    let mut wanted = Vec::new();
    wanted.try_reserve_exact(count).map_err(|_| Errno::ENOMEM)?;
    for i in 0..count {
        // A struct futex_waitv: the value, the address, flags and padding.
        let [value, addr, flags]: [u64; 3] = UserPtr::new(list).add(i).read()?;
        let known = u64::from(FUTEX_32 | PRIVATE);
        if flags & !known != 0 || flags & u64::from(FUTEX_32) == 0 {
            return Err(Errno::EINVAL);
        }
        wanted.push(Wanted {
            addr,
            shared: flags & u64::from(PRIVATE) == 0,
            value: value as u32,
        });
    }
    Ok(waitv::wait_any(&wanted, deadline)? as u64)
}

fn wait_relative(a: &Args, shared: bool, value: u32) -> Result<u64, Errno> {
    let (addr, at) = (a.get(0), a.get(3));
    if at == 0 {
        futex::wait(addr, shared, value, futex::ANY, Deadline::Never)?;
        return Ok(0);
    }
    let until = time::monotonic_ns().saturating_add(read_timespec(at)?);
    wait_until(addr, shared, value, futex::ANY, until)
}

/// Waits on a futex until monotonic time `until`, in nanoseconds. If a signal interrupts the wait and runs no
/// handler, the call is restarted with the same `until`.
///
/// # Errors
/// As for futex(2); ERESTART_RESTARTBLOCK if a signal interrupted it.
pub fn wait_until(
    addr: u64,
    shared: bool,
    value: u32,
    bits: u32,
    until: u64,
) -> Result<u64, Errno> {
    match futex::wait(addr, shared, value, bits, Deadline::At(until)) {
        Err(FutexError::Signal) => {
            current().set_restart(RestartBlock::Futex {
                addr,
                value,
                until,
                bits,
                shared,
            });
            Err(Errno::ERESTART_RESTARTBLOCK)
        }
        r => r.map(|()| 0).map_err(Errno::from),
    }
}

/// Bytes of `struct robust_list_head`.
const HEAD_LEN: u64 = 24;

fn set_robust_list(a: &mut Args) -> Result<u64, Errno> {
    if a.get(1) != HEAD_LEN {
        return Err(Errno::EINVAL);
    }
    current().set_robust_list(a.get(0));
    Ok(0)
}

fn get_robust_list(a: &mut Args) -> Result<u64, Errno> {
    let me = current();
    let head = match a.int(0) {
        0 => me.robust_list(),
        tid => {
            let t = ids::find_thread(tid as u32).ok_or(Errno::ESRCH)?;
            t.process()
                .image_shown(Some(&t), LookAs::Real)
                .map_err(not_permitted)?;
            t.robust_list()
        }
    };
    UserPtr::<u64>::new(a.get(2)).write(&HEAD_LEN)?;
    UserPtr::<u64>::new(a.get(1)).write(&head)?;
    Ok(0)
}

fn set_tid_address(a: &mut Args) -> Result<u64, Errno> {
    let me = current();
    me.set_clear_child_tid(a.get(0));
    Ok(me.tid().into())
}
