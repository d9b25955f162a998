//! POSIX message queues.

use std::thread;

use crate::harness::in_child;
use crate::mqueue_calls::*;
use crate::socket_calls::{control, descriptors, pair, receive as receive_message, send_with};
use user::sys;

tests! { "mqueue";
    a_name_leads_to_one_queue {
        let n = name("one");
        fails!(open(&n, libc::O_RDWR, 0, None), ENOENT);
        let a = ok!(open(&n, MAKE, 0o600, Some([3, 16])));
        fails!(open(&n, MAKE | libc::O_EXCL, 0o600, None), EEXIST);
        let b = ok!(open(&n, libc::O_RDONLY, 0, None));
        ok!(send(a, b"x", 0));
        is!(ok!(receive(b)), got("x", 0));
        is!(ok!(attributes(b))[..4], [0, 3, 16, 0]);
        is!(ok!(attributes(b))[4..], [0; 4]);
        // The name goes, the queue stays; a new one has the name.
        ok!(unlink(&n));
        fails!(unlink(&n), ENOENT);
        ok!(send(a, b"y", 0));
        let c = ok!(open(&n, MAKE | NONBLOCK, 0o600, Some([3, 16])));
        fails!(receive(c), EAGAIN);
        is!(ok!(receive(b)), got("y", 0));
        ok!(unlink(&n));
    }

    names_that_cannot_be {
        fails!(open("", MAKE, 0o600, None), ENOENT);
        fails!(unlink(""), ENOENT);
        for bad in [".", "..", "/x", "a/b"] {
            fails!(open(bad, MAKE, 0o600, None), EACCES);
            fails!(unlink(bad), EACCES);
        }
        let long = "n".repeat(256);
        fails!(open(&long, MAKE, 0o600, None), ENAMETOOLONG);
        fails!(unlink(&long), ENAMETOOLONG);
        fails!(unlink(&"n".repeat(5000)), ENAMETOOLONG);
        fails!(sc!(SYS_mq_open, 8, MAKE, 0o600, 0), EFAULT);
        fails!(sc!(SYS_mq_open, 8, MAKE, 0o600, 8), EFAULT);
        let longest = format!("{:x<255}", name("l"));
        ok!(open(&longest, MAKE, 0o600, None));
        ok!(unlink(&longest));
    }

    sizes_that_cannot_be {
        let n = name("size");
        for bad in [[0, 16], [16, 0], [-1, 16], [1, -1], [65537, 1], [1, (16 << 20) + 1]] {
            fails!(open(&n, MAKE, 0o600, Some(bad)), EINVAL);
        }
        let fd = ok!(open(&n, MAKE, 0o600, None));
        is!(ok!(attributes(fd))[..4], [0, 10, 8192, 0]);
        // Of one that exists, the size does not count; nor the mode of access that no file has.
        ok!(open(&n, MAKE, 0o600, Some([-1, -1])));
        fails!(open(&n, 3, 0, None), EINVAL);
        ok!(unlink(&n));
    }

    an_open_queue_is_a_file {
        ok!(sc!(SYS_umask, 0o027));
        let n = name("file");
        let fd = ok!(open(&n, MAKE | NONBLOCK, 0o1666, Some([2, 16])));
        let mut stat = sys::zeroed_stat();
        ok!(sc!(SYS_fstat, fd, &raw mut stat));
        is!((stat.st_mode, stat.st_size, stat.st_nlink), (0o101640, 80, 1));
        is!([u64::from(stat.st_uid), u64::from(stat.st_gid)], [ok!(sc!(SYS_geteuid)), ok!(sc!(SYS_getegid))]);
        is!(ok!(sc!(SYS_fcntl, fd, libc::F_GETFD)), libc::FD_CLOEXEC as u64);
        is!(ok!(sc!(SYS_fcntl, fd, libc::F_GETFL)), (libc::O_RDWR | NONBLOCK) as u64);
        let link = std::fs::read_link(format!("/proc/self/fd/{fd}")).map_err(|e| e.to_string())?;
        is!(link.to_string_lossy(), format!("/{n}"));
        ok!(sc!(SYS_fchmod, fd, 0o444));
        ok!(unlink(&n));
        ok!(sc!(SYS_fstat, fd, &raw mut stat));
        is!((stat.st_mode, stat.st_nlink), (0o100444, 0));
        fails!(sys::write(fd, b"x"), EINVAL);
        is!(ok!(sc!(SYS_lseek, fd, 0, libc::SEEK_END)), 80);
        // Another open file of the queue.
        let twin = ok!(sys::open(&format!("/proc/self/fd/{fd}"), libc::O_RDONLY, 0));
        ok!(send(fd, b"x", 0));
        is!(ok!(receive(twin)), got("x", 0));
        fails!(send(twin, b"x", 0), EBADF);
    }

    what_a_read_of_the_file_shows {
        let fd = ok!(queue(4, 0));
        is!(ok!(shown(fd)), "QSIZE:0          NOTIFY:0     SIGNO:0     NOTIFY_PID:0     \n");
        ok!(send(fd, b"12345", 0));
        ok!(send(fd, b"678", 0));
        ok!(notify(fd, 0, libc::SIGUSR1, libc::SIGEV_SIGNAL));
        let pid = std::process::id();
        is!(ok!(shown(fd)), format!("QSIZE:8          NOTIFY:0     SIGNO:{:<5} NOTIFY_PID:{pid:<6}\n", libc::SIGUSR1));
        ok!(forget(fd));
        ok!(notify(fd, 0, libc::SIGUSR1, libc::SIGEV_NONE));
        is!(ok!(shown(fd)), format!("QSIZE:8          NOTIFY:1     SIGNO:0     NOTIFY_PID:{pid:<6}\n"));
        let mut part = [0u8; 6];
        is!(ok!(sys::read(fd, &mut part)), 6);
        is!(ok!(sys::read(fd, &mut part)), 6);
        is!(&part, b"8     ");
        is!(ok!(sc!(SYS_pread64, fd, part.as_mut_ptr(), 6, 200)), 0);
        fails!(sc!(SYS_pread64, fd, 8, 6, 0), EFAULT);
    }

    priorities_and_order {
        let fd = ok!(queue(8, NONBLOCK));
        for (text, priority) in [("a", 1), ("b", 32767), ("c", 1), ("d", 0), ("e", 32767), ("", 2), ("f", 1)] {
            ok!(send(fd, text.as_bytes(), priority));
        }
        fails!(send(fd, b"x", 32768), EINVAL);
        is!(ok!(attributes(fd))[3], 7);
        for (text, priority) in [("b", 32767), ("e", 32767), ("", 2), ("a", 1), ("c", 1), ("f", 1), ("d", 0)] {
            is!(ok!(receive(fd)), got(text, priority));
        }
        fails!(receive(fd), EAGAIN);
    }

    errors_of_sends_and_receives {
        let n = name("err");
        let fd = ok!(open(&n, MAKE | NONBLOCK, 0o600, Some([1, 16])));
        let (r, w) = (ok!(open(&n, libc::O_RDONLY, 0, None)), ok!(open(&n, libc::O_WRONLY, 0, None)));
        ok!(unlink(&n));
        fails!(send(r, b"x", 0), EBADF);
        fails!(receive(w), EBADF);
        fails!(send(-1, b"x", 0), EBADF);
        let (p, _) = ok!(sys::pipe(0));
        fails!(send(p, b"x", 0), EBADF);
        fails!(receive(p), EBADF);
        fails!(attributes(p), EBADF);
        fails!(notify(p, 0, 1, 0), EBADF);
        fails!(forget(p), EBADF);
        fails!(send(fd, &[0; 17], 0), EMSGSIZE);
        fails!(sc!(SYS_mq_timedsend, fd, 8, 1, 0, 0), EFAULT);
        fails!(sc!(SYS_mq_timedreceive, fd, 8, 15, 0, 0), EMSGSIZE);
        fails!(sc!(SYS_mq_timedsend, fd, 8, 1, 0, 8), EFAULT);
        for bad in [[-1, 0], [0, -1], [0, 1_000_000_000]] {
            fails!(send_until(fd, b"x", bad), EINVAL);
            fails!(receive_until(fd, Some(bad)), EINVAL);
        }
        ok!(send(fd, &[b'z'; 16], 3));
        fails!(send(fd, b"x", 0), EAGAIN);
        // A message that cannot be copied is lost.
        fails!(sc!(SYS_mq_timedreceive, fd, 8, 16, 0, 0), EFAULT);
        fails!(receive(fd), EAGAIN);
        ok!(send(fd, b"y", 3));
        let mut room = [0u8; 16];
        is!(ok!(sc!(SYS_mq_timedreceive, fd, room.as_mut_ptr(), 16, 0, 0)), 1);
    }

    flags_by_both_ways {
        let fd = ok!(queue(1, 0));
        is!(ok!(set_flags(fd, NONBLOCK.into())), 0);
        is!(ok!(attributes(fd))[..4], [NONBLOCK.into(), 1, 16, 0]);
        fails!(receive(fd), EAGAIN);
        ok!(sc!(SYS_fcntl, fd, libc::F_SETFL, 0));
        is!(ok!(attributes(fd))[0], 0);
        ok!(sc!(SYS_fcntl, fd, libc::F_SETFL, NONBLOCK));
        is!(ok!(set_flags(fd, 0)), NONBLOCK.into());
        is!(ok!(sc!(SYS_fcntl, fd, libc::F_GETFL)), libc::O_RDWR as u64);
        fails!(set_flags(fd, 1), EINVAL);
        fails!(sc!(SYS_mq_getsetattr, fd, 8, 0), EFAULT);
        fails!(sc!(SYS_mq_getsetattr, fd, 0, 8), EFAULT);
        fails!(sc!(SYS_mq_getsetattr, -1i64, 0, 0), EBADF);
    }

    waits_end_by_the_time {
        let fd = ok!(queue(1, 0));
        let begun = sys::now_ns();
        fails!(receive_until(fd, Some(real(40))), ETIMEDOUT);
        holds!(sys::now_ns() - begun >= 39 * MS);
        fails!(receive_until(fd, Some([1, 0])), ETIMEDOUT);
        // What need not wait does not look at the time.
        is!(send_until(fd, b"a", [1, 0]), Ok(0));
        let begun = sys::now_ns();
        fails!(send_until(fd, b"b", real(40)), ETIMEDOUT);
        holds!(sys::now_ns() - begun >= 39 * MS);
        is!(receive_until(fd, Some([1, 0])), Ok(got("a", 0)));
        // What has timed out was not sent.
        is!(ok!(attributes(fd))[3], 0);
    }

    waiting_receivers_are_handed_messages_in_turn {
        let fd = ok!(queue(4, 0));
        let first = receives(fd);
        settle();
        let second = receives(fd);
        settle();
        ok!(send(fd, b"one", 1));
        is!(ok!(end(first)), got("one", 1));
        is!(ok!(attributes(fd))[3], 0);
        ok!(send(fd, b"two", 9));
        is!(ok!(end(second)), got("two", 9));
    }

    waiting_senders_get_room_in_turn {
        let fd = ok!(queue(1, 0));
        ok!(send(fd, b"a", 0));
        let first = sends(fd, "b", 5);
        settle();
        let second = sends(fd, "c", 30);
        settle();
        is!(ok!(receive(fd)), got("a", 0));
        ok!(end(first));
        is!(ok!(attributes(fd))[3], 1);
        is!(ok!(receive(fd)), got("b", 5));
        ok!(end(second));
        is!(ok!(receive(fd)), got("c", 30));
    }

    signals_end_waits {
        let fd = ok!(queue(1, 0));
        for (flags, restarts) in [(0, false), (libc::SA_RESTART, true)] {
            ok!(sys::on_signal(libc::SIGUSR1, nothing as *const () as usize, flags));
            let me = ok!(sc!(SYS_getpid));
            let child = ok!(sys::fork());
            if child == 0 {
                sys::nap(40 * MS);
                let _ = sc!(SYS_kill, me, libc::SIGUSR1);
                sys::nap(40 * MS);
                let _ = send(fd, b"late", 2);
                sys::exit(0)
            }
            if restarts {
                is!(ok!(receive(fd)), got("late", 2));
            } else {
                fails!(receive(fd), EINTR);
                is!(ok!(receive(fd)), got("late", 2));
            }
            ok!(sys::wait(child as i64, 0));
        }
    }

    polls_tell_what_is_ready {
        let fd = ok!(queue(2, 0));
        is!(ok!(polled(fd)), OUT);
        ok!(send(fd, b"a", 0));
        is!(ok!(polled(fd)), IN | OUT);
        ok!(send(fd, b"b", 0));
        is!(ok!(polled(fd)), IN);
        ok!(receive(fd));
        ok!(receive(fd));
        let epoll = ok!(sc!(SYS_epoll_create1, 0));
        let event = [libc::EPOLLIN as u32, 7, 0];
        ok!(sc!(SYS_epoll_ctl, epoll, libc::EPOLL_CTL_ADD, fd, event.as_ptr()));
        let mut found = [0u32; 3];
        is!(ok!(sc!(SYS_epoll_wait, epoll, found.as_mut_ptr(), 1, 0)), 0);
        let later = thread::spawn(move || { settle(); send(fd, b"c", 0) });
        is!(ok!(sc!(SYS_epoll_wait, epoll, found.as_mut_ptr(), 1, 2000)), 1);
        is!(found[..2], [libc::EPOLLIN as u32, 7]);
        ok!(end(later));
        ok!(send(fd, b"d", 0));
        // One that waits for room.
        let mut list = [u64::from(fd as u32) | (libc::POLLOUT as u64) << 32];
        let later = thread::spawn(move || { settle(); receive(fd) });
        is!(ok!(sc!(SYS_poll, list.as_mut_ptr(), 1, 2000)), 1);
        is!(ok!(end(later)), got("c", 0));
    }

    descriptors_pass_to_others {
        let fd = ok!(queue(2, 0));
        let status = in_child(|| i32::from(send(fd, b"child", 4) != Ok(0)))?;
        is!(status, 0);
        is!(ok!(receive(fd)), got("child", 4));
        let (a, b) = ok!(pair(libc::SOCK_STREAM));
        ok!(send_with(a, b"Q", &control(libc::SCM_RIGHTS, &[fd])));
        ok!(send(fd, b"kept", 0));
        ok!(sys::close(fd));
        let (_, words, _) = ok!(receive_message(b, 8, 64, 0));
        let passed = descriptors(&words);
        is!(passed.len(), 1);
        is!(ok!(receive(passed[0])), got("kept", 0));
    }

    a_signal_tells_of_a_message {
        let fd = ok!(queue(4, 0));
        ok!(block(libc::SIGUSR2));
        ok!(notify(fd, 0x1234_5678_9abc, libc::SIGUSR2, libc::SIGEV_SIGNAL));
        fails!(notify(fd, 0, libc::SIGUSR2, libc::SIGEV_SIGNAL), EBUSY);
        fails!(pending(libc::SIGUSR2), EAGAIN);
        let child = ok!(sys::fork());
        if child == 0 {
            sys::exit(i32::from(send(fd, b"x", 0) != Ok(0)))
        }
        is!(ok!(sys::wait(child as i64, 0)), (child, 0));
        let uid = ok!(sc!(SYS_getuid));
        is!(ok!(pending(libc::SIGUSR2)), (libc::SIGUSR2, -3, child, uid, 0x1234_5678_9abc));
        // Once.
        ok!(receive(fd));
        ok!(send(fd, b"y", 0));
        fails!(pending(libc::SIGUSR2), EAGAIN);
        // Not where the queue was not empty, nor where a receiver waits.
        ok!(notify(fd, 0, libc::SIGUSR2, libc::SIGEV_SIGNAL));
        ok!(send(fd, b"z", 0));
        fails!(pending(libc::SIGUSR2), EAGAIN);
        ok!(receive(fd));
        ok!(receive(fd));
        let receiver = receives(fd);
        settle();
        ok!(send(fd, b"handed", 0));
        is!(ok!(end(receiver)), got("handed", 0));
        fails!(pending(libc::SIGUSR2), EAGAIN);
        ok!(send(fd, b"told", 0));
        is!(ok!(pending(libc::SIGUSR2)).0, libc::SIGUSR2);
    }

    a_registration_ends_with_its_process_if_others_share_the_descriptors {
        if std::fs::metadata("/proc/pantala").is_err() {
            return Err("skip: it stays for ever".into());
        }
        let fd = ok!(queue(4, 0));
        // SIGEV_NONE.
        let event = [0, (libc::SIGEV_NONE as u64) << 32, 0, 0, 0, 0, 0, 0];
        let args = [fd as u64, event.as_ptr() as u64, 0, 0];
        for _ in 0..20 {
            let child = ok!(sys::clone_calling(libc::CLONE_FILES | libc::SIGCHLD, libc::SYS_mq_notify, args));
            ok!(sys::wait(child as i64, 0));
            ok!(notify(fd, 0, 0, libc::SIGEV_NONE));
            ok!(forget(fd));
        }
    }

    registrations_end {
        let n = name("reg");
        let fd = ok!(open(&n, MAKE | NONBLOCK, 0o600, Some([4, 16])));
        ok!(block(libc::SIGUSR2));
        fails!(notify(fd, 0, 65, libc::SIGEV_SIGNAL), EINVAL);
        fails!(notify(fd, 0, -1, libc::SIGEV_SIGNAL), EINVAL);
        fails!(notify(fd, 0, 1, 7), EINVAL);
        fails!(sc!(SYS_mq_notify, fd, 8), EFAULT);
        // By a call of the process, not of another.
        ok!(notify(fd, 0, libc::SIGUSR2, libc::SIGEV_SIGNAL));
        is!(in_child(|| i32::from(forget(fd) != Ok(0) || notify(fd, 0, 0, libc::SIGEV_NONE) != Err(libc::EBUSY)))?, 0);
        ok!(forget(fd));
        ok!(send(fd, b"x", 0));
        fails!(pending(libc::SIGUSR2), EAGAIN);
        ok!(receive(fd));
        // By the close of any of its descriptors.
        ok!(notify(fd, 0, libc::SIGUSR2, libc::SIGEV_SIGNAL));
        let twin = ok!(open(&n, libc::O_RDONLY, 0, None));
        ok!(sys::close(twin));
        ok!(notify(fd, 0, libc::SIGUSR2, libc::SIGEV_SIGNAL));
        ok!(sys::close(ok!(sc!(SYS_dup, fd)) as i32));
        ok!(notify(fd, 0, 0, libc::SIGEV_SIGNAL));
        ok!(forget(fd));
        // By the end of the process.
        is!(in_child(|| i32::from(notify(fd, 0, 0, libc::SIGEV_NONE) != Ok(0)))?, 0);
        ok!(notify(fd, 0, 0, libc::SIGEV_NONE));
        // That of SIGEV_NONE ends with a message, too.
        ok!(send(fd, b"x", 0));
        ok!(notify(fd, 0, 0, libc::SIGEV_NONE));
        ok!(unlink(&n));
    }

    a_datagram_tells_of_a_message {
        let fd = ok!(queue(4, 0));
        let socket = ok!(sc!(SYS_socket, libc::AF_NETLINK, libc::SOCK_RAW, 0)) as i32;
        let cookie: [u8; 32] = std::array::from_fn(|i| i as u8 + 1);
        let at = cookie.as_ptr() as u64;
        fails!(notify(fd, 8, socket, libc::SIGEV_THREAD), EFAULT);
        fails!(notify(fd, at, -1, libc::SIGEV_THREAD), EBADF);
        fails!(notify(fd, at, fd, libc::SIGEV_THREAD), ENOTSOCK);
        let (a, _) = ok!(pair(libc::SOCK_STREAM));
        fails!(notify(fd, at, a, libc::SIGEV_THREAD), EINVAL);
        ok!(notify(fd, at, socket, libc::SIGEV_THREAD));
        fails!(notify(fd, at, socket, libc::SIGEV_THREAD), EBUSY);
        let told = || {
            let mut bytes = [0u8; 64];
            let n = sc!(SYS_recvfrom, socket, bytes.as_mut_ptr(), 64, libc::MSG_DONTWAIT, 0, 0)?;
            Ok((n, bytes[..31] == cookie[..31], bytes[31]))
        };
        fails!(told(), EAGAIN);
        ok!(send(fd, b"x", 0));
        is!(told(), Ok((32, true, 1)));
        ok!(notify(fd, at, socket, libc::SIGEV_THREAD));
        ok!(forget(fd));
        is!(told(), Ok((32, true, 2)));
        fails!(told(), EAGAIN);
    }

    owners_and_modes {
        if !is_root() {
            return Err("skip: not root".into());
        }
        ok!(sc!(SYS_umask, 0));
        let (own, all) = (name("own"), name("all"));
        let fd = ok!(open(&own, MAKE, 0o604, Some([1, 16])));
        ok!(open(&all, MAKE, 0o666, Some([1, 16])));
        let status = in_child(|| {
            let seen = [
                sys::become_user(1000, &[]).is_ok(),
                open(&own, libc::O_RDWR, 0, None) == Err(libc::EACCES),
                open(&own, libc::O_WRONLY, 0, None) == Err(libc::EACCES),
                open(&own, libc::O_RDONLY, 0, None).is_ok(),
                open(&all, libc::O_RDWR, 0, None).is_ok(),
                unlink(&all) == Err(libc::EPERM),
                sc!(SYS_fchmod, fd, 0o666) == Err(libc::EPERM),
                open(&name("mine"), MAKE, 0o600, Some([11, 16])) == Err(libc::EINVAL),
                open(&name("mine"), MAKE, 0o600, Some([10, 8193])) == Err(libc::EINVAL),
                open(&name("mine"), MAKE, 0o600, Some([10, 16])).is_ok(),
                unlink(&name("mine")) == Ok(0),
            ];
            seen.iter().position(|&ok| !ok).map_or(0, |i| i as i32 + 1)
        })?;
        is!(status >> 8, 0);
        ok!(unlink(&own));
        ok!(unlink(&all));
    }

    a_user_has_so_many_bytes {
        if !is_root() {
            return Err("skip: not root".into());
        }
        // Of a user that has no queue.
        ok!(sys::become_user(54321, &[]));
        // Ten messages of sixteen bytes, with 48 for each message and for each priority.
        let each = 10 * (16 + 48 + 48);
        ok!(limit(2 * each));
        let (a, b) = (name("a"), name("b"));
        let ten = Some([10, 16]);
        let first = ok!(open(&a, MAKE, 0o600, ten));
        let second = ok!(open(&b, MAKE, 0o600, ten));
        let third = name("c");
        fails!(open(&third, MAKE, 0o600, Some([1, 1])), EMFILE);
        fails!(open(&third, libc::O_RDWR, 0o600, None), ENOENT);
        // A queue goes with its name and its last descriptor, in either order.
        ok!(unlink(&a));
        fails!(open(&third, MAKE, 0o600, ten), EMFILE);
        ok!(sys::close(first));
        let again = ok!(open(&third, MAKE, 0o600, ten));
        ok!(sys::close(second));
        fails!(open(&a, MAKE, 0o600, ten), EMFILE);
        ok!(unlink(&b));
        ok!(open(&a, MAKE, 0o600, ten));
        ok!(unlink(&a));
        ok!(unlink(&third));
        ok!(sys::close(again));
    }

    settings {
        for (setting_name, value) in [("queues_max", 256), ("msg_max", 10), ("msgsize_max", 8192), ("msg_default", 10), ("msgsize_default", 8192)] {
            is!(setting(setting_name)?, value);
        }
        if !is_root() {
            return Err("skip: not root".into());
        }
        let write = |name: &str, value: &str| std::fs::write(format!("/proc/sys/fs/mqueue/{name}"), value);
        for (bad, value) in [("msg_max", "0"), ("msg_max", "65537"), ("msgsize_max", "127"), ("msgsize_max", "16777217"), ("msg_default", "0"), ("msgsize_default", "127")] {
            let error = write(bad, value).err().and_then(|e| e.raw_os_error());
            is!(error, Some(libc::EINVAL));
        }
    }
}
