//! The real VM under shuttle: a world for several threads, and the schedules in which they run.
//!
//! A switch is possible at every atomic access. [`explore`] tries random schedules. [`stop_everywhere`] tries, one
//! after the other, all schedules in which one thread is stopped once, at any step, while the others run as far as they
//! can without it: an operation must withstand any interference between two of its steps.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use shuttle::thread::{self, JoinHandle};
use vm::object::ObjectRef;
use vm::space::{MapArgs, RemapArgs, RemapTarget, Source, Space};
use vm::{EntryFlags, FaultError, MapProt, Tuning};

use crate::{Access, Lab, one_stop, random_schedules};

/// Bytes of a page.
pub const PAGE: u64 = 4096;
/// The address of all mappings.
pub const AT: u64 = 0x4000_0000;
/// The destination of moves.
pub const TO: u64 = 0x5000_0000;
const FRAMES: usize = 256;
/// Number of CPUs, including that of the thread that prepares and checks.
const CPUS: usize = 5;

/// A machine, a space and a file.
pub struct World {
    /// The machine.
    pub lab: Lab,
    /// The space.
    pub space: Arc<Space>,
    /// The file, empty at first.
    pub file: ObjectRef,
}

/// The body of a schedule. It spawns the threads, and joins them.
pub type Body = fn(&Arc<World>);

fn run(body: Body, lab: Lab) {
    lab.vm.set_fault_around(PAGE);
    let space = Space::new(&lab.vm).unwrap();
    let file = ObjectRef::new_file(&lab.vm, None).unwrap();
    let world = Arc::new(World { lab, space, file });
    body(&world);
    let world = Arc::into_inner(world).expect("all threads have ended");
    let World {
        mut lab,
        space,
        file,
    } = world;
    space.clear(&lab.vm);
    file.release(&lab.vm);
    if let Some(vm) = Arc::get_mut(&mut lab.vm) {
        vm.end_special();
    }
    lab.finish();
}

/// Tries random schedules, then schedules with few switches at unusual places. `PANTALA_SCHEDULES` sets the number.
pub fn explore(body: Body) {
    random_schedules::explore(
        move || run(body, Lab::tuned(FRAMES, CPUS, Tuning::DEFAULT)),
        random_schedules::asked(60),
    );
}

/// Tries each schedule in which the first thread that `body` spawns is stopped once. Returns the number of schedules.
pub fn stop_everywhere(body: Body) -> usize {
    stop_after(0, body)
}

/// As [`stop_everywhere`], where the thread that is stopped is spawned after so many others, which have ended by then.
pub fn stop_after(others: usize, body: Body) -> usize {
    let lab = || Lab::tuned(FRAMES, CPUS, Tuning::SMALL);
    one_stop::everywhere(1 + others, move || run(body, lab()))
}

/// As [`stop_everywhere`], where all memory gets reserved runs, which have four frames in models.
pub fn stop_everywhere_in_runs(body: Body) -> usize {
    let lab = || Lab::with_superpages(FRAMES, CPUS, Tuning::SMALL);
    one_stop::everywhere(1, move || run(body, lab()))
}

/// Runs `reads` on CPU 1 beside `writes` on CPU 2. The one that is spawned first is the one that may be stopped: the reader if `reader_first`.
pub fn reader_beside_writer(
    world: &Arc<World>,
    reader_first: bool,
    reads: fn(&World),
    writes: fn(&World),
) {
    if reader_first {
        let reader = program(world, 1, reads);
        join([reader, program(world, 2, writes)]);
    } else {
        let writer = program(world, 2, writes);
        join([writer, program(world, 1, reads)]);
    }
}

impl World {
    /// Maps two pages at [`AT`].
    pub fn map(&self, shared: bool, source: Source<'_>) {
        self.map_pages(2, shared, source);
    }

    /// Maps `pages` pages at [`AT`].
    pub fn map_pages(&self, pages: u64, shared: bool, source: Source<'_>) {
        let mut args = MapArgs::anon(pages * PAGE, MapProt::READ | MapProt::WRITE).at(AT);
        args.source = source;
        args.flags = if shared {
            EntryFlags::SHARED
        } else {
            EntryFlags::empty()
        };
        assert_eq!(self.space.map(&self.lab.vm, &args), Ok(AT));
    }

    /// Adds to the word at [`AT`], as a program.
    ///
    /// # Errors
    /// The signal that the program would get.
    pub fn add(&self, cpu: usize) -> Result<u64, FaultError> {
        self.lab.touch(&self.space, cpu, AT, Access::Write, |word| {
            word.fetch_add(1, SeqCst) + 1
        })
    }

    /// Checks that the program cannot reach the page at [`AT`], by cached translations or by a walk.
    pub fn unreachable(&self, cpu: usize, access: Access) {
        self.unreachable_at(AT, cpu, access);
    }

    /// As `unreachable`, at another address.
    pub fn unreachable_at(&self, va: u64, cpu: usize, access: Access) {
        let reached = self.lab.vm.machine.access(cpu, va, access, |_| ());
        assert!(
            reached.is_err(),
            "CPU {cpu} still reaches the page at {va:#x} for {access:?}"
        );
    }

    /// Moves one page.
    pub fn carry(&self, old: u64, new: u64) {
        let args = RemapArgs {
            old,
            old_len: PAGE,
            new_len: PAGE,
            target: RemapTarget::Fixed(new),
            keep_old: false,
        };
        assert_eq!(self.space.remap(&self.lab.vm, &args), Ok(new));
    }

    /// Removes the first page of an object from all page tables.
    pub fn scan(&self, object: &ObjectRef) {
        let found = object.lookup(&ksync::pin(), 0);
        if let Some(pfn) = found {
            self.lab.vm.chaos_scan(pfn);
        }
    }

    /// The word at [`AT`] of a space, read by the kernel.
    pub fn word(&self, space: &Space) -> u64 {
        self.word_at(space, AT)
    }

    /// The word at an address of a space, read by the kernel.
    pub fn word_at(&self, space: &Space, va: u64) -> u64 {
        let mut bytes = [0; 8];
        assert_eq!(space.read_at(&self.lab.vm, va, &mut bytes), Ok(8));
        u64::from_le_bytes(bytes)
    }

    /// Writes a word to a space, by the kernel.
    pub fn set_word_at(&self, space: &Space, va: u64, word: u64) {
        let written = space.write_at(&self.lab.vm, va, &word.to_le_bytes());
        assert_eq!(written, Ok(8));
    }

    /// Makes the space fault, and serves the fault.
    pub fn touched(&self, access: vm::Access) {
        assert_eq!(self.space.fault(&self.lab.vm, AT, access), Ok(()));
    }

    /// Number of pages of private memory.
    pub fn private_pages(&self) -> usize {
        self.lab.vm.epoch.drain();
        self.lab.vm.drain_limbo();
        let mut pages = 0;
        let count = &mut |_, page: &vm::Page| {
            pages += usize::from(page.state() == vm::page::State::Anon);
        };
        self.lab
            .vm
            .alloc
            .check_and_visit(count)
            .expect("consistent lists");
        pages
    }
}

/// A program on `cpu`, which runs the space as long as `body` runs.
pub fn program(
    world: &Arc<World>,
    cpu: usize,
    body: impl Fn(&World) + Send + 'static,
) -> JoinHandle<()> {
    spawn(world, cpu, move |world| {
        world.lab.run(&world.space);
        body(world);
        world.lab.stop(&world.space);
    })
}

/// A thread that plays `cpu`.
pub fn spawn(
    world: &Arc<World>,
    cpu: usize,
    body: impl Fn(&World) + Send + 'static,
) -> JoinHandle<()> {
    let world = world.clone();
    thread::spawn(move || world.lab.join(cpu, || body(&world)))
}

/// Waits for threads.
pub fn join(all: impl IntoIterator<Item = JoinHandle<()>>) {
    all.into_iter().for_each(|thread| thread.join().unwrap());
}
