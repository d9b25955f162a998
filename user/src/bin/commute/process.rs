//! Operations on processes, signals and futexes.

use crate::act::{Act, Actor, Got, Op, PAGE, demand, expect, must, sleep_on};
use crate::board::{self, Word, word};
use crate::world::{self, ONE_PROGRAM, own, own_program, pipe_at};
use commute::call::Call::{Exec, Exit, Fork, Futex, Getpid, Kill, Wait};
use commute::model::Mode;
use std::sync::atomic::Ordering::SeqCst;
use user::sys;

/// The address at which the status of a child is stored.
fn status_at(actor: &Actor) -> u64 {
    actor.buffer() + 2048
}

fn wait4(actor: &Actor, pid: u64, options: i32) -> Act {
    let args = [pid, status_at(actor), options as u64, 0, 0, 0];
    Act::Call(libc::SYS_wait4, args)
}

fn status(actor: &Actor) -> i32 {
    sys::peek64(status_at(actor)) as u32 as i32
}

fn kill(pid: u64, signal: i32) -> Act {
    Act::Call(libc::SYS_kill, [pid, signal as u64, 0, 0, 0, 0])
}

fn yield_cpu() {
    let _ = sys::call(libc::SYS_sched_yield, &[]);
}

/// Yields the CPU until `done`; ends this process if a process has failed.
fn yield_until(done: impl Fn() -> bool) {
    while !done() {
        if word(Word::Failed).load(SeqCst) != 0 {
            sys::exit(3);
        }
        yield_cpu();
    }
}

/// A child that reports when it has executed `first`, and then executes `then`.
fn child(actor: &mut Actor, first: fn(usize), then: impl FnOnce()) -> Result<(), String> {
    let side = actor.side;
    word(Word::Ready(side)).store(0, SeqCst);
    word(Word::Go(side)).store(0, SeqCst);
    let pid = must("fork", sys::fork())?;
    if pid == 0 {
        first(side);
        word(Word::Ready(side)).store(1, SeqCst);
        then();
        sys::exit(127);
    }
    actor.child = pid;
    yield_until(|| word(Word::Ready(side)).load(SeqCst) == 1);
    Ok(())
}

/// A child that waits without sleeping until it may continue, and then executes `end`.
fn waiting_child(actor: &mut Actor, first: fn(usize), end: impl FnOnce()) -> Result<Act, String> {
    let side = actor.side;
    let end = || {
        yield_until(|| word(Word::Go(side)).load(SeqCst) == 1);
        end();
    };
    child(actor, first, end)?;
    Ok(Act::Release(side, actor.child, status_at(actor)))
}

/// A child that sleeps until [`let_child_end`], with SIGUSR1 blocked.
///
/// # Errors
/// A call fails.
pub fn make_sleeping_child(actor: &mut Actor) -> Result<(), String> {
    let wake = own(actor.side).wake;
    wake_pipe(actor)?;
    child(actor, |_| world::block_usr1(), || sleep_on(wake.0, wake.1))?;
    (0..3).for_each(|_| yield_cpu());
    Ok(())
}

/// A pipe whose ends block, because a child sleeps on it.
fn wake_pipe(actor: &Actor) -> Result<(), String> {
    let ends = own(actor.side).wake;
    let (r, w) = sys::pipe(0).map_err(|e| format!("pipe: errno {e}"))?;
    world::place(r, ends.0)?;
    world::place(w, ends.1)
}

fn close_wake_pipe(actor: &Actor) {
    let wake = own(actor.side).wake;
    let _ = (sys::close(wake.0), sys::close(wake.1));
}

/// Wakes the child of [`make_sleeping_child`] and waits for it. The wake-up is a byte, since other processes have the
/// write end, too.
///
/// # Errors
/// It did not end as expected.
pub fn let_child_end(actor: &Actor) -> Result<(), String> {
    must(
        "write",
        sys::write(own(actor.side).wake.1, &[1]).map(|n| n as u64),
    )?;
    reap(actor, 0)
}

fn reap(actor: &Actor, want: i32) -> Result<(), String> {
    let (pid, status) = sys::wait(actor.child as i64, 0).map_err(|e| format!("wait: errno {e}"))?;
    close_wake_pipe(actor);
    demand(
        pid == actor.child && status == want,
        "the child ended as it should",
    )
}

fn ended(actor: &Actor, got: Got, want: i32) -> Result<(), String> {
    expect(got, Ok(actor.child))?;
    let status = status(actor);
    if status == want {
        Ok(())
    } else {
        Err(format!("the child's status is {status:#x}"))
    }
}

fn exec(actor: &mut Actor, path: &str) -> Result<Act, String> {
    let path = actor.put(0, path);
    let (argv, envp) = (actor.text() + 2048, actor.text() + 2064);
    [(argv, path), (argv + 8, 0), (envp, 0)]
        .into_iter()
        .for_each(|(at, value)| sys::poke64(at, value));
    let become_it = move || {
        let _ = sys::call(libc::SYS_execve, &[path, argv, envp]);
    };
    waiting_child(actor, |_| {}, become_it)
}

/// A zombie child.
fn zombie(actor: &mut Actor) -> Result<(), String> {
    child(actor, |_| {}, || sys::exit(3))?;
    let options = libc::WEXITED | libc::WNOWAIT;
    expect(peek(actor, options).carry_out(), Ok(0))
}

fn peek(actor: &Actor, options: i32) -> Act {
    let (kind, pid) = (libc::P_PID as u64, actor.child);
    let args = [kind, pid, actor.buffer(), options as u64, 0, 0];
    Act::Call(libc::SYS_waitid, args)
}

fn ask(actor: &mut Actor, number: i64) -> Result<Act, String> {
    actor.kept = must("a question", sys::call(number, &[]))?;
    Ok(Act::Call(number, [0; 6]))
}

fn same(actor: &mut Actor, got: Got) -> Result<(), String> {
    expect(got, Ok(actor.kept))
}

fn futex(actor: &Actor, which: Word, operation: i32) -> Act {
    let private = if actor.mode == Mode::Processes {
        0
    } else {
        libc::FUTEX_PRIVATE_FLAG
    };
    let operation = (operation | private) as u64;
    Act::Call(
        libc::SYS_futex,
        [board::address(which), operation, 1, 0, 0, 0],
    )
}

fn nothing(_: &mut Actor, got: Got) -> Result<(), String> {
    expect(got, Ok(0))
}

fn changed(_: &mut Actor, got: Got) -> Result<(), String> {
    expect(got, Err(libc::EAGAIN))
}

const LIVES: &[Op] = &[
    Op {
        call: Fork,
        name: "fork",
        prepare: |a| {
            let wake = own(a.side).wake;
            wake_pipe(a).map(|()| Act::Fork(wake.0, wake.1))
        },
        finish: |a, got| {
            a.child = must("fork", got)?;
            let_child_end(a)
        },
    },
    Op {
        call: Fork,
        name: "vfork",
        prepare: |_| Ok(Act::Vfork),
        finish: |a, got| {
            a.child = must("vfork", got)?;
            expect(wait4(a, a.child, 0).carry_out(), Ok(a.child))?;
            demand(status(a) == 0, "the child ended well")
        },
    },
    Op {
        call: Exec,
        name: "one program",
        prepare: |a| exec(a, ONE_PROGRAM),
        finish: |a, got| ended(a, got, 0),
    },
    Op {
        call: Exec,
        name: "own program",
        prepare: |a| exec(a, &own_program(a.side)),
        finish: |a, got| ended(a, got, 0),
    },
    Op {
        call: Exit,
        name: "small",
        prepare: |a| waiting_child(a, |_| {}, || sys::exit(7)),
        finish: |a, got| ended(a, got, 7 << 8),
    },
    Op {
        call: Exit,
        name: "64 pages",
        prepare: |a| {
            let fill = |side| {
                let at = world::far(side) + (8 << 20);
                let _ = world::map(at, 64);
                (0..64).for_each(|page| sys::poke(at + page * PAGE, 1));
            };
            waiting_child(a, fill, || sys::exit(7))
        },
        finish: |a, got| ended(a, got, 7 << 8),
    },
    Op {
        call: Exit,
        name: "8 pipes",
        prepare: |a| {
            let pipes = |_| (0..8).for_each(|i| drop(pipe_at((60 + 2 * i, 61 + 2 * i))));
            waiting_child(a, pipes, || sys::exit(7))
        },
        finish: |a, got| ended(a, got, 7 << 8),
    },
    Op {
        call: Wait,
        name: "zombie",
        prepare: |a| zombie(a).map(|()| wait4(a, a.child, 0)),
        finish: |a, got| ended(a, got, 3 << 8),
    },
    Op {
        call: Wait,
        name: "zombie peek",
        prepare: |a| {
            zombie(a)?;
            Ok(peek(a, libc::WEXITED | libc::WNOWAIT | libc::WNOHANG))
        },
        finish: |a, got| {
            expect(got, Ok(0))?;
            let pid = sys::peek64(a.buffer() + 16) & 0xffff_ffff;
            demand(pid == a.child, "the child that ended is named")?;
            expect(wait4(a, a.child, 0).carry_out(), Ok(a.child))
        },
    },
    Op {
        call: Wait,
        name: "alive",
        prepare: |a| Ok(wait4(a, a.sleeper, libc::WNOHANG)),
        finish: nothing,
    },
];

const SIGNALS: &[Op] = &[
    Op {
        call: Kill,
        name: "own child probe",
        prepare: |a| Ok(kill(a.sleeper, 0)),
        finish: nothing,
    },
    Op {
        call: Kill,
        name: "one target probe",
        prepare: |_| Ok(kill(word(Word::Target).load(SeqCst), 0)),
        finish: nothing,
    },
    Op {
        call: Kill,
        name: "own child pending",
        prepare: |a| {
            make_sleeping_child(a)?;
            Ok(kill(a.child, libc::SIGUSR1))
        },
        finish: |a, got| expect(got, Ok(0)).and_then(|()| let_child_end(a)),
    },
    Op {
        call: Kill,
        name: "one target pending",
        prepare: |_| Ok(kill(word(Word::Target).load(SeqCst), libc::SIGUSR1)),
        finish: nothing,
    },
    Op {
        call: Kill,
        name: "own child killed",
        prepare: |a| {
            make_sleeping_child(a)?;
            Ok(kill(a.child, libc::SIGKILL))
        },
        finish: |a, got| expect(got, Ok(0)).and_then(|()| reap(a, libc::SIGKILL)),
    },
    Op {
        call: Kill,
        name: "nobody",
        prepare: |_| Ok(kill(4_190_000, 0)),
        finish: |_, got| expect(got, Err(libc::ESRCH)),
    },
    Op {
        call: Getpid,
        name: "getpid",
        prepare: |a| ask(a, libc::SYS_getpid),
        finish: same,
    },
    Op {
        call: Getpid,
        name: "getppid",
        prepare: |a| ask(a, libc::SYS_getppid),
        finish: same,
    },
    Op {
        call: Getpid,
        name: "gettid",
        prepare: |a| ask(a, libc::SYS_gettid),
        finish: same,
    },
    Op {
        call: Futex,
        name: "wake own",
        prepare: |a| Ok(futex(a, Word::Own(a.side), libc::FUTEX_WAKE)),
        finish: nothing,
    },
    Op {
        call: Futex,
        name: "wake one",
        prepare: |a| Ok(futex(a, Word::One, libc::FUTEX_WAKE)),
        finish: nothing,
    },
    Op {
        call: Futex,
        name: "wait own changed",
        prepare: |a| Ok(futex(a, Word::Own(a.side), libc::FUTEX_WAIT)),
        finish: changed,
    },
    Op {
        call: Futex,
        name: "wait one changed",
        prepare: |a| Ok(futex(a, Word::One, libc::FUTEX_WAIT)),
        finish: changed,
    },
];

/// All operations.
pub const OPS: [&[Op]; 2] = [LIVES, SIGNALS];
