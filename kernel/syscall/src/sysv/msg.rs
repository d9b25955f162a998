//! msgget(2), msgsnd(2), msgrcv(2), msgctl(2).

use abi::raw::general as nr;

use hal::uaccess::UserPtr;
use ipc::sysv::error::SysvError;
use ipc::sysv::msg::{self, Choice, Message, NewSettings, Queue, Shown, Want};
use ipc::sysv::perm::flag;
use ipc::sysv::registry::Wanted;
use ksync::atomic::{AtomicU64, Ordering::Relaxed};

use super::{as_caller, command, new_owner, pair, perm_words};
use crate::call::{Args, Handler};
use crate::errno::Errno;
use crate::fsutil::user_bytes;

/// The calls of this file.
pub const HANDLERS: &[(u32, Handler)] = &[
    (nr::__NR_msgget, msgget),
    (nr::__NR_msgsnd, msgsnd),
    (nr::__NR_msgrcv, msgrcv),
    (nr::__NR_msgctl, msgctl),
];

/// Flags of msgrcv(2), with Linux's numbers.
mod only {
    pub const NOERROR: u32 = 0o10000;
    pub const EXCEPT: u32 = 0o20000;
    pub const COPY: u32 = 0o40000;
    /// Commands of msgctl(2).
    pub const STAT: i32 = 11;
    pub const INFO: i32 = 12;
    pub const STAT_ANY: i32 = 13;
}

/// Words of a `struct msqid64_ds`.
const DS: usize = 15;
/// Bytes of a message's type, before its text.
const KIND: u64 = 8;

fn msgget(a: &mut Args) -> Result<u64, Errno> {
    let (key, flags) = (a.int(0), a.uint(1));
    let id = as_caller(|caller| msg::get(Wanted { key, flags }, caller))?;
    Ok(id as u64)
}

/// The errno of a transfer: as in Linux, a wait that no handler has ended goes on.
fn ended(e: SysvError) -> Errno {
    match e {
        SysvError::Interrupted => Errno::ERESTARTNOHAND,
        e => e.into(),
    }
}

fn msgsnd(a: &mut Args) -> Result<u64, Errno> {
    let (id, at, len, flags) = (a.int(0), a.get(1), a.get(2), a.uint(3));
    let kind = UserPtr::<i64>::new(at).read()?;
    if len > msg::MAX_MESSAGE.load(Relaxed) || id < 0 || kind < 1 {
        return Err(Errno::EINVAL);
    }
    mem::admit_process()?;
    let text = user_bytes(at.wrapping_add(KIND), len as usize)?;
    let waits = flags & flag::NO_WAIT == 0;
    as_caller(|caller| {
        let message = Message::new(kind, text, caller)?;
        msg::send(id, message, waits, caller)
    })
    .map_err(ended)?;
    Ok(0)
}

/// msgrcv(2). As in Linux, a message that cannot be copied to the caller is lost.
fn msgrcv(a: &mut Args) -> Result<u64, Errno> {
    let (id, at, room, kind, flags) = (a.int(0), a.get(1), a.get(2), a.get(3) as i64, a.uint(4));
    let has = |bit: u32| flags & bit != 0;
    if id < 0 || i64::try_from(room).is_err() {
        return Err(Errno::EINVAL);
    }
    let want = Want {
        choice: match kind {
            0 => Choice::Any,
            i64::MIN => Choice::UpTo(i64::MAX),
            kind if kind < 0 => Choice::UpTo(-kind),
            kind if has(only::EXCEPT) => Choice::Except(kind),
            kind => Choice::Of(kind),
        },
        room: usize::try_from(room).unwrap_or(usize::MAX),
        cuts: has(only::NOERROR),
        waits: !has(flag::NO_WAIT),
    };
    let (kind, text) = if has(only::COPY) {
        if want.waits || has(only::EXCEPT) {
            return Err(Errno::EINVAL);
        }
        as_caller(|caller| msg::copy(id, kind as u64, want, caller))?
    } else {
        let message = as_caller(|caller| msg::receive(id, want, caller)).map_err(ended)?;
        (message.kind, message.text)
    };
    let len = text.len().min(want.room);
    UserPtr::new(at).write(&kind)?;
    hal::user::copy_out(at.wrapping_add(KIND), &text[..len])?;
    Ok(len as u64)
}

/// msgctl(2).
fn msgctl(a: &mut Args) -> Result<u64, Errno> {
    let (id, cmd, buf) = (a.int(0), a.int(1), a.get(2));
    if id < 0 || cmd < 0 {
        return Err(Errno::EINVAL);
    }
    match cmd {
        command::INFO | only::INFO => return info(buf, cmd == only::INFO),
        command::STAT => {
            let shown = as_caller(|c| msg::registry().find(id)?.stat(false, c))?;
            UserPtr::new(buf).write(&words(&shown))?;
        }
        only::STAT | only::STAT_ANY => {
            let shown = as_caller(|c| {
                let queue = msg::registry().at_argument(id)?;
                Queue::stat(&queue, cmd == only::STAT_ANY, c)
            })?;
            UserPtr::new(buf).write(&words(&shown))?;
            return Ok(shown.perm.id as u64);
        }
        command::SET => {
            let words: [u64; DS] = UserPtr::new(buf).read()?;
            let new = NewSettings {
                owner: new_owner(&words),
                most: words[11],
            };
            as_caller(|c| msg::set(id, new, c))?;
        }
        command::REMOVE => as_caller(|c| msg::remove(id, c))?,
        _ => return Err(Errno::EINVAL),
    }
    Ok(0)
}

/// The words of a `struct msqid64_ds`.
fn words(s: &Shown) -> [u64; DS] {
    let [sent, received, changed] = s.times;
    let mut out = [0; DS];
    out[..6].copy_from_slice(&perm_words(&s.perm));
    out[6..13].copy_from_slice(&[
        sent,
        received,
        changed,
        s.bytes,
        s.messages,
        s.most,
        pair(s.last_sender, s.last_receiver),
    ]);
    out
}

/// IPC_INFO and, with `sums`, MSG_INFO: a `struct msginfo`.
fn info(buf: u64, sums: bool) -> Result<u64, Errno> {
    let int = |limit: &AtomicU64| limit.load(Relaxed) as u32;
    let of_queue = int(&msg::MAX_BYTES);
    let [pool, map, all] = if sums {
        let sums = msg::sums();
        [sums.queues as u32, sums.messages as u32, sums.bytes as u32]
    } else {
        [512_000, 16384, 16384]
    };
    let queues = int(&msg::MAX_QUEUES);
    let message = int(&msg::MAX_MESSAGE);
    let out = [pool, map, message, of_queue, queues, 16, all, 0xffff];
    UserPtr::new(buf).write(&out)?;
    Ok(msg::registry().highest().into())
}
