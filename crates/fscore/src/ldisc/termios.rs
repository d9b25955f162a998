//! The settings of a terminal, as termios(3) has them.

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
    /// The other end edits lines. Not supported.
    pub const EXTPROC: u32 = 0o200_000;
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

/// Control flags.
const CS8: u32 = 0o60;
const CREAD: u32 = 0o200;
const PARENB: u32 = 0o400;
const HUPCL: u32 = 0o2000;

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

    /// The settings of a fresh pseudo-terminal: the same, but for a flag that means something on a line with a modem alone.
    pub const fn fresh_pseudo() -> Self {
        let fresh = Self::fresh();
        Termios {
            cflag: fresh.cflag & !HUPCL,
            ..fresh
        }
    }

    /// These settings as a pseudo-terminal takes them: eight bits without parity, whatever was asked for.
    pub const fn of_pseudo(self) -> Self {
        Termios {
            cflag: self.cflag & !PARENB | CS8 | CREAD,
            ..self
        }
    }

    /// Whether STOP and START are the usual characters and stop output: what a master in packet mode is told of.
    pub const fn stops_as_usual(&self) -> bool {
        self.iflag & iflag::IXON != 0 && self.cc[cc::VSTOP] == 0x13 && self.cc[cc::VSTART] == 0x11
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
