//! What happens when memory is out: which threads wait, and which processes are killed.
//!
//! Guarantee: a thread that needs memory and may sleep waits for it, and needs no memory to wait. It waits until there
//! is memory, it is killed, or it has waited so often that it gives up: no thread waits for ever. A program that takes
//! all memory is killed, whether it is one large process or a thousand small ones, and other programs go on.
//!
//! Mechanism: one kernel thread, the out-of-memory killer, does all the work, so a thousand waiting threads cost
//! nothing. When a thread asks for memory, the killer has deferred frees and the caches of CPUs emptied. If that is not
//! enough, it kills processes (`victims`), waits until they have freed their memory, wakes as many waiters as that
//! memory suffices for, and looks again. A thread that has been killed does not wait but takes from the reserve, and
//! nothing on the way of an exit needs much memory. Any other thread takes from the reserve only where it cannot sleep
//! or has waited too often, and leaves the last quarter in the latter case; it then does not return to user mode before
//! there is memory again, or is killed ([`wait_for_reserve`]). System calls that change many things at once stop midway when memory runs short
//! ([`mem::admit_change`]).

mod eligible;
mod holders;
mod victims;
mod waiters;

use core::alloc::Layout;
use ksync::atomic::{AtomicBool, AtomicU32, Ordering};

use hal::{PAGE_SIZE, kprintln};
use mem::{NoMemory, vm};
use task::park::{Deadline, Interruptible, Step, park, sleep_until};
use task::wait::{WaitQueue, Waiter};
use task::{kthread, time};
use vm::Rights;

use self::eligible::is_eligible;
use self::victims::{Choice, Killer, Victims};
use crate::{UserThreadExt, signal};

pub use self::victims::{is_marked_killed, score};

/// The longest single wait for memory, in nanoseconds.
const WAIT_NS: u64 = 500_000_000;
/// After more waits than this, a faulting thread gives up and is killed: some twenty seconds, far longer than any exit
/// takes.
const FAULT_TRIES: u32 = 40;
/// After so many waits, an allocation in the kernel takes from the reserve, and a call such as fork, execve or mmap is refused.
const KERNEL_TRIES: u32 = 6;
/// After so many, an allocation in the kernel takes the last page: a minute, in which all that may be killed is.
const MOST_TRIES: u32 = 120;
/// How often an allocation looks for the last page, and the pause before each look, in nanoseconds.
const LAST_TRIES: u32 = 600;
const LAST_PAUSE_NS: u64 = 50_000_000;
/// The pause between two tries of a fault that failed although there is memory, in nanoseconds.
const PAUSE_NS: u64 = 2_000_000;
/// The pause between two looks at dying processes, in nanoseconds; and after how many looks other processes are killed
/// as well: a thread that waits in [`last_resort`] may hold a lock that a dying process needs.
const LOOK_NS: u64 = 10_000_000;
const LOOKS: u32 = 500;
/// After the last victim's end, at most so many looks are made while more than [`MANY_WAITING`] objects wait for a
/// grace period.
const SETTLING: u32 = 100;
const MANY_WAITING: usize = 512;
/// How long dying processes are waited for when no other process is left to kill, in nanoseconds.
const LAST_WAIT_NS: u64 = 20 * time::SECOND;

hal::machine_static! {
    /// The tid of the out-of-memory killer, 0 before there is one. Written once.
    static KILLER: AtomicU32 = AtomicU32::new(0);
    /// A thread lacks memory. Set by any thread, cleared by the killer.
    static WANTED: AtomicBool = AtomicBool::new(false);
    /// No process is left whose end would help, so a process with a thread that waits in [`wait_for_reserve`] has to end. Set and
    /// cleared by the killer; also cleared by the thread that ends its process.
    static HOPELESS: AtomicBool = AtomicBool::new(false);
    /// Where the killer sleeps.
    static WORK: WaitQueue = WaitQueue::new();
}

/// What `mem` calls when memory is short.
pub(super) static POLICY: mem::Policy = mem::Policy {
    last_resort,
    wait_for_room,
};

/// Starts the out-of-memory killer.
#[inline(never)]
pub(super) fn start() {
    let killer = Killer::new();
    match kthread::spawn("oom", None, -20, move || run(killer)) {
        Ok(tid) => KILLER.store(tid, Ordering::Relaxed),
        Err(_) => kprintln!("oom: no memory for the thread"),
    }
}

/// Waits for memory after a fault that has failed for want of it, half a second at most. False if the caller is to give up; a
/// program whose fault is given up is killed.
///
/// `tries` counts the caller's attempts so far: beyond `FAULT_TRIES` it gives up. So does a thread that has been killed, so
/// that it can exit. If memory is not short, a first attempt goes on at once, and a later one after a pause.
pub fn reclaim_for(tries: u32) -> bool {
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
    true
}

/// [`mem::Policy::wait_for_room`]: at most [`KERNEL_TRIES`] waits, of half a second. Fails if memory is short still, or the
/// thread is killed.
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

/// Allocates memory for the kernel's heap when there is none above the reserve. Requests for more than a page fail at once. Null if
/// there is none, which a caller that may sleep is told after half a minute only.
///
/// Most users of the heap do not expect a refusal. So the last quarter of the reserve is for those that cannot wait, and a thread that
/// may wait for memory takes none of it, however long it waits. A thread that has been killed, or that nobody will kill, may take the
/// last page, and sleeps until there is one: others end meanwhile. A thread of a program then waits in [`wait_for_reserve`] before it
/// enters user mode.
fn last_resort(layout: Layout, get: &dyn Fn(Rights) -> *mut u8) -> *mut u8 {
    if layout.size().max(layout.align()) > PAGE_SIZE {
        return core::ptr::null_mut();
    }
    let object = after_waits(get);
    if object.is_null() {
        take_last(get)
    } else {
        object
    }
}

/// Allocates by `get` what is not of the last quarter of the reserve, after waits. Null if the caller is not to wait, or no longer.
fn after_waits(get: &dyn Fn(Rights) -> *mut u8) -> *mut u8 {
    for _ in 0..KERNEL_TRIES {
        if !may_wait() || !vm().alloc.low_memory() {
            return core::ptr::null_mut();
        }
        ask_and_wait();
        let object = get(Rights::Kernel);
        if !object.is_null() {
            return object;
        }
    }
    for _ in KERNEL_TRIES..MOST_TRIES {
        if !may_wait() || !is_to_be_killed() {
            break;
        }
        note_debt();
        let object = get(Rights::Table);
        if !object.is_null() {
            return object;
        }
        ask_and_wait();
    }
    core::ptr::null_mut()
}

/// Allocates by `get` from all that there is. A caller that may sleep does so until there is something.
fn take_last(get: &dyn Fn(Rights) -> *mut u8) -> *mut u8 {
    note_debt();
    let mut object = get(Rights::Reserve);
    for _ in 0..LAST_TRIES {
        if !object.is_null() || !may_sleep() {
            break;
        }
        ask();
        let _ = sleep_until(Deadline::after(LAST_PAUSE_NS), Interruptible::No);
        object = get(Rights::Reserve);
    }
    object
}

/// Whether the calling thread will be killed if nothing else gives memory, so that it need not take the last page before.
fn is_to_be_killed() -> bool {
    !task::current::current().is_kernel()
        && is_eligible(crate::current().process())
        && !HOPELESS.load(Ordering::SeqCst)
}

/// Makes a thread of a program wait in [`wait_for_reserve`], if memory is short.
fn note_debt() {
    if let Some(me) = task::current::try_current()
        && vm().alloc.low_memory()
        && !me.is_kernel()
    {
        me.note_used_reserve();
    }
}

/// A thread that has taken from the reserve waits here, on its way to user mode, until there is memory above the
/// reserve or it is killed; otherwise it would take more of the reserve.
///
/// The number of waits is not limited, for a search may take long, and so may the end of a large process. Only the
/// killer can say that nothing is left to wait for. Init goes on after some waits.
#[cold]
pub fn wait_for_reserve() {
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

/// Whether the caller may wait for the killer: it may sleep, it has not been killed, and it is not the killer.
fn may_wait() -> bool {
    let killer = KILLER.load(Ordering::Relaxed);
    let me = task::current::try_current();
    may_sleep() && me.is_some_and(|me| me.tid() != killer && !me.kill_pending())
}

/// Whether the caller may sleep: it holds no spin lock, interrupts are on, and there is a killer. An idle thread has preemption
/// off whenever there is one.
fn may_sleep() -> bool {
    hal::preempt::count() == 0
        && hal::irq::enabled()
        && KILLER.load(Ordering::Relaxed) != 0
        && task::current::try_current().is_some()
}

fn ask_and_wait() {
    waiters::wait(WAIT_NS, ask);
}

/// Asks the killer for memory.
fn ask() {
    if !WANTED.swap(true, Ordering::SeqCst) {
        WORK.wake_one();
    }
}

/// The out-of-memory killer's loop.
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

/// Kills processes, and waits until that has helped. `since` is the time from which on no process has been left to kill while
/// some were dying. If none is left to kill, it looks once more after [`LOOK_NS`], and sets [`HOPELESS`] if memory is short still
/// and none is dying, or some have been for [`LAST_WAIT_NS`].
fn make_room(killer: &mut Killer, since: &mut Option<u64>) {
    let dying = match killer.choose_and_kill() {
        Choice::Killed(victims) => {
            *since = None;
            wait_for(&victims);
            victims.allow_forks();
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

/// Waits until the victims have no memory any more, and what they had is free, for [`LOOKS`] looks at most; wakes waiters
/// meanwhile.
fn wait_for(victims: &Victims) {
    let mut settling = 0;
    let killed = time::monotonic_ns();
    for _ in 0..LOOKS {
        let _ = sleep_until(Deadline::after(LOOK_NS), Interruptible::No);
        free_what_waits();
        feed();
        if victims.are_gone(killed) {
            // A large map is freed in slices, after a grace period.
            let more = vm().alloc.low_memory() && vm().epoch.pending() > MANY_WAITING;
            if !more || settling == SETTLING {
                return;
            }
            settling += 1;
        }
    }
}

/// Wakes as many waiters as a part of the free memory suffices for.
fn feed() {
    let pages = vm().alloc.spare_pages();
    if pages > 0 {
        waiters::wake(pages / 16 + 1);
    }
}

/// Frees memory that is free but cannot be allocated yet: deferred frees, and the caches of CPUs.
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
