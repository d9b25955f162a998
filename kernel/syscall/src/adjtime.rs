//! adjtimex(2) and clock_adjtime(2): reading how the clock is kept. Nothing keeps it in step with another one, so its rate cannot be
//! adjusted.

use abi::raw::general as nr;
use cred::Cap;
use hal::uaccess::UserPtr;
use task::current::current;
use task::time::{self, SECOND};

use super::credentials::require;
use super::errno::Errno;
use super::time::{clock_now, timeval};
use crate::call::{Args, Handler};

/// The calls of this file.
pub const HANDLERS: &[(u32, Handler)] = &[
    (nr::__NR_adjtimex, |a| adjust(a.get(0))),
    (nr::__NR_clock_adjtime, clock_adjtime),
];

/// Words of `struct timex`.
const WORDS: usize = 26;

mod word {
    pub const MODES: usize = 0;
    pub const OFFSET: usize = 1;
    pub const MAX_ERROR: usize = 3;
    pub const EST_ERROR: usize = 4;
    pub const STATUS: usize = 5;
    pub const CONSTANT: usize = 6;
    pub const PRECISION: usize = 7;
    pub const TOLERANCE: usize = 8;
    pub const SECONDS: usize = 9;
    pub const TICK: usize = 11;
}

/// ADJ_OFFSET_SS_READ, which changes nothing; ADJ_OFFSET_SINGLESHOT, by which adjtime(3) replaces what is left of an earlier
/// adjustment, and which without an offset changes nothing here; and ADJ_NANO and ADJ_MICRO, the units that what is read has.
const READ: u32 = 0xa001;
const SINGLE_SHOT: u32 = 0x8001;
const NANO: u32 = 0x2000;
const MICRO: u32 = 0x1000;

/// The status: not synchronised; and which unit is in use.
const UNSYNC: u64 = 0x40;
/// What the calls return for such a clock: TIME_ERROR.
const ERROR: u64 = 5;

fn clock_adjtime(a: &mut Args) -> Result<u64, Errno> {
    match a.uint(0) {
        nr::CLOCK_REALTIME => adjust(a.get(1)),
        clock => {
            clock_now(clock)?;
            Err(Errno::EOPNOTSUPP)
        }
    }
}

/// Fills in a `struct timex`, as Linux does where nothing has synchronised its clock. As on Linux, the words that mean nothing here are
/// zero.
///
/// # Errors
/// EFAULT; EPERM for an adjustment by a caller without CAP_SYS_TIME; EINVAL for one by another.
fn adjust(at: u64) -> Result<u64, Errno> {
    /// 16 seconds in microseconds: the error of a clock about which nothing is known.
    const UNKNOWN: u64 = 16_000_000;
    /// 500 parts in a million, with 16 bits of fraction.
    const TOLERANCE: u64 = 500 << 16;
    /// Microseconds of a tick of a hundredth of a second.
    const TICK: u64 = 10_000;
    let at = UserPtr::<[u64; WORDS]>::new(at);
    let given = at.read()?;
    let modes = given[word::MODES] as u32;
    if modes != 0 && modes != READ {
        require(&current().cred(), Cap::SysTime)?;
        let nothing = modes == SINGLE_SHOT && given[word::OFFSET] == 0;
        if !nothing && modes & !(NANO | MICRO) != 0 {
            return Err(Errno::EINVAL);
        }
    }
    let mut w = [0u64; WORDS];
    w[word::MODES] = modes.into();
    w[word::MAX_ERROR] = UNKNOWN;
    w[word::EST_ERROR] = UNKNOWN;
    w[word::STATUS] = UNSYNC;
    w[word::CONSTANT] = 2;
    w[word::PRECISION] = 1;
    w[word::TOLERANCE] = TOLERANCE;
    let [seconds, micros] = timeval(time::realtime_ns());
    w[word::SECONDS] = seconds as u64;
    w[word::SECONDS + 1] = micros as u64;
    w[word::TICK] = TICK;
    debug_assert!(micros < SECOND as i64 / 1000, "microseconds");
    at.write(&w)?;
    Ok(ERROR)
}
