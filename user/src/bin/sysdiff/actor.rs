//! An actor: waits for orders, executes them, and leaves an answer. Nothing here allocates: a thread may end at any
//! call.

use crate::board::{self, Cell, EVENTS, LINE, board, order, state};
use crate::calls;
use crate::dice::Dice;
use crate::snapshot;
use std::cell::Cell as Own;
use std::fmt::Write;
use std::sync::atomic::Ordering;
use user::sys::{self, Errno, access};

thread_local! {
    /// The index of the actor that this thread is.
    static ME: Own<usize> = const { Own::new(0) };
}

/// One step, for the actor that executes it.
pub struct Act {
    /// The random choices.
    pub dice: Dice,
    /// The actor's index.
    pub id: usize,
    line: Line,
}

struct Line {
    bytes: [u8; LINE],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let len = text.len().min(LINE - self.len);
        self.bytes[self.len..self.len + len].copy_from_slice(&text.as_bytes()[..len]);
        self.len += len;
        Ok(())
    }
}

/// Adds to the answer.
macro_rules! say {
    ($act:expr, $($format:tt)*) => { $act.say(format_args!($($format)*)) };
}
pub(crate) use say;

impl Act {
    /// A step of actor `id`.
    pub fn new(dice: Dice, id: usize) -> Act {
        Act {
            dice,
            id,
            line: Line {
                bytes: [0; LINE],
                len: 0,
            },
        }
    }

    /// Adds to the answer; [`say!`] is the short form.
    pub fn say(&mut self, text: std::fmt::Arguments<'_>) {
        let _ = self.line.write_fmt(text);
    }

    /// Adds a call's result.
    pub fn result(&mut self, result: Result<u64, Errno>) -> Result<u64, Errno> {
        match result {
            Ok(value) => say!(self, " = {value}"),
            Err(errno) => say!(self, " = {}", Name(errno)),
        }
        result
    }

    /// Makes a call and adds its result.
    pub fn call(&mut self, nr: i64, args: &[u64]) -> Result<u64, Errno> {
        self.leave_answer();
        let result = sys::call(nr, args);
        self.result(result)
    }

    /// Makes a call and adds only that it succeeded, or its errno; for calls whose result is a pid or an address.
    pub fn quiet(&mut self, nr: i64, args: &[u64]) -> Result<u64, Errno> {
        self.leave_answer();
        let result = sys::call(nr, args);
        match result {
            Ok(_) => say!(self, " = ok"),
            Err(errno) => say!(self, " = {}", Name(errno)),
        }
        result
    }

    /// Whether no other actor could wake this one.
    pub fn is_alone(&self) -> bool {
        let cells = board().cells.iter().enumerate();
        let others =
            cells.filter(|(id, cell)| *id != self.id && cell.is(state::ALIVE) && cell.is_idle());
        others.count() == 0
    }

    /// Leaves the answer before a call that may not return.
    pub fn leave_answer(&self) {
        self.cell().answer(&self.line.bytes[..self.line.len]);
    }

    /// This actor's cell on the board.
    pub fn cell(&self) -> &'static Cell {
        &board().cells[self.id]
    }
}

/// The name of an errno.
pub struct Name(pub Errno);

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = [
            (libc::EPERM, "EPERM"),
            (libc::ENOENT, "ENOENT"),
            (libc::ESRCH, "ESRCH"),
            (libc::EINTR, "EINTR"),
            (libc::EIO, "EIO"),
            (libc::ENXIO, "ENXIO"),
            (libc::E2BIG, "E2BIG"),
            (libc::EBADF, "EBADF"),
            (libc::ECHILD, "ECHILD"),
            (libc::EAGAIN, "EAGAIN"),
            (libc::ENOMEM, "ENOMEM"),
            (libc::EACCES, "EACCES"),
            (libc::EFAULT, "EFAULT"),
            (libc::EBUSY, "EBUSY"),
            (libc::EEXIST, "EEXIST"),
            (libc::EXDEV, "EXDEV"),
            (libc::ENODEV, "ENODEV"),
            (libc::ENOTDIR, "ENOTDIR"),
            (libc::EISDIR, "EISDIR"),
            (libc::EINVAL, "EINVAL"),
            (libc::EMFILE, "EMFILE"),
            (libc::ETXTBSY, "ETXTBSY"),
            (libc::EFBIG, "EFBIG"),
            (libc::ENOSPC, "ENOSPC"),
            (libc::ESPIPE, "ESPIPE"),
            (libc::EPIPE, "EPIPE"),
            (libc::ENOSYS, "ENOSYS"),
            (libc::ENOTEMPTY, "ENOTEMPTY"),
            (libc::ELOOP, "ELOOP"),
            (libc::EOPNOTSUPP, "EOPNOTSUPP"),
            (libc::ETIMEDOUT, "ETIMEDOUT"),
            (libc::EDEADLK, "EDEADLK"),
            (libc::ENOTTY, "ENOTTY"),
            (libc::EOVERFLOW, "EOVERFLOW"),
        ];
        match names.iter().find(|(number, _)| *number == self.0) {
            Some((_, name)) => f.write_str(name),
            None => write!(f, "errno {}", self.0),
        }
    }
}

/// Runs in a handler: records the signal.
fn caught(event: access::Caught) {
    let cell = &board().cells[ME.get()];
    let at = cell.caught.fetch_add(1, Ordering::SeqCst) as usize;
    if let Some(place) = cell.events.get(at.min(EVENTS - 1)) {
        let values = [
            event.signal,
            event.code,
            event.pid,
            event.uid as i32,
            event.value,
        ];
        place
            .0
            .iter()
            .zip(values)
            .for_each(|(to, from)| to.store(from, Ordering::SeqCst));
    }
}

/// Prepares this process for its actors: faults of tried accesses are caught, everything else is as after execve.
pub fn prepare() {
    access::report_to(caught);
    let flags = libc::SA_SIGINFO | libc::SA_NODEFER;
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        let _ = sys::on_signal(signal, access::handler(), flags);
    }
}

/// Becomes actor `id` and executes its orders; `seen` is the last order that has been executed already.
pub fn live(id: usize, seen: u32) -> ! {
    ME.set(id);
    let cell = &board().cells[id];
    let number = |nr| sys::call(nr, &[]).unwrap_or(0) as i32;
    cell.pid.store(number(libc::SYS_getpid), Ordering::SeqCst);
    cell.tid.store(number(libc::SYS_gettid), Ordering::SeqCst);
    cell.done.store(seen, Ordering::SeqCst);
    cell.state.store(state::ALIVE, Ordering::SeqCst);
    board().tell();
    let mut last = seen;
    loop {
        let now = cell.go.load(Ordering::SeqCst);
        if now == last {
            board::wait(&cell.go, last, None);
            continue;
        }
        last = now;
        carry_out(id, cell);
        cell.done.store(last, Ordering::SeqCst);
        board().tell();
    }
}

fn carry_out(id: usize, cell: &Cell) {
    let (seed, step) = (
        board().seed.load(Ordering::SeqCst),
        cell.step.load(Ordering::SeqCst),
    );
    let mut dice = Dice::of(seed, step);
    // Skips the number by which the referee chose the actor.
    dice.next();
    let mut act = Act::new(dice, id);
    match cell.order.load(Ordering::SeqCst) {
        order::SNAPSHOT => snapshot::of_actor(&mut act),
        order::FORK => calls::process::fork(&mut act),
        order::THREAD => calls::process::thread(&mut act),
        order::DEMOTE => calls::creds::demote(&mut act),
        _ => calls::step(&mut act, seed),
    }
    act.leave_answer();
}
