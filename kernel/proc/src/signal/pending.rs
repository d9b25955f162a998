//! Pending signals.
//!
//! A timer *promises* its signal to the queue where that will become pending, and the queue keeps room for it: the entries that are no
//! timer's, and the promises, are never more than the queue has room for.

use alloc::collections::VecDeque;
use ksync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use cred::{Charge, Payer};
use ksync::IrqSpin;

use super::info::{SigFields, SigInfo, code};
use super::set::{SigSet, sig};
use crate::lock;

/// A pending signal in a queue.
struct Queued {
    info: SigInfo,
    /// The account that pays for a real-time signal: the sender's. No account pays for a standard signal: at most one
    /// of each is pending, and interrupts, which cannot charge an account, send them too.
    payer: Payer,
    /// Of a timer's signal: another one with its number is pending, and has no entry.
    more: bool,
}

/// Bytes that are charged for an entry: a queue keeps up to four times the room that it needs; see [`Pending::shrink`].
pub(in super::super) const ENTRY_BYTES: usize = 4 * size_of::<Queued>();

/// Entries for which a queue that had room for them keeps it, charged to nobody: for signals that interrupts send.
const KEEP: usize = 8;

impl Queued {
    /// A signal that no account pays for.
    fn free(info: SigInfo) -> Queued {
        Queued {
            info,
            payer: Payer::NOBODY,
            more: false,
        }
    }

    /// A signal that `payer` pays for; `None` if `payer` would have more than `limit` of them.
    fn charged(info: SigInfo, payer: Payer, limit: u64) -> Option<Queued> {
        payer.charge(Charge::Signals, 1);
        payer.charge(Charge::Memory, ENTRY_BYTES);
        let queued = Queued {
            info,
            payer,
            more: false,
        };
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
    /// How many signals of timers have room promised. Written and read under the queue's lock.
    promised: AtomicU32,
}

/// Signals pending for one thread.
pub type ThreadPending = Pending;
/// Signals pending for a whole process.
pub type SharedPending = Pending;

/// A signal with this number is pending that has no entry: an entry of a timer, if there is one, is not the only reason for the bit.
fn note_another(queue: &mut VecDeque<Queued>, signo: u8) {
    if let Some(first) = queue.iter_mut().find(|q| q.info.signo == signo) {
        first.more = true;
    }
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
            promised: AtomicU32::new(0),
        }
    }

    /// The pending signals: bit `n - 1` for signal `n`.
    #[inline]
    pub fn bits(&self) -> u64 {
        self.bits.load(Ordering::SeqCst)
    }

    /// How much of a queue is taken: by its entries, and by those that are promised. The caller holds the queue's lock.
    fn needed(&self, queue: &VecDeque<Queued>) -> usize {
        queue.len() + self.promised.load(Ordering::Relaxed) as usize
    }

    /// Whether a queue has more room than may stay. The caller holds its lock.
    fn is_roomy(&self, queue: &VecDeque<Queued>) -> bool {
        queue.capacity() > KEEP && queue.capacity() / 4 > self.needed(queue)
    }

    /// Makes room for one more entry, so that a `post` in an atomic context can keep its information. Another sender may
    /// take that room before the caller does. False if there is no memory. Allocates; no lock held.
    pub(super) fn reserve(&self) -> bool {
        let queue = self.queue.lock();
        if self.needed(&queue) < queue.capacity() {
            return true;
        }
        let want = (self.needed(&queue) * 2).max(2);
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

    /// Promises room for one signal of a timer. False if there is no memory. Allocates; no lock held.
    pub(in super::super) fn promise(&self) -> bool {
        while self.reserve() {
            let queue = self.queue.lock();
            // Other senders may have taken it.
            if self.needed(&queue) < queue.capacity() {
                self.promised.fetch_add(1, Ordering::Relaxed);
                return true;
            }
        }
        false
    }

    /// Ends a promise. The signal that it was for is not pending.
    pub(in super::super) fn end_promise(&self) {
        let queue = self.queue.lock();
        self.promised.fetch_sub(1, Ordering::Relaxed);
        self.note_room(&queue);
    }

    /// Ends all promises.
    pub(super) fn end_promises(&self) {
        let queue = self.queue.lock();
        self.promised.store(0, Ordering::Relaxed);
        self.note_room(&queue);
    }

    /// Frees room that entries needed which have been taken or dropped. To be called after each [`take`](Self::take) and
    /// [`flush`](Self::flush) that may have removed many, with no lock held: it allocates a smaller queue. Without memory
    /// for that, the larger one stays until the next call, unless it is empty.
    pub(in super::super) fn shrink(&self) {
        if !self.roomy.load(Ordering::Relaxed) {
            return;
        }
        let want = {
            let queue = self.queue.lock();
            (2 * self.needed(&queue)).max(KEEP)
        };
        let mut fewer = VecDeque::new();
        // Without memory its room is 0.
        let _ = fewer.try_reserve_exact(want);
        let mut queue = self.queue.lock();
        if self.is_roomy(&queue) && self.needed(&queue) <= fewer.capacity() {
            fewer.extend(queue.drain(..));
            core::mem::swap(&mut *queue, &mut fewer);
        }
        self.roomy.store(self.is_roomy(&queue), Ordering::Relaxed);
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
            note_another(&mut queue, info.signo);
            return Ok(());
        }
        let room = self.needed(&queue) < queue.capacity();
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
            None => note_another(&mut queue, info.signo),
        }
        self.bits.fetch_or(bit, Ordering::SeqCst);
        Ok(())
    }

    /// Adds the signal of a timer, which has promised it, and has none here. Unlike other standard signals it is pending beside one with its
    /// number, as in Linux. Allocates nothing. The caller holds the process's signal lock.
    ///
    /// # Errors
    /// `NoRoom`: the signal was not promised.
    pub(super) fn post_promised(&self, info: SigInfo) -> Result<(), PostError> {
        let bit = SigSet::one(info.signo).0;
        let mut queue = self.queue.lock();
        if queue.len() == queue.capacity() {
            return Err(PostError::NoRoom);
        }
        let more = self.bits() & bit != 0 && !queue.iter().any(|q| q.info.signo == info.signo);
        queue.push_back(Queued {
            more,
            ..Queued::free(info)
        });
        self.bits.fetch_or(bit, Ordering::SeqCst);
        Ok(())
    }

    /// Drops the signals of timers for which `is` holds, given their ids. The caller holds the process's signal lock.
    pub(super) fn discard(&self, is: impl Fn(u32) -> bool) {
        let mut queue = self.queue.lock();
        let (mut gone, mut more) = (0, 0);
        // No account pays for them, so this frees nothing.
        queue.retain(|q| {
            let stays = !matches!(q.info.fields, SigFields::Timer { id, .. } if is(id));
            if !stays {
                gone |= SigSet::one(q.info.signo).0;
                more |= if q.more {
                    SigSet::one(q.info.signo).0
                } else {
                    0
                };
            }
            stays
        });
        let left = queue
            .iter()
            .fold(0, |left, q| left | SigSet::one(q.info.signo).0);
        self.bits.fetch_and(!gone | left | more, Ordering::SeqCst);
        for signo in (1..=sig::MAX).filter(|&signo| SigSet(more & left).has(signo)) {
            note_another(&mut queue, signo);
        }
        self.note_room(&queue);
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

    /// Drops all pending signals and frees the queue: of a thread or process that takes none any more, and that no timer sends any. No lock
    /// held.
    pub(in super::super) fn drop_all(&self) {
        let mut queue = self.queue.lock();
        let dropped = core::mem::take(&mut *queue);
        self.promised.store(0, Ordering::Relaxed);
        self.bits.store(0, Ordering::SeqCst);
        drop(queue);
        drop(dropped);
    }

    /// After entries were removed.
    fn note_room(&self, queue: &VecDeque<Queued>) {
        if self.is_roomy(queue) {
            self.roomy.store(true, Ordering::Relaxed);
        }
    }
}
