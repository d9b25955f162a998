//! Two or three concurrent operations on the real VM under loom, and the small world in which they run.
//!
//! loom explores every interleaving up to a bound on preemptions and every order that the memory model allows, and
//! checks that the locks order every access to the data that they guard.

use std::alloc::Layout;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock};

use vm::object::ObjectRef;
use vm::space::{MapArgs, Source, Space};
use vm::{Access, EntryFlags, MapProt, Pfn, Pte, Rights, Slab};

use crate::Lab;

/// Bytes of a page.
pub const PAGE: u64 = 4096;
/// The address of all mappings.
pub const AT: u64 = 0x4000_0000;
/// A free address that shares no page table but the root with [`AT`].
pub const ELSEWHERE: u64 = 0x7000_0000_0000;
const FRAMES: usize = 160;
/// Layout of the objects that models take from the heap: a slab has five of them; a CPU keeps eight and exchanges four
/// at a time.
const OBJECT: Layout = match Layout::from_size_align(3072, 8) {
    Ok(layout) => layout,
    Err(_) => panic!("a valid layout"),
};

/// A machine of two or three CPUs, a space and a file.
pub struct World {
    /// The machine.
    pub lab: Lab,
    /// The space.
    pub space: Arc<Space>,
    /// The file, empty at first.
    pub file: ObjectRef,
    /// More spaces, which are cleared at the end.
    pub children: Mutex<Vec<Arc<Space>>>,
    /// A heap, for models of it.
    heap: OnceLock<Slab>,
    /// Frames that are withheld from the operations.
    hoard: Mutex<Vec<Pfn>>,
    /// Runs that were allocated, with their orders; freed at the end.
    pub runs: Mutex<Vec<(Pfn, u8)>>,
}

/// An operation, or a preparation, or a check.
pub type Act = fn(&World);

impl World {
    fn new(cpus: usize) -> World {
        let lab = Lab::new(FRAMES, cpus);
        lab.vm.set_fault_around(PAGE);
        let space = Space::new(&lab.vm).unwrap();
        let file = ObjectRef::new_file(&lab.vm, None).unwrap();
        World {
            lab,
            space,
            file,
            children: Mutex::default(),
            heap: OnceLock::new(),
            hoard: Mutex::default(),
            runs: Mutex::default(),
        }
    }

    fn end(self) {
        let vm = &self.lab.vm;
        for child in self.children.into_inner().expect("nobody failed") {
            child.clear(vm);
        }
        self.space.clear(vm);
        self.file.release(vm);
        for pfn in self.hoard.into_inner().expect("nobody failed") {
            vm.alloc.free(&ksync::pin(), pfn);
        }
        for (run, order) in self.runs.into_inner().expect("nobody failed") {
            vm.alloc.free_order(&ksync::pin(), run, order);
        }
        if let Some(heap) = self.heap.get() {
            for cpu in 0..self.lab.cpus() {
                ksync::host::set_cpu(cpu);
                heap.drain(&vm.machine, &vm.alloc, &ksync::pin());
            }
        }
        self.lab.finish();
    }

    /// Forks the space; the child is cleared at the end.
    pub fn fork(&self) {
        let child = self.space.fork(&self.lab.vm).unwrap();
        self.children.lock().expect("nobody failed").push(child);
    }

    /// Allocates and withholds every frame that `rights` open.
    pub fn hoard(&self, rights: Rights) {
        let mut hoard = self.hoard.lock().expect("nobody failed");
        hoard.extend(std::iter::from_fn(|| {
            self.lab.vm.alloc.alloc(&ksync::pin(), rights).ok()
        }));
    }

    /// Frees a withheld run.
    pub fn spare(&self, order: u8) {
        let alloc = &self.lab.vm.alloc;
        let mut hoard = self.hoard.lock().expect("nobody failed");
        hoard.sort_by_key(|pfn| pfn.0);
        let len = 1 << order;
        let is_run = |run: &[Pfn]| {
            run[0].0.is_multiple_of(len) && run[0].0 + len - 1 == run[len as usize - 1].0
        };
        let at = hoard.windows(len as usize).position(is_run);
        let at = at.expect("the hoard has a run");
        for pfn in hoard.drain(at..at + len as usize) {
            alloc.free(&ksync::pin(), pfn);
        }
        alloc.drain(&ksync::pin());
    }

    /// The heap.
    pub fn heap(&self) -> &Slab {
        self.heap.get_or_init(|| Slab::new(&self.lab.vm.machine))
    }

    /// Allocates so many objects from the heap, or as many as there are.
    pub fn take(&self, objects: usize) -> Vec<*mut u8> {
        let vm = &self.lab.vm;
        let take = || {
            self.heap()
                .alloc(&vm.machine, &vm.alloc, OBJECT, Rights::Kernel)
        };
        std::iter::repeat_with(take)
            .take(objects)
            .filter(|object| !object.is_null())
            .collect()
    }

    /// Frees objects.
    pub fn give(&self, objects: Vec<*mut u8>) {
        let vm = &self.lab.vm;
        for object in objects {
            self.heap().dealloc(&vm.machine, &vm.alloc, object, OBJECT);
        }
    }

    /// Maps two pages at `addr`.
    pub fn map_at(&self, addr: u64, shared: bool, source: Source<'_>) {
        let mut args = MapArgs::anon(2 * PAGE, MapProt::READ | MapProt::WRITE).at(addr);
        args.source = source;
        if shared {
            args.flags = EntryFlags::SHARED;
        }
        assert_eq!(self.space.map(&self.lab.vm, &args), Ok(addr));
    }

    /// Two pages of private memory.
    pub fn anon(&self) {
        self.map_at(AT, false, Source::Anon);
    }

    /// Puts two pages into the file. They are written to, because fault-around skips pages that were only allocated.
    pub fn fill_file(&self) {
        let fill = &mut |piece: &mut [u8]| piece.len();
        let filled = self.file.write(&self.lab.vm, 0, 2 * PAGE, fill);
        assert_eq!(filled, Ok(2 * PAGE));
    }

    /// Two pages of a file, mapped shared.
    pub fn shared(&self) {
        self.fill_file();
        self.map_at(AT, true, Source::Object(&self.file, 0));
    }

    /// Two pages of a file, mapped privately: the first one read, the second one copied, so that there is a front
    /// layer.
    pub fn beside_a_copy(&self) {
        let vm = &self.lab.vm;
        self.file.allocate(vm, 0, 2 * PAGE, true).unwrap();
        self.map_at(AT, false, Source::Object(&self.file, 0));
        self.fault_at(AT + PAGE, Access::Write);
        self.fault(Access::Read);
    }

    /// Tries to serve a fault; the result depends on the order of the operations.
    pub fn fault(&self, access: Access) {
        self.fault_at(AT, access);
    }

    /// As `fault`, at another address.
    pub fn fault_at(&self, va: u64, access: Access) {
        let _either = self.space.fault(&self.lab.vm, va, access);
    }

    /// Unmaps two pages at [`AT`].
    pub fn unmap(&self) {
        self.space.unmap(&self.lab.vm, AT, 2 * PAGE).unwrap();
    }

    /// Makes one page at [`AT`] read-only.
    pub fn protect(&self) {
        let _either = self.space.protect(&self.lab.vm, AT, PAGE, MapProt::READ);
    }

    /// The page-table entry of `space` for [`AT`].
    pub fn entry(&self, space: &Space) -> Option<Pte> {
        space.pmap().lookup(&self.lab.vm, &ksync::pin(), AT)
    }

    /// Number of page-table entries.
    pub fn resident(&self) -> usize {
        self.space.pmap().resident(&self.lab.vm)
    }
}

/// Explores `one` and `other` at the same time, with at most so many preemptions, and `check`s the resulting state;
/// then everything is freed and every frame accounted for. Each operation is the first thread once, because loom
/// explores less of the thread that begins.
pub fn at_once(preemptions: usize, prepare: Act, one: Act, other: Act, check: Act) {
    explore(preemptions, None, prepare, one, other, check);
    explore(preemptions, None, prepare, other, one, check);
}

/// As `at_once`, but with `one` as the first thread only, and at most so many `executions`.
pub fn explore(
    preemptions: usize,
    executions: Option<usize>,
    prepare: Act,
    one: Act,
    other: Act,
    check: Act,
) {
    let mut builder = builder(preemptions);
    builder.max_permutations = executions;
    builder.check(move || together(prepare, [one, other], check));
}

/// As `at_once`, with three operations; the first one is the first thread.
pub fn three_at_once(preemptions: usize, prepare: Act, acts: [Act; 3], check: Act) {
    builder(preemptions).check(move || together(prepare, acts, check));
}

/// Explores every order that the memory model allows for operations that run one after the other, each on a CPU of its
/// own: an operation sees the effects of another only through their own synchronisation.
pub fn in_turn<const N: usize>(prepare: Act, acts: [Act; N], check: Act) {
    builder(0).check(move || {
        let turn = Arc::new(AtomicUsize::new(0));
        let step = move |world: &World, cpu: usize| {
            while turn.load(SeqCst) < cpu {
                loom::thread::yield_now();
            }
            acts[cpu](world);
            turn.store(cpu + 1, SeqCst);
        };
        on_each(N, prepare, step, check);
    });
}

fn builder(preemptions: usize) -> loom::model::Builder {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 200_000;
    builder
}

/// One execution of concurrent operations.
fn together<const N: usize>(prepare: Act, acts: [Act; N], check: Act) {
    on_each(N, prepare, move |world, cpu| acts[cpu](world), check);
}

/// Runs `step` on each of so many CPUs, with the CPU's number; this thread is the first CPU.
fn on_each(cpus: usize, prepare: Act, step: impl Fn(&World, usize) + Clone + 'static, check: Act) {
    let world = Arc::new(World::new(cpus));
    prepare(&world);
    let ended = Arc::new(AtomicUsize::new(1));
    let threads = (1..cpus).map(|cpu| {
        let (world, step, ended) = (world.clone(), step.clone(), ended.clone());
        loom::thread::spawn(move || {
            world.lab.join(cpu, || step(&world, cpu));
            ended.fetch_add(1, SeqCst);
        })
    });
    let threads: Vec<_> = threads.collect();
    step(&world, 0);
    // A wake-up may come after its thread has learnt otherwise that its wait is over, and loom's `join` is confused by one. On the
    // default map none does, and its models are spared the steps.
    while cfg!(feature = "pv-stock") && ended.load(SeqCst) < cpus {
        loom::thread::yield_now();
    }
    threads.into_iter().for_each(|t| t.join().unwrap());
    check(&world);
    Arc::into_inner(world)
        .expect("all threads have ended")
        .end();
}
