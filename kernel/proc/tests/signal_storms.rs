//! Threads that send and take signals, and set masks and actions, all at once: no signal is lost, and none comes twice.
#![cfg(not(shuttle))]

#[path = "support/signals.rs"]
mod signals;
#[path = "support/storm.rs"]
mod storms;
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use abi::raw::general as raw;
use hal::UserFrame;
use proc::signal::{self, AltStack, RestartBlock, SigInfo, SigSet, code, sig};
use proc::{SignalExt, ids};
use signals::*;
use storms::{CPUS, Meeting, Sum, change_action, on_all, storm};
use support::{me, user_mode};
use task::current::current;
use vm_host::random::Random;

/// Real-time signals that carry values.
const VALUES: [u8; 3] = [RT, RT + 1, RT + 2];
/// Steps of each thread.
const STEPS: usize = 1500;

/// The values sent, and those that came.
#[derive(Clone, Default)]
struct Mail {
    sent: Sum,
    came: Sum,
}

impl Mail {
    /// Sends a value to the process, or to one of its threads.
    fn send(&self, random: &mut Random, tids: &[AtomicU32]) {
        let signo = VALUES[random.below(VALUES.len())];
        let value = 1 + random.below_u64(1000);
        let to = tids[random.below(tids.len())].load(SeqCst);
        let info = my_info(signo, QUEUE, value);
        let sent = match ids::find_thread(to) {
            Some(t) if random.one_in(2) => signal::send_thread(&t, info),
            _ => queue(me().pid(), signo, value),
        };
        sent.expect("room for a signal");
        self.sent.add(value);
    }

    /// Takes one, if there is one. Returns whether there was.
    fn take(&self) -> bool {
        let info = sigwait(SigSet::of(&VALUES), Some(0));
        let value = info.as_ref().map_or(0, value_of);
        self.came.add(value);
        info.is_ok()
    }

    /// So many at once, as many as a queue must grow for, and all that are there.
    fn burst(&self, random: &mut Random, tids: &[AtomicU32]) {
        (0..20).for_each(|_| self.send(random, tids));
        while self.take() {}
    }
}

/// Sends signals that no thread acts on, or takes one: each is blocked, or is dropped by a change of its action.
fn send_ignored_signals(random: &mut Random) {
    match random.below(8) {
        0 => raise(TERM),
        1 => raise(sig::URG),
        2..4 => raise(sig::CONT),
        4..6 => {
            raise(USR2);
            ignore(USR2);
            default(USR2);
        }
        _ => {
            let taken = signal::take(&current(), SigSet::one(USR2));
            assert!(taken.is_none_or(|info| info.signo == USR2), "{taken:?}");
        }
    }
}

#[test]
fn threads_of_a_process_lose_no_value_that_they_send_one_another() {
    on_all(|| {
        block(&[VALUES.as_slice(), &[TERM, USR2, sig::CONT, sig::URG]].concat());
        let mail = Mail::default();
        let theirs = mail.clone();
        let tids: Arc<[AtomicU32; CPUS]> = Arc::default();
        let (registered, sent) = (Meeting::of(CPUS), Meeting::of(CPUS));
        storm(CPUS, move |n, random| {
            tids[n].store(current().tid(), SeqCst);
            registered.join();
            // What the leader blocks is kept for it, and taken by threads that ignore it.
            unblock(&[sig::URG]);
            for _ in 0..STEPS {
                match random.below(12) {
                    0..3 => theirs.send(random, &*tids),
                    3..5 => {
                        theirs.take();
                    }
                    5 => change_action(random),
                    6 => send_ignored_signals(random),
                    7 => set_mask(SigSet(mask().0 ^ SigSet::one(USR1).0)),
                    8 if random.one_in(4) => theirs.burst(random, &*tids),
                    9 => assert!(mask().has(VALUES[0])),
                    10 => (0..10).for_each(|_| me().each_thread(|t| !t.is_kernel())),
                    _ => user_mode(),
                }
            }
            sent.join();
            while theirs.take() {}
        });
        while mail.take() {}
        ignore(USR2);
        assert_eq!(mail.came.get(), mail.sent.get());
        assert_eq!(pending().0 & !SigSet::of(&[TERM, sig::CONT, sig::URG]).0, 0);
    });
}

/// sigaltstack(2): the stack is disabled while a handler runs on it.
const SS_AUTODISARM: u32 = 1 << 31;
/// Bytes of a thread's stack; the lower half is the alternate one.
const PART: u64 = STACK_BYTES / CPUS as u64;

/// The end of the stack of thread `n`.
fn top(n: usize) -> u64 {
    STACK_TOP - n as u64 * PART
}

/// The alternate stack of thread `n`.
fn alternate(n: usize, flags: u32) -> AltStack {
    AltStack {
        sp: top(n) - PART,
        size: PART / 2,
        flags,
    }
}

/// Goes on in user mode, and runs handlers to their ends as long as there are signals. Returns how many.
fn run_handlers(frame: &mut UserFrame) -> u64 {
    for n in 0.. {
        return_with(frame);
        if frame.rip != HANDLER {
            return n;
        }
        handler_returns(frame);
    }
    unreachable!()
}

/// A thread that `tids` names, if it has not ended.
fn any_of(random: &mut Random, tids: &[AtomicU32]) -> Option<Arc<task::thread::Thread>> {
    ids::find_thread(tids[random.below(tids.len())].load(SeqCst))
}

/// The state that calls keep for thread `n`: its alternate stack, which is its own, is one that it has set, and what
/// restart_syscall(2) continues is whole as another thread sees it.
fn look_at_state(n: usize, random: &mut Random, tids: &[AtomicU32]) {
    let stack = current().altstack();
    assert!(
        stack == alternate(n, stack.flags) || stack.size == 0,
        "{stack:?}"
    );
    let Some(t) = any_of(random, tids) else {
        return;
    };
    if let RestartBlock::Sleep { until, rem } = t.take_restart() {
        assert_eq!(until, rem);
    }
}

/// Sends a thread or the process a signal that has a handler, and runs the handlers that are due.
fn send_and_handle(random: &mut Random, tids: &[AtomicU32], frame: &mut UserFrame) -> (u64, u64) {
    match (random.below(3), any_of(random, tids)) {
        (0, Some(t)) => signal::send_thread(&t, my_info(RT, QUEUE, 0)).expect("room"),
        (1, _) => signal::deliver_fault(SigInfo::fault(sig::SEGV, code::SEGV_MAPERR, 1)),
        _ => queue(me().pid(), RT, 0).expect("room"),
    }
    (1, run_handlers(frame))
}

#[test]
fn each_signal_to_threads_that_run_handlers_is_handled_once() {
    on_all(|| {
        exec();
        block(&[RT]);
        for signo in [RT, sig::SEGV] {
            action(signo, HANDLER, u64::from(raw::SA_ONSTACK));
        }
        let (sent, handled) = (Sum::default(), Sum::default());
        let (theirs, done) = (sent.clone(), handled.clone());
        let tids: Arc<[AtomicU32; CPUS]> = Arc::default();
        let (registered, ended) = (Meeting::of(CPUS), Meeting::of(CPUS));
        storm(CPUS, move |n, random| {
            tids[n].store(current().tid(), SeqCst);
            registered.join();
            unblock(&[RT]);
            let mut frame = computing();
            frame.rsp = top(n);
            for until in 0..STEPS as u64 {
                match random.below(6) {
                    0 => {
                        let flags = SS_AUTODISARM * random.below(2) as u32;
                        current().set_altstack(alternate(n, flags));
                    }
                    1 => current().set_restart(RestartBlock::Sleep { until, rem: until }),
                    2..4 => look_at_state(n, random, &*tids),
                    _ => {
                        let before = current().altstack();
                        let (one, handlers) = send_and_handle(random, &*tids, &mut frame);
                        theirs.add(one);
                        done.add(handlers);
                        assert_eq!(current().altstack(), before);
                        assert_eq!((frame.rip, frame.rsp), (program_at(), top(n)));
                    }
                }
            }
            block(&[RT]);
            ended.join();
            done.add(drain(SigSet::one(RT)).len() as u64);
        });
        assert_eq!(handled.get(), sent.get());
    });
}
