//! The calls on POSIX message queues, for their tests.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread::{self, JoinHandle};

use crate::harness::path;
use user::sys;

/// Nanoseconds.
pub const MS: u64 = 1_000_000;
/// Flags of a new queue.
pub const MAKE: i32 = libc::O_CREAT | libc::O_RDWR;
/// O_NONBLOCK.
pub const NONBLOCK: i32 = libc::O_NONBLOCK;

/// A name that no other test has.
pub fn name(what: &str) -> String {
    format!("abitest.{}.{what}", std::process::id())
}

/// mq_open(2), of a queue of so many messages of so many bytes.
pub fn open(name: &str, flags: i32, mode: u32, shape: Option<[i64; 2]>) -> Result<i32, i32> {
    let [messages, size] = shape.unwrap_or_default();
    let attributes = [0, messages, size, 0, 0, 0, 0, 0];
    let at = if shape.is_some() {
        attributes.as_ptr() as u64
    } else {
        0
    };
    sc!(SYS_mq_open, path(name), flags, mode, at).map(|fd| fd as i32)
}

/// A queue of so many messages of 16 bytes, with a name that is removed.
pub fn queue(messages: i64, flags: i32) -> Result<i32, i32> {
    static MADE: AtomicU64 = AtomicU64::new(0);
    let name = name(&format!("q{}", MADE.fetch_add(1, SeqCst)));
    let fd = open(
        &name,
        MAKE | libc::O_EXCL | flags,
        0o600,
        Some([messages, 16]),
    )?;
    unlink(&name)?;
    Ok(fd)
}

/// mq_unlink(2).
pub fn unlink(name: &str) -> Result<u64, i32> {
    sc!(SYS_mq_unlink, path(name))
}

/// mq_timedsend(2) without a time.
pub fn send(fd: i32, text: &[u8], priority: u32) -> Result<u64, i32> {
    sc!(SYS_mq_timedsend, fd, text.as_ptr(), text.len(), priority, 0)
}

/// mq_timedsend(2) of priority 0.
pub fn send_until(fd: i32, text: &[u8], at: [i64; 2]) -> Result<u64, i32> {
    sc!(
        SYS_mq_timedsend,
        fd,
        text.as_ptr(),
        text.len(),
        0,
        at.as_ptr()
    )
}

/// Text and priority.
pub type Received = Result<(String, u32), i32>;

/// mq_timedreceive(2).
pub fn receive_until(fd: i32, at: Option<[i64; 2]>) -> Received {
    let (mut text, mut priority) = ([0u8; 64], 77u32);
    let at = at.as_ref().map_or(0, |at| at.as_ptr() as u64);
    let n = sc!(
        SYS_mq_timedreceive,
        fd,
        text.as_mut_ptr(),
        text.len(),
        &raw mut priority,
        at
    )? as usize;
    Ok((String::from_utf8_lossy(&text[..n]).into_owned(), priority))
}

/// mq_timedreceive(2) without a time.
pub fn receive(fd: i32) -> Received {
    receive_until(fd, None)
}

/// Real time, so many milliseconds from now.
pub fn real(ms: i64) -> [i64; 2] {
    let mut now = [0i64; 2];
    let _ = sc!(SYS_clock_gettime, libc::CLOCK_REALTIME, now.as_mut_ptr());
    let ns = now[1] + ms * 1_000_000;
    [
        now[0] + ns.div_euclid(1_000_000_000),
        ns.rem_euclid(1_000_000_000),
    ]
}

/// Flags, most messages, most bytes, messages.
pub fn attributes(fd: i32) -> Result<[i64; 8], i32> {
    let mut old = [-1i64; 8];
    sc!(SYS_mq_getsetattr, fd, 0, old.as_mut_ptr()).map(|_| old)
}

/// Sets the flags; returns the old ones.
pub fn set_flags(fd: i32, flags: i64) -> Result<i64, i32> {
    let (new, mut old) = ([flags, 5, 5, 5, 0, 0, 0, 0], [-1i64; 8]);
    sc!(SYS_mq_getsetattr, fd, new.as_ptr(), old.as_mut_ptr()).map(|_| old[0])
}

/// mq_notify(2): value, signal and way.
pub fn notify(fd: i32, value: u64, signo: i32, how: i32) -> Result<u64, i32> {
    let event = [
        value,
        u64::from(signo as u32) | u64::from(how as u32) << 32,
        0,
        0,
        0,
        0,
        0,
        0,
    ];
    sc!(SYS_mq_notify, fd, event.as_ptr())
}

/// mq_notify(2) of nothing.
pub fn forget(fd: i32) -> Result<u64, i32> {
    sc!(SYS_mq_notify, fd, 0)
}

/// What a read of the file shows.
pub fn shown(fd: i32) -> Result<String, i32> {
    let mut text = [0u8; 200];
    let n = sc!(SYS_pread64, fd, text.as_mut_ptr(), text.len(), 0)? as usize;
    Ok(String::from_utf8_lossy(&text[..n]).into_owned())
}

/// The events of poll(2).
pub fn polled(fd: i32) -> Result<u64, i32> {
    let mut list = [u64::from(fd as u32) | ((libc::POLLIN | libc::POLLOUT) as u64) << 32];
    sc!(SYS_poll, list.as_mut_ptr(), 1, 0)?;
    Ok(list[0] >> 48)
}

/// POLLIN.
pub const IN: u64 = libc::POLLIN as u64;
/// POLLOUT.
pub const OUT: u64 = libc::POLLOUT as u64;

/// Blocks a signal.
pub fn block(signal: i32) -> Result<u64, i32> {
    let set = 1u64 << (signal - 1);
    sc!(SYS_rt_sigprocmask, libc::SIG_BLOCK, &raw const set, 0, 8)
}

/// Signal, code, pid, uid and value of a pending signal.
pub fn pending(signal: i32) -> Result<(i32, i32, u64, u64, u64), i32> {
    let set = 1u64 << (signal - 1);
    let mut info = [0u64; 16];
    sc!(
        SYS_rt_sigtimedwait,
        &raw const set,
        info.as_mut_ptr(),
        [0u64; 2].as_ptr(),
        8
    )?;
    let (pid, uid) = (info[2] & 0xffff_ffff, info[2] >> 32);
    Ok((info[0] as i32, info[1] as i32, pid, uid, info[3]))
}

/// Time for a thread to begin its wait.
pub fn settle() {
    sys::nap(30 * MS);
}

/// A thread that receives.
pub fn receives(fd: i32) -> JoinHandle<Received> {
    thread::spawn(move || receive(fd))
}

/// A thread that sends.
pub fn sends(fd: i32, text: &'static str, priority: u32) -> JoinHandle<Result<u64, i32>> {
    thread::spawn(move || send(fd, text.as_bytes(), priority))
}

/// The result of a thread.
pub fn end<T>(thread: JoinHandle<Result<T, i32>>) -> Result<T, i32> {
    thread.join().unwrap_or(Err(0))
}

/// What is received.
pub fn got(text: &str, priority: u32) -> (String, u32) {
    (text.to_owned(), priority)
}

/// Whether the process is the super-user.
pub fn is_root() -> bool {
    sc!(SYS_geteuid) == Ok(0)
}

/// A limit.
pub fn setting(name: &str) -> Result<u64, String> {
    let text = std::fs::read_to_string(format!("/proc/sys/fs/mqueue/{name}"));
    let text = text.map_err(|e| format!("{name}: {e}"))?;
    text.trim().parse().map_err(|e| format!("{name}: {e}"))
}

/// Sets RLIMIT_MSGQUEUE.
pub fn limit(bytes: u64) -> Result<u64, i32> {
    sc!(
        SYS_prlimit64,
        0,
        libc::RLIMIT_MSGQUEUE,
        [bytes, bytes].as_ptr(),
        0
    )
}

/// A handler.
pub extern "C" fn nothing(_: i32) {}

/// Makes queues, full of the largest messages, and removes none. The status to exit with.
pub fn leave_behind() -> i32 {
    const EACH: i64 = 10;
    let fill = |n: i32| {
        let queue = open(&name(&format!("left{n}")), MAKE, 0o600, Some([EACH, 8192]))?;
        (0..EACH).try_for_each(|_| send(queue, &[7; 8192], 1).map(drop))
    };
    i32::from((0..8).any(|n| fill(n).is_err()))
}
