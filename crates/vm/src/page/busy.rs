//! Busy state of a page.
//!
//! Hard busy is exclusive: its holder may change the page's identity. Soft busy is shared: it keeps the identity. One
//! word holds both: bit 31 hard, bit 30 wanted (somebody sleeps until it ends), the low bits count soft holders. A
//! soft busy is taken by compare-and-swap that refuses a hard one; adding first and undoing later would let a looker
//! disturb the holder.
//!
//! Guarantee: whoever takes a busy state gets a guard, and each way out of a function drops it: [`HardBusy`] and
//! [`SoftBusy`]. Two ways alone end hard busy otherwise: [`HardBusy::downgrade`], and [`HardBusy::into_free`] for a page
//! whose frame goes to the allocator, where every frame is hard-busy without a guard. A frame that the allocator hands out
//! gets its guard where it gets an identity.
//!
//! Who must wait says what for, under a pin, with [`Page::want`]; looks once more whether the page is still where it was
//! found; and sleeps, without the pin, with [`Page::wait`]. The end of the busy state takes the mark away and wakes all
//! that wait. It costs a look at the value that the end swaps out anyway:
//!
//! ```text
//!     waiter                                  holder
//!     ------                                  ------
//!     pin; found in a slot; busy
//!     mark WANTED; fence
//!     still in the slot?  no: mark away,      out of the slot; fence
//!       wake others, start again
//!     unpin                                   word = 0, or WANTED cleared: was there the mark?
//!     lock queue                                yes: lock queue, wake, unlock
//!     WANTED still there?  no: start again
//!     onto the queue; unlock; sleep
//! ```
//!
//! A page that leaves its slot for the allocator stays busy, so the waiter's second look at the slot and the holder's look
//! at the mark follow a full fence each: one of them sees the other.

use core::mem::ManuallyDrop;

use ksync::atomic::Ordering::{Acquire, Relaxed, Release};
use ksync::lock_class;

use crate::page::Page;

lock_class!(
    /// Waits for the end of a page's busy state.
    pub BusyPage, "busy page", rank = 70
);

pub(super) const HARD: u32 = 1 << 31;
const WANTED: u32 = 1 << 30;
const COUNT: u32 = (1 << 29) - 1;

/// Hard busy of a page, which ends when this is dropped.
#[must_use = "the page is busy only as long as this lives"]
pub struct HardBusy<'a>(&'a Page);

/// A soft busy of a page, which ends when this is dropped.
#[must_use = "the page is busy only as long as this lives"]
pub struct SoftBusy<'a>(&'a Page);

impl<'a> HardBusy<'a> {
    /// The guard of a page that nobody but the caller knows yet, and that is hard-busy since it was free.
    #[inline(always)]
    pub fn of_fresh(page: &'a Page) -> HardBusy<'a> {
        debug_assert!(page.is_hard_busy(), "a fresh page is hard-busy");
        HardBusy(page)
    }

    /// The page.
    #[inline(always)]
    pub fn page(&self) -> &'a Page {
        self.0
    }

    /// One soft busy in its place.
    pub fn downgrade(self) -> SoftBusy<'a> {
        let page = ManuallyDrop::new(self).0;
        wake(page, page.downgrade_busy());
        SoftBusy(page)
    }

    /// Takes the identity away and leaves the page hard-busy, as a frame is that goes to the allocator. No slot holds the page.
    #[inline]
    pub fn into_free(self) {
        let page = ManuallyDrop::new(self).0;
        page.clear_identity();
        // Pairs with the compare-and-swap in `want`. What took the page out of its slot was a locked instruction.
        ksync::fence_after_rmw();
        if page.busy.load(Relaxed) & WANTED != 0 {
            page.end_waits();
        }
    }
}

impl Drop for HardBusy<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        wake(self.0, self.0.hard_unbusy());
    }
}

impl<'a> SoftBusy<'a> {
    /// The page.
    #[inline(always)]
    pub fn page(&self) -> &'a Page {
        self.0
    }

    /// Hard busy in its place, if it is the only one.
    ///
    /// # Errors
    /// Somebody else has a soft busy too: the caller keeps its own.
    pub fn try_upgrade(self) -> Result<HardBusy<'a>, SoftBusy<'a>> {
        if !self.0.try_upgrade_busy() {
            return Err(self);
        }
        Ok(HardBusy(ManuallyDrop::new(self).0))
    }
}

impl Drop for SoftBusy<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        wake(self.0, self.0.soft_unbusy());
    }
}

/// Ends the waits for the page.
#[inline(always)]
fn wake(page: &Page, wanted: bool) {
    if wanted {
        ksync::wake_all(page.address());
    }
}

/// What a waiter wants of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wanted {
    /// That nobody holds it.
    Free,
    /// That nobody holds it hard-busy.
    Soft,
}

impl Page {
    /// Takes hard busy if nobody holds any.
    #[inline]
    pub fn try_hard_busy(&self) -> Option<HardBusy<'_>> {
        self.take_hard_busy().then(|| HardBusy(self))
    }

    /// Takes a soft busy unless the page is hard-busy.
    #[inline]
    pub fn try_soft_busy(&self) -> Option<SoftBusy<'_>> {
        self.take_soft_busy().then(|| SoftBusy(self))
    }

    /// Marks the page wanted, if somebody has what is in the way of `what`, and asks `still` whether the page is where it
    /// was found. If both, [`wait`](Page::wait) for it.
    pub fn want(&self, what: Wanted, still: impl FnOnce() -> bool) -> bool {
        let in_the_way = match what {
            Wanted::Free => HARD | COUNT,
            Wanted::Soft => HARD,
        };
        let mut seen = self.busy.load(Relaxed);
        while seen & in_the_way != 0 {
            match self
                .busy
                .compare_exchange_weak(seen, seen | WANTED, Relaxed, Relaxed)
            {
                Ok(_) => {
                    // Pairs with the fence in `HardBusy::into_free`.
                    ksync::fence_after_rmw();
                    let still = still();
                    if !still {
                        // The page may be free by now, and nobody would take the mark away.
                        self.end_waits();
                    }
                    return still;
                }
                Err(now) => seen = now,
            }
        }
        false
    }

    /// Takes the mark away, and lets those look again that waited.
    #[cold]
    fn end_waits(&self) {
        // Relaxed: sleepers look at the mark under the lock that the next line takes.
        self.busy.fetch_and(!WANTED, Relaxed);
        ksync::wake_all(self.address());
    }

    /// Sleeps until the busy state ends that [`want`](Page::want) marked; may return earlier. Sleeping context.
    pub fn wait(&self) {
        ksync::sleep_on::<BusyPage>(self.address(), || {
            // Without the mark that state has ended; with a new mark somebody else waits for a new one.
            self.busy.load(Relaxed) & WANTED != 0
        });
    }

    fn address(&self) -> usize {
        core::ptr::from_ref(self).addr()
    }
}

impl Page {
    /// [`Page::try_hard_busy`] without the guard.
    pub(super) fn take_hard_busy(&self) -> bool {
        // A mark goes along, so that its wake-up is not lost.
        let seen = self.busy.load(Relaxed);
        seen & !WANTED == 0
            && self
                .busy
                .compare_exchange(seen, seen | HARD, Acquire, Relaxed)
                .is_ok()
    }

    /// Drops hard busy. Returns whether sleepers must be woken.
    #[must_use = "true means that sleepers wait for a wake-up"]
    pub(super) fn hard_unbusy(&self) -> bool {
        let before = self.busy.swap(0, Release);
        debug_assert!(before & HARD != 0, "hard_unbusy without hard busy");
        before & WANTED != 0
    }

    /// Turns hard busy into one soft busy. Returns whether sleepers must be woken.
    #[must_use = "true means that sleepers wait for a wake-up"]
    pub(super) fn downgrade_busy(&self) -> bool {
        let before = self.busy.swap(1, Release);
        debug_assert!(before & HARD != 0, "downgrade without hard busy");
        before & WANTED != 0
    }

    /// Turns the caller's soft busy into hard busy if it is the only one.
    #[must_use]
    pub(super) fn try_upgrade_busy(&self) -> bool {
        let seen = self.busy.load(Relaxed);
        seen & !WANTED == 1
            && self
                .busy
                .compare_exchange(seen, (seen & WANTED) | HARD, Acquire, Relaxed)
                .is_ok()
    }

    /// [`Page::try_soft_busy`] without the guard.
    pub(super) fn take_soft_busy(&self) -> bool {
        let mut seen = self.busy.load(Relaxed);
        while seen & HARD == 0 {
            debug_assert!(seen & COUNT != COUNT);
            match self
                .busy
                .compare_exchange_weak(seen, seen + 1, Acquire, Relaxed)
            {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
        false
    }

    /// Drops a soft busy. Returns whether sleepers must be woken: the last holder reports them.
    #[must_use = "true means that sleepers wait for a wake-up"]
    pub(super) fn soft_unbusy(&self) -> bool {
        let mut seen = self.busy.load(Relaxed);
        loop {
            debug_assert!(
                seen & HARD == 0 && seen & COUNT != 0,
                "soft_unbusy without soft busy"
            );
            let last = seen & COUNT == 1;
            let new = if last { 0 } else { seen - 1 };
            match self.busy.compare_exchange_weak(seen, new, Release, Relaxed) {
                Ok(_) => return last && seen & WANTED != 0,
                Err(now) => seen = now,
            }
        }
    }

    /// Whether somebody holds hard busy. Meaningful to the holder, or after a fence that orders it.
    pub fn is_hard_busy(&self) -> bool {
        self.busy.load(Acquire) & HARD != 0
    }

    /// Number of soft holders. For tests and reports.
    pub fn soft_count(&self) -> u32 {
        self.busy.load(Relaxed) & COUNT
    }
}
