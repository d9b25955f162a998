//! What /proc says of descriptors, locks and timers.

use crate::harness::*;
use user::sys;

fn text(name: &str) -> Result<String, String> {
    std::fs::read_to_string(name).map_err(|e| format!("{name}: {e}"))
}

fn info(fd: i32) -> Result<String, String> {
    text(&format!("/proc/self/fdinfo/{fd}"))
}

/// The rest of the line that begins so.
fn line<'a>(text: &'a str, name: &str) -> Result<&'a str, String> {
    let found = text.lines().find_map(|line| line.strip_prefix(name));
    found.ok_or_else(|| format!("no {name} in {text}"))
}

fn lock(fd: i32, cmd: i32, exclusive: bool, start: i64, len: i64) -> Result<u64, i32> {
    let kind = if exclusive {
        libc::F_WRLCK
    } else {
        libc::F_RDLCK
    };
    // Type and base, start, length, pid: a struct flock.
    let words = [kind as u64, start as u64, len as u64, 0];
    sc!(SYS_fcntl, fd, cmd, words.as_ptr())
}

tests! { "fdinfo";
    positions_and_flags {
        let fd = file_with(b"hello")?;
        ok!(sc!(SYS_lseek, fd, 3, 0));
        ok!(sc!(SYS_fcntl, fd, libc::F_SETFL, libc::O_APPEND));
        let found = info(fd)?;
        is!(line(&found, "pos:\t")?, "3");
        is!(line(&found, "flags:\t")?, "0102002");
        ok!(sc!(SYS_fcntl, fd, libc::F_SETFD, 1));
        is!(line(&info(fd)?, "flags:\t")?, "02102002");
        let mut stat = [0u64; 18];
        ok!(sc!(SYS_fstat, fd, stat.as_mut_ptr()));
        is!(line(&found, "ino:\t")?, stat[1].to_string());
        holds!(line(&found, "mnt_id:\t")?.parse::<u32>().is_ok());
        let mounts = text("/proc/self/mountinfo")?;
        let root = ok!(sys::open("/proc", libc::O_RDONLY, 0));
        let mount = format!("{} ", line(&info(root)?, "mnt_id:\t")?);
        holds!(mounts.lines().any(|line| line.starts_with(&mount)));
        let (from, _) = ok!(sys::pipe(libc::O_NONBLOCK));
        let found = info(from)?;
        is!((line(&found, "pos:\t")?, line(&found, "flags:\t")?), ("0", "04000"));
        holds!(info(9999).is_err());
        let names = std::fs::read_dir("/proc/self/fdinfo").map_or(0, |names| names.count());
        let descriptors = std::fs::read_dir("/proc/self/fd").map_or(0, |names| names.count());
        is!(names, descriptors);
    }
    files_of_events {
        let counter = ok!(sc!(SYS_eventfd2, 0x2a, 0)) as i32;
        is!(line(&info(counter)?, "eventfd-count: ")?, "              2a");
        let epoll = ok!(sc!(SYS_epoll_create1, 0)) as i32;
        let event = [libc::EPOLLIN as u32, 7, 0];
        ok!(sc!(SYS_epoll_ctl, epoll, libc::EPOLL_CTL_ADD, counter, event.as_ptr()));
        let found = info(epoll)?;
        let start = format!("tfd: {counter:8} events: {:8x} data: {:16x}  pos:0 ino:", 0x19, 7);
        holds!(found.lines().any(|line| line.starts_with(&start)));
        let set = [1u64 << (libc::SIGUSR1 - 1)];
        let signals = ok!(sc!(SYS_signalfd4, -1i64, set.as_ptr(), 8, 0)) as i32;
        is!(line(&info(signals)?, "sigmask:\t")?, "0000000000000200");
        let timer = ok!(sc!(SYS_timerfd_create, libc::CLOCK_REALTIME, 0)) as i32;
        let setting = [7i64, 0, 1 << 40, 0];
        ok!(sc!(SYS_timerfd_settime, timer, libc::TFD_TIMER_ABSTIME, setting.as_ptr(), 0));
        let found = info(timer)?;
        is!((line(&found, "clockid: ")?, line(&found, "ticks: ")?), ("0", "0"));
        is!(line(&found, "settime flags: ")?, "01");
        is!(line(&found, "it_interval: ")?, "(7, 0)");
        let pid = std::process::id();
        let process = ok!(sc!(SYS_pidfd_open, pid, 0)) as i32;
        is!(line(&info(process)?, "Pid:\t")?, pid.to_string());
        let pid = ok!(sys::fork());
        if pid == 0 {
            sys::exit(0);
        }
        let process = ok!(sc!(SYS_pidfd_open, pid, 0)) as i32;
        ok!(sys::wait(pid as i64, 0));
        is!(line(&info(process)?, "Pid:\t")?, "-1");
    }
    locks_are_listed {
        let fd = file_with(b"x")?;
        let me = std::process::id();
        ok!(lock(fd, libc::F_SETLK, true, 5, 10));
        ok!(lock(fd, 37, false, 100, 0));
        ok!(sc!(SYS_flock, fd, libc::LOCK_SH));
        let found = info(fd)?;
        let ino = line(&found, "ino:\t")?.to_owned();
        let wanted = [
            format!("POSIX  ADVISORY  WRITE {me} "),
            "OFDLCK ADVISORY  READ -1 ".to_owned(),
            format!("FLOCK  ADVISORY  READ {me} "),
        ];
        let ends = [format!(":{ino} 5 14"), format!(":{ino} 100 EOF"), format!(":{ino} 0 EOF")];
        for text in [found, text("/proc/locks")?] {
            for (what, end) in wanted.iter().zip(&ends) {
                holds!(text.lines().any(|line| line.contains(what.as_str()) && line.ends_with(end.as_str())));
            }
        }
        ok!(sys::close(fd));
        holds!(!text("/proc/locks")?.contains(&format!(":{ino} 5 14")));
    }
    other_processes_are_hidden {
        let (mut pid, me) = (0, std::process::id());
        holds!(text("/proc/1/fdinfo/0").is_ok() || std::path::Path::new("/proc/1/fdinfo").is_dir());
        let status = in_child(|| {
            if sys::become_user(4321, &[]).is_err() {
                return 2;
            }
            i32::from(sys::open(&format!("/proc/{me}/fdinfo/0"), libc::O_RDONLY, 0).is_ok())
        })?;
        pid += status;
        is!(pid, 0);
    }
    filters_of_core_files_are_kept_and_inherited {
        is!(text("/proc/self/coredump_filter")?, "00000033\n");
        let set = |value: &str| std::fs::write("/proc/self/coredump_filter", value).is_ok();
        holds!(set("0x3f\n"));
        is!(text("/proc/self/coredump_filter")?, "0000003f\n");
        let inherited = in_child(|| i32::from(text("/proc/self/coredump_filter") != Ok("0000003f\n".into())))?;
        is!(inherited, 0);
        holds!(set("0xfffff") && !set("x"));
        is!(text("/proc/self/coredump_filter")?, "000001ff\n");
        holds!(set("010") && text("/proc/self/coredump_filter")? == "00000008\n");
    }
    timers_are_listed {
        let event = [0x1234u64, libc::SIGUSR2 as u64, 0, 0, 0, 0, 0, 0];
        let mut id = [0i32];
        ok!(sc!(SYS_timer_create, libc::CLOCK_MONOTONIC, event.as_ptr(), id.as_mut_ptr()));
        let me = std::process::id();
        let wanted = format!("ID: {}\nsignal: {}/0000000000001234\nnotify: signal/pid.{me}\nClockID: 1\n", id[0], libc::SIGUSR2);
        is!(text("/proc/self/timers")?, wanted);
        ok!(sc!(SYS_timer_delete, id[0]));
        is!(text("/proc/self/timers")?, "");
    }
}
