//! Signal numbers, and sets of signals.

/// Signal numbers.
#[allow(missing_docs, reason = "signal(7) explains each")]
pub mod sig {
    pub const HUP: u8 = 1;
    pub const INT: u8 = 2;
    pub const QUIT: u8 = 3;
    pub const ILL: u8 = 4;
    pub const TRAP: u8 = 5;
    pub const ABRT: u8 = 6;
    pub const BUS: u8 = 7;
    pub const FPE: u8 = 8;
    pub const KILL: u8 = 9;
    pub const SEGV: u8 = 11;
    pub const PIPE: u8 = 13;
    pub const ALRM: u8 = 14;
    pub const CHLD: u8 = 17;
    pub const CONT: u8 = 18;
    pub const STOP: u8 = 19;
    pub const TSTP: u8 = 20;
    pub const TTIN: u8 = 21;
    pub const TTOU: u8 = 22;
    pub const URG: u8 = 23;
    pub const XCPU: u8 = 24;
    pub const XFSZ: u8 = 25;
    pub const VTALRM: u8 = 26;
    pub const PROF: u8 = 27;
    pub const WINCH: u8 = 28;
    pub const IO: u8 = 29;
    pub const SYS: u8 = 31;
    /// The first real-time signal.
    pub const RTMIN: u8 = 32;
    /// The last signal.
    pub const MAX: u8 = 64;
}

/// A set of signals, bit `n - 1` for signal `n`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SigSet(pub u64);

impl SigSet {
    /// SIGKILL and SIGSTOP, which can be neither blocked, caught nor ignored.
    pub const UNMASKABLE: SigSet = SigSet::of(&[sig::KILL, sig::STOP]);
    /// Signals that stop a process.
    pub const STOPS: SigSet = SigSet::of(&[sig::STOP, sig::TSTP, sig::TTIN, sig::TTOU]);
    /// Signals that an instruction of the thread itself causes; they are taken before others.
    pub const SYNCHRONOUS: SigSet =
        SigSet::of(&[sig::SEGV, sig::BUS, sig::ILL, sig::TRAP, sig::FPE, sig::SYS]);

    /// The set of `signals`.
    pub const fn of(signals: &[u8]) -> SigSet {
        let mut bits = 0;
        let mut i = 0;
        while i < signals.len() {
            bits |= 1 << (signals[i] - 1);
            i += 1;
        }
        SigSet(bits)
    }

    /// The set of one signal.
    pub const fn one(signal: u8) -> SigSet {
        SigSet(1 << (signal - 1))
    }

    /// Whether `signal` is in it.
    pub const fn has(self, signal: u8) -> bool {
        self.0 & 1 << (signal - 1) != 0
    }
}
