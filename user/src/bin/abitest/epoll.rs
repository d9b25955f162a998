//! epoll.

use crate::harness::*;
use user::sys;

const ADD: i32 = libc::EPOLL_CTL_ADD;
const DEL: i32 = libc::EPOLL_CTL_DEL;
const MOD: i32 = libc::EPOLL_CTL_MOD;
const IN: u32 = libc::EPOLLIN as u32;
const OUT: u32 = libc::EPOLLOUT as u32;
const HUP: u32 = libc::EPOLLHUP as u32;
const ET: u32 = libc::EPOLLET as u32;
const ONESHOT: u32 = libc::EPOLLONESHOT as u32;
const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;

fn epoll() -> Result<i32, i32> {
    sc!(SYS_epoll_create1, 0).map(|fd| fd as i32)
}

/// epoll_ctl(2); the word is the descriptor.
fn ctl(epoll: i32, op: i32, fd: i32, events: u32) -> Result<u64, i32> {
    let event = [events, fd as u32, 0];
    sc!(SYS_epoll_ctl, epoll, op, fd, event.as_ptr())
}

/// epoll_wait(2): the events and the words.
fn wait_for(epoll: i32, most: usize, ms: i32) -> Result<Vec<(u32, i32)>, i32> {
    let mut list = vec![[0u32; 3]; most];
    let n = sc!(SYS_epoll_wait, epoll, list.as_mut_ptr(), most, ms as i64)?;
    list.truncate(n as usize);
    Ok(list
        .into_iter()
        .map(|[events, fd, _]| (events, fd as i32))
        .collect())
}

/// The events and the words that are ready now.
fn now(epoll: i32) -> Result<Vec<(u32, i32)>, i32> {
    wait_for(epoll, 16, 0)
}

fn counter(count: u32) -> Result<i32, i32> {
    sc!(SYS_eventfd2, count, libc::EFD_NONBLOCK).map(|fd| fd as i32)
}

fn count(fd: i32) -> Result<usize, i32> {
    sys::write(fd, &1u64.to_le_bytes())
}

fn take(fd: i32) -> Result<usize, i32> {
    sys::read(fd, &mut [0; 8])
}

const NONE: [(u32, i32); 0] = [];

tests! { "epoll";
    a_level_is_reported_as_long_as_it_lasts {
        let (from, to) = ok!(sys::pipe(0));
        let e = ok!(epoll());
        ok!(ctl(e, ADD, from, IN));
        is!(ok!(now(e)), NONE);
        ok!(sys::write(to, b"ab"));
        is!(ok!(now(e)), [(IN, from)]);
        is!(ok!(now(e)), [(IN, from)]);
        ok!(sys::read(from, &mut [0; 1]));
        is!(ok!(now(e)), [(IN, from)]);
        ok!(sys::read(from, &mut [0; 1]));
        is!(ok!(now(e)), NONE);
        ok!(sys::close(to));
        is!(ok!(now(e)), [(HUP, from)]);
    }
    an_edge_is_reported_once_for_each_write {
        let (from, to) = ok!(sys::pipe(0));
        let e = ok!(epoll());
        ok!(ctl(e, ADD, from, IN | ET));
        for _ in 0..3 {
            ok!(sys::write(to, b"a"));
            is!(ok!(now(e)), [(IN, from)]);
            is!(ok!(now(e)), NONE);
        }
        ok!(sys::read(from, &mut [0; 1]));
        is!(ok!(now(e)), NONE);
        ok!(ctl(e, MOD, from, IN | ET));
        is!(ok!(now(e)), [(IN, from)]);
        ok!(sys::close(to));
        is!(ok!(now(e)), [(IN | HUP, from)]);
    }
    a_writer_is_told_of_room {
        let (from, to) = ok!(sys::pipe(libc::O_NONBLOCK));
        let e = ok!(epoll());
        while sys::write(to, &[0; 4096]).is_ok() {}
        ok!(ctl(e, ADD, to, OUT | ET));
        ok!(ctl(e, ADD, from, IN | ET));
        is!(ok!(now(e)), [(IN, from)]);
        ok!(sys::read(from, &mut [0; 8192]));
        is!(ok!(now(e)), [(OUT, to)]);
        is!(ok!(now(e)), NONE);
        ok!(sys::close(from));
        is!(ok!(now(e)), [(OUT | libc::EPOLLERR as u32, to)]);
    }
    a_socket_hears_its_peer_and_not_itself {
        for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM, libc::SOCK_SEQPACKET] {
            let mut fds = [0i32; 2];
            ok!(sc!(SYS_socketpair, libc::AF_UNIX, kind, 0, fds.as_mut_ptr()));
            let [a, b] = fds;
            let (e, f) = (ok!(epoll()), ok!(epoll()));
            ok!(ctl(e, ADD, a, IN | OUT | ET));
            ok!(ctl(f, ADD, b, IN | OUT | ET));
            is!(ok!(now(e)), [(OUT, a)]);
            is!(ok!(now(f)), [(OUT, b)]);
            for _ in 0..3 {
                ok!(sys::write(a, b"abc"));
                is!(ok!(now(e)), NONE);
                is!(ok!(now(f)), [(IN | OUT, b)]);
                is!(ok!(now(f)), NONE);
            }
            ok!(sys::read(b, &mut [0; 3]));
            is!(ok!(now(f)), NONE);
            ok!(sys::write(b, b"d"));
            is!(ok!(now(f)), NONE);
            is!(ok!(now(e)), [(IN | OUT, a)]);
        }
    }
    a_oneshot_entry_is_off_until_it_is_changed {
        let (c, e) = (ok!(counter(1)), ok!(epoll()));
        ok!(ctl(e, ADD, c, IN | ONESHOT));
        is!(ok!(now(e)), [(IN, c)]);
        ok!(count(c));
        is!(ok!(now(e)), NONE);
        ok!(ctl(e, MOD, c, IN | ONESHOT));
        is!(ok!(now(e)), [(IN, c)]);
        ok!(take(c));
        ok!(ctl(e, MOD, c, IN | ONESHOT));
        is!(ok!(now(e)), NONE);
        ok!(count(c));
        is!(ok!(now(e)), [(IN, c)]);
    }
    counters_are_ready_for_both {
        let (c, e) = (ok!(counter(0)), ok!(epoll()));
        ok!(ctl(e, ADD, c, IN | OUT | ET));
        is!(ok!(now(e)), [(OUT, c)]);
        is!(ok!(now(e)), NONE);
        ok!(count(c));
        is!(ok!(now(e)), [(IN | OUT, c)]);
        ok!(ctl(e, MOD, c, OUT));
        is!(ok!(now(e)), [(OUT, c)]);
        ok!(ctl(e, MOD, c, 0));
        is!(ok!(now(e)), NONE);
    }
    few_events_at_a_time_take_turns {
        let e = ok!(epoll());
        let mut all = Vec::new();
        for _ in 0..3 {
            let c = ok!(counter(1));
            ok!(ctl(e, ADD, c, IN));
            all.push((IN, c));
        }
        let mut seen = Vec::new();
        for _ in 0..3 {
            seen.extend(ok!(wait_for(e, 1, 0)));
        }
        is!(seen, all);
        is!(ok!(now(e)), all);
    }
    errors_of_changes {
        let (c, e) = (ok!(counter(1)), ok!(epoll()));
        fails!(ctl(e, MOD, c, IN), ENOENT);
        fails!(ctl(e, DEL, c, IN), ENOENT);
        ok!(ctl(e, ADD, c, IN));
        fails!(ctl(e, ADD, c, IN), EEXIST);
        fails!(ctl(e, 9, c, IN), EINVAL);
        fails!(ctl(e, 0, c, IN), EINVAL);
        fails!(ctl(-1, ADD, c, IN), EBADF);
        fails!(ctl(e, ADD, 999, IN), EBADF);
        fails!(ctl(c, ADD, e, IN), EINVAL);
        fails!(ctl(e, ADD, e, IN), EINVAL);
        fails!(sc!(SYS_epoll_ctl, e, MOD, c, 8), EFAULT);
        // The event of a removal is not read.
        ok!(sc!(SYS_epoll_ctl, e, DEL, c, 8));
        let path_only = ok!(sys::open("/", libc::O_PATH, 0));
        fails!(ctl(e, ADD, path_only, IN), EBADF);
        fails!(ctl(path_only, ADD, c, IN), EBADF);
        fails!(sc!(SYS_epoll_create, 0), EINVAL);
        fails!(sc!(SYS_epoll_create, -1i64), EINVAL);
        let old = ok!(sc!(SYS_epoll_create, 1)) as i32;
        is!(ok!(sc!(SYS_fcntl, old, libc::F_GETFD)), 0);
        fails!(sc!(SYS_epoll_create1, 1), EINVAL);
        let closes = ok!(sc!(SYS_epoll_create1, libc::EPOLL_CLOEXEC)) as i32;
        is!(ok!(sc!(SYS_fcntl, closes, libc::F_GETFD)), 1);
    }
    files_that_never_block_are_refused {
        let e = ok!(epoll());
        let file = file_with(b"x")?;
        fails!(ctl(e, ADD, file, IN), EPERM);
        fails!(ctl(e, MOD, file, IN), EPERM);
        fails!(ctl(e, 9, file, IN), EPERM);
        for path in ["/", "/dev/null", "/dev/zero"] {
            let fd = ok!(sys::open(path, libc::O_RDONLY, 0));
            fails!(ctl(e, ADD, fd, IN), EPERM);
        }
    }
    errors_of_waits {
        let (c, e) = (ok!(counter(1)), ok!(epoll()));
        let mut list = [[0u32; 3]; 2];
        fails!(wait_for(-1, 1, 0), EBADF);
        fails!(wait_for(c, 1, 0), EINVAL);
        fails!(sc!(SYS_epoll_wait, e, list.as_mut_ptr(), 0, 0), EINVAL);
        fails!(sc!(SYS_epoll_wait, e, list.as_mut_ptr(), -1i64, 0), EINVAL);
        fails!(sc!(SYS_epoll_wait, e, list.as_mut_ptr(), i32::MAX / 12 + 1, 0), EINVAL);
        ok!(ctl(e, ADD, c, IN | ET));
        fails!(sc!(SYS_epoll_wait, e, 8, 2, 0), EFAULT);
        fails!(sc!(SYS_epoll_wait, e, u64::MAX - 8, 2, 0), EFAULT);
        is!(ok!(now(e)), [(IN, c)]);
        let spec = [0i64, 1_000_000_000];
        fails!(sc!(SYS_epoll_pwait2, e, list.as_mut_ptr(), 2, spec.as_ptr(), 0, 8), EINVAL);
        fails!(sc!(SYS_epoll_pwait2, e, list.as_mut_ptr(), 2, 8, 0, 8), EFAULT);
        fails!(sc!(SYS_epoll_pwait, e, list.as_mut_ptr(), 2, 0, [0u64].as_ptr(), 4), EINVAL);
    }
    events_before_one_that_cannot_be_written_are_returned {
        let e = ok!(epoll());
        let mut all = Vec::new();
        for _ in 0..3 {
            let c = ok!(counter(1));
            ok!(ctl(e, ADD, c, IN | ET));
            all.push((IN, c));
        }
        let page = ok!(anon(2));
        ok!(sys::munmap(page + 4096, 4096));
        let at = page + 4096 - 12;
        is!(ok!(sc!(SYS_epoll_wait, e, at, 3, 0)), 1);
        is!(sys::peek(at + 4), all[0].1 as u8);
        is!(ok!(now(e)), all[1..]);
    }
    exclusive_entries_want_little {
        let (c, e, inner) = (ok!(counter(1)), ok!(epoll()), ok!(epoll()));
        fails!(ctl(e, ADD, c, IN | EXCLUSIVE | ONESHOT), EINVAL);
        fails!(ctl(e, ADD, c, IN | EXCLUSIVE | libc::EPOLLPRI as u32), EINVAL);
        fails!(ctl(e, ADD, inner, IN | EXCLUSIVE), EINVAL);
        ok!(ctl(e, ADD, c, IN | OUT | EXCLUSIVE | ET | libc::EPOLLWAKEUP as u32));
        fails!(ctl(e, MOD, c, IN), EINVAL);
        fails!(ctl(e, MOD, c, IN | EXCLUSIVE), EINVAL);
        is!(ok!(now(e)), [(IN | OUT, c)]);
        ok!(ctl(e, DEL, c, 0));
    }
    epolls_in_epolls {
        let c = ok!(counter(0));
        let mut e = Vec::new();
        for _ in 0..5 {
            e.push(ok!(epoll()));
        }
        ok!(ctl(e[4], ADD, c, IN));
        for pair in e.windows(2) {
            ok!(ctl(pair[0], ADD, pair[1], IN));
        }
        is!(ok!(now(e[0])), NONE);
        ok!(count(c));
        is!(ok!(now(e[0])), [(IN, e[1])]);
        is!(ok!(now(e[4])), [(IN, c)]);
        ok!(take(c));
        is!(ok!(now(e[0])), NONE);
        let top = ok!(epoll());
        fails!(ctl(top, ADD, e[0], IN), ELOOP);
        fails!(ctl(e[4], ADD, e[0], IN), ELOOP);
        fails!(ctl(e[2], ADD, e[1], IN), ELOOP);
        ok!(ctl(e[0], DEL, e[1], 0));
        ok!(ctl(e[4], ADD, e[0], IN));
    }
    an_entry_is_of_the_open_file_and_not_of_the_descriptor {
        let (from, to) = ok!(sys::pipe(0));
        let e = ok!(epoll());
        ok!(sys::write(to, b"x"));
        ok!(ctl(e, ADD, from, IN));
        let again = ok!(sc!(SYS_dup, from)) as i32;
        ok!(ctl(e, ADD, again, IN));
        is!(ok!(now(e)), [(IN, from), (IN, again)]);
        ok!(sys::close(from));
        is!(ok!(now(e)), [(IN, from), (IN, again)]);
        fails!(ctl(e, DEL, from, 0), EBADF);
        // The same number for another file is another entry.
        let other = ok!(counter(1));
        is!(other, from);
        ok!(ctl(e, ADD, other, IN));
        is!(ok!(now(e)).len(), 3);
        ok!(sys::close(again));
        is!(ok!(now(e)), [(IN, other)]);
    }
    a_child_shares_the_epoll {
        let (from, to) = ok!(sys::pipe(0));
        let e = ok!(epoll());
        ok!(ctl(e, ADD, from, IN));
        let status = in_child(|| {
            // Its descriptor is another reference to the file.
            let fine = sys::write(to, b"x").is_ok() && now(e) == Ok(vec![(IN, from)]);
            let more = counter(1).and_then(|c| ctl(e, ADD, c, OUT));
            i32::from(!fine || more.is_err())
        })?;
        is!(status, 0);
        is!(ok!(now(e)), [(IN, from)]);
        let pid = ok!(sys::fork());
        if pid == 0 {
            nap_us(200_000);
            sys::exit(0);
        }
        ok!(sys::close(from));
        is!(ok!(now(e)), [(IN, from)]);
        is!(ok!(sys::wait(pid as i64, 0)), (pid, 0));
        is!(ok!(now(e)), NONE);
    }
    a_wait_sleeps_until_an_event_or_its_time {
        let (from, to) = ok!(sys::pipe(0));
        let e = ok!(epoll());
        ok!(ctl(e, ADD, from, IN));
        let begun = sys::now_ns();
        is!(ok!(wait_for(e, 1, 30)), NONE);
        holds!(sys::now_ns() - begun >= 30_000_000);
        let spec = [0i64, 20_000_000];
        let begun = sys::now_ns();
        is!(ok!(sc!(SYS_epoll_pwait2, e, [0u32; 3].as_mut_ptr(), 1, spec.as_ptr(), 0, 8)), 0);
        holds!(sys::now_ns() - begun >= 20_000_000);
        let writer = std::thread::spawn(move || {
            nap_us(30_000);
            sys::write(to, b"x")
        });
        is!(ok!(wait_for(e, 1, -1)), [(IN, from)]);
        holds!(writer.join().is_ok());
    }
    a_signal_interrupts_a_wait_and_may_be_masked {
        let e = ok!(epoll());
        let mut list = [0u32; 3];
        // SA_RESTART changes nothing.
        ok!(sys::on_signal(libc::SIGALRM, nothing as *const () as usize, libc::SA_RESTART));
        let timer = [0i64, 0, 0, 20_000];
        ok!(sc!(SYS_setitimer, libc::ITIMER_REAL, timer.as_ptr(), 0));
        fails!(wait_for(e, 1, -1), EINTR);
        ok!(sc!(SYS_setitimer, libc::ITIMER_REAL, timer.as_ptr(), 0));
        let mask = [1u64 << (libc::SIGALRM - 1)];
        is!(ok!(sc!(SYS_epoll_pwait, e, list.as_mut_ptr(), 1, 60, mask.as_ptr(), 8)), 0);
    }
    each_thread_of_several_gets_its_event {
        let e = ok!(epoll());
        let mut counters = Vec::new();
        for _ in 0..4 {
            let c = ok!(counter(0));
            ok!(ctl(e, ADD, c, IN | ET));
            counters.push(c);
        }
        let threads: Vec<_> = (0..4)
            .map(|_| std::thread::spawn(move || wait_for(e, 1, 5000)))
            .collect();
        nap_us(50_000);
        for &c in &counters {
            ok!(count(c));
        }
        let mut got: Vec<i32> = Vec::new();
        for thread in threads {
            let events = thread.join().map_err(|_| "a thread has failed")?;
            got.extend(ok!(events).iter().map(|&(_, fd)| fd));
        }
        got.sort_unstable();
        is!(got, counters);
    }
    poll_sees_that_an_epoll_is_ready {
        let (c, e) = (ok!(counter(0)), ok!(epoll()));
        ok!(ctl(e, ADD, c, IN));
        let poll = |ms: i64| {
            let mut list = [u64::from(e as u32) | u64::from(IN) << 32];
            sc!(SYS_poll, list.as_mut_ptr(), 1, ms).map(|n| (n, list[0] >> 48))
        };
        is!(ok!(poll(0)), (0, 0));
        let writer = std::thread::spawn(move || {
            nap_us(30_000);
            count(c)
        });
        is!(ok!(poll(-1)), (1, u64::from(IN)));
        holds!(writer.join().is_ok());
        ok!(take(c));
        is!(ok!(poll(0)), (0, 0));
    }
    files_of_proc_that_never_block_are_refused {
        let e = ok!(epoll());
        for name in ["status", "maps", "stat", "comm", "environ"] {
            let fd = ok!(sys::open(&format!("/proc/self/{name}"), libc::O_RDONLY, 0));
            fails!(ctl(e, ADD, fd, IN), EPERM);
        }
        for name in ["/proc/self/mounts", "/proc/self/mountinfo", "/proc/meminfo"] {
            let fd = ok!(sys::open(name, libc::O_RDONLY, 0));
            ok!(ctl(e, ADD, fd, IN));
        }
    }
    an_epoll_as_a_file {
        let e = ok!(epoll());
        fails!(sys::read(e, &mut [0; 8]), EINVAL);
        fails!(sys::write(e, &[0; 8]), EINVAL);
        let link = std::fs::read_link(format!("/proc/self/fd/{e}"));
        is!(link.map(|to| to.display().to_string()).unwrap_or_default(), "anon_inode:[eventpoll]");
    }
    a_user_has_a_limited_number_of_entries {
        let limit = "/proc/sys/fs/epoll/max_user_watches";
        let text = std::fs::read_to_string(limit).map_err(|e| format!("{limit}: {e}"))?;
        holds!(text.trim().parse::<u64>().is_ok_and(|n| n > 0));
        let status = in_child(|| {
            if sys::become_user(4321, &[]).is_err() {
                return 2;
            }
            let Ok(e) = epoll() else { return 3 };
            // As many as descriptors allow fit.
            for _ in 0..100 {
                let added = counter(0).and_then(|c| ctl(e, ADD, c, IN));
                if added.is_err() {
                    return 4;
                }
            }
            0
        })?;
        is!(status, 0);
    }
}

extern "C" fn nothing(_: i32) {}
