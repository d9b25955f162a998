//! Kernel threads, which never enter user mode.

use alloc::boxed::Box;
use alloc::sync::Arc;

use cred::Cred;
use hal::context;
use ksync::CpuPin;

use crate::ids::{self, Id};
use crate::sched::{self, CpuMask, Entity, Policy};
use crate::thread::{KernelEntry, NewThread, Thread, comm_from, flag};
use crate::upcalls;

/// There is no memory for a thread, or no id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoThread;

/// Makes a kernel thread that runs `entry`.
fn make(
    id: Id,
    name: &str,
    sched: Entity,
    machine: context::ThreadState,
    entry: Option<KernelEntry>,
) -> Arc<Thread> {
    Thread::new(NewThread {
        id,
        upper: (upcalls::get().kernel_part)(),
        comm: comm_from(name.as_bytes()),
        cred: Arc::new(Cred::root()),
        sched,
        machine,
        flags: flag::KERNEL,
        entry,
    })
}

/// Makes the caller, which runs on this CPU's first stack, the CPU's idle thread. Called once on each CPU.
pub fn become_idle(pin: &CpuPin) {
    let cpu = pin.cpu();
    let entity = Entity::new(cpu, 19, Policy::Idle, &CpuMask::one(cpu));
    let machine = context::ThreadState::current();
    sched::first_switch(pin, &make(Id::idle(), "idle", entity, machine, None));
}

/// Makes a kernel thread, with the credentials of root, that runs `entry`, on CPU `cpu` or on any one, and ends when `entry`
/// returns. Returns its tid.
///
/// # Errors
/// [`NoThread`] if there is no id or no memory for its stack; nothing has been made then.
pub fn spawn(
    name: &str,
    cpu: Option<usize>,
    nice: i8,
    entry: impl FnOnce() + Send + 'static,
) -> Result<u32, NoThread> {
    let id = Id::alloc().ok_or(NoThread)?;
    let machine = context::ThreadState::new(sched::thread_start, false).map_err(|_| NoThread)?;
    let mask = cpu.map_or(CpuMask::all(), CpuMask::one);
    let entity = Entity::new(cpu.unwrap_or_else(hal::cpu::id), nice, Policy::Other, &mask);
    let t = make(id, name, entity, machine, Some(Box::new(entry)));
    let tid = t.tid();
    ids::publish(&t);
    (upcalls::get().kernel_thread_made)(&ksync::pin(), &t);
    sched::start(&t);
    Ok(tid)
}
