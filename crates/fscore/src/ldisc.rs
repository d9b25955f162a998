//! Terminal line discipline: editing, echo, signal characters and output processing.
//!
//! Guarantee: for every byte sequence and every setting, the bytes that a reader gets, the echo and the signals follow
//! termios(3). The module is a state machine without locks or waiting: bytes go in through [`Ldisc::input`] and
//! [`Ldisc::output`], bytes for the wire come out through a closure, and the caller decides which thread sleeps.

use core::mem;

/// Bytes of input held; a line longer than this keeps only its beginning, as on Linux.
pub const BUFFER: usize = 4096;

/// Input flags.
pub mod iflag {
    /// Strip the eighth bit.
    pub const ISTRIP: u32 = 0o40;
    /// Map NL to CR on input.
    pub const INLCR: u32 = 0o100;
    /// Ignore CR.
    pub const IGNCR: u32 = 0o200;
    /// Map CR to NL on input.
    pub const ICRNL: u32 = 0o400;
    /// Output flow control by START and STOP.
    pub const IXON: u32 = 0o2000;
    /// Any character restarts output.
    pub const IXANY: u32 = 0o4000;
    /// Ring the bell when the buffer is full.
    pub const IMAXBEL: u32 = 0o20000;
    /// Input is UTF-8: erase removes whole characters.
    pub const IUTF8: u32 = 0o40000;
}

/// Output flags.
pub mod oflag {
    /// Process output at all.
    pub const OPOST: u32 = 0o1;
    /// Map NL to CR NL.
    pub const ONLCR: u32 = 0o4;
    /// Map CR to NL.
    pub const OCRNL: u32 = 0o10;
    /// No CR at column 0.
    pub const ONOCR: u32 = 0o20;
    /// NL also returns the carriage.
    pub const ONLRET: u32 = 0o40;
    /// Expand tabs to spaces (all bits of the tab-delay field set).
    pub const XTABS: u32 = 0o14000;
}

/// Local flags.
pub mod lflag {
    /// INTR, QUIT and SUSP raise signals.
    pub const ISIG: u32 = 0o1;
    /// Line editing.
    pub const ICANON: u32 = 0o2;
    /// Echo input.
    pub const ECHO: u32 = 0o10;
    /// ERASE wipes the character from the screen.
    pub const ECHOE: u32 = 0o20;
    /// KILL is followed by a new line.
    pub const ECHOK: u32 = 0o40;
    /// Echo NL even without ECHO.
    pub const ECHONL: u32 = 0o100;
    /// Signals do not flush.
    pub const NOFLSH: u32 = 0o200;
    /// Background writers are stopped.
    pub const TOSTOP: u32 = 0o400;
    /// Echo control characters as ^X.
    pub const ECHOCTL: u32 = 0o1000;
    /// KILL wipes the line from the screen.
    pub const ECHOKE: u32 = 0o4000;
    /// WERASE, REPRINT and LNEXT work.
    pub const IEXTEN: u32 = 0o100_000;
}

/// Indices of the control characters.
pub mod cc {
    #![expect(missing_docs, reason = "the names are those of termios(3)")]
    pub const VINTR: usize = 0;
    pub const VQUIT: usize = 1;
    pub const VERASE: usize = 2;
    pub const VKILL: usize = 3;
    pub const VEOF: usize = 4;
    pub const VTIME: usize = 5;
    pub const VMIN: usize = 6;
    pub const VSTART: usize = 8;
    pub const VSTOP: usize = 9;
    pub const VSUSP: usize = 10;
    pub const VEOL: usize = 11;
    pub const VREPRINT: usize = 12;
    pub const VWERASE: usize = 14;
    pub const VLNEXT: usize = 15;
    pub const VEOL2: usize = 16;
}

/// The kernel's termios structure, field by field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Termios {
    /// Input modes.
    pub iflag: u32,
    /// Output modes.
    pub oflag: u32,
    /// Control modes (speed and framing; kept, not interpreted).
    pub cflag: u32,
    /// Local modes.
    pub lflag: u32,
    /// Line discipline number.
    pub line: u8,
    /// Control characters; 0 means that a function is off.
    pub cc: [u8; 19],
}

impl Termios {
    /// Bytes of the structure in memory.
    pub const SIZE: usize = 36;

    /// The settings of a fresh terminal: canonical, echoing, 38400 baud, 8 bits.
    pub const fn fresh() -> Self {
        let mut cc = [0; 19];
        cc[cc::VINTR] = 3;
        cc[cc::VQUIT] = 0x1c;
        cc[cc::VERASE] = 0x7f;
        cc[cc::VKILL] = 0x15;
        cc[cc::VEOF] = 4;
        cc[cc::VMIN] = 1;
        cc[cc::VSTART] = 0x11;
        cc[cc::VSTOP] = 0x13;
        cc[cc::VSUSP] = 0x1a;
        cc[cc::VREPRINT] = 0x12;
        cc[cc::VWERASE] = 0x17;
        cc[cc::VLNEXT] = 0x16;
        cc[13] = 0x0f; // VDISCARD: reported, without effect
        Termios {
            iflag: iflag::ICRNL | iflag::IXON,
            oflag: oflag::OPOST | oflag::ONLCR,
            cflag: 0o17 | 0o60 | 0o200 | 0o2000, // B38400 CS8 CREAD HUPCL
            lflag: lflag::ISIG
                | lflag::ICANON
                | lflag::ECHO
                | lflag::ECHOE
                | lflag::ECHOK
                | lflag::ECHOCTL
                | lflag::ECHOKE
                | lflag::IEXTEN,
            line: 0,
            cc,
        }
    }

    /// The structure as it is laid out in user memory.
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        let mut b = [0; Self::SIZE];
        for (i, v) in [self.iflag, self.oflag, self.cflag, self.lflag]
            .into_iter()
            .enumerate()
        {
            b[4 * i..4 * i + 4].copy_from_slice(&v.to_le_bytes());
        }
        b[16] = self.line;
        b[17..36].copy_from_slice(&self.cc);
        b
    }

    /// Reads the structure from its layout in user memory.
    pub fn from_bytes(b: &[u8; Self::SIZE]) -> Self {
        let word = |i: usize| u32::from_le_bytes([b[i], b[i + 1], b[i + 2], b[i + 3]]);
        let mut cc = [0; 19];
        cc.copy_from_slice(&b[17..36]);
        Termios {
            iflag: word(0),
            oflag: word(4),
            cflag: word(8),
            lflag: word(12),
            line: b[16],
            cc,
        }
    }

    /// Whether line editing is on.
    pub fn canonical(&self) -> bool {
        self.lflag & lflag::ICANON != 0
    }
}

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

    /// Takes input: in line mode at most one line, else all that fits.
    ///
    /// `None` if there is nothing (the caller waits); `Some(0)` is end of file. What does not fit stays, also such an end.
    pub fn take(&mut self, out: &mut [u8]) -> Option<usize> {
        if self.available() == 0 {
            return None;
        }
        let mut n = 0;
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
                break;
            }
            out[n] = byte;
            n += 1;
        }
        Some(n)
    }

    fn is_cc(&self, index: usize, b: u8) -> bool {
        self.termios.cc[index] == b && b != 0
    }

    /// Accepts one byte from the wire. Bytes to send back go to `wire`. Returns the signal that the byte raises; then output
    /// is not held any more and, without NOFLSH, all input is dropped.
    pub fn input(&mut self, b: u8, wire: &mut dyn FnMut(u8)) -> Option<TtySignal> {
        let t = self.termios;
        let mut b = if t.iflag & iflag::ISTRIP != 0 {
            b & 0x7f
        } else {
            b
        };
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
        if t.lflag & lflag::ISIG != 0
            && let Some(signal) = self.signal_char(b)
        {
            if t.lflag & lflag::NOFLSH == 0 {
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

    /// Removes the last character of the line being edited.
    fn erase(&mut self, wire: &mut dyn FnMut(u8)) {
        let utf8 = self.termios.iflag & iflag::IUTF8 != 0;
        while let Some(b) = self.pop() {
            if utf8 && b & 0xc0 == 0x80 {
                continue;
            }
            self.wipe(b, wire);
            break;
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
            self.erase(wire);
        }
    }

    fn kill(&mut self, b: u8, wire: &mut dyn FnMut(u8)) {
        let l = self.termios.lflag;
        if self.echoes() && l & lflag::ECHOKE != 0 && l & lflag::ECHOE != 0 {
            while self.write != self.line {
                self.erase(wire);
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
    /// now. Without ECHOE, shows the ERASE character instead.
    fn wipe(&mut self, b: u8, wire: &mut dyn FnMut(u8)) {
        if !self.echoes() {
            return;
        }
        if self.termios.lflag & lflag::ECHOE == 0 {
            let shown = self.termios.cc[cc::VERASE];
            self.echo(shown, wire);
            return;
        }
        let width = if b == b'\t' {
            self.column.saturating_sub(self.line_end_column())
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
            col += match b {
                b'\t' => 8 - col % 8,
                _ if self.shown_as_pair(b) => 2,
                _ => u32::from(b >= 0x20 && b & 0xc0 != 0x80),
            };
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
                self.column += width;
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
                    self.column += 1;
                }
                wire(b);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct T {
        l: Ldisc,
        wire: Vec<u8>,
        signals: Vec<TtySignal>,
    }

    impl T {
        fn new() -> Self {
            T {
                l: Ldisc::new(),
                wire: Vec::new(),
                signals: Vec::new(),
            }
        }
        fn with(edit: impl FnOnce(&mut Termios)) -> Self {
            let mut t = T::new();
            let mut s = *t.l.termios();
            edit(&mut s);
            t.l.set_termios(s);
            t
        }
        fn type_in(&mut self, bytes: &[u8]) {
            for &b in bytes {
                let wire = &mut self.wire;
                self.signals.extend(self.l.input(b, &mut |b| wire.push(b)));
            }
        }
        fn line(&mut self) -> Option<Vec<u8>> {
            let mut b = [0; BUFFER];
            self.l.take(&mut b).map(|n| b[..n].to_vec())
        }
    }

    #[test]
    fn a_line_is_readable_only_when_complete() {
        let mut t = T::new();
        t.type_in(b"ab");
        assert_eq!(t.line(), None);
        t.type_in(b"c\rnext");
        assert_eq!(t.line().unwrap(), b"abc\n");
        assert_eq!(t.line(), None);
        assert_eq!(t.wire, b"abc\r\nnext");
    }

    #[test]
    fn short_reads_continue_the_line() {
        let mut t = T::new();
        t.type_in(b"abcd\n");
        let mut b = [0; 3];
        assert_eq!(t.l.take(&mut b), Some(3));
        assert_eq!(t.line().unwrap(), b"d\n");
    }

    #[test]
    fn erase_word_kill() {
        let mut t = T::new();
        t.type_in(b"abx\x7fc foo bar\x17\x17z\n");
        assert_eq!(t.line().unwrap(), b"abc z\n");
        t.type_in(b"rubbish\x15good\n");
        assert_eq!(t.line().unwrap(), b"good\n");
        let mut t = T::new();
        t.type_in(b"a\x7f\x7f");
        assert_eq!(t.wire, b"a\x08 \x08");
    }

    #[test]
    fn utf8_erase_removes_a_character() {
        let mut t = T::with(|s| s.iflag |= iflag::IUTF8);
        t.type_in("aé\x7fb\n".as_bytes());
        assert_eq!(t.line().unwrap(), b"ab\n");
    }

    #[test]
    fn erased_tab_goes_back_to_its_start() {
        let mut t = T::new();
        t.type_in(b"ab\t");
        t.wire.clear();
        t.type_in(b"\x7f");
        assert_eq!(t.wire, [8; 6]);
    }

    #[test]
    fn end_of_file() {
        let mut t = T::new();
        t.type_in(b"\x04");
        assert_eq!(t.line().unwrap(), b"");
        t.type_in(b"part\x04");
        assert_eq!(t.line().unwrap(), b"part");
        assert_eq!(t.line(), None);
    }

    #[test]
    fn signals_flush_and_echo() {
        let mut t = T::new();
        t.type_in(b"junk\x03ok\n");
        assert_eq!(t.signals, [TtySignal::Interrupt]);
        assert_eq!(t.line().unwrap(), b"ok\n");
        assert_eq!(t.wire, b"junk^Cok\r\n");
        let mut t = T::with(|s| s.lflag &= !lflag::ISIG);
        t.type_in(b"\x03\n");
        assert!(t.signals.is_empty());
        assert_eq!(t.line().unwrap(), b"\x03\n");
    }

    #[test]
    fn literal_next() {
        let mut t = T::new();
        t.type_in(b"a\x16\x03b\n");
        assert!(t.signals.is_empty());
        assert_eq!(t.line().unwrap(), b"a\x03b\n");
    }

    #[test]
    fn raw_mode_passes_everything() {
        let mut t = T::with(|s| {
            s.lflag = 0;
            s.iflag = 0;
        });
        t.type_in(b"\x03\r\x7f");
        assert_eq!(t.line().unwrap(), b"\x03\r\x7f");
        assert!(t.wire.is_empty());
    }

    #[test]
    fn leaving_line_mode_releases_the_partial_line() {
        let mut t = T::new();
        t.type_in(b"abc");
        let mut s = *t.l.termios();
        s.lflag &= !lflag::ICANON;
        t.l.set_termios(s);
        assert_eq!(t.line().unwrap(), b"abc");
    }

    #[test]
    fn overlong_line_keeps_room_for_its_end() {
        let mut t = T::new();
        t.type_in(&vec![b'x'; 2 * BUFFER]);
        t.type_in(b"\n");
        let line = t.line().unwrap();
        assert_eq!(line.len(), BUFFER);
        assert_eq!(line[BUFFER - 1], b'\n');
    }

    #[test]
    fn flow_control() {
        let mut t = T::new();
        t.type_in(b"\x13");
        assert!(t.l.stopped());
        t.type_in(b"\x11");
        assert!(!t.l.stopped());
        assert_eq!(t.line(), None);
    }

    #[test]
    fn output_processing() {
        let mut t = T::with(|s| s.oflag |= oflag::XTABS);
        let wire = &mut t.wire;
        t.l.output(b"a\tb\n", &mut |b| wire.push(b));
        assert_eq!(t.wire, b"a       b\r\n");
    }

    #[test]
    fn termios_bytes_round_trip() {
        let t = Termios::fresh();
        assert_eq!(Termios::from_bytes(&t.to_bytes()), t);
    }
}
