//! The kernel's heap on simulated CPUs.
#![expect(
    unsafe_code,
    reason = "writes to and reads from the objects that the heap hands out"
)]

use std::alloc::Layout;
use std::sync::Mutex;
use std::thread;

use ksync::host::set_cpu;
use ksync::pin;
use vm::slab::HeapUsage;
use vm::{Machine, NoMemory, PageAllocator, Rights, Slab};
use vm_host::{Arena, Random};

struct Heap {
    arena: Arena,
    frames: PageAllocator,
    slab: Slab,
}

/// An object, filled with a pattern of its own.
struct Object {
    at: *mut u8,
    layout: Layout,
    fill: u8,
}

// SAFETY: an object is owned memory.
unsafe impl Send for Object {}

impl Heap {
    fn new(frames: usize, cpus: usize, domains: usize) -> Heap {
        let arena = Arena::new(frames, cpus, domains);
        let (frames, slab) = (arena.allocator(), Slab::new(&arena));
        Heap {
            arena,
            frames,
            slab,
        }
    }

    fn alloc(&self, size: usize, align: usize, fill: u8) -> Option<Object> {
        let layout = Layout::from_size_align(size, align).unwrap();
        let at = self
            .slab
            .alloc(&self.arena, &self.frames, layout, Rights::Reserve);
        if at.is_null() {
            return None;
        }
        assert_eq!(at.addr() % align, 0, "aligned");
        // SAFETY: the heap gave `size` bytes to this caller alone; the patterns check that it did.
        unsafe { at.write_bytes(fill, size) };
        Some(Object { at, layout, fill })
    }

    fn free(&self, object: Object) {
        // SAFETY: the object is still this caller's.
        let bytes = unsafe { std::slice::from_raw_parts(object.at, object.layout.size()) };
        assert!(
            bytes.iter().all(|&byte| byte == object.fill),
            "{:?} was written by another",
            object.at
        );
        self.slab
            .dealloc(&self.arena, &self.frames, object.at, object.layout);
    }

    fn drain(&self) {
        for cpu in 0..self.arena.ncpus() {
            set_cpu(cpu);
            let pin = pin();
            self.slab.drain(&self.arena, &self.frames, &pin);
            self.frames.drain(&pin);
        }
        set_cpu(0);
    }

    fn check(&self) -> HeapUsage {
        self.frames.check().expect("pages are consistent");
        self.slab
            .check(&self.arena, &self.frames)
            .expect("the heap is consistent")
    }

    /// Asserts that the heap is empty, down to the last frame.
    fn assert_empty(&self) {
        self.drain();
        assert_eq!(self.check(), HeapUsage::default());
        assert_eq!(
            self.frames.check().unwrap().listed,
            self.frames.total_pages()
        );
    }
}

/// Mostly small sizes, as in a kernel.
fn random_size(random: &mut Random) -> usize {
    match random.below(20) {
        0 => 1 + random.below(40_000),
        1..4 => 1 + random.below(4096),
        _ => 1 + random.below(300),
    }
}

#[test]
fn objects_of_every_size_are_disjoint_and_aligned() {
    let heap = Heap::new(4096, 1, 1);
    let mut objects = Vec::new();
    for size in (1..5000).step_by(7) {
        for align in [1, 8, 16, 64] {
            objects.push(
                heap.alloc(size, align, objects.len() as u8)
                    .expect("memory"),
            );
        }
    }
    for align in [128, 256, 1024, 2048, 4096, 16384] {
        objects.extend([1, 100, 5000].map(|size| heap.alloc(size, align, 7).expect("memory")));
    }
    let asked: usize = objects.iter().map(|object| object.layout.size()).sum();
    let usage = heap.check();
    assert!(usage.bytes >= asked);
    assert_eq!(
        usage.slab_pages + usage.large_pages + heap.frames.free_pages(),
        heap.frames.total_pages()
    );
    objects
        .into_iter()
        .rev()
        .for_each(|object| heap.free(object));
    assert_eq!(heap.check().bytes, 0);
    heap.assert_empty();
}

#[test]
fn bytes_in_use_are_exact() {
    let heap = Heap::new(1024, 1, 1);
    let objects: Vec<_> = [
        (10, 16),
        (24, 24),
        (25, 32),
        (3000, 3072),
        (3073, 4096),
        (4097, 8192),
        (12288, 16384),
    ]
    .map(|(size, rounded)| (heap.alloc(size, 1, 1).unwrap(), rounded))
    .into();
    let expected: usize = objects.iter().map(|&(_, rounded)| rounded).sum();
    assert_eq!(heap.check().bytes, expected);
    assert_eq!(heap.check().large_pages, 1 + 2 + 4);
    objects
        .into_iter()
        .for_each(|(object, _)| heap.free(object));
    assert_eq!(heap.check().bytes, 0);
}

#[test]
fn one_object_more_or_less_costs_no_page() {
    let heap = Heap::new(1024, 1, 1);
    // Fill caches and slabs to a limit, then cross it back and forth.
    for edge in 1..200 {
        let held: Vec<_> = (0..edge).map(|_| heap.alloc(512, 8, 3).unwrap()).collect();
        let last = heap.alloc(512, 8, 4).unwrap();
        let pages = heap.check().slab_pages;
        heap.free(last);
        for _ in 0..3 {
            heap.free(heap.alloc(512, 8, 5).unwrap());
            assert_eq!(heap.check().slab_pages, pages);
        }
        held.into_iter().for_each(|object| heap.free(object));
    }
    heap.assert_empty();
}

#[test]
fn empty_slabs_return_without_a_drain() {
    let heap = Heap::new(4096, 1, 1);
    let objects: Vec<_> = (0..10_000)
        .map(|_| heap.alloc(128, 8, 1).unwrap())
        .collect();
    assert!(heap.check().slab_pages >= 10_000 * 128 / 4096);
    objects.into_iter().for_each(|object| heap.free(object));
    // Six pages full of objects that the CPU's cache holds, perhaps in seven pages, and one spare.
    assert!(heap.check().slab_pages <= 8, "{:?}", heap.check());
    heap.assert_empty();
}

#[test]
fn small_objects_may_use_the_last_reserve_and_large_ones_not() {
    let heap = Heap::new(4096, 1, 1);
    let kernel_mark = (64 + 4096 / 200) / 2;
    let mut large = Vec::new();
    while let Some(object) = heap.alloc(8192, 8, 1) {
        large.push(object);
    }
    assert!((kernel_mark..kernel_mark + 2).contains(&heap.frames.free_pages()));
    let mut small = Vec::new();
    while let Some(object) = heap.alloc(1000, 8, 2) {
        small.push(object);
    }
    assert_eq!(heap.frames.free_pages(), 0);
    assert!(
        small.len() >= kernel_mark * 4,
        "every page was cut into objects"
    );
    large
        .into_iter()
        .chain(small)
        .for_each(|object| heap.free(object));
    heap.assert_empty();
}

#[test]
fn the_injector_spares_small_objects() {
    let heap = Heap::new(4096, 1, 1);
    heap.frames.set_injector(2, 0);
    let mut objects: Vec<_> = (0..5000)
        .map(|n| heap.alloc(16 + n % 1000, 8, 1).expect("memory"))
        .collect();
    let large: Vec<_> = (0..50).filter_map(|_| heap.alloc(20_000, 8, 1)).collect();
    assert_eq!(large.len(), 25);
    objects.extend(large);
    heap.frames.set_injector(0, 0);
    objects.into_iter().for_each(|object| heap.free(object));
    heap.assert_empty();
}

#[test]
fn fragmented_memory_serves_small_objects() {
    let heap = Heap::new(4096, 1, 1);
    // Every second page is taken: no run of two is left.
    let pages: Vec<_> =
        std::iter::from_fn(|| heap.frames.alloc(&pin(), Rights::Reserve).ok()).collect();
    let (odd, even): (Vec<_>, Vec<_>) = pages.into_iter().partition(|pfn| pfn.0 % 2 == 1);
    heap.frames.free_bulk(&pin(), &even);
    heap.frames.drain(&pin());
    assert_eq!(
        heap.frames.alloc_order(&pin(), 1, Rights::Reserve),
        Err(NoMemory)
    );
    let objects: Vec<_> = (0..200)
        .flat_map(|_| [700, 1500, 3000].map(|size| heap.alloc(size, 8, 9).expect("memory")))
        .collect();
    objects.into_iter().for_each(|object| heap.free(object));
    heap.frames.free_bulk(&pin(), &odd);
    heap.assert_empty();
}

#[test]
fn reallocation_within_a_class_stays() {
    let layout = |size| Layout::from_size_align(size, 8).unwrap();
    assert!(Slab::same_place(layout(33), 48));
    assert!(!Slab::same_place(layout(33), 49));
    assert!(!Slab::same_place(layout(3072), 3073));
    assert!(Slab::same_place(layout(3073), 4096));
    assert!(Slab::same_place(layout(9000), 16384));
    assert!(!Slab::same_place(layout(9000), 8192));
}

#[test]
#[should_panic(expected = "freed twice")]
fn freeing_twice_is_noticed() {
    let heap = Heap::new(1024, 1, 1);
    let _neighbour = heap.alloc(64, 8, 1).unwrap();
    let object = heap.alloc(64, 8, 1).unwrap();
    let (at, layout) = (object.at, object.layout);
    heap.free(object);
    heap.drain();
    // The object is back in its slab by now, so that the slab must notice, even in release builds.
    heap.slab.dealloc(&heap.arena, &heap.frames, at, layout);
    heap.drain();
}

#[test]
#[should_panic(expected = "which it is not")]
fn freeing_with_a_wrong_size_is_noticed() {
    let heap = Heap::new(1024, 1, 1);
    let object = heap.alloc(64, 8, 1).unwrap();
    heap.slab.dealloc(
        &heap.arena,
        &heap.frames,
        object.at,
        Layout::from_size_align(128, 8).unwrap(),
    );
    heap.drain();
}

#[test]
fn cpus_exchange_objects() {
    const CPUS: usize = 4;
    let heap = Heap::new(6000, CPUS, 2);
    let shared: Mutex<Vec<Object>> = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for cpu in 0..CPUS {
            let (heap, shared) = (&heap, &shared);
            scope.spawn(move || {
                set_cpu(cpu);
                let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ (cpu as u64) << 32);
                let mut held = Vec::new();
                for _ in 0..40_000 {
                    match random.below(16) {
                        0..8 => held.extend(heap.alloc(
                            random_size(&mut random),
                            1 << random.below(7),
                            random.below(256) as u8,
                        )),
                        8..14 if !held.is_empty() => {
                            heap.free(held.swap_remove(random.below(held.len())))
                        }
                        14 => heap.slab.poll(&heap.arena, &heap.frames, &pin()),
                        15 if random.below(500) == 0 => heap.slab.request_drain(),
                        _ => {
                            let at = held.len() - held.len().min(10);
                            let mut shared = shared.lock().unwrap();
                            shared.extend(held.drain(at..));
                            let keep = shared.len() - shared.len().min(random.below(24));
                            held.extend(shared.drain(keep..));
                        }
                    }
                }
                shared.lock().unwrap().append(&mut held);
            });
        }
    });
    let usage = heap.check();
    let held = shared.into_inner().unwrap();
    assert!(usage.bytes >= held.iter().map(|object| object.layout.size()).sum());
    held.into_iter().for_each(|object| heap.free(object));
    assert_eq!(heap.check().bytes, 0);
    heap.assert_empty();
}
