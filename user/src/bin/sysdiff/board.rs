//! The memory that the referee and all actors share: orders, answers, and the actors' pids and tids.

use std::sync::atomic::{AtomicI32, AtomicU8, AtomicU32, AtomicU64, Ordering};
use user::sys::{self, access};

/// The address of the board, far from the programs' mappings.
const ADDR: u64 = 0x1800_0000_0000;
/// The file that is mapped, so that a program finds it after execve.
const FILE: &str = "/tmp/sysdiff.board";
/// The most actors of one program, dead ones included.
pub const ACTORS: usize = 12;
/// Bytes of an actor's answer.
pub const LINE: usize = 1500;
/// Signals that an actor can report before the referee reads them.
pub const EVENTS: usize = 64;
/// Futex words for the programs.
pub const WORDS: usize = 4;

/// States of an actor.
pub mod state {
    /// The cell is unused.
    pub const NONE: u32 = 0;
    /// Its process or thread has been created and has not reported yet.
    pub const STARTING: u32 = 1;
    /// It is alive.
    pub const ALIVE: u32 = 2;
    /// It has ended; its pid may still exist.
    pub const ENDED: u32 = 3;
    /// Its pid does not exist any more.
    pub const GONE: u32 = 4;
}

/// The actors that a step can affect.
pub mod reach {
    /// Its own actor, and actors that sleep in a call.
    pub const ITSELF: u32 = 0;
    /// Also actors that wait for their orders: by signals and exits.
    pub const OTHERS: u32 = 1;
    /// Its actor sleeps for a moment, and wakes by itself.
    pub const SLEEPS_INSIDE: u32 = 2;
}

/// What an actor is to do.
pub mod order {
    /// Step `step` of the program.
    pub const STEP: u32 = 0;
    /// Describe its memory, its signals and itself.
    pub const SNAPSHOT: u32 = 1;
    /// Create another process.
    pub const FORK: u32 = 2;
    /// Create a thread.
    pub const THREAD: u32 = 3;
    /// Become an unprivileged user.
    pub const DEMOTE: u32 = 4;
}

/// One signal caught by a handler: signal, code, pid, uid, value.
#[derive(Debug)]
pub struct Event(pub [AtomicI32; 5]);

/// One process or thread.
#[derive(Debug)]
pub struct Cell {
    /// A value of [`state`].
    pub state: AtomicU32,
    /// Its pid.
    pub pid: AtomicI32,
    /// Its tid.
    pub tid: AtomicI32,
    /// Counts orders; a futex.
    pub go: AtomicU32,
    /// The last order that was executed.
    pub done: AtomicU32,
    /// A value of [`order`].
    pub order: AtomicU32,
    /// The step of the order.
    pub step: AtomicU32,
    /// A value of [`reach`].
    pub reaches: AtomicU32,
    /// Bytes of `line` in use.
    pub len: AtomicU32,
    /// The answer.
    pub line: [AtomicU8; LINE],
    /// The number of signals caught since the referee last read them.
    pub caught: AtomicU32,
    /// These signals.
    pub events: [Event; EVENTS],
}

/// The whole board.
#[derive(Debug)]
pub struct Board {
    /// The seed of the program.
    pub seed: AtomicU64,
    /// Incremented with each answer; a futex.
    pub news: AtomicU32,
    /// The index of the next actor.
    pub next: AtomicU32,
    /// The referee's pid.
    pub referee: AtomicI32,
    /// Futex words of the program.
    pub words: [AtomicU32; WORDS],
    /// The actors.
    pub cells: [Cell; ACTORS],
}

/// The board.
pub fn board() -> &'static Board {
    access::shared(ADDR)
}

/// Creates a new board, or maps the existing one if `fresh` is false.
///
/// # Errors
/// The errno of the call that failed.
pub fn attach(fresh: bool) -> Result<(), sys::Errno> {
    let flags = if fresh {
        libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC
    } else {
        libc::O_RDWR
    };
    if fresh {
        let _ = std::fs::remove_file(FILE);
    }
    let fd = sys::open(FILE, flags, 0o666)?;
    if fresh {
        sys::call(libc::SYS_fchmod, &[fd as u64, 0o666])?;
        sys::call(libc::SYS_ftruncate, &[fd as u64, size_of::<Board>() as u64])?;
    }
    let (prot, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_SHARED | libc::MAP_FIXED,
    );
    sys::mmap(ADDR, size_of::<Board>() as u64, prot, flags, fd, 0)?;
    sys::close(fd).map(drop)
}

impl Board {
    /// Resets the board for the next program.
    pub fn clear(&self, seed: u64, referee: i32) {
        self.seed.store(seed, Ordering::SeqCst);
        self.next.store(0, Ordering::SeqCst);
        self.referee.store(referee, Ordering::SeqCst);
        self.words
            .iter()
            .for_each(|word| word.store(0, Ordering::SeqCst));
        for cell in &self.cells {
            for word in [&cell.state, &cell.go, &cell.done, &cell.len, &cell.caught] {
                word.store(0, Ordering::SeqCst);
            }
            cell.pid.store(0, Ordering::SeqCst);
            cell.tid.store(0, Ordering::SeqCst);
        }
    }

    /// Wakes the referee.
    pub fn tell(&self) {
        self.news.fetch_add(1, Ordering::SeqCst);
        wake(&self.news);
    }
}

impl Cell {
    /// Whether it is in state `state`.
    pub fn is(&self, state: u32) -> bool {
        self.state.load(Ordering::SeqCst) == state
    }

    /// Whether it has executed its last order.
    pub fn is_idle(&self) -> bool {
        self.go.load(Ordering::SeqCst) == self.done.load(Ordering::SeqCst)
    }

    /// Whether it leads its process.
    pub fn leads(&self) -> bool {
        self.pid.load(Ordering::SeqCst) == self.tid.load(Ordering::SeqCst)
    }

    /// Leaves an answer.
    pub fn answer(&self, text: &[u8]) {
        for (to, from) in self.line.iter().zip(text) {
            to.store(*from, Ordering::Relaxed);
        }
        self.len
            .store(text.len().min(LINE) as u32, Ordering::SeqCst);
    }

    /// Takes the answer.
    pub fn take_answer(&self) -> String {
        let len = self.len.swap(0, Ordering::SeqCst) as usize;
        let bytes: Vec<u8> = self.line[..len]
            .iter()
            .map(|byte| byte.load(Ordering::Relaxed))
            .collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// Waits until `word` is no longer `value`, at most `nanoseconds`; may return early, by a signal or spuriously.
pub fn wait(word: &AtomicU32, value: u32, nanoseconds: Option<u64>) {
    let time = [0, nanoseconds.unwrap_or(0)];
    let time = nanoseconds.map_or(0, |_| time.as_ptr() as u64);
    let at = word.as_ptr() as u64;
    let _ = sys::call(
        libc::SYS_futex,
        &[at, libc::FUTEX_WAIT as u64, u64::from(value), time],
    );
}

/// Wakes all that wait for `word`.
pub fn wake(word: &AtomicU32) {
    let all = i32::MAX as u64;
    let _ = sys::call(
        libc::SYS_futex,
        &[word.as_ptr() as u64, libc::FUTEX_WAKE as u64, all],
    );
}
