//! Busy state of a page.
//!
//! Hard busy is exclusive: its holder may change the page's identity. Soft busy is shared: it keeps the identity. One
//! word holds both: bit 31 hard, bit 30 wanted (a thread sleeps until the busy state ends), the low bits count soft
//! holders. Soft busy is taken by a compare-and-swap that fails on a hard-busy page; adding first and undoing it later
//! would disturb the holder. It fails, too, on a wanted page: a thread waits for hard busy there, and soft holders that
//! overlap for ever would keep it waiting. So no thread takes a soft busy of a page that it holds already.
//!
//! Guarantee: taking a busy state returns a guard, [`HardBusy`] or [`SoftBusy`], which ends it when dropped. Only two
//! functions end hard busy otherwise: [`HardBusy::downgrade`], and [`HardBusy::into_free`] for a page whose frame goes
//! to the allocator, where every frame is hard-busy without a guard. A frame from the allocator gets its guard when it
//! gets an identity.
//!
//! A thread that must wait marks the page wanted, under a pin, with [`Page::want`]; checks again whether the page is
//! still where it was found; and sleeps, without the pin, in [`Page::wait`]. The end of the busy state clears the mark
//! and wakes all waiters. Without waiters this costs only a test of the value that the end swaps out anyway:
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
//! A page that leaves its slot for the allocator stays busy. So the waiter's second look at the slot and the holder's
//! look at the mark each follow a full fence: one of them sees the other.

use core::mem::ManuallyDrop;

use ksync::atomic::Ordering::{Acquire, Relaxed, Release};
use ksync::lock_class;

use crate::page::Page;

lock_class!(
    /// Threads that wait for the end of a page's busy state.
    pub BusyPage, "busy page", rank = 70
);

pub(super) const HARD: u32 = 1 << 31;
const WANTED: u32 = 1 << 30;
const COUNT: u32 = (1 << 29) - 1;

/// Hard busy of a page; ends when this is dropped.
#[must_use = "the page is busy only as long as this lives"]
pub struct HardBusy<'a>(&'a Page);

/// Soft busy of a page; ends when this is dropped.
#[must_use = "the page is busy only as long as this lives"]
pub struct SoftBusy<'a>(&'a Page);

impl<'a> HardBusy<'a> {
    /// The guard of a page that only the caller can reach, and that has been hard-busy since it was free.
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

    /// Turns hard busy into one soft busy.
    pub fn downgrade(self) -> SoftBusy<'a> {
        let page = ManuallyDrop::new(self).0;
        wake(page, page.downgrade_busy());
        SoftBusy(page)
    }

    /// Clears the identity and leaves the page hard-busy, as a free frame must be. No slot holds the page.
    #[inline]
    pub fn into_free(self) {
        let page = ManuallyDrop::new(self).0;
        page.clear_identity();
        // Pairs with the compare-and-swap in `want`. The page was removed from its slot by a locked instruction.
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

    /// Turns soft busy into hard busy if the caller is the only holder.
    ///
    /// # Errors
    /// There is another soft holder: the caller keeps its soft busy.
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

/// Wakes the threads that wait for the page.
#[inline(always)]
fn wake(page: &Page, wanted: bool) {
    if wanted {
        ksync::wake_all(page.address());
    }
}

/// The state of a page that a waiter needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wanted {
    /// Not held busy.
    Free,
    /// Not held hard-busy, and not wanted by a thread that waits for hard busy.
    Soft,
    /// Not held hard-busy.
    Kept,
}

impl Page {
    /// Takes hard busy unless the page is held busy.
    #[inline]
    pub fn try_hard_busy(&self) -> Option<HardBusy<'_>> {
        self.take_hard_busy().then(|| HardBusy(self))
    }

    /// Takes a soft busy unless the page is hard-busy, or a thread waits until it is not held at all.
    #[inline]
    pub fn try_soft_busy(&self) -> Option<SoftBusy<'_>> {
        self.take_soft_busy().then(|| SoftBusy(self))
    }

    /// Marks the page wanted if it is held in a way that excludes `what`, then calls `still` to check that the page is
    /// still where it was found. If both hold, the caller may [`wait`](Page::wait).
    pub fn want(&self, what: Wanted, still: impl FnOnce() -> bool) -> bool {
        let in_the_way = match what {
            Wanted::Free => HARD | COUNT,
            // Only a held page has the mark.
            Wanted::Soft => HARD | WANTED,
            Wanted::Kept => HARD,
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
                        // The page may be free by now, and then nothing else would clear the mark.
                        self.end_waits();
                    }
                    return still;
                }
                Err(now) => seen = now,
            }
        }
        false
    }

    /// Clears the mark and wakes all waiters.
    #[cold]
    fn end_waits(&self) {
        // Relaxed: waiters test the mark under the lock that the next line takes.
        self.busy.fetch_and(!WANTED, Relaxed);
        ksync::wake_all(self.address());
    }

    /// Sleeps until the end of the busy state that [`want`](Page::want) marked; may return earlier. Sleeping context.
    pub fn wait(&self) {
        ksync::sleep_on::<BusyPage>(self.address(), || {
            // Without the mark that state has ended; with a new mark another thread waits for a later one.
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
        // The mark is kept, so that no wake-up is lost.
        let seen = self.busy.load(Relaxed);
        seen & !WANTED == 0
            && self
                .busy
                .compare_exchange(seen, seen | HARD, Acquire, Relaxed)
                .is_ok()
    }

    /// Ends hard busy. Returns whether there are waiters to wake.
    #[must_use = "true means that sleepers wait for a wake-up"]
    pub(super) fn hard_unbusy(&self) -> bool {
        let before = self.busy.swap(0, Release);
        debug_assert!(before & HARD != 0, "hard_unbusy without hard busy");
        before & WANTED != 0
    }

    /// Turns hard busy into one soft busy. Returns whether there are waiters to wake.
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
        while seen & (HARD | WANTED) == 0 {
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

    /// Ends a soft busy. Returns whether there are waiters to wake: reported to the last holder.
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

    /// Whether the page is hard-busy. Meaningful to the holder, or after a fence that orders it.
    pub fn is_hard_busy(&self) -> bool {
        self.busy.load(Acquire) & HARD != 0
    }

    /// Number of soft holders. For tests and reports.
    pub fn soft_count(&self) -> u32 {
        self.busy.load(Relaxed) & COUNT
    }
}
