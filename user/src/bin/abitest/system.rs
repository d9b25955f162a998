//! The system and its terminal: mounts, terminal requests, the log, policies.

use crate::harness::*;
use user::sys;

/// Runs `f` in a child as an unprivileged user.
fn as_nobody(f: impl FnOnce() -> i32) -> Result<i32, String> {
    in_child(|| {
        let _ = sc!(SYS_setresuid, 65534, 65534, 65534);
        f()
    })
}

fn mount(kind: &str, at: &str, flags: u64, options: &str) -> Result<u64, i32> {
    sc!(
        SYS_mount,
        path("none"),
        path(at),
        path(kind),
        flags,
        path(options)
    )
}

fn umount(at: &str, flags: i32) -> Result<u64, i32> {
    sc!(SYS_umount2, path(at), flags)
}

/// A directory to mount on, if this process may mount.
fn mount_point() -> Result<String, String> {
    // On Linux a mount namespace hides the mounts from other processes; a system without namespaces fails the call.
    if sc!(SYS_unshare, libc::CLONE_NEWNS).is_ok() {
        let private = libc::MS_REC | libc::MS_PRIVATE;
        let _ = sc!(SYS_mount, 0, path("/"), 0, private, 0);
    }
    let at = format!("{}/m", scratch());
    std::fs::create_dir_all(&at).map_err(|e| e.to_string())?;
    match mount("tmpfs", &at, 0, "") {
        Ok(_) => Ok(at),
        Err(libc::EPERM) => Err("skip: no leave to mount".into()),
        Err(errno) => Err(format!("mount: {}", errno_name(errno))),
    }
}

/// A tmpfs with options, which replaces the one that [`mount_point`] made.
fn sized(options: &str) -> Result<String, String> {
    let at = mount_point()?;
    umount(&at, 0).map_err(|errno| format!("umount: {}", errno_name(errno)))?;
    mount("tmpfs", &at, 0, options).map_err(|errno| format!("{options}: {}", errno_name(errno)))?;
    Ok(at)
}

/// The blocks of a file system: total and free.
fn blocks(at: &str) -> Result<(u64, u64), i32> {
    let mut buf = [0u64; 15];
    sc!(SYS_statfs, path(at), buf.as_mut_ptr())?;
    Ok((buf[2], buf[3]))
}

/// A terminal: a pseudo-terminal if there are any, else the console.
fn terminal() -> Result<i32, String> {
    let _ = sys::on_signal(libc::SIGTTOU, libc::SIG_IGN, 0);
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_NONBLOCK;
    if let Ok(master) = sys::open("/dev/ptmx", flags, 0) {
        let _ = sc!(SYS_ioctl, master, libc::TIOCSPTLCK, &raw const ZERO);
        if let Ok(fd) = sc!(SYS_ioctl, master, 0x5441, flags) {
            return Ok(fd as i32);
        }
    }
    sys::open("/dev/console", flags, 0).map_err(|e| format!("skip: no terminal: {}", errno_name(e)))
}

static ZERO: i32 = 0;
/// Words of the kernel's termios: four of flags, then the control characters.
type Termios = [u32; 9];

fn attributes(fd: i32) -> Result<Termios, i32> {
    let mut buf = [0; 9];
    sc!(SYS_ioctl, fd, libc::TCGETS, buf.as_mut_ptr())?;
    Ok(buf)
}

/// Sets a control character; they begin after the byte that names the line discipline.
fn set_control(termios: &mut Termios, which: usize, value: u8) {
    let at = which + 1;
    let mut word = termios[4 + at / 4].to_ne_bytes();
    word[at % 4] = value;
    termios[4 + at / 4] = u32::from_ne_bytes(word);
}

/// Computes for two milliseconds at a time, in this thread or in new ones, and sleeps in between, until a signal ends it or
/// 1.5 seconds of CPU time are over.
fn run_in_short_pieces(threads: bool) -> i32 {
    let piece = || {
        let began = sys::now_ns();
        while sys::now_ns() - began < 2_000_000 {}
    };
    let mut used = [0u64; 2];
    while used[0] < 1 || used[1] < 500_000_000 {
        if threads {
            let _ = std::thread::spawn(piece).join();
        } else {
            piece();
        }
        nap_us(300);
        let clock = libc::CLOCK_PROCESS_CPUTIME_ID;
        if sc!(SYS_clock_gettime, clock, used.as_mut_ptr()).is_err() {
            return 1;
        }
    }
    2
}

tests! { "system";
    no_name_of_a_mount_forges_a_line_or_field {
        let at = format!("{}/a\n b\tc\\d", mount_point()?);
        ok!(std::fs::create_dir(&at).map_err(|_| libc::EIO));
        ok!(mount("tmpfs", &at, 0, ""));
        for name in ["mounts", "mountinfo"] {
            let text = std::fs::read_to_string(format!("/proc/self/{name}")).unwrap_or_default();
            holds!(text.contains("/a\\012\\040b\\011c\\134d "));
            holds!(!text.lines().any(|line| line.starts_with(" b")));
        }
        ok!(umount(&at, 0));
    }
    mount_shows_and_hides {
        let at = mount_point()?;
        std::fs::write(format!("{at}/f"), b"x").map_err(|e| e.to_string())?;
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        holds!(mounts.lines().any(|line| line.split(' ').nth(1) == Some(&at)));
        ok!(umount(&at, 0));
        holds!(!std::path::Path::new(&format!("{at}/f")).exists());
        fails!(umount(&at, 0), EINVAL);
    }
    a_mount_whose_program_was_run_often_is_not_busy {
        let at = mount_point()?;
        let program = format!("{at}/program");
        holds!(std::fs::copy("/bin/sh", &program).is_ok());
        let shell = || std::process::Command::new(&program).args(["-c", "exit 7"]).status();
        for _ in 0..9 { is!(shell().map_err(|e| e.to_string())?.code(), Some(7)); }
        ok!(umount(&at, 0));
        ok!(mount("tmpfs", &at, 0, ""));
        holds!(std::fs::copy("/bin/sh", &program).is_ok());
        for _ in 0..9 { is!(shell().map_err(|e| e.to_string())?.code(), Some(7)); }
        ok!(umount(&at, libc::MNT_DETACH));
    }
    mount_errors {
        let at = mount_point()?;
        fails!(mount("nosuchfs", &at, 0, ""), ENODEV);
        fails!(mount("tmpfs", &format!("{at}/none"), 0, ""), ENOENT);
        ok!(sys::open(&format!("{at}/f"), libc::O_CREAT | libc::O_WRONLY, 0o600).and_then(sys::close));
        fails!(mount("tmpfs", &format!("{at}/f"), 0, ""), ENOTDIR);
        fails!(mount("tmpfs", &at, 0, "mode=9"), EINVAL);
        fails!(sc!(SYS_mount, 0, 8, 0, 0, 0), EFAULT);
        fails!(umount(&format!("{at}/none"), 0), ENOENT);
        fails!(umount(&format!("{at}/f"), 0), EINVAL);
        fails!(umount(&at, 0x100), EINVAL);
        fails!(umount(&at, libc::MNT_EXPIRE | libc::MNT_FORCE), EINVAL);
        is!(as_nobody(|| i32::from(mount("tmpfs", &at, 0, "") != Err(libc::EPERM)))?, 0);
        is!(as_nobody(|| i32::from(umount(&at, 0) != Err(libc::EPERM)))?, 0);
        ok!(umount(&at, 0));
    }
    nothing_is_mounted_on_what_has_left_the_tree {
        let at = mount_point()?;
        let gone = format!("{at}/gone");
        ok!(sc!(SYS_mkdir, path(&gone), 0o755));
        ok!(sc!(SYS_chdir, path(&gone)));
        ok!(sc!(SYS_rmdir, path(&gone)));
        fails!(mount("tmpfs", ".", 0, ""), ENOENT);
        ok!(sc!(SYS_mkdir, path(&gone), 0o755));
        ok!(sc!(SYS_chdir, path(&at)));
        ok!(mount("tmpfs", "gone", 0, ""));
        fails!(sc!(SYS_rmdir, path("gone")), EBUSY);
        ok!(umount(&at, libc::MNT_DETACH));
        fails!(mount("tmpfs", "gone", 0, ""), EINVAL);
        ok!(sc!(SYS_rmdir, path("gone")));
        ok!(sc!(SYS_chdir, path("/")));
    }
    a_mount_beyond_the_limit_leaves_nothing_behind {
        // The count of memory at the end finds what is left.
        let at = mount_point()?;
        let dir = |n: usize| format!("{at}/{n}");
        let more = |n| -> Result<u64, i32> {
            sc!(SYS_mkdir, path(&dir(n)), 0o755)?;
            sc!(SYS_mount, path("/tmp"), path(&dir(n)), 0, libc::MS_BIND, 0)
        };
        let full = (0..1100).map(more).find_map(Result::err);
        if full.is_some() {
            for _ in 0..300 {
                fails!(mount("tmpfs", &at, 0, ""), ENOSPC);
            }
        }
        ok!(umount(&at, libc::MNT_DETACH));
        is!(full.is_none_or(|errno| errno == libc::ENOSPC), true);
    }
    a_busy_mount_stays_unless_detached {
        let at = mount_point()?;
        let fd = ok!(sys::open(&format!("{at}/f"), libc::O_CREAT | libc::O_RDWR, 0o600));
        fails!(umount(&at, 0), EBUSY);
        ok!(umount(&at, libc::MNT_DETACH));
        is!(ok!(sys::write(fd, b"still there")), 11);
        holds!(!std::path::Path::new(&format!("{at}/f")).exists());
    }
    read_only_mounts {
        let at = mount_point()?;
        let create = |name: &str| sys::open(&format!("{at}/{name}"), libc::O_CREAT | libc::O_WRONLY, 0o600);
        ok!(create("f").and_then(sys::close));
        ok!(sc!(SYS_mount, 0, path(&at), 0, libc::MS_REMOUNT | libc::MS_RDONLY, 0));
        fails!(create("g"), EROFS);
        fails!(create("f"), EROFS);
        fails!(sc!(SYS_mkdir, path(&format!("{at}/d")), 0o700), EROFS);
        fails!(sc!(SYS_unlink, path(&format!("{at}/f"))), EROFS);
        fails!(sc!(SYS_rename, path(&format!("{at}/f")), path(&format!("{at}/h"))), EROFS);
        fails!(sc!(SYS_chmod, path(&format!("{at}/f")), 0o644), EROFS);
        fails!(sc!(SYS_truncate, path(&format!("{at}/f")), 0), EROFS);
        fails!(sc!(SYS_access, path(&format!("{at}/f")), libc::W_OK), EROFS);
        ok!(sc!(SYS_mount, 0, path(&at), 0, libc::MS_REMOUNT, 0));
        ok!(create("g").and_then(sys::close));
        ok!(umount(&at, 0));
    }
    a_remount_that_is_refused_changes_nothing {
        let at = sized("size=64k,nr_inodes=9")?;
        let fd = ok!(sys::open(&format!("{at}/f"), libc::O_CREAT | libc::O_RDWR, 0o600));
        let remount = |options: &str| {
            let flags = libc::MS_REMOUNT | libc::MS_RDONLY;
            sc!(SYS_mount, 0, path(&at), 0, flags, path(options))
        };
        fails!(remount("size=128k,nr_inodes=20"), EBUSY);
        is!(ok!(blocks(&at)).0, 16);
        // Options are read first, limits are set last.
        fails!(remount("size=128q"), EINVAL);
        fails!(remount("nr_inodes=1"), EBUSY);
        ok!(sys::close(fd));
        fails!(remount("nr_inodes=1"), EINVAL);
        ok!(remount("size=128k"));
        is!(ok!(blocks(&at)).0, 32);
        ok!(umount(&at, 0));
    }
    tmpfs_holds_what_it_was_given {
        let at = sized("size=64k,mode=700")?;
        is!(ok!(blocks(&at)), (16, 16));
        let file = format!("{at}/f");
        let fd = ok!(sys::open(&file, libc::O_CREAT | libc::O_RDWR, 0o600));
        is!(ok!(sys::write(fd, &[1; 100_000])), 65536);
        is!(ok!(blocks(&at)), (16, 0));
        fails!(sys::write(fd, b"x"), ENOSPC);
        fails!(sc!(SYS_fallocate, fd, 0, 65536, 4096), ENOSPC);
        // The size of a file takes no pages; pages that are allocated can be rewritten.
        ok!(sc!(SYS_ftruncate, fd, 1 << 30));
        is!(ok!(sc!(SYS_pwrite64, fd, b"y".as_ptr(), 1, 100)), 1);
        fails!(sc!(SYS_pwrite64, fd, b"y".as_ptr(), 1, 1 << 20), ENOSPC);
        ok!(sc!(SYS_ftruncate, fd, 16384));
        is!(ok!(blocks(&at)), (16, 12));
        ok!(sc!(SYS_fallocate, fd, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, 0, 8192));
        is!(ok!(blocks(&at)), (16, 14));
        fails!(sc!(SYS_fallocate, fd, libc::FALLOC_FL_KEEP_SIZE, 1 << 20, 1 << 20), ENOSPC);
        is!(ok!(blocks(&at)), (16, 14));
        ok!(sys::close(fd));
        ok!(sc!(SYS_unlink, path(&file)));
        is!(ok!(blocks(&at)), (16, 16));
        ok!(umount(&at, 0));
    }
    tmpfs_pages_by_fault_count {
        let at = sized("size=2M")?;
        let fd = ok!(sys::open(&format!("{at}/f"), libc::O_CREAT | libc::O_RDWR, 0o600));
        ok!(sc!(SYS_ftruncate, fd, 4 << 20));
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let base = ok!(sys::mmap(0, 4 << 20, prot, libc::MAP_SHARED, fd, 0));
        (0..512).for_each(|page| sys::poke64(base + page * 4096, page));
        is!(ok!(blocks(&at)).1, 0);
        is!(sys::catch(|| sys::poke64(base + (3 << 20), 1)).map(|f| f.signal), Some(libc::SIGBUS));
        // The pages are kept as long as the mapping.
        ok!(sys::close(fd));
        ok!(sc!(SYS_unlink, path(&format!("{at}/f"))));
        is!(ok!(blocks(&at)).1, 0);
        ok!(sys::munmap(base, 4 << 20));
        is!(ok!(blocks(&at)).1, 512);
        ok!(umount(&at, 0));
    }
    tmpfs_sizes {
        let at = sized("size=1m")?;
        is!(ok!(blocks(&at)).0, 256);
        std::fs::write(format!("{at}/f"), [1; 65536]).map_err(|e| e.to_string())?;
        let resize = |options: &str| {
            sc!(SYS_mount, 0, path(&at), 0, libc::MS_REMOUNT, path(options))
        };
        fails!(resize("size=32k"), EINVAL);
        ok!(resize("size=128k"));
        is!(ok!(blocks(&at)), (32, 16));
        fails!(resize("size=32q"), EINVAL);
        ok!(umount(&at, 0));
        for (options, all) in [("nr_blocks=4", 4), ("size=4097", 2), ("size=0", 0)] {
            ok!(mount("tmpfs", &at, 0, options));
            is!((options, ok!(blocks(&at)).0), (options, all));
            ok!(umount(&at, 0));
        }
        let mut half = 0;
        for options in ["size=50%", ""] {
            ok!(mount("tmpfs", &at, 0, options));
            let all = ok!(blocks(&at)).0;
            holds!(half == 0 || all.abs_diff(half) <= 1);
            half = all;
            ok!(umount(&at, 0));
        }
        holds!(half > 0);
        for options in ["size=", "size=x", "size=5%%", "nr_blocks=z"] {
            fails!(mount("tmpfs", &at, 0, options), EINVAL);
        }
    }
    bind_mounts_show_the_same_files {
        let at = mount_point()?;
        for dir in ["a", "b"] { ok!(sc!(SYS_mkdir, path(&format!("{at}/{dir}")), 0o755)); }
        ok!(sc!(SYS_mount, path(&format!("{at}/a")), path(&format!("{at}/b")), 0, libc::MS_BIND, 0));
        std::fs::write(format!("{at}/b/f"), b"same").map_err(|e| e.to_string())?;
        is!(std::fs::read(format!("{at}/a/f")).unwrap_or_default(), b"same");
        fails!(sc!(SYS_link, path(&format!("{at}/a/f")), path(&format!("{at}/b/g"))), EXDEV);
        fails!(sc!(SYS_rename, path(&format!("{at}/a/f")), path(&format!("{at}/b/g"))), EXDEV);
        fails!(sc!(SYS_rmdir, path(&format!("{at}/b"))), EBUSY);
        ok!(umount(&format!("{at}/b"), 0));
        fails!(sc!(SYS_mount, path("/none"), path(&format!("{at}/b")), 0, libc::MS_BIND, 0), ENOENT);
        ok!(umount(&at, 0));
    }
    terminal_attributes {
        let fd = terminal()?;
        let old = ok!(attributes(fd));
        let mut new = old;
        new[3] ^= libc::ECHO;
        for request in [libc::TCSETS, libc::TCSETSW, libc::TCSETSF] {
            ok!(sc!(SYS_ioctl, fd, request, new.as_ptr()));
            is!(ok!(attributes(fd))[3], new[3]);
            ok!(sc!(SYS_ioctl, fd, request, old.as_ptr()));
            is!(ok!(attributes(fd)), old);
        }
        fails!(sc!(SYS_ioctl, fd, libc::TCGETS, 8), EFAULT);
        fails!(sc!(SYS_ioctl, fd, libc::TCSETS, 8), EFAULT);
        fails!(sc!(SYS_ioctl, fd, 0x54ff, 0), ENOTTY | EINVAL);
    }
    terminal_size_and_queues {
        let fd = terminal()?;
        let (mut old, mut now) = ([0u16; 4], [0u16; 4]);
        ok!(sc!(SYS_ioctl, fd, libc::TIOCGWINSZ, old.as_mut_ptr()));
        ok!(sc!(SYS_ioctl, fd, libc::TIOCSWINSZ, [50u16, 132, 0, 0].as_ptr()));
        ok!(sc!(SYS_ioctl, fd, libc::TIOCGWINSZ, now.as_mut_ptr()));
        is!(now, [50, 132, 0, 0]);
        ok!(sc!(SYS_ioctl, fd, libc::TIOCSWINSZ, old.as_ptr()));
        let mut n = -1i32;
        ok!(sc!(SYS_ioctl, fd, libc::FIONREAD, &raw mut n));
        is!(n, 0);
        ok!(sc!(SYS_ioctl, fd, libc::TIOCOUTQ, &raw mut n));
        fails!(sc!(SYS_ioctl, fd, libc::TIOCGWINSZ, 8), EFAULT);
    }
    // No byte need come (VMIN is 0): a read that finds none has read nothing, unless it would have to wait (VTIME).
    terminal_reads_of_nothing {
        // In a session of its own, to which the console does not deny input as to a group behind.
        is!(in_child(|| {
            let _ = sc!(SYS_setsid);
            let Ok(fd) = terminal() else { return 0 };
            let Ok(old) = attributes(fd) else { return 1 };
            let read = |min: u8, time: u8| {
                let mut new = old;
                new[3] &= !libc::ICANON;
                set_control(&mut new, libc::VMIN, min);
                set_control(&mut new, libc::VTIME, time);
                sc!(SYS_ioctl, fd, libc::TCSETS, new.as_ptr())?;
                sys::read(fd, &mut [0; 8])
            };
            let found = [read(0, 0), read(0, 1), read(1, 0), read(1, 1)];
            let _ = sc!(SYS_ioctl, fd, libc::TCSETS, old.as_ptr());
            let none = Err(libc::EAGAIN);
            i32::from(found != [Ok(0), none, none, none])
        })?, 0);
    }
    what_is_no_terminal {
        let file = file_with(b"x")?;
        let (from, _to) = ok!(sys::pipe(0));
        for fd in [file, from, ok!(sys::open("/dev/null", 0, 0)), ok!(sys::open("/", 0, 0))] {
            fails!(attributes(fd), ENOTTY);
            fails!(sc!(SYS_ioctl, fd, libc::TIOCGWINSZ, [0u16; 4].as_mut_ptr()), ENOTTY);
            fails!(sc!(SYS_ioctl, fd, libc::TIOCGPGRP, [0i32; 1].as_mut_ptr()), ENOTTY);
        }
        fails!(attributes(9999), EBADF);
    }
    dev_tty_takes_a_terminal {
        is!(in_child(|| {
            let _ = sc!(SYS_setsid);
            let missing = sys::open("/dev/tty", libc::O_RDWR, 0) == Err(libc::ENXIO);
            i32::from(!missing)
        })?, 0);
    }
    log_requests {
        holds!(ok!(sc!(SYS_syslog, 10, 0, 0)) > 0);
        let mut buf = vec![0u8; 4096];
        fails!(sc!(SYS_syslog, 3, 0, 100), EINVAL);
        fails!(sc!(SYS_syslog, 3, buf.as_mut_ptr(), -1i64), EINVAL);
        is!(ok!(sc!(SYS_syslog, 3, buf.as_mut_ptr(), 0)), 0);
        fails!(sc!(SYS_syslog, 99, 0, 0), EINVAL);
        fails!(sc!(SYS_syslog, 8, 0, 99), EINVAL);
        let n = ok!(sc!(SYS_syslog, 3, buf.as_mut_ptr(), 4096)) as usize;
        holds!(n > 0 && n <= 4096 && buf[0] == b'<' && buf[n - 1] == b'\n');
        is!(as_nobody(|| i32::from(sc!(SYS_syslog, 5, 0, 0) != Err(libc::EPERM)))?, 0);
    }
    unshare_gives_an_own_table {
        ok!(sc!(SYS_unshare, 0));
        let fd = ok!(sys::open("/dev/null", 0, 0));
        ok!(sc!(SYS_unshare, libc::CLONE_FILES | libc::CLONE_FS));
        ok!(sc!(SYS_fcntl, fd, libc::F_GETFD));
        fails!(sc!(SYS_unshare, libc::CLONE_PARENT), EINVAL);
    }
    memory_policy {
        let (mut mode, mut mask) = (9i32, [0u64; 16]);
        ok!(sc!(SYS_get_mempolicy, &raw mut mode, mask.as_mut_ptr(), 1024, 0, 0));
        is!((mode, mask[0]), (0, 0));
        ok!(sc!(SYS_get_mempolicy, &raw mut mode, mask.as_mut_ptr(), 1024, 0, 4));
        holds!(mask[0] & 1 == 1);
        fails!(sc!(SYS_get_mempolicy, &raw mut mode, 0, 0, 0, 8), EINVAL);
        fails!(sc!(SYS_get_mempolicy, &raw mut mode, 0, 0, 4096, 0), EINVAL);
        fails!(sc!(SYS_get_mempolicy, &raw mut mode, 0, 0, 8, 2), EFAULT);
        ok!(sc!(SYS_set_mempolicy, 0, 0, 0));
        fails!(sc!(SYS_set_mempolicy, 0, [1u64].as_ptr(), 65), EINVAL);
        fails!(sc!(SYS_set_mempolicy, 99, 0, 0), EINVAL);
    }
    priorities_of_transfers {
        ok!(sc!(SYS_ioprio_get, 1, 0));
        fails!(sc!(SYS_ioprio_get, 99, 0), EINVAL);
        fails!(sc!(SYS_ioprio_get, 1, 4_000_000), ESRCH);
    }
    cpu_time_is_limited {
        let busy = |limit: [u64; 2]| in_child(|| {
            let _ = sys::default_signal(libc::SIGXCPU);
            let _ = sc!(SYS_prlimit64, 0, libc::RLIMIT_CPU, limit.as_ptr(), 0);
            loop { std::hint::spin_loop(); }
        });
        is!(busy([1, 5])? & 0x7f, libc::SIGXCPU);
        let both = busy([1, 1])? & 0x7f;
        holds!(both == libc::SIGKILL || both == libc::SIGXCPU);
    }
    // Neither a process nor its threads are spared because they sleep, or end, before a tick finds them running.
    short_runs_count_for_limits_of_cpu_time {
        let by_threads = |limit: bool| in_child(|| {
            let _ = sys::default_signal(libc::SIGXCPU);
            let _ = sys::default_signal(libc::SIGPROF);
            match limit {
                true => sc!(SYS_prlimit64, 0, libc::RLIMIT_CPU, [1u64, 5].as_ptr(), 0),
                false => sc!(SYS_setitimer, libc::ITIMER_PROF, [0u64, 0, 0, 300_000].as_ptr(), 0),
            }.map_or(1, |_| run_in_short_pieces(!limit))
        });
        is!(by_threads(true)?, libc::SIGXCPU);
        is!(by_threads(false)?, libc::SIGPROF);
    }
    process_switches {
        for (set, get) in [(libc::PR_SET_DUMPABLE, libc::PR_GET_DUMPABLE), (libc::PR_SET_KEEPCAPS, libc::PR_GET_KEEPCAPS)] {
            for on in [0, 1, 0] {
                ok!(sc!(SYS_prctl, set, on, 0, 0, 0));
                is!(ok!(sc!(SYS_prctl, get, 0, 0, 0, 0)), on);
            }
            fails!(sc!(SYS_prctl, set, 7, 0, 0, 0), EINVAL);
        }
        let mut signal = 0i32;
        ok!(sc!(SYS_prctl, libc::PR_SET_PDEATHSIG, libc::SIGUSR1, 0, 0, 0));
        ok!(sc!(SYS_prctl, libc::PR_GET_PDEATHSIG, &raw mut signal, 0, 0, 0));
        is!(signal, libc::SIGUSR1);
        fails!(sc!(SYS_prctl, libc::PR_SET_PDEATHSIG, 99, 0, 0, 0), EINVAL);
        fails!(sc!(SYS_prctl, 9999, 0, 0, 0, 0), EINVAL);
    }
    cpu_flags {
        // The properties that the CPU reports, as far as programs may use them.
        let info = std::fs::read_to_string("/proc/cpuinfo").map_err(|e| e.to_string())?;
        let flags = info.lines().find_map(|line| line.strip_prefix("flags\t\t:")).ok_or("no flags")?;
        macro_rules! agrees {
            ($($name:literal as $feature:tt),*) => {$(
                is!(($name, flags.split(' ').any(|flag| flag == $name)), ($name, is_x86_feature_detected!($feature)));
            )*};
        }
        agrees!("sse2" as "sse2", "pni" as "sse3", "ssse3" as "ssse3", "sse4_2" as "sse4.2", "popcnt" as "popcnt",
                "aes" as "aes", "avx" as "avx", "avx2" as "avx2", "fma" as "fma", "bmi1" as "bmi1", "bmi2" as "bmi2",
                "adx" as "adx", "rdseed" as "rdseed", "rdrand" as "rdrand", "avx512f" as "avx512f", "xsaveopt" as "xsaveopt");
        for field in ["cpu family", "model name", "bogomips", "clflush size", "address sizes"] {
            holds!(info.lines().any(|line| line.starts_with(field) && !line.ends_with(": ")));
        }
    }
    host_name {
        let nobody = as_nobody(|| i32::from(sc!(SYS_sethostname, path("x"), 1) != Err(libc::EPERM)))?;
        is!(nobody, 0);
        fails!(sc!(SYS_sethostname, path("x"), 65), EINVAL);
        fails!(sc!(SYS_sethostname, 8, 5), EFAULT);
    }
    domain_name {
        const FILE: &str = "/proc/sys/kernel/domainname";
        let read = || std::fs::read_to_string(FILE).unwrap_or_default();
        let in_uname = || {
            let mut names = [0u8; 6 * 65];
            sc!(SYS_uname, names.as_mut_ptr()).map(|_| {
                let field = names[5 * 65..].iter().take_while(|&&byte| byte != 0);
                field.map(|&byte| char::from(byte)).collect::<String>()
            })
        };
        let before = read();
        is!(ok!(in_uname()), before.trim_end());
        ok!(sc!(SYS_setdomainname, path("first.example"), 5));
        is!((read(), ok!(in_uname())), ("first\n".to_owned(), "first".to_owned()));
        ok!(std::fs::write(FILE, "second\nthird\n").map_err(|e| e.raw_os_error().unwrap_or(0)));
        is!((read(), ok!(in_uname())), ("second\n".to_owned(), "second".to_owned()));
        let name = before.trim_end();
        ok!(sc!(SYS_setdomainname, path(name), name.len()));
        is!(read(), before);
    }
    scheduling_policies {
        is!(ok!(sc!(SYS_sched_getscheduler, 0)), 0);
        ok!(sc!(SYS_sched_setscheduler, 0, libc::SCHED_BATCH, [0i32].as_ptr()));
        is!(ok!(sc!(SYS_sched_getscheduler, 0)), libc::SCHED_BATCH as u64);
        fails!(sc!(SYS_sched_setscheduler, 0, libc::SCHED_OTHER, [5i32].as_ptr()), EINVAL);
        fails!(sc!(SYS_sched_setscheduler, 0, 99, [0i32].as_ptr()), EINVAL);
        fails!(sc!(SYS_sched_setscheduler, 0, 0, 8), EFAULT);
        fails!(sc!(SYS_sched_getscheduler, -1i64), EINVAL);
        fails!(sc!(SYS_sched_getscheduler, 4_000_000), ESRCH);
        is!([ok!(sc!(SYS_sched_get_priority_min, 1)), ok!(sc!(SYS_sched_get_priority_max, 1))], [1, 99]);
        fails!(sc!(SYS_sched_get_priority_max, 99), EINVAL);
        let (mut cpu, mut node) = (99u32, 99u32);
        ok!(sc!(SYS_getcpu, &raw mut cpu, &raw mut node, 0));
        holds!(sys::cpus().contains(&(cpu as usize)) && node < 64);
    }
    nice_values {
        // The kernel's answer is 20 less the nice value.
        is!(ok!(sc!(SYS_getpriority, 0, 0)), 20);
        ok!(sc!(SYS_setpriority, 0, 0, 5));
        is!(ok!(sc!(SYS_getpriority, 0, 0)), 15);
        ok!(sc!(SYS_setpriority, 0, 0, 100));
        is!(ok!(sc!(SYS_getpriority, 0, 0)), 1);
        fails!(sc!(SYS_getpriority, 9, 0), EINVAL);
        fails!(sc!(SYS_getpriority, 0, 4_000_000), ESRCH);
        is!(as_nobody(|| i32::from(sc!(SYS_setpriority, 0, 0, 0) != Err(libc::EACCES)))?, 0);
    }
}
