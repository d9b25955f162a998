//! The act of a side within a window, and what the side keeps between rounds.

use crate::board::{Word, word};
use commute::call::Call;
use commute::model::Mode;
use std::sync::atomic::Ordering::SeqCst;
use user::sys::{self, Errno};

/// Bytes of a page.
pub const PAGE: u64 = 4096;

/// The implementation of a variant.
pub struct Op {
    /// The call.
    pub call: Call,
    /// The variant's name.
    pub name: &'static str,
    /// Sets up the state that the act needs and returns the act.
    pub prepare: fn(&mut Actor) -> Result<Act, String>,
    /// Checks the result of the act and undoes it.
    pub finish: fn(&mut Actor, Got) -> Result<(), String>,
}

/// What the call returned; for a load, the byte.
pub type Got = Result<u64, Errno>;

/// The act itself: everything that a side executes in a window, without a first access to any other memory.
#[derive(Clone, Copy)]
pub enum Act {
    /// A system call.
    Call(i64, [u64; 6]),
    /// Loads a byte.
    Load(u64),
    /// Stores a byte.
    Store(u64, u8),
    /// Creates a child that sleeps until the given descriptor's pipe is closed or written to; the child closes the
    /// other end.
    Fork(i32, i32),
    /// Creates a child that ends at once, before its parent continues.
    Vfork,
    /// Lets this side's child continue and waits for its end; the status is stored at the address.
    Release(usize, u64, u64),
}

impl Act {
    /// Executes it.
    pub fn carry_out(self) -> Got {
        match self {
            Act::Call(number, args) => sys::call(number, &args),
            Act::Load(addr) => Ok(u64::from(sys::peek(addr))),
            Act::Store(addr, byte) => {
                sys::poke(addr, byte);
                Ok(0)
            }
            Act::Fork(read_end, write_end) => match sys::fork() {
                Ok(0) => sleep_on(read_end, write_end),
                other => other,
            },
            Act::Vfork => sys::vfork_exit(),
            Act::Release(side, pid, status) => {
                word(Word::Go(side)).store(1, SeqCst);
                sys::call(libc::SYS_wait4, &[pid, status, 0, 0])
            }
        }
    }
}

/// In a child: sleeps until the pipe is written to or has no writer any more.
pub fn sleep_on(read_end: i32, write_end: i32) -> ! {
    let _ = sys::close(write_end);
    let mut byte = [0];
    while sys::read(read_end, &mut byte) == Err(libc::EINTR) {}
    sys::exit(0)
}

/// One side of the pairs of a batch.
pub struct Actor {
    /// 0 or 1; also its CPU.
    pub side: usize,
    /// Whether the sides are threads or processes.
    pub mode: Mode,
    /// A value that `prepare` leaves for `finish`.
    pub kept: u64,
    /// A child that `prepare` created.
    pub child: u64,
    /// A child that sleeps as long as the batch lasts.
    pub sleeper: u64,
    /// A byte that changes from round to round.
    pub byte: u8,
}

impl Actor {
    /// An actor without any state yet.
    pub fn new(side: usize, mode: Mode) -> Actor {
        Actor {
            side,
            mode,
            kept: 0,
            child: 0,
            sleeper: 0,
            byte: side as u8 + 1,
        }
    }

    /// The address of a resident page of this side for buffers.
    pub fn buffer(&self) -> u64 {
        crate::world::BUFFERS + self.side as u64 * 16 * PAGE
    }

    /// The address of another such page, for strings.
    pub fn text(&self) -> u64 {
        self.buffer() + PAGE
    }

    /// Stores `text` with a terminating zero byte in `slot` of the page for strings; returns its address.
    pub fn put(&self, slot: u64, text: &str) -> u64 {
        let at = self.text() + slot * 256;
        for (at, byte) in (at..).zip(text.bytes().chain([0])) {
            sys::poke(at, byte);
        }
        at
    }

    /// Writes to all memory that is written to in a window: a fork may have made it copy-on-write.
    pub fn touch_again(&self) {
        for page in 0..4 {
            let at = self.buffer() + page * PAGE;
            sys::poke(at, sys::peek(at));
        }
        let mut stack = [0u8; 3 * PAGE as usize];
        for byte in stack.iter_mut().step_by(512) {
            *byte = 1;
        }
        std::hint::black_box(&mut stack);
    }

    /// A byte that differs from the last one.
    pub fn next_byte(&mut self) -> u8 {
        self.byte = self.byte.wrapping_add(2).max(1);
        self.byte
    }
}

/// Checks that a call returned `want`.
///
/// # Errors
/// It returned another result.
pub fn expect(got: Got, want: Got) -> Result<(), String> {
    let people = |got: Got| match got {
        Ok(value) => format!("{value:#x}"),
        Err(errno) => std::io::Error::from_raw_os_error(errno).to_string(),
    };
    if got == want {
        Ok(())
    } else {
        Err(format!("{} instead of {}", people(got), people(want)))
    }
}

/// Checks that a condition holds.
///
/// # Errors
/// `what`, if the condition does not hold.
pub fn demand(holds: bool, what: &str) -> Result<(), String> {
    if holds {
        Ok(())
    } else {
        Err(format!("not so: {what}"))
    }
}

/// Adds the name of the call to an error of the preparation or the undoing of a round.
///
/// # Errors
/// The call's.
pub fn must(what: &'static str, got: Got) -> Result<u64, String> {
    got.map_err(|e| format!("{what}: {}", std::io::Error::from_raw_os_error(e)))
}
