//! `terminals`: the state of a terminal after the session that it controls has ended.
//!
//! 1. Processes left by a session read end of file and cannot write; the next login gets every key.
//! 2. The terminal's foreground group id does not name a later group with the same id once the group has gone.
//! 3. A background group cannot stop output or discard input; a terminal in exclusive mode can be opened only by a
//!    privileged process.
//!
//! Runs as root with the console's serial line (`/dev/ttyS0`), on Linux as well; it types nothing itself: the test
//! types `open sesame` when asked. Prints a line for each part on the console; the status is 0 if all parts pass.

use std::sync::atomic::Ordering::SeqCst;
use user::sys::{self, Errno};

const LINE: &str = "/dev/ttyS0";
const NEW_SESSION: &str = "a session of its own";

/// Words that the processes share.
#[derive(Clone, Copy)]
struct Shared(u64);

impl Shared {
    const FRONT: usize = 0;
    const DONE: usize = 1;
    const STOLEN: usize = 2;
    const WRONG: usize = 3;
    const END: usize = 4;
    const REUSED: usize = 5;

    fn new() -> Result<Shared, Errno> {
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        sys::mmap(0, 4096, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0).map(Shared)
    }

    fn get(self, word: usize) -> u64 {
        sys::atomic(self.0 + word as u64 * 8).load(SeqCst)
    }

    fn set(self, word: usize, value: u64) {
        sys::atomic(self.0 + word as u64 * 8).store(value, SeqCst);
    }

    fn add(self, word: usize, value: u64) {
        sys::atomic(self.0 + word as u64 * 8).fetch_add(value, SeqCst);
    }

    /// Waits until a word is not zero, at most ten seconds.
    fn wait(self, word: usize) -> bool {
        (0..1000).any(|_| {
            pause(10);
            self.get(word) != 0
        })
    }
}

fn pause(milliseconds: u64) {
    std::thread::sleep(std::time::Duration::from_millis(milliseconds));
}

fn ioctl(fd: i32, request: u64, arg: u64) -> Result<u64, Errno> {
    sys::call(libc::SYS_ioctl, &[fd as u64, request, arg])
}

/// Runs `f` in a child and returns its pid.
fn child(f: impl FnOnce() -> i32) -> Result<u64, Errno> {
    match sys::fork()? {
        0 => sys::exit(f()),
        pid => Ok(pid),
    }
}

/// A session of its own, with the serial line as its controlling terminal.
fn log_in(steal: bool) -> Result<i32, Errno> {
    sys::call(libc::SYS_setsid, &[])?;
    if !steal {
        return sys::open(LINE, libc::O_RDWR, 0);
    }
    let line = sys::open(LINE, libc::O_RDWR | libc::O_NOCTTY, 0)?;
    ioctl(line, libc::TIOCSCTTY, 1)?;
    Ok(line)
}

static HANGUPS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

extern "C" fn on_hangup(_: i32) {
    HANGUPS.fetch_add(1, SeqCst);
}

/// Reads, and repeats a read that a signal interrupted.
fn read(fd: i32, buf: &mut [u8]) -> Result<usize, Errno> {
    loop {
        match sys::read(fd, buf) {
            Err(libc::EINTR) => {}
            result => return result,
        }
    }
}

/// A foreground process that reads while its session's leader ends.
fn left_behind(line: i32, shared: Shared) -> i32 {
    let _ = sys::call(libc::SYS_setpgid, &[0, 0]);
    let _ = sys::on_signal(libc::SIGHUP, on_hangup as *const () as usize, 0);
    shared.wait(Shared::FRONT);
    let mut buf = [0u8; 64];
    let mut answers = vec![("a read in progress", read(line, &mut buf) == Ok(0))];
    let mut n = 0i32;
    let arg = &raw mut n as u64;
    let mut termios = [0u64; 8];
    answers.push(("another read", read(line, &mut buf) == Ok(0)));
    answers.push(("a write", sys::write(line, b"x") == Err(libc::EIO)));
    let attributes = ioctl(line, libc::TCGETS, termios.as_mut_ptr() as u64);
    answers.push(("TCGETS", attributes == Err(libc::EIO)));
    answers.push((
        "TIOCGPGRP",
        ioctl(line, libc::TIOCGPGRP, arg) == Err(libc::EIO),
    ));
    answers.push((
        "TIOCSPGRP",
        ioctl(line, libc::TIOCSPGRP, arg) == Err(libc::ENOTTY),
    ));
    answers.push((
        "TIOCSCTTY",
        ioctl(line, libc::TIOCSCTTY, 0) == Err(libc::EIO),
    ));
    let no_terminal = sys::open("/dev/tty", libc::O_RDWR, 0) == Err(libc::ENXIO);
    answers.push(("/dev/tty", no_terminal));
    let mut poll = libc::pollfd {
        fd: line,
        events: libc::POLLIN | libc::POLLOUT,
        revents: 0,
    };
    let ready = sys::call(libc::SYS_poll, &[&raw mut poll as u64, 1, 0]);
    let all = libc::POLLIN | libc::POLLOUT | libc::POLLERR | libc::POLLHUP;
    answers.push(("poll", ready == Ok(1) && poll.revents == all));
    // Reads end before the signal is sent, as in Linux.
    for _ in 0..500 {
        if HANGUPS.load(SeqCst) != 0 {
            break;
        }
        pause(10);
    }
    answers.push(("SIGHUP", HANGUPS.load(SeqCst) == 1));
    for (what, right) in answers {
        if !right {
            println!("terminals: left behind: {what} is wrong");
            shared.add(Shared::WRONG, 1);
        }
    }
    shared.set(Shared::DONE, 1);
    while shared.get(Shared::END) == 0 {
        shared.add(Shared::STOLEN, read(line, &mut buf).unwrap_or(0) as u64);
        pause(1);
    }
    0
}

/// A session leader that puts a child into the foreground and exits.
fn first_login(shared: Shared) -> Result<i32, Errno> {
    let line = log_in(true)?;
    let front = child(|| left_behind(line, shared))?;
    let _ = sys::call(libc::SYS_setpgid, &[front, front]);
    let group = front as i32;
    ioctl(line, libc::TIOCSPGRP, &raw const group as u64)?;
    shared.set(Shared::FRONT, 1);
    // Time for the child to start its read.
    pause(300);
    Ok(0)
}

/// The next session leader, which gets every key.
fn second_login() -> Result<i32, Errno> {
    let line = log_in(false)?;
    let (mut sid, mut front) = (0i32, 0i32);
    ioctl(line, libc::TIOCGSID, &raw mut sid as u64)?;
    ioctl(line, libc::TIOCGPGRP, &raw mut front as u64)?;
    let me = std::process::id() as i32;
    if (sid, front) != (me, me) {
        println!("terminals: {me} got the line for session {sid} with {front} in front");
        return Ok(1);
    }
    sys::write(line, b"the word: ")?;
    let mut buf = [0u8; 64];
    let n = read(line, &mut buf)?;
    Ok(i32::from(&buf[..n] != b"open sesame\n"))
}

/// Puts a group into the foreground, lets it end, and creates processes until one has its pid or pids have wrapped.
/// Then exits.
fn third_login(shared: Shared) -> Result<i32, Errno> {
    let line = log_in(false)?;
    let (from, to) = sys::pipe(0)?;
    let group = child(|| {
        let _ = sys::close(to);
        let _ = sys::read(from, &mut [0]);
        0
    })?;
    sys::call(libc::SYS_setpgid, &[group, group])?;
    let number = group as i32;
    ioctl(line, libc::TIOCSPGRP, &raw const number as u64)?;
    let _ = sys::close(to);
    sys::wait(group as i64, 0)?;
    let (mut last, mut wrapped) = (group, false);
    loop {
        // Each CPU allocates pids in batches, so they grow only roughly; far from the wanted one a child needs no
        // memory of its own.
        let pid = if last < group && group - last < 500 {
            child(|| take_if(group, shared))?
        } else {
            sys::vfork_exit()?
        };
        if pid == group {
            shared.wait(Shared::REUSED);
            return Ok(0);
        }
        sys::wait(pid as i64, 0)?;
        wrapped |= pid < last;
        last = pid;
        if wrapped && pid > group + 1000 {
            return Ok(0);
        }
    }
}

/// In a child: if its pid is `number`, it starts a session without the terminal and lives on.
fn take_if(number: u64, shared: Shared) -> i32 {
    if u64::from(std::process::id()) == number {
        let _ = sys::call(libc::SYS_setsid, &[]);
        shared.set(Shared::REUSED, 1);
        shared.wait(Shared::END);
    }
    0
}

/// Whether a background group that makes a request on the terminal is stopped for it.
fn is_stopped_for(line: i32, request: u64) -> Result<bool, Errno> {
    let group = child(|| {
        let _ = sys::call(libc::SYS_setpgid, &[0, 0]);
        i32::from(ioctl(line, request, 0).is_err())
    })?;
    let (_, status) = sys::wait(group as i64, libc::WUNTRACED)?;
    let stopped = libc::WIFSTOPPED(status) && libc::WSTOPSIG(status) == libc::SIGTTOU;
    sys::call(libc::SYS_kill, &[group, libc::SIGKILL as u64])?;
    if libc::WIFSTOPPED(status) {
        sys::wait(group as i64, 0)?;
    }
    Ok(stopped)
}

/// What TIOCSPGRP, TCFLSH and TIOCGPGRP answer to a background group that has lost its parent: errnos. It cannot be stopped,
/// because no shell is there that would continue it.
fn answers_to_an_orphan(line: i32) -> Result<[u8; 3], Errno> {
    let (from, to) = sys::pipe(0)?;
    let parent = child(|| {
        let orphan = child(|| {
            let group = std::process::id() as i32;
            let arg = &raw const group as u64;
            let parent = sys::call(libc::SYS_getppid, &[]);
            let _ = sys::call(libc::SYS_setpgid, &[0, 0]);
            let _ = sys::write(to, &[0]);
            while sys::call(libc::SYS_getppid, &[]) == parent {
                pause(10);
            }
            let errnos = [
                (libc::TIOCSPGRP, arg),
                (libc::TCFLSH, 0),
                (libc::TIOCGPGRP, arg),
            ]
            .map(|(request, arg)| ioctl(line, request, arg).err().unwrap_or(0) as u8);
            i32::from(sys::write(to, &errnos) != Ok(3))
        });
        // The group is there once the byte has come.
        i32::from(orphan.is_err() || sys::read(from, &mut [0]) != Ok(1))
    })?;
    sys::wait(parent as i64, 0)?;
    let mut errnos = [0; 3];
    sys::read(from, &mut errnos)?;
    Ok(errnos)
}

/// Opens the line without root's capabilities, though it belongs to root.
fn open_unprivileged() -> Result<i32, Errno> {
    let pid = child(|| {
        let header = [0x2008_0522u32, 0];
        let none = [0u32; 6];
        let dropped = sys::call(
            libc::SYS_capset,
            &[header.as_ptr() as u64, none.as_ptr() as u64],
        );
        match dropped.and_then(|_| sys::open(LINE, libc::O_RDWR | libc::O_NOCTTY, 0)) {
            Ok(_) => 0,
            Err(errno) => errno,
        }
    })?;
    Ok(libc::WEXITSTATUS(status_of(pid)?))
}

/// What the terminal refuses to background groups, and to processes that may not open it.
fn fourth_login() -> Result<i32, Errno> {
    let line = log_in(false)?;
    let mut wrong = 0;
    for (what, request) in [("TCXONC", libc::TCXONC), ("TCFLSH", libc::TCFLSH)] {
        if !is_stopped_for(line, request)? {
            println!("terminals: {what} from behind is not refused");
            wrong += 1;
        }
    }
    let answers = answers_to_an_orphan(line)?;
    if answers != [libc::ENOTTY as u8, libc::EIO as u8, 0] {
        println!("terminals: an orphaned group got {answers:?}");
        wrong += 1;
    }
    let open = [libc::TIOCNXCL, libc::TIOCEXCL, libc::TIOCNXCL].map(|request| {
        let mut exclusive = 7i32;
        ioctl(line, request, 0)?;
        ioctl(line, 0x8004_5440, &raw mut exclusive as u64)?;
        Ok::<_, Errno>((exclusive, open_unprivileged()?))
    });
    if open != [Ok((0, 0)), Ok((1, libc::EBUSY)), Ok((0, 0))] {
        println!("terminals: opened as {open:?}");
        wrong += 1;
    }
    Ok(wrong)
}

/// The exit status of a child, or the signal that killed it.
fn status_of(pid: u64) -> Result<i32, Errno> {
    let (_, status) = sys::wait(pid as i64, 0)?;
    Ok(status)
}

fn report(what: &str, right: bool) -> bool {
    println!(
        "terminals: {what}: {}",
        if right { "right" } else { "WRONG" }
    );
    right
}

/// Runs all parts, in a session without a terminal.
fn all() -> Result<bool, Errno> {
    sys::call(libc::SYS_setsid, &[])?;
    let console = sys::open("/dev/console", libc::O_WRONLY, 0)?;
    for fd in [1, 2] {
        sys::call(libc::SYS_dup2, &[console as u64, fd])?;
    }
    sys::call(libc::SYS_prctl, &[libc::PR_SET_CHILD_SUBREAPER as u64, 1])?;
    let run = |part: &dyn Fn() -> Result<i32, Errno>| {
        let pid = child(|| {
            part().unwrap_or_else(|errno| {
                println!("terminals: errno {errno} in {NEW_SESSION}");
                1
            })
        })?;
        status_of(pid)
    };
    let shared = Shared::new()?;
    let mut right = run(&|| first_login(shared))? == 0;
    right &= shared.wait(Shared::DONE) && shared.get(Shared::WRONG) == 0;
    let mut all = report("the end of a session", right);
    let right = run(&second_login)? == 0 && shared.get(Shared::STOLEN) == 0;
    all &= report("the next login's keys", right);
    shared.set(Shared::END, 1);
    sys::wait(-1, 0)?;

    let shared = Shared::new()?;
    let right = run(&|| third_login(shared))? == 0;
    let reused = shared.get(Shared::REUSED) == 1;
    shared.set(Shared::END, 1);
    // The process that got the reused pid, if one did, must exit by itself.
    let right = right && (!reused || status_of(u64::MAX)? == 0);
    all &= report("the number of the group in front", right);
    all &= report("what is refused to those behind", run(&fourth_login)? == 0);
    Ok(all)
}

fn main() {
    let status = child(|| match all() {
        Ok(all) => i32::from(!all),
        Err(errno) => {
            println!("terminals: errno {errno}");
            1
        }
    });
    let status = status.and_then(status_of);
    std::process::exit(i32::from(status != Ok(0)));
}
