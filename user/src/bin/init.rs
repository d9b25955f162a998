//! `init`: the first process of the image.
//!
//! Guarantee: it ends with the status of the program that it ran, after it has reaped every child; the kernel (option
//! `pantala.exit=debug`) or, if there is /dev/port, this program hands that status to QEMU.
//! Mechanism: mounts /proc, /sys, /dev and /tmp if they are missing, gives the program the console and a plain
//! environment, and reaps orphans while it runs.
//!
//! The program: the option `pantala.cmd=` of the kernel's command line (with `%XX` for blanks and quotes), passed to a
//! shell; the value `shell` means an interactive shell, and `tour` or no value the tour. Arguments are ignored: a
//! kernel passes every option that it does not know to init.

use std::ffi::{CStr, CString};
use std::fs;
use std::os::unix::fs::FileExt;
use user::{proc, sys};

/// The mounts, in order; a failure matters only if the directory is empty.
const MOUNTS: [(&str, &str, &str); 7] = [
    ("proc", "/proc", "/proc/self"),
    ("sysfs", "/sys", "/sys/devices"),
    ("devtmpfs", "/dev", "/dev/null"),
    ("devpts", "/dev/pts", "/dev/pts/ptmx"),
    ("tmpfs", "/tmp", ""),
    ("tmpfs", "/dev/shm", ""),
    ("debugfs", "/sys/kernel/debug", ""),
];

/// Terminals belong to the group that Debian calls `tty`, which may write to them.
const PTS_OPTIONS: &CStr = c"mode=620,gid=5,ptmxmode=666";

const ENVIRONMENT: [&str; 6] = [
    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME=/root",
    "TERM=linux",
    "SHELL=/bin/bash",
    "USER=root",
    "LANG=C",
];

/// The port of QEMU's isa-debug-exit device: it exits with twice the value written there plus one.
const EXIT_PORT: u64 = 0xf4;

/// Names that /dev has by convention and a fresh one may lack.
const DEV_LINKS: [(&str, &str); 4] = [
    ("/proc/self/fd", "/dev/fd"),
    ("/proc/self/fd/0", "/dev/stdin"),
    ("/proc/self/fd/1", "/dev/stdout"),
    ("/proc/self/fd/2", "/dev/stderr"),
];

fn mount_all() {
    for (kind, dir, proof) in MOUNTS {
        let _ = fs::create_dir_all(dir);
        if !proof.is_empty() && fs::symlink_metadata(proof).is_ok() {
            continue;
        }
        let (kind_c, dir_c) = (CString::new(kind), CString::new(dir));
        let (Ok(kind_c), Ok(dir_c)) = (kind_c, dir_c) else {
            continue;
        };
        let (kind_p, dir_p) = (kind_c.as_ptr() as u64, dir_c.as_ptr() as u64);
        let options = match kind {
            "devpts" => PTS_OPTIONS.as_ptr() as u64,
            _ => 0,
        };
        let mounted = sys::call(libc::SYS_mount, &[kind_p, dir_p, kind_p, 0, options]);
        if let (Err(errno), false) = (mounted, proof.is_empty()) {
            let reason = std::io::Error::from_raw_os_error(errno);
            eprintln!("init: cannot mount {kind} on {dir}: {reason}");
        }
    }
}

fn link_devices() {
    for (target, link) in DEV_LINKS {
        if fs::symlink_metadata(link).is_err() {
            let _ = std::os::unix::fs::symlink(target, link);
        }
    }
}

/// Opens the console as descriptors 0, 1 and 2 of this process if the kernel has not.
fn open_console() {
    for fd in 0..3u64 {
        let missing = sys::call(libc::SYS_fcntl, &[fd, libc::F_GETFD as u64]).is_err();
        if missing && sys::open("/dev/console", libc::O_RDWR, 0).is_err() {
            return;
        }
    }
}

/// The program and its arguments.
fn command() -> Vec<String> {
    let shell = ["/bin/bash", "/bin/sh"]
        .into_iter()
        .find(|path| fs::metadata(path).is_ok());
    let shell = shell.unwrap_or("/bin/busybox").to_owned();
    let applet = shell.ends_with("busybox").then(|| "sh".to_owned());
    let shell_with = |rest: &[&str]| {
        let rest = rest.iter().map(|&s| s.to_owned());
        std::iter::once(shell.clone())
            .chain(applet.clone())
            .chain(rest)
            .collect::<Vec<_>>()
    };
    match proc::boot_option("pantala.cmd").as_deref() {
        Some("shell") => shell_with(&["-i"]),
        None | Some("tour") => shell_with(&["/usr/lib/pantala/tour"]),
        Some(line) => shell_with(&["-c", line]),
    }
}

/// Makes the serial line of the console the controlling terminal of the caller's session, and its descriptors 0, 1 and
/// 2, as getty does: when the session ends, the terminal hangs up, and processes left by the session lose access to it.
fn take_terminal() {
    let console = proc::boot_option("console").unwrap_or_else(|| "ttyS0".to_owned());
    let name = console.split(',').next().unwrap_or_default();
    let Ok(line) = sys::open(&format!("/dev/{name}"), libc::O_RDWR, 0) else {
        let _ = sys::call(libc::SYS_ioctl, &[0, libc::TIOCSCTTY, 0]);
        return;
    };
    for fd in 0..3 {
        let _ = sys::call(libc::SYS_dup2, &[line as u64, fd]);
    }
    let _ = sys::close(line);
}

/// In the child: a session with the console's line as its terminal, then the program.
fn become_program(words: &[String]) -> ! {
    let _ = sys::call(libc::SYS_setsid, &[]);
    take_terminal();
    // Rust's runtime ignores SIGPIPE, and an ignored signal stays ignored across execve.
    let _ = sys::default_signal(libc::SIGPIPE);
    let _ = std::env::set_current_dir("/root");
    let c_strings = |list: &mut dyn Iterator<Item = &str>| {
        list.filter_map(|s| CString::new(s).ok())
            .collect::<Vec<_>>()
    };
    let argv = c_strings(&mut words.iter().map(String::as_str));
    let envp = c_strings(&mut ENVIRONMENT.into_iter());
    let pointers = |list: &[CString]| {
        list.iter()
            .map(|s| s.as_ptr())
            .chain([std::ptr::null()])
            .collect::<Vec<_>>()
    };
    let (argv_p, envp_p) = (pointers(&argv), pointers(&envp));
    let answer = sys::call(
        libc::SYS_execve,
        &[
            argv[0].as_ptr() as u64,
            argv_p.as_ptr() as u64,
            envp_p.as_ptr() as u64,
        ],
    );
    let reason = answer.map_or_else(std::io::Error::from_raw_os_error, |_| unreachable!());
    eprintln!("init: cannot run {}: {reason}", words[0]);
    sys::exit(127)
}

/// Waits until `program` ends, reaping all other children; then (as process 1) kills the remaining processes and reaps
/// them too.
fn supervise(program: u64, first: bool) -> i32 {
    let status = loop {
        match sys::wait(-1, 0) {
            Ok((pid, status)) if pid == program => break status,
            Ok(_) => {}
            Err(errno) => {
                eprintln!("init: wait4: {}", std::io::Error::from_raw_os_error(errno));
                return 125;
            }
        }
    };
    if first {
        // Only process 1 may kill all others.
        let _ = sys::call(libc::SYS_kill, &[-1i64 as u64, libc::SIGKILL as u64]);
    }
    while sys::wait(-1, 0).is_ok() {}
    if libc::WIFSIGNALED(status) {
        128 + libc::WTERMSIG(status)
    } else {
        libc::WEXITSTATUS(status)
    }
}

/// Ends the emulator if the kernel offers I/O ports and does not know `pantala.exit`, as Linux.
fn leave_by_port(status: u8) {
    if let Ok(ports) = fs::OpenOptions::new().write(true).open("/dev/port") {
        // If the write fails, the machine goes on, and this program's own exit ends it.
        let _ = ports.write_at(&[status], EXIT_PORT);
    }
}

fn main() {
    let first = std::process::id() == 1;
    if first {
        mount_all();
        link_devices();
        open_console();
    }
    let words = command();
    let status = match sys::fork() {
        Ok(0) => become_program(&words),
        Ok(pid) => supervise(pid, first),
        Err(errno) => {
            eprintln!("init: fork: {}", std::io::Error::from_raw_os_error(errno));
            125
        }
    };
    if first {
        let _ = sys::call(libc::SYS_sync, &[]);
        if proc::boot_option("pantala.exit").as_deref() == Some("debug") {
            println!("\ninit exited with status {status}");
            // Waits until the console has sent all output: the next instruction may be the machine's last.
            let _ = sys::call(libc::SYS_ioctl, &[1, libc::TCSBRK, 1]);
            leave_by_port(status as u8);
        } else {
            let power_off = libc::LINUX_REBOOT_CMD_POWER_OFF as u32;
            let (magic1, magic2) = (0xfee1_deadu64, 672_274_793u64);
            let _ = sys::call(libc::SYS_reboot, &[magic1, magic2, u64::from(power_off)]);
        }
    }
    sys::exit(status)
}
