//! Pending signals.

use alloc::collections::VecDeque;
use ksync::atomic::{AtomicBool, AtomicU64, Ordering};

use cred::{Charge, Payer};
use ksync::IrqSpin;

use super::info::{SigInfo, code};
use super::set::{SigSet, sig};
use crate::lock;

/// A pending signal in a queue.
struct Queued {
    info: SigInfo,
    /// The account that pays for a real-time signal: the sender's. No account pays for a standard signal: at most one
    /// of each is pending, and interrupts, which cannot charge an account, send them too.
    payer: Payer,
}

/// Bytes that are charged for an entry: a queue keeps up to four times the room that it needs; see [`Pending::shrink`].
const ENTRY_BYTES: usize = 4 * size_of::<Queued>();

/// Entries for which a queue that had room for them keeps it, charged to nobody: for signals that interrupts send.
const KEEP: usize = 8;

impl Queued {
    /// A signal that no account pays for.
    fn free(info: SigInfo) -> Queued {
        Queued {
            info,
            payer: Payer::NOBODY,
        }
    }

    /// A signal that `payer` pays for; `None` if `payer` would have more than `limit` of them.
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

/// A set of pending signals. A bit says that a signal is pending. The queue has the information about the signals, in
/// the order in which they came, and several entries for a real-time signal that came several times. A bit without an
/// entry stands for a signal whose information was not kept.
#[repr(C)]
pub struct Pending {
    /// Written under the queue's lock; read without it, also on each return to user mode.
    bits: AtomicU64,
    queue: IrqSpin<VecDeque<Queued>, lock::PendingLock>,
    /// The queue may have too much room. Written under the queue's lock; read without it.
    roomy: AtomicBool,
}

/// Signals pending for one thread.
pub type ThreadPending = Pending;
/// Signals pending for a whole process.
pub type SharedPending = Pending;

/// Whether a queue has more room than may stay.
fn is_roomy(queue: &VecDeque<Queued>) -> bool {
    queue.capacity() > KEEP && queue.capacity() / 4 > queue.len()
}

/// The information that is given with a signal whose bit has no entry. Real-time signals come from programs.
fn without_entry(signo: u8) -> SigInfo {
    if signo >= sig::RTMIN {
        SigInfo::lost(signo)
    } else {
        SigInfo::kernel(signo)
    }
}

/// Why a signal was not made pending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PostError {
    /// A real-time signal, not from kill(2): the limit of queued signals is reached, or the queue has no room and the caller does
    /// not say `keep`.
    Full,
    /// The queue has no room for the information, which the caller wants kept.
    NoRoom,
}

impl Default for Pending {
    fn default() -> Self {
        Self::new()
    }
}

impl Pending {
    /// The offset of the end of the part that is read without the lock, in bytes.
    pub const BITS_END: usize = core::mem::offset_of!(Pending, queue);

    /// No signal is pending.
    pub const fn new() -> Self {
        Pending {
            bits: AtomicU64::new(0),
            queue: IrqSpin::new(VecDeque::new()),
            roomy: AtomicBool::new(false),
        }
    }

    /// The pending signals: bit `n - 1` for signal `n`.
    #[inline]
    pub fn bits(&self) -> u64 {
        self.bits.load(Ordering::SeqCst)
    }

    /// Makes room for one more entry, so that a `post` in an atomic context can keep its information. Another sender may
    /// take that room before the caller does. False if there is no memory. Allocates; no lock held.
    pub(super) fn reserve(&self) -> bool {
        let queue = self.queue.lock();
        if queue.len() < queue.capacity() {
            return true;
        }
        let want = (queue.capacity() * 2).max(2);
        drop(queue);
        let mut bigger = VecDeque::new();
        if bigger.try_reserve_exact(want).is_err() {
            return false;
        }
        let mut queue = self.queue.lock();
        if queue.capacity() < want {
            bigger.extend(queue.drain(..));
            core::mem::swap(&mut *queue, &mut bigger);
        }
        drop(queue);
        true
    }

    /// Frees room that entries needed which have been taken or dropped. To be called after each [`take`](Self::take) and
    /// [`flush`](Self::flush) that may have removed many, with no lock held: it allocates a smaller queue. Without memory
    /// for that, the larger one stays until the next call, unless it is empty.
    pub(in super::super) fn shrink(&self) {
        if !self.roomy.load(Ordering::Relaxed) {
            return;
        }
        let want = (2 * self.queue.lock().len()).max(KEEP);
        let mut fewer = VecDeque::new();
        // Without memory its room is 0.
        let _ = fewer.try_reserve_exact(want);
        let mut queue = self.queue.lock();
        if is_roomy(&queue) && queue.len() <= fewer.capacity() {
            fewer.extend(queue.drain(..));
            core::mem::swap(&mut *queue, &mut fewer);
        }
        self.roomy.store(is_roomy(&queue), Ordering::Relaxed);
        drop(queue);
    }

    /// Adds a signal. A standard signal that is pending already is dropped. Allocates nothing.
    ///
    /// Where the queue has `limit` entries, a standard signal from sigqueue(3) or tgkill(2) gets the information of
    /// [`SigInfo::lost`]. There, and where `payer` would pay for more than `limit` real-time signals, a real-time signal from
    /// kill(2) becomes pending without information, and any other one is refused. Where the queue has no room and the caller
    /// does not say `keep`, a real-time signal is treated in the same way, and any standard signal becomes pending without
    /// information. The caller holds the process's signal lock.
    ///
    /// # Errors
    /// `Full`: the real-time signal is refused. `NoRoom`: with `keep`, the queue has no room. Nothing has changed.
    pub(super) fn post(
        &self,
        info: SigInfo,
        limit: u64,
        payer: Payer,
        keep: bool,
    ) -> Result<(), PostError> {
        let bit = SigSet::one(info.signo).0;
        let mut queue = self.queue.lock();
        let real_time = info.signo >= sig::RTMIN;
        if !real_time && self.bits() & bit != 0 {
            return Ok(());
        }
        let room = queue.len() < queue.capacity();
        let within = (queue.len() as u64) < limit;
        let queued = match (room, real_time) {
            (_, true) if !within => None,
            (false, _) if keep => return Err(PostError::NoRoom),
            (false, _) => None,
            (true, true) => Queued::charged(info, payer, limit),
            (true, false) if within || info.code >= 0 => Some(Queued::free(info)),
            (true, false) => Some(Queued::free(SigInfo::lost(info.signo))),
        };
        match queued {
            Some(queued) => queue.push_back(queued),
            None if real_time && info.code != code::USER => return Err(PostError::Full),
            None => {}
        }
        self.bits.fetch_or(bit, Ordering::SeqCst);
        Ok(())
    }

    /// Takes the first signal of `set`: signals that an instruction of the thread causes come first, then the lowest
    /// number. The caller holds the process's signal lock, so nobody else takes or drops signals meanwhile.
    pub(super) fn take(&self, set: SigSet) -> Option<SigInfo> {
        let ready = self.bits() & set.0;
        let first = match ready & SigSet::SYNCHRONOUS.0 {
            0 => ready,
            own => own,
        };
        if first == 0 {
            return None;
        }
        let mut queue = self.queue.lock();
        let signo = first.trailing_zeros() as u8 + 1;
        let at = queue.iter().position(|q| q.info.signo == signo);
        let info = at
            .and_then(|i| queue.remove(i))
            .map_or_else(|| without_entry(signo), |q| q.info);
        if !queue.iter().any(|q| q.info.signo == signo) {
            self.bits.fetch_and(!(1 << (signo - 1)), Ordering::SeqCst);
        }
        self.note_room(&queue);
        Some(info)
    }

    /// Drops the pending signals of `set`. The caller holds the process's signal lock.
    pub(super) fn flush(&self, set: SigSet) {
        if self.bits() & set.0 == 0 {
            return;
        }
        let mut queue = self.queue.lock();
        queue.retain(|q| !set.has(q.info.signo));
        self.bits.fetch_and(!set.0, Ordering::SeqCst);
        self.note_room(&queue);
    }

    /// Drops all pending signals and frees the queue: of a thread or process that takes none any more. No lock held.
    pub(in super::super) fn drop_all(&self) {
        let mut queue = self.queue.lock();
        let dropped = core::mem::take(&mut *queue);
        self.bits.store(0, Ordering::SeqCst);
        drop(queue);
        drop(dropped);
    }

    /// After entries were removed.
    fn note_room(&self, queue: &VecDeque<Queued>) {
        if is_roomy(queue) {
            self.roomy.store(true, Ordering::Relaxed);
        }
    }
}
