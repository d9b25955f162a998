//! The caches of unused pipes, one for each CPU.
//!
//! The last close of a pipe puts it, with its small buffer, into the cache of the CPU that closes it, up to a limit, and the next pipe made
//! on that CPU is taken from there. So a shell that makes one pipe after another allocates nothing. The
//! buffers of a pipe beyond the limit are freed under a sleeping lock of this CPU: when a great many processes exit at once, at most one thread of each
//! CPU contends for the allocator, and the others sleep instead of spinning.

use alloc::sync::Arc;
use alloc::vec::Vec;

use ksync::{Mutex, Once, PerCpu, Spin};

use super::state::Pipe;
use crate::error::{FsError, Result};
use crate::lock::LockSlot;

ksync::lock_class!(pub CacheLock, "pipe cache", rank = 85);
ksync::lock_class!(pub TeardownLock, "pipe teardown", rank = 55);

/// The most pipes in the cache of a CPU.
const LIMIT: usize = 16;

struct Cpu {
    spare: Spin<Vec<Arc<Pipe>>, CacheLock>,
    teardown: Mutex<(), TeardownLock>,
}

hal::machine_static! {
    static CPUS: Once<PerCpu<Cpu>> = Once::new();
}

/// Sets the caches up.
pub(crate) fn init(ncpus: usize) {
    let _ = CPUS.set(PerCpu::new(ncpus, |_| Cpu {
        spare: Spin::new(Vec::with_capacity(LIMIT)),
        teardown: Mutex::new(()),
    }));
}

impl Pipe {
    /// A pipe that is not open yet. It is from this CPU's cache, or allocated if that is empty; this may wait for memory.
    ///
    /// # Errors
    /// `NoMemory` if the wait ends without any.
    pub fn create() -> Result<Arc<Pipe>> {
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
}

/// Puts a pipe that has been closed into this CPU's cache; if the cache is full, frees its buffers, and may sleep for it.
///
/// Does nothing if a thread that still wakes up has a reference, which then frees the pipe, or if a fifo's inode has a weak one:
/// the caller's drop frees what the pipe holds.
pub(super) fn put(pipe: &mut Arc<Pipe>) {
    let Some(cpus) = CPUS.get() else {
        return;
    };
    let Some(inner) = Arc::get_mut(pipe) else {
        return;
    };
    let pin = ksync::pin();
    let mine = cpus.of(pin.cpu());
    // With preemption off, nobody else adds to this CPU's cache.
    if mine.spare.lock().len() < LIMIT {
        let s = inner.state.get_mut();
        (s.reader_opens, s.writer_opens) = (0, 0);
        *inner.ino.get_mut() = 0;
        inner.locks = LockSlot::new();
        for queue in [&mut inner.readers, &mut inner.writers, &mut inner.pollers] {
            queue.clear();
        }
        mine.spare.lock().push(pipe.clone());
        return;
    }
    drop(pin);
    let _line = mine.teardown.lock();
    if let Some(inner) = Arc::get_mut(pipe) {
        inner.state.get_mut().ring.release();
    }
}

/// Frees the cached pipes, for the exact accounting of memory.
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
