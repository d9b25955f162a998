//! Random calls about signals by several processes, against a slow reference of what POSIX and Linux say of them.
#![cfg(not(shuttle))]

#[path = "support/signals.rs"]
mod signals;
mod support;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use abi::raw::general::{SA_NODEFER, SA_RESETHAND};
use proc::signal::{self, Action, SigSet, sig};
use proc::wait4::Children;
use proc::{UserThreadExt, ids};
use signals::*;
use support::{me, nap, user_mode, wait};
use task::current::current;
use task::park::ParkError;
use vm_host::random::Random;

/// The signals that the calls are about.
const SIGNALS: [u8; 14] = [
    sig::KILL,
    sig::STOP,
    sig::HUP,
    sig::QUIT,
    sig::SEGV,
    USR1,
    USR2,
    TERM,
    sig::CHLD,
    sig::CONT,
    sig::TSTP,
    sig::URG,
    RT,
    RT + 1,
];

/// Each of the signals is in the set in `part` of four cases.
fn random_set(random: &mut Random, part: usize) -> u64 {
    let within = SIGNALS.into_iter().filter(|_| random.below(4) < part);
    let set = within.fold(0, |set, signo| set | SigSet::one(signo).0);
    set & !SigSet::UNMASKABLE.0
}

/// What happens when a signal is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Default,
    Ignore,
    Catch {
        mask: u64,
        nodefer: bool,
        once: bool,
    },
}

/// What a process does.
#[derive(Clone, Copy, Debug)]
enum Call {
    Mask(u64),
    Act(u8, Act),
    /// sigtimedwait with a timeout of 0.
    Poll(u64),
    /// sigtimedwait without a timeout.
    Wait(u64),
    /// The return to user mode, and from all handlers that run.
    Return,
    Exec,
}

/// What comes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    Done,
    /// The number and the value.
    Taken(u8, u64),
    Nothing,
    Interrupted,
    /// The handlers that have run, in the order in which they returned.
    Handled(Vec<u8>),
}

/// How a signal is sent: to a process or one of its threads, with a value if it is queued.
#[derive(Clone, Copy, Debug)]
enum Send {
    Kill,
    Queue(u64),
    Thread(usize),
}

/// A signal with its value.
type Queued = (u8, u64);

/// What a thread of the reference does.
#[derive(Clone, Debug, Default)]
enum State {
    #[default]
    Idle,
    Waits(u64),
    /// On its way to user mode: handlers that are to run, each with the mask to be restored; and those that have run.
    Returns(Vec<(u8, u64)>, Vec<u8>),
}

/// A thread of the reference.
#[derive(Default)]
struct Thread {
    mask: u64,
    pending: Vec<Queued>,
    state: State,
    outcome: Option<Outcome>,
}

/// A process of the reference.
#[derive(Default)]
struct Model {
    acts: BTreeMap<u8, Act>,
    pending: Vec<Queued>,
    threads: Vec<Thread>,
    stopped: bool,
    report: Option<String>,
    status: Option<u32>,
}

/// Takes the first signal of `set`: those of an instruction first, then the lowest number, and of equals the oldest.
fn take(queue: &mut Vec<Queued>, set: u64) -> Option<Queued> {
    let rank = |signo| (!SigSet::SYNCHRONOUS.has(signo), signo);
    let fits = queue.iter().map(|(signo, _)| *signo);
    let fits = fits.filter(|signo| SigSet(set).has(*signo));
    let first = fits.min_by_key(|signo| rank(*signo))?;
    let at = queue.iter().position(|(signo, _)| *signo == first)?;
    Some(queue.remove(at))
}

fn bits(queue: &[Queued]) -> u64 {
    let bit = |(signo, _): &Queued| SigSet::one(*signo).0;
    queue.iter().map(bit).fold(0, |set, bit| set | bit)
}

impl Model {
    fn new(threads: usize) -> Model {
        Model {
            threads: (0..threads).map(|_| Thread::default()).collect(),
            ..Model::default()
        }
    }

    fn act(&self, signo: u8) -> Act {
        self.acts.get(&signo).copied().unwrap_or(Act::Default)
    }

    fn ignores(&self, signo: u8) -> bool {
        let by_default = [sig::CHLD, sig::CONT, sig::URG].contains(&signo);
        match self.act(signo) {
            Act::Default => by_default,
            Act::Ignore => true,
            Act::Catch { .. } => false,
        }
    }

    fn forget(&mut self, set: SigSet) {
        self.pending.retain(|(signo, _)| !set.has(*signo));
        for thread in &mut self.threads {
            thread.pending.retain(|(signo, _)| !set.has(*signo));
        }
    }

    /// The mask of a thread: sigtimedwait lets the signals of its set through.
    fn mask_now(&self, t: usize) -> u64 {
        match self.threads[t].state {
            State::Waits(set) => self.threads[t].mask & !set,
            _ => self.threads[t].mask,
        }
    }

    fn take_for(&mut self, t: usize, set: u64) -> Option<Queued> {
        take(&mut self.threads[t].pending, set).or_else(|| take(&mut self.pending, set))
    }

    fn send(&mut self, signo: u8, how: Send) {
        let stops = SigSet::STOPS;
        if signo == sig::KILL {
            self.status = Some(signo.into());
            return;
        }
        if stops.has(signo) {
            self.forget(SigSet::one(sig::CONT));
        }
        let mut goes_on = false;
        if signo == sig::CONT {
            self.forget(stops);
            goes_on = core::mem::take(&mut self.stopped);
            if goes_on {
                self.report = Some(continued());
            }
        }
        let (first, value) = match how {
            Send::Kill => (0, 0),
            Send::Queue(value) => (0, value),
            Send::Thread(t) => (t, 0),
        };
        let blocks = |thread: &Thread| SigSet(thread.mask).has(signo);
        let dropped = self.ignores(signo) && signo != sig::STOP && !blocks(&self.threads[first]);
        if !dropped {
            let queue = match how {
                Send::Thread(t) => &mut self.threads[t].pending,
                _ => &mut self.pending,
            };
            if signo >= sig::RTMIN || !SigSet(bits(queue)).has(signo) {
                queue.push((signo, value));
            }
            let one_acts = match how {
                Send::Thread(t) => !blocks(&self.threads[t]),
                _ => self.threads.iter().any(|thread| !blocks(thread)),
            };
            if self.ends_at_once(signo) && one_acts && !self.stopped {
                self.status = Some(signo.into());
                return;
            }
        }
        for t in 0..self.threads.len() {
            match &self.threads[t].state {
                State::Returns(..) if goes_on => self.go_home(t),
                State::Waits(set) => self.look(t, *set),
                _ => {}
            }
        }
    }

    /// Whether a signal that no thread blocks ends the process: by default, and without a core file.
    fn ends_at_once(&self, signo: u8) -> bool {
        let ends = [sig::HUP, USR1, USR2, TERM].contains(&signo) || signo >= sig::RTMIN;
        ends && self.act(signo) == Act::Default
    }

    /// A thread in sigtimedwait looks for a signal.
    fn look(&mut self, t: usize, set: u64) {
        let outcome = match self.take_for(t, set) {
            Some((signo, value)) => Outcome::Taken(signo, value),
            None => {
                let pending = bits(&self.pending) | bits(&self.threads[t].pending);
                if pending & !self.mask_now(t) == 0 {
                    return;
                }
                Outcome::Interrupted
            }
        };
        self.finish(t, outcome);
    }

    fn finish(&mut self, t: usize, outcome: Outcome) {
        self.threads[t].state = State::Idle;
        self.threads[t].outcome = Some(outcome);
    }

    /// A thread goes to user mode, as far as it gets.
    fn go_home(&mut self, t: usize) {
        while let State::Returns(..) = self.threads[t].state {
            let Some((signo, _)) = self.take_for(t, !self.threads[t].mask) else {
                self.leave_handler(t);
                continue;
            };
            match self.act(signo) {
                Act::Ignore => {}
                Act::Catch {
                    mask,
                    nodefer,
                    once,
                } => {
                    if once {
                        self.acts.insert(signo, Act::Default);
                    }
                    let thread = &mut self.threads[t];
                    let State::Returns(to_run, _) = &mut thread.state else {
                        unreachable!("it returns");
                    };
                    to_run.push((signo, thread.mask));
                    let own = if nodefer { 0 } else { SigSet::one(signo).0 };
                    thread.mask |= mask | own;
                }
                Act::Default if self.ignores(signo) => {}
                Act::Default if SigSet::STOPS.has(signo) => {
                    self.stopped = true;
                    self.report = Some(stopped_by(signo));
                    return;
                }
                Act::Default => {
                    self.status = Some(signo.into());
                    return;
                }
            }
        }
    }

    /// The handler that was begun last runs and returns; or none is left.
    fn leave_handler(&mut self, t: usize) {
        let thread = &mut self.threads[t];
        let State::Returns(to_run, handled) = &mut thread.state else {
            unreachable!("it returns");
        };
        match to_run.pop() {
            Some((signo, mask)) => {
                thread.mask = mask;
                handled.push(signo);
            }
            None => {
                let handled = core::mem::take(handled);
                self.finish(t, Outcome::Handled(handled));
            }
        }
    }

    fn call(&mut self, t: usize, call: Call) {
        match call {
            Call::Mask(set) => self.threads[t].mask = set,
            Call::Act(signo, act) => {
                self.acts.insert(signo, act);
                if self.ignores(signo) {
                    self.forget(SigSet::one(signo));
                }
            }
            Call::Exec => self.acts.retain(|_, act| *act == Act::Ignore),
            Call::Poll(set) => {
                let taken = self.take_for(t, set);
                let outcome = taken.map_or(Outcome::Nothing, |(s, v)| Outcome::Taken(s, v));
                return self.finish(t, outcome);
            }
            Call::Wait(set) => {
                self.threads[t].state = State::Waits(set);
                return self.look(t, set);
            }
            Call::Return => {
                self.threads[t].state = State::Returns(Vec::new(), Vec::new());
                return self.go_home(t);
            }
        }
        self.finish(t, Outcome::Done);
    }
}

/// A thread of the simulated machine that does what it is told to.
#[derive(Default)]
struct Puppet {
    tid: AtomicU32,
    call: Mutex<Option<Call>>,
    outcome: Mutex<Option<Outcome>>,
}

impl Puppet {
    /// The program of the thread.
    fn dance(&self) -> ! {
        self.tid.store(current().tid(), SeqCst);
        loop {
            let call = self.call.lock().expect("no test has failed").take();
            if let Some(call) = call {
                let outcome = perform(call);
                *self.outcome.lock().expect("no test has failed") = Some(outcome);
            }
            if current().kill_pending() {
                user_mode();
            }
            nap(1);
        }
    }

    fn outcome(&self) -> Option<Outcome> {
        self.outcome.lock().expect("no test has failed").take()
    }
}

fn perform(call: Call) -> Outcome {
    match call {
        Call::Mask(set) => set_mask(SigSet(set)),
        Call::Act(signo, act) => {
            let (handler, mask, flags) = match act {
                Act::Default => (0, 0, 0),
                Act::Ignore => (1, 0, 0),
                Act::Catch {
                    mask,
                    nodefer,
                    once,
                } => {
                    let flags =
                        (u32::from(nodefer) * SA_NODEFER) | (u32::from(once) * SA_RESETHAND);
                    (HANDLER, mask, u64::from(flags))
                }
            };
            action(signo, handler, flags);
            let new = Action {
                mask,
                ..signal::action(&me(), signo)
            };
            signal::set_action(&me(), signo, new);
        }
        Call::Poll(set) => return taken(sigwait(SigSet(set), Some(0)), Outcome::Nothing),
        Call::Wait(set) => return taken(sigwait(SigSet(set), None), Outcome::Interrupted),
        Call::Return => {
            let mut handled = Vec::new();
            let mut frame = computing();
            return_with(&mut frame);
            while frame.rip == HANDLER {
                handled.push(frame.rdi as u8);
                handler_returns(&mut frame);
                return_with(&mut frame);
            }
            return Outcome::Handled(handled);
        }
        Call::Exec => exec(),
    }
    Outcome::Done
}

fn taken(waited: Result<signal::SigInfo, ParkError>, otherwise: Outcome) -> Outcome {
    match waited {
        Ok(info) => Outcome::Taken(info.signo, value_of(&info)),
        Err(_) => otherwise,
    }
}

/// A process with its reference.
struct Pair {
    pid: u32,
    puppets: Arc<Vec<Puppet>>,
    model: Model,
}

impl Pair {
    fn new(threads: usize) -> Pair {
        let puppets: Arc<Vec<Puppet>> = Arc::new((0..threads).map(|_| Puppet::default()).collect());
        let theirs = puppets.clone();
        let pid = job(move || {
            exec();
            for t in 1..threads {
                let puppets = theirs.clone();
                thread(move || puppets[t].dance());
            }
            theirs[0].dance()
        });
        until(|| puppets.iter().all(|puppet| puppet.tid.load(SeqCst) != 0));
        Pair {
            pid,
            puppets,
            model: Model::new(threads),
        }
    }

    fn idle_thread(&self, t: usize) -> bool {
        !self.model.stopped && matches!(self.model.threads[t].state, State::Idle)
    }

    fn call(&mut self, t: usize, call: Call) {
        *self.puppets[t].call.lock().expect("no test has failed") = Some(call);
        self.model.call(t, call);
    }

    fn send(&mut self, signo: u8, how: Send) {
        let sent = match how {
            Send::Kill => kill_pid(self.pid, signo),
            Send::Queue(value) => queue(self.pid, signo, value),
            Send::Thread(t) => tkill(self.puppets[t].tid.load(SeqCst), signo),
        };
        assert_eq!(sent, Ok(()));
        self.model.send(signo, how);
    }

    /// Waits until the process has got as far as its reference, and compares them. Another takes the place of a process
    /// that has ended.
    fn compare(&mut self) {
        let children = Children::Pid(self.pid);
        if let Some(status) = self.model.status {
            assert_eq!(wait(children), Ok((self.pid, status)));
            *self = Pair::new(self.puppets.len());
            return;
        }
        match self.model.report.take() {
            Some(report) => assert_eq!(next_event(children), (self.pid, report)),
            None => assert_eq!(poll_event(children), None),
        }
        let p = ids::find_process(self.pid).expect("it lives");
        for (puppet, thread) in self.puppets.iter().zip(&mut self.model.threads) {
            match thread.outcome.take() {
                Some(expected) => {
                    until(|| puppet.outcome.lock().is_ok_and(|outcome| outcome.is_some()));
                    assert_eq!(puppet.outcome(), Some(expected));
                }
                None => assert_eq!(puppet.outcome(), None),
            }
            let t = ids::find_thread(puppet.tid.load(SeqCst)).expect("it lives");
            let pending = bits(&thread.pending) | bits(&self.model.pending);
            assert_eq!(signal::pending(&t), SigSet(pending));
            if !matches!(thread.state, State::Waits(_)) {
                assert_eq!(t.blocked(), SigSet(thread.mask));
            }
        }
        for signo in SIGNALS {
            let handler = match self.model.act(signo) {
                Act::Default => 0,
                Act::Ignore => 1,
                Act::Catch { .. } => HANDLER,
            };
            assert_eq!(signal::action(&p, signo).handler, handler);
        }
    }
}

/// A random call of thread `t`. One of several threads makes no call in which it waits.
fn random_call(random: &mut Random, alone: bool) -> Call {
    let part = random.below(4);
    let set = random_set(random, part);
    // Not the first two, which have no action.
    let signo = SIGNALS[2 + random.below(SIGNALS.len() - 2)];
    let act = match random.below(4) {
        0 => Act::Default,
        1 => Act::Ignore,
        _ => Act::Catch {
            mask: random_set(random, 1),
            nodefer: random.below(4) == 0,
            once: random.below(4) == 0,
        },
    };
    match random.below(12) {
        0..=2 => Call::Mask(set),
        3..=6 => Call::Act(signo, act),
        7 => Call::Poll(set),
        8 if alone => Call::Wait(set),
        9 if alone => Call::Exec,
        _ => Call::Return,
    }
}

fn random_send(random: &mut Random, threads: usize, stopped: bool) -> (u8, Send) {
    let mut signo = SIGNALS[random.below(SIGNALS.len())];
    // A kill ends much; threads of one process do not stop together here. A kill beside a stop is for a model.
    if signo == sig::KILL && (stopped || random.below(4) > 0) {
        signo = USR1;
    }
    if threads > 1 && SigSet::STOPS.has(signo) {
        signo = RT;
    }
    let how = match random.below(3) {
        0 => Send::Kill,
        1 => Send::Queue(random.below(1000) as u64),
        _ => Send::Thread(random.below(threads)),
    };
    (signo, how)
}

/// Plays so many steps, after each of which processes and references must agree.
fn play(seed: u64, processes: usize, threads: usize, steps: usize) {
    as_shell(move || {
        let mut random = Random(seed);
        let mut pairs: Vec<Pair> = (0..processes).map(|_| Pair::new(threads)).collect();
        for step in 0..steps {
            let pair = &mut pairs[random.below(processes)];
            let t = random.below(threads);
            let calls = pair.idle_thread(t) && random.below(2) == 0;
            if calls {
                let call = random_call(&mut random, threads == 1);
                println!("{step}: {call:?} by {t} of {}", pair.pid);
                pair.call(t, call);
            } else {
                let (signo, how) = random_send(&mut random, threads, pair.model.stopped);
                println!("{step}: {signo} {how:?} to {}", pair.pid);
                pair.send(signo, how);
            }
            nap(2);
            pair.compare();
        }
        for pair in &pairs {
            let _ = kill_pid(pair.pid, sig::KILL);
        }
        pairs
            .iter()
            .for_each(|_| assert!(wait(Children::Any).is_ok()));
    });
}

#[test]
fn processes_do_what_the_reference_does() {
    (1..=8).for_each(|seed| play(seed * 0x9e37_79b9, 3, 1, 400));
}

#[test]
fn threads_do_what_the_reference_does() {
    (1..=8).for_each(|seed| play(seed * 0x85eb_ca6b, 2, 3, 400));
}
