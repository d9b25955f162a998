//! How threads and processes end.

use alloc::sync::Arc;
use ksync::atomic::{Ordering, fence};

use ksync::CpuPin;
use task::current::{Current, current};
use task::park::{Deadline, Interruptible, Step, park};
use task::thread::{Thread, flag};
use task::wait::{WaitQueue, Waiter};
use task::{sched, timer};

use super::family::{Listing, claim, listing, take_listed};
use super::group::{self, Cursor, Group};
use super::group_exit::begin_group_exit;
use super::process::{Family, Life, Process, flag as pflag};
use super::signal::{self, ActionTable, News, SigFields, SigInfo, StopReport, code, sig};
use super::wait4;
use super::{
    account, active_space, futex, ids, itimer, of_program, reference_cache, sem_undo, timers,
};
use crate::UserThreadExt;
use crate::reaper::{parent_of, reaper_of};
use crate::rusage::CLOCK_TICKS;

/// Most children that are reparented in one hold of the family lock.
const SLICE: usize = 32;
/// How long a thread that ends waits for others to add up what its process's threads have used, in nanoseconds.
const USAGE_SUM_NS: u64 = 10_000_000;

/// exit_group(2): ends all threads of the calling process. The low eight bits of `code` are its exit code, unless it is ending
/// already.
pub fn exit_group(code: u32) -> ! {
    begin_group_exit(&ksync::pin(), current().process(), (code & 0xff) << 8);
    exit_thread(0)
}

/// Ends the calling thread. The low eight bits of `code` become the process's exit code if this is the last thread and the
/// process is not ending already. Called with interrupts and preemption on and no lock held.
pub fn exit_thread(code: u32) -> ! {
    finish_thread(code);
    loop {
        sched::switch_away(sched::Reason::Exit);
    }
}

/// Does the part of the calling thread's end that may sleep, and the end of its process if it is the last one. `code` is
/// what exit(2) was given. When this returns the thread is dead for others, and only its last switch is left.
///
/// Not inlined: its stack frame is gone before that switch, and with it all references that the frame held.
#[inline(never)]
fn finish_thread(code: u32) {
    let me = current();
    let p = me.process().clone();
    if !me.is_kernel() {
        signal::leave(&me);
        // Unless it is killed it waits for memory here, as in user mode: other threads wait for the futex words that are
        // written now.
        futex::release_robust(&me);
        futex::pi::disown(&me);
        clear_child_tid(&me);
    }
    me.set(flag::KILLED);
    timer::cancel_thread(&me);
    if me.tid() == p.pid() {
        *p.comm.lock() = me.comm();
    }
    // Before the last thread ends the process, so that what its files are closed for has happened when it is a zombie.
    reference_cache::forget_files();
    sem_undo::leave();
    if p.has(pflag::SUMMING_USAGE) {
        wait_for_usage_sum(p.clone());
    }
    let last = leave_list(&me, &p, code);
    if !me.is_kernel() {
        timers::thread_ends(&p, me.tid());
        // A leader may stay for long as part of its process: what was sent so far goes now.
        me.user().pending.drop_all();
    }
    account::thread_ends(&me, &p, last);
    if last && !p.is_kernel() {
        finish_process(&p);
    } else {
        p.group_wait.wake_all();
        signal::notify_parent_stopped(&p);
        active_space::leave();
    }
    reference_cache::drop_all();
    me.state.declare_dead();
}

/// Takes the caller off its process's list of threads, and adds its times to those of ended threads. Returns whether it was the
/// last one: then the process is ending, with `code` as its exit code if it was not before. Takes the locks of the accounts and,
/// under it, of the list.
fn leave_list(me: &Current, p: &Process, code: u32) -> bool {
    let pin = ksync::pin();
    me.charge_now();
    // With both locks held, so that its time counts once for those that add up: here, or among the living.
    let mut accounts = p.accounts.lock();
    let mut threads = p.threads.lock();
    accounts.dead_threads.add(&me.times());
    threads.remove(&pin, me.tid());
    let left = p.thread_count.fetch_sub(1, Ordering::SeqCst) - 1;
    if left == 0 && !p.exiting.swap(true, Ordering::SeqCst) {
        p.status.store((code & 0xff) << 8, Ordering::SeqCst);
    }
    left == 0
}

/// Waits until no thread adds up what the threads of `p` have used; not for long, since a thread that does may get no CPU
/// time.
#[cold]
fn wait_for_usage_sum(mut p: Arc<Process>) {
    let _ = park(
        &mut p,
        Deadline::after(USAGE_SUM_NS),
        Interruptible::No,
        |p, waiter: &mut Waiter| {
            waiter.listen(&p.group_wait);
            if p.has(pflag::SUMMING_USAGE) {
                Step::Wait
            } else {
                Step::Done(())
            }
        },
    );
}

/// Clears the thread's word that CLONE_CHILD_CLEARTID or set_tid_address named, and wakes a thread that waits on it;
/// not if no other thread uses the memory. After that the thread has no such word. Writes user memory: may sleep.
pub(super) fn clear_child_tid(me: &Current) {
    let addr = me.user().clear_child_tid.swap(0, Ordering::Relaxed);
    if addr != 0
        && someone_else_maps(me)
        && hal::uaccess::UserPtr::<u32>::new(addr).write(&0).is_ok()
    {
        futex::wake_exited(addr);
    }
}

/// Whether another thread uses the memory. Otherwise the word need not be written, which would cost most children a
/// copy of a page.
fn someone_else_maps(me: &Current) -> bool {
    let p = me.process();
    // Two: the process's and the one taken here.
    p.thread_count() > 1 || p.user_space().is_some_and(|s| Arc::strong_count(&s) > 2)
}

/// Releases what a process has, gives its children away, and makes it a zombie. Called by its last thread. Sleeps. Does not
/// return for init.
fn finish_process(p: &Arc<Process>) {
    itimer::end(p);
    timers::end(p);
    of_program::end(p);
    // Files first: closing may write to user-visible places and wake others early.
    drop(p.set_files(None));
    drop(p.set_fs(None));
    let space = p.leave_space();
    active_space::leave();
    if let Some(space) = space {
        let rss = space.end();
        p.has_left_space();
        let mut accounts = p.accounts.lock();
        accounts.dead_threads.note_rss(rss);
    }
    p.vfork_done.open();
    p.clear_program();
    if p.pid() == 1 {
        crate::upcalls::init_exited(p, p.status.load(Ordering::SeqCst));
    }
    leave_children(p);
    if p.pid() == p.sid()
        && let Some(group) = p.group()
    {
        hang_up(&group);
    }
    leave_group(p);
    become_zombie(p);
}

/// The end of a session leader: its controlling terminal hangs up. If that has done so before, the group that was in its foreground gets
/// SIGHUP and SIGCONT. May sleep.
fn hang_up(group: &Group) {
    let session = group.session();
    let left = session.take_left_group();
    if let Some(terminal) = session.terminal() {
        terminal.leader_exited(session);
    } else if let Some(left) = left.and_then(|id| ids::find_group(id.number())) {
        signal::signal_whole_group(&left, sig::HUP);
        signal::signal_whole_group(&left, sig::CONT);
    }
}

/// From here on `p`, which ends, does not keep its group from being orphaned. If that makes the group an orphaned one, and
/// a member is stopped, the members get SIGHUP and SIGCONT. Sleeps if a member may be stopped, for signals to the group.
fn leave_group(p: &Process) {
    loop {
        let pgid = p.pgid();
        leave_group_as(p, pgid);
        // The parent may have moved it to another group, which has counted it as a member that can continue others.
        if p.pgid() == pgid {
            return;
        }
    }
}

/// As [`leave_group`], for the group `pgid`.
fn leave_group_as(p: &Process, pgid: u32) {
    let leave = || p.flags.fetch_or(pflag::LEAVES_GROUP, Ordering::SeqCst);
    let pin = ksync::pin();
    let Some(group) = ids::borrow_group(&pin, pgid) else {
        leave();
        return;
    };
    if !group.may_be_stopped() {
        leave();
        // A member that stops from here on is found when another member leaves, which finds that this one has left.
        if !group.may_be_stopped() {
            // Most ends get no further: the group's reference count, which all its members share, is not written.
            return;
        }
    }
    let group = group.hold();
    drop(pin);
    let orphaned = {
        // Of several members that end at once, the last one finds the group orphaned.
        let _turn = group.turn();
        leave();
        let controlled = parent_of(p).is_some_and(|parent| group::controls(&parent, p));
        controlled && is_stopped_orphan(&group)
    };
    if orphaned {
        hang_up_group(&group);
    }
}

/// If a group is an orphaned one with a stopped member, its members get SIGHUP and SIGCONT.
fn continue_if_orphaned(group: &Group) {
    if group.may_be_stopped() && is_stopped_orphan(group) {
        hang_up_group(group);
    }
}

/// Whether a group is orphaned and has a stopped member. The caller has seen that one may be stopped.
fn is_stopped_orphan(group: &Group) -> bool {
    group.is_orphaned() && has_stopped(group)
}

/// Sends a group SIGHUP and SIGCONT.
fn hang_up_group(group: &Group) {
    signal::signal_whole_group(group, sig::HUP);
    signal::signal_whole_group(group, sig::CONT);
}

/// Whether a member of the group is stopped, or about to stop. Takes the locks of a shard and of members' signals, one at a time.
fn has_stopped(group: &Group) -> bool {
    let mut cursor = Cursor::default();
    loop {
        // Preemption is possible between two slices.
        let pin = ksync::pin();
        if !group.next_slice(&pin, &mut cursor) {
            return false;
        }
        let stops = |&pid: &u32| {
            let stops = |p: &Process| p.signals.lock().stop.is_stopping() && !p.is_ending();
            ids::process(&pin, pid).is_some_and(stops)
        };
        if cursor.members().iter().any(stops) {
            return true;
        }
    }
}

/// Reparents the children of `p`, slice by slice, until none is left; from then on `p` gets no more. Without init they are left
/// in limbo.
fn leave_children(p: &Arc<Process>) {
    loop {
        let mut slice = [0u32; SLICE];
        let mut n = 0;
        {
            let pin = ksync::pin();
            let mut family = p.family.lock();
            while n < SLICE {
                let Some(pid) = family
                    .living
                    .pop_front(&pin)
                    .or_else(|| family.zombies.pop_front(&pin))
                else {
                    break;
                };
                if let Some(child) = ids::process(&pin, pid) {
                    child.listed_dead.store(false, Ordering::Relaxed);
                }
                slice[n] = pid;
                n += 1;
            }
            if n == 0 {
                family.closed = true;
                return;
            }
        }
        // In limbo from here on: on no list, and with the pid of `p` until `adopt` lists them. The search may take long.
        let Some(reaper) = reaper_of(p) else { return };
        for &pid in &slice[..n] {
            if let Some(child) = ids::find_process(pid) {
                adopt(&reaper, &child, p);
            }
        }
    }
}

/// Sends `child` the signal that it asked for on the death of its parent `from`, the caller's process, if the caller may send
/// it: a child that has more rights by now has not agreed to be signalled by its parent. May sleep for memory.
fn tell_of_death(child: &Process, from: &Process) {
    let signo = child.death_signal.load(Ordering::Relaxed);
    if signo == 0 || !signal::may_signal(child, &child.cred(), signo) {
        return;
    }
    let info = SigInfo::user(signo, code::USER, from.pid(), current().cred().uid);
    let _ = signal::queue_process(child, info);
}

/// Lists `child` of `from`, which is in limbo, as a child of `reaper` or, if `reaper` has ended too, of the process that takes
/// that one's children. A child that is a zombie by then is reported to its new parent. Sends `child` the signal that it wants on
/// the death of `from` and, if that leaves its group orphaned with a stopped member, the group SIGHUP and SIGCONT. May sleep.
fn adopt(reaper: &Arc<Process>, child: &Arc<Process>, from: &Process) {
    tell_of_death(child, from);
    // The child's group may lose the parent that could have continued it. Looked up before another thread can reap the child.
    let group = group::controls(from, child).then(|| child.group());
    let mut parent = reaper.clone();
    loop {
        let pin = ksync::pin();
        let mut family = parent.family.lock();
        if !family.closed {
            child.ppid.store(parent.pid(), Ordering::SeqCst);
            child.maker.store(parent.pid(), Ordering::Relaxed);
            // Whatever signal the child was made with.
            child.exit_signal.store(sig::CHLD, Ordering::SeqCst);
            // A stop that has not been reported to the last parent, or is being reported now.
            if child.signals.lock().stop.report != StopReport::None {
                parent.set_flag(pflag::CHILD_STOPS, true);
            }
            family.living.push_back(&pin, child.pid());
            break;
        }
        drop(family);
        drop(pin);
        // `reaper` may have been reaped since: then nothing is known of those above it. `from` has not.
        match reaper_of(from) {
            Some(next) => parent = next,
            None => return,
        }
    }
    // After the pid, both in the order of all threads, as the child writes its life and then reads the pid: it finds itself
    // among the children of its new parent, or is seen to be a zombie here. Or both: then the first one reports it.
    if child.life.load(Ordering::SeqCst) != Life::Alive as u8 {
        report_end(child);
    } else if parent.has(pflag::CHILD_STOPS) {
        parent.child_wait.wake_all();
    }
    // Also for a child that has ended: it may have found its new parent, which does not control the group.
    if let Some(group) = group.flatten() {
        continue_if_orphaned(&group);
    }
}

/// The queue that is woken by the end of `p`: once [`has_ended`] says so. Allocates at the first call for a process.
pub fn ended(p: &Process) -> &WaitQueue {
    let queue = &p.seldom().ended;
    // Before the caller looks whether it has ended: `become_zombie` has the other half.
    fence(Ordering::SeqCst);
    queue
}

/// The last step of a process's end: makes it a zombie, drops its pending signals, and notifies the parent. May sleep.
fn become_zombie(p: &Arc<Process>) {
    p.life.swap(Life::Zombie as u8, Ordering::SeqCst);
    // It takes none any more, and may stay for long: what its senders pay for goes now.
    p.pending.drop_all();
    report_end(p);
    // Not before: a program that a pidfd tells of the end waits for the process then. The other half of `ended`: a listener that is not
    // seen here finds the flag.
    p.flags.fetch_or(pflag::REPORTED, Ordering::SeqCst);
    ksync::fence_after_rmw();
    if let Some(seldom) = p.seldom.get() {
        seldom.ended.wake_all();
    }
}

/// Whether a process has ended, and its parent can wait for it or has done so.
pub fn has_ended(p: &Process) -> bool {
    p.flags.load(Ordering::SeqCst) & pflag::REPORTED != 0
}

/// Moves the zombie `p` to its parent's list of zombies and notifies the parent, unless another thread has. If the parent
/// discards its children, or `p` has no parent, it is reaped at once. Takes the parent's family lock; may sleep before.
fn report_end(p: &Arc<Process>) {
    loop {
        let Some(parent) = parent_of(p) else {
            // A kernel process, or init: nobody waits. Or its last parent has reaped it, and has been reaped.
            if claim(p) {
                wait4::release(p);
            }
            return;
        };
        let mut news = News::new(&parent, true);
        let pin = ksync::pin();
        let mut family = parent.family.lock();
        match listing(&parent, p) {
            Listing::Elsewhere => continue,
            // In limbo: the thread that reparents it sees that it is a zombie. Or that thread has reported it, and it may have
            // been reaped since.
            Listing::Nowhere | Listing::Zombie => return,
            Listing::Living => {}
        }
        let notice = Notice::new(p, &parent);
        if !notice.send(p, &mut news) {
            drop(family);
            drop(pin);
            news.end();
            continue;
        }
        family.living.remove(&pin, p.pid());
        notice.list(&pin, &mut family, p);
        drop(family);
        drop(pin);
        notice.end(p, news);
        return;
    }
}

/// How a parent is notified of a child's end.
struct Notice {
    /// The signal that it gets, 0 for none.
    signo: u8,
    /// The child is reaped at once and does not stay a zombie.
    discards: bool,
    /// Where that is said. This may be the last reference, and is dropped when the family lock is free.
    _actions: Arc<ActionTable>,
}

impl Notice {
    /// How `parent` is notified of the end of its child `p`. The caller holds the parent's family lock, and lists the zombie in the
    /// same hold: a parent that has seen the child live after a change of its actions is notified as they say.
    fn new(p: &Process, parent: &Process) -> Notice {
        let signo = exit_signal(p, parent);
        let actions = parent.signals.lock().actions.clone();
        let discards = signo == sig::CHLD && actions.discards_children();
        let ignored = discards && actions.ignored().has(sig::CHLD);
        Notice {
            signo: if ignored { 0 } else { signo },
            discards,
            _actions: actions,
        }
    }

    /// Sends the signal about the zombie `p`. False, and nothing sent, if there was no room for its information. The caller holds
    /// the parent's family lock, and lists `p` in the same hold: a thread that reaps the zombie finds the signal pending.
    fn send(&self, p: &Process, news: &mut News<'_>) -> bool {
        self.signo == 0 || news.send(p, child_info(p, self.signo))
    }

    /// Lists the zombie `p`, which is on no list, in `family`, that of its parent, whose lock the caller holds. A parent that
    /// discards zombies does not find one: it is taken off again in the same hold.
    fn list(&self, pin: &CpuPin, family: &mut Family, p: &Process) {
        p.listed_dead.store(true, Ordering::Relaxed);
        family.zombies.push_back(pin, p.pid());
        if self.discards {
            take_listed(pin, family, p);
        }
    }

    /// What follows once the lock is free: a zombie that the parent discards is released, and the parent's threads in wait4
    /// are woken.
    fn end(&self, p: &Process, news: News<'_>) {
        if self.discards {
            wait4::release(p);
        }
        news.end();
    }
}

/// The signal that `parent` gets when `p` ends. Any signal but SIGCHLD was agreed on with the program that the parent
/// ran when it forked: another program, which may have more rights, gets SIGCHLD.
fn exit_signal(p: &Process, parent: &Process) -> u8 {
    let knew = p.parent_exec_id.load(Ordering::Relaxed);
    if parent.exec_id.is_still(knew) {
        p.exit_signal.load(Ordering::SeqCst)
    } else {
        sig::CHLD
    }
}

/// The siginfo of `signo` about the end of `p`.
fn child_info(p: &Process, signo: u8) -> SigInfo {
    let (code, status) = exit_code(p.status.load(Ordering::SeqCst));
    let times = p.times();
    let ticks = |ns: u64| ns / (task::time::SECOND / CLOCK_TICKS);
    let fields = SigFields::Child {
        pid: p.pid(),
        uid: p.cred().uid,
        status,
        utime: ticks(times.user_ns),
        stime: ticks(times.sys_ns),
    };
    SigInfo {
        signo,
        code,
        fields,
    }
}

/// The siginfo that waitid(2) gives for a report.
pub fn child_report(r: &wait4::Report) -> SigInfo {
    let (code, status) = match r.event {
        wait4::Event::Exited(status) => exit_code(status),
        wait4::Event::Stopped(signo) => (code::CLD_STOPPED, i32::from(signo)),
        wait4::Event::Continued => (code::CLD_CONTINUED, i32::from(sig::CONT)),
    };
    let fields = SigFields::Child {
        pid: r.pid,
        uid: r.uid,
        status,
        utime: 0,
        stime: 0,
    };
    SigInfo {
        signo: sig::CHLD,
        code,
        fields,
    }
}

/// `si_code` and `si_status` for a wait4 status.
fn exit_code(status: u32) -> (i32, i32) {
    match status & 0x7f {
        0 => (code::CLD_EXITED, (status >> 8 & 0xff) as i32),
        s => (code::CLD_KILLED, s as i32),
    }
}

/// Withdraws the tid of a thread that has left its CPU for the last time. Called with interrupts and preemption off.
/// The thread's memory is freed after a grace period: other CPUs may be reading it.
pub(super) fn release_dead(_pin: &CpuPin, t: &Thread) {
    task::ids::withdraw(t);
}
