//! System V objects, and the calls of their users.
#![allow(dead_code, unused_imports, reason = "no test uses all of it")]

use cred::Cred;
use ipc::sysv::error::Result;
use ipc::sysv::perm::{Caller, PRIVATE, flag};
use ipc::sysv::registry::Wanted;
use ipc::sysv::sem::undo::List;
use ipc::sysv::sem::{self, Operation};
use ipc::sysv::{msg, shm};
use task::park::Deadline;
use vm::space::{MapArgs, MapFlags, Source};
use vm::{EntryFlags, MapProt};

#[path = "../epolls/mod.rs"]
mod epolls;

pub use epolls::on;
pub use epolls::pipe_users::threads::{self, MS, interrupt, nap, spawn, wait_for_ends};

/// SEM_UNDO, IPC_NOWAIT.
pub const UNDO: u16 = 0x1000;
pub const NO_WAIT: u16 = 0o4000;
pub const CREATE: u32 = flag::CREATE | 0o600;
pub const MAKE: Wanted = Wanted {
    key: PRIVATE,
    flags: 0o600,
};

/// The super-user, in process `pid`.
pub fn by(pid: u32) -> Caller<'static> {
    static ROOT: Cred = Cred::root();
    Caller { cred: &ROOT, pid }
}

/// semget(2) of a private set.
pub fn set(len: i32) -> i32 {
    sem::get(MAKE, len, by(1)).expect("a set")
}

/// An operation: number, what is added, flags.
pub type Op = (u16, i16, u16);

fn operations(ops: &[Op]) -> Vec<Operation> {
    let one = |&(number, by, flags): &Op| Operation { number, by, flags };
    ops.iter().map(one).collect()
}

/// semop(2).
pub fn op(id: i32, ops: &[Op]) -> Result<()> {
    sem::operate(id, operations(ops), Deadline::Never, None, by(1))
}

/// semop(2) with a list of adjustments.
pub fn op_with(list: &List, id: i32, ops: &[Op]) -> Result<()> {
    sem::operate(id, operations(ops), Deadline::Never, Some(list), by(1))
}

/// semtimedop(2).
pub fn op_for(id: i32, ops: &[Op], ns: u64) -> Result<()> {
    sem::operate(id, operations(ops), Deadline::after(ns), None, by(1))
}

/// GETVAL.
pub fn value(id: i32) -> Result<i32> {
    Ok(sem::registry().find(id)?.read(0, by(1))?.value)
}

/// shmget(2) of a private segment.
pub fn segment(pages: u64) -> i32 {
    shm::get(MAKE, pages * 4096, by(1)).expect("a segment")
}

/// The attachments that shmctl(2) shows; `None` if there is no such segment.
pub fn attached(id: i32) -> Option<u64> {
    let segment = shm::registry().find(id).ok()?;
    segment.shown().map(|shown| shown.attached)
}

/// An address space.
pub struct Memory(pub std::sync::Arc<mem::Space>);

impl Memory {
    pub fn new() -> Memory {
        Memory(mem::Space::new(mem::vm()).expect("memory for a space"))
    }

    /// shmat(2).
    pub fn attach(&self, id: i32) -> Result<u64> {
        let held = shm::hold(id, (true, false), by(1))?;
        let args = MapArgs {
            addr: 0,
            len: held.size(),
            prot: MapProt::READ | MapProt::WRITE,
            maxprot: MapProt::all(),
            flags: EntryFlags::SHARED,
            place: MapFlags::default(),
            source: Source::Object(held.object(), 0),
        };
        Ok(self.0.map(mem::vm(), &args).expect("room for a mapping"))
    }

    /// shmdt(2).
    pub fn detach(&self, at: u64) -> bool {
        let unmapped = self.0.unmap_object(mem::vm(), at, &shm::is_segment);
        unmapped.is_ok()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        mem::clear(&self.0);
    }
}
