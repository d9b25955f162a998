//! Pipes, eventfds, sockets, poll, and futexes.

use super::{Call, files};
use crate::actor::{Act, say};
use crate::board::{WORDS, board};
use std::sync::atomic::Ordering;
use user::sys;

/// See [`super::FAMILIES`].
pub const CALLS: &[Call] = &[
    (9, pipe),
    (5, counter),
    (14, write),
    (14, read),
    (3, large_write),
    (6, close),
    (8, poll),
    (3, select),
    (3, available),
    (4, nonblocking),
    (10, futex_wait),
    (8, futex_wake),
    (5, futex_requeue),
    (5, futex_store),
];

fn two(act: &mut Act, nr: i64, args: &[u64], fds: &mut [i32; 2]) {
    if act.call(nr, args).is_ok() {
        let fds = std::hint::black_box(*fds);
        say!(act, " {} {}", fds[0], fds[1]);
        for fd in fds {
            files::keep(act, Ok(fd as u64));
        }
    }
}

/// Makes a pipe.
pub fn pipe(act: &mut Act) {
    let flags = act
        .dice
        .bits(&[(libc::O_NONBLOCK, 40), (libc::O_CLOEXEC, 20)]);
    let mut fds = [0i32; 2];
    say!(act, "pipe2({flags:#o})");
    let args = [fds.as_mut_ptr() as u64, flags as u64];
    two(act, libc::SYS_pipe2, &args, &mut fds);
}

fn counter(act: &mut Act) {
    let first = act.dice.of_these(&[0u64, 0, 1, 5, 0xffff_ffff]);
    let flags = act.dice.bits(&[
        (libc::EFD_NONBLOCK, 60),
        (libc::EFD_SEMAPHORE, 40),
        (libc::EFD_CLOEXEC, 20),
        (2, 3),
    ]);
    say!(act, "eventfd2({first}, {flags:#o})");
    let result = act.call(libc::SYS_eventfd2, &[first, flags as u64]);
    files::keep(act, result);
}

/// A stream to read from or write to: if no other actor could wake this one, a stream on which the call would not
/// block.
fn ready(act: &mut Act, events: u64) -> Option<i32> {
    let fd = files::stream(act);
    let flags = sys::call(libc::SYS_fcntl, &[fd as u64, libc::F_GETFL as u64]).unwrap_or(0);
    let mut entry = u64::from(fd as u32) | events << 32;
    let sleeps = flags & libc::O_NONBLOCK as u64 == 0
        && sys::call(libc::SYS_poll, &[&raw mut entry as u64, 1, 0]) == Ok(0);
    if sleeps && act.is_alone() {
        None
    } else {
        Some(fd)
    }
}

fn write(act: &mut Act) {
    let Some(fd) = ready(act, 4) else {
        return nonblocking(act);
    };
    let bytes = files::pattern(act);
    let len = act.dice.of_these(&[8u64, 8, 8, 1, 100, 4096, 5000, 0]);
    say!(act, "write({fd}, {len})");
    let _ = act.call(libc::SYS_write, &[fd as u64, bytes.as_ptr() as u64, len]);
}

/// Writes more than fits into a pipe.
fn large_write(act: &mut Act) {
    if act.is_alone() {
        return nonblocking(act);
    }
    let fd = files::stream(act);
    static ZEROES: [u8; 70_000] = [7; 70_000];
    say!(act, "write({fd}, 70000)");
    let _ = act.call(
        libc::SYS_write,
        &[fd as u64, ZEROES.as_ptr() as u64, 70_000],
    );
}

fn read(act: &mut Act) {
    let Some(fd) = ready(act, 1) else {
        return nonblocking(act);
    };
    let len = act.dice.of_these(&[8u64, 8, 8, 1, 100, 4096, 8192, 0]);
    let mut buffer = [0u8; files::BUFFER];
    say!(act, "read({fd}, {len})");
    let result = act.call(
        libc::SYS_read,
        &[fd as u64, buffer.as_mut_ptr() as u64, len],
    );
    files::told(act, result, &buffer);
}

fn close(act: &mut Act) {
    let fd = files::stream(act);
    say!(act, "close({fd})");
    let _ = act.call(libc::SYS_close, &[fd as u64]);
}

fn poll(act: &mut Act) {
    let events = act.dice.of_these(&[1i16, 1, 4, 5, 0, 3]);
    let mut set = [0u64; 3];
    let count = 1 + act.dice.below(3);
    let forever = act.dice.chance(25) && !act.is_alone();
    let timeout = if forever { -1i64 } else { 0 };
    say!(act, "poll(");
    for place in &mut set[..count as usize] {
        let fd = files::any(act);
        say!(act, "{fd} ");
        *place = u64::from(fd as u32) | (events as u64) << 32;
    }
    say!(act, "{events:#x}, {timeout})");
    if act
        .call(
            libc::SYS_poll,
            &[set.as_mut_ptr() as u64, count, timeout as u64],
        )
        .is_ok()
    {
        let set = std::hint::black_box(set);
        set[..count as usize]
            .iter()
            .for_each(|entry| say!(act, " {:#x}", entry >> 48));
    }
}

fn select(act: &mut Act) {
    let bits = act.dice.next() & 0x7_fff8;
    let mut open = 0u64;
    for fd in (3..19).filter(|fd| bits >> fd & 1 == 1) {
        if sys::call(libc::SYS_fcntl, &[fd, libc::F_GETFD as u64]).is_ok() {
            open |= 1 << fd;
        }
    }
    let mut sets = [open, open];
    let zero = [0u64; 2];
    say!(act, "select({open:#x})");
    let base = sets.as_mut_ptr() as u64;
    let _ = act.call(
        libc::SYS_select,
        &[19, base, base + 8, 0, zero.as_ptr() as u64],
    );
    let sets = std::hint::black_box(sets);
    say!(act, " {:#x} {:#x}", sets[0], sets[1]);
}

fn available(act: &mut Act) {
    let fd = files::any(act);
    let mut count = 0i32;
    say!(act, "ioctl({fd}, FIONREAD)");
    if act
        .call(
            libc::SYS_ioctl,
            &[fd as u64, libc::FIONREAD, &raw mut count as u64],
        )
        .is_ok()
    {
        say!(act, " {}", std::hint::black_box(count));
    }
}

fn nonblocking(act: &mut Act) {
    let fd = files::stream(act);
    let flags = act.dice.of_these(&[0, libc::O_NONBLOCK, libc::O_NONBLOCK]);
    say!(act, "fcntl({fd}, F_SETFL, {flags:#o})");
    let _ = act.call(
        libc::SYS_fcntl,
        &[fd as u64, libc::F_SETFL as u64, flags as u64],
    );
}

fn futex_word(act: &mut Act) -> (u64, u64) {
    let n = act.dice.below(WORDS as u64);
    (n, board().words[n as usize].as_ptr() as u64)
}

fn futex_wait(act: &mut Act) {
    let (n, at) = futex_word(act);
    let now = u64::from(board().words[n as usize].load(Ordering::SeqCst));
    let value = if act.dice.chance(85) && !act.is_alone() {
        now
    } else {
        now + 1
    };
    let mask = act.dice.of_these(&[u64::from(u32::MAX), 1, 2, 0]);
    if act.dice.chance(60) {
        say!(act, "futex({n}, WAIT, {value})");
        let _ = act.call(libc::SYS_futex, &[at, libc::FUTEX_WAIT as u64, value, 0]);
    } else {
        say!(act, "futex({n}, WAIT_BITSET, {value}, {mask:#x})");
        let _ = act.call(
            libc::SYS_futex,
            &[at, libc::FUTEX_WAIT_BITSET as u64, value, 0, 0, mask],
        );
    }
}

fn futex_wake(act: &mut Act) {
    let (n, at) = futex_word(act);
    let count = act.dice.of_these(&[1u64, 1, 2, 100, 0]);
    let mask = act.dice.of_these(&[u64::from(u32::MAX), 1, 2, 0]);
    if act.dice.chance(70) {
        say!(act, "futex({n}, WAKE, {count})");
        let _ = act.call(libc::SYS_futex, &[at, libc::FUTEX_WAKE as u64, count]);
    } else {
        say!(act, "futex({n}, WAKE_BITSET, {count}, {mask:#x})");
        let _ = act.call(
            libc::SYS_futex,
            &[at, libc::FUTEX_WAKE_BITSET as u64, count, 0, 0, mask],
        );
    }
}

fn futex_requeue(act: &mut Act) {
    let ((from, a), (to, b)) = (futex_word(act), futex_word(act));
    let (wake, moved) = (act.dice.below(3), act.dice.of_these(&[0u64, 1, 100]));
    let now = u64::from(board().words[from as usize].load(Ordering::SeqCst));
    let value = if act.dice.chance(80) { now } else { now + 1 };
    match act.dice.below(3) {
        0 => {
            say!(act, "futex({from}, REQUEUE, {wake}, {moved}, {to})");
            let _ = act.call(
                libc::SYS_futex,
                &[a, libc::FUTEX_REQUEUE as u64, wake, moved, b],
            );
        }
        1 => {
            say!(
                act,
                "futex({from}, CMP_REQUEUE, {wake}, {moved}, {to}, {value})"
            );
            let _ = act.call(
                libc::SYS_futex,
                &[a, libc::FUTEX_CMP_REQUEUE as u64, wake, moved, b, value],
            );
        }
        _ => {
            // Adds one to the second word and wakes there if it was more than 3.
            let operation = 1u64 << 28 | 4 << 24 | 1 << 12 | 3;
            say!(act, "futex({from}, WAKE_OP, {wake}, {moved}, {to})");
            let _ = act.call(
                libc::SYS_futex,
                &[a, libc::FUTEX_WAKE_OP as u64, wake, moved, b, operation],
            );
            say!(
                act,
                " {}",
                board().words[to as usize].load(Ordering::SeqCst)
            );
        }
    }
}

fn futex_store(act: &mut Act) {
    let (n, _) = futex_word(act);
    let value = act.dice.below(6) as u32;
    board().words[n as usize].store(value, Ordering::SeqCst);
    say!(act, "word({n}, {value})");
}
