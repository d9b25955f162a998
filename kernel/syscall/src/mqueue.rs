//! mq_open(2), mq_unlink(2), mq_timedsend(2), mq_timedreceive(2), mq_notify(2), mq_getsetattr(2).

use abi::raw::general as nr;
use alloc::boxed::Box;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::ptr;

use hal::uaccess::UserPtr;
use ipc::mqueue::{self, How, Message, Notice, Registration};
use net::netlink::AF_NETLINK;
use net::socket::SocketFile;
use proc::process::Process;
use proc::rlimit::Resource;
use proc::signal::{self, SigFields, SigInfo, code};
use proc::{UserThreadExt, ids};
use task::current::current;
use task::park::Deadline;
use task::time::real_to_monotonic;
use vfs::file::{FileRef, o};
use vfs::open::CHANGING;

use super::errno::Errno;
use super::fsutil::{Caller, Slot, real_file, user_bytes, user_path};
use super::time::read_timespec;
use crate::call::{Args, Handler};

/// The calls of this file.
pub const HANDLERS: &[(u32, Handler)] = &[
    (nr::__NR_mq_open, mq_open),
    (nr::__NR_mq_unlink, mq_unlink),
    (nr::__NR_mq_timedsend, timedsend),
    (nr::__NR_mq_timedreceive, timedreceive),
    (nr::__NR_mq_notify, notify),
    (nr::__NR_mq_getsetattr, getsetattr),
];

/// A struct mq_attr: flags, most messages, most bytes of one, messages; and four that are 0.
type Attributes = [i64; 8];

/// A name as the kernel sees it, without the slash that the library takes off.
///
/// # Errors
/// EFAULT, ENAMETOOLONG, ENOMEM; ENOENT if it is empty.
fn user_name(addr: u64) -> Result<Vec<u8>, Errno> {
    let name = user_path(addr)?;
    if name.is_empty() {
        return Err(Errno::ENOENT);
    }
    Ok(name)
}

/// mq_open(2). As in Linux, the descriptor is always closed by execve(2).
fn mq_open(a: &mut Args) -> Result<u64, Errno> {
    let flags = a.uint(1);
    let wanted = match a.get(3) {
        0 => None,
        at => Some(UserPtr::<Attributes>::new(at).read()?),
    };
    let name = user_name(a.get(0))?;
    let caller = Caller::now();
    let how = How {
        flags,
        mode: caller.new_mode(a.uint(2) & 0o7777),
        shape: wanted.map(|attributes| [attributes[1], attributes[2]]),
        limit: current().process().rlimit(Resource::Msgqueue),
    };
    let slot = Slot::new(CHANGING)?;
    let opened = mqueue::open(&caller.cred, &name, how);
    Ok(slot.fill(opened, o::CLOEXEC)?)
}

fn mq_unlink(a: &mut Args) -> Result<u64, Errno> {
    let name = user_name(a.get(0))?;
    mqueue::unlink(&current().cred(), &name)?;
    Ok(0)
}

/// The time of real time at which a wait ends.
///
/// # Errors
/// EFAULT, EINVAL.
fn deadline(at: u64) -> Result<Deadline, Errno> {
    Ok(match at {
        0 => Deadline::Never,
        at => Deadline::At(real_to_monotonic(read_timespec(at)?)),
    })
}

fn timedsend(a: &mut Args) -> Result<u64, Errno> {
    let deadline = deadline(a.get(4))?;
    let (at, len, priority) = (a.get(1), a.get(2), a.uint(3));
    if priority >= mqueue::PRIORITIES {
        return Err(Errno::EINVAL);
    }
    let file = real_file(a.int(0))?;
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    mqueue::check_send(&file, len)?;
    mem::admit_process()?;
    let text = user_bytes(at, len)?;
    mqueue::send(&file, Message::new(priority, text), deadline)?;
    Ok(0)
}

/// mq_timedreceive(2). As in Linux, a message that cannot be copied to the caller is lost.
fn timedreceive(a: &mut Args) -> Result<u64, Errno> {
    let deadline = deadline(a.get(4))?;
    let (at, room) = (a.get(1), a.get(2));
    let file = real_file(a.int(0))?;
    mqueue::check_room(&file, usize::try_from(room).unwrap_or(usize::MAX))?;
    let message = mqueue::receive(&file, deadline)?;
    UserPtr::new(a.get(3)).write_if_some(&message.priority)?;
    hal::user::copy_out(at, &message.text)?;
    Ok(message.text.len() as u64)
}

fn getsetattr(a: &mut Args) -> Result<u64, Errno> {
    let new = match a.get(1) {
        0 => None,
        at => Some(UserPtr::<Attributes>::new(at).read()?[0]),
    };
    let only = |flags: i64| flags & !i64::from(o::NONBLOCK) == 0;
    if !new.is_none_or(only) {
        return Err(Errno::EINVAL);
    }
    let file = real_file(a.int(0))?;
    let (shape, messages) = mqueue::shape(&file)?;
    let flags = file.flags();
    if let Some(new) = new {
        file.set_flags(flags & !o::NONBLOCK | new as u32);
        if let Some(inode) = file.inode() {
            inode.set_times(Some(vfs::attr::now()), None);
        }
    }
    let sizes = [shape.messages, shape.size, messages].map(|n| n as i64);
    let old: Attributes = [
        (flags & o::NONBLOCK).into(),
        sizes[0],
        sizes[1],
        sizes[2],
        0,
        0,
        0,
        0,
    ];
    UserPtr::new(a.get(2)).write_if_some(&old)?;
    Ok(0)
}

/// How a process is told: `sigev_notify`.
mod how {
    pub const SIGNAL: i32 = 0;
    pub const NONE: i32 = 1;
    pub const THREAD: i32 = 2;
}

/// Bytes that SIGEV_THREAD sends; the last one says what has happened.
const COOKIE: usize = 32;
/// NOTIFY_WOKENUP.
const WOKEN: u8 = 1;
/// NOTIFY_REMOVED.
const REMOVED: u8 = 2;

/// What is done for a process.
enum What {
    /// SIGEV_NONE.
    Nothing,
    /// SIGEV_SIGNAL: the signal, its value, and the program that is to get it.
    Signal { signo: u8, value: u64, program: u32 },
    /// SIGEV_THREAD: the socket, and what is sent.
    Datagram {
        socket: FileRef,
        cookie: [u8; COOKIE],
    },
}

/// A process, and what is done for it.
struct Told {
    pid: u32,
    process: Weak<Process>,
    what: What,
}

impl Told {
    fn datagram(&mut self, event: u8) {
        if let What::Datagram { socket, cookie } = &mut self.what
            && let Some(socket) = SocketFile::of(socket)
        {
            cookie[COOKIE - 1] = event;
            socket.tell(cookie);
        }
    }
}

impl Notice for Told {
    fn lives(&self) -> bool {
        // Its record stays for a while after its end, and longer where a list of processes is read.
        let pin = ksync::pin();
        ids::process(&pin, self.pid)
            .is_some_and(|p| ptr::eq(p, self.process.as_ptr()) && !p.is_zombie())
    }

    fn arrived(mut self: Box<Self>) {
        self.datagram(WOKEN);
        if let What::Signal {
            signo,
            value,
            program,
        } = self.what
            && let Some(process) = self.process.upgrade()
            && process.runs_program(program)
        {
            let me = current();
            let fields = SigFields::Sender {
                pid: me.process().pid(),
                uid: me.cred().uid,
                value,
            };
            let code = code::MESGQ;
            // As in Linux, a signal for which there is no room is lost.
            let _ = signal::queue_process(
                &process,
                SigInfo {
                    signo,
                    code,
                    fields,
                },
            );
        }
    }

    fn removed(mut self: Box<Self>) {
        self.datagram(REMOVED);
    }
}

/// The socket and the bytes of SIGEV_THREAD.
///
/// # Errors
/// EFAULT, EBADF, ENOTSOCK; EINVAL for a socket of another family.
fn datagram(fd: i32, cookie: u64) -> Result<What, Errno> {
    let cookie = UserPtr::new(cookie).read()?;
    let socket = real_file(fd)?;
    let of = SocketFile::of(&socket).ok_or(Errno::ENOTSOCK)?;
    if of.domain() != u32::from(AF_NETLINK) {
        return Err(Errno::EINVAL);
    }
    Ok(What::Datagram { socket, cookie })
}

/// mq_notify(2).
fn notify(a: &mut Args) -> Result<u64, Errno> {
    if a.get(1) == 0 {
        mqueue::unregister(&*real_file(a.int(0))?)?;
        return Ok(0);
    }
    let event: [u64; 8] = UserPtr::new(a.get(1)).read()?;
    let (value, signo, how) = (event[0], event[1] as i32, (event[1] >> 32) as i32);
    let me = current();
    let what = match how {
        how::NONE => What::Nothing,
        how::THREAD => datagram(signo, value)?,
        how::SIGNAL => match u8::try_from(signo) {
            Ok(0) => What::Nothing,
            Ok(signo @ 1..=64) => What::Signal {
                signo,
                value,
                program: me.process().program_number(),
            },
            _ => return Err(Errno::EINVAL),
        },
        _ => return Err(Errno::EINVAL),
    };
    let file = real_file(a.int(0))?;
    mem::admit_process()?;
    let pid = me.process().pid();
    let process = ids::find_process(pid).ok_or(Errno::ESRCH)?;
    let notice = Box::new(Told {
        pid,
        process: Arc::downgrade(&process),
        what,
    });
    mqueue::register(
        &file,
        Registration {
            pid,
            how,
            signo,
            notice,
        },
    )?;
    Ok(0)
}
