//! POSIX message queues, and the calls of their users.
#![allow(dead_code, unused_imports, reason = "no test uses all of it")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use cred::{CapSet, Charge, Cred, Payer};
use ipc::mqueue::{self, How, Message, Notice, Registration};
use task::account;
use task::current::current;
use task::park::Deadline;
use vfs::error::Result;
use vfs::file::{FileRef, o};
use vfs::setattr::NewMode;

#[path = "../epolls/mod.rs"]
mod epolls;

pub use epolls::pipe_users::threads::{self, MS, interrupt, nap, spawn, wait_for_ends};

pub const MAKE: u32 = o::CREAT | o::RDWR;

/// Runs `body` in a thread of a machine with so many CPUs and no queue.
pub fn on(cpus: usize, body: impl FnOnce() + Send + 'static) {
    epolls::on(cpus, move || {
        mqueue::mount().expect("memory for a file system");
        body();
    });
}

/// The credentials of a user without privileges.
pub fn user(uid: u32) -> Cred {
    let mut cred = Cred::root();
    (cred.uid, cred.euid, cred.fsuid) = (uid, uid, uid);
    (cred.gid, cred.egid, cred.fsgid) = (uid, uid, uid);
    cred.caps.effective = CapSet::EMPTY;
    cred.payer = account::of_thread(uid).expect("memory for an account");
    cred
}

/// How a queue of so many messages of so many bytes is opened, or made.
pub fn how(flags: u32, messages: i64, size: i64) -> How {
    How {
        flags,
        mode: NewMode::exact(0o600),
        shape: Some([messages, size]),
        limit: 1 << 20,
    }
}

/// Opens or makes a queue as the super-user.
pub fn open(name: &str, flags: u32, messages: i64) -> Result<FileRef> {
    mqueue::open(&Cred::root(), name.as_bytes(), how(flags, messages, 8))
}

/// A new queue.
pub fn queue(messages: i64) -> FileRef {
    open("queue", MAKE | o::EXCL, messages).expect("memory for a queue")
}

/// mq_unlink(2) as the super-user.
pub fn unlink(name: &str) -> Result<()> {
    mqueue::unlink(&Cred::root(), name.as_bytes())
}

/// mq_timedsend(2) of one byte.
pub fn send_until(file: &FileRef, byte: u8, priority: u32, deadline: Deadline) -> Result<()> {
    mqueue::check_send(file, 1)?;
    mqueue::send(file, Message::new(priority, vec![byte]), deadline)
}

pub fn send(file: &FileRef, byte: u8, priority: u32) -> Result<()> {
    send_until(file, byte, priority, Deadline::Never)
}

/// mq_timedreceive(2) of one byte.
pub fn receive_until(file: &FileRef, deadline: Deadline) -> Result<u8> {
    mqueue::check_room(file, 8)?;
    mqueue::receive(file, deadline).map(|message| message.text[0])
}

pub fn receive(file: &FileRef) -> Result<u8> {
    receive_until(file, Deadline::Never)
}

/// The messages in a queue.
pub fn count(file: &FileRef) -> usize {
    mqueue::shape(file).expect("a queue").1
}

/// How often a process was told of a message, and of the end of its registration.
#[derive(Default)]
pub struct Told {
    pub arrived: AtomicU32,
    pub removed: AtomicU32,
    pub dead: AtomicU32,
}

struct Teller(Arc<Told>);

impl Notice for Teller {
    fn lives(&self) -> bool {
        self.0.dead.load(SeqCst) == 0
    }
    fn arrived(self: Box<Self>) {
        self.0.arrived.fetch_add(1, SeqCst);
    }
    fn removed(self: Box<Self>) {
        self.0.removed.fetch_add(1, SeqCst);
    }
}

impl Told {
    /// Arrivals and ends.
    pub fn seen(&self) -> (u32, u32) {
        (self.arrived.load(SeqCst), self.removed.load(SeqCst))
    }
}

/// mq_notify(2).
pub fn register(file: &FileRef, told: &Arc<Told>) -> Result<()> {
    let registration = Registration {
        pid: current().tid(),
        how: 1,
        signo: 0,
        notice: Box::new(Teller(told.clone())),
    };
    mqueue::register(file, registration)
}
