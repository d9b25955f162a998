//! The battery-backed clock (CMOS), read once at boot.
use super::port;

fn register(index: u8) -> u8 {
    // SAFETY: selects a CMOS register (NMI stays enabled) and reads it.
    unsafe {
        port::write_u8(0x70, index);
        port::read_u8(0x71)
    }
}

/// Second, minute, hour, day, month and year as the registers have them, and the register that says their format.
fn snapshot() -> [u8; 7] {
    [0x00, 0x02, 0x04, 0x07, 0x08, 0x09, 0x0b].map(register)
}

/// Seconds since 1970-01-01 00:00:00 UTC by the clock, which is assumed to run in UTC.
pub(super) fn read() -> u64 {
    const UPDATING: u8 = 0x80;
    /// Limits the wait if there is no such clock.
    const TRIES: usize = 100_000;
    let mut now = snapshot();
    for _ in 0..TRIES {
        if register(0x0a) & UPDATING != 0 {
            continue;
        }
        let again = snapshot();
        if again == now {
            break;
        }
        now = again;
    }
    decode(now)
}

/// Seconds since 1970 at what [`snapshot`] returns, in binary or BCD, with 24 or 12 hours. The year is one of 2000 to 2099.
fn decode([second, minute, hour, day, month, year, format]: [u8; 7]) -> u64 {
    const BINARY: u8 = 0x04;
    const HOURS_24: u8 = 0x02;
    let number = |value: u8| {
        u64::from(if format & BINARY != 0 {
            value
        } else {
            (value >> 4) * 10 + (value & 0x0f)
        })
    };
    let mut hours = number(hour & 0x7f);
    if format & HOURS_24 == 0 {
        hours = hours % 12 + if hour & 0x80 != 0 { 12 } else { 0 };
    }
    let (year, month, day) = (2000 + number(year), number(month), number(day));
    days_since_1970(year, month, day) * 86_400 + hours * 3600 + number(minute) * 60 + number(second)
}

/// Days from 1970-01-01 to a date of the Gregorian calendar.
fn days_since_1970(year: u64, month: u64, day: u64) -> u64 {
    const BEFORE_MONTH: [u64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
    let leap = |y: u64| y.is_multiple_of(4) && (!y.is_multiple_of(100) || y.is_multiple_of(400));
    let leap_days_before = |y: u64| (y - 1) / 4 - (y - 1) / 100 + (y - 1) / 400;
    let years = (year - 1970) * 365 + leap_days_before(year) - leap_days_before(1970);
    let month = (month.clamp(1, 12) - 1) as usize;
    let this_leap_day = u64::from(month >= 2 && leap(year));
    years + BEFORE_MONTH[month] + this_leap_day + day.max(1) - 1
}
