//! Pseudo-terminals: pty(7), tty_ioctl(4), TIOCPKT of tty_ioctl(2).

use crate::harness::*;
use crate::pty_ends::*;
use user::sys;

extern "C" fn nothing(_: i32) {}

tests! { "pty";
    a_terminal_is_locked_until_its_master_unlocks_it {
        let m = ok!(sys::open("/dev/ptmx", libc::O_RDWR, 0));
        let name = format!("/dev/pts/{}", ok!(asked(m, libc::TIOCGPTN)));
        is!(asked(m, TIOCGPTLCK), Ok(1));
        fails!(slave(&name), EIO);
        ok!(set(m, libc::TIOCSPTLCK, 0));
        is!(asked(m, TIOCGPTLCK), Ok(0));
        let s = ok!(slave(&name));
        ok!(set(m, libc::TIOCSPTLCK, 1));
        fails!(slave(&name), EIO);
        fails!(ioctl(m, libc::TIOCSPTLCK, 8), EFAULT);
        // The requests of a master are none of a terminal.
        for request in [libc::TIOCGPTN, TIOCGPTLCK, TIOCGPKT] {
            fails!(asked(s, request), ENOTTY);
        }
        fails!(set(s, libc::TIOCSPTLCK, 0), ENOTTY);
        fails!(ioctl(s, TIOCGPTPEER, 0), ENOTTY|EIO);
        fails!(ioctl(m, 0x5499, 0), ENOTTY);
        fails!(sc!(SYS_lseek, m, 0, 0), ESPIPE);
    }
    the_node_belongs_to_the_opener_and_goes_with_the_master {
        let (m, name) = ok!(master(0));
        let mut st = sys::zeroed_stat();
        ok!(sc!(SYS_stat, path(&name), &raw mut st));
        let n = ok!(asked(m, libc::TIOCGPTN));
        is!(st.st_mode & libc::S_IFMT, libc::S_IFCHR);
        is!(st.st_rdev, (136 << 8 | n as u64 & 0xff) | (n as u64 & !0xff) << 12);
        is!(st.st_uid, 0);
        is!(st.st_ino, 3 + n as u64);
        let s = ok!(slave(&name));
        let mut of_file = sys::zeroed_stat();
        ok!(sc!(SYS_fstat, s, &raw mut of_file));
        is!((of_file.st_dev, of_file.st_ino), (st.st_dev, st.st_ino));
        let link = std::fs::read_link(format!("/proc/self/fd/{s}"));
        is!(link.ok().and_then(|l| l.to_str().map(str::to_owned)), Some(name.clone()));
        let listed = || std::fs::read_dir("/dev/pts").is_ok_and(|dir| {
            dir.flatten().any(|e| e.file_name().to_str() == Some(&n.to_string()))
        });
        holds!(listed());
        ok!(sc!(SYS_chmod, path(&name), 0o600));
        ok!(sc!(SYS_stat, path(&name), &raw mut st));
        is!(st.st_mode & 0o7777, 0o600);
        fails!(sc!(SYS_unlink, path(&name)), EPERM);
        fails!(sc!(SYS_mkdir, path("/dev/pts/dir"), 0o700), EPERM|ENOENT);
        ok!(sys::close(m));
        fails!(slave(&name), ENOENT);
        holds!(!listed());
        // The number is not given to another terminal as long as this one is open.
        let (other, other_name) = ok!(master(0));
        holds!(other_name != name);
        ok!(sys::close(s));
        ok!(sys::close(other));
    }
    numbers_are_counted_and_bounded {
        let nr = || std::fs::read_to_string("/proc/sys/kernel/pty/nr").ok()
            .and_then(|text| text.trim().parse::<u32>().ok());
        let max = std::fs::read_to_string("/proc/sys/kernel/pty/max");
        holds!(max.is_ok_and(|text| text.trim().parse::<u32>().is_ok_and(|n| n > 0)));
        holds!(std::fs::read_to_string("/proc/sys/kernel/pty/reserve").is_ok());
        let Some(before) = nr() else { return Err("no count".to_owned()) };
        let (m, _) = ok!(master(0));
        holds!(nr().is_some_and(|now| now > before));
        ok!(sys::close(m));
    }
    a_line_passes_through_the_discipline {
        let (m, s) = ok!(pair());
        is!(sys::write(m, b"helo\x7flo\n"), Ok(8));
        is!(read(s), Ok(b"hello\n".to_vec()));
        is!(read_all(m, 11), Ok(b"helo\x08 \x08lo\r\n".to_vec()));
        is!(sys::write(s, b"a\nb"), Ok(3));
        is!(read_all(m, 4), Ok(b"a\r\nb".to_vec()));
        is!(sys::write(m, b"rest\x04\x04"), Ok(6));
        is!(read(s), Ok(b"rest".to_vec()));
        is!(read(s), Ok(vec![]));
    }
    settings_are_those_of_the_terminal_from_both_ends {
        let (m, s) = ok!(pair());
        let fresh = ok!(attributes(s));
        is!(fresh.c_iflag, 0o2400);
        is!(fresh.c_oflag, 5);
        is!(fresh.c_cflag, 0o17 | libc::CS8 | libc::CREAD);
        is!(fresh.c_lflag, 0o105073);
        is!(fresh.c_cc[..7].to_vec(), [3, 0x1c, 0x7f, 0x15, 4, 0, 1]);
        ok!(change(m, |t| t.c_lflag &= !libc::ECHO));
        is!(ok!(attributes(s)).c_lflag & libc::ECHO, 0);
        ok!(change(s, |t| t.c_cflag = libc::B9600 | libc::CS7 | libc::PARENB));
        is!(ok!(attributes(m)).c_cflag, libc::B9600 | libc::CS8 | libc::CREAD);
        let mut size = [0u16; 4];
        ok!(ioctl(s, libc::TIOCGWINSZ, &raw mut size as u64));
        is!(size, [0; 4]);
        let new = [30u16, 90, 1, 2];
        ok!(ioctl(m, libc::TIOCSWINSZ, &raw const new as u64));
        ok!(ioctl(s, libc::TIOCGWINSZ, &raw mut size as u64));
        is!(size, new);
        ok!(ioctl(m, libc::TIOCGWINSZ, &raw mut size as u64));
        is!(size, new);
    }
    waiting_bytes_are_counted_and_dropped {
        let (m, s) = ok!(pair());
        is!(sys::write(m, b"ab\x04cd\nxy"), Ok(8));
        is!(events(s, libc::POLLIN, 1000), Ok(libc::POLLIN));
        nap_us(20_000);
        is!(asked(s, libc::FIONREAD), Ok(5));
        is!(asked(s, libc::TIOCOUTQ), Ok(0));
        is!(read(s), Ok(b"ab".to_vec()));
        ok!(ioctl(s, libc::TCFLSH, libc::TCIFLUSH as u64));
        is!(asked(s, libc::FIONREAD), Ok(0));
        nap_us(20_000);
        let echoed = ok!(asked(m, libc::FIONREAD));
        is!(read(m).map(|b| b.len() as i32), Ok(echoed));
        ok!(make_raw(s));
        is!(sys::write(s, b"12345"), Ok(5));
        is!(events(m, ALL, 1000), Ok(libc::POLLIN | libc::POLLOUT));
        is!(asked(m, libc::FIONREAD), Ok(5));
        ok!(ioctl(m, libc::TCFLSH, libc::TCIOFLUSH as u64));
        is!(asked(m, libc::FIONREAD), Ok(0));
        fails!(ioctl(s, libc::TCFLSH, 3), EINVAL);
        fails!(ioctl(s, libc::TCXONC, 4), EINVAL);
        ok!(ioctl(s, libc::TCSBRK, 1));
        ok!(ioctl(m, libc::TCSBRK, 1));
    }
    reads_without_editing_wait_for_as_many_bytes_as_asked {
        let (m, s) = ok!(pair());
        ok!(make_raw(s));
        ok!(change(s, |t| t.c_cc[libc::VMIN] = 3));
        is!(sys::write(m, b"ab"), Ok(2));
        is!(events(s, libc::POLLIN, 50), Ok(0));
        is!(sys::write(m, b"c"), Ok(1));
        is!(events(s, libc::POLLIN, 1000), Ok(libc::POLLIN));
        is!(read(s), Ok(b"abc".to_vec()));
        ok!(change(s, |t| { t.c_cc[libc::VMIN] = 0; t.c_cc[libc::VTIME] = 1; }));
        is!(read(s), Ok(vec![]));
        ok!(change(s, |t| t.c_cc[libc::VTIME] = 0));
        is!(read(s), Ok(vec![]));
    }
    nothing_to_read_fails_without_waiting {
        let (m, s) = ok!(pair());
        ok!(set_nonblocking(m));
        ok!(set_nonblocking(s));
        fails!(read(m), EAGAIN);
        fails!(read(s), EAGAIN);
        is!(events(m, ALL, 0), Ok(libc::POLLOUT));
        is!(events(s, ALL, 0), Ok(libc::POLLOUT));
        is!(sys::write(m, b"x"), Ok(1));
        fails!(read(s), EAGAIN);
        is!(events(s, ALL, 0), Ok(libc::POLLOUT));
        is!(sys::write(m, b"\x04"), Ok(1));
        is!(events(s, ALL, 1000), Ok(libc::POLLIN | libc::POLLOUT));
        is!(read(s), Ok(b"x".to_vec()));
        is!(sys::write(m, b"\x04"), Ok(1));
        is!(events(s, libc::POLLIN, 1000), Ok(libc::POLLIN));
        is!(read(s), Ok(vec![]));
        fails!(read(s), EAGAIN);
    }
    full_queues_hold_writers_back {
        let (m, s) = ok!(pair());
        ok!(make_raw(s));
        ok!(set_nonblocking(m));
        ok!(set_nonblocking(s));
        for (from, to) in [(m, s), (s, m)] {
            let mut sent = 0;
            let full = loop {
                match sys::write(from, &[sent as u8; 100]) {
                    Ok(n) => sent += n,
                    Err(e) => break e,
                }
                holds!(sent < 1 << 20);
            };
            is!(full, libc::EAGAIN);
            holds!(sent >= 4000);
            is!(events(from, libc::POLLOUT, 0), Ok(0));
            let pid = match ok!(sys::fork()) {
                0 => {
                    let room = events(from, libc::POLLOUT, 5000);
                    let went = sys::write(from, b"z");
                    sys::exit(i32::from(room != Ok(libc::POLLOUT) || went != Ok(1)));
                }
                pid => pid,
            };
            let mut got = 0;
            while got < sent + 1 {
                is!(events(to, libc::POLLIN, 5000), Ok(libc::POLLIN));
                got += ok!(read(to)).len();
            }
            is!(sys::wait(pid as i64, 0), Ok((pid, 0)));
        }
    }
    a_writer_waits_for_a_reader_at_either_end {
        let (m, s) = ok!(pair());
        ok!(make_raw(s));
        for (from, to) in [(m, s), (s, m)] {
            let pid = match ok!(sys::fork()) {
                0 => {
                    let bytes: Vec<u8> = (0..50_000u32).map(|i| (i % 251) as u8).collect();
                    sys::exit(i32::from(sys::write(from, &bytes) != Ok(50_000)));
                }
                pid => pid,
            };
            let got = ok!(read_all(to, 50_000));
            holds!(got.iter().enumerate().all(|(i, &b)| b == (i % 251) as u8));
            is!(got.len(), 50_000);
            is!(sys::wait(pid as i64, 0), Ok((pid, 0)));
        }
    }
    the_master_fails_once_the_terminal_is_left_and_goes_on_when_it_is_opened_again {
        let (m, name) = ok!(master(libc::O_NONBLOCK));
        // Nobody has opened it yet: that is no end.
        fails!(read(m), EAGAIN);
        is!(events(m, ALL, 0), Ok(libc::POLLOUT));
        let s = ok!(slave(&name));
        ok!(make_raw(s));
        is!(sys::write(s, b"last"), Ok(4));
        is!(events(m, libc::POLLIN, 1000), Ok(libc::POLLIN));
        ok!(sys::close(s));
        holds!(ok!(events(m, ALL, 0)) & libc::POLLHUP != 0);
        is!(read(m), Ok(b"last".to_vec()));
        fails!(read(m), EIO);
        is!(ok!(events(m, ALL, 0)), libc::POLLOUT | libc::POLLHUP);
        is!(sys::write(m, b"kept"), Ok(4));
        let s = ok!(slave(&name));
        fails!(read(m), EAGAIN);
        is!(events(m, ALL, 0), Ok(libc::POLLOUT));
        is!(read(s), Ok(b"kept".to_vec()));
        // Settings stay.
        is!(ok!(attributes(s)).c_lflag, 0);
    }
    the_terminal_hangs_up_when_the_master_is_closed {
        let (m, s) = ok!(pair());
        is!(sys::write(m, b"unread\n"), Ok(7));
        ok!(sys::close(m));
        is!(read(s), Ok(vec![]));
        fails!(sys::write(s, b"x"), EIO);
        fails!(attributes(s), EIO);
        fails!(asked(s, libc::TIOCGPGRP), EIO);
        fails!(asked(s, libc::TIOCSPGRP), ENOTTY);
        fails!(ioctl(s, libc::TIOCSCTTY, 0), EIO);
        let all = libc::POLLIN | libc::POLLOUT | libc::POLLERR | libc::POLLHUP;
        is!(events(s, libc::POLLIN | libc::POLLOUT, 0), Ok(all));
        let e = ok!(sc!(SYS_epoll_create1, 0));
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 7 };
        ok!(sc!(SYS_epoll_ctl, e, libc::EPOLL_CTL_ADD, s, &raw mut event));
        is!(sc!(SYS_epoll_wait, e, &raw mut event, 1, 0), Ok(1));
        is!({ event.events } as i32, libc::EPOLLIN | libc::EPOLLERR | libc::EPOLLHUP);
    }
    sleepers_wake_when_the_other_end_is_closed {
        // A reader of the terminal fails, a writer fails, and poll finds the end.
        for what in 0..3 {
            let (m, s) = ok!(pair());
            ok!(make_raw(s));
            if what == 1 {
                ok!(set_nonblocking(s));
                while sys::write(s, &[0; 100]).is_ok() {}
                ok!(sc!(SYS_fcntl, s, libc::F_SETFL, libc::O_RDWR));
            }
            let pid = match ok!(sys::fork()) {
                0 => {
                    let _ = sys::close(m);
                    let right = match what {
                        0 => read(s) == Err(libc::EIO),
                        // In Linux there may be room for a moment.
                        1 => [Err(libc::EIO), Ok(1)].contains(&sys::write(s, b"x")),
                        _ => events(s, libc::POLLIN, 5000).is_ok_and(|e| e & libc::POLLHUP != 0),
                    };
                    sys::exit(i32::from(!right));
                }
                pid => pid,
            };
            nap_us(50_000);
            ok!(sys::close(m));
            is!((what, sys::wait(pid as i64, 0)), (what, Ok((pid, 0))));
        }
        // A reader of the master.
        let (m, s) = ok!(pair());
        let pid = match ok!(sys::fork()) {
            0 => {
                let _ = sys::close(s);
                sys::exit(i32::from(read(m) != Err(libc::EIO)));
            }
            pid => pid,
        };
        nap_us(50_000);
        ok!(sys::close(s));
        is!(sys::wait(pid as i64, 0), Ok((pid, 0)));
    }
    the_peer_is_opened_without_its_name {
        let m = ok!(sys::open("/dev/ptmx", libc::O_RDWR, 0));
        let flags = (libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC) as u64;
        fails!(ioctl(m, TIOCGPTPEER, flags), EIO);
        ok!(set(m, libc::TIOCSPTLCK, 0));
        let s = ok!(ioctl(m, TIOCGPTPEER, flags)) as i32;
        is!(sc!(SYS_fcntl, s, libc::F_GETFD), Ok(1));
        let n = ok!(asked(m, libc::TIOCGPTN));
        let link = std::fs::read_link(format!("/proc/self/fd/{s}"));
        is!(link.ok().and_then(|l| l.to_str().map(str::to_owned)), Some(format!("/dev/pts/{n}")));
        is!(sys::write(m, b"x\n"), Ok(2));
        is!(read(s), Ok(b"x\n".to_vec()));
        let quick = ok!(ioctl(m, TIOCGPTPEER, flags | libc::O_NONBLOCK as u64)) as i32;
        fails!(read(quick), EAGAIN);
    }
    packet_mode_tells_of_changes {
        let (m, s) = ok!(pair());
        is!(asked(m, TIOCGPKT), Ok(0));
        ok!(set(m, libc::TIOCPKT, 1));
        is!(asked(m, TIOCGPKT), Ok(1));
        is!(sys::write(s, b"data"), Ok(4));
        is!(read_all(m, 5), Ok(b"\0data".to_vec()));
        ok!(ioctl(s, libc::TCFLSH, libc::TCIFLUSH as u64));
        is!(events(m, ALL, 1000), Ok(libc::POLLIN | libc::POLLPRI | libc::POLLOUT));
        is!(read(m), Ok(vec![1]));
        ok!(ioctl(s, libc::TCFLSH, libc::TCIOFLUSH as u64));
        is!(read(m), Ok(vec![3]));
        is!(sys::write(m, b"\x13"), Ok(1));
        nap_us(20_000);
        is!(read(m), Ok(vec![4]));
        is!(sys::write(m, b"\x11"), Ok(1));
        nap_us(20_000);
        is!(read(m), Ok(vec![8]));
        ok!(change(s, |t| t.c_iflag &= !libc::IXON));
        is!(read(m), Ok(vec![16]));
        ok!(change(s, |t| t.c_iflag |= libc::IXON));
        is!(read(m), Ok(vec![32]));
        ok!(change(s, |t| t.c_lflag &= !libc::ECHO));
        is!(events(m, ALL, 0), Ok(libc::POLLOUT));
        ok!(set(m, libc::TIOCPKT, 0));
        ok!(ioctl(s, libc::TCFLSH, libc::TCIFLUSH as u64));
        is!(sys::write(s, b"plain"), Ok(5));
        is!(read_all(m, 5), Ok(b"plain".to_vec()));
    }
    stopped_output_waits {
        let (m, s) = ok!(pair());
        ok!(set_nonblocking(s));
        is!(sys::write(m, b"\x13"), Ok(1));
        nap_us(20_000);
        fails!(sys::write(s, b"x"), EAGAIN);
        is!(events(s, libc::POLLOUT, 0), Ok(0));
        is!(sys::write(m, b"\x11"), Ok(1));
        is!(events(s, libc::POLLOUT, 1000), Ok(libc::POLLOUT));
        is!(sys::write(s, b"x"), Ok(1));
        is!(read(m), Ok(b"x".to_vec()));
        ok!(ioctl(s, libc::TCXONC, libc::TCOOFF as u64));
        fails!(sys::write(s, b"x"), EAGAIN);
        ok!(ioctl(s, libc::TCXONC, libc::TCOON as u64));
        is!(sys::write(s, b"y"), Ok(1));
        is!(read(m), Ok(b"y".to_vec()));
        ok!(ioctl(s, libc::TCXONC, libc::TCIOFF as u64));
        ok!(ioctl(s, libc::TCXONC, libc::TCION as u64));
        is!(read_all(m, 2), Ok(b"\x13\x11".to_vec()));
    }
    an_exclusive_terminal_is_for_the_privileged {
        let (m, name) = ok!(master(0));
        let s = ok!(slave(&name));
        ok!(sc!(SYS_chmod, path(&name), 0o666));
        ok!(ioctl(s, libc::TIOCEXCL, 0));
        ok!(slave(&name));
        let pid = match ok!(sys::fork()) {
            0 => {
                let _ = sys::become_user(1000, &[]);
                sys::exit(i32::from(slave(&name) != Err(libc::EBUSY)));
            }
            pid => pid,
        };
        is!(sys::wait(pid as i64, 0), Ok((pid, 0)));
        ok!(ioctl(m, libc::TIOCEXCL, 0));
        ok!(ioctl(s, libc::TIOCNXCL, 0));
    }
    a_file_system_of_its_own_has_its_own_numbers {
        let dir = scratch();
        let options = path("newinstance,mode=640,gid=7,uid=9,ptmxmode=622,max=2");
        match sc!(SYS_mount, path("devpts"), path(&dir), path("devpts"), 0, options) {
            Err(libc::EPERM) => return Err("skip: mount is not permitted".to_owned()),
            other => { ok!(other); }
        }
        let mut st = sys::zeroed_stat();
        let ptmx = format!("{dir}/ptmx");
        ok!(sc!(SYS_stat, path(&ptmx), &raw mut st));
        is!((st.st_mode & 0o7777, st.st_rdev, st.st_ino), (0o622, 5 << 8 | 2, 2));
        let a = ok!(sys::open(&ptmx, libc::O_RDWR, 0));
        let b = ok!(sys::open(&ptmx, libc::O_RDWR, 0));
        is!((asked(a, libc::TIOCGPTN), asked(b, libc::TIOCGPTN)), (Ok(0), Ok(1)));
        fails!(sys::open(&ptmx, libc::O_RDWR, 0), ENOSPC);
        ok!(sc!(SYS_stat, path(&format!("{dir}/1")), &raw mut st));
        is!((st.st_mode & 0o7777, st.st_uid, st.st_gid), (0o640, 9, 7));
        let mut space = [0u64; 15];
        ok!(sc!(SYS_statfs, path(&dir), &raw mut space));
        is!(space[0], 0x1cd1);
        ok!(sys::close(a));
        let a = ok!(sys::open(&ptmx, libc::O_RDWR, 0));
        is!(asked(a, libc::TIOCGPTN), Ok(0));
        for bad in ["mode=9", "nonsense", "max=2000000", "gid=x"] {
            fails!(sc!(SYS_mount, path("devpts"), path("/tmp"), path("devpts"), 0, path(bad)), EINVAL);
        }
        ok!(sys::close(a));
        ok!(sys::close(b));
        ok!(sc!(SYS_umount2, path(&dir), 0));
        // A node of a terminal that is not in a devpts leads nowhere.
        let node = format!("{dir}/node");
        ok!(sc!(SYS_mknod, path(&node), libc::S_IFCHR | 0o600, 136 << 8));
        fails!(sys::open(&node, libc::O_RDWR | libc::O_NOCTTY, 0), EIO);
        // And one of a master has no `pts` beside it.
        let node = format!("{dir}/ptmx");
        ok!(sc!(SYS_mknod, path(&node), libc::S_IFCHR | 0o600, 5 << 8 | 2));
        fails!(sys::open(&node, libc::O_RDWR, 0), ENOENT|ENODEV);
        ok!(sc!(SYS_unlink, path(&node)));
    }
    an_interrupted_read_is_told {
        let (m, s) = ok!(pair());
        ok!(sys::on_signal(libc::SIGALRM, nothing as *const () as usize, 0));
        for fd in [m, s] {
            let timer = [0u64, 0, 0, 50_000];
            ok!(sc!(SYS_setitimer, 0, &raw const timer, 0));
            fails!(read(fd), EINTR);
        }
    }
}
