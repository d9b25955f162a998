//! What accompanies a signal besides its number: siginfo_t.

/// Values of `si_code`.
#[allow(missing_docs, reason = "sigaction(2) explains each")]
pub mod code {
    pub const USER: i32 = 0;
    pub const KERNEL: i32 = 0x80;
    pub const TKILL: i32 = -6;
    pub const TIMER: i32 = -2;
    pub const MESGQ: i32 = -3;
    pub const SIGIO: i32 = -5;
    pub const POLL_IN: i32 = 1;
    pub const POLL_OUT: i32 = 2;
    pub const POLL_MSG: i32 = 3;
    pub const POLL_HUP: i32 = 6;
    pub const SEGV_MAPERR: i32 = 1;
    pub const SEGV_ACCERR: i32 = 2;
    pub const BUS_ADRALN: i32 = 1;
    pub const BUS_ADRERR: i32 = 2;
    pub const FPE_INTDIV: i32 = 1;
    pub const FPE_FLTDIV: i32 = 3;
    pub const FPE_FLTOVF: i32 = 4;
    pub const FPE_FLTUND: i32 = 5;
    pub const FPE_FLTRES: i32 = 6;
    pub const FPE_FLTINV: i32 = 7;
    pub const ILL_ILLOPN: i32 = 2;
    pub const TRAP_TRACE: i32 = 2;
    pub const CLD_EXITED: i32 = 1;
    pub const CLD_KILLED: i32 = 2;
    pub const CLD_STOPPED: i32 = 5;
    pub const CLD_CONTINUED: i32 = 6;
}

/// The part of siginfo_t that depends on the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SigFields {
    /// No fields.
    None,
    /// Sent by a process: its pid and real user id, and a value (sigqueue) or 0.
    Sender {
        /// The sender's pid.
        pid: u32,
        /// The sender's real user id.
        uid: u32,
        /// `si_value`.
        value: u64,
    },
    /// A POSIX timer expired.
    Timer {
        /// The timer.
        id: u32,
        /// Which of its settings.
        setting: u32,
        /// How often it has expired since.
        overrun: u32,
        /// `si_value`.
        value: u64,
    },
    /// A child changed state.
    Child {
        /// The child's pid.
        pid: u32,
        /// The child's real user id.
        uid: u32,
        /// Its exit code, or the signal that ended, stopped or continued it.
        status: i32,
        /// Its user time, in clock ticks.
        utime: u64,
        /// Its system time, in clock ticks.
        stime: u64,
    },
    /// Something has happened to an open file.
    Poll {
        /// Events of poll(2).
        band: u64,
        /// The descriptor by which signals were asked for.
        fd: i32,
    },
    /// An access to memory, or an instruction, that failed.
    Fault {
        /// The address.
        addr: u64,
    },
}

/// A signal with the information about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SigInfo {
    /// The signal's number, 1..=64.
    pub signo: u8,
    /// `si_code`.
    pub code: i32,
    /// The fields that depend on the sender.
    pub fields: SigFields,
}

impl SigInfo {
    /// A signal that the kernel sends.
    pub const fn kernel(signo: u8) -> Self {
        SigInfo {
            signo,
            code: code::KERNEL,
            fields: SigFields::None,
        }
    }

    /// A signal that a process sends.
    pub const fn user(signo: u8, code: i32, pid: u32, uid: u32) -> Self {
        SigInfo {
            signo,
            code,
            fields: SigFields::Sender { pid, uid, value: 0 },
        }
    }

    /// A signal whose information was not kept: as on Linux, process 0 of user 0 sent it.
    pub const fn lost(signo: u8) -> Self {
        SigInfo::user(signo, code::USER, 0, 0)
    }

    /// A signal for a fault at `addr`.
    pub const fn fault(signo: u8, code: i32, addr: u64) -> Self {
        SigInfo {
            signo,
            code,
            fields: SigFields::Fault { addr },
        }
    }

    /// The 128 bytes of Linux's siginfo_t.
    pub fn to_raw(self) -> [u64; 16] {
        let mut raw = [0; 16];
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        raw[0] = u64::from(self.signo);
        raw[1] = u64::from(self.code as u32);
        match self.fields {
            SigFields::None => {}
            SigFields::Sender { pid, uid, value } => {
                raw[2] = pair(pid, uid);
                raw[3] = value;
            }
            SigFields::Timer {
                id, overrun, value, ..
            } => {
                raw[2] = pair(id, overrun);
                raw[3] = value;
            }
            SigFields::Child {
                pid,
                uid,
                status,
                utime,
                stime,
            } => {
                raw[2] = pair(pid, uid);
                raw[3] = u64::from(status as u32);
                raw[4] = utime;
                raw[5] = stime;
            }
            SigFields::Poll { band, fd } => {
                raw[2] = band;
                raw[3] = u64::from(fd as u32);
            }
            SigFields::Fault { addr } => raw[2] = addr,
        }
        raw
    }

    /// The information that a program passes to rt_sigqueueinfo(2): code, sender and value are kept.
    pub fn from_raw(signo: u8, raw: &[u64; 16]) -> Self {
        SigInfo {
            signo,
            code: raw[1] as u32 as i32,
            fields: SigFields::Sender {
                pid: raw[2] as u32,
                uid: (raw[2] >> 32) as u32,
                value: raw[3],
            },
        }
    }
}
