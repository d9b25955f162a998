//! The kernel's heap: objects of any size.
//!
//! Guarantees: an object is aligned as requested and given to one owner at a time; a warm allocation touches only lines
//! of the calling CPU and the object; memory comes from the page allocator and returns to it, with every page accounted
//! for.
//!
//! Mechanism: sizes up to 3072 bytes are rounded up to one of 16 classes. Each CPU keeps a few objects of each class
//! (`Cache`), which it exchanges in bursts with its own `depot` of the class; the depot cuts them from slabs. An
//! object returns to the depot that cut it, so that objects allocated and freed on one CPU touch only lines of that
//! CPU, however many they are. Larger sizes are runs of pages. Small requests may use the last reserve if their caller
//! asks for it, so that the kernel's bounded allocations do not fail while other memory can be reclaimed; large ones
//! fail at the kernel's mark.
//!
//! Callable with preemption on or off, not from interrupt handlers. A kernel whose CPUs keep a pointer to their
//! [`Objects`] tries those first.

mod check;
mod class;
mod depot;
#[cfg(test)]
mod tests;

use core::alloc::Layout;
use core::ops::Deref;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering::Relaxed};
use rust_alloc::boxed::Box;
use smallvec::SmallVec;

use ksync::{CpuPin, Padded, PerCpu, Spin, pin};

use self::class::{BURST, CACHE, CLASSES, Class};
use self::depot::{Depot, Object};
use crate::page::{Flags, PAGE_SHIFT, PAGE_SIZE, Page, PageArray, Pfn, SLAB_WORDS, State};
use crate::stack::Stack;
use crate::stats::Tally;
use crate::{Machine, PageAllocator, Rights};

pub use self::check::{HeapFault, HeapUsage};

ksync::lock_class!(pub DepotLock, "slab depot", rank = 120);

/// One CPU's objects.
struct Cache {
    /// By class; used by the CPU with preemption off. Const, but for what is in the stacks.
    stacks: Box<[Ready; CLASSES]>,
    /// Pages of large objects that this CPU allocated, less those that it freed; only the sum over all CPUs is
    /// meaningful.
    large: Tally,
    /// The cache is to be emptied. Set by any CPU, cleared by the owner.
    drain: AtomicBool,
}

/// The ready objects of one class, on lines of their own.
#[repr(align(64))]
struct Ready(Stack<AtomicPtr<u8>, CACHE>);

impl Deref for Ready {
    type Target = Stack<AtomicPtr<u8>, CACHE>;

    #[inline(always)]
    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

/// One CPU's ready objects, for use by that CPU alone.
#[derive(Clone, Copy)]
pub struct Objects<'a>(&'a [Ready; CLASSES]);

impl Objects<'_> {
    /// An object that this CPU has ready, undefined contents; if there is none, [`Slab::alloc`] may find one.
    #[inline(always)]
    pub fn alloc(self, _pin: &CpuPin, layout: Layout) -> Option<*mut u8> {
        let class = Class::of(layout)?;
        self.0[class.index()].pop()
    }

    /// Puts an object into this CPU's cache if there is room, under the conditions of [`Slab::dealloc`], which is to be
    /// called otherwise. Returns whether it did.
    #[inline(always)]
    pub fn dealloc(self, _pin: &CpuPin, object: *mut u8, layout: Layout) -> bool {
        let Some(class) = Class::of(layout) else {
            return false;
        };
        let stack = &self.0[class.index()];
        debug_assert!(
            stack.iter().all(|held| held != object),
            "heap object {object:?} freed twice"
        );
        stack.push(object, class.cached())
    }
}

/// Empty stacks, built one by one in place: all together are too large for a boot stack.
fn no_objects() -> Box<[Ready; CLASSES]> {
    let stacks: Box<[Ready]> = (0..CLASSES).map(|_| Ready(Stack::new())).collect();
    stacks
        .try_into()
        .unwrap_or_else(|_| unreachable!("one for each class"))
}

/// The heap. See the module.
pub struct Slab {
    /// By CPU, then by class.
    depots: Box<[Padded<Spin<Depot, DepotLock>>]>,
    cpus: PerCpu<Cache>,
}

impl Slab {
    /// An empty heap. Allocates from the global heap, once: 18 KiB per CPU.
    pub fn new<M: Machine>(machine: &M) -> Slab {
        Slab {
            depots: (0..machine.ncpus() * CLASSES)
                .map(|_| Padded(Spin::new(Depot::new())))
                .collect(),
            cpus: PerCpu::new(machine.ncpus(), |_| Cache {
                stacks: no_objects(),
                large: Tally::new(),
                drain: AtomicBool::new(false),
            }),
        }
    }

    /// The ready objects of `cpu`.
    pub fn objects(&self, cpu: usize) -> Objects<'_> {
        Objects(&self.cpus.of(cpu).stacks)
    }

    /// Memory for an object, with undefined contents; null if there is none for these rights. [`Rights::Reserve`] opens
    /// the last pages to small requests.
    pub fn alloc<M: Machine>(
        &self,
        machine: &M,
        frames: &PageAllocator,
        layout: Layout,
        rights: Rights,
    ) -> *mut u8 {
        let pin = pin();
        let Some(class) = Class::of(layout) else {
            return self.alloc_large(machine, frames, &pin, (layout, rights));
        };
        match self.cpus.get(&pin).stacks[class.index()].pop() {
            Some(object) => object,
            None => self.alloc_slow(machine, frames, &pin, (class, rights)),
        }
    }

    /// Frees memory that [`alloc`](Slab::alloc) returned for the same layout.
    pub fn dealloc<M: Machine>(
        &self,
        machine: &M,
        frames: &PageAllocator,
        object: *mut u8,
        layout: Layout,
    ) {
        let pin = pin();
        if self.objects(pin.cpu()).dealloc(&pin, object, layout) {
            return;
        }
        match Class::of(layout) {
            Some(class) => self.dealloc_slow(machine, frames, &pin, class, object),
            None => self.free_large(machine, frames, &pin, object, layout),
        }
    }

    /// Whether an allocation of `size` bytes with the same alignment would get a block of the same size as `layout`
    /// did: then a reallocation has nothing to do.
    pub fn same_place(layout: Layout, size: usize) -> bool {
        let Ok(other) = Layout::from_size_align(size, layout.align()) else {
            return false;
        };
        match (Class::of(layout), Class::of(other)) {
            (Some(class), Some(other)) => class == other,
            (None, None) => order_of(layout) == order_of(other),
            _ => false,
        }
    }

    /// Returns this CPU's objects to their slabs, and frees the unused slabs of all CPUs' depots.
    pub fn drain<M: Machine>(&self, machine: &M, frames: &PageAllocator, pin: &CpuPin) {
        let cache = self.cpus.get(pin);
        cache.drain.store(false, Relaxed);
        for class in Class::all() {
            let stack = &cache.stacks[class.index()];
            while stack.len() != 0 {
                stack.give_oldest(BURST, |oldest| {
                    self.put(machine, frames, pin, class, oldest);
                });
            }
        }
        for depot in &self.depots {
            let spare = depot.lock().take_spare(frames.pages());
            if let Some(slab) = spare {
                release_slab(frames, pin, slab);
            }
        }
    }

    /// Asks each CPU to drain at its next [`poll`](Slab::poll).
    pub fn request_drain(&self) {
        for cache in self.cpus.iter() {
            cache.drain.store(true, Relaxed);
        }
    }

    /// Drains this CPU's cache if that was requested. Called by the idle loop, and by a thread that a clock tick has
    /// interrupted, before it enters user mode; not by the tick's handler.
    #[inline]
    pub fn poll<M: Machine>(&self, machine: &M, frames: &PageAllocator, pin: &CpuPin) {
        if self.cpus.get(pin).drain.load(Relaxed) {
            self.drain(machine, frames, pin);
        }
    }

    fn depot(&self, cpu: usize, class: Class) -> &Spin<Depot, DepotLock> {
        &self.depots[cpu * CLASSES + class.index()]
    }

    /// Fills this CPU's cache of the class, which is empty, and takes an object of it; null if there is none.
    #[cold]
    #[inline(never)]
    fn alloc_slow<M: Machine>(
        &self,
        machine: &M,
        frames: &PageAllocator,
        pin: &CpuPin,
        (class, rights): (Class, Rights),
    ) -> *mut u8 {
        let stack = &self.cpus.get(pin).stacks[class.index()];
        let wanted = class.burst();
        let refill = |depot: &mut Depot| {
            depot.take(frames.pages(), class, wanted, |object| {
                let pushed = stack.push(place(machine, class, object), class.cached());
                debug_assert!(pushed);
            });
        };
        refill(&mut self.depot(pin.cpu(), class).lock());
        if stack.len() == 0 {
            if let Some(slab) = new_slab(frames, pin, class, rights) {
                let mut depot = self.depot(pin.cpu(), class).lock();
                depot.add(frames.pages(), slab);
                refill(&mut depot);
            } else {
                // Out of memory: take objects that other CPUs have cut.
                for cpu in 0..machine.ncpus() {
                    if stack.len() == 0 {
                        refill(&mut self.depot(cpu, class).lock());
                    }
                }
            }
        }
        stack.pop().unwrap_or(ptr::null_mut())
    }

    /// Keeps an object in this CPU's cache, which is full: a burst of the oldest makes room.
    #[cold]
    #[inline(never)]
    fn dealloc_slow<M: Machine>(
        &self,
        machine: &M,
        frames: &PageAllocator,
        pin: &CpuPin,
        class: Class,
        object: *mut u8,
    ) {
        let stack = &self.cpus.get(pin).stacks[class.index()];
        stack.give_oldest(class.burst(), |oldest| {
            self.put(machine, frames, pin, class, oldest);
        });
        let pushed = stack.push(object, class.cached());
        debug_assert!(pushed);
    }

    /// Returns objects to their slabs, at most a burst.
    fn put<M: Machine>(
        &self,
        machine: &M,
        frames: &PageAllocator,
        pin: &CpuPin,
        class: Class,
        objects: &[AtomicPtr<u8>],
    ) {
        let pages = frames.pages();
        let mut rest = objects;
        while let Some(first) = rest.first() {
            let (mut slab, mut page) = slab_of(machine, pages, class, first.load(Relaxed));
            let cpu = page.queue();
            let mut surplus = SmallVec::<[Pfn; BURST]>::new();
            let mut depot = self.depot(usize::from(cpu), class).lock();
            loop {
                // Objects freed in a row are often in one slab, which is looked up once for them.
                let base = machine.frame(slab).as_ptr().addr();
                let (put, unneeded) = depot.put(pages, class, (slab, page, base), rest);
                if let Some(slab) = unneeded {
                    surplus.push(slab);
                }
                rest = &rest[put..];
                let Some(next) = rest.first() else { break };
                (slab, page) = slab_of(machine, pages, class, next.load(Relaxed));
                if page.queue() != cpu {
                    break;
                }
            }
            drop(depot);
            for &slab in &surplus {
                release_slab(frames, pin, slab);
            }
        }
    }

    #[inline(never)]
    fn alloc_large<M: Machine>(
        &self,
        machine: &M,
        frames: &PageAllocator,
        pin: &CpuPin,
        (layout, rights): (Layout, Rights),
    ) -> *mut u8 {
        let order = order_of(layout);
        // A single page is a small request, see the module.
        let rights = if order == 0 { rights } else { Rights::Kernel };
        let Ok(run) = frames.alloc_order(pin, order, rights) else {
            return ptr::null_mut();
        };
        for n in 0..1 << order {
            frames
                .pages()
                .get(run.add(n))
                .init_flags(State::Kernel, Flags::empty());
        }
        self.cpus.get(pin).large.add(1 << order);
        machine.frame(run).as_ptr()
    }

    #[inline(never)]
    fn free_large<M: Machine>(
        &self,
        machine: &M,
        frames: &PageAllocator,
        pin: &CpuPin,
        object: *mut u8,
        layout: Layout,
    ) {
        let order = order_of(layout);
        let run = machine
            .frame_of(object)
            .expect("a heap pointer lies in a frame");
        self.cpus.get(pin).large.add((1u64 << order).wrapping_neg());
        frames.free_order(pin, run, order);
    }
}

/// log2 of the pages of a large object.
fn order_of(layout: Layout) -> u8 {
    let bytes = layout.size().max(layout.align()).max(PAGE_SIZE);
    ((bytes - 1).ilog2() + 1 - PAGE_SHIFT) as u8
}

/// A run of pages prepared as a slab without objects in use.
fn new_slab(frames: &PageAllocator, pin: &CpuPin, class: Class, rights: Rights) -> Option<Pfn> {
    // If memory is short or fragmented, a single page holds at least one object of any class.
    let tries = [(class.order(), Rights::Kernel), (0, rights)];
    let (slab, order) = tries
        .into_iter()
        .find_map(|(order, rights)| Some((frames.alloc_order(pin, order, rights).ok()?, order)))?;
    for n in 0..1 << order {
        let page = frames.pages().get(slab.add(n));
        page.init_flags(State::Slab, Flags::empty());
        page.set_class(class.index() as u8);
        page.set_queue(pin.cpu() as u8);
        page.set_order(order);
    }
    let head = frames.pages().get(slab);
    (0..SLAB_WORDS).for_each(|n| head.slab_word(n).store(0, Relaxed));
    Some(slab)
}

fn release_slab(frames: &PageAllocator, pin: &CpuPin, slab: Pfn) {
    let order = frames.pages().get(slab).order();
    for n in 0..1 << order {
        frames.pages().get(slab.add(n)).set_queue(0);
    }
    frames.free_order(pin, slab, order);
}

/// The address of an object.
fn place<M: Machine>(machine: &M, class: Class, object: Object) -> *mut u8 {
    machine
        .frame(object.slab)
        .as_ptr()
        .wrapping_add(object.place as usize * class.size())
}

/// The object at an address.
fn find<M: Machine>(machine: &M, pages: PageArray, class: Class, object: *mut u8) -> Object {
    let (slab, _) = slab_of(machine, pages, class, object);
    let offset = object.addr() - machine.frame(slab).as_ptr().addr();
    Object {
        slab,
        place: class.spacing().place(offset),
    }
}

/// The slab of the object at an address, and its first page.
#[inline(always)]
fn slab_of<M: Machine>(
    machine: &M,
    pages: PageArray,
    class: Class,
    object: *mut u8,
) -> (Pfn, &'static Page) {
    let pfn = machine
        .frame_of(object)
        .expect("a heap pointer lies in a frame");
    let page = pages.get(pfn);
    assert!(
        page.state() == State::Slab && usize::from(page.class()) == class.index(),
        "{object:?} freed as an object of {} bytes, which it is not",
        class.size()
    );
    let slab = Pfn(pfn.0 >> page.order() << page.order());
    (slab, pages.get(slab))
}
