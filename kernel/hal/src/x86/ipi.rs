//! Interrupts between CPUs.
//!
//! [`call`] runs a function on other CPUs and returns when all of them have run it. Each CPU has one request of its own, and
//! a set of the CPUs whose requests wait for it. A CPU that waits for its own request serves those in its set meanwhile, so
//! two CPUs that call each other both go on, whatever their interrupt flags. But the caller must hold no lock for which
//! another CPU waits with interrupts off.
use core::hint::spin_loop;
use core::sync::atomic::Ordering;

use super::mailbox::WORDS;
use super::vectors::{VECTOR_CALL, VECTOR_RESCHEDULE};
use super::{apic, cpu, paging, percpu, preempt};

/// Interrupts a CPU, which then calls `reschedule_ipi` of the upcalls and looks at its run queue.
pub fn reschedule(cpu: usize) {
    if let Some(area) = percpu::of(cpu) {
        apic::send_interrupt(area.apic_id, VECTOR_RESCHEDULE);
    }
}

/// Runs `run(argument)` on each running CPU of `targets`, this one included if it is in the set, and returns when all are
/// done. All CPUs are interrupted at once.
///
/// `run` is called with interrupts off and must not call this function. Not to be called from an interrupt handler.
pub fn call<T: Sync>(targets: impl IntoIterator<Item = usize>, argument: &T, run: fn(&T)) {
    struct Job<'a, T> {
        argument: &'a T,
        run: fn(&T),
    }
    fn thunk<T>(job: *const ()) {
        // SAFETY: the initiator keeps the job alive until every target is done.
        let job = unsafe { &*job.cast::<Job<'_, T>>() };
        (job.run)(job.argument);
    }
    let job = Job { argument, run };
    preempt::disable();
    let me = percpu::id() as usize;
    let mut masks = [0u64; WORDS];
    let mut here = false;
    for cpu in targets {
        if cpu == me {
            here = true;
        } else if percpu::of(cpu).is_some_and(|area| area.online.load(Ordering::SeqCst)) {
            masks[cpu / 64] |= 1 << (cpu % 64);
        }
    }
    post(me, &masks, (&raw const job).cast(), thunk::<T>);
    if here {
        let flags = super::irq::save();
        run(argument);
        super::irq::restore(flags);
    }
    let pending = &percpu::area().mailbox.pending;
    while pending.load(Ordering::Acquire) != 0 {
        serve();
        spin_loop();
    }
    preempt::enable();
}

/// Publishes this CPU's request, and interrupts the target CPUs.
fn post(me: usize, masks: &[u64; WORDS], job: *const (), run: fn(*const ())) {
    let own = &percpu::area().mailbox;
    own.run.set(run);
    own.argument.set(job);
    own.pending.store(
        masks.iter().map(|mask| mask.count_ones()).sum(),
        Ordering::Relaxed,
    );
    for (word, &mask) in masks.iter().enumerate() {
        let mut left = mask;
        while left != 0 {
            let cpu = word * 64 + left.trailing_zeros() as usize;
            left &= left - 1;
            let Some(area) = percpu::of(cpu) else {
                continue;
            };
            let waiting = area.mailbox.incoming[me / 64].fetch_or(1 << (me % 64), Ordering::SeqCst);
            // If other requests of this word are waiting, the interrupt that was sent for them is still to be served.
            if waiting == 0 {
                apic::send_interrupt(area.apic_id, VECTOR_CALL);
            }
        }
    }
}

/// Serves the requests of other CPUs. Called with preemption off.
pub(super) fn serve() {
    let flags = super::irq::save();
    for (word, incoming) in percpu::area().mailbox.incoming.iter().enumerate() {
        if incoming.load(Ordering::Relaxed) == 0 {
            continue;
        }
        let mut initiators = incoming.swap(0, Ordering::SeqCst);
        while initiators != 0 {
            let cpu = word * 64 + initiators.trailing_zeros() as usize;
            initiators &= initiators - 1;
            if let Some(area) = percpu::of(cpu) {
                let mailbox = &area.mailbox;
                (mailbox.run.get())(mailbox.argument.get());
                mailbox.pending.fetch_sub(1, Ordering::Release);
            }
        }
    }
    super::irq::restore(flags);
}

/// Invalidates all translations on all CPUs, global ones included. Called after kernel mappings have been removed. As
/// [`call`].
pub fn flush_kernel() {
    call(0..cpu::count(), &(), |()| paging::flush_all());
}
