//! Terminals.
//!
//! Guarantee: a terminal controls a session and a foreground group, never mere ids: as long as the terminal names one,
//! no other session or group gets its id. Once a terminal has hung up, every file that was open on it reads end of file
//! and fails to write, and none of them gets a byte that arrives later. Files of the console are an exception, see
//! `file`.
//!
//! Mechanism: a [`Tty`] runs the line discipline ([`fscore::ldisc`]) between a *wire* and its open files (`file`). The
//! terminal counts its hang-ups under the lock of the discipline, and a file keeps the count from when it was opened. A
//! file whose count is older is cut off, and every transfer compares the two counts under that lock. `control` has the
//! session and the foreground group, guarded by a spin lock that is taken inside the former lock. Job control follows
//! termios(3) and tty_ioctl(4).

#![no_std]
#![cfg(target_os = "none")]

extern crate alloc;

pub mod console;
mod control;
mod file;
mod ioctl;

use alloc::boxed::Box;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use fscore::ldisc::{Ldisc, TtySignal};
use ksync::{Mutex, Spin};
use proc::group::{Session, Terminal};
use proc::process::Process;
use proc::signal::{self, sig};
use task::wait::WaitQueue;

use self::control::Control;

ksync::lock_class!(pub TtyLock, "terminal", rank = 56);
ksync::lock_class!(pub ControlLock, "terminal control", rank = 140);

/// A terminal.
pub struct Tty {
    line: Mutex<Line, TtyLock>,
    /// The session that the terminal controls, and the foreground group.
    control: Spin<Control, ControlLock>,
    /// Rows, columns, and pixels, as struct winsize. Atomic.
    size: AtomicU64,
    /// Whether only privileged processes may open the terminal (TIOCEXCL). Atomic.
    exclusive: AtomicBool,
    readers: WaitQueue,
    /// Writers wait here while output is stopped.
    writers: WaitQueue,
    /// Device number. Const.
    number: u64,
    /// Sends bytes to the other end of the wire. Const.
    wire: fn(&[u8]),
}

/// The line discipline, and how often the terminal has been hung up.
struct Line {
    ldisc: Box<Ldisc>,
    hangups: u32,
}

/// Bytes gathered for one write to the wire.
struct Wire {
    bytes: [u8; 128],
    len: usize,
    send: fn(&[u8]),
}

impl Wire {
    const fn new(send: fn(&[u8])) -> Self {
        Wire {
            bytes: [0; 128],
            len: 0,
            send,
        }
    }

    fn push(&mut self, b: u8) {
        if self.len == self.bytes.len() {
            self.flush();
        }
        self.bytes[self.len] = b;
        self.len += 1;
    }

    fn flush(&mut self) {
        (self.send)(&self.bytes[..self.len]);
        self.len = 0;
    }
}

impl Tty {
    /// A terminal of 24 rows and 80 columns, with device number `number`, whose output goes to `wire`.
    fn new(number: u64, wire: fn(&[u8])) -> Tty {
        Tty {
            line: Mutex::new(Line {
                // A constant, which is copied to the heap: its buffer is half a kernel stack.
                ldisc: Box::new(const { Ldisc::new() }),
                hangups: 0,
            }),
            control: Spin::new(Control::NONE),
            size: AtomicU64::new(24 | 80 << 16),
            exclusive: AtomicBool::new(false),
            readers: WaitQueue::new(),
            writers: WaitQueue::new(),
            number,
            wire,
        }
    }

    /// Passes one byte from the wire through the line discipline: echoes it, signals the foreground group, and wakes readers
    /// and writers, as it says. May sleep.
    fn arrive(&self, byte: u8) {
        let mut wire = Wire::new(self.wire);
        let mut line = self.line.lock();
        let was_stopped = line.ldisc.stopped();
        let raised = line.ldisc.input(byte, &mut |b| wire.push(b));
        let ready = line.ldisc.available() > 0;
        let released = was_stopped && !line.ldisc.stopped();
        drop(line);
        wire.flush();
        if let Some(s) = raised {
            let signo = match s {
                TtySignal::Interrupt => sig::INT,
                TtySignal::Quit => sig::QUIT,
                TtySignal::Stop => sig::TSTP,
            };
            self.signal_foreground(signo);
        }
        if ready {
            self.readers.wake_all();
        }
        if released {
            self.writers.wake_all();
        }
    }

    /// Changes the size; if it differs from the old one, the foreground group gets SIGWINCH. May sleep.
    fn resize(&self, size: u64) {
        if self.size.swap(size, Ordering::Relaxed) != size {
            self.signal_foreground(sig::WINCH);
        }
    }

    /// Hangs up: cuts off every open file, drops unread input, lets stopped output go on, ends TIOCEXCL, and takes the
    /// terminal from its session. Returns what the terminal controlled, which the caller signals. If `of` does not accept
    /// that, does nothing and returns `None`. Takes the terminal's lock, which may sleep.
    fn hang_up_line(&self, of: impl FnOnce(&Control) -> bool) -> Option<Control> {
        let mut line = self.line.lock();
        let old = {
            let mut control = self.control.lock();
            if !of(&control) {
                return None;
            }
            control.release()
        };
        line.hangups += 1;
        // An open file that made the terminal exclusive is cut off, too.
        self.exclusive.store(false, Ordering::Relaxed);
        line.ldisc.flush();
        line.ldisc.set_stopped(false);
        drop(line);
        self.readers.wake_all();
        self.writers.wake_all();
        Some(old)
    }
}

impl Terminal for Tty {
    fn number(&self) -> u64 {
        self.number
    }

    fn foreground(&self) -> u32 {
        self.control.lock().foreground()
    }

    fn leader_exited(&self, session: &Session) {
        if let Some(old) = self.hang_up_line(|control| control.serves(session.sid())) {
            // The leader does not take signals any more; the foreground group may live on.
            old.signal_foreground(sig::HUP);
        }
    }

    fn hang_up(&self) {
        let Some(old) = self.hang_up_line(|_| true) else {
            return;
        };
        if let Some(leader) = old.leader() {
            signal_by_kernel(&leader, sig::HUP);
            signal_by_kernel(&leader, sig::CONT);
        }
    }
}

fn signal_by_kernel(p: &Process, signo: u8) {
    signal::send_process(p, signal::SigInfo::kernel(signo));
}
