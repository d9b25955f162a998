//! Users, groups and the file mode mask.

use super::Call;
use crate::actor::{Act, say};
use user::sys;

/// See [`super::FAMILIES`].
pub const CALLS: &[Call] = &[
    (6, set_ids),
    (4, set_group_ids),
    (3, groups),
    (4, show),
    (5, mask),
    (2, fsids),
    (2, capabilities),
];

/// The user that actors become.
pub const USER: u64 = 1000;

/// Becomes an unprivileged user for ever.
pub fn demote(act: &mut Act) {
    say!(act, "demote");
    let _ = act.call(libc::SYS_setgroups, &[0, 0]);
    let _ = act.call(libc::SYS_setresgid, &[USER, USER, USER]);
    let _ = act.call(libc::SYS_setresuid, &[USER, USER, USER]);
}

fn id(act: &mut Act) -> u64 {
    act.dice.of_these(&[
        0,
        USER,
        USER,
        1001,
        u64::from(u32::MAX),
        u64::from(u32::MAX),
    ])
}

fn set_ids(act: &mut Act) {
    let (a, b, c) = (id(act), id(act), id(act));
    match act.dice.below(8) {
        0 => {
            say!(act, "setuid({})", a as i32);
            let _ = act.call(libc::SYS_setuid, &[a]);
        }
        1..4 => {
            say!(act, "setreuid({}, {})", a as i32, b as i32);
            let _ = act.call(libc::SYS_setreuid, &[a, b]);
        }
        _ => {
            say!(act, "setresuid({}, {}, {})", a as i32, b as i32, c as i32);
            let _ = act.call(libc::SYS_setresuid, &[a, b, c]);
        }
    }
    told(act);
}

fn set_group_ids(act: &mut Act) {
    let (a, b, c) = (id(act), id(act), id(act));
    match act.dice.below(4) {
        0 => {
            say!(act, "setgid({})", a as i32);
            let _ = act.call(libc::SYS_setgid, &[a]);
        }
        1 => {
            say!(act, "setregid({}, {})", a as i32, b as i32);
            let _ = act.call(libc::SYS_setregid, &[a, b]);
        }
        _ => {
            say!(act, "setresgid({}, {}, {})", a as i32, b as i32, c as i32);
            let _ = act.call(libc::SYS_setresgid, &[a, b, c]);
        }
    }
    told(act);
}

fn groups(act: &mut Act) {
    let list = [act.dice.of_these(&[5u32, 1000, 1001]), 0, 7];
    let count = act.dice.below(4);
    say!(act, "setgroups({count}, {})", list[0]);
    let _ = act.call(libc::SYS_setgroups, &[count, list.as_ptr() as u64]);
    told(act);
}

/// Adds the ids and groups.
pub fn told(act: &mut Act) {
    let mut ids = [0u32; 6];
    let base = ids.as_mut_ptr() as u64;
    let place = |n: u64| base + 4 * n;
    let _ = sys::call(libc::SYS_getresuid, &[place(0), place(1), place(2)]);
    let _ = sys::call(libc::SYS_getresgid, &[place(3), place(4), place(5)]);
    let mut groups = [0u32; 8];
    let count =
        sys::call(libc::SYS_getgroups, &[8, groups.as_mut_ptr() as u64]).unwrap_or(0) as usize;
    let ids = std::hint::black_box(ids);
    say!(
        act,
        " uids {:?} gids {:?} groups {:?}",
        &ids[..3],
        &ids[3..],
        &groups[..count]
    );
}

fn show(act: &mut Act) {
    say!(act, "ids");
    told(act);
}

fn mask(act: &mut Act) {
    let mask = act.dice.of_these(&[0o22, 0o22, 0, 0o77, 0o777, 0o7027]);
    say!(act, "umask({mask:o})");
    let _ = act.call(libc::SYS_umask, &[mask]);
}

fn fsids(act: &mut Act) {
    let id = id(act);
    let (name, nr) = act.dice.of_these(&[
        ("setfsuid", libc::SYS_setfsuid),
        ("setfsgid", libc::SYS_setfsgid),
    ]);
    say!(act, "{name}({})", id as i32);
    let _ = act.call(nr, &[id]);
}

fn capabilities(act: &mut Act) {
    let header = [0x2008_0522u32, 0];
    let mut data = [0u32; 6];
    say!(act, "capget()");
    let _ = act.call(
        libc::SYS_capget,
        &[header.as_ptr() as u64, data.as_mut_ptr() as u64],
    );
    let data = std::hint::black_box(data);
    say!(
        act,
        " effective {} permitted {} inheritable {}",
        data[0] != 0,
        data[1] != 0,
        data[2] != 0
    );
}
