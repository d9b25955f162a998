//! Terminal line discipline: editing, echo, signal characters and output processing.
//!
//! Guarantee: for every byte sequence and every setting, the bytes that a reader gets, the echo and the signals follow
//! termios(3). The module is a state machine without locks or waiting: bytes go in through [`Ldisc::input`] and
//! [`Ldisc::output`], bytes for the wire come out through a closure, and the caller decides which thread sleeps.

mod termios;

use core::mem;

pub use termios::{Termios, cc, iflag, lflag, oflag};

/// Bytes of input held; a line longer than this keeps only its beginning, as on Linux.
pub const BUFFER: usize = 4096;

/// A signal that an input character raises for the foreground process group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TtySignal {
    /// INTR: SIGINT.
    Interrupt,
    /// QUIT: SIGQUIT.
    Quit,
    /// SUSP: SIGTSTP.
    Stop,
}

/// A line discipline with its input buffer.
///
/// Indices are free-running; a slot is an index modulo [`BUFFER`]. `read <= line <= write`:
/// bytes before `line` are complete lines (or, without line editing, all bytes).
#[derive(Clone, Copy)]
pub struct Ldisc {
    termios: Termios,
    read: u32,
    line: u32,
    write: u32,
    /// Bit per slot: this byte ends a line.
    ends: [u64; BUFFER / 64],
    buf: [u8; BUFFER],
    literal: bool,
    stopped: bool,
    column: u32,
    /// Column where the line being edited starts, for wiping tabs.
    line_column: u32,
}

impl Default for Ldisc {
    fn default() -> Self {
        Self::new()
    }
}

impl Ldisc {
    /// An empty buffer with fresh settings.
    pub const fn new() -> Self {
        Ldisc {
            termios: Termios::fresh(),
            read: 0,
            line: 0,
            write: 0,
            ends: [0; BUFFER / 64],
            buf: [0; BUFFER],
            literal: false,
            stopped: false,
            column: 0,
            line_column: 0,
        }
    }

    /// The current settings.
    pub fn termios(&self) -> &Termios {
        &self.termios
    }

    /// Replaces the settings. Switching line editing on or off makes the buffered bytes readable, with line editing as one
    /// line, whose last byte ends it; a pending LNEXT is dropped. Without IXON, STOP holds output no longer.
    pub fn set_termios(&mut self, new: Termios) {
        let old = mem::replace(&mut self.termios, new);
        if old.canonical() != new.canonical() {
            self.line = self.write;
            if new.canonical() && self.write != self.read {
                self.mark(self.write.wrapping_sub(1), true);
            } else {
                self.ends = [0; BUFFER / 64];
            }
            self.literal = false;
        }
        if new.iflag & iflag::IXON == 0 {
            self.stopped = false;
        }
    }

    /// Whether STOP holds output.
    pub fn stopped(&self) -> bool {
        self.stopped
    }

    /// Holds or releases output (`TCXONC`).
    pub fn set_stopped(&mut self, stopped: bool) {
        self.stopped = stopped;
    }

    /// Bytes that a read could return now.
    pub fn available(&self) -> usize {
        self.line.wrapping_sub(self.read) as usize
    }

    /// Bytes of input that [`available`](Self::available) counts, without the marks of ends of file (FIONREAD).
    pub fn queued(&self) -> usize {
        let marks =
            (0..self.available() as u32).filter(|i| self.is_mark(self.read.wrapping_add(*i)));
        self.available() - marks.count()
    }

    /// Whether poll(2) reports input: a complete line, or without line editing as many bytes as VMIN says, unless VTIME is set.
    pub fn is_readable(&self) -> bool {
        let t = &self.termios;
        let least = match t.cc[cc::VMIN] {
            min @ 1.. if !t.canonical() && t.cc[cc::VTIME] == 0 => usize::from(min),
            _ => 1,
        };
        self.available() >= least
    }

    /// Whether [`input`](Self::input) takes another byte without losing one. A line that is being edited takes all, since its
    /// characters may be erased, and drops what is too much.
    pub fn takes_input(&self) -> bool {
        self.len() + 1 < BUFFER || self.edits_alone()
    }

    /// Whether there is so much room that a writer at the other end is to go on.
    pub fn has_room(&self) -> bool {
        self.len() <= BUFFER * 3 / 4 || self.edits_alone()
    }

    /// Whether there is nothing but a line that is being edited.
    fn edits_alone(&self) -> bool {
        self.termios.canonical() && self.line == self.read
    }

    /// The signal that the byte would raise now, and whether input and output are dropped with it (without NOFLSH).
    pub fn raises(&self, b: u8) -> Option<(TtySignal, bool)> {
        let t = &self.termios;
        let b = self.stripped(b);
        let flow =
            t.iflag & iflag::IXON != 0 && (self.is_cc(cc::VSTOP, b) || self.is_cc(cc::VSTART, b));
        if self.literal || flow || t.lflag & lflag::ISIG == 0 {
            return None;
        }
        let signal = self.signal_char(b)?;
        Some((signal, t.lflag & lflag::NOFLSH == 0))
    }

    /// The byte without its eighth bit, with ISTRIP.
    fn stripped(&self, b: u8) -> u8 {
        if self.termios.iflag & iflag::ISTRIP != 0 {
            b & 0x7f
        } else {
            b
        }
    }

    /// Drops all input.
    pub fn flush(&mut self) {
        self.read = self.write;
        self.line = self.write;
        self.ends = [0; BUFFER / 64];
        self.literal = false;
    }

    fn slot(i: u32) -> usize {
        i as usize % BUFFER
    }

    fn mark(&mut self, i: u32, end: bool) {
        let s = Self::slot(i);
        let bit = 1u64 << (s % 64);
        if end {
            self.ends[s / 64] |= bit;
        } else {
            self.ends[s / 64] &= !bit;
        }
    }

    fn is_end(&self, i: u32) -> bool {
        let s = Self::slot(i);
        self.ends[s / 64] >> (s % 64) & 1 != 0
    }

    fn len(&self) -> usize {
        self.write.wrapping_sub(self.read) as usize
    }

    fn push(&mut self, b: u8, end: bool) {
        self.buf[Self::slot(self.write)] = b;
        self.mark(self.write, end);
        self.write = self.write.wrapping_add(1);
    }

    /// Takes input: in line mode at most one line, else all that fits. Returns the number of bytes, and whether they end a line
    /// in line mode, so that a read returns them without more.
    ///
    /// `None` if there is nothing (the caller waits); 0 bytes are end of file. What does not fit stays. The mark of an end of
    /// file goes with the bytes before it, but one that nothing comes before stays if `out` is empty.
    pub fn take(&mut self, out: &mut [u8]) -> Option<(usize, bool)> {
        if self.available() == 0 {
            return None;
        }
        let (mut n, mut ended) = (0, false);
        while n < out.len() && self.read != self.line {
            let i = self.read;
            let byte = self.buf[Self::slot(i)];
            let end = self.is_end(i);
            self.read = i.wrapping_add(1);
            if end && self.termios.canonical() {
                self.mark(i, false);
                if byte != 0 {
                    out[n] = byte;
                    n += 1;
                }
                ended = true;
                break;
            }
            out[n] = byte;
            n += 1;
        }
        if n > 0 && !ended && self.is_mark(self.read) {
            self.mark(self.read, false);
            self.read = self.read.wrapping_add(1);
            ended = true;
        }
        Some((n, ended))
    }

    /// Whether the next byte to be taken, at `i`, is the mark of an end of file.
    fn is_mark(&self, i: u32) -> bool {
        i != self.line && self.termios.canonical() && self.is_end(i) && self.buf[Self::slot(i)] == 0
    }

    fn is_cc(&self, index: usize, b: u8) -> bool {
        self.termios.cc[index] == b && b != 0
    }

    /// Accepts one byte from the wire. Bytes to send back go to `wire`. Returns the signal that the byte raises; then output
    /// is not held any more and, without NOFLSH, all input is dropped.
    pub fn input(&mut self, b: u8, wire: &mut dyn FnMut(u8)) -> Option<TtySignal> {
        let t = self.termios;
        let mut b = self.stripped(b);
        if mem::take(&mut self.literal) {
            self.accept(b, wire);
            return None;
        }
        if t.iflag & iflag::IXON != 0 {
            if self.is_cc(cc::VSTOP, b) {
                self.stopped = true;
                return None;
            }
            if self.is_cc(cc::VSTART, b) {
                self.stopped = false;
                return None;
            }
            if t.iflag & iflag::IXANY != 0 {
                self.stopped = false;
            }
        }
        if let Some((signal, flushes)) = self.raises(b) {
            if flushes {
                self.flush();
            }
            self.stopped = false;
            self.echo(b, wire);
            return Some(signal);
        }
        match b {
            b'\r' if t.iflag & iflag::IGNCR != 0 => return None,
            b'\r' if t.iflag & iflag::ICRNL != 0 => b = b'\n',
            b'\n' if t.iflag & iflag::INLCR != 0 => b = b'\r',
            _ => {}
        }
        if t.canonical() {
            self.canonical(b, wire);
        } else {
            self.accept(b, wire);
            self.line = self.write;
        }
        None
    }

    fn signal_char(&self, b: u8) -> Option<TtySignal> {
        if self.is_cc(cc::VINTR, b) {
            Some(TtySignal::Interrupt)
        } else if self.is_cc(cc::VQUIT, b) {
            Some(TtySignal::Quit)
        } else if self.is_cc(cc::VSUSP, b) {
            Some(TtySignal::Stop)
        } else {
            None
        }
    }

    /// Line editing of one byte.
    fn canonical(&mut self, b: u8, wire: &mut dyn FnMut(u8)) {
        let extended = self.termios.lflag & lflag::IEXTEN != 0;
        if self.is_cc(cc::VERASE, b) {
            self.erase(wire);
        } else if extended && self.is_cc(cc::VWERASE, b) {
            self.erase_word(wire);
        } else if self.is_cc(cc::VKILL, b) {
            self.kill(b, wire);
        } else if extended && self.is_cc(cc::VREPRINT, b) {
            self.reprint(b, wire);
        } else if extended && self.is_cc(cc::VLNEXT, b) {
            self.literal = true;
            if self.echoes() && self.termios.lflag & lflag::ECHOCTL != 0 {
                self.put(b'^', wire);
                wire(8);
                self.column = self.column.saturating_sub(1);
            }
        } else if self.is_cc(cc::VEOF, b) {
            self.end_line(0);
        } else if b == b'\n' || self.is_cc(cc::VEOL, b) || (extended && self.is_cc(cc::VEOL2, b)) {
            if b == b'\n' && self.termios.lflag & (lflag::ECHO | lflag::ECHONL) != 0 {
                self.put(b'\n', wire);
            } else {
                self.echo(b, wire);
            }
            self.end_line(b);
        } else {
            self.accept(b, wire);
        }
    }

    /// Ends the line with `b`, and makes it readable. 0 is the mark of an end of file, which `take` does not pass on.
    fn end_line(&mut self, b: u8) {
        // `accept` stops one short of full, and leaves a slot for this byte. If that is in use, the byte is dropped.
        if self.len() < BUFFER {
            self.push(b, true);
            self.line = self.write;
        }
    }

    /// Stores an ordinary byte and echoes it; drops it if only the slot for the end of a line is left.
    fn accept(&mut self, b: u8, wire: &mut dyn FnMut(u8)) {
        if self.len() + 1 >= BUFFER {
            if self.termios.iflag & iflag::IMAXBEL != 0 {
                wire(7);
            }
            return;
        }
        if self.write == self.line {
            self.line_column = self.column;
        }
        self.push(b, false);
        if !self.termios.canonical() {
            self.line = self.write;
        }
        self.echo(b, wire);
    }

    fn echoes(&self) -> bool {
        self.termios.lflag & lflag::ECHO != 0
    }

    fn echo(&mut self, b: u8, wire: &mut dyn FnMut(u8)) {
        if !self.echoes() {
            return;
        }
        if self.shown_as_pair(b) {
            self.put(b'^', wire);
            self.put(b ^ 0x40, wire);
        } else {
            self.put(b, wire);
        }
    }

    fn shown_as_pair(&self, b: u8) -> bool {
        self.termios.lflag & lflag::ECHOCTL != 0
            && (b < 0x20 || b == 0x7f)
            && b != b'\t'
            && b != b'\n'
    }

    fn pop(&mut self) -> Option<u8> {
        if self.write == self.line {
            return None;
        }
        self.write = self.write.wrapping_sub(1);
        Some(self.buf[Self::slot(self.write)])
    }

    /// Takes the last character off the line being edited; returns its first byte.
    fn pop_char(&mut self) -> Option<u8> {
        let utf8 = self.termios.iflag & iflag::IUTF8 != 0;
        while let Some(b) = self.pop() {
            if !utf8 || b & 0xc0 != 0x80 {
                return Some(b);
            }
        }
        None
    }

    /// Removes the last character of the line being edited, and wipes it from the screen.
    fn rub_out(&mut self, wire: &mut dyn FnMut(u8)) {
        if let Some(b) = self.pop_char() {
            self.wipe(b, wire);
        }
    }

    /// As [`rub_out`](Self::rub_out), for ERASE itself: without ECHOE, shows that character instead of wiping.
    fn erase(&mut self, wire: &mut dyn FnMut(u8)) {
        if self.termios.lflag & lflag::ECHOE != 0 {
            self.rub_out(wire);
        } else if self.pop_char().is_some() {
            self.echo(self.termios.cc[cc::VERASE], wire);
        }
    }

    fn erase_word(&mut self, wire: &mut dyn FnMut(u8)) {
        let mut seen = false;
        while self.write != self.line {
            let last = self.buf[Self::slot(self.write.wrapping_sub(1))];
            let word = last.is_ascii_alphanumeric() || last == b'_' || last >= 0x80;
            if seen && !word {
                break;
            }
            seen |= word;
            self.rub_out(wire);
        }
    }

    /// Removes the line being edited, if there is any of it. It is wiped from the screen only with ECHOKE, ECHOK and ECHOE, as
    /// in Linux.
    fn kill(&mut self, b: u8, wire: &mut dyn FnMut(u8)) {
        const WIPES: u32 = lflag::ECHOKE | lflag::ECHOK | lflag::ECHOE;
        let l = self.termios.lflag;
        if self.write == self.line {
            return;
        }
        if l & WIPES == WIPES {
            while self.write != self.line {
                self.rub_out(wire);
            }
            return;
        }
        self.write = self.line;
        self.echo(b, wire);
        if self.echoes() && l & lflag::ECHOK != 0 {
            self.put(b'\n', wire);
        }
    }

    fn reprint(&mut self, b: u8, wire: &mut dyn FnMut(u8)) {
        self.echo(b, wire);
        self.put(b'\n', wire);
        let mut i = self.line;
        while i != self.write {
            let byte = self.buf[Self::slot(i)];
            self.echo(byte, wire);
            i = i.wrapping_add(1);
        }
    }

    /// Removes an erased character, whose first byte is `b`, from the screen: a tab back to the column where the line ends
    /// now.
    fn wipe(&mut self, b: u8, wire: &mut dyn FnMut(u8)) {
        if !self.echoes() {
            return;
        }
        let width = if b == b'\t' {
            // Of what was printed behind it nothing is wiped, as in Linux.
            8 - self.line_end_column() % 8
        } else if self.shown_as_pair(b) {
            2
        } else {
            u32::from(b >= 0x20)
        };
        for _ in 0..width {
            if b != b'\t' {
                wire(8);
                wire(b' ');
            }
            wire(8);
            self.column = self.column.saturating_sub(1);
        }
    }

    /// The column that the line being edited reaches.
    fn line_end_column(&self) -> u32 {
        let mut col = self.line_column;
        let mut i = self.line;
        while i != self.write {
            let b = self.buf[Self::slot(i)];
            let width = match b {
                b'\t' => 8 - col % 8,
                _ if self.shown_as_pair(b) => 2,
                _ => u32::from(b >= 0x20 && b & 0xc0 != 0x80),
            };
            col = col.wrapping_add(width);
            i = i.wrapping_add(1);
        }
        col
    }

    /// Processes bytes that a program writes.
    pub fn output(&mut self, bytes: &[u8], wire: &mut dyn FnMut(u8)) {
        for &b in bytes {
            self.put(b, wire);
        }
    }

    /// Sends one byte through output processing.
    fn put(&mut self, b: u8, wire: &mut dyn FnMut(u8)) {
        let o = self.termios.oflag;
        if o & oflag::OPOST == 0 {
            wire(b);
            return;
        }
        match b {
            b'\n' => {
                if o & oflag::ONLCR != 0 {
                    wire(b'\r');
                }
                if o & (oflag::ONLCR | oflag::ONLRET) != 0 {
                    self.column = 0;
                }
                wire(b'\n');
            }
            b'\r' if o & oflag::ONOCR != 0 && self.column == 0 => {}
            b'\r' if o & oflag::OCRNL != 0 => {
                if o & oflag::ONLRET != 0 {
                    self.column = 0;
                }
                wire(b'\n');
            }
            b'\r' => {
                self.column = 0;
                wire(b'\r');
            }
            b'\t' => {
                let width = 8 - self.column % 8;
                self.column = self.column.wrapping_add(width);
                if o & oflag::XTABS == oflag::XTABS {
                    for _ in 0..width {
                        wire(b' ');
                    }
                } else {
                    wire(b'\t');
                }
            }
            8 => {
                self.column = self.column.saturating_sub(1);
                wire(8);
            }
            _ => {
                if b >= 0x20 && b & 0xc0 != 0x80 {
                    self.column = self.column.wrapping_add(1);
                }
                wire(b);
            }
        }
    }
}

#[cfg(test)]
mod tests;
