//! When memory is out: who waits, and who has to go.
//!
//! Guarantee: whoever needs memory and may sleep waits for it, without spending any, until it is there or the waiter is
//! killed; nobody waits for ever. A program that takes all memory is ended, whether it is one large process or a
//! thousand small ones, and others go on.
//!
//! Mechanism: one kernel thread does all the work, so a thousand who wait cost nothing. Asked for, it brings back
//! what is free but out of reach; if that is not enough it kills (`victims`), waits for the dead to free what they had,
//! wakes as many waiters as that feeds, and looks again. Threads that are killed do not wait but take from the reserve,
//! and nothing on the way of an exit needs much; a thread that otherwise takes from the reserve, because it could not sleep,
//! does not return to user mode before there is memory again, or dies ([`repay`]). Calls that change many things at once stop in
//! between when memory runs short ([`mem::admit_change`]).

mod holders;
mod victims;
mod waiters;

use core::alloc::Layout;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use hal::{PAGE_SIZE, kprintln};
use mem::{NoMemory, vm};
use task::park::{Deadline, Interruptible, Step, park, sleep_until};
use task::wait::{WaitQueue, Waiter};
use task::{kthread, time};
use vm::Rights;

use self::victims::{Choice, Killer, Victims};
use crate::{UserThreadExt, signal};

pub use self::victims::{is_condemned, score};

/// How long one wait for memory takes at most, in nanoseconds.
const WAIT_NS: u64 = 500_000_000;
/// Waits after which a faulting thread gives itself up: some twenty seconds, far longer than any exit takes.
const FAULT_TRIES: u32 = 40;
/// Waits after which a thread in the kernel takes from the reserve, and a fork is refused.
const KERNEL_TRIES: u32 = 6;
/// Between two tries of an allocation that failed though memory is there, in nanoseconds.
const PAUSE_NS: u64 = 2_000_000;
/// Between two looks at how the dying get on, in nanoseconds, and such looks before others have to go as well: longer than a
/// thread waits that holds a lock which the dying need ([`last_resort`]).
const LOOK_NS: u64 = 10_000_000;
const LOOKS: u32 = 500;
/// Looks, after the last victim's end, while there are more than so many objects that wait for a grace period.
const SETTLING: u32 = 100;
const MANY_WAITING: usize = 512;
/// How long those that are dying are waited for when nobody else is left to kill, in nanoseconds.
const LAST_WAIT_NS: u64 = 20 * time::SECOND;

/// The thread that works here, 0 before there is one. Written once.
static KILLER: AtomicU32 = AtomicU32::new(0);
/// Somebody lacks memory. Set by anyone, cleared by the thread.
static WANTED: AtomicBool = AtomicBool::new(false);
/// Nobody is left whose end would help: one of those that owe memory has to go. Set and cleared by the thread, cleared by
/// the one that goes.
static HOPELESS: AtomicBool = AtomicBool::new(false);
/// Where the thread sleeps.
static WORK: WaitQueue = WaitQueue::new();

/// What is done when memory is short.
pub(super) static POLICY: mem::Policy = mem::Policy {
    last_resort,
    wait_for_room,
};

/// Starts the thread.
#[inline(never)]
pub(super) fn start() {
    let killer = Killer::new();
    match kthread::spawn("oom", None, -20, move || run(killer)) {
        Ok(tid) => KILLER.store(tid, Ordering::Relaxed),
        Err(_) => kprintln!("oom: no memory for the thread"),
    }
}

/// Makes room, or waits for it; false if the caller had better die.
///
/// `tries` counts the caller's attempts so far.  A caller that has been killed gives up, so that it
/// can leave.
pub fn relieve(tries: u32) -> bool {
    let me = crate::current();
    if me.kill_pending() || tries > FAULT_TRIES {
        return false;
    }
    if vm().alloc.low_memory() {
        ask_and_wait();
    } else if tries > 0 {
        // It was not for want of memory, or others have freed some meanwhile.
        let _ = sleep_until(Deadline::after(PAUSE_NS), Interruptible::Kill);
    }
    !me.kill_pending()
}

#[cold]
#[inline(never)]
fn wait_for_room() -> Result<(), NoMemory> {
    for _ in 0..KERNEL_TRIES {
        if crate::current().kill_pending() {
            break;
        }
        ask_and_wait();
        if !vm().alloc.low_memory() {
            return Ok(());
        }
    }
    Err(NoMemory)
}

/// Memory for the kernel's heap where there is none above the reserve: waits where that is possible; else, and for those
/// who are to die, `get` may take the last page. Large requests fail at once.
fn last_resort(layout: Layout, get: &dyn Fn(Rights) -> *mut u8) -> *mut u8 {
    if layout.size().max(layout.align()) > PAGE_SIZE {
        return core::ptr::null_mut();
    }
    for _ in 0..KERNEL_TRIES {
        if !vm().alloc.low_memory() || !may_wait() {
            break;
        }
        ask_and_wait();
        let object = get(Rights::Kernel);
        if !object.is_null() {
            return object;
        }
    }
    if let Some(me) = task::current::try_current()
        && vm().alloc.low_memory()
        && !me.is_kernel()
    {
        me.owe_memory();
    }
    get(Rights::Reserve)
}

/// A thread that has taken from the reserve waits here, on its way to user mode, until there is more or it is killed: it
/// would come back for more of the reserve.
///
/// It does not count its waits, for a search may take long, and so may the end of a large process. Only the thread that searches knows
/// when nothing is to be hoped for. Init goes on after a while.
#[cold]
pub fn repay() {
    let me = crate::current();
    for tries in 0.. {
        if me.kill_pending() || !vm().alloc.low_memory() {
            return;
        }
        if me.process().pid() == 1 {
            if tries == KERNEL_TRIES {
                return;
            }
        } else if HOPELESS.swap(false, Ordering::SeqCst) {
            kprintln!(
                "out of memory: process {} owes memory, and nobody else can give any",
                me.process().pid()
            );
            signal::kill_process(me.process());
            return;
        }
        ask_and_wait();
    }
}

/// Whether the caller may sleep for memory: it holds no spin lock, is not about to end, and nobody's end depends on it.
fn may_wait() -> bool {
    let killer = KILLER.load(Ordering::Relaxed);
    hal::preempt::count() == 0
        && hal::irq::enabled()
        && killer != 0
        && task::current::try_current()
            .is_some_and(|me| me.tid() != 0 && me.tid() != killer && !me.kill_pending())
}

fn ask_and_wait() {
    waiters::wait(WAIT_NS, || {
        if !WANTED.swap(true, Ordering::SeqCst) {
            WORK.wake_one();
        }
    });
}

/// The thread.
fn run(mut killer: Killer) {
    let mut since = None;
    loop {
        let _ = park(
            &mut (),
            Deadline::Never,
            Interruptible::No,
            |(), waiter: &mut Waiter| {
                waiter.listen(&WORK);
                if WANTED.swap(false, Ordering::SeqCst) {
                    Step::Done(())
                } else {
                    Step::Wait
                }
            },
        );
        free_what_waits();
        HOPELESS.store(false, Ordering::SeqCst);
        if vm().alloc.low_memory() {
            make_room(&mut killer, &mut since);
        } else {
            since = None;
        }
        feed();
    }
}

/// Kills somebody, and waits until that has helped. `since` tells since when nobody is left to kill but some are dying.
fn make_room(killer: &mut Killer, since: &mut Option<u64>) {
    let dying = match killer.choose_and_kill() {
        Choice::Killed(victims) => {
            *since = None;
            wait_for(&victims);
            victims.forget();
            return;
        }
        Choice::Dying => true,
        Choice::Nobody => false,
    };
    let now = time::monotonic_ns();
    let hopeless = !dying || now - *since.get_or_insert(now) > LAST_WAIT_NS;
    let _ = sleep_until(Deadline::after(LOOK_NS), Interruptible::No);
    free_what_waits();
    if hopeless && vm().alloc.low_memory() {
        HOPELESS.store(true, Ordering::SeqCst);
    }
}

/// Waits until the victims have gone and what they had is free, but not for ever.
fn wait_for(victims: &Victims) {
    let mut settling = 0;
    for _ in 0..LOOKS {
        let _ = sleep_until(Deadline::after(LOOK_NS), Interruptible::No);
        free_what_waits();
        feed();
        if victims.are_gone() {
            // A large map is freed in slices, after a grace period.
            let more = vm().alloc.low_memory() && vm().epoch.pending() > MANY_WAITING;
            if !more || settling == SETTLING {
                return;
            }
            settling += 1;
        }
    }
}

/// Wakes those whom the memory that is there feeds, a part of it at a time.
fn feed() {
    let pages = vm().alloc.spare_pages();
    if pages > 0 {
        waiters::wake(pages / 16 + 1);
    }
}

/// Brings back memory that is free but out of reach: deferred frees, and what CPUs have in their caches.
fn free_what_waits() {
    vm().alloc.request_drain();
    mem::slab().request_drain();
    vm().epoch.synchronize();
    // Each CPU frees and empties its own on its way through the idle loop, or at its next tick.
    let here = hal::cpu::id();
    for cpu in (0..hal::cpu::count()).filter(|&cpu| cpu != here) {
        hal::ipi::reschedule(cpu);
    }
    mem::poll(&ksync::pin());
}
