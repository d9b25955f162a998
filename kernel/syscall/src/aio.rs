//! Asynchronous input and output: io_setup(2), io_submit(2), io_getevents(2), io_pgetevents(2), io_cancel(2), io_destroy(2).
//!
//! Files are in memory, so an operation is over when io_submit returns; only its event waits. IOCB_CMD_POLL is not known, as before
//! Linux 4.18.

use abi::raw::general as nr;
use alloc::sync::Arc;
use hal::uaccess::UserPtr;
use hal::uio::IoBuf;
use ipc::aio::{AioError, Context, Contexts, Event};
use proc::{OfProgram, current_process};
use task::current::current;
use task::park::Deadline;
use vfs::eventfd::EventCounter;
use vfs::file::{File, FileRef, Kind};
use vm::space::{MapArgs, MapFlags, Source};
use vm::{EntryFlags, MapProt as Prot};

use super::errno::Errno;
use super::fsutil::{real_file, user_range, user_ranges, written};
use super::mm::{PAGE, admit_map, in_space};
use super::poll::{end_mask, set_mask, timeout};
use crate::call::{Args, Handler};

/// The calls of this file.
pub const HANDLERS: &[(u32, Handler)] = &[
    (nr::__NR_io_setup, setup),
    (nr::__NR_io_destroy, destroy),
    (nr::__NR_io_submit, submit),
    (nr::__NR_io_cancel, cancel),
    (nr::__NR_io_getevents, getevents),
    (nr::__NR_io_pgetevents, pgetevents),
];

impl From<AioError> for Errno {
    fn from(e: AioError) -> Errno {
        match e {
            AioError::Again => Errno::EAGAIN,
            AioError::NoMemory => Errno::ENOMEM,
            AioError::NoContext => Errno::EINVAL,
            AioError::Interrupted => Errno::EINTR,
        }
    }
}

/// More events than this are no number of events.
const MOST_EVENTS: u32 = 0x40_0000;

/// io_setup(2). A context's number is the address of a page, as in Linux, where programs look for a ring of events; this one is
/// empty, so they call io_getevents.
fn setup(a: &mut Args) -> Result<u64, Errno> {
    let (most, at) = (a.uint(0), UserPtr::<u64>::new(a.get(1)));
    if at.read()? != 0 || most == 0 || most > MOST_EVENTS {
        return Err(Errno::EINVAL);
    }
    mem::admit()?;
    let process = current_process();
    let kept = process.of_program_or(Contexts::of_program);
    let contexts = contexts_of(kept.ok_or(Errno::ENOMEM)?)?;
    let page = map_page()?;
    let made = contexts.add(page, most).map_err(Errno::from);
    let told = made.and_then(|()| Ok(at.write(&page)?));
    if told.is_err() {
        let _ = contexts.destroy(page);
        let _ = in_space(|space| space.unmap(mem::vm(), page, PAGE));
    }
    told.map(|()| 0)
}

/// Maps a page of anonymous memory for the caller, that may be read and written, as mmap(2) would.
fn map_page() -> Result<u64, Errno> {
    admit_map(PAGE, true, None)?;
    let args = MapArgs {
        addr: 0,
        len: PAGE,
        prot: Prot::READ | Prot::WRITE,
        maxprot: Prot::all(),
        flags: EntryFlags::empty(),
        place: MapFlags::default(),
        source: Source::Anon,
    };
    in_space(|space| space.map(mem::vm(), &args))
}

/// Applies `f` to the caller's contexts.
///
/// # Errors
/// Those of `f`; EINVAL where there are none.
fn with_contexts<R>(f: impl FnOnce(&Contexts) -> Result<R, AioError>) -> Result<R, Errno> {
    let process = current_process();
    let kept = process.of_program().ok_or(Errno::EINVAL)?;
    Ok(f(contexts_of(kept)?)?)
}

/// What is kept for a program, as contexts.
fn contexts_of(kept: &dyn OfProgram) -> Result<&Contexts, Errno> {
    kept.as_any().downcast_ref().ok_or(Errno::EINVAL)
}

fn context(at: u64) -> Result<Arc<Context>, Errno> {
    with_contexts(|contexts| contexts.find(at))
}

fn destroy(a: &mut Args) -> Result<u64, Errno> {
    with_contexts(|contexts| contexts.destroy(a.get(0)))?;
    // The program may have unmapped it.
    let _ = in_space(|space| space.unmap(mem::vm(), a.get(0), PAGE));
    Ok(0)
}

/// io_submit(2): the number of operations up to the first that is wrong; the error of that one if it is the first.
fn submit(a: &mut Args) -> Result<u64, Errno> {
    let count = a.get(1) as i64;
    if count < 0 {
        return Err(Errno::EINVAL);
    }
    let context = context(a.get(0))?;
    let blocks = UserPtr::<u64>::new(a.get(2));
    let count = (count as usize).min(context.most());
    for n in 0..count {
        if n > 0 && current().kill_pending() {
            return Ok(n as u64);
        }
        let one = blocks
            .add(n)
            .read()
            .map_err(Errno::from)
            .and_then(|at| submit_one(&context, at));
        match one {
            Ok(()) => {}
            Err(e) if n == 0 => return Err(e),
            Err(_) => return Ok(n as u64),
        }
    }
    Ok(count as u64)
}

/// A struct iocb.
struct Block {
    data: u64,
    flags_of_rw: u32,
    op: u16,
    fd: i32,
    buf: u64,
    len: u64,
    offset: i64,
    /// The eventfd that is told, if there is one.
    told: Option<i32>,
}

/// IOCB_FLAG_RESFD.
const NOTIFIES: u32 = 1;

impl Block {
    fn read(at: u64) -> Result<Block, Errno> {
        let [data, key, what, buf, len, offset, reserved, flags] =
            UserPtr::<[u64; 8]>::new(at).read()?;
        if reserved != 0 || (len as i64) < 0 {
            return Err(Errno::EINVAL);
        }
        Ok(Block {
            data,
            flags_of_rw: (key >> 32) as u32,
            op: what as u16,
            fd: (what >> 32) as i32,
            buf,
            len,
            offset: offset as i64,
            told: (flags as u32 & NOTIFIES != 0).then_some((flags >> 32) as i32),
        })
    }
}

/// Does the operation of the control block at `at`.
fn submit_one(context: &Context, at: u64) -> Result<(), Errno> {
    let block = Block::read(at)?;
    let room = context.admit()?;
    let file = real_file(block.fd)?;
    let told = block.told.map(counter).transpose()?;
    // The kernel's mark of a control block that was submitted.
    UserPtr::<u32>::new(at.wrapping_add(8)).write(&0)?;
    let result = match perform(&block, &file)? {
        Ok(n) => n,
        // A signal came while the operation waited for a stream: it is over, and cannot be begun again.
        Err(Errno::ERESTARTSYS | Errno::ERESTARTNOINTR) => Errno::EINTR.as_return(),
        Err(e) => e.as_return(),
    };
    room.done([block.data, at, result, 0] as Event);
    if let Some(counter) = told.as_ref().and_then(|told| told.ops_as::<EventCounter>()) {
        counter.tell();
    }
    Ok(())
}

/// The open file of an eventfd.
fn counter(fd: i32) -> Result<FileRef, Errno> {
    let file = real_file(fd)?;
    match file.ops_as::<EventCounter>() {
        Some(_) => Ok(file),
        None => Err(Errno::EINVAL),
    }
}

/// The operation's result.
///
/// # Errors
/// The block is wrong; nothing was done.
fn perform(block: &Block, file: &File) -> Result<Result<u64, Errno>, Errno> {
    const PREAD: u16 = 0;
    const PWRITE: u16 = 1;
    const FSYNC: u16 = 2;
    const FDSYNC: u16 = 3;
    const PREADV: u16 = 7;
    const PWRITEV: u16 = 8;
    const HIPRI: u32 = 1;
    const DSYNC: u32 = 2;
    const SYNC: u32 = 4;
    match block.op {
        PREAD | PREADV | PWRITE | PWRITEV => {}
        FSYNC | FDSYNC => {
            let plain = (block.buf, block.len, block.offset, block.flags_of_rw) == (0, 0, 0, 0);
            let known = matches!(file.kind, Kind::Regular(_) | Kind::Dir(_));
            return if plain && known {
                Ok(Ok(0))
            } else {
                Err(Errno::EINVAL)
            };
        }
        _ => return Err(Errno::EINVAL),
    }
    // As for preadv2(2): files are in memory, so these change nothing.
    if block.flags_of_rw & !(HIPRI | DSYNC | SYNC) != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let at = u64::try_from(block.offset).map_err(|_| Errno::EINVAL)?;
    let out = matches!(block.op, PWRITE | PWRITEV);
    if !(if out {
        file.writable()
    } else {
        file.readable()
    }) {
        return Err(Errno::EBADF);
    }
    if matches!(file.kind, Kind::Dir(_)) {
        return Err(Errno::EINVAL);
    }
    let mut buf = match block.op {
        PREAD | PWRITE => IoBuf::User(user_range(block.buf, block.len)?),
        _ => IoBuf::vector(user_ranges(block.buf, block.len)?),
    };
    if !file.ops().seekable() {
        return Ok(match out {
            true => written(file.write(&mut buf)),
            false => file.read(&mut buf).map(|n| n as u64).map_err(Errno::from),
        });
    }
    Ok(match out {
        true => written(file.write_at(&mut buf, at)),
        false => file
            .read_at(&mut buf, at)
            .map(|n| n as u64)
            .map_err(Errno::from),
    })
}

/// io_cancel(2): there never is an operation that could be cancelled.
fn cancel(a: &mut Args) -> Result<u64, Errno> {
    let _: u32 = UserPtr::new(a.get(1).wrapping_add(8)).read()?;
    context(a.get(0))?;
    Err(Errno::EINVAL)
}

fn getevents(a: &mut Args) -> Result<u64, Errno> {
    let deadline = timeout(a.get(4), 1_000_000_000)?;
    fetch(a, deadline)
}

fn pgetevents(a: &mut Args) -> Result<u64, Errno> {
    let deadline = timeout(a.get(4), 1_000_000_000)?;
    let [mask, size] = match a.get(5) {
        0 => [0; 2],
        at => UserPtr::<[u64; 2]>::new(at).read()?,
    };
    let masked = set_mask(mask, size)?;
    let result = fetch(a, deadline);
    end_mask(masked, &result);
    result
}

/// The part that io_getevents and io_pgetevents have in common.
fn fetch(a: &Args, deadline: Deadline) -> Result<u64, Errno> {
    let context = context(a.get(0))?;
    let (least, most) = (a.get(1) as i64, a.get(2) as i64);
    if least < 0 || most < least {
        return Err(Errno::EINVAL);
    }
    let (out, mut n, mut fault) = (UserPtr::<Event>::new(a.get(3)), 0, None);
    let given = context.fetch((least as usize, most as usize), deadline, &mut |event| {
        let written = out.add(n).write(event);
        n += 1;
        fault = written.err();
        fault.is_none()
    })?;
    match (given, fault) {
        (0, Some(fault)) => Err(fault.into()),
        _ => Ok(given as u64),
    }
}
