//! The memory use of a hub.
#![cfg(not(any(loom, shuttle)))]
#![expect(unsafe_code, reason = "an allocator that counts")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    ops::ControlFlow,
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
};

use ksync::{Epoch, HubRef, HubValue, host};

/// The system's allocator, with a count of the bytes in use.
struct Counted;

static BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: passes on to the system's allocator.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size(), SeqCst);
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size(), SeqCst);
        // SAFETY: the caller's.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counted = Counted;

#[derive(Default)]
struct Value;

impl HubValue for Value {}

/// On a large machine a hub used by a few CPUs has shards for those only, and frees all of them.
#[test]
fn a_hub_has_shards_for_the_cpus_that_use_it() {
    const CPUS: usize = 256;
    let epoch = Epoch::new(CPUS);
    host::set_cpu(0);
    let before = BYTES.load(SeqCst);
    let hub: HubRef<Value, usize> = HubRef::new(&epoch, Value).ok().unwrap();
    hub.grow().unwrap();
    let users = [0, 3, 200];
    let members = users.map(|cpu| {
        host::set_cpu(cpu);
        [hub.attach(cpu).unwrap(), hub.attach(cpu).unwrap()]
    });
    let grown = BYTES.load(SeqCst) - before;
    assert!(grown < CPUS * 8 + 2048, "{grown} bytes for three CPUs");
    let mut sum = 0;
    let ControlFlow::Continue(()) = hub.scan(|cpu| -> ControlFlow<()> {
        sum += cpu;
        ControlFlow::Continue(())
    }) else {
        unreachable!()
    };
    assert_eq!(sum, 2 * users.iter().sum::<usize>());
    drop((members, hub));
    host::set_cpu(0);
    (1..CPUS).for_each(|cpu| epoch.offline(cpu));
    epoch.drain();
    let left = BYTES.load(SeqCst).saturating_sub(before);
    // The chunk that each retiring CPU keeps.
    assert!(left < 4 * 1024, "{left} bytes are left");
}
