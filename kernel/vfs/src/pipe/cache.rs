//! Per-CPU cache of pipes.
//!
//! The last close of a pipe leaves it, with its small buffer, to the CPU that closed it, up to a
//! limit; the next pipe on that CPU takes it from there. So a shell that makes pipe after pipe
//! allocates nothing. Beyond the limit pipes are really freed, under a lock of this CPU that queues
//! its waiters: when a great many processes die at once, at most one thread a CPU contends for
//! the allocator, and the rest wait in line instead of spinning.

use alloc::sync::Arc;
use alloc::vec::Vec;

use ksync::{Mutex, Once, PerCpu, Spin};

use super::Pipe;
use crate::error::{FsError, Result};

ksync::lock_class!(pub CacheLock, "pipe cache", rank = 85);
ksync::lock_class!(pub TeardownLock, "pipe teardown", rank = 55);

/// Pipes that one CPU keeps.
const LIMIT: usize = 16;

struct Cpu {
    spare: Spin<Vec<Arc<Pipe>>, CacheLock>,
    teardown: Mutex<(), TeardownLock>,
}

static CPUS: Once<PerCpu<Cpu>> = Once::new();

/// Sets up the caches.
pub fn init(ncpus: usize) {
    let _ = CPUS.set(PerCpu::new(ncpus, |_| Cpu {
        spare: Spin::new(Vec::with_capacity(LIMIT)),
        teardown: Mutex::new(()),
    }));
}

/// A pipe that nobody has open.
pub(super) fn get() -> Result<Arc<Pipe>> {
    if let Some(cpus) = CPUS.get() {
        let pin = ksync::pin();
        let spare = cpus.get(&pin).spare.lock().pop();
        if let Some(pipe) = spare {
            return Ok(pipe);
        }
    }
    mem::admit_process().map_err(|_| FsError::NoMemory)?;
    Ok(Arc::new(Pipe::new()))
}

/// Takes a pipe that the last end leaves; `pipe` is replaced only if it was kept.
///
/// Somebody else may still hold a reference (a fifo's inode, a sleeper on his way out); then the
/// pipe goes with that.
pub(super) fn put(pipe: &mut Arc<Pipe>) {
    let Some(cpus) = CPUS.get() else {
        return;
    };
    let Some(inner) = Arc::get_mut(pipe) else {
        return;
    };
    let cpu = {
        let pin = ksync::pin();
        pin.cpu()
    };
    let mine = cpus.of(cpu);
    if mine.spare.lock().len() < LIMIT {
        let s = inner.state.get_mut();
        (s.reader_opens, s.writer_opens) = (0, 0);
        *inner.ino.get_mut() = 0;
        let keep = pipe.clone();
        let mut spare = mine.spare.lock();
        if spare.len() < LIMIT {
            spare.push(keep);
            return;
        }
    }
    let _line = mine.teardown.lock();
    if let Some(inner) = Arc::get_mut(pipe) {
        inner.state.get_mut().ring.release();
    }
}

/// Frees what the caches hold, for the exact accounting of memory.
pub fn drain() {
    for cpu in CPUS.get().into_iter().flat_map(PerCpu::iter) {
        loop {
            let Some(pipe) = cpu.spare.lock().pop() else {
                break;
            };
            drop(pipe);
        }
    }
}
