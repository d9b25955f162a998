//! The referee: lets one actor act at a time, and records the consequences.
//!
//! Guarantee: a step begins only when every actor waits for its order, sleeps in a call, or has ended. So everything
//! that a step causes (wake-ups, signals, exits) belongs to it, and a program has the same lines in every run on the
//! same kernel.
//! Mechanism: an order and its answer pass over the board; whether another actor sleeps is read from /proc. A kernel
//! marks a thread as running when it wakes it, not when the thread next runs, so that a thread with something to do
//! never shows as sleeping. If no actor sleeps in a call and a step cannot affect other actors, the referee waits only
//! for the answer.

use crate::actor;
use crate::board::{self, ACTORS, EVENTS, board, order, reach, state};
use crate::calls::{memory, process};
use crate::dice::{Dice, add_digest, digest};
use crate::normal;
use crate::snapshot::Tree;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use user::sys;

/// The directory for the programs' files.
const DIRECTORY: &str = "/tmp/sysdiff";
/// Steps from one snapshot to the next.
const LOOK_EVERY: u32 = 24;
/// The time limit for an order and its consequences.
const PATIENCE: Duration = Duration::from_secs(10);
/// The number of the step that stands for the preparation.
const BEFORE: u32 = 0;

/// A program: its seed, its length, and the steps that are executed.
pub struct Program {
    /// The seed.
    pub seed: u64,
    /// Steps.
    pub steps: u32,
    /// First and last steps of the ranges that are executed; empty means all.
    pub keep: Vec<(u32, u32)>,
}

impl Program {
    fn makes(&self, step: u32) -> bool {
        self.keep.is_empty()
            || self
                .keep
                .iter()
                .any(|&(first, last)| (first..=last).contains(&step))
    }
}

/// The record of a program: a checksum of all lines, and the lines if they are wanted.
pub struct Log {
    /// The checksum.
    pub hash: u64,
    /// Lines written.
    pub lines: u32,
    print: bool,
}

impl Log {
    fn line(&mut self, text: &str) {
        self.hash = add_digest(add_digest(self.hash, text.as_bytes()), b"\n");
        self.lines += 1;
        if self.print {
            println!("sd| {text}");
        }
    }
}

/// The referee's state for an actor.
#[derive(Default)]
struct Seen {
    /// The step in which the actor started to sleep, now or last.
    step: u32,
    sleeps: bool,
    ended: bool,
}

struct Referee {
    log: Log,
    seen: [Seen; ACTORS],
    tree: Tree,
    acting: usize,
}

/// Runs `program`; prints its lines if `print`.
pub fn play(program: &Program, print: bool) -> Log {
    let log = Log {
        hash: digest(b""),
        lines: 0,
        print,
    };
    let mut referee = Referee {
        log,
        seen: Default::default(),
        tree: Tree::default(),
        acting: 0,
    };
    if let Err(error) = arrange(program.seed) {
        referee.log.line(&format!("cannot be played: {error}"));
        return referee.log;
    }
    if referee.begin(program.seed) {
        referee.steps(program);
    }
    referee.finish();
    referee.log
}

/// Creates an empty directory and resets the board.
fn arrange(seed: u64) -> std::io::Result<()> {
    std::env::set_current_dir("/")?;
    let _ = std::fs::remove_dir_all(DIRECTORY);
    std::fs::create_dir(DIRECTORY)?;
    let modes = [0o777, 0o777, 0o1777, 0o2777];
    let mode = modes[(seed / 8 % 4) as usize];
    std::fs::set_permissions(
        DIRECTORY,
        std::os::unix::fs::PermissionsExt::from_mode(mode),
    )?;
    std::env::set_current_dir(DIRECTORY)?;
    board().clear(seed, std::process::id() as i32);
    Ok(())
}

impl Referee {
    /// Creates the first actors: a process of root's, its child of an unprivileged user, and mostly a thread of the
    /// first.
    fn begin(&mut self, seed: u64) -> bool {
        self.tree.next_look();
        board().next.store(1, Ordering::SeqCst);
        board().cells[0]
            .state
            .store(state::STARTING, Ordering::SeqCst);
        match sys::fork() {
            Ok(0) => {
                let _ = sys::call(libc::SYS_setsid, &[]);
                let _ = sys::call(libc::SYS_umask, &[0o22]);
                let _ = sys::call(libc::SYS_close_range, &[3, u64::from(u32::MAX), 0]);
                let _ = sys::default_signal(libc::SIGPIPE);
                let none = 0u64;
                let how = libc::SIG_SETMASK as u64;
                let mask = [how, &raw const none as u64, 0, 8];
                let _ = sys::call(libc::SYS_rt_sigprocmask, &mask);
                actor::prepare();
                actor::live(0, 0)
            }
            Ok(pid) => {
                board().cells[0].pid.store(pid as i32, Ordering::SeqCst);
                board().cells[0].tid.store(pid as i32, Ordering::SeqCst);
            }
            Err(errno) => {
                self.log.line(&format!("fork: errno {errno}"));
                return false;
            }
        }
        self.settle(true)
            && self.order(0, BEFORE, order::FORK)
            && self.order(1, BEFORE, order::DEMOTE)
            && (seed % 3 == 2 || self.order(0, BEFORE, order::THREAD))
            && self.order(seed as usize % 2, BEFORE, order::FORK)
    }

    fn idle(&self) -> Vec<usize> {
        let free = |&id: &usize| board().cells[id].is(state::ALIVE) && board().cells[id].is_idle();
        (0..ACTORS).filter(free).collect()
    }

    fn steps(&mut self, program: &Program) {
        for step in (1..=program.steps).filter(|&step| program.makes(step)) {
            let idle = self.idle();
            if idle.is_empty() {
                self.log.line(&format!("{step} nobody is left to act"));
                break;
            }
            let choice = Dice::of(program.seed, step).next() >> 16;
            let actor = idle[choice as usize % idle.len()];
            if !self.order(actor, step, order::STEP) {
                return;
            }
            if step % LOOK_EVERY == 0 && !self.look(step, step / LOOK_EVERY) {
                return;
            }
        }
        for actor in self.idle() {
            if !self.order(actor, program.steps + 1, order::SNAPSHOT) {
                return;
            }
        }
        self.look_at_tree(program.steps + 1);
    }

    /// A snapshot of one actor and of the files.
    fn look(&mut self, step: u32, turn: u32) -> bool {
        let idle = self.idle();
        let seen =
            idle.is_empty() || self.order(idle[turn as usize % idle.len()], step, order::SNAPSHOT);
        self.look_at_tree(step);
        seen
    }

    fn look_at_tree(&mut self, step: u32) {
        for line in self.tree.look() {
            self.log.line(&format!("{step} {line}"));
        }
    }

    /// Gives an order and records the consequences. Returns false if the actors are not quiet in time.
    fn order(&mut self, actor: usize, step: u32, what: u32) -> bool {
        let cell = &board().cells[actor];
        self.acting = actor;
        self.seen[actor].step = step;
        cell.order.store(what, Ordering::SeqCst);
        cell.step.store(step, Ordering::SeqCst);
        cell.reaches.store(reach::ITSELF, Ordering::SeqCst);
        cell.len.store(0, Ordering::SeqCst);
        cell.go.fetch_add(1, Ordering::SeqCst);
        board::wake(&cell.go);
        let began = Instant::now();
        let mut answered = false;
        while !answered && began.elapsed() < Duration::from_millis(2) {
            let news = board().news.load(Ordering::SeqCst);
            answered = cell.is_idle();
            if !answered {
                board::wait(&board().news, news, Some(1_000_000));
            }
        }
        let sleepers = self.seen.iter().any(|seen| seen.sleeps);
        let far = !answered
            || sleepers
            || what != order::STEP
            || cell.reaches.load(Ordering::SeqCst) != reach::ITSELF;
        let quiet = !far || self.settle(false);
        self.write_down(step);
        if !quiet {
            self.stuck(step);
        }
        quiet
    }

    /// Waits until every actor waits, sleeps or has ended.
    fn settle(&mut self, first: bool) -> bool {
        let began = Instant::now();
        let mut calm = 0;
        while calm < 1 + u32::from(first) {
            let news = board().news.load(Ordering::SeqCst);
            let stirring = (0..ACTORS).filter(|&id| !self.is_quiet(id)).count();
            if stirring == 0 {
                calm += 1;
                continue;
            }
            calm = 0;
            if began.elapsed() > PATIENCE {
                return false;
            }
            board::wait(&board().news, news, Some(300_000));
        }
        true
    }

    /// Whether an actor will do nothing more by itself; records that it has ended, or sleeps.
    fn is_quiet(&mut self, id: usize) -> bool {
        let cell = &board().cells[id];
        if cell.is(state::STARTING) {
            // An actor that ends before its first report: its parent knows its pid.
            let pid = cell.pid.load(Ordering::SeqCst);
            if pid != 0 && matches!(proc_state(pid, pid), b'Z' | 0) && cell.is(state::STARTING) {
                cell.state.store(state::ENDED, Ordering::SeqCst);
            }
            return false;
        }
        if !cell.is(state::ALIVE) {
            if cell.is(state::ENDED) {
                self.see_whether_gone(id);
            }
            return true;
        }
        let (pid, tid) = (
            cell.pid.load(Ordering::SeqCst),
            cell.tid.load(Ordering::SeqCst),
        );
        let seen = &self.seen[id];
        match proc_state(pid, tid) {
            b'S' | b'T' if cell.is_idle() => true,
            b'S' | b'T' if seen.sleeps => !cell.is_idle(),
            b'S' if cell.reaches.load(Ordering::SeqCst) == reach::SLEEPS_INSIDE => false,
            b'S' | b'T' => {
                // The actor may be about to wake for its order, on a kernel that shows that late.
                for _ in 0..3 {
                    sleep_us(200);
                    if cell.is_idle() || proc_state(pid, tid) != b'S' {
                        return false;
                    }
                }
                true
            }
            b'Z' | b'X' | 0 => {
                // A process shows as ended a moment before its parent is notified; this call, which searches for
                // children, returns only after the notification.
                let nothing = libc::WNOHANG | libc::WNOWAIT | libc::WEXITED;
                let _ = sys::call(
                    libc::SYS_waitid,
                    &[u64::from(libc::P_ALL), 0, 0, nothing as u64, 0],
                );
                cell.state.store(state::ENDED, Ordering::SeqCst);
                false
            }
            _ => false,
        }
    }

    fn see_whether_gone(&mut self, id: usize) {
        let cell = &board().cells[id];
        let pid = cell.pid.load(Ordering::SeqCst);
        if cell.leads() && self.seen[id].ended && proc_state(pid, pid) == 0 {
            cell.state.store(state::GONE, Ordering::SeqCst);
        }
    }

    /// Records answers, sleeps, exits and signals since the last order.
    fn write_down(&mut self, step: u32) {
        let acting = self.acting;
        let order = std::iter::once(acting).chain((0..ACTORS).filter(move |&id| id != acting));
        for id in order {
            self.write_down_actor(id, step);
        }
    }

    fn write_down_actor(&mut self, id: usize, step: u32) {
        let cell = &board().cells[id];
        if cell.is(state::NONE) {
            return;
        }
        let ended = !cell.is(state::ALIVE);
        let sleeps = !ended && !cell.is_idle();
        let seen = &mut self.seen[id];
        let slept = std::mem::replace(&mut seen.sleeps, sleeps);
        if id == self.acting && !seen.ended || slept && !sleeps && !ended {
            let answer = cell.take_answer();
            let of = if seen.step == step {
                String::new()
            } else {
                format!(" (of {})", seen.step)
            };
            let still = if sleeps { " sleeps" } else { "" };
            self.log.line(&format!("{step} P{id}{of} {answer}{still}"));
        }
        let caught = cell.caught.swap(0, Ordering::SeqCst) as usize;
        for event in &cell.events[..caught.min(EVENTS)] {
            let [signal, code, pid, uid, value] =
                std::array::from_fn(|n| event.0[n].load(Ordering::SeqCst));
            let from = normal::pid(pid);
            self.log.line(&format!(
                "{step} P{id} caught {signal} code {code} from {from} uid {uid} value {value}"
            ));
        }
        let seen = &mut self.seen[id];
        if ended && !seen.ended {
            seen.ended = true;
            self.log.line(&format!("{step} P{id} ended"));
        }
    }

    fn stuck(&mut self, step: u32) {
        let mut text = format!("{step} not quiet after {} s:", PATIENCE.as_secs());
        for (id, cell) in board()
            .cells
            .iter()
            .enumerate()
            .filter(|(_, cell)| cell.is(state::ALIVE) || cell.is(state::STARTING))
        {
            let (pid, tid) = (
                cell.pid.load(Ordering::SeqCst),
                cell.tid.load(Ordering::SeqCst),
            );
            let state = proc_state(pid, tid);
            text += &format!(
                " P{id} {} {}",
                state as char,
                if cell.is_idle() { "idle" } else { "busy" }
            );
        }
        self.log.line(&text);
    }

    /// Kills all actors and waits for them.
    fn finish(&mut self) {
        self.seen = Default::default();
        let kill = libc::SIGKILL as u64;
        for cell in &board().cells {
            let pid = cell.pid.load(Ordering::SeqCst);
            if pid > 1 && !cell.is(state::NONE) && !cell.is(state::GONE) {
                let _ = sys::call(libc::SYS_kill, &[pid as u64, kill]);
            }
        }
        let began = Instant::now();
        let children = (libc::WNOHANG | libc::__WALL) as u64;
        while began.elapsed() < PATIENCE {
            match sys::call(libc::SYS_wait4, &[-1i64 as u64, 0, children, 0]) {
                Ok(0) => sleep_us(300),
                Ok(_) => {}
                Err(_) => return,
            }
        }
        self.log.line("some process does not end");
    }
}

fn sleep_us(us: u64) {
    std::thread::sleep(Duration::from_micros(us));
}

/// The state letter of a thread; 0 if there is none.
fn proc_state(pid: i32, tid: i32) -> u8 {
    let mut buffer = [0u8; 64];
    let file = File::open(format!("/proc/{pid}/task/{tid}/stat"));
    let Ok(Ok(len)) = file.map(|file| file.read_at(&mut buffer, 0)) else {
        return 0;
    };
    let after = buffer[..len].iter().rposition(|&byte| byte == b')');
    after
        .and_then(|at| buffer.get(at + 2))
        .copied()
        .unwrap_or(0)
}

/// Makes the referee the parent of actors whose parents end, blocks its signals, sets the protection of links, and
/// turns off core files.
pub fn prepare() {
    let _ = sys::call(
        libc::SYS_prctl,
        &[libc::PR_SET_CHILD_SUBREAPER as u64, 1, 0, 0, 0],
    );
    // A program may make signals reach the referee; it blocks all of them.
    let all = u64::MAX;
    let how = libc::SIG_SETMASK as u64;
    let _ = sys::call(
        libc::SYS_rt_sigprocmask,
        &[how, &raw const all as u64, 0, 8],
    );
    let none = [0u64; 2];
    // The protection against links and files that other users created: Debian's settings, which are Pantala's defaults.
    for (name, value) in [
        ("symlinks", "1"),
        ("hardlinks", "1"),
        ("regular", "2"),
        ("fifos", "1"),
    ] {
        let _ = std::fs::write(format!("/proc/sys/fs/protected_{name}"), value);
    }
    // No core files.
    let _ = sys::call(
        libc::SYS_setrlimit,
        &[u64::from(libc::RLIMIT_CORE), none.as_ptr() as u64],
    );
    let _ = (memory::ARENA, process::own_path());
}
