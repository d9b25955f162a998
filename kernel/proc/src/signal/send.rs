//! Sending signals; and reporting a stop to the parent, which sends a signal, and which SIGCONT causes.

use ksync::atomic::Ordering;

use cred::{Cred, Payer};
use ksync::CpuPin;
use task::current::current;
use task::sched;
use task::thread::{Thread, flag};

use super::action::SA_NOCLDSTOP;
use super::info::{SigFields, SigInfo, code};
use super::mask::{keeps, spares_init};
use super::pending::{Pending, PostError};
use super::set::{SigSet, sig};
use super::state::{self, Shared, StopReport};
use crate::family::{Listing, listing};
use crate::group_exit::begin_group_exit;
use crate::process::{Process, flag as pflag};
use crate::reaper::parent_of;
use crate::{UserThreadExt, ids};

/// Why a signal was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// No process matches.
    NoProcess,
    /// The sender may not signal any of the processes.
    NotPermitted,
    /// A real-time signal, not from kill(2): the limit of queued signals is reached, or there is no memory for its information.
    Full,
}

/// The target of a signal.
#[derive(Clone, Copy)]
pub(super) enum Whom<'a> {
    /// One thread.
    Thread(&'a Thread),
    /// Any thread of the process. The thread with this tid is considered first: the leader, or, for a signal about a
    /// child, the thread that made the child, as in Linux. If that thread has exited, the leader is.
    Process(u32),
}

impl<'a> Whom<'a> {
    /// The thread, if the signal is for one thread alone.
    fn only(self) -> Option<&'a Thread> {
        match self {
            Whom::Thread(t) => Some(t),
            Whom::Process(_) => None,
        }
    }

    /// Where the signal becomes pending.
    fn pending(self, p: &'a Process) -> &'a Pending {
        self.only().map_or(&p.pending, |t| &t.user().pending)
    }

    /// The thread that is considered first; `None` if that is the leader, and it has exited.
    fn first(self, pin: &'a CpuPin, p: &Process) -> Option<&'a Thread> {
        let lives =
            |t: &&Thread| core::ptr::eq::<Process>(&**t.process(), p) && !t.has(flag::KILLED);
        match self {
            Whom::Thread(t) => Some(t),
            Whom::Process(tid) if tid != p.pid() => ids::thread(pin, tid)
                .filter(lives)
                .or_else(|| Whom::Process(p.pid()).first(pin, p)),
            Whom::Process(tid) => ids::thread(pin, tid),
        }
    }
}

/// Sends `info` to a process. Allocates nothing, so the information is kept only where the queue has room. May be called in
/// interrupts, but for SIGCONT: the report to the parent takes its family lock. A zombie gets no signal.
pub fn send_process(p: &Process, info: SigInfo) {
    let _ = post(p, Whom::Process(p.pid()), info, Payer::NOBODY, 0, false);
}

/// As [`send_process`], in a thread's context: keeps the information if there is memory for it, for which it may sleep. The
/// caller's account pays for a real-time signal.
///
/// # Errors
/// [`SendError::Full`]: the signal is not pending.
pub fn queue_process(p: &Process, info: SigInfo) -> Result<(), SendError> {
    queue(p, Whom::Process(p.pid()), info, current().payer(), 0)
}

/// As [`queue_process`], to one thread.
///
/// # Errors
/// [`SendError::Full`]: the signal is not pending.
pub fn send_thread(t: &Thread, info: SigInfo) -> Result<(), SendError> {
    queue(t.process(), Whom::Thread(t), info, current().payer(), 0)
}

/// Sends a signal about an open file to a process, or to one of its threads alone. `payer` pays for a real-time signal. May be called with
/// preemption off and under spin locks of ranks below those of the allocator, but not in interrupts. Allocates.
///
/// # Errors
/// [`SendError::Full`]: the signal is not pending.
pub fn send_of_file(
    p: &Process,
    thread: Option<&Thread>,
    info: SigInfo,
    payer: Payer,
) -> Result<(), SendError> {
    let whom = thread.map_or(Whom::Process(p.pid()), Whom::Thread);
    queue(p, whom, info, payer, 0)
}

/// What has become of a signal that was not refused.
enum Posted {
    Pending,
    Dropped,
}

/// What has become of a timer's signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// It is pending: somebody takes it.
    Pending,
    /// It is ignored, or its thread has exited.
    Dropped,
    /// There is no room for it now.
    Full,
}

/// Sends the signal of a timer to the process, or to its thread `tid`, where it is promised. Called in interrupts, so the parent
/// gets no report if SIGCONT continues the process: that would take its family lock.
pub fn send_of_timer(p: &Process, tid: Option<u32>, info: SigInfo) -> Sent {
    let pin = ksync::pin();
    let Some(whom) = of_timer(&pin, p, tid) else {
        return Sent::Dropped;
    };
    match post_only(p, whom, info, Payer::NOBODY, 0, true).0 {
        Err(_) => Sent::Full,
        Ok(Posted::Pending) => Sent::Pending,
        Ok(Posted::Dropped) => Sent::Dropped,
    }
}

/// To which a timer's signal goes: none if the thread has exited.
fn of_timer<'a>(pin: &'a CpuPin, p: &Process, tid: Option<u32>) -> Option<Whom<'a>> {
    let Some(tid) = tid else {
        return Some(Whom::Process(p.pid()));
    };
    let thread = ids::thread(pin, tid)?;
    core::ptr::eq::<Process>(&**thread.process(), p).then_some(Whom::Thread(thread))
}

/// Drops the signal of the timer `id` of `p`, which goes to the process or to its thread `tid`, if it is pending. Takes the process's signal
/// lock.
pub fn discard_of_timer(p: &Process, tid: Option<u32>, id: u32) {
    let pin = ksync::pin();
    if let Some(whom) = of_timer(&pin, p, tid) {
        let _order = p.signals.lock();
        whom.pending(p).discard(|of| of == id);
    }
}

/// The timers of the process, whose only thread the caller is, have been deleted: drops their signals, and what they were promised.
pub fn end_timers(p: &Process) {
    let me = current();
    for pending in [&p.pending, &me.user().pending] {
        let order = p.signals.lock();
        pending.discard(|_| true);
        pending.end_promises();
        drop(order);
        pending.shrink();
    }
}

/// Whether the signal is dropped at once because it is not blocked and is ignored: by its action or, where it has the default
/// one, by init (see `spares_init`). It does not become pending then; what [`stop_or_continue`] does stays. The caller holds the
/// process's signal lock, which guards `shared`.
fn dropped(pin: &CpuPin, p: &Process, shared: &Shared, whom: Whom<'_>, info: &SigInfo) -> bool {
    let signo = info.signo;
    let ignored = shared.actions.ignores(signo)
        || p.pid() == 1 && shared.actions.is_default(signo) && spares_init(info);
    if !ignored {
        return false;
    }
    // A blocked signal is kept: its action may change before it is unblocked. The mask of a leader that has exited
    // still counts, as in Linux.
    match whom.first(pin, p) {
        Some(t) => !keeps(t, signo),
        None => !shared.left_mask.has(signo),
    }
}

/// Whether a thread acts on the signal as soon as it comes. That thread is the one considered first or, if that one blocks the
/// signal, the first that does not. A signal that ends the process then does so at once, not when the thread next looks at its
/// signals: no thread of the process, the sender included, makes another system call. A thread that waits for the signal in
/// sigtimedwait only takes it. The caller holds the process's signal lock; takes that of the list of threads.
fn acts_at_once(pin: &CpuPin, p: &Process, whom: Whom<'_>, signo: u8) -> bool {
    let open = |t: &Thread| !t.has(flag::KILLED | flag::LEAVING) && !t.blocked().has(signo);
    if let Some(t) = whom.first(pin, p)
        && (open(t) || whom.only().is_some())
    {
        return open(t) && !keeps(t, signo);
    }
    let mut acts = false;
    p.threads
        .lock()
        .each(pin, |tid| match ids::thread(pin, tid) {
            Some(t) if open(t) => {
                acts = !keeps(t, signo);
                false
            }
            _ => true,
        });
    acts
}

/// Whether a signal that has been posted, other than SIGKILL, ends the process as soon as it comes. It never ends init
/// so, and a stopped process not before that is continued. The caller holds the process's signal lock, which guards
/// `shared`.
fn ends_at_once(pin: &CpuPin, p: &Process, shared: &Shared, whom: Whom<'_>, signo: u8) -> bool {
    p.pid() != 1
        && shared.actions.ends_process(signo)
        && !shared.stop.is_stopping()
        && acts_at_once(pin, p, whom, signo)
}

/// Whether a signal has no effect on init: SIGKILL and SIGSTOP, unless the kernel sends one to a thread of init that
/// cannot go on.
fn spared(target: Option<&Thread>, info: &SigInfo) -> bool {
    let own_fault = target.is_some() && info.code == code::KERNEL;
    (info.signo == sig::KILL || info.signo == sig::STOP) && !own_fault
}

/// As [`post`], in a thread's context: keeps the information if there is memory for it. May sleep; no spin lock held.
///
/// # Errors
/// [`SendError::Full`].
pub(super) fn queue(
    p: &Process,
    whom: Whom<'_>,
    info: SigInfo,
    payer: Payer,
    number: u32,
) -> Result<(), SendError> {
    // SIGKILL has an effect at once, and nothing reads its information.
    let mut keep = info.signo != sig::KILL;
    loop {
        keep = keep && whom.pending(p).reserve();
        match post(p, whom, info, payer, number, keep) {
            // Other senders have taken the room, or the receiver has freed it after it took what was there: both have
            // got on with their work.
            Err(PostError::NoRoom) => {}
            result => return result.map_err(|_| SendError::Full),
        }
    }
}

/// Makes a signal pending and has it looked at; one that ends the process at once does so. `payer` pays for a real-time signal;
/// only threads send those. `number` is the serial number of a signal to a group, 0 for any other signal. With `keep` it fails
/// where there is no room for the information, and may be called again: until then it has done what [`stop_or_continue`] does,
/// and no more. Takes the process's signal lock and, under it, those of the list of threads and of the queue; if it continues the
/// process, see [`report`].
fn post(
    p: &Process,
    whom: Whom<'_>,
    info: SigInfo,
    payer: Payer,
    number: u32,
    keep: bool,
) -> Result<(), PostError> {
    let (result, continued) = post_only(p, whom, info, payer, number, keep);
    if continued {
        report(p, StopReport::Continued, keep);
    }
    result.map(|_| ())
}

/// As [`post`], for a caller that may hold a family lock. Returns also whether the signal has continued the process, which
/// the caller then reports to the parent. The kernel's process and zombies get no signal, nor does init get SIGKILL or SIGSTOP.
fn post_only(
    p: &Process,
    whom: Whom<'_>,
    info: SigInfo,
    payer: Payer,
    number: u32,
    keep: bool,
) -> (Result<Posted, PostError>, bool) {
    if p.is_kernel() {
        return (Ok(Posted::Dropped), false);
    }
    let pin = ksync::pin();
    let signo = info.signo;
    let limit = p.sigpending_limit();
    let mut shared = p.signals.lock();
    if !p.is_alive() || p.pid() == 1 && spared(whom.only(), &info) {
        p.note_group_signal(number);
        return (Ok(Posted::Dropped), false);
    }
    let continued = stop_or_continue(&pin, p, &mut shared, signo);
    let pending = whom.pending(p);
    let result = if dropped(&pin, p, &shared, whom, &info) {
        Ok(Posted::Dropped)
    } else if matches!(info.fields, SigFields::Timer { .. }) {
        pending.post_promised(info).map(|()| Posted::Pending)
    } else {
        let posted = pending.post(info, limit, payer, keep);
        posted.map(|()| Posted::Pending)
    };
    let ends = signo == sig::KILL || result.is_ok() && ends_at_once(&pin, p, &shared, whom, signo);
    if ends {
        // Under the lock: no stop begins or ends any more once SIGKILL has come.
        begin_group_exit(&pin, p, u32::from(signo));
    }
    if !matches!(result, Err(PostError::NoRoom)) {
        // After the signal is pending, and under the lock that guards its being taken: see `signal_group`.
        p.note_group_signal(number);
    }
    drop(shared);
    if continued {
        p.group_wait.wake_all();
    }
    if !ends && result.is_ok() {
        nudge_target(&pin, p, whom, signo);
        // A thread that set it before it looked for signals under the signal lock is seen here.
        if p.has(pflag::HEARS_SIGNALS)
            && let Some(seldom) = p.seldom.get()
        {
            seldom.arrivals.wake_all();
        }
    }
    (result, continued)
}

/// What a signal changes before it becomes pending: a stop signal and SIGCONT drop each other where they are pending, SIGCONT
/// ends a stop, and SIGKILL the report of one. Returns whether a stop has ended: the caller then wakes the stopped threads, once
/// it has released the lock. The caller holds the process's signal lock, which guards `shared`. Takes that of the list of
/// threads.
fn stop_or_continue(pin: &CpuPin, p: &Process, shared: &mut Shared, signo: u8) -> bool {
    if SigSet::STOPS.has(signo) {
        flush_all(pin, p, SigSet::one(sig::CONT));
    } else if signo == sig::CONT {
        flush_all(pin, p, SigSet::STOPS);
        // Nor does a thread begin the stop that it is about to begin.
        p.threads.lock().each(pin, |tid| {
            if let Some(t) = ids::thread(pin, tid)
                && t.has(flag::STOP_DUE)
            {
                t.clear(flag::STOP_DUE);
            }
            true
        });
        // Nothing continues a process that ends: its stopped threads have been woken to exit.
        return !p.is_ending() && state::resume(&mut shared.stop);
    } else if signo == sig::KILL {
        // It stays stopped: its threads go on to exit, and neither take another signal nor run.
        shared.stop.report = StopReport::None;
    }
    false
}

/// Drops the pending signals of `set` of the process and of all its threads. The caller holds the process's signal lock. Takes
/// that of the list of threads, and under it those of the threads' queues.
pub(super) fn flush_all(pin: &CpuPin, p: &Process, set: SigSet) {
    p.pending.flush(set);
    p.threads.lock().each(pin, |tid| {
        if let Some(t) = ids::thread(pin, tid) {
            t.user().pending.flush(set);
        }
        true
    });
}

/// Wakes `t` and makes it look at its signals if it does not block all of `set` and is not exiting; returns the signals
/// of `set` that it does not block.
fn nudge(pin: &CpuPin, t: &Thread, set: SigSet) -> SigSet {
    let open = set.0 & !t.blocked().0;
    if open == 0 || t.has(flag::KILLED | flag::LEAVING) {
        return SigSet(0);
    }
    sched::wake(pin, t);
    sched::poke(pin, t);
    SigSet(open)
}

/// Makes the target of a signal look at it: the thread that it is for, or one of the process. The caller has posted the
/// signal, and has released the process's signal lock.
fn nudge_target(pin: &CpuPin, p: &Process, whom: Whom<'_>, signo: u8) {
    match whom {
        Whom::Thread(t) => {
            nudge(pin, t, SigSet::one(signo));
        }
        Whom::Process(_) => nudge_any(pin, p, whom, SigSet::one(signo)),
    }
}

/// Makes a thread look at each signal of `set`, one that does not block it: the thread considered first, if possible. For others
/// it takes the lock of the list of threads.
fn nudge_any(pin: &CpuPin, p: &Process, whom: Whom<'_>, set: SigSet) {
    let mut left = set.0;
    if let Some(first) = whom.first(pin, p) {
        left &= !nudge(pin, first, set).0;
    }
    if left == 0 {
        return;
    }
    p.threads.lock().each(pin, |tid| {
        if let Some(t) = ids::thread(pin, tid) {
            left &= !nudge(pin, t, SigSet(left)).0;
        }
        left != 0
    });
}

/// Passes a signal of the process `p`, which the caller has taken to act on it, on to a thread that waits for it in sigtimedwait,
/// if the caller would ignore it. Returns whether another thread has it now; its information may be lost, since this allocates
/// nothing. The caller holds the process's signal lock, which guards `shared`. Takes that of the list of threads.
pub(super) fn hand_over(p: &Process, shared: &Shared, info: SigInfo) -> bool {
    if !shared.actions.ignores(info.signo) {
        return false;
    }
    let pin = ksync::pin();
    let set = SigSet::one(info.signo);
    let mut given = false;
    p.threads.lock().each(&pin, |tid| {
        if let Some(other) = ids::thread(&pin, tid)
            && !other.blocked().has(info.signo)
            && keeps(other, info.signo)
        {
            // A timer goes on when its own signal is taken: without room for that the caller has it.
            let keep = matches!(info.fields, SigFields::Timer { .. });
            let pending = &other.user().pending;
            let posted = pending.post(info, u64::MAX, Payer::NOBODY, keep);
            given = posted.is_ok() && nudge(&pin, other, set) != SigSet(0);
        }
        !given
    });
    given
}

/// Makes other threads look at signals of the process that the caller does not take any more.
pub(super) fn retarget(p: &Process, set: SigSet) {
    nudge_any(&ksync::pin(), p, Whom::Process(p.pid()), set);
}

/// `t`, the caller, takes no more signals of its process: other threads look at those that it may have been woken for, which
/// are those that it does not block.
///
/// A sender makes the signal pending before it reads the thread's LEAVING flag, and the thread sets the flag before it
/// reads which signals are pending: one of them sees what the other has written.
///
/// A killed thread looks for no other thread. Either all threads are killed with it, or all but the caller of execve, which
/// looks at what is pending on its way to user mode. If each killed thread looked through those that are left, the end of a
/// process, during which SIGKILL stays pending, would take the square of its threads, under a lock that each of them needs.
pub(in super::super) fn leave(t: &Thread) {
    let p = t.process();
    if p.thread_count() == 1 {
        return;
    }
    t.set(flag::LEAVING);
    if t.tid() == p.pid() {
        p.signals.lock().left_mask = t.blocked();
    }
    if t.has(flag::KILLED) {
        return;
    }
    let pending = p.pending.bits() & !t.blocked().0;
    if pending != 0 {
        retarget(p, SigSet(pending));
    }
}

/// Whether the caller may send `signo` to `p`, of which the thread that is asked for acts as `target`. Threads of one
/// process may always signal each other, and processes of one session may send each other SIGCONT.
pub fn may_signal(p: &Process, target: &Cred, signo: u8) -> bool {
    let me = current();
    let own = me.process();
    p.pid() == own.pid()
        || me.cred().may_signal(target)
        || signo == sig::CONT && p.sid() == own.sid()
}

/// Kills a process: the kernel sends SIGKILL. Has no effect on init.
pub fn kill_process(p: &Process) {
    send_process(p, SigInfo::kernel(sig::KILL));
}

/// News for a parent: a signal about a child, and a wake-up of the threads in wait4.
///
/// The signal is sent in a hold of the parent's family lock in which the child is on a list of the parent. So it is
/// pending before a thread of the parent can reap the child, and none comes later.
pub(crate) struct News<'a> {
    parent: &'a Process,
    payer: Payer,
    keep: bool,
    continued: bool,
}

impl<'a> News<'a> {
    /// News for `parent`. With `keep`, in a thread's context, the signal's information is kept if there is memory for it.
    /// May sleep; no lock held.
    pub(crate) fn new(parent: &'a Process, keep: bool) -> Self {
        News {
            parent,
            payer: if keep {
                current().payer()
            } else {
                Payer::NOBODY
            },
            keep: keep && parent.pending.reserve(),
            continued: false,
        }
    }

    /// Sends the signal, about `child`. False if other signals have taken the room for its information: the caller begins
    /// anew. The caller holds the parent's family lock.
    pub(crate) fn send(&mut self, child: &Process, info: SigInfo) -> bool {
        let maker = Whom::Process(child.maker.load(Ordering::Relaxed));
        let (result, continued) = post_only(self.parent, maker, info, self.payer, 0, self.keep);
        self.continued |= continued;
        !matches!(result, Err(PostError::NoRoom))
    }

    /// Wakes the parent's threads in wait4, and reports to its own parent that the signal has continued it, if it has. To be
    /// called also if no signal was sent, once the lock is free.
    pub(crate) fn end(self) {
        if self.continued {
            report(self.parent, StopReport::Continued, self.keep);
        }
        self.parent.child_wait.wake_all();
    }
}

/// Reports to the parent that `p` was stopped or continued: sends SIGCHLD unless SA_NOCLDSTOP is set, and wakes the parent's
/// threads in wait4. With `keep`, in a thread's context, SIGCHLD's information is kept if there is memory for it. If `p` has
/// ended meanwhile, only its end is reported. If it is being given to another parent, no signal is sent: that one's threads in
/// wait4 are woken by the thread that gives it. Takes the parent's signal lock, and then its family lock; with `keep` it may
/// sleep. No lock held.
pub(super) fn report(p: &Process, what: StopReport, keep: bool) {
    let (code, status) = match what {
        StopReport::None => return,
        StopReport::Stopped(signo) => (code::CLD_STOPPED, i32::from(signo)),
        StopReport::Continued => (code::CLD_CONTINUED, i32::from(sig::CONT)),
    };
    let info = SigInfo {
        signo: sig::CHLD,
        code,
        fields: SigFields::Child {
            pid: p.pid(),
            uid: p.uid(),
            status,
            utime: 0,
            stime: 0,
        },
    };
    while let Some(parent) = parent_of(p) {
        if tell_parent(p, &parent, info, keep) {
            return;
        }
    }
}

/// As [`report`], for `parent`. False if that is not the parent any more, or other signals have taken the room.
fn tell_parent(p: &Process, parent: &Process, info: SigInfo, keep: bool) -> bool {
    // Before threads in wait4 are woken, which look for stops only if it is set.
    if !parent.has(pflag::CHILD_STOPS) {
        parent.set_flag(pflag::CHILD_STOPS, true);
    }
    let actions = parent.signals.lock().actions.clone();
    let wanted = actions.get(sig::CHLD).flags & SA_NOCLDSTOP == 0;
    drop(actions);
    let mut news = News::new(parent, keep);
    let family = parent.family.lock();
    let told = match listing(parent, p) {
        Listing::Living => !wanted || news.send(p, info),
        Listing::Zombie | Listing::Nowhere => true,
        Listing::Elsewhere => false,
    };
    drop(family);
    news.end();
    told
}
