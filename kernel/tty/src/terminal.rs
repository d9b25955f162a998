//! A terminal: its line, what it controls, and the threads that wait for it.

use ksync::atomic::{AtomicBool, AtomicU64, Ordering};

use fscore::ldisc::{Termios, TtySignal};
use ksync::{Mutex, Spin};
use proc::group::{Session, Terminal};
use proc::process::Process;
use proc::signal::{self, sig};
use task::wait::{Cause, WaitQueue};

use super::control::Control;
use super::line::{Line, TtyLock, Wire};
use super::master::Master;
use super::pair::Pair;

ksync::lock_class!(pub ControlLock, "terminal control", rank = 140);

/// A terminal.
pub struct Tty {
    /// The line.
    pub(super) line: Mutex<Line, TtyLock>,
    /// The session that the terminal controls, and the foreground group.
    pub(super) control: Spin<Control, ControlLock>,
    /// Rows, columns, and pixels, as struct winsize. Atomic.
    pub(super) size: AtomicU64,
    /// Whether only privileged processes may open the terminal (TIOCEXCL). Atomic.
    pub(super) exclusive: AtomicBool,
    pub(super) readers: WaitQueue,
    /// Writers wait here while output is stopped.
    pub(super) writers: WaitQueue,
    /// Device number. Const.
    pub(super) number: u64,
    /// Sends bytes to the serial line, if that is the other end of the wire. Const.
    pub(super) wire: fn(&[u8]),
    /// What only a pseudo-terminal has. Const.
    pub(super) pair: Option<Pair>,
}

impl Tty {
    /// A terminal of 24 rows and 80 columns, with device number `number`, whose output goes to `wire`; `None` if there is no
    /// memory.
    pub(super) fn serial(number: u64, wire: fn(&[u8])) -> Option<Tty> {
        Some(Tty {
            size: AtomicU64::new(24 | 80 << 16),
            ..Tty::new(number, wire, None, None)?
        })
    }

    /// A terminal without a size; `None` if there is no memory.
    pub(super) fn new(
        number: u64,
        wire: fn(&[u8]),
        master: Option<Master>,
        pair: Option<Pair>,
    ) -> Option<Tty> {
        Some(Tty {
            line: Mutex::new(Line::new(master)?),
            control: Spin::new(Control::NONE),
            size: AtomicU64::new(0),
            exclusive: AtomicBool::new(false),
            readers: WaitQueue::new(),
            writers: WaitQueue::new(),
            number,
            wire,
            pair,
        })
    }

    /// Passes bytes from the wire through the line discipline: echoes them, signals the foreground group, and wakes readers and
    /// writers, as it says. Returns how many it has taken: up to one that raises a signal, and of a master's only as many as there is room
    /// for. May sleep.
    pub(super) fn arrive(&self, bytes: &[u8]) -> usize {
        let mut wire = Wire::new(self.wire);
        let mut line = self.line.lock();
        let was_stopped = line.ldisc.stopped();
        let (mut taken, mut raised) = (0, None);
        for &b in bytes {
            if line.master.as_ref().is_some_and(|m| m.held) || self.is_full(&line) {
                break;
            }
            raised = line.input(b, &mut wire);
            taken += 1;
            if raised.is_some() {
                break;
            }
        }
        let ready = line.ldisc.available() > 0;
        let released = was_stopped && !line.ldisc.stopped();
        drop(line);
        wire.flush();
        self.tell_master();
        if let Some(s) = raised {
            let signo = match s {
                TtySignal::Interrupt => sig::INT,
                TtySignal::Quit => sig::QUIT,
                TtySignal::Stop => sig::TSTP,
            };
            self.let_master_write();
            self.signal_foreground(signo);
        }
        if ready {
            self.readers.wake_all_for(Cause::Input);
        }
        if released || raised.is_some() {
            self.writers.wake_all();
        }
        taken
    }

    /// Whether a master has to wait until input is read. A serial line does not wait.
    fn is_full(&self, line: &Line) -> bool {
        self.pair.is_some() && !line.ldisc.takes_input()
    }

    /// Wakes the readers of the master, which find what the terminal has sent.
    pub(super) fn tell_master(&self) {
        if let Some(pair) = &self.pair {
            pair.readers.wake_all();
        }
    }

    /// Wakes the writers of the master, for there may be room.
    pub(super) fn let_master_write(&self) {
        if let Some(pair) = &self.pair {
            pair.writers.wake_all();
        }
    }

    /// Changes the size; if it differs from the old one, the foreground group gets SIGWINCH. May sleep.
    pub(super) fn resize(&self, size: u64) {
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
        line.drop_input();
        line.set_stopped(false);
        if self.pair.is_some() {
            line.set_termios(Termios::fresh_pseudo());
        }
        drop(line);
        self.readers.wake_all_for(Cause::HangUp);
        self.writers.wake_all();
        self.tell_master();
        self.let_master_write();
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
        if self.pair.is_some() {
            // As in Linux, a pseudo-terminal does not hang up: its master may give it to another session.
            if let Some(old) = self.give_up(session.sid()) {
                old.signal_foreground(sig::HUP);
            }
            return;
        }
        if let Some(old) = self.hang_up_line(|control| control.serves(session.sid())) {
            // The leader does not take signals any more; the foreground group may live on.
            old.signal_foreground(sig::HUP);
        }
    }

    fn hang_up(&self) {
        let Some(old) = self.hang_up_line(|_| true) else {
            return;
        };
        old.leave_foreground();
        if let Some(leader) = old.leader() {
            signal_by_kernel(&leader, sig::HUP);
            signal_by_kernel(&leader, sig::CONT);
        }
    }
}

fn signal_by_kernel(p: &Process, signo: u8) {
    signal::send_process(p, signal::SigInfo::kernel(signo));
}
