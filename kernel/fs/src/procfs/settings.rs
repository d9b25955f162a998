//! /proc/sys: settings and limits of the kernel.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use cred::Cap;
use ipc::sysv::{msg, registry, sem, shm};
use ipc::{aio, epoll, inotify, mqueue};
use ksync::Once;
use proc::uts;
use task::current::current;
use task::sched::bound::{self, Bound};
use tty::pts;
use vfs::dynamic::{Fixed, Text};
use vfs::error::{FsError, Result};
use vfs::{pipe, protect, put};

use super::tree::Tree;
use crate::devfs::kmsg;

/// The entries of /proc/sys.
pub const ROOT: Tree = &[
    ("fs", Fixed::Dir(FS)),
    ("kernel", Fixed::Dir(KERNEL)),
    ("net", Fixed::Dir(super::network::SETTINGS)),
    ("vm", Fixed::Dir(VM)),
];

const FS: Tree = &[
    (
        "aio-max-nr",
        Fixed::Setting(
            |t| line(t, aio::MAX_EVENTS.load(Ordering::Relaxed)),
            |data| set(&aio::MAX_EVENTS, data),
        ),
    ),
    ("aio-nr", Fixed::File(|t| line(t, aio::events()))),
    ("epoll", Fixed::Dir(EPOLL)),
    ("inotify", Fixed::Dir(INOTIFY)),
    ("mqueue", Fixed::Dir(MQUEUE)),
    ("file-max", Fixed::File(|t| line(t, i64::MAX as u64))),
    ("nr_open", Fixed::File(|t| line(t, vfs::fdtable::NR_OPEN))),
    ("pipe-max-size", Fixed::Setting(pipe_max, set_pipe_max)),
    (
        "pipe-user-pages-hard",
        Fixed::Setting(
            |t| line(t, pipe::USER_HARD.load(Ordering::Relaxed)),
            |data| set(&pipe::USER_HARD, data),
        ),
    ),
    (
        "pipe-user-pages-soft",
        Fixed::Setting(
            |t| line(t, pipe::USER_SOFT.load(Ordering::Relaxed)),
            |data| set(&pipe::USER_SOFT, data),
        ),
    ),
    (
        "protected_fifos",
        Fixed::Setting(
            |t| line(t, protect::FIFOS.get()),
            |data| protect::FIFOS.set(parse(data)?),
        ),
    ),
    (
        "protected_hardlinks",
        Fixed::Setting(
            |t| line(t, protect::HARDLINKS.get()),
            |data| protect::HARDLINKS.set(parse(data)?),
        ),
    ),
    (
        "protected_regular",
        Fixed::Setting(
            |t| line(t, protect::REGULAR.get()),
            |data| protect::REGULAR.set(parse(data)?),
        ),
    ),
    (
        "protected_symlinks",
        Fixed::Setting(
            |t| line(t, protect::SYMLINKS.get()),
            |data| protect::SYMLINKS.set(parse(data)?),
        ),
    ),
];

const EPOLL: Tree = &[(
    "max_user_watches",
    Fixed::Setting(
        |t| line(t, epoll::MAX_WATCHES.load(Ordering::Relaxed)),
        |data| set(&epoll::MAX_WATCHES, data),
    ),
)];

const INOTIFY: Tree = &[
    (
        "max_queued_events",
        Fixed::Setting(
            |t| line(t, inotify::MAX_EVENTS.load(Ordering::Relaxed)),
            |data| set_int(&inotify::MAX_EVENTS, data),
        ),
    ),
    (
        "max_user_instances",
        Fixed::Setting(
            |t| line(t, inotify::MAX_INSTANCES.load(Ordering::Relaxed)),
            |data| set_int(&inotify::MAX_INSTANCES, data),
        ),
    ),
    (
        "max_user_watches",
        Fixed::Setting(
            |t| line(t, inotify::MAX_WATCHES.load(Ordering::Relaxed)),
            |data| set_int(&inotify::MAX_WATCHES, data),
        ),
    ),
];

const MQUEUE: Tree = &[
    (
        "msg_default",
        Fixed::Setting(
            |t| line(t, mqueue::DEFAULT_MESSAGES.load(Ordering::Relaxed)),
            |data| set_within(&mqueue::DEFAULT_MESSAGES, data, 1, mqueue::HARD_MESSAGES),
        ),
    ),
    (
        "msg_max",
        Fixed::Setting(
            |t| line(t, mqueue::MAX_MESSAGES.load(Ordering::Relaxed)),
            |data| set_within(&mqueue::MAX_MESSAGES, data, 1, mqueue::HARD_MESSAGES),
        ),
    ),
    (
        "msgsize_default",
        Fixed::Setting(
            |t| line(t, mqueue::DEFAULT_SIZE.load(Ordering::Relaxed)),
            |data| {
                set_within(
                    &mqueue::DEFAULT_SIZE,
                    data,
                    mqueue::LEAST_SIZE,
                    mqueue::HARD_SIZE,
                )
            },
        ),
    ),
    (
        "msgsize_max",
        Fixed::Setting(
            |t| line(t, mqueue::MAX_SIZE.load(Ordering::Relaxed)),
            |data| {
                set_within(
                    &mqueue::MAX_SIZE,
                    data,
                    mqueue::LEAST_SIZE,
                    mqueue::HARD_SIZE,
                )
            },
        ),
    ),
    (
        "queues_max",
        Fixed::Setting(
            |t| line(t, mqueue::MAX_QUEUES.load(Ordering::Relaxed)),
            |data| set_within(&mqueue::MAX_QUEUES, data, 0, i32::MAX as u64),
        ),
    ),
];

const KERNEL: Tree = &[
    ("cap_last_cap", Fixed::File(|t| line(t, 40))),
    ("core_pattern", Fixed::File(|t| text(t, "core"))),
    (
        "dmesg_restrict",
        Fixed::Setting(dmesg_restrict, set_dmesg_restrict),
    ),
    // As uname(2) says.
    (
        "domainname",
        Fixed::Setting(
            |t| name(t, uts::Which::Domain),
            |data| set_name(uts::Which::Domain, data),
        ),
    ),
    (
        "hostname",
        Fixed::Setting(
            |t| name(t, uts::Which::Host),
            |data| set_name(uts::Which::Host, data),
        ),
    ),
    (
        "msgmax",
        Fixed::Setting(
            |t| line(t, msg::MAX_MESSAGE.load(Ordering::Relaxed)),
            |data| set_int(&msg::MAX_MESSAGE, data),
        ),
    ),
    (
        "msgmnb",
        Fixed::Setting(
            |t| line(t, msg::MAX_BYTES.load(Ordering::Relaxed)),
            |data| set_int(&msg::MAX_BYTES, data),
        ),
    ),
    (
        "msgmni",
        Fixed::Setting(
            |t| line(t, msg::MAX_QUEUES.load(Ordering::Relaxed)),
            |data| set_objects(&msg::MAX_QUEUES, data),
        ),
    ),
    ("ngroups_max", Fixed::File(|t| line(t, 65536))),
    ("osrelease", Fixed::File(|t| bytes(t, uts::RELEASE))),
    ("ostype", Fixed::File(|t| text(t, "Linux"))),
    (
        "pid_max",
        Fixed::File(|t| line(t, task::ids::ID_LIMIT.into())),
    ),
    ("pty", Fixed::Dir(PTY)),
    ("random", Fixed::Dir(RANDOM)),
    (
        "randomize_va_space",
        Fixed::File(|t| line(t, if !proc::layout::randomizes() { 0 } else { 2 })),
    ),
    (
        "sched_rt_period_us",
        Fixed::Setting(|t| line(t, bound::bound().period_us.into()), set_rt_period),
    ),
    (
        "sched_rt_runtime_us",
        Fixed::Setting(rt_runtime, set_rt_runtime),
    ),
    ("sem", Fixed::Setting(semaphores, set_semaphores)),
    ("shm_rmid_forced", Fixed::Setting(|t| line(t, 0), set_zero)),
    (
        "shmall",
        Fixed::Setting(
            |t| line(t, shm::MAX_PAGES.load(Ordering::Relaxed)),
            |data| set(&shm::MAX_PAGES, data),
        ),
    ),
    (
        "shmmax",
        Fixed::Setting(
            |t| line(t, shm::MAX_BYTES.load(Ordering::Relaxed)),
            |data| set(&shm::MAX_BYTES, data),
        ),
    ),
    (
        "shmmni",
        Fixed::Setting(
            |t| line(t, shm::MAX_SEGMENTS.load(Ordering::Relaxed)),
            |data| set_objects(&shm::MAX_SEGMENTS, data),
        ),
    ),
    ("tainted", Fixed::File(|t| line(t, 0))),
    (
        "threads-max",
        Fixed::File(|t| line(t, proc::rlimit::max_threads())),
    ),
    ("version", Fixed::File(|t| bytes(t, uts::VERSION))),
];

const PTY: Tree = &[
    ("max", Fixed::Setting(|t| pty(t, &pts::LIMIT), set_pty_max)),
    ("nr", Fixed::File(|t| line(t, pts::count().into()))),
    (
        "reserve",
        Fixed::Setting(|t| pty(t, &pts::RESERVE), set_pty_reserve),
    ),
];

const RANDOM: Tree = &[
    ("boot_id", Fixed::File(boot_id)),
    ("entropy_avail", Fixed::File(|t| line(t, 256))),
    ("poolsize", Fixed::File(|t| line(t, 256))),
    ("uuid", Fixed::File(uuid)),
];

const VM: Tree = &[
    ("max_map_count", Fixed::File(|t| line(t, 65530))),
    ("mmap_min_addr", Fixed::File(|t| line(t, 65536))),
    (
        "overcommit_memory",
        Fixed::Setting(overcommit, set_overcommit),
    ),
    ("overcommit_ratio", Fixed::File(|t| line(t, 50))),
    ("swappiness", Fixed::File(|t| line(t, 60))),
];

/// Prints a number.
pub fn line(out: &mut Text, value: u64) -> Result<()> {
    put!(out, "{value}\n");
    Ok(())
}

fn bytes(out: &mut Text, value: &[u8]) -> Result<()> {
    out.push(value);
    out.push(b"\n");
    Ok(())
}

fn text(out: &mut Text, value: &str) -> Result<()> {
    put!(out, "{value}\n");
    Ok(())
}

/// Parses a value that was written to a setting: a decimal number with blanks around it.
///
/// # Errors
/// `Invalid` if it is none.
pub fn parse(data: &[u8]) -> Result<u64> {
    let text = core::str::from_utf8(data).map_err(|_| FsError::Invalid)?;
    text.trim().parse().map_err(|_| FsError::Invalid)
}

fn set(value: &AtomicU64, data: &[u8]) -> Result<()> {
    value.store(parse(data)?, Ordering::Relaxed);
    Ok(())
}

/// Sets a limit on System V objects of a kind. Fails with `Invalid` beyond the number of ids.
fn set_objects(value: &AtomicU64, data: &[u8]) -> Result<()> {
    if parse(data)? > registry::MOST as u64 {
        return Err(FsError::Invalid);
    }
    set(value, data)
}

/// Sets a limit. Fails with `Invalid` for what is no positive int.
fn set_int(value: &AtomicU64, data: &[u8]) -> Result<()> {
    set_within(value, data, 0, i32::MAX as u64)
}

/// Sets a limit. Fails with `Invalid` for what is not in `least..=most`.
fn set_within(value: &AtomicU64, data: &[u8], least: u64, most: u64) -> Result<()> {
    if !(least..=most).contains(&parse(data)?) {
        return Err(FsError::Invalid);
    }
    set(value, data)
}

/// Sets the period of real-time threads' bound. Fails with `Invalid` for what is no positive int, or shorter than their time.
fn set_rt_period(data: &[u8]) -> Result<()> {
    let period_us = i32::try_from(parse(data)?).map_err(|_| FsError::Invalid)? as u32;
    set_rt_bound(|bound| Bound { period_us, ..bound })
}

fn rt_runtime(out: &mut Text) -> Result<()> {
    match bound::bound().runtime_us {
        Some(us) => line(out, us.into()),
        None => text(out, "-1"),
    }
}

/// Sets the time that real-time threads may use of each period, -1 for all of it. Fails with `Invalid` for more than the period.
fn set_rt_runtime(data: &[u8]) -> Result<()> {
    let runtime_us = match data.trim_ascii() {
        b"-1" => None,
        _ => Some(i32::try_from(parse(data)?).map_err(|_| FsError::Invalid)? as u32),
    };
    set_rt_bound(|bound| Bound {
        runtime_us,
        ..bound
    })
}

fn set_rt_bound(new: impl Fn(Bound) -> Bound) -> Result<()> {
    bound::set_bound(new).map_err(|_| FsError::Invalid)
}

/// The four limits of /proc/sys/kernel/sem, in its order.
fn semaphore_limits() -> [&'static AtomicU64; 4] {
    [
        &sem::MAX_PER_SET,
        &sem::MAX_SEMAPHORES,
        &sem::MAX_OPERATIONS,
        &sem::MAX_SETS,
    ]
}

fn semaphores(out: &mut Text) -> Result<()> {
    let [per_set, all, operations, sets] = semaphore_limits().map(|l| l.load(Ordering::Relaxed));
    put!(out, "{per_set}\t{all}\t{operations}\t{sets}\n");
    Ok(())
}

/// Sets the limits on semaphores: one to four numbers, of which a call's operations and a set's semaphores have bounds.
fn set_semaphores(data: &[u8]) -> Result<()> {
    let text = core::str::from_utf8(data).map_err(|_| FsError::Invalid)?;
    let bounds = [
        MOST_PER_SET,
        i32::MAX as u64,
        MOST_OPERATIONS,
        registry::MOST as u64,
    ];
    let mut new = semaphore_limits().map(|l| l.load(Ordering::Relaxed));
    let mut words = text.split_ascii_whitespace();
    for (value, bound) in new.iter_mut().zip(bounds) {
        let Some(word) = words.next() else { break };
        let parsed = word.parse().ok().filter(|&n| n <= bound);
        *value = parsed.ok_or(FsError::Invalid)?;
    }
    if words.next().is_some() {
        return Err(FsError::Invalid);
    }
    for (limit, value) in semaphore_limits().into_iter().zip(new) {
        limit.store(value, Ordering::Relaxed);
    }
    Ok(())
}

/// Most semaphores of a set: their numbers have 16 bits.
const MOST_PER_SET: u64 = 1 << 16;
/// Most operations of a call: it must not ask for much memory.
const MOST_OPERATIONS: u64 = 1 << 12;

/// Accepts the value of a setting that is always 0, as it is in effect.
fn set_zero(data: &[u8]) -> Result<()> {
    match parse(data)? {
        0 => Ok(()),
        _ => Err(FsError::Invalid),
    }
}

fn pipe_max(out: &mut Text) -> Result<()> {
    line(out, pipe::MAX_SIZE.load(Ordering::Relaxed))
}

/// Sets the size, rounded up to a power of two of at least a page. Fails with `Invalid` beyond 2 GiB.
fn set_pipe_max(data: &[u8]) -> Result<()> {
    let bytes = parse(data)?;
    if bytes > 1 << 31 {
        return Err(FsError::Invalid);
    }
    let bytes = bytes.max(pipe::PAGE as u64).next_power_of_two();
    pipe::MAX_SIZE.store(bytes, Ordering::Relaxed);
    Ok(())
}

fn pty(out: &mut Text, value: &AtomicU32) -> Result<()> {
    line(out, value.load(Ordering::Relaxed).into())
}

fn set_pty_max(data: &[u8]) -> Result<()> {
    set_bounded(&pts::LIMIT, data, pts::MOST)
}

fn set_pty_reserve(data: &[u8]) -> Result<()> {
    set_bounded(&pts::RESERVE, data, pts::LIMIT.load(Ordering::Relaxed))
}

/// Sets a value of at most `most`. Fails with `Invalid` beyond that.
fn set_bounded(value: &AtomicU32, data: &[u8], most: u32) -> Result<()> {
    let new = u32::try_from(parse(data)?).map_err(|_| FsError::Invalid)?;
    if new > most {
        return Err(FsError::Invalid);
    }
    value.store(new, Ordering::Relaxed);
    Ok(())
}

fn dmesg_restrict(out: &mut Text) -> Result<()> {
    line(out, kmsg::RESTRICTED.load(Ordering::Relaxed).into())
}

fn set_dmesg_restrict(data: &[u8]) -> Result<()> {
    if !current().cred().capable(Cap::SysAdmin) {
        return Err(FsError::Perm);
    }
    let on = match parse(data)? {
        on @ 0..=1 => on == 1,
        _ => return Err(FsError::Invalid),
    };
    kmsg::RESTRICTED.store(on, Ordering::Relaxed);
    Ok(())
}

fn name(out: &mut Text, which: uts::Which) -> Result<()> {
    let mut name = [0; uts::NAME_MAX];
    let len = which.get(&mut name);
    bytes(out, &name[..len])
}

/// The first line is the name, as far as it fits.
fn set_name(which: uts::Which, data: &[u8]) -> Result<()> {
    let line = data.split(|&byte| byte == b'\n' || byte == 0).next();
    which.set(line.unwrap_or_default());
    Ok(())
}

/// The value of overcommit_memory, always 1: mmap(2) reserves no memory; a page is allocated when it is first
/// touched.
static OVERCOMMIT: AtomicU64 = AtomicU64::new(1);

fn overcommit(out: &mut Text) -> Result<()> {
    line(out, OVERCOMMIT.load(Ordering::Relaxed))
}

fn set_overcommit(data: &[u8]) -> Result<()> {
    // The only accepted value is the one that is in effect: 1, always overcommit.
    if parse(data)? == 1 {
        Ok(())
    } else {
        Err(FsError::Invalid)
    }
}

fn put_uuid(out: &mut Text, bytes: [u8; 16]) {
    for (i, b) in bytes.into_iter().enumerate() {
        if matches!(i, 4 | 6 | 8 | 10) {
            out.push(b"-");
        }
        put!(out, "{b:02x}");
    }
    out.push(b"\n");
}

fn random_uuid() -> [u8; 16] {
    let mut bytes = [0; 16];
    drivers::random::fill(&mut bytes);
    // Version 4, variant 1.
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    bytes
}

fn uuid(out: &mut Text) -> Result<()> {
    put_uuid(out, random_uuid());
    Ok(())
}

fn boot_id(out: &mut Text) -> Result<()> {
    static ID: Once<[u8; 16]> = Once::new();
    put_uuid(out, *ID.get_or_init(random_uuid));
    Ok(())
}
