//! A terminal's line: what its lock guards.

use alloc::boxed::Box;

use fscore::ldisc::{Ldisc, Termios, TtySignal};

use super::master::{Master, status};

ksync::lock_class!(pub TtyLock, "terminal", rank = 56);

/// The line discipline, how often the terminal has been hung up, and the master of a pseudo-terminal.
pub(super) struct Line {
    /// The discipline.
    pub ldisc: Box<Ldisc>,
    /// How often the terminal has been hung up.
    pub hangups: u32,
    /// The other end of a pseudo-terminal.
    pub master: Option<Master>,
}

impl Line {
    /// A fresh discipline.
    /// `None` if there is no memory.
    pub fn new(master: Option<Master>) -> Option<Line> {
        // Its buffer is half a kernel stack.
        static FRESH: Ldisc = Ldisc::new();
        Some(Line {
            ldisc: ksync::try_box_copy(&FRESH)?,
            hangups: 0,
            master,
        })
    }

    /// Lets the discipline work. What it sends goes to the master, which drops what has no room, or to `wire`.
    pub fn work<R>(
        &mut self,
        wire: &mut Wire,
        work: impl FnOnce(&mut Ldisc, &mut dyn FnMut(u8)) -> R,
    ) -> R {
        match &mut self.master {
            Some(master) => work(&mut self.ldisc, &mut |b| master.push(b)),
            None => work(&mut self.ldisc, &mut |b| wire.push(b)),
        }
    }

    /// Passes one byte from the wire through the discipline.
    pub fn input(&mut self, b: u8, wire: &mut Wire) -> Option<TtySignal> {
        let was_stopped = self.ldisc.stopped();
        if let Some(master) = &mut self.master
            && let Some((_, true)) = self.ldisc.raises(b)
        {
            master.drop_output();
            master.note(status::FLUSHREAD, 0);
        }
        let raised = self.work(wire, |ldisc, out| ldisc.input(b, out));
        self.note_flow(was_stopped);
        raised
    }

    /// Tells the master if output has been stopped, or goes on.
    fn note_flow(&mut self, was_stopped: bool) {
        let now = self.ldisc.stopped();
        if let Some(master) = &mut self.master
            && now != was_stopped
        {
            match now {
                true => master.note(status::STOP, status::START),
                false => master.note(status::START, status::STOP),
            }
        }
    }

    /// Stops output or lets it go on.
    pub fn set_stopped(&mut self, stopped: bool) {
        let was_stopped = self.ldisc.stopped();
        self.ldisc.set_stopped(stopped);
        self.note_flow(was_stopped);
    }

    /// Drops unread input.
    pub fn drop_input(&mut self) {
        self.ldisc.flush();
        if let Some(master) = &mut self.master {
            master.note(status::FLUSHREAD, 0);
        }
    }

    /// Drops output that nobody has read.
    pub fn drop_output(&mut self) {
        if let Some(master) = &mut self.master {
            master.drop_output();
        }
    }

    /// Replaces the settings.
    pub fn set_termios(&mut self, new: Termios) {
        let (was_stopped, old) = (self.ldisc.stopped(), *self.ldisc.termios());
        match &mut self.master {
            Some(master) => {
                let new = new.of_pseudo();
                master.note_settings(&old, &new);
                self.ldisc.set_termios(new);
            }
            None => self.ldisc.set_termios(new),
        }
        self.note_flow(was_stopped);
    }

    /// Whether a program's byte can be sent now.
    pub fn can_send(&self) -> bool {
        !self.ldisc.stopped() && self.master.as_ref().is_none_or(Master::takes_output)
    }

    /// Whether a pseudo-terminal's master has been closed.
    pub fn is_alone(&self) -> bool {
        self.master.as_ref().is_some_and(|master| !master.open)
    }
}

/// Bytes gathered for one write to the wire.
pub(super) struct Wire {
    bytes: [u8; 128],
    len: usize,
    send: fn(&[u8]),
}

impl Wire {
    /// No bytes yet.
    pub const fn new(send: fn(&[u8])) -> Self {
        Wire {
            bytes: [0; 128],
            len: 0,
            send,
        }
    }

    /// Adds a byte; sends all of them if there is no room.
    pub fn push(&mut self, b: u8) {
        if self.len == self.bytes.len() {
            self.flush();
        }
        self.bytes[self.len] = b;
        self.len += 1;
    }

    /// Sends the bytes.
    pub fn flush(&mut self) {
        (self.send)(&self.bytes[..self.len]);
        self.len = 0;
    }
}
