//! sendmsg(2), recvmsg(2) and their forms for several messages; control messages.

use alloc::vec::Vec;

use hal::uaccess::UserPtr;
use hal::uio::IoBuf;
use net::Socket;
use net::ids::Ids;
use net::rights::{MOST, Rights};
use net::socket::{self, Message, Received, Type};
use task::current::current;
use task::time::monotonic_ns;
use vfs::file::FileRef;

use super::option;
use super::{address, file_of, msg, of, put_address, receive, send};
use crate::call::Args;
use crate::errno::Errno;
use crate::fsutil::{fault, fd_limit, file, user_ranges, with_files};

/// The most messages of one call, and the most buffers of one message.
const BATCH: u64 = 1024;
/// Bytes of a struct msghdr in an array of struct mmsghdr.
const STRIDE: u64 = 64;
/// Where the length of a message lies in a struct mmsghdr.
const LENGTH: u64 = 56;
/// The most bytes of control messages that are sent at once.
const CONTROL: usize = 20_480;
/// Bytes of a struct cmsghdr.
const HEAD: usize = 16;
/// The level of the control messages below.
const SOL_SOCKET: i32 = 1;
const SCM_RIGHTS: i32 = 1;
const SCM_CREDENTIALS: i32 = 2;

/// A struct msghdr, as a program has it.
struct Header {
    at: u64,
    name: u64,
    name_len: i32,
    buffers: u64,
    count: u64,
    control: u64,
    control_len: usize,
}

impl Header {
    /// # Errors
    /// EFAULT; EINVAL; EMSGSIZE for too many buffers.
    fn read(at: u64) -> Result<Header, Errno> {
        let raw = UserPtr::<[u64; 7]>::new(at).read().map_err(fault)?;
        let [name, len, buffers, count, control, control_len, _] = raw;
        let name_len = if name == 0 { 0 } else { len as i32 };
        if name_len < 0 {
            return Err(Errno::EINVAL);
        }
        if count > BATCH {
            return Err(Errno::EMSGSIZE);
        }
        Ok(Header {
            at,
            name,
            name_len: name_len.min(super::ADDRESS as i32),
            buffers,
            count,
            control,
            control_len: usize::try_from(control_len).unwrap_or(usize::MAX),
        })
    }

    fn buffer(&self) -> Result<IoBuf<'static>, Errno> {
        Ok(IoBuf::vector(user_ranges(self.buffers, self.count)?))
    }
}

/// The result of a receive: the bytes copied, or with MSG_TRUNC those that the packet had.
pub fn count(socket: &dyn Socket, got: &Received, flags: u32) -> u64 {
    let whole = flags & msg::TRUNC != 0 && socket.kind() != Type::Stream;
    (if whole { got.whole } else { got.bytes }) as u64
}

/// What the control messages of a send say.
#[derive(Default)]
struct Control<'a> {
    ids: Option<Ids>,
    files: Vec<FileRef>,
    /// Those of the levels of protocols.
    others: Vec<socket::Control<'a>>,
}

fn word(bytes: &[u8], at: usize) -> i32 {
    let word = bytes.get(at..at + 4).and_then(|w| w.try_into().ok());
    word.map_or(0, i32::from_ne_bytes)
}

/// The bytes of the control messages of a send.
///
/// # Errors
/// ENOBUFS, EFAULT.
fn control_bytes(header: &Header) -> Result<Vec<u8>, Errno> {
    let len = header.control_len;
    if len > CONTROL {
        return Err(Errno::ENOBUFS);
    }
    let mut raw = alloc::vec![0; len];
    let mut from = IoBuf::user(header.control, len);
    if len > 0 && from.take(&mut raw).map_err(fault)? < len {
        return Err(Errno::EFAULT);
    }
    Ok(raw)
}

impl<'a> Control<'a> {
    /// # Errors
    /// EINVAL, ENOMEM; EBADF for a descriptor; EPERM for ids.
    fn read(mut rest: &'a [u8]) -> Result<Control<'a>, Errno> {
        let mut control = Control::default();
        while rest.len() >= HEAD {
            let size = word(rest, 0) as u32 as usize;
            if size < HEAD || size > rest.len() || word(rest, 4) != 0 {
                return Err(Errno::EINVAL);
            }
            let data = &rest[HEAD..size];
            match (word(rest, 8), word(rest, 12)) {
                (SOL_SOCKET, kind) => control.add(kind, data)?,
                (level, kind) => {
                    control.others.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
                    control.others.push(socket::Control { level, kind, data });
                }
            }
            rest = &rest[size.next_multiple_of(8).min(rest.len())..];
        }
        Ok(control)
    }

    fn add(&mut self, kind: i32, data: &[u8]) -> Result<(), Errno> {
        match kind {
            SCM_RIGHTS => {
                let n = data.len() / 4;
                if self.files.len() + n > MOST {
                    return Err(Errno::EINVAL);
                }
                self.files.try_reserve_exact(n).map_err(|_| Errno::ENOMEM)?;
                for i in 0..n {
                    self.files.push(file(word(data, 4 * i))?);
                }
                Ok(())
            }
            SCM_CREDENTIALS if data.len() == 12 => {
                let ids = Ids {
                    pid: word(data, 0) as u32,
                    uid: word(data, 4) as u32,
                    gid: word(data, 8) as u32,
                };
                if !ids.may_be_sent(&current().cred()) {
                    return Err(Errno::EPERM);
                }
                self.ids = Some(ids);
                Ok(())
            }
            _ => Err(Errno::EINVAL),
        }
    }
}

fn send_one(file: &FileRef, at: u64, flags: u32) -> Result<u64, Errno> {
    let header = Header::read(at)?;
    let to = match header.name_len {
        0 => None,
        len => Some(address(header.name, len)?),
    };
    let mut buf = header.buffer()?;
    let raw = control_bytes(&header)?;
    let control = Control::read(&raw)?;
    let rights = match control.files.is_empty() {
        true => None,
        false => Some(Rights::new(control.files)?),
    };
    let message = Message {
        to: to.as_deref(),
        ids: control.ids,
        rights,
        control: &control.others,
        nonblocking: false,
    };
    send(file, &mut buf, message, flags)
}

/// sendmsg(2).
pub fn sendmsg(a: &mut Args) -> Result<u64, Errno> {
    send_one(&file_of(a.int(0))?, a.get(1), a.uint(2))
}

/// sendmmsg(2). An error after the first message is not reported, as in Linux.
pub fn sendmmsg(a: &mut Args) -> Result<u64, Errno> {
    let file = file_of(a.int(0))?;
    let mut done = 0;
    while done < u64::from(a.uint(2)).min(BATCH) {
        let at = a.get(1).wrapping_add(done * STRIDE);
        let sent = send_one(&file, at, a.uint(3)).and_then(|n| put_length(at, n));
        match sent {
            Ok(()) => done += 1,
            Err(e) if done == 0 => return Err(e),
            Err(_) => break,
        }
    }
    Ok(done)
}

fn put_length(at: u64, n: u64) -> Result<(), Errno> {
    let length = UserPtr::<u32>::new(at.wrapping_add(LENGTH));
    length.write(&(n as u32)).map_err(fault)
}

/// The control messages of a receive, as they are written one after the other.
struct Writer {
    at: u64,
    left: usize,
    used: usize,
    flags: u32,
}

impl Writer {
    /// Writes one message with `data`, as much of it as there is room for.
    fn put(&mut self, (level, kind): (i32, i32), data: &[u8]) -> Result<(), Errno> {
        if self.at == 0 || self.left < HEAD {
            self.flags |= msg::CTRUNC;
            return Ok(());
        }
        let whole = HEAD + data.len();
        let size = whole.min(self.left);
        if size < whole {
            self.flags |= msg::CTRUNC;
        }
        let head = [size as u64, (kind as u64) << 32 | level as u64];
        UserPtr::<[u64; 2]>::new(self.at)
            .write(&head)
            .map_err(fault)?;
        let n = size - HEAD;
        let mut to = IoBuf::user(self.at + HEAD as u64, n);
        if n > 0 && to.put(&data[..n]).map_err(fault)? < n {
            return Err(Errno::EFAULT);
        }
        self.advance(size);
        Ok(())
    }

    fn advance(&mut self, size: usize) {
        let step = size.next_multiple_of(8).min(self.left);
        self.at += step as u64;
        self.left -= step;
        self.used += step;
    }

    /// Gives descriptors to `files`, as many as there is room for, and writes them. The others are closed.
    fn put_files(&mut self, files: Vec<FileRef>, cloexec: bool) -> Result<(), Errno> {
        let most = match self.at {
            0 => 0,
            _ => self.left.saturating_sub(HEAD) / 4,
        };
        let (all, mut done) = (files.len(), 0);
        let limit = fd_limit();
        let words = UserPtr::<i32>::new(self.at.wrapping_add(HEAD as u64));
        for file in files.into_iter().take(most) {
            let added = with_files(|files| files.add(file.clone(), cloexec, 0, limit));
            let Ok(fd) = added else { break };
            if words.add(done).write(&fd).is_err() {
                with_files(|files| {
                    files.undo(&[(fd, &file)]);
                    Ok(())
                })?;
                break;
            }
            done += 1;
        }
        if done < all {
            self.flags |= msg::CTRUNC;
        }
        if done > 0 {
            let size = HEAD + 4 * done;
            let head = [size as u64, (SCM_RIGHTS as u64) << 32 | SOL_SOCKET as u64];
            UserPtr::<[u64; 2]>::new(self.at)
                .write(&head)
                .map_err(fault)?;
            self.advance(size);
        }
        Ok(())
    }
}

fn receive_one(file: &FileRef, at: u64, flags: u32) -> Result<u64, Errno> {
    let header = Header::read(at)?;
    let mut buf = header.buffer()?;
    let socket = of(file)?;
    let got = receive(file, &mut buf, flags)?;
    let n = count(socket, &got, flags);
    let mut out = Writer {
        at: header.control,
        left: header.control_len,
        used: 0,
        flags: flags & msg::CMSG_CLOEXEC,
    };
    if got.whole > got.bytes && socket.kind() != Type::Stream {
        out.flags |= msg::TRUNC;
    }
    if let Some((kind, parts)) = option::stamp(socket, got.stamp) {
        out.put(
            (SOL_SOCKET, kind),
            parts.map(u64::to_ne_bytes).as_flattened(),
        )?;
    }
    if let Some(ids) = got.ids {
        let words = [ids.pid, ids.uid, ids.gid].map(u32::to_ne_bytes);
        out.put((SOL_SOCKET, SCM_CREDENTIALS), words.as_flattened())?;
    }
    for note in &got.notes {
        let (data, len) = &note.data;
        out.put((note.level, note.kind), &data[..*len])?;
    }
    if !got.files.is_empty() {
        out.put_files(got.files, flags & msg::CMSG_CLOEXEC != 0)?;
    }
    if header.name != 0 {
        let len_at = header.at + 8;
        put_address(header.name, len_at, got.from.as_ref())?;
    }
    let words = UserPtr::<u64>::new(header.at);
    words.add(5).write(&(out.used as u64)).map_err(fault)?;
    UserPtr::<u32>::new(header.at + 48)
        .write(&out.flags)
        .map_err(fault)?;
    Ok(n)
}

/// recvmsg(2).
pub fn recvmsg(a: &mut Args) -> Result<u64, Errno> {
    receive_one(&file_of(a.int(0))?, a.get(1), a.uint(2))
}

/// recvmmsg(2). The timeout is looked at after each message, as in Linux.
pub fn recvmmsg(a: &mut Args) -> Result<u64, Errno> {
    let limit = UserPtr::<[i64; 2]>::new(a.get(4));
    let until = match limit.is_null() {
        true => u64::MAX,
        false => match limit.read().map_err(fault)? {
            [s, ns] if s >= 0 && (0..1_000_000_000).contains(&ns) => {
                let whole = (s as u64).saturating_mul(1_000_000_000);
                let wait = whole.saturating_add(ns as u64);
                monotonic_ns().saturating_add(wait)
            }
            _ => return Err(Errno::EINVAL),
        },
    };
    let file = file_of(a.int(0))?;
    let mut flags = a.uint(3);
    let mut done = 0;
    while done < u64::from(a.uint(2)).min(BATCH) {
        let at = a.get(1).wrapping_add(done * STRIDE);
        let got = receive_one(&file, at, flags & !msg::WAITFORONE).and_then(|n| put_length(at, n));
        match got {
            Ok(()) => done += 1,
            Err(e) if done == 0 => return Err(e),
            Err(_) => break,
        }
        if flags & msg::WAITFORONE != 0 {
            flags |= msg::DONTWAIT;
        }
        if monotonic_ns() >= until {
            break;
        }
    }
    if !limit.is_null() && done > 0 {
        let left = until.saturating_sub(monotonic_ns());
        let left = [left / 1_000_000_000, left % 1_000_000_000].map(|n| n as i64);
        limit.write(&left).map_err(fault)?;
    }
    Ok(done)
}
