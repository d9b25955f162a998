//! Signals that wait to be taken.

use alloc::collections::VecDeque;
use core::sync::atomic::{AtomicU64, Ordering};

use cred::{Charge, Payer};
use ksync::IrqSpin;

use super::super::lock;
use super::{SigInfo, SigSet, code, sig};

/// A signal in a queue.
struct Queued {
    info: SigInfo,
    /// Who pays for a real-time signal: its sender.  Of others there is one at a time; they come from interrupts, too, where
    /// nothing can be charged, and nobody pays.
    payer: Payer,
}

/// Bytes of an entry, with its share of the room that a queue that has grown keeps.
const ENTRY_BYTES: usize = 2 * size_of::<Queued>();

impl Queued {
    /// A signal that nobody pays for.
    fn free(info: SigInfo) -> Queued {
        Queued {
            info,
            payer: Payer::NOBODY,
        }
    }

    /// A signal that `payer` has to pay for; `None` if it has `limit` of them already.
    fn charged(info: SigInfo, payer: Payer, limit: u64) -> Option<Queued> {
        payer.charge(Charge::Signals, 1);
        payer.charge(Charge::Memory, ENTRY_BYTES);
        let queued = Queued { info, payer };
        let over = payer.is_limited() && payer.is_over(Charge::Signals, limit);
        (!over).then_some(queued)
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        self.payer.give_back(Charge::Signals, 1);
        self.payer.give_back(Charge::Memory, ENTRY_BYTES);
    }
}

/// A set of pending signals.  A bit says that a signal is pending; the queue has what is known of
/// it, in order, several entries for a real-time signal.  A bit without an entry stands for
/// a signal by the kernel without information, or for a real-time one of which only that it came was kept.
#[repr(C)]
pub struct Pending {
    /// Written under the queue's lock, read by anybody, and on each way to user mode.
    bits: AtomicU64,
    queue: IrqSpin<VecDeque<Queued>, lock::PendingLock>,
}

/// What is told of a signal whose bit has no entry.  Real-time ones come from programs.
fn without_entry(signo: u8) -> SigInfo {
    if signo >= sig::RTMIN {
        SigInfo::lost(signo)
    } else {
        SigInfo::kernel(signo)
    }
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

    /// Adds a signal.  A standard one that is pending already is dropped.  Allocates nothing.
    ///
    /// Beyond `limit` entries, or where `payer` pays for as many already, what sigqueue(3) and tgkill(2) send is limited: of a
    /// standard signal nothing is known then, a real-time one is refused.  One by kill(2) is never refused: its bit says at
    /// least that it came.  So it is where there is no memory.
    pub(super) fn post(&self, info: SigInfo, limit: u64, payer: Payer) -> Result<(), Full> {
        let bit = SigSet::one(info.signo).0;
        let mut queue = self.queue.lock();
        let real_time = info.signo >= sig::RTMIN;
        if !real_time && self.bits() & bit != 0 {
            return Ok(());
        }
        let room = queue.len() < queue.capacity();
        let within = (queue.len() as u64) < limit;
        let queued = match (room, real_time) {
            (false, _) => None,
            (true, true) if !within => None,
            (true, true) => Queued::charged(info, payer, limit),
            (true, false) if within || info.code >= 0 => Some(Queued::free(info)),
            (true, false) => Some(Queued::free(SigInfo::lost(info.signo))),
        };
        match queued {
            Some(queued) => queue.push_back(queued),
            None if real_time && info.code != code::USER => return Err(Full),
            None => {}
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
        let at = queue.iter().position(|q| q.info.signo == signo);
        let info = at
            .and_then(|i| queue.remove(i))
            .map_or_else(|| without_entry(signo), |q| q.info);
        if !queue.iter().any(|q| q.info.signo == signo) {
            self.bits.fetch_and(!(1 << (signo - 1)), Ordering::SeqCst);
        }
        Some(info)
    }

    /// Forgets the signals of `set`.
    pub(in super::super) fn flush(&self, set: SigSet) {
        if self.bits() & set.0 == 0 {
            return;
        }
        let mut queue = self.queue.lock();
        queue.retain(|q| !set.has(q.info.signo));
        self.bits.fetch_and(!set.0, Ordering::SeqCst);
    }
}
