//! The leak check: accounts for every frame when the last program has ended.
//!
//! Guarantee: a frame that is neither free nor in use by an owner is found and counted. Mechanism: all deferred frees
//! are performed and all caches of free memory are emptied. Then the frames are counted by the use that each frame's
//! record states ([`State`]), and each count is compared with that of the use's owner, which counts by other means.

use core::fmt;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;

use hal::{kprintln, stack};
use ksync::Once;
use mem::{slab, vm};
use vfs::account::Holdings;
use vm::page::State;
use vm::slab::HeapUsage;

/// Whether `leakcheck` is on the command line. Written once, at boot.
static ENABLED: AtomicBool = AtomicBool::new(false);
/// The heap and the files when init's thread began. Written once.
static AT_START: Once<(HeapUsage, Holdings)> = Once::new();

/// Bytes by which the heap may have grown when the last program has ended, because of tables that never shrink.
const HEAP_SLACK: usize = 128 << 10;
/// Most bytes of the heap that a name, its inode and its entries in tables take.
const NAME_BYTES: usize = 1 << 10;
/// Most bytes of the heap that the index of a file takes for each page of a dense file: nodes of 256 bytes have 64 pages each.
const PAGE_BYTES: usize = 5;

/// Switches the check on or off; if on, the measurement of stacks too.
pub(super) fn enable(on: bool) {
    ENABLED.store(on, Relaxed);
    if on {
        stack::measure();
    }
}

/// Whether the check is switched on.
pub fn enabled() -> bool {
    ENABLED.load(Relaxed)
}

/// If the check is switched on, records the heap's size before the first program runs. Called by init's thread; sleeps.
pub fn note_start() {
    if !enabled() {
        return;
    }
    vm().epoch.drain();
    let files = vfs::account::holdings().unwrap_or_default();
    AT_START.get_or_init(|| (slab().usage(), files));
}

/// Empties this CPU's caches of free memory. To be called on every CPU before [`check`].
pub fn empty_caches() {
    let vm = vm();
    let pin = ksync::pin();
    slab().drain(&vm.machine, &vm.alloc, &pin);
    vm.alloc.drain(&pin);
}

/// One use of frames: how many frames state it, and how many the owner counts.
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

/// The uses, at the indexes that [`place`] returns.
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
        // Allocated without a use, or free in a place where free frames cannot be.
        State::Allocated | State::Free | State::Absent => 6,
    }
}

/// Checks that each frame is on exactly one list of free memory or in use by an owner, and prints the sums.
///
/// Returns whether all counts agree. To be called when no program runs, every CPU has left its last space and has
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
            // The count of large pages includes the buffer that the check itself uses.
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
    let free = census.listed + census.in_magazines + census.reserved;
    existing += free;
    accounts[0].known = existing - vm.alloc.total_pages() + mem::machine_frames();
    accounts[2].known = heap.slab_pages;
    accounts[3].known = buffers;
    accounts[5].known = files.frames as usize + ipc::shared_pages() + proc::vdso::PAGES;
    kprintln!(
        "leakcheck: frames={existing} free={free} reserved={} slabs={} buffers={} files={}",
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
    if !check_heap(&heap, &files) {
        return false;
    }
    kprintln!("leakcheck: every frame is accounted for");
    true
}

/// Compares the heap with what it was when init began, prints what has grown, and returns whether that is explained.
///
/// Names and pages of files made since, tables of ids and of accounts explain growth by their sizes. A leak for each process
/// or file of a test is more.
fn check_heap(heap: &HeapUsage, files: &Holdings) -> bool {
    let Some((began, before)) = AT_START.get() else {
        return true;
    };
    let new_names = files.names.saturating_sub(before.names);
    let new_pages = files.frames.saturating_sub(before.frames) as usize;
    let tables = proc::ids::table_bytes() + task::account::table_bytes() + ipc::table_bytes();
    kprintln!(
        "leakcheck: heap of {} KiB, {} when init began; {} names, {} KiB of tables",
        heap.bytes / 1024,
        began.bytes / 1024,
        files.names,
        tables / 1024
    );
    kprintln!("leakcheck: heap objects made since:{}", Growth(began, heap));
    let new_pages = new_pages + ipc::shared_pages();
    let explained = HEAP_SLACK + new_names * NAME_BYTES + new_pages * PAGE_BYTES + tables;
    if heap.bytes > began.bytes + explained {
        kprintln!("frames leaked: the heap has grown and nobody knows why");
        return false;
    }
    true
}

/// The heap at two times: prints each size of which there are more objects the second time, and how many more.
struct Growth<'a>(&'a HeapUsage, &'a HeapUsage);

impl fmt::Display for Growth<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for ((size, before), (_, after)) in self.0.sizes().zip(self.1.sizes()) {
            if after > before {
                write!(f, " {}x{size}", after - before)?;
            }
        }
        let pages = self.1.large_pages.saturating_sub(self.0.large_pages);
        write!(f, " {pages} pages")
    }
}

/// Checks that each stack belongs to a thread, belongs to a CPU for good, or is cached for the next thread. Returns
/// the number of frames too many or too few.
fn check_stacks() -> usize {
    let threads = proc::ids::threads() * stack::FRAMES_PER_STACK;
    let known = threads + stack::frames_permanent() + stack::frames_cached();
    let found = stack::frames_in_use();
    if found != known {
        kprintln!("leakcheck: stacks: {found} frames found, {known} known to the owner");
    }
    found.abs_diff(known)
}
