//! Taking signals on the way to user mode.

use abi::raw::general as nr;
use abi::restart;
use hal::UserFrame;
use task::current::{Current, current};
use task::sched;
use task::thread::{Thread, flag};

use super::action::{Action, Disposition, SA_NODEFER, SA_RESTART};
use super::info::SigInfo;
use super::mask::spares_init;
use super::raise::force;
use super::set::{SigSet, sig};
use super::take::take_to_act;
use super::thread::SignalExt;
use super::{frame, stop};
use crate::group_exit::begin_group_exit;
use crate::{UserThreadExt, exit, group, itimer, oom, rseq, rt_limit};

/// The kind of restart that the last system call asks for; its code is in the frame's result register.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Restart {
    No,
    /// ERESTARTSYS: restart, unless a handler without SA_RESTART runs.
    Sys,
    /// ERESTARTNOINTR: restart in any case.
    Always,
    /// ERESTARTNOHAND: restart if no handler runs.
    NoHandler,
    /// ERESTART_RESTARTBLOCK: if no handler runs, restart_syscall continues the call.
    Block,
}

fn wanted(frame: &UserFrame) -> Restart {
    if frame.syscall_number().is_none() {
        return Restart::No;
    }
    match frame.rax {
        restart::UNLESS_HANDLED => Restart::Sys,
        restart::ALWAYS => Restart::Always,
        restart::WITHOUT_HANDLER => Restart::NoHandler,
        restart::BY_BLOCK => Restart::Block,
        _ => Restart::No,
    }
}

/// Whether `result` may be that of a system call which asks for a restart or for the full register frame. The exact
/// test is `wanted`.
#[inline]
pub fn may_want_restart(result: u64) -> bool {
    (restart::BY_BLOCK..=restart::UNLESS_HANDLED).contains(&result)
}

/// Bytes of the `syscall` instruction.
const SYSCALL_LEN: u64 = 2;

fn restart_with(frame: &mut UserFrame, number: u64) {
    frame.rax = number;
    frame.rip -= SYSCALL_LEN;
    frame.forget_syscall();
}

/// Does what must be done before the calling thread enters user mode: the thread dies, stops, yields its CPU, frees memory or
/// waits for it, takes signals, restarts its system call, or restores a temporary mask. Called with interrupts off, and returns
/// with interrupts off; sleeps between. On return no signal, kill or stop is left that came before interrupts were turned off for
/// the last time. Lesser work that comes during the last steps may be left to the next return.
#[cold]
pub fn before_user_return(frame: &mut UserFrame) {
    let me = current();
    loop {
        // First, for the thread may have to give way without what it was lent.
        if me.has(flag::LENT) {
            sched::give_back(&me);
        }
        if hal::preempt::need_resched() {
            sched::preempt_check();
        }
        if me.has(flag::RECLAIM) {
            hal::irq::enable();
            sched::reclaim();
            hal::irq::disable();
        }
        if me.has(flag::CPU_TIMERS) {
            hal::irq::enable();
            itimer::look(&me);
            rt_limit::look(&me);
            hal::irq::disable();
        }
        if me.has(flag::USED_RESERVE) {
            hal::irq::enable();
            me.clear(flag::USED_RESERVE);
            oom::wait_for_reserve();
            hal::irq::disable();
        }
        // A thread that is killed does not come back to its memory, and takes no page for it.
        if me.has(flag::RSEQ) && !me.kill_pending() {
            hal::irq::enable();
            if rseq::resume(&me, me.rseq(), frame).is_err() {
                force(&me, SigInfo::kernel(sig::SEGV));
            }
            hal::irq::disable();
            // It may have been preempted since.
            continue;
        }
        if !me.signal_pending() && !me.has(flag::RESTORE_MASK) {
            // No signal came, or another thread took it, or the process was stopped and continued: no handler runs.
            finish_call(&me, frame);
            return;
        }
        hal::irq::enable();
        work(&me, frame);
        hal::irq::disable();
    }
}

/// One step of that work, with interrupts on.
fn work(me: &Current, frame: &mut UserFrame) {
    if me.kill_pending() {
        exit::exit_thread(0);
    }
    if me.has(flag::ATTENTION) {
        stop::stay(me);
        return;
    }
    take_one(me, frame);
}

/// Takes a pending signal and acts on it. If none is left, the system call is restarted if it asks for that, and a
/// temporary mask ends.
fn take_one(me: &Current, frame: &mut UserFrame) {
    let open = SigSet(!me.blocked().0);
    let p = me.process();
    let Some(info) = take_to_act(me, open) else {
        finish_call(me, frame);
        return;
    };
    let actions = p.signals.lock().actions.clone();
    let action = actions.take(info.signo);
    match action.handler {
        0 => by_default(me, info),
        1 => {}
        _ => run_handler(me, frame, info, &action),
    }
}

/// No handler runs: restarts the system call if it asks for that, and restores the mask from before a temporary one.
fn finish_call(me: &Thread, frame: &mut UserFrame) {
    match wanted(frame) {
        Restart::No => {}
        Restart::Block => restart_with(frame, u64::from(nr::__NR_restart_syscall)),
        _ => {
            let number = frame.syscall_number().unwrap_or(0);
            restart_with(frame, number);
        }
    }
    me.restore_mask();
}

/// Acts on a signal that has its default action. Init ignores it, unless its own instruction caused it (see `spares_init`).
fn by_default(me: &Current, info: SigInfo) {
    let p = me.process();
    if p.pid() == 1 && spares_init(&info) {
        return;
    }
    match Disposition::of(info.signo) {
        Disposition::Ignore => {}
        Disposition::Stop => {
            let keyboard = info.signo != sig::STOP;
            // As POSIX says: nobody could continue the members of an orphaned group. So only SIGSTOP stops them.
            if keyboard && group::unorphaned(p).is_none() {
                return;
            }
            stop::begin(me, info.signo);
        }
        Disposition::Terminate | Disposition::Core => {
            begin_group_exit(&ksync::pin(), p, u32::from(info.signo));
        }
    }
}

/// Makes `frame` begin at the handler, and blocks what the action says. The saved registers are those of a system call that
/// begins anew, or that has failed with EINTR, if it asked for a restart.
fn run_handler(me: &Current, frame: &mut UserFrame, info: SigInfo, action: &Action) {
    match wanted(frame) {
        Restart::No => {}
        Restart::Sys if action.flags & SA_RESTART == 0 => frame.rax = restart::INTERRUPTED,
        Restart::NoHandler | Restart::Block => frame.rax = restart::INTERRUPTED,
        Restart::Sys | Restart::Always => {
            let number = frame.syscall_number().unwrap_or(0);
            restart_with(frame, number);
        }
    }
    // The handler returns to the mask from before a temporary one.
    let temporary = me.has(flag::RESTORE_MASK);
    let old_mask = if temporary {
        me.user().saved_mask.load(ksync::atomic::Ordering::Relaxed)
    } else {
        me.blocked().0
    };
    let left = rseq::refresh(me.rseq(), frame);
    if left
        .and_then(|()| frame::push(me, frame, &info, action, old_mask))
        .is_err()
    {
        // The sequence that the signal came in is malformed, the frame does not fit the stack, or the action has no SA_RESTORER. As in Linux, the thread gets SIGSEGV, which a
        // handler on another stack may take; if the signal was that one, the process ends.
        let segv = SigInfo::kernel(sig::SEGV);
        if info.signo == sig::SEGV {
            begin_group_exit(&ksync::pin(), me.process(), u32::from(sig::SEGV));
        } else {
            force(me, segv);
        }
        return;
    }
    if temporary {
        me.clear(flag::RESTORE_MASK);
    }
    let mut mask = me.blocked().0 | action.mask;
    if action.flags & SA_NODEFER == 0 {
        mask |= SigSet::one(info.signo).0;
    }
    me.set_blocked(SigSet(mask));
}
