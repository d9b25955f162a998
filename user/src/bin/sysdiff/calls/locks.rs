//! Locks of files: by process, by open file, and flock(2).

use super::{Call, files};
use crate::actor::{Act, say};
use crate::normal;

/// See [`super::FAMILIES`].
pub const CALLS: &[Call] = &[(8, record), (4, whole), (3, ask)];

fn region(act: &mut Act, kind: i32) -> libc::flock {
    libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: act.dice.of_these(&[0, 0, 10, 50]),
        l_len: act.dice.of_these(&[0, 10, 20, 100]),
        l_pid: 0,
    }
}

fn record(act: &mut Act) {
    let fd = files::regular(act);
    let kind = act
        .dice
        .of_these(&[libc::F_RDLCK, libc::F_WRLCK, libc::F_WRLCK, libc::F_UNLCK]);
    let (name, command) = act.dice.of_these(&[
        ("F_SETLK", libc::F_SETLK),
        ("F_SETLKW", libc::F_SETLKW),
        ("F_OFD_SETLK", libc::F_OFD_SETLK),
        ("F_OFD_SETLKW", libc::F_OFD_SETLKW),
    ]);
    let lock = region(act, kind);
    say!(
        act,
        "fcntl({fd}, {name}, {kind} {}+{})",
        lock.l_start,
        lock.l_len
    );
    let _ = act.call(
        libc::SYS_fcntl,
        &[fd as u64, command as u64, &raw const lock as u64],
    );
}

fn ask(act: &mut Act) {
    let fd = files::regular(act);
    let kind = act.dice.of_these(&[libc::F_RDLCK, libc::F_WRLCK]);
    let (name, command) = act.dice.of_these(&[
        ("F_GETLK", libc::F_GETLK),
        ("F_OFD_GETLK", libc::F_OFD_GETLK),
    ]);
    let mut lock = region(act, kind);
    say!(
        act,
        "fcntl({fd}, {name}, {kind} {}+{})",
        lock.l_start,
        lock.l_len
    );
    if act
        .call(
            libc::SYS_fcntl,
            &[fd as u64, command as u64, &raw mut lock as u64],
        )
        .is_ok()
    {
        say!(
            act,
            " {} {}+{} by {}",
            lock.l_type,
            lock.l_start,
            lock.l_len,
            normal::pid(lock.l_pid)
        );
    }
}

fn whole(act: &mut Act) {
    let fd = files::regular(act);
    let how = act
        .dice
        .of_these(&[libc::LOCK_SH, libc::LOCK_EX, libc::LOCK_UN]);
    let more = if act.dice.chance(60) || act.is_alone() {
        libc::LOCK_NB
    } else {
        0
    };
    say!(act, "flock({fd}, {})", how | more);
    let _ = act.call(libc::SYS_flock, &[fd as u64, (how | more) as u64]);
}
