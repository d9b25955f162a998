//! Calls on other processes: their memory (process_vm_readv, process_vm_writev, process_madvise), and what they have in common (kcmp).

use core::cmp::Ordering;

use abi::raw::general as nr;
use alloc::sync::Arc;
use alloc::vec::Vec;
use cred::{Cap, LookAs};
use hal::uaccess::{UserPtr, UserRange};
use hal::uio::IoBuf;
use ksync::Once;
use mem::Space;
use proc::look::Part;
use proc::process::Process;
use proc::{UserThreadExt, ids};
use task::current::current;
use task::thread::Thread;
use vfs::file::{File, FileRef};
use vfs::regular;
use vm::FaultError;

use super::credentials::{not_permitted, require};
use super::errno::Errno;
use super::fsutil::{RW_MAX, fault, real_file, user_ranges};
use super::{mm, pidfd};
use crate::call::{Args, Handler};

/// The calls of this file.
pub const HANDLERS: &[(u32, Handler)] = &[
    (nr::__NR_process_vm_readv, |a| transfer(a, false)),
    (nr::__NR_process_vm_writev, |a| transfer(a, true)),
    (nr::__NR_kcmp, kcmp),
    (nr::__NR_process_madvise, process_madvise),
];

/// The thread with that tid, which the caller may look into.
///
/// # Errors
/// ESRCH; EPERM.
fn target(tid: i32) -> Result<(Arc<Thread>, Option<Arc<Space>>), Errno> {
    let tid = u32::try_from(tid).map_err(|_| Errno::ESRCH)?;
    let thread = ids::find_thread(tid).ok_or(Errno::ESRCH)?;
    let shown = thread
        .process()
        .image_shown(Some(&thread), LookAs::Real)
        .map_err(not_permitted)?;
    Ok((thread, shown.space))
}

/// Ranges of another process's memory, cut to [`RW_MAX`] bytes together. Their addresses are not checked.
///
/// # Errors
/// EINVAL for too many or too long ones, EFAULT, ENOMEM.
fn their_ranges(addr: u64, count: u64) -> Result<Vec<UserRange>, Errno> {
    const MOST: u64 = 1024;
    if count > MOST {
        return Err(Errno::EINVAL);
    }
    let mut ranges = Vec::new();
    ranges
        .try_reserve_exact(count as usize)
        .map_err(|_| Errno::ENOMEM)?;
    let mut left = RW_MAX;
    for i in 0..count as usize {
        let [base, len]: [u64; 2] = UserPtr::new(addr).add(i).read().map_err(fault)?;
        if len > isize::MAX as u64 {
            return Err(Errno::EINVAL);
        }
        let len = (len as usize).min(left);
        left -= len;
        ranges.push(UserRange::new(base, len));
    }
    Ok(ranges)
}

/// process_vm_readv(2) and, with `writes`, process_vm_writev(2). As in Linux, the local ranges are checked first, and nothing else if
/// they are empty. Ends early where one side cannot be accessed, or the caller is killed.
fn transfer(a: &mut Args, writes: bool) -> Result<u64, Errno> {
    if a.get(5) != 0 {
        return Err(Errno::EINVAL);
    }
    let mut here = IoBuf::vector(user_ranges(a.get(1), a.get(2))?);
    if here.remaining() == 0 {
        return Ok(0);
    }
    let there = their_ranges(a.get(3), a.get(4))?;
    if there.iter().all(|range| range.len == 0) {
        return Ok(0);
    }
    let (_thread, space) = target(a.int(0))?;
    let space = space.ok_or(Errno::ESRCH)?;
    let mut page = regular::page_buffer()?;
    let mut done = 0;
    for mut range in there {
        while range.len > 0 && here.remaining() > 0 {
            let want = page.len().min(range.len).min(here.remaining());
            let step = &mut page[..want];
            let moved = if writes {
                put(&space, range.addr, step, &mut here)
            } else {
                get(&space, range.addr, step, &mut here)
            };
            match moved {
                Ok(n) => {
                    done += n as u64;
                    range.skip(n);
                    if n < want || current().kill_pending() {
                        return Ok(done);
                    }
                }
                Err(e) if done == 0 => return Err(e),
                Err(_) => return Ok(done),
            }
        }
    }
    Ok(done)
}

fn no_access(why: FaultError) -> Errno {
    match why {
        FaultError::NoMemory => Errno::ENOMEM,
        _ => Errno::EFAULT,
    }
}

/// Copies from `at` in `space` to the caller's memory, through `buf`; returns the bytes copied. EFAULT, ENOMEM.
fn get(space: &Space, at: u64, buf: &mut [u8], to: &mut IoBuf) -> Result<usize, Errno> {
    let n = space.read_at(mem::vm(), at, buf).map_err(no_access)?;
    to.put(&buf[..n]).map_err(fault)
}

/// Copies from the caller's memory to `at` in `space`, through `buf`; returns the bytes copied. EFAULT, ENOMEM.
fn put(space: &Space, at: u64, buf: &mut [u8], from: &mut IoBuf) -> Result<usize, Errno> {
    let n = from.take(buf).map_err(fault)?;
    mem::admit_process()?;
    space.write_at(mem::vm(), at, &buf[..n]).map_err(no_access)
}

/// madvise for a range of another process's memory, with advice that changes no content.
///
/// # Errors
/// EINVAL, ENOMEM.
fn advise(space: &Space, range: &UserRange, raw: u32) -> Result<(), Errno> {
    let advice = mm::advice_from(raw)?;
    let (start, len) = (range.addr, range.len as u64);
    let len = mm::range_or(start, len, Errno::ENOMEM, Errno::EINVAL)?;
    if len == 0 {
        return Ok(());
    }
    if mm::any_mapping(space, start, len, |entry| mm::is_unfit(raw, entry)) {
        return Err(Errno::EINVAL);
    }
    space
        .advise(mem::vm(), start, len, advice)
        .map_err(super::errno::vm)
}

/// process_madvise(2), for the advice that changes no content: none of it does anything here beyond the checks. Returns the bytes before
/// the first range that refuses it.
fn process_madvise(a: &mut Args) -> Result<u64, Errno> {
    let advice = a.uint(3);
    if a.uint(4) != 0 {
        return Err(Errno::EINVAL);
    }
    let ranges = user_ranges(a.get(1), a.get(2))?;
    let file = real_file(a.int(0))?;
    let process = pidfd::process_of(&file)?;
    if process.is_reaped() {
        return Err(Errno::ESRCH);
    }
    let known = [
        nr::MADV_COLD,
        nr::MADV_PAGEOUT,
        nr::MADV_WILLNEED,
        nr::MADV_COLLAPSE,
    ];
    if !known.contains(&advice) {
        return Err(Errno::EINVAL);
    }
    let shown = process.image_shown(None, LookAs::Files);
    let space = shown.map_err(|_| Errno::EACCES)?.space;
    let space = space.ok_or(Errno::ESRCH)?;
    require(&current().cred(), Cap::SysNice)?;
    let mut done = 0;
    for range in ranges {
        match advise(&space, &range, advice) {
            Ok(()) => done += range.len as u64,
            Err(e) if done == 0 => return Err(e),
            Err(_) => break,
        }
    }
    Ok(done)
}

/// Kinds of kcmp(2).
mod kind {
    pub const FILE: u32 = 0;
    pub const VM: u32 = 1;
    pub const FILES: u32 = 2;
    pub const FS: u32 = 3;
    pub const SIGHAND: u32 = 4;
    pub const IO: u32 = 5;
    pub const SYSVSEM: u32 = 6;
    pub const EPOLL_TFD: u32 = 7;
}

hal::machine_static! {
    /// Odd, so that products with it differ where the factors do. It hides addresses, but for their order.
    static SECRET: Once<u64> = Once::new();
}

/// How two objects of the kernel compare, as kcmp(2) says it: 0 if they are one, 1 if the first comes before the second, else 2.
/// The order is one of all objects, and tells nothing about where they lie.
fn order(a: usize, b: usize) -> u64 {
    let secret = SECRET.get_or_init(|| {
        let mut bytes = [0; 8];
        drivers::random::fill(&mut bytes);
        u64::from_ne_bytes(bytes) | 1
    });
    let hidden = |address: usize| (address as u64 ^ secret.rotate_left(32)).wrapping_mul(*secret);
    match hidden(a).cmp(&hidden(b)) {
        Ordering::Equal => 0,
        Ordering::Less => 1,
        Ordering::Greater => 2,
    }
}

/// kcmp(2). There are no groups of threads for input and output: all have none in common.
fn kcmp(a: &mut Args) -> Result<u64, Errno> {
    let (one, _) = target(a.int(0))?;
    let (two, _) = target(a.int(1))?;
    let (p, q) = (one.process(), two.process());
    let same = |part| Ok(order(p.identity(part), q.identity(part)));
    match a.uint(2) {
        kind::FILE => {
            let (f, g) = (open_file(p, a.get(3))?, open_file(q, a.get(4))?);
            Ok(order(address(&f), address(&g)))
        }
        kind::EPOLL_TFD => {
            let slot = UserPtr::<[u32; 3]>::new(a.get(4));
            let [epoll, fd, skip] = slot.read().map_err(fault)?;
            let f = open_file(p, a.get(3))?;
            let epoll = open_file(q, epoll.into())?;
            let target = ipc::epoll::control::target(&epoll, fd as i32, skip as usize)?;
            Ok(order(address(&f), target))
        }
        kind::VM => same(Part::Memory),
        kind::FILES => same(Part::Descriptors),
        kind::FS => same(Part::Directories),
        kind::SIGHAND => same(Part::Actions),
        kind::SYSVSEM => Ok(order(one.undo_identity(), two.undo_identity())),
        kind::IO => Ok(0),
        _ => Err(Errno::EINVAL),
    }
}

fn address(file: &FileRef) -> usize {
    core::ptr::from_ref::<File>(file).addr()
}

fn open_file(p: &Process, fd: u64) -> Result<FileRef, Errno> {
    let fd = i32::try_from(fd).map_err(|_| Errno::EBADF)?;
    p.open_file(fd).ok_or(Errno::EBADF)
}
