//! Moving bytes between pipes, and between a pipe and a file: splice(2), tee(2), vmsplice(2).
//!
//! Guarantee: bytes leave the pipe in order, once, and only after they have been written; what cannot be written stays, before all
//! that comes later. Mechanism: the thread that moves bytes copies the first ones while it *holds* them: until it has written them
//! and says how many, other readers wait. So no lock is held while it writes. It never waits for room in another pipe while it
//! holds bytes, since two threads that splice in a ring would wait for each other.
//!
//! Those that wait here stand on the queue of pollers: they get no wake-up that they would have to pass on.

use alloc::sync::Arc;
use alloc::vec::Vec;

use cred::MemoryCharge;
use hal::uio::IoBuf;
use task::account::charge_large;
use task::current::current;
use task::park::{Deadline, Interruptible, Step, park};
use task::wait::{Cause, Waiter};

use super::state::{Pipe, State};
use crate::error::{FsError, Result};
use crate::file::File;

/// Most bytes that one call moves from a pipe, or into one: as many as a pipe of the default size has.
pub const MOST: usize = 64 << 10;

/// As [`until_by`], with an end of the wait at any signal.
fn until<R>(pipe: &Pipe, wait: bool, ready: fn(&mut State) -> Option<R>) -> Result<R> {
    until_by(pipe, wait, Interruptible::Yes, ready)
}

/// Waits until `ready` returns something; fails with `WouldBlock` instead if `wait` is false, and with `Interrupted` where `signals`
/// says so. Takes the pipe's lock, under which it calls `ready`.
fn until_by<R>(
    pipe: &Pipe,
    wait: bool,
    signals: Interruptible,
    ready: fn(&mut State) -> Option<R>,
) -> Result<R> {
    if let Some(found) = ready(&mut pipe.state.lock()) {
        return Ok(found);
    }
    if !wait {
        return Err(FsError::WouldBlock);
    }
    let mut looked = (pipe, ready);
    let parked = park(
        &mut looked,
        Deadline::Never,
        signals,
        |(pipe, ready), waiter: &mut Waiter| {
            waiter.listen(&pipe.pollers);
            match ready(&mut pipe.state.lock()) {
                Some(found) => Step::Done(found),
                None => Step::Wait,
            }
        },
    );
    parked.map_err(|_| FsError::Interrupted)
}

/// Waits for room in a pipe; returns how many bytes fit. Takes the pipe's lock. Errors: `BrokenPipe` if there is no reader; those of
/// a wait.
fn wait_for_room(pipe: &Pipe, wait: bool) -> Result<usize> {
    room_by(pipe, wait, Interruptible::Yes)
}

fn room_by(pipe: &Pipe, wait: bool, signals: Interruptible) -> Result<usize> {
    until_by(pipe, wait, signals, |s| match (s.readers, s.ring.room()) {
        (0, _) => Some(Err(FsError::BrokenPipe)),
        (_, 0) => None,
        (_, room) => Some(Ok(room)),
    })?
}

/// A buffer of `len` bytes, and the caller's charge for it. May wait for memory, and fail with `NoMemory`.
fn buffer(len: usize) -> Result<(Vec<u8>, MemoryCharge)> {
    mem::admit_process().map_err(|_| FsError::NoMemory)?;
    let mut bytes = Vec::new();
    bytes
        .try_reserve_exact(len)
        .map_err(|_| FsError::NoMemory)?;
    bytes.resize(len, 0);
    Ok((bytes, charge_large(len)))
}

/// The first bytes of a pipe, which nobody else reads meanwhile.
struct Held<'a>(&'a Pipe);

impl<'a> Held<'a> {
    /// Holds the first bytes of a pipe, and copies them to `bytes`: as many as there are and as fit. Waits for some; `None` at the end
    /// of the pipe. Takes its lock. Errors: those of a wait.
    fn first(pipe: &'a Pipe, bytes: &mut Vec<u8>, wait: bool) -> Result<Option<Held<'a>>> {
        let got = until(pipe, wait, |s| match (s.ring.len(), s.writers) {
            (0, 0) => Some(0),
            (0, _) => None,
            _ if s.ring.front_held => None,
            _ => {
                s.ring.front_held = true;
                Some(s.ring.len())
            }
        })?;
        if got == 0 {
            return Ok(None);
        }
        // Nobody takes them out, so they are there still, and perhaps more.
        let n = pipe.state.lock().ring.peek(bytes);
        bytes.truncate(n);
        Ok(Some(Held(pipe)))
    }

    /// Takes the first `n` of the bytes out of the pipe, and holds none any more. Takes the pipe's lock; wakes readers, and writers
    /// that have room again.
    fn take(self, n: usize) {
        let pipe = self.0;
        let mut s = pipe.state.lock();
        let tight = s.ring.room() < super::PIPE_BUF;
        s.ring.drop_front(n);
        s.ring.front_held = false;
        let relieved = tight && s.ring.room() >= super::PIPE_BUF;
        let more = !s.ring.is_empty();
        drop(s);
        if relieved {
            pipe.wake_writers();
        }
        // Those that came meanwhile found nothing that they might take.
        if more {
            pipe.wake_readers();
            return;
        }
        // Perhaps the last writer has gone meanwhile.
        if !pipe.readers.is_empty() {
            pipe.readers.wake_all();
        }
        pipe.wake_pollers(Cause::Input);
    }
}

/// Writes once, as much as there is room for at once; `None` if there is none.
fn write_once(to: &Pipe, bytes: &[u8]) -> Result<Option<usize>> {
    to.try_write(&mut IoBuf::Drain(bytes))
}

/// Moves up to `len` bytes from one pipe to another; returns their number, 0 at the end of the first one. Waits, unless `wait` is
/// false, for bytes and for room. Takes the pipes' locks, one at a time; sleeps.
///
/// # Errors
/// `Invalid` if both are one pipe; `BrokenPipe`; `WouldBlock`; `Interrupted`; `NoMemory`.
pub fn between(from: &Arc<Pipe>, to: &Arc<Pipe>, len: usize, wait: bool) -> Result<usize> {
    copied(from, to, len, wait, true)
}

/// tee(2): as [`between`], but the bytes stay in the first pipe.
///
/// # Errors
/// As for [`between`].
pub fn duplicate(from: &Arc<Pipe>, to: &Arc<Pipe>, len: usize, wait: bool) -> Result<usize> {
    copied(from, to, len, wait, false)
}

fn copied(from: &Arc<Pipe>, to: &Arc<Pipe>, len: usize, wait: bool, moves: bool) -> Result<usize> {
    if Arc::ptr_eq(from, to) {
        return Err(FsError::Invalid);
    }
    let (mut bytes, mut _charge) = (Vec::new(), MemoryCharge::NONE);
    loop {
        let room = wait_for_room(to, wait)?;
        let want = len.min(room).min(MOST);
        if bytes.capacity() < want {
            (bytes, _charge) = buffer(want)?;
        }
        bytes.resize(want, 0);
        let Some(held) = Held::first(from, &mut bytes, wait)? else {
            return Ok(0);
        };
        let written = write_once(to, &bytes);
        held.take(match written {
            Ok(Some(n)) if moves => n,
            _ => 0,
        });
        // Without room: others have filled it meanwhile.
        if let Some(n) = written? {
            return Ok(n);
        }
    }
}

/// Moves up to `len` bytes from a pipe to a file that is no pipe, at `pos` or at its own position; returns their number, 0 at the
/// end of the pipe. `wait` is about the pipe alone. Takes the pipe's lock, but not while it writes; sleeps.
///
/// # Errors
/// `WouldBlock`, `Interrupted`, `NoMemory`; those of the write, if nothing has been written.
pub fn to_file(
    from: &Pipe,
    to: &File,
    mut pos: Option<u64>,
    len: usize,
    wait: bool,
) -> Result<usize> {
    let (mut bytes, _charge) = buffer(len.min(MOST))?;
    let mut done = 0;
    while done < len {
        bytes.resize(MOST.min(len - done), 0);
        // Only for the first bytes: what has been moved is told at once.
        let held = match Held::first(from, &mut bytes, wait && done == 0) {
            Ok(Some(held)) => held,
            Ok(None) => break,
            Err(e) if done == 0 => return Err(e),
            Err(_) => break,
        };
        let mut buf = IoBuf::Drain(&bytes);
        let written = match pos {
            Some(pos) => to.write_at(&mut buf, pos),
            None => to.write(&mut buf),
        };
        held.take(*written.as_ref().unwrap_or(&0));
        match written {
            Ok(n) => {
                done += n;
                pos = pos.map(|pos| pos + n as u64);
                if n < bytes.len() || current().signal_pending() {
                    break;
                }
            }
            Err(e) if done == 0 => return Err(e),
            Err(_) => break,
        }
    }
    Ok(done)
}

/// Moves up to `len` bytes from a file that is no pipe, at `pos` or at its own position, to a pipe: as many as it has room for once
/// it has any; returns their number, 0 at the end of the file. `wait` is about the pipe alone. As in Linux, two calls at once that
/// use the file's own position may read the same bytes. Takes the pipe's lock, but not while it reads; sleeps.
///
/// # Errors
/// `BrokenPipe`, `WouldBlock`, `Interrupted`, `NoMemory`; those of the read.
pub fn from_file(
    from: &File,
    pos: Option<u64>,
    to: &Pipe,
    len: usize,
    wait: bool,
) -> Result<usize> {
    let own = pos.is_none() && from.ops().seekable();
    loop {
        let room = wait_for_room(to, wait)?;
        let (mut bytes, _charge) = buffer(len.min(room).min(MOST))?;
        let at = if own {
            Some(from.with_pos(|pos| *pos))
        } else {
            pos
        };
        let mut buf = IoBuf::Fill(&mut bytes);
        let got = match at {
            Some(at) => from.read_at(&mut buf, at)?,
            None => from.read(&mut buf)?,
        };
        if got == 0 {
            return Ok(0);
        }
        let mut put = 0;
        // A file that has a position is read again for what finds no room any more; what others give is written, unless the
        // caller is killed or the last reader goes.
        while put < got {
            match write_once(to, &bytes[put..got]) {
                Ok(Some(n)) => put += n,
                Ok(None) if at.is_some() => break,
                Ok(None) => room_by(to, true, Interruptible::Kill).map(|_| ())?,
                Err(e) if put == 0 => return Err(e),
                Err(_) => break,
            }
        }
        if let (true, Some(at)) = (own, at) {
            from.with_pos(|pos| *pos = at + put as u64);
        }
        if put > 0 {
            return Ok(put);
        }
    }
}

/// vmsplice(2) into a pipe: writes from `buf` as much as there is room for, once there is any; returns the bytes written.
///
/// # Errors
/// `BrokenPipe`, `WouldBlock`, `Interrupted`; `Fault` or `NoMemory` if nothing was written.
pub fn fill(to: &Pipe, buf: &mut IoBuf, wait: bool) -> Result<usize> {
    loop {
        let room = wait_for_room(to, wait)?;
        buf.limit(room);
        if let Some(n) = to.try_write(buf)? {
            return Ok(n);
        }
    }
}

/// vmsplice(2) from a pipe: reads into `buf` what there is, once there is anything; returns the bytes read, 0 at the end.
///
/// # Errors
/// `WouldBlock`, `Interrupted`; `Fault` if nothing was read.
pub fn drain(from: &Pipe, buf: &mut IoBuf, wait: bool) -> Result<usize> {
    loop {
        until(from, wait, |s| {
            let ready = if s.ring.is_empty() {
                s.writers == 0
            } else {
                !s.ring.front_held
            };
            ready.then_some(())
        })?;
        if let Some(n) = from.try_read(buf)? {
            return Ok(n);
        }
    }
}
