//! Waiting for children.
//!
//! A process may have so many children that looking at all of them takes long, so a wait looks at them in slices. Between
//! two slices preemption is possible and the family lock is free: other threads fork, end, move and reap children.
//!
//! Guarantee: "no child matches" and "nothing yet" are true at one moment during the call. Mechanism: a `Walk` has a
//! place on each of the two lists, and ends only in a hold of the lock that finds both places at the end. Children are
//! only ever appended, and each is at most once in its life on either list of a parent. So what precedes a place was
//! listed before the child at that place, and has been looked at. In the hold that ends the walk that is every listed
//! child: a child that moved from the living to the zombies after, or without, a look at it there follows the place among
//! the zombies, and is looked at. A child that is on neither list by then has been reaped by another thread.
//!
//! The walk holds a reference to the child at a place, so its pid is not given to another child meanwhile. If that child
//! leaves the list, the walk begins that list again: it may look at a child twice, which does no harm, and each time
//! costs a child that ends. A thread that sleeps listens before the first slice, so an event that comes after the look at
//! its child wakes it.

use alloc::sync::Arc;
use ksync::atomic::Ordering;

use cred::Charge;
use ksync::{ArcBorrow, CpuPin};
use task::current::current;
use task::idlist::IdList;
use task::park::{Deadline, Interruptible, ParkError, Step, park};
use task::thread::{self, Thread};
use task::usage::Times;
use task::wait::Waiter;

use super::family::{Listing, listing, take_listed};
use super::ids;
use super::process::{Life, Process, Sibling, flag};
use super::signal::{StopReport, sig};
use crate::UserThreadExt;

/// Which children to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Children {
    /// Every child.
    Any,
    /// The child with this pid.
    Pid(u32),
    /// The children in the process group with this id.
    Group(u32),
}

/// Children by the signal that their parent gets when they end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// SIGCHLD.
    #[default]
    Usual,
    /// Another signal, or none (`__WCLONE`).
    Clones,
    /// Any of these (`__WALL`).
    All,
}

/// What to report, and how.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Children that have ended.
    pub exited: bool,
    /// Children that have stopped.
    pub stopped: bool,
    /// Children that were continued.
    pub continued: bool,
    /// Leave the event to be reported by another wait (WNOWAIT).
    pub keep: bool,
    /// Do not sleep.
    pub no_hang: bool,
    /// Only children that the calling thread made; for the leader also those that a thread made which has ended
    /// (`__WNOTHREAD`).
    pub own: bool,
    /// Which children count, by the signal that the parent gets when they end.
    pub kind: Kind,
}

/// What happened to a child.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// It ended, with this wait4 status.
    Exited(u32),
    /// It was stopped by this signal.
    Stopped(u8),
    /// It was continued.
    Continued,
}

/// A report about a child.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    /// The child's pid.
    pub pid: u32,
    /// Its real user id.
    pub uid: u32,
    /// What happened to it.
    pub event: Event,
    /// The resources that it and the children that it has waited for have used.
    pub times: Times,
}

/// Why there is no report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitError {
    /// No child matches.
    NoChild,
    /// A signal is pending.
    Signal,
}

struct State {
    parent: Arc<Process>,
    /// The tid of the waiting thread.
    tid: u32,
    children: Children,
    options: Options,
}

/// wait4(2) and waitid(2): waits for a child's event. `None` only with `no_hang`. Without `keep`, a child that has ended is
/// reaped and its usage added to that of the caller's children; a stop or continuation is not reported again. May sleep also with
/// `no_hang`, for the usage of a living child.
///
/// # Errors
/// [`WaitError`]; nothing has changed.
pub fn wait(children: Children, options: Options) -> Result<Option<Report>, WaitError> {
    let mut state = State {
        parent: current().process().clone(),
        tid: current().tid(),
        children,
        options,
    };
    match park(&mut state, Deadline::Never, Interruptible::Yes, step) {
        Ok(result) => result,
        Err(ParkError::Signal | ParkError::Timeout) => Err(WaitError::Signal),
    }
}

fn step(s: &mut State, waiter: &mut Waiter) -> Step<Result<Option<Report>, WaitError>> {
    if !s.options.no_hang {
        waiter.listen(&s.parent.child_wait);
    }
    match look(s) {
        Look::Found(report) => Step::Done(Ok(Some(report))),
        // Nothing is pinned here: the usage of a living child includes that of its memory, and reading it may sleep.
        Look::Lives(child, event) => Step::Done(Ok(Some(report(&child, event)))),
        Look::Nobody => Step::Done(Err(WaitError::NoChild)),
        Look::NotYet if s.options.no_hang => Step::Done(Ok(None)),
        Look::NotYet => Step::Wait,
    }
}

enum Look {
    Found(Report),
    Lives(Arc<Process>, Event),
    NotYet,
    Nobody,
}

/// Most children that are looked at in one hold of the family lock.
const SLICE: usize = 64;

/// How far a wait for any of several children has come.
#[derive(Default)]
struct Walk {
    /// A child that matches has been seen.
    any: bool,
    /// The last child looked at on each list, `None` before the first. Only from the second slice on.
    zombies: Option<Arc<Process>>,
    living: Option<Arc<Process>>,
}

/// What a slice of a walk leads to.
enum Slice {
    Zombie(Arc<Process>),
    Event(Arc<Process>, Event),
    /// The walk goes on behind these, if given: zombie and living child.
    More(Option<Arc<Process>>, Option<Arc<Process>>),
    /// Everything listed has been looked at as far as necessary.
    End,
}

fn matches(s: &State, child: &Process) -> bool {
    let usual = child.exit_signal.load(Ordering::SeqCst) == sig::CHLD;
    if s.options.kind != Kind::All && usual != (s.options.kind == Kind::Usual) {
        return false;
    }
    if s.options.own && !is_own(s, child) {
        return false;
    }
    match s.children {
        Children::Any => true,
        Children::Pid(pid) => child.pid() == pid,
        Children::Group(pgid) => child.pgid() == pgid,
    }
}

/// Whether the child is the waiting thread's: that thread made it; or the thread that made it has ended, and the
/// waiting thread is the leader.
fn is_own(s: &State, child: &Process) -> bool {
    let pin = ksync::pin();
    let maker = child.maker.load(Ordering::Relaxed);
    let lives =
        |t: &Thread| core::ptr::eq(&**t.process(), &*s.parent) && !t.has(thread::flag::KILLED);
    maker == s.tid || s.tid == s.parent.pid() && !ids::thread(&pin, maker).is_some_and(lives)
}

/// Looks at all children that may match, in slices, until one has an event to report, which is taken unless the caller keeps it.
fn look(s: &State) -> Look {
    if let Children::Pid(pid) = s.children {
        return look_at_one(&ksync::pin(), s, pid);
    }
    let mut walk = Walk::default();
    loop {
        // Preemption is possible between two slices.
        let pin = ksync::pin();
        match walk.next_slice(&pin, s) {
            Slice::Zombie(child) => {
                if s.options.keep || take_zombie(&s.parent, &child) {
                    return finish(s, &child);
                }
                // Another thread of the parent has reaped it. It may have been the only one.
                drop(pin);
                walk = Walk::default();
            }
            Slice::Event(child, event) => return Look::Lives(child, event),
            Slice::More(zombie, child) => {
                // The old ones may have been reaped since, and are freed outside of the pin.
                drop(pin);
                walk.zombies = zombie.or(walk.zombies);
                walk.living = child.or(walk.living);
            }
            Slice::End if walk.any => return Look::NotYet,
            Slice::End => return Look::Nobody,
        }
    }
}

impl Walk {
    /// Looks at up to [`SLICE`] children behind the walk's places, first at zombies. A stop or continuation that it finds is
    /// taken as in [`stop_event`]; a zombie is not. Takes the family lock and, under it, the signal lock of one child after the
    /// other.
    fn next_slice(&mut self, pin: &CpuPin, s: &State) -> Slice {
        let family = s.parent.family.lock();
        let mut left = SLICE;
        let (mut zombie, mut stopped) = (None, None);
        let mut any = self.any;
        let mut last_zombie = None;
        let mut last_living = None;
        let mut ended = true;
        if s.options.exited {
            let place = still_on(s, self.zombies.as_ref(), Listing::Zombie);
            ended = each_behind(pin, &family.zombies, place, &mut left, |c| {
                last_zombie = Some(c);
                if matches(s, &c) {
                    any = true;
                    zombie = Some(c.hold());
                }
                zombie.is_none()
            });
        }
        if let Some(child) = zombie {
            return Slice::Zombie(child);
        }
        let stops = (s.options.stopped || s.options.continued) && s.parent.has(flag::CHILD_STOPS);
        // Living children are looked at for their stops, or to see whether one matches.
        if ended && (stops || !any) {
            let place = still_on(s, self.living.as_ref(), Listing::Living);
            ended = each_behind(pin, &family.living, place, &mut left, |c| {
                last_living = Some(c);
                if matches(s, &c) {
                    any = true;
                    if stops {
                        stopped = stop_event(s, &c).map(|event| (c.hold(), event));
                    }
                }
                stopped.is_none() && (stops || !any)
            });
        }
        drop(family);
        self.any = any;
        match stopped {
            Some((child, event)) => Slice::Event(child, event),
            None if ended => Slice::End,
            None => Slice::More(
                last_zombie.map(ArcBorrow::hold),
                last_living.map(ArcBorrow::hold),
            ),
        }
    }
}

/// `child`, if it is on this list of the parent, whose family lock the caller holds.
fn still_on<'a>(s: &State, child: Option<&'a Arc<Process>>, on: Listing) -> Option<&'a Process> {
    child
        .filter(|child| listing(&s.parent, child) == on)
        .map(|child| &**child)
}

/// Looks at up to `left` children on a list, those behind `place`, until `look` returns false. Whether that is all: `look`
/// ended it, or the end of the list was reached.
fn each_behind<'p>(
    pin: &'p CpuPin,
    list: &IdList<Sibling>,
    place: Option<&Process>,
    left: &mut usize,
    mut look: impl FnMut(ArcBorrow<'p, Process>) -> bool,
) -> bool {
    let mut next = match place {
        Some(last) => list.after(pin, last.pid()),
        None => list.first(),
    };
    while let Some(pid) = next {
        if *left == 0 {
            return false;
        }
        *left -= 1;
        if let Some(child) = ids::borrow_process(pin, pid)
            && !look(child)
        {
            return true;
        }
        next = list.after(pin, pid);
    }
    true
}

/// As [`look`], at the child with that pid, without a walk.
fn look_at_one(pin: &CpuPin, s: &State, pid: u32) -> Look {
    let Some(child) = ids::borrow_process(pin, pid).map(ArcBorrow::hold) else {
        return Look::Nobody;
    };
    if child.ppid() != s.parent.pid() || !matches(s, &child) {
        return Look::Nobody;
    }
    if child.is_zombie() {
        // As in Linux: a child that has ended is none for a caller that does not wait for ends.
        if !s.options.exited {
            return Look::Nobody;
        }
        let listed = {
            let _family = s.parent.family.lock();
            listing(&s.parent, &child) == Listing::Zombie
        };
        if !listed {
            // The child is on its way onto the list of zombies or off it.
            return if child.life.load(Ordering::SeqCst) == Life::Reaped as u8 {
                Look::Nobody
            } else {
                Look::NotYet
            };
        }
        return match s.options.keep || take_zombie(&s.parent, &child) {
            true => finish(s, &child),
            false => Look::Nobody,
        };
    }
    match stop_event(s, &child) {
        Some(event) => Look::Lives(child, event),
        None => Look::NotYet,
    }
}

/// A report about `child`, with the resources that it and the children that it has waited for have used.
fn report(child: &Process, event: Event) -> Report {
    let mut times = child.times();
    times.add(&child.child_times());
    Report {
        pid: child.pid(),
        uid: child.uid(),
        event,
        times,
    }
}

/// The stop, once all threads have stopped, or continuation of `child` that is to be reported now. Unless the caller keeps it
/// (WNOWAIT), it is not reported again. Takes the child's signal lock.
fn stop_event(s: &State, child: &Process) -> Option<Event> {
    let mut shared = child.signals.lock();
    let event = match shared.stop.report {
        StopReport::Stopped(signo)
            if s.options.stopped
                && !child.is_ending()
                && shared.stop.is_complete(child.thread_count()) =>
        {
            Event::Stopped(signo)
        }
        StopReport::Continued if s.options.continued => Event::Continued,
        _ => return None,
    };
    if !s.options.keep {
        shared.stop.report = StopReport::None;
    }
    Some(event)
}

/// Reaps `child`: takes it off its parent's list of zombies. True for exactly one caller, which then calls [`release`].
pub fn take_zombie(parent: &Process, child: &Process) -> bool {
    let pin = ksync::pin();
    let mut family = parent.family.lock();
    // A zombie may still be on the list of living children, or in limbo.
    let listed = listing(parent, child) == Listing::Zombie;
    if listed {
        take_listed(&pin, &mut family, child);
    }
    listed
}

/// The report about the zombie `child`, which the caller has taken off the list unless it keeps it.
fn finish(s: &State, child: &Arc<Process>) -> Look {
    let report = report(child, Event::Exited(child.status.load(Ordering::SeqCst)));
    if !s.options.keep {
        s.parent.accounts.lock().children.add(&report.times);
        release(child);
    }
    Look::Found(report)
}

/// Takes a reaped process out of its group and the process table, and gives back the charge for its last thread. Takes the locks
/// of its group's shards; spins while setpgid moves it.
pub fn release(p: &Process) {
    let pin = ksync::pin();
    p.life.store(Life::Reaped as u8, Ordering::SeqCst);
    loop {
        let pgid = p.pgid();
        match ids::group(&pin, pgid) {
            Some(group) if group.leave(&pin, p) => break,
            // The process is in no group. Had its pgid changed, the group would have ended because setpgid moved the
            // process meanwhile.
            None if p.pgid() == pgid => break,
            // Another thread is moving it.
            _ => ksync::relax(),
        }
    }
    ids::withdraw_process(p);
    p.payer().give_back(Charge::Threads, 1);
}
