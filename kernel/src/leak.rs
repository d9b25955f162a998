//! The leak check: every frame is accounted for when the last program has gone.
//!
//! Guarantee: a frame that is neither free nor its owner's is found and counted. Mechanism: all deferred frees are
//! done and all caches of free memory emptied; then each frame is looked at, and for each use that frames record of
//! themselves ([`State`]) their number must be the one that the owner of that use states by books of its own.

use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicUsize};

use hal::{kprintln, stack};
use mem::{slab, vm};
use vm::page::State;

/// `leakcheck` was on the command line. Written once, at boot.
static ENABLED: AtomicBool = AtomicBool::new(false);
/// Bytes of the heap in use when init began. Written once.
static HEAP_AT_START: AtomicUsize = AtomicUsize::new(0);

/// What the heap may have grown by when the last program has gone: tables that never shrink.
const HEAP_SLACK: usize = 256 << 10;
/// What a name, its inode and its place in the tables take at most.
const NAME_BYTES: usize = 1 << 10;

/// Switches the check on, and the measurement of stacks with it.
pub(super) fn enable(on: bool) {
    ENABLED.store(on, Relaxed);
    if on {
        stack::measure();
    }
}

/// Whether the check is wanted.
pub fn enabled() -> bool {
    ENABLED.load(Relaxed)
}

/// Notes what the kernel uses before the first program runs. Sleeps.
pub fn note_start() {
    vm().epoch.drain();
    HEAP_AT_START.store(slab().usage().bytes, Relaxed);
}

/// Empties this CPU's caches of free memory. Part of [`check`], which needs it done on every CPU.
pub fn empty_caches() {
    let vm = vm();
    let pin = ksync::pin();
    slab().drain(&vm.machine, &vm.alloc, &pin);
    vm.alloc.drain(&pin);
}

/// One use of frames: how many say that they are used so, and how many the owner knows of.
struct Account {
    name: &'static str,
    found: usize,
    known: usize,
}

impl Account {
    const fn new(name: &'static str) -> Account {
        Account {
            name,
            found: 0,
            known: 0,
        }
    }
}

/// The uses, in the order of [`place`].
fn accounts() -> [Account; 7] {
    [
        Account::new("reserved"),
        Account::new("tables"),
        Account::new("slabs"),
        Account::new("buffers"),
        Account::new("anonymous"),
        Account::new("files"),
        Account::new("nobody's"),
    ]
}

fn place(state: State) -> usize {
    match state {
        State::Reserved => 0,
        State::Table => 1,
        State::Slab => 2,
        State::Kernel => 3,
        State::Anon => 4,
        State::File => 5,
        // Neither free nor put to a use.
        State::Allocated | State::Free | State::Absent => 6,
    }
}

/// Verifies that each frame is in exactly one place and has an owner, and prints the sums.
///
/// True if the books balance. Called when no program runs, every CPU has left its last space and has
/// [emptied its caches](empty_caches), and nothing waits for a grace period.
pub fn check() -> bool {
    let vm = vm();
    let Ok(files) = vfs::account::holdings() else {
        kprintln!("leakcheck: no memory to count the files");
        return false;
    };
    let mut accounts = accounts();
    let (mut existing, mut buffers) = (0, 0);
    let census = vm.alloc.check_and_visit(&mut |_, page| {
        if existing == 0 {
            // The check has a buffer itself.
            buffers = slab().usage().large_pages;
        }
        existing += 1;
        accounts[place(page.state())].found += 1;
    });
    let heap = slab().check(&vm.machine, &vm.alloc);
    let (census, heap) = match (census, heap) {
        (Ok(census), Ok(heap)) => (census, heap),
        (frames, heap) => {
            kprintln!(
                "leakcheck: frames leaked: unknown, for the lists are wrong: {frames:?} {heap:?}"
            );
            return false;
        }
    };
    let waiting = vm.limbo.frames();
    existing += census.listed + census.in_magazines;
    accounts[0].known = existing - vm.alloc.total_pages() + mem::machine_frames();
    accounts[2].known = heap.slab_pages;
    accounts[3].known = buffers;
    accounts[5].known = files.frames as usize;
    kprintln!(
        "leakcheck: frames={existing} free={} reserved={} slabs={} buffers={} files={}",
        census.listed + census.in_magazines,
        accounts[0].found,
        accounts[2].found,
        accounts[3].found,
        accounts[5].found
    );
    let mut leaked = waiting;
    for a in &accounts {
        leaked += a.found.abs_diff(a.known);
        if a.found != a.known {
            kprintln!(
                "leakcheck: {}: {} frames found, {} known to the owner",
                a.name,
                a.found,
                a.known
            );
        }
    }
    leaked += check_stacks();
    if leaked != 0 {
        kprintln!("frames leaked: {leaked}");
        return false;
    }
    let began = HEAP_AT_START.load(Relaxed);
    kprintln!(
        "leakcheck: heap of {} KiB, {} when init began; {} names",
        heap.bytes / 1024,
        began / 1024,
        files.names
    );
    // Names made since, numbers of processes and the like may have taken this much; what leaks for each process or
    // file of a test is more.
    let tables = proc::ids::table_bytes() + task::account::table_bytes();
    let explained = HEAP_SLACK + files.names * NAME_BYTES + tables;
    if heap.bytes > began + explained {
        kprintln!("frames leaked: the heap has grown and nobody knows why");
        return false;
    }
    kprintln!("leakcheck: every frame is accounted for");
    true
}

/// Each stack is a thread's, a CPU's for good, or kept for the next thread. Returns frames too many or too few.
fn check_stacks() -> usize {
    let threads = proc::ids::threads() * stack::FRAMES_PER_STACK;
    let known = threads + stack::frames_permanent() + stack::frames_cached();
    let found = stack::frames_in_use();
    if found != known {
        kprintln!("leakcheck: stacks: {found} frames found, {known} known to the owner");
    }
    found.abs_diff(known)
}
