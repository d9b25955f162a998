//! Epoch-based reclamation: memory that lock-free readers may still use is freed after a grace period.
//!
//! Quiescent-state based. Any time with preemption off is a read section; entering and leaving one costs nothing more.
//! Each online CPU announces, at a moment when it is in no section, the global epoch that it has read. The global epoch
//! steps from `g` to `g + 1` when every online CPU has announced `g`. An object that is retired while the retiring CPU
//! reads epoch `s` may be freed once the global epoch is `s + 3`.
//!
//! Why three steps, without a fence in `retire` or in a reader: let CPU R unlink a node and stamp it `s`. R had announced at most
//! `s` by then (it announces only epochs that it has read, and reads of one word by one CPU never go back), so its announcement
//! of `s + 1` comes after the unlink, and is a Release store. The CPU that steps to `s + 2` reads that announcement with Acquire
//! and steps with Release. A CPU X announces `s + 2` only after it reads `s + 2` with Acquire: from there on X sees the unlink
//! and cannot reach the node. Earlier sections of X are over when it announces, by a Release store. The step to `s + 3` reads all
//! these announcements with Acquire. So a CPU that reads `s + 3` may free the node.
//!
//! For one step each CPU's announcement is checked about once, whichever CPUs do the checking: the first CPU that has
//! not announced `g` is remembered, and the next check begins there. So a step costs as many checks as there are CPUs,
//! plus one for each failed attempt, instead of one per CPU in each attempt. A CPU that continues another's check reads
//! with Acquire the position that the other stored with Release, and so sees the announcements as if it had read them
//! itself. A CPU that was found offline, then comes online and announces `g`, would not have prevented this step
//! either; it prevents the next one.
//!
//! Offline CPUs (idle, or in user mode) are skipped. `online` stores its announcement and then issues a sequentially
//! consistent fence; `try_advance` issues one before it reads the announcements. Either the step sees the CPU online,
//! or the CPU's later reads see everything that preceded the step's fence, the unlink included.

use alloc::{
    alloc::{Layout, alloc, dealloc, handle_alloc_error},
    boxed::Box,
    sync::Arc,
};
use core::{cell::Cell, mem, ptr, ptr::NonNull};

use crate::{
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*, fence},
    lock_class,
    percpu::{CpuPin, Padded, PerCpu, pin},
    platform,
    shim::{DataCell, leak},
    spin::RawSpin,
};

lock_class!(pub(crate) EpochLock, "epoch batch", rank = 252);

/// A CPU's announcement while it is offline. Epochs start above it.
const OFFLINE: u64 = 0;
/// Number of steps after its stamp that a batch may be freed.
const GRACE: u64 = 3;
/// Bits of a CPU number.
const CPU_BITS: u32 = 16;
/// Number of retired blocks and objects between two hints to reclaim.
const MANY: usize = 64;
/// Most objects freed between two reads of the clock: reading it costs about as much as freeing a small object.
const LOOK: usize = 8;
/// Objects of a chunk that are freed in one call.
const BATCH: usize = 4;
/// Number of batches, indexed by stamp: more than the stamps that can be in their grace period at once.
const BAGS: usize = 4;

/// A header inside a block that can be retired without further memory.
///
/// Readers may hold references that cover the header while it is written, so its link is a cell.
#[repr(C)]
pub(crate) struct Link {
    /// Accessed only by the owner of the list that the block is on.
    next: Cell<*mut Link>,
    /// Frees the block, or a part of it; called after the grace period until all of it is freed. Const.
    run: unsafe fn(*mut Link) -> Freed,
}

/// Result of a call of a block's `run`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Freed {
    /// The block is freed, with its last so many objects: it must not be accessed again.
    All(usize),
    /// So many of the block's objects are freed, and more are left. 0: a part of one object.
    Some(usize),
}

impl Link {
    pub(crate) const fn new(run: unsafe fn(*mut Link) -> Freed) -> Self {
        Self {
            next: Cell::new(ptr::null_mut()),
            run,
        }
    }
}

/// An object to be dropped after a grace period, with its type erased.
///
/// It keeps the object's address and not the owner: an owner that moves claims a box's target for itself alone, which
/// would be false while readers still have it.
pub struct Retired {
    data: *mut (),
    run: unsafe fn(*mut ()),
}

// SAFETY: every constructor accepts only objects that may be dropped on another thread.
unsafe impl Send for Retired {}

impl Retired {
    /// Drops the box.
    pub fn from_box<T: Send + 'static>(object: Box<T>) -> Self {
        // SAFETY: the box's ownership is given up here.
        unsafe { Self::from_raw_box(Box::into_raw(object)) }
    }

    /// Drops one reference.
    pub fn from_arc<T: Send + Sync + 'static>(object: Arc<T>) -> Self {
        // SAFETY: the count is given up here.
        unsafe { Self::from_raw_arc(Arc::into_raw(object)) }
    }

    /// Drops the box that `object` was, which readers may still follow.
    ///
    /// # Safety
    /// `object` is from `Box::into_raw`, and its ownership is given up with this call.
    pub(crate) unsafe fn from_raw_box<T: Send + 'static>(object: *mut T) -> Self {
        unsafe fn run<T>(data: *mut ()) {
            // SAFETY: `data` is the box given up below, and this is called once.
            drop(unsafe { Box::from_raw(data.cast::<T>()) });
        }
        Self {
            data: object.cast(),
            run: run::<T>,
        }
    }

    /// What drops one count of the `Arc` that owns `object`, when it is run.
    ///
    /// # Safety
    /// `object` is from `Arc::into_raw`, and the caller passes the ownership of one count to the result.
    pub(crate) unsafe fn from_raw_arc<T: Send + Sync + 'static>(object: *const T) -> Self {
        unsafe fn run<T>(data: *mut ()) {
            // SAFETY: `data` is the pointer whose count the caller passed on, and this is called once.
            drop(unsafe { Arc::from_raw(data.cast_const().cast::<T>()) });
        }
        Self {
            data: object.cast_mut().cast(),
            run: run::<T>,
        }
    }

    fn run(self) {
        // SAFETY: the constructors pair `run` with its `data`; `self` is consumed.
        unsafe { (self.run)(self.data) }
    }
}

/// Objects that one chunk holds: about 1 KiB.
const CHUNK: usize = 61;

/// Storage for retired objects that have no header of their own.
#[repr(C)]
struct Chunk {
    link: Link,
    len: usize,
    items: [mem::MaybeUninit<Retired>; CHUNK],
}

impl Chunk {
    /// `None` if memory is short.
    fn new() -> Option<NonNull<Chunk>> {
        // SAFETY: the layout is not of size zero.
        let chunk = NonNull::new(unsafe { alloc(Layout::new::<Chunk>()) })?.cast::<Chunk>();
        // SAFETY: fresh memory of the right size and alignment; items need no initial value.
        unsafe {
            (&raw mut (*chunk.as_ptr()).link).write(Link::new(Chunk::run));
            (&raw mut (*chunk.as_ptr()).len).write(0);
        }
        Some(chunk)
    }

    /// Drops some of the objects, from the end.
    unsafe fn run(link: *mut Link) -> Freed {
        let chunk = link.cast::<Chunk>();
        // SAFETY: the caller passes the chunk's own link; its first `len` items are written, and `len` is at least 1.
        unsafe {
            let items = (&raw const (*chunk).items).cast::<Retired>();
            let end = (*chunk).len;
            let rest = end.saturating_sub(BATCH);
            (*chunk).len = rest;
            for at in (rest..end).rev() {
                items.add(at).read().run();
            }
            if rest > 0 {
                return Freed::Some(BATCH);
            }
            Chunk::free(chunk);
            Freed::All(end)
        }
    }

    unsafe fn free(chunk: *mut Chunk) {
        // SAFETY: allocated in `new` with this layout, and given up by the caller.
        unsafe { dealloc(chunk.cast(), Layout::new::<Chunk>()) }
    }

    /// Whether another object fits.
    fn has_room(chunk: *mut Chunk) -> bool {
        // SAFETY: the caller owns the chunk, if there is one.
        unsafe { !chunk.is_null() && (*chunk).len < CHUNK }
    }
}

/// A batch of retired blocks with one stamp.
struct Bag {
    stamp: u64,
    head: *mut Link,
    tail: *mut Link,
    /// The chunk of this batch that has room, if any; it is on the list too.
    chunk: *mut Chunk,
}

impl Bag {
    const EMPTY: Self = Self {
        stamp: 0,
        head: ptr::null_mut(),
        tail: ptr::null_mut(),
        chunk: ptr::null_mut(),
    };

    fn push(&mut self, link: *mut Link) {
        // SAFETY: the link belongs to the bag now; only the bag's owner accesses its links.
        unsafe { (*link).next.set(self.head) };
        if self.head.is_null() {
            self.tail = link;
        }
        self.head = link;
    }

    /// Moves all of `other` here.
    fn append(&mut self, other: Bag) {
        if other.head.is_null() {
            return;
        }
        // SAFETY: as in `push`.
        unsafe { (*other.tail).next.set(self.head) };
        if self.head.is_null() {
            self.tail = other.tail;
        }
        self.head = other.head;
    }

    fn pop(&mut self) -> Option<*mut Link> {
        let link = NonNull::new(self.head)?.as_ptr();
        // SAFETY: as in `push`.
        self.head = unsafe { (*link).next.get() };
        Some(link)
    }
}

/// Blocks that a CPU has retired. Guarded by the CPU's `lock`.
struct Batches {
    bags: [Bag; BAGS],
    /// Blocks whose grace period is over.
    ripe: Bag,
    /// A spare chunk, so that a retire has room for at least this many objects.
    spare: *mut Chunk,
}

impl Batches {
    const fn new() -> Self {
        Self {
            bags: [Bag::EMPTY; BAGS],
            ripe: Bag::EMPTY,
            spare: ptr::null_mut(),
        }
    }

    /// The bag for `stamp`, which was read with Acquire in this hold of the lock. Its former contents are `BAGS` steps older, so
    /// that their grace period is over, for a CPU that takes what is ripe later, too. The stamp itself would need no order.
    fn bag(&mut self, stamp: u64) -> &mut Bag {
        let at = stamp as usize % BAGS;
        if self.bags[at].stamp < stamp {
            let old = mem::replace(
                &mut self.bags[at],
                Bag {
                    stamp,
                    ..Bag::EMPTY
                },
            );
            self.ripe.append(old);
        }
        &mut self.bags[at]
    }

    /// Stores `object`, if there is room in the open chunk or the spare one.
    fn put(&mut self, stamp: u64, object: Retired) -> Result<(), Retired> {
        let spare = self.spare;
        let bag = self.bag(stamp);
        if !Chunk::has_room(bag.chunk) {
            if spare.is_null() {
                return Err(object);
            }
            bag.chunk = spare;
            bag.push(spare.cast());
            self.spare = ptr::null_mut();
        }
        let chunk = self.bag(stamp).chunk;
        // SAFETY: the chunk belongs to the bag and has room; `bag.push` gave it a valid link.
        unsafe {
            (*chunk).items[(*chunk).len].write(object);
            (*chunk).len += 1;
        }
        Ok(())
    }

    fn collect_ripe(&mut self, global: u64) {
        for bag in &mut self.bags {
            if bag.stamp + GRACE <= global {
                let stamp = bag.stamp;
                self.ripe.append(mem::replace(
                    bag,
                    Bag {
                        stamp,
                        ..Bag::EMPTY
                    },
                ));
            }
        }
    }
}

/// One CPU's part of an epoch.
struct Slot {
    /// The epoch last announced, or OFFLINE. Atomic; written by its CPU, read by CPUs that step the epoch: on a line of
    /// its own.
    announced: AtomicU64,
    retired: OwnLines,
}

/// The rest of a [`Slot`], which usually only its CPU accesses.
#[repr(align(64))]
struct OwnLines {
    /// Number of blocks and objects retired and not yet freed. Atomic.
    pending: AtomicUsize,
    /// Freeing stopped at a preemption point with ripe blocks left. Atomic, a hint.
    more: AtomicBool,
    lock: RawSpin,
    /// Guarded by `lock`.
    batches: DataCell<Batches>,
}

/// The parts of an [`Epoch`] that outlive it, so that handles stay valid; see [`EpochHandle`].
pub(crate) struct Shared {
    /// The global epoch. On a line apart from the rest, which never changes and which every CPU reads.
    global: Padded<AtomicU64>,
    /// Progress of the check for the next step: the epoch, and in the low bits the first CPU that had not announced it.
    /// Atomic; written by CPUs that step the epoch.
    looked: Padded<AtomicU64>,
    /// Set when the `Epoch` is dropped: objects retired from then on are freed at once.
    closed: AtomicBool,
    /// Ticks of the platform's clock after which freeing stops for a preemption point. Set at start-up.
    step: AtomicU64,
    slots: PerCpu<Slot>,
}

// SAFETY: the batches are accessed under their locks, and hold only objects that may be sent.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

/// A domain of deferred frees over CPUs `0..ncpus`, all online at first.
///
/// A CPU that has not started, idles or stays in user mode must be [`Epoch::offline`], or announce [`Epoch::quiescent`]
/// often; otherwise no grace period ends. Any number of epochs may exist at the same time; a pinned section is a
/// section of all of them.
///
/// Dropping an `Epoch` frees everything pending: no CPU may be inside a section then. A few hundred bytes per CPU are
/// leaked.
pub struct Epoch {
    shared: EpochHandle,
}

/// A pointer to an epoch without a reference count. Valid for ever.
#[derive(Clone, Copy)]
pub(crate) struct EpochHandle(&'static Shared);

impl Epoch {
    /// An epoch over `ncpus` CPUs, all online.
    pub fn new(ncpus: usize) -> Self {
        let slots = PerCpu::new(ncpus, |_| Slot {
            announced: AtomicU64::new(OFFLINE + 1),
            retired: OwnLines {
                pending: AtomicUsize::new(0),
                more: AtomicBool::new(false),
                lock: RawSpin::new(),
                batches: DataCell::new(Batches::new()),
            },
        });
        let global = Padded(AtomicU64::new(OFFLINE + 1));
        let shared = Shared {
            global,
            looked: Padded(AtomicU64::new(0)),
            closed: AtomicBool::new(false),
            step: AtomicU64::new(u64::MAX),
            slots,
        };
        Self {
            shared: EpochHandle(leak(Box::new(shared))),
        }
    }

    pub(crate) fn handle(&self) -> EpochHandle {
        self.shared
    }

    fn shared(&self) -> &'static Shared {
        self.shared.0
    }

    /// Number of CPUs that the epoch covers.
    pub fn ncpus(&self) -> usize {
        self.shared().slots.ncpus()
    }

    /// Frees `object` after a grace period. It must be unreachable for new readers already.
    ///
    /// Needs no memory except one chunk for every 61 objects, for which a spare one is kept ready; with neither, this ends in
    /// `handle_alloc_error`. Not to be called by interrupt handlers.
    pub fn retire(&self, pin: &CpuPin, object: Retired) {
        self.shared().retire(pin, object);
    }

    /// Announces that this CPU is in no read section. To be called with preemption on except for `pin`, at each timer
    /// tick, context switch and return to user mode; has no effect if preemption was already off before `pin`. One load
    /// and one compare if the epoch has not moved.
    #[inline]
    pub fn quiescent(&self, pin: &mut CpuPin) {
        let shared = self.shared();
        let slot = shared.slots.get(pin);
        let global = shared.global.load(Acquire);
        let announced = slot.announced.load(Relaxed);
        if announced != global && announced != OFFLINE && platform::preempt_count() == 1 {
            // Release: this CPU's sections are over before the announcement.
            slot.announced.store(global, Release);
        }
    }

    /// The announcer of `cpu`, for [`Announcer::quiescent`].
    pub fn announcer(&self, cpu: usize) -> Announcer {
        let shared = self.shared();
        Announcer {
            global: &shared.global,
            announced: &shared.slots.of(cpu).announced,
        }
    }

    /// Includes `cpu` in the steps again. Called by that CPU itself, before it enters a read section.
    pub fn online(&self, cpu: usize) {
        let shared = self.shared();
        // Relaxed: the fence below is an acquire fence, too.
        let global = shared.global.load(Relaxed);
        // Release: a CPU that reads this announcement instead of OFFLINE must still see that the sections before
        // `offline` are over.
        shared.slots.of(cpu).announced.store(global, Release);
        // Pairs with the fence in `try_advance`; see the module's text.
        fence(SeqCst);
    }

    /// Excludes `cpu` from the steps until it is online again: idle, in user mode, or not started. Called by that CPU
    /// itself, outside read sections, or by the boot CPU for one that has not started.
    pub fn offline(&self, cpu: usize) {
        self.shared()
            .slots
            .of(cpu)
            .announced
            .store(OFFLINE, Release);
    }

    /// Whether `cpu` is included in the steps.
    pub fn is_online(&self, cpu: usize) -> bool {
        self.shared().slots.of(cpu).announced.load(Relaxed) != OFFLINE
    }

    /// If this CPU has retired objects, tries to step the epoch, and frees those retired long enough ago. To be called at timer
    /// ticks and when idle; destructors run with preemption off. Returns whether anything is still pending on this CPU.
    pub fn reclaim(&self, pin: &CpuPin) -> bool {
        self.shared().reclaim(pin.cpu())
    }

    /// As `reclaim`, but makes as many steps as possible at once: a whole grace period, if no other CPU prevents it.
    /// `pin` is the only reason for preemption to be off.
    pub fn reclaim_all(&self, pin: &mut CpuPin) -> bool {
        for _ in 1..GRACE {
            self.quiescent(pin);
            if !self.shared().try_advance() {
                break;
            }
        }
        self.quiescent(pin);
        self.reclaim(pin)
    }

    /// Frees more of the ripe objects that `reclaim` has found. It stops after some time, so that its caller can let
    /// the CPU be preempted before it continues. Returns whether there are more.
    pub fn reclaim_more(&self, pin: &CpuPin) -> bool {
        let slot = self.shared().slots.get(pin);
        // Relaxed: set by this CPU; if not, the next `reclaim` finds the objects.
        slot.retired.more.load(Relaxed) && {
            slot.free_ripe(self.current(), self.shared().step.load(Relaxed));
            slot.retired.more.load(Relaxed)
        }
    }

    /// Makes freeing stop after `ticks` of the platform's clock, for callers of [`Epoch::reclaim_more`]. By default it
    /// does not stop early.
    pub fn set_step(&self, ticks: u64) {
        self.shared().step.store(ticks, Relaxed);
    }

    /// As `reclaim`, for objects that another CPU retired.
    pub fn reclaim_of(&self, _pin: &CpuPin, cpu: usize) -> bool {
        self.shared().reclaim(cpu)
    }

    /// Number of retired and not yet freed objects, over all CPUs.
    pub fn pending(&self) -> usize {
        self.shared()
            .slots
            .iter()
            .map(|s| s.retired.pending.load(Relaxed))
            .sum()
    }

    /// The global epoch. An object that became unreachable before a CPU reads `s` here may be freed by a CPU that reads
    /// `s + 3`.
    pub fn current(&self) -> u64 {
        // Acquire: all sections that could use the object are over for the CPU that frees it, too.
        self.shared().global.load(Acquire)
    }

    /// Tries to step the epoch, for callers that keep their own lists of retired objects, stamped with [`Epoch::current`].
    /// Returns whether it has: false also if another CPU was faster.
    pub fn advance(&self) -> bool {
        self.shared().try_advance()
    }

    /// Waits until every read section that was open at the call has ended. Sleeping context.
    pub fn synchronize(&self) {
        // Relaxed is enough, as for a stamp: see the module's text.
        let goal = self.shared().global.load(Relaxed) + GRACE;
        loop {
            self.quiescent(&mut pin());
            self.shared().try_advance();
            if self.current() >= goal {
                return;
            }
            platform::doze();
        }
    }

    /// Frees everything that any CPU has retired before the call, and objects that their destructors retire in turn.
    /// Sleeping context.
    pub fn drain(&self) {
        while self.pending() > 0 {
            self.synchronize();
            for cpu in 0..self.ncpus() {
                self.shared().reclaim(cpu);
                while self.shared().slots.of(cpu).retired.more.load(Relaxed) {
                    self.shared().reclaim(cpu);
                }
            }
        }
    }
}

/// Lets one CPU announce that it is in no read section, in five instructions if the epoch has not moved: for the return
/// to user mode.
#[derive(Clone, Copy)]
pub struct Announcer {
    global: &'static AtomicU64,
    announced: &'static AtomicU64,
}

impl Announcer {
    /// As [`Epoch::quiescent`], for a caller that has interrupts off, and so stays on the announcer's CPU without a
    /// pin.
    #[inline(always)]
    pub fn quiescent(&self) {
        let global = self.global.load(Acquire);
        if self.announced.load(Relaxed) != global {
            self.announce(global);
        }
    }

    #[cold]
    #[inline(never)]
    fn announce(&self, global: u64) {
        if self.announced.load(Relaxed) != OFFLINE && platform::preempt_count() == 0 {
            // Release: as in `Epoch::quiescent`.
            self.announced.store(global, Release);
        }
    }
}

impl Drop for Epoch {
    fn drop(&mut self) {
        let shared = self.shared();
        shared.closed.store(true, Release);
        while self.pending() > 0 {
            for slot in shared.slots.iter() {
                slot.free_ripe(u64::MAX, u64::MAX);
            }
        }
        for slot in shared.slots.iter() {
            slot.with(|b| {
                let spare = mem::replace(&mut b.spare, ptr::null_mut());
                if !spare.is_null() {
                    // SAFETY: the spare chunk is the slot's own, and empty.
                    unsafe { Chunk::free(spare) };
                }
            });
        }
    }
}

impl EpochHandle {
    pub(crate) fn ncpus(self) -> usize {
        self.0.slots.ncpus()
    }

    /// Frees the block that begins with `link` after a grace period, or at once if the epoch was dropped; needs no memory.
    ///
    /// # Safety
    /// `link`'s `run` must fit the block; new readers must not reach the block, and the caller must not use it any
    /// more.
    pub(crate) unsafe fn retire_link(self, pin: &CpuPin, link: *mut Link) {
        let shared = self.0;
        let slot = shared.slots.get(pin);
        if shared.closed.load(Acquire) {
            // SAFETY: no reader is left; the caller gives up the block.
            return unsafe { while let Freed::Some(_) = ((*link).run)(link) {} };
        }
        slot.count_one();
        slot.with(|b| b.bag(shared.stamp()).push(link));
    }
}

impl Shared {
    fn retire(&self, pin: &CpuPin, object: Retired) {
        let slot = self.slots.get(pin);
        slot.count_one();
        let mut left = Some(object);
        while let Some(object) = left.take() {
            let wants_spare = slot.with(|b| {
                left = b.put(self.stamp(), object).err();
                b.spare.is_null()
            });
            // The chunk is allocated without the lock: the allocator has locks of its own.
            if wants_spare {
                match Chunk::new() {
                    Some(chunk) => slot.give_spare(chunk),
                    None if left.is_some() => handle_alloc_error(Layout::new::<Chunk>()),
                    None => {}
                }
            }
        }
    }

    /// The stamp of what is retired now. Read in the hold of the batches' lock, and with Acquire: see [`Batches::bag`].
    fn stamp(&self) -> u64 {
        self.global.load(Acquire)
    }

    fn reclaim(&self, cpu: usize) -> bool {
        let slot = self.slots.of(cpu);
        if slot.retired.pending.load(Relaxed) == 0 {
            return false;
        }
        self.try_advance();
        let step = self.step.load(Relaxed);
        slot.free_ripe(self.global.load(Acquire), step);
        slot.retired.pending.load(Relaxed) != 0
    }

    /// Steps the global epoch if every online CPU has announced it.
    fn try_advance(&self) -> bool {
        let global = self.global.load(Relaxed);
        // Pairs with the fence in `online`; see the module's text.
        fence(SeqCst);
        // Acquire: the sections of the CPUs already checked are over, as if they were checked here.
        let looked = self.looked.load(Acquire);
        let first = if looked >> CPU_BITS == global {
            looked as usize & ((1 << CPU_BITS) - 1)
        } else {
            0
        };
        for cpu in first..self.slots.ncpus() {
            // Acquire: the sections of that CPU are over, here and for a CPU that sees the step.
            let announced = self.slots.of(cpu).announced.load(Acquire);
            if announced != OFFLINE && announced < global {
                if cpu != first {
                    let now = global << CPU_BITS | cpu as u64;
                    // Release: for a CPU that continues from here. If another CPU's progress was stored first, that
                    // serves as well.
                    let _ = self.looked.compare_exchange(looked, now, Release, Relaxed);
                }
                return false;
            }
        }
        self.global
            .compare_exchange(global, global + 1, AcqRel, Relaxed)
            .is_ok()
    }
}

impl Slot {
    fn with<R>(&self, f: impl FnOnce(&mut Batches) -> R) -> R {
        let _guard = self.retired.lock.lock::<EpochLock>();
        // SAFETY: the lock is held.
        f(unsafe { &mut *self.retired.batches.get() })
    }

    /// Counts one more block or object, and gives a hint to reclaim after every [`MANY`] of them.
    fn count_one(&self) {
        let before = self.retired.pending.fetch_add(1, Relaxed);
        if (before + 1).is_multiple_of(MANY) {
            platform::reclaim_soon();
        }
    }

    fn give_spare(&self, chunk: NonNull<Chunk>) {
        let refused = self.with(|b| {
            let wanted = b.spare.is_null();
            if wanted {
                b.spare = chunk.as_ptr();
            }
            !wanted
        });
        if refused {
            // SAFETY: the chunk is fresh and has no other owner.
            unsafe { Chunk::free(chunk.as_ptr()) };
        }
    }

    /// Frees blocks whose grace period is over in epoch `global`, as many as possible in about `step` ticks; with `u64::MAX` all.
    fn free_ripe(&self, global: u64, step: u64) {
        let mut ripe = self.with(|b| {
            if global == u64::MAX {
                for bag in &mut b.bags {
                    let stamp = bag.stamp;
                    b.ripe.append(mem::replace(
                        bag,
                        Bag {
                            stamp,
                            ..Bag::EMPTY
                        },
                    ));
                }
            } else {
                b.collect_ripe(global);
            }
            mem::replace(&mut b.ripe, Bag::EMPTY)
        });
        if ripe.head.is_null() {
            self.retired.more.store(false, Relaxed);
            return;
        }
        let since = platform::ticks();
        let (mut freed_all, mut unseen) = (0, 0);
        while let Some(link) = ripe.pop() {
            // SAFETY: `retire_link` received the link with its block, or it is that of a chunk; its grace period is
            // over, and it is on no list.
            let freed = unsafe { ((*link).run)(link) };
            let objects = match freed {
                Freed::All(objects) => objects,
                Freed::Some(objects) => {
                    ripe.push(link);
                    objects
                }
            };
            freed_all += objects;
            unseen += objects;
            // Freeing part of a large object takes as long as freeing many small ones.
            if objects == 0 || unseen > LOOK - BATCH {
                unseen = 0;
                if platform::ticks().wrapping_sub(since) >= step {
                    break;
                }
            }
        }
        self.retired.pending.fetch_sub(freed_all, Relaxed);
        let more = !ripe.head.is_null();
        if more {
            self.with(|b| b.ripe.append(ripe));
        }
        self.retired.more.store(more, Relaxed);
    }
}
