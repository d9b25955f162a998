//! The state of a pseudo-terminal's master, which is part of the terminal's line and guarded by its lock.

use fscore::byte_ring::ByteRing;
use fscore::ldisc::Termios;
use vfs::error::{FsError, Result};

use super::pts::Number;

/// Bytes of programs that may wait for the master.
const OUTPUT: usize = 8192;
/// Room beyond that, for echoes. What has no room is dropped.
const ECHO: usize = 4096;
/// Most bytes that one byte of a program becomes: a tab.
const WIDEST: usize = 8;
/// Bytes that stay when output is dropped: as in Linux, those that the master's read buffer has already.
const KEPT: usize = 4095;

/// What a read in packet mode tells by its first byte, as in tty_ioctl(2).
pub(super) mod status {
    pub const FLUSHREAD: u8 = 1;
    pub const FLUSHWRITE: u8 = 2;
    pub const STOP: u8 = 4;
    pub const START: u8 = 8;
    pub const NOSTOP: u8 = 16;
    pub const DOSTOP: u8 = 32;
}

/// See the module.
pub(super) struct Master {
    /// What the terminal has sent.
    queue: ByteRing,
    /// Whether the master is open.
    pub open: bool,
    /// Open files of the terminal.
    slaves: u32,
    /// The last of them has been closed, and none was opened since.
    pub left: bool,
    /// Whether the terminal may not be opened (TIOCSPTLCK).
    pub locked: bool,
    /// Whether reads tell of changes of state (TIOCPKT).
    pub packet: bool,
    /// The changes since the last read.
    status: u8,
    /// Whether writes of the master wait (TCXONC).
    pub held: bool,
    /// TIOCEXCL. A master is never opened again, so it has no effect.
    pub exclusive: bool,
    /// The number, until master and terminal are closed.
    number: Option<Number>,
}

impl Master {
    /// Bytes of memory besides its own.
    pub const BYTES: usize = OUTPUT + ECHO;

    /// An open master, whose terminal is locked.
    ///
    /// # Errors
    /// `NoMemory`.
    pub fn new(number: Number) -> Result<Master> {
        Ok(Master {
            queue: ByteRing::new(Self::BYTES).ok_or(FsError::NoMemory)?,
            open: true,
            slaves: 0,
            left: false,
            locked: true,
            packet: false,
            status: 0,
            held: false,
            exclusive: false,
            number: Some(number),
        })
    }

    /// Counts an open file of the terminal.
    ///
    /// # Errors
    /// I/O: the master is closed, or the terminal is locked.
    pub fn open_slave(&mut self) -> Result<()> {
        if !self.open || self.locked {
            return Err(FsError::Io);
        }
        self.slaves += 1;
        self.left = false;
        Ok(())
    }

    /// Counts a close of such a file; returns the number of the terminal if nothing is open any more. The caller drops it without the lock.
    pub fn close_slave(&mut self) -> Option<Number> {
        self.slaves -= 1;
        self.left |= self.slaves == 0;
        self.end()
    }

    /// Closes the master; returns as [`close_slave`](Self::close_slave).
    pub fn close(&mut self) -> Option<Number> {
        self.open = false;
        self.end()
    }

    fn end(&mut self) -> Option<Number> {
        match (self.open, self.slaves) {
            (false, 0) => self.number.take(),
            _ => None,
        }
    }

    /// Adds a byte, or drops it if there is no room.
    pub fn push(&mut self, byte: u8) {
        self.queue.push(byte);
    }

    /// Bytes that can be read.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Takes bytes; returns their number, and whether there is room for writers that waited.
    pub fn take(&mut self, out: &mut [u8]) -> (usize, bool) {
        let had_room = self.has_room();
        let n = self.queue.take(out);
        (n, !had_room && self.has_room())
    }

    /// Whether a byte of a program can be sent.
    pub fn takes_output(&self) -> bool {
        self.queue.len() + WIDEST <= OUTPUT
    }

    /// Whether there is so much room that writers are to go on.
    pub fn has_room(&self) -> bool {
        self.queue.len() <= OUTPUT * 3 / 4
    }

    /// Drops output that nobody has read, but what a master of Linux would have in its read buffer.
    pub fn drop_output(&mut self) {
        self.queue.truncate(KEPT);
        self.note(status::FLUSHWRITE, 0);
    }

    /// Drops all output.
    pub fn drop_all(&mut self) {
        self.queue.truncate(0);
    }

    /// Notes changes for a read in packet mode: those of `set`, and not any more those of `clear`.
    pub fn note(&mut self, set: u8, clear: u8) {
        if self.packet {
            self.status = self.status & !clear | set;
        }
    }

    /// Notes whether STOP and START still stop output.
    pub fn note_settings(&mut self, old: &Termios, new: &Termios) {
        match (old.stops_as_usual(), new.stops_as_usual()) {
            (false, true) => self.note(status::DOSTOP, status::NOSTOP),
            (true, false) => self.note(status::NOSTOP, status::DOSTOP),
            _ => {}
        }
    }

    /// Turns packet mode on or off.
    pub fn set_packet(&mut self, on: bool) {
        if on && !self.packet {
            self.status = 0;
        }
        self.packet = on;
    }

    /// Whether a read in packet mode would tell of a change.
    pub fn has_status(&self) -> bool {
        self.packet && self.status != 0
    }

    /// Takes the changes.
    pub fn take_status(&mut self) -> u8 {
        core::mem::take(&mut self.status)
    }
}
