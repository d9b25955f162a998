//! Epochs: memory that lock-free readers may still see is freed after a grace period.
//!
//! Quiescent-state based. A read section is any time with preemption off; entering and leaving it
//! costs nothing more. Each online CPU announces, at a moment when it is in no section, the global
//! epoch it saw. The global epoch steps from `g` to `g + 1` when every online CPU has announced `g`.
//! What was retired while the retiring CPU read epoch `s` may be freed once the global epoch is
//! `s + 3`.
//!
//! Why three steps, without a fence in `retire` or in a reader: let CPU R unlink a node and stamp it
//! `s`. R had announced at most `s` by then (it can announce only what it read, and reads of one word
//! by one CPU never go back), so its announcement of `s + 1` comes after the unlink, and is a Release
//! store. Who steps to `s + 2` reads that announcement with Acquire and steps with Release. A CPU X
//! announces `s + 2` only after it reads `s + 2` with Acquire: from there on X sees the unlink and
//! cannot reach the node. Sections of X before are over when it announces, by a Release store. The
//! step to `s + 3` reads all these announcements with Acquire. So whoever sees `s + 3` may free.
//!
//! Each CPU is looked at once for a step, whoever looks: the first that has not announced `g` is remembered, and the next
//! look begins there. So a step costs as many looks as there are CPUs, and one for each try in vain, not one by each CPU at
//! each. Who goes on where another stopped reads with Acquire what that one stored with Release, and so sees the
//! announcements as if it had read them. A CPU that was found offline, comes online and announces `g` would not have held
//! the step up either; the next one it does.
//!
//! Offline CPUs (idle, or in user mode) are skipped. `online` stores its announcement and then issues a
//! sequentially consistent fence; `try_advance` issues one before it looks at the CPUs. Either the
//! step sees the CPU online, or the CPU's later reads see all that preceded the step's fence, the
//! unlink included.

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
/// How many steps after its stamp a batch may be freed.
const GRACE: u64 = 3;
/// Bits for the number of a CPU.
const CPU_BITS: u32 = 16;
/// Retired blocks and objects between hints to reclaim.
const MANY: usize = 64;
/// Objects freed between looks at the clock, at most: reading it costs about as much as freeing a small one.
const LOOK: usize = 8;
/// Objects of a chunk that are freed in one call.
const BATCH: usize = 4;
/// Batches by stamp modulo this: the stamps that can be unripe at once are fewer.
const BAGS: usize = 4;

/// A header inside a block that can be retired without any further memory.
///
/// Readers may hold references that cover the header while it is written, so what is written is a cell's.
#[repr(C)]
pub(crate) struct Link {
    /// Whose list the block is on touches it.
    next: Cell<*mut Link>,
    /// Frees the block, or a part of it; called after the grace period until all is freed. Const.
    run: unsafe fn(*mut Link) -> Freed,
}

/// What a call of a block's `run` has freed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Freed {
    /// The block with its last so many objects: it is not to be touched again.
    All(usize),
    /// So many of the block's objects; there are more. None: a part of one.
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

/// An object to be dropped after a grace period, without its type.
///
/// It keeps the object's address and not the owner: an owner that moves claims a box's target for itself alone, which
/// would be false while readers still have it.
pub struct Retired {
    data: *mut (),
    run: unsafe fn(*mut ()),
}

// SAFETY: every constructor takes only what may be dropped on another thread.
unsafe impl Send for Retired {}

impl Retired {
    /// Drops the box.
    pub fn from_box<T: Send + 'static>(object: Box<T>) -> Self {
        // SAFETY: the box's ownership is given up here.
        unsafe { Self::from_raw_box(Box::into_raw(object)) }
    }

    /// Gives back one reference.
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

    /// Gives back one count of the `Arc` that `object` was.
    ///
    /// # Safety
    /// `object` is from `Arc::into_raw`, and one count is given up with this call.
    pub(crate) unsafe fn from_raw_arc<T: Send + Sync + 'static>(object: *const T) -> Self {
        unsafe fn run<T>(data: *mut ()) {
            // SAFETY: `data` is the count given up below, and this is called once.
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

/// Room for retired objects that have no header of their own.
#[repr(C)]
struct Chunk {
    link: Link,
    len: usize,
    items: [mem::MaybeUninit<Retired>; CHUNK],
}

impl Chunk {
    /// `None` where memory is short.
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

    /// Drops some of the objects, the last ones.
    unsafe fn run(link: *mut Link) -> Freed {
        let chunk = link.cast::<Chunk>();
        // SAFETY: the caller passes the chunk's own link; its first `len` items, of which there is one, are written.
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
    /// The chunk of this batch that has room, if one has; it is on the list too.
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
        // SAFETY: the link is the bag's now; only who owns the bag touches its links.
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

/// What a CPU has retired. Guarded by the CPU's `lock`.
struct Batches {
    bags: [Bag; BAGS],
    /// Past their grace period.
    ripe: Bag,
    /// Kept so that a retire always has room for at least this many objects.
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

    /// The bag for `stamp`; whatever it held before is `BAGS` steps old, and ripe.
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
    /// The epoch last announced, or OFFLINE. Atomic; written by its CPU, read by those that step the epoch: on a line
    /// of its own.
    announced: AtomicU64,
    retired: OwnLines,
}

/// The rest of a [`Slot`], which its CPU alone touches as a rule.
#[repr(align(64))]
struct OwnLines {
    /// Retired and not yet freed, in blocks and objects. Atomic.
    pending: AtomicUsize,
    /// Freeing stopped at a preemption point: there is more that is ripe. Atomic, a hint.
    more: AtomicBool,
    lock: RawSpin,
    /// Guarded by `lock`.
    batches: DataCell<Batches>,
}

/// The parts of an [`Epoch`] that outlive it, so that handles stay valid; see [`EpochHandle`].
pub(crate) struct Shared {
    /// The global epoch. Away from the rest, which never changes and which everybody reads.
    global: Padded<AtomicU64>,
    /// How far the CPUs have been looked at for the next step: the epoch, and in the low bits the first CPU that had not
    /// announced it. Atomic; written by those that step the epoch.
    looked: Padded<AtomicU64>,
    /// Set when the `Epoch` is gone: what is retired now is freed at once.
    closed: AtomicBool,
    /// Ticks of the platform's clock after which freeing stops for a preemption point. Set at the start.
    step: AtomicU64,
    slots: PerCpu<Slot>,
}

// SAFETY: the batches are touched under their locks, and hold only what may be sent.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

/// A domain of deferred frees over CPUs `0..ncpus`, all online at first.
///
/// A CPU that does not run yet, idles or stays in user mode must be [`Epoch::offline`], or announce
/// [`Epoch::quiescent`] often; no grace period ends without it. Any number of epochs may live side by
/// side; a pinned section is a section of all of them.
///
/// Dropping an `Epoch` frees all that is pending: no CPU may be inside a section then. A few hundred
/// bytes per CPU stay behind.
pub struct Epoch {
    shared: EpochHandle,
}

/// A copy of the way to an epoch, without a reference count. Valid for ever.
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

    /// How many CPUs the epoch covers.
    pub fn ncpus(&self) -> usize {
        self.shared().slots.ncpus()
    }

    /// Frees `object` after a grace period. It must be unreachable for new readers already.
    ///
    /// Needs no memory, but for a chunk for each 61 objects, taken from a spare one that is kept
    /// ready. Not to be called by interrupt handlers.
    pub fn retire(&self, pin: &CpuPin, object: Retired) {
        self.shared().retire(pin, object);
    }

    /// Announces that this CPU is in no read section. Call it with preemption on but for `pin`, at each
    /// timer tick, context switch and return to user mode; does nothing if preemption was off before
    /// `pin`. One load and a compare if the epoch has not moved.
    #[inline]
    pub fn quiescent(&self, pin: &mut CpuPin) {
        let shared = self.shared();
        let slot = shared.slots.get(pin);
        let global = shared.global.load(Acquire);
        let announced = slot.announced.load(Relaxed);
        if announced != global && announced != OFFLINE && platform::preempt_count() == 1 {
            // Release: this CPU's sections are over before it says so.
            slot.announced.store(global, Release);
        }
    }

    /// What `cpu` needs for [`Announcer::quiescent`].
    pub fn announcer(&self, cpu: usize) -> Announcer {
        let shared = self.shared();
        Announcer {
            global: &shared.global,
            announced: &shared.slots.of(cpu).announced,
        }
    }

    /// Takes `cpu` into account again. By that CPU itself, before it enters a read section.
    pub fn online(&self, cpu: usize) {
        let shared = self.shared();
        // Relaxed: the fence below is an acquire fence, too.
        let global = shared.global.load(Relaxed);
        // Release: who finds this announcement has not seen that the sections before `offline` are over.
        shared.slots.of(cpu).announced.store(global, Release);
        // Pairs with the fence in `try_advance`; see the module's text.
        fence(SeqCst);
    }

    /// Leaves `cpu` out until it is online again: idle, in user mode, or not started. By that CPU
    /// itself, outside read sections, or by the boot CPU for one that has not started.
    pub fn offline(&self, cpu: usize) {
        self.shared()
            .slots
            .of(cpu)
            .announced
            .store(OFFLINE, Release);
    }

    /// Whether `cpu` is taken into account.
    pub fn is_online(&self, cpu: usize) -> bool {
        self.shared().slots.of(cpu).announced.load(Relaxed) != OFFLINE
    }

    /// Tries to step the epoch, and frees what this CPU retired long enough ago. Call it at timer ticks
    /// and when idle; destructors run with preemption off. Returns whether anything is still pending
    /// on this CPU.
    pub fn reclaim(&self, pin: &CpuPin) -> bool {
        self.shared().reclaim(pin.cpu())
    }

    /// As `reclaim`, through as many steps as go at once: all that a grace period has, if no other CPU is in its way.
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

    /// Frees more of what `reclaim` has found to be ripe: it stops after some time, and its caller may let the CPU be
    /// preempted before this goes on. Returns whether there is more still.
    pub fn reclaim_more(&self, pin: &CpuPin) -> bool {
        let slot = self.shared().slots.get(pin);
        // Relaxed: set by this CPU, or the next look finds it.
        slot.retired.more.load(Relaxed) && {
            slot.free_ripe(self.current(), self.shared().step.load(Relaxed));
            slot.retired.more.load(Relaxed)
        }
    }

    /// Has freeing stop after `ticks` of the platform's clock, for the callers of [`Epoch::reclaim_more`]. At first it
    /// stops only at the end.
    pub fn set_step(&self, ticks: u64) {
        self.shared().step.store(ticks, Relaxed);
    }

    /// As `reclaim`, for what another CPU retired.
    pub fn reclaim_of(&self, _pin: &CpuPin, cpu: usize) -> bool {
        self.shared().reclaim(cpu)
    }

    /// Retired and not yet freed objects, over all CPUs.
    pub fn pending(&self) -> usize {
        self.shared()
            .slots
            .iter()
            .map(|s| s.retired.pending.load(Relaxed))
            .sum()
    }

    /// The global epoch. What became unreachable before a CPU reads `s` here may be freed by who reads `s + 3`.
    pub fn current(&self) -> u64 {
        // Acquire: all sections that could see it are over for who frees, too.
        self.shared().global.load(Acquire)
    }

    /// Tries to step the epoch: for who keeps retired things by stamps of [`Epoch::current`].
    pub fn advance(&self) -> bool {
        self.shared().try_advance()
    }

    /// Waits until every read section that was open at the call is over. Sleeping context.
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

    /// Frees everything that any CPU has retired before the call, and what those destructors retire in
    /// turn. Sleeping context.
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

/// One CPU's way to announce that it is in no read section, in five instructions if the epoch has not moved: for the way
/// to user mode.
#[derive(Clone, Copy)]
pub struct Announcer {
    global: &'static AtomicU64,
    announced: &'static AtomicU64,
}

impl Announcer {
    /// As [`Epoch::quiescent`], for a caller that has interrupts off, so that it stays on the announcer's CPU without a
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

    /// Frees the block that `link` heads after a grace period; needs no memory.
    ///
    /// # Safety
    /// The block must be valid for `link`'s `run`, unreachable for new readers, and not be used by
    /// the caller any more.
    pub(crate) unsafe fn retire_link(self, pin: &CpuPin, link: *mut Link) {
        let shared = self.0;
        let slot = shared.slots.get(pin);
        if shared.closed.load(Acquire) {
            // SAFETY: no reader is left; the caller gives the block up.
            return unsafe { while let Freed::Some(_) = ((*link).run)(link) {} };
        }
        slot.count_one();
        slot.with(|b| b.bag(shared.global.load(Relaxed)).push(link));
    }
}

impl Shared {
    fn retire(&self, pin: &CpuPin, object: Retired) {
        let slot = self.slots.get(pin);
        slot.count_one();
        let (mut left, mut wants_spare) = (Some(object), false);
        while let Some(object) = left.take() {
            left = slot.with(|b| {
                // Relaxed is enough: see the module's text on the stamp.
                let left = b.put(self.global.load(Relaxed), object).err();
                wants_spare = b.spare.is_null();
                left
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
        // Acquire: what those CPUs did in their sections is over, as if looked at here.
        let looked = self.looked.load(Acquire);
        let first = if looked >> CPU_BITS == global {
            looked as usize & ((1 << CPU_BITS) - 1)
        } else {
            0
        };
        for cpu in first..self.slots.ncpus() {
            // Acquire: what that CPU did in its sections is over, here and for who sees the step.
            let announced = self.slots.of(cpu).announced.load(Acquire);
            if announced != OFFLINE && announced < global {
                if cpu != first {
                    let now = global << CPU_BITS | cpu as u64;
                    // Release: for who goes on from here. Somebody else's look that came first does as well.
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

    /// Counts one more block or object, and now and then says that there are many.
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
            // SAFETY: the chunk is fresh and nobody else's.
            unsafe { Chunk::free(chunk.as_ptr()) };
        }
    }

    /// Frees what is past its grace period in epoch `global`, as far as it gets in about `step` ticks.
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
            // SAFETY: the link was given up with its block by `retire_link` or is a chunk; its grace
            // period is over, and it is on no list.
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
            // A part of a large object takes as long as many small ones.
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
