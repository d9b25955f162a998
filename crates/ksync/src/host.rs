//! The platform on a host: std threads that play CPUs.
//!
//! Each thread sets its CPU by [`set_cpu`]; the default is 0. Preemption off means, as in the kernel, that no other
//! thread of the same CPU runs: the first pin of a thread waits until no other thread of that CPU is pinned.

use core::cell::Cell;
use std::{boxed::Box, time::Instant};

use crate::{
    class::HeldLocks,
    percpu::Padded,
    platform::{Parker, Platform},
    shim::{leak, threads},
};
// Plain atomics: this is the machine, not the protocol under test.
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};

/// CPUs that the host platform can play.
pub const MAX_CPUS: usize = 256;

/// Which CPUs have a pinned thread, a line each.
static TAKEN: [Padded<AtomicBool>; MAX_CPUS] = [const { Padded(AtomicBool::new(false)) }; MAX_CPUS];

/// Whether waiting threads keep their processors.
static SPINS: AtomicBool = AtomicBool::new(false);

struct Local {
    cpu: Cell<usize>,
    /// The CPU that this thread holds while pinned.
    pinned_on: Cell<usize>,
    preempt: Cell<usize>,
    irq_off: Cell<usize>,
    held: HeldLocks,
    /// The thread's parker, leaked so that a late unpark finds it; 0 before the first use.
    parker: Cell<usize>,
    /// The thread's number; 0 before the first use.
    number: Cell<u32>,
}

impl Local {
    fn new() -> Self {
        Self {
            cpu: Cell::new(0),
            pinned_on: Cell::new(0),
            preempt: Cell::new(0),
            irq_off: Cell::new(0),
            held: HeldLocks::new(),
            parker: Cell::new(0),
            number: Cell::new(0),
        }
    }
}

threads::thread_local! {
    static LOCAL: Local = Local::new();
}

/// Makes the current thread play CPU `cpu`.
///
/// # Panics
/// If it is pinned, or `cpu` is not below [`MAX_CPUS`].
pub fn set_cpu(cpu: usize) {
    assert!(cpu < MAX_CPUS);
    LOCAL.with(|l| {
        assert_eq!(l.preempt.get(), 0, "changing CPU while pinned");
        l.cpu.set(cpu);
    });
}

/// Makes threads that wait for a lock keep their processors from now on, or give them away, as at first. For measurements with no more
/// threads than processors.
pub fn spin(spins: bool) {
    SPINS.store(spins, Relaxed);
}

/// The current thread's preemption count.
pub fn preempt_count() -> usize {
    Host::preempt_count()
}

/// Whether the current thread has interrupts off.
pub fn irqs_off() -> bool {
    LOCAL.with(|l| l.irq_off.get() > 0)
}

/// Whether the current thread holds no lock (debug builds).
pub fn holds_nothing() -> bool {
    LOCAL.with(|l| l.held.is_empty())
}

struct Host;

impl Platform for Host {
    fn cpu() -> usize {
        LOCAL.with(|l| l.cpu.get())
    }

    fn preempt_disable() {
        LOCAL.with(|l| {
            let count = l.preempt.get();
            if count == 0 && threads::EXCLUDE {
                let cpu = l.cpu.get();
                while TAKEN[cpu].swap(true, Acquire) {
                    threads::yield_now();
                }
                l.pinned_on.set(cpu);
            }
            l.preempt.set(count + 1);
        });
    }

    fn preempt_enable() {
        LOCAL.with(|l| {
            let count = l.preempt.get() - 1;
            l.preempt.set(count);
            if count == 0 && threads::EXCLUDE {
                TAKEN[l.pinned_on.get()].store(false, Release);
            }
        });
    }

    fn preempt_count() -> usize {
        LOCAL.with(|l| l.preempt.get())
    }

    fn irq_save() -> usize {
        LOCAL.with(|l| l.irq_off.replace(l.irq_off.get() + 1))
    }

    fn irq_restore(state: usize) {
        LOCAL.with(|l| l.irq_off.set(state));
    }

    fn ticks() -> u64 {
        if cfg!(any(loom, shuttle)) {
            return 0;
        }
        static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        START.get_or_init(Instant::now).elapsed().as_nanos() as u64
    }

    fn relax() {
        // There are usually more threads than processors, so the holder may need this one.
        if !cfg!(any(loom, shuttle)) && SPINS.load(Relaxed) {
            core::hint::spin_loop();
        } else {
            threads::yield_now();
        }
    }

    /// Any number but 0 that no other thread has. In models a constant, because they must behave alike in each execution.
    fn thread() -> u32 {
        if cfg!(any(loom, shuttle)) {
            return 0;
        }
        static THREADS: AtomicU32 = AtomicU32::new(1);
        LOCAL.with(|l| {
            if l.number.get() == 0 {
                l.number.set(THREADS.fetch_add(1, Relaxed));
            }
            l.number.get()
        })
    }

    fn parker() -> Parker {
        LOCAL.with(|l| {
            if l.parker.get() == 0 {
                let thread: &'static threads::Thread = leak(Box::new(threads::current()));
                l.parker
                    .set(core::ptr::from_ref(thread).expose_provenance());
            }
            Parker(l.parker.get())
        })
    }

    fn park() {
        assert_eq!(Self::preempt_count(), 0, "parking with preemption off");
        threads::park();
    }

    fn unpark(parker: Parker) {
        if cfg!(loom) {
            // A wake-up takes time: before it the thread may learn otherwise that its wait is over.
            threads::yield_now();
        }
        let thread = core::ptr::with_exposed_provenance::<threads::Thread>(parker.0);
        // SAFETY: only `parker` makes tokens here, and it leaks their targets.
        unsafe { &*thread }.unpark();
    }

    fn with_held(f: &mut dyn FnMut(&HeldLocks)) {
        LOCAL.with(|l| f(&l.held));
    }
}

crate::platform!(Host);
