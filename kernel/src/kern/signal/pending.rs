//! Signals that wait to be taken.

use alloc::collections::VecDeque;
use core::sync::atomic::{AtomicU64, Ordering};

use ksync::IrqSpin;

use super::super::lock;
use super::{SigInfo, SigSet, sig};

/// A set of pending signals.  A bit says that a signal is pending; the queue has what is known of
/// it, in order, several entries for a real-time signal.  A bit without an entry stands for
/// a signal by the kernel without information.
#[repr(C)]
pub struct Pending {
    /// Written under the queue's lock, read by anybody, and on each way to user mode.
    bits: AtomicU64,
    queue: IrqSpin<VecDeque<SigInfo>, lock::PendingLock>,
}

/// The queue is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

impl Default for Pending {
    fn default() -> Self {
        Self::new()
    }
}

impl Pending {
    /// How far what is read without the lock reaches.
    pub const BITS_END: usize = core::mem::offset_of!(Pending, queue);

    /// Nothing pending.
    pub const fn new() -> Self {
        Pending {
            bits: AtomicU64::new(0),
            queue: IrqSpin::new(VecDeque::new()),
        }
    }

    /// The pending signals.
    #[inline]
    pub fn bits(&self) -> u64 {
        self.bits.load(Ordering::SeqCst)
    }

    /// Makes room for one more entry, so that a `post` in an atomic context can keep it, if there is memory.
    /// Allocates.
    pub(super) fn reserve(&self) {
        let queue = self.queue.lock();
        if queue.len() < queue.capacity() {
            return;
        }
        let want = (queue.capacity() * 2).max(2);
        drop(queue);
        let mut bigger = VecDeque::new();
        if bigger.try_reserve_exact(want).is_err() {
            return;
        }
        let mut queue = self.queue.lock();
        if queue.capacity() < want {
            bigger.extend(queue.drain(..));
            core::mem::swap(&mut *queue, &mut bigger);
        }
        drop(queue);
    }

    /// Adds a signal.  A standard one that is pending already is dropped.  Allocates nothing: a
    /// standard signal without room keeps its bit only, a real-time one is refused, as beyond
    /// `limit` entries.
    pub(super) fn post(&self, info: SigInfo, limit: u64) -> Result<(), Full> {
        let bit = SigSet::one(info.signo).0;
        let mut queue = self.queue.lock();
        let real_time = info.signo >= sig::RTMIN;
        if !real_time && self.bits() & bit != 0 {
            return Ok(());
        }
        if queue.len() < queue.capacity() && (queue.len() as u64) < limit {
            queue.push_back(info);
        } else if real_time {
            return Err(Full);
        }
        self.bits.fetch_or(bit, Ordering::SeqCst);
        Ok(())
    }

    /// Takes the first signal of `set`: those caused by the thread's own instructions first, then by
    /// number.
    pub(super) fn take(&self, set: SigSet) -> Option<SigInfo> {
        let ready = self.bits() & set.0;
        if ready == 0 {
            return None;
        }
        let mut queue = self.queue.lock();
        let ready = self.bits() & set.0;
        let first = match ready & SigSet::SYNCHRONOUS.0 {
            0 => ready,
            own => own,
        };
        if first == 0 {
            return None;
        }
        let signo = first.trailing_zeros() as u8 + 1;
        let at = queue.iter().position(|i| i.signo == signo);
        let info = at
            .and_then(|i| queue.remove(i))
            .unwrap_or(SigInfo::kernel(signo));
        if !queue.iter().any(|i| i.signo == signo) {
            self.bits.fetch_and(!(1 << (signo - 1)), Ordering::SeqCst);
        }
        Some(info)
    }

    /// Forgets the signals of `set`.
    pub(super) fn flush(&self, set: SigSet) {
        if self.bits() & set.0 == 0 {
            return;
        }
        let mut queue = self.queue.lock();
        queue.retain(|i| !set.has(i.signo));
        self.bits.fetch_and(!set.0, Ordering::SeqCst);
    }
}
