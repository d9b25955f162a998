//! Runs a test in a child, and defines the macros in which tests are written.

use user::sys::{self, Errno};

/// One test.
pub struct Test {
    /// Subject, slash, name.
    pub name: &'static str,
    /// The test; an error that begins with `skip: ` means that this system cannot run it.
    pub run: fn() -> Result<(), String>,
}

/// The result of a test.
pub enum Verdict {
    /// It passed.
    Passed,
    /// It could not be run here.
    Skipped(String),
    /// It failed.
    Failed(String),
}

/// Seconds that a test may take, for emulation with several CPUs on one: what ABITEST_SECONDS says, or 15.
fn limit_seconds() -> u64 {
    let said = std::env::var("ABITEST_SECONDS").ok();
    said.and_then(|text| text.parse().ok()).unwrap_or(15)
}

/// Defines `TESTS` of a subject.
macro_rules! tests {
    ($subject:literal; $($name:ident $body:block)*) => {
        /// The tests of this subject.
        pub const TESTS: &[crate::harness::Test] = &[$(crate::harness::Test {
            name: concat!($subject, "/", stringify!($name)),
            run: || -> Result<(), String> { $body Ok(()) },
        }),*];
    };
}

/// Makes a system call with any integers as arguments: `sc!(mmap, 0, 4096, ...)`.
macro_rules! sc {
    ($nr:ident $(, $arg:expr)* $(,)?) => { user::sys::call(libc::$nr, &[$(($arg) as u64),*]) };
}

/// The value of a call that must succeed.
macro_rules! ok {
    ($call:expr) => {
        match $call {
            Ok(value) => value,
            Err(errno) => {
                return Err(format!(
                    "line {}: {} gave {}",
                    line!(),
                    stringify!($call),
                    crate::harness::errno_name(errno)
                ))
            }
        }
    };
}

/// A call that must fail with one of these errnos.
macro_rules! fails {
    ($call:expr, $($errno:ident)|+) => {
        match $call {
            Err($(libc::$errno)|+) => {}
            other => {
                return Err(format!("line {}: {} gave {}, not {}", line!(), stringify!($call),
                    crate::harness::show(other), stringify!($($errno)|+)))
            }
        }
    };
}

/// Two values that must be equal.
macro_rules! is {
    ($left:expr, $right:expr) => {
        match (&$left, &$right) {
            (left, right) => {
                if left != right {
                    return Err(format!(
                        "line {}: {} is {left:x?}, not {right:x?}",
                        line!(),
                        stringify!($left)
                    ));
                }
            }
        }
    };
}

/// A condition that must hold.
macro_rules! holds {
    ($condition:expr) => {
        if !$condition {
            return Err(format!(
                "line {}: not so: {}",
                line!(),
                stringify!($condition)
            ));
        }
    };
}

/// The name of an errno.
pub fn errno_name(errno: Errno) -> String {
    format!(
        "errno {errno} ({})",
        std::io::Error::from_raw_os_error(errno)
    )
}

/// A call's result as text.
pub fn show<T: std::fmt::Debug>(answer: Result<T, Errno>) -> String {
    answer.map_or_else(errno_name, |value| format!("{value:x?}"))
}

/// A path as an argument of a call; lives as long as the test's process.
pub fn path(text: &str) -> u64 {
    let text = std::ffi::CString::new(text).expect("a test's path has no zero byte");
    text.into_raw() as u64
}

/// A fresh directory for this test.
pub fn scratch() -> String {
    let dir = format!("/tmp/abitest.{}", std::process::id());
    let _ = std::fs::remove_dir_all(&dir);
    let _ = std::fs::create_dir_all(&dir);
    dir
}

/// Runs `test` and waits for it, at most until its time limit.
pub fn run(test: &Test) -> Verdict {
    let failed = |what: &str| Verdict::Failed(what.to_owned());
    let Ok((from, to)) = sys::pipe(libc::O_CLOEXEC) else {
        return failed("no pipe");
    };
    let pid = match sys::fork() {
        Ok(0) => child(test, to),
        Ok(pid) => pid,
        Err(errno) => return failed(&format!("fork: {}", errno_name(errno))),
    };
    let _ = sys::close(to);
    let status = wait_limited(pid);
    let _ = sc!(SYS_kill, (pid as i64).wrapping_neg(), libc::SIGKILL);
    let _ = sc!(SYS_fcntl, from, libc::F_SETFL, libc::O_NONBLOCK);
    let mut message = vec![0; 2000];
    let len = sys::read(from, &mut message).unwrap_or(0);
    let _ = sys::close(from);
    let message = String::from_utf8_lossy(&message[..len]).into_owned();
    let _ = std::fs::remove_dir_all(format!("/tmp/abitest.{pid}"));
    match status {
        Some(0) if message.is_empty() => Verdict::Passed,
        Some(_) if message.starts_with("skip: ") => {
            Verdict::Skipped(message["skip: ".len()..].to_owned())
        }
        Some(_) if !message.is_empty() => Verdict::Failed(message),
        Some(status) => {
            Verdict::Failed(format!("the test's process ended with status {status:#x}"))
        }
        None => Verdict::Failed(format!("not over after {} s", limit_seconds())),
    }
}

fn child(test: &Test, to: i32) -> ! {
    let _ = sc!(SYS_setpgid, 0, 0);
    match (test.run)() {
        Ok(()) => sys::exit(0),
        Err(message) => {
            let _ = sys::write(to, message.as_bytes());
            sys::exit(1)
        }
    }
}

fn wait_limited(pid: u64) -> Option<i32> {
    let began = sys::now_ns();
    let limit_ns = limit_seconds() * 1_000_000_000;
    let mut pause = 100;
    loop {
        match sys::wait(pid as i64, libc::WNOHANG) {
            Ok((got, status)) if got == pid => return Some(status),
            Ok(_) => {}
            Err(_) => return Some(-1),
        }
        if sys::now_ns() - began > limit_ns {
            let _ = sc!(SYS_kill, pid, libc::SIGKILL);
            let _ = sys::wait(pid as i64, 0);
            return None;
        }
        nap_us(pause);
        pause = (pause * 2).min(5000);
    }
}

/// Sleeps; less if a signal interrupts the sleep.
pub fn nap_us(us: u64) {
    sys::nap(us * 1000);
}

/// Runs `f` in a child and returns its raw wait status.
///
/// # Errors
/// fork or wait fails.
pub fn in_child(f: impl FnOnce() -> i32) -> Result<i32, String> {
    match sys::fork() {
        Ok(0) => sys::exit(f()),
        Ok(pid) => sys::wait(pid as i64, 0)
            .map(|(_, status)| status)
            .map_err(|e| format!("wait4: {}", errno_name(e))),
        Err(errno) => Err(format!("fork: {}", errno_name(errno))),
    }
}

/// Waits until `condition` holds, at most two seconds; returns whether it does.
pub fn soon(condition: impl Fn() -> bool) -> bool {
    within(2, condition)
}

/// Waits until `condition` holds, at most `seconds`; returns whether it does.
pub fn within(seconds: u32, condition: impl Fn() -> bool) -> bool {
    for _ in 0..seconds * 200 {
        if condition() {
            return true;
        }
        nap_us(5000);
    }
    condition()
}

/// Bytes of a page.
pub const PAGE: u64 = 4096;
/// Read and write.
pub const RW: i32 = libc::PROT_READ | libc::PROT_WRITE;
/// Private anonymous.
pub const ANON: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

/// Maps `pages` private pages at an address that the kernel chooses.
pub fn anon(pages: u64) -> Result<u64, Errno> {
    sys::mmap(0, pages * PAGE, RW, ANON, -1, 0)
}

/// An unlinked file with these bytes, open for reading and writing.
pub fn file_with(bytes: &[u8]) -> Result<i32, String> {
    let name = format!("{}/file", scratch());
    let fd = sys::open(&name, libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC, 0o600)
        .map_err(|e| format!("open {name}: {}", errno_name(e)))?;
    if sys::write(fd, bytes) != Ok(bytes.len()) {
        return Err("cannot write a file".into());
    }
    let _ = std::fs::remove_file(name);
    Ok(fd)
}

/// Other reverse maps than the default's do not look for pages that cannot be reached. Linux does.
pub fn swept() -> Result<(), String> {
    let other = user::proc::rmap().is_some_and(|name| name != "backings");
    match other {
        true => Err("skip: nothing looks for unreachable pages".into()),
        false => Ok(()),
    }
}
