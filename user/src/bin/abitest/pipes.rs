//! Pipes, and waiting on several descriptors.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::harness::*;
use user::sys;

const NONBLOCK: i32 = libc::O_NONBLOCK;

fn poll(fds: &[(i32, i16)], ms: i32) -> Result<Vec<i16>, i32> {
    let mut list: Vec<libc::pollfd> = fds
        .iter()
        .map(|&(fd, events)| libc::pollfd {
            fd,
            events,
            revents: 0,
        })
        .collect();
    sc!(SYS_poll, list.as_mut_ptr(), list.len(), ms as i64)?;
    Ok(list.iter().map(|entry| entry.revents).collect())
}

extern "C" fn nothing(_: i32) {}

/// Stops a child that sleeps in a call or is about to, and continues it.
fn stop_and_continue(pid: u64) -> Result<(), String> {
    let asleep = || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.contains(") S ")
    };
    // The call must continue whenever the stop comes; a failure to do so shows only if the child was asleep in it.
    soon(asleep);
    ok!(sc!(SYS_kill, pid, libc::SIGSTOP));
    is!(
        ok!(sys::wait(pid as i64, libc::WUNTRACED)),
        (pid, libc::SIGSTOP << 8 | 0x7f)
    );
    ok!(sc!(SYS_kill, pid, libc::SIGCONT));
    soon(asleep);
    Ok(())
}

tests! { "pipe";
    bytes_come_in_order {
        let (from, to) = ok!(sys::pipe(0));
        is!(ok!(sys::write(to, b"hello")), 5);
        let mut buf = [0; 3];
        is!(ok!(sys::read(from, &mut buf)), 3);
        is!(&buf, b"hel");
        is!(ok!(sys::read(from, &mut buf)), 2);
    }
    a_splice_moves_bytes_or_says_that_it_cannot {
        let (from, to) = ok!(sys::pipe(0));
        is!(ok!(sys::write(to, b"hello")), 5);
        let null = ok!(sys::open("/dev/null", libc::O_WRONLY, 0));
        // Programs copy after EINVAL, and fail after ENOSYS.
        let answer = sc!(SYS_splice, from, 0, null, 0, 5, 0);
        if !matches!(answer, Ok(5) | Err(libc::EINVAL)) {
            return Err(format!("splice: {answer:?}"));
        }
        is!(sc!(SYS_splice, u64::MAX, 0, null, 0, 5, 0), Err(libc::EBADF));
    }
    an_end_lives_while_a_call_uses_it_and_no_longer {
        let (from, to) = ok!(sys::pipe(0));
        let reader = std::thread::spawn(move || {
            let mut buf = [0; 8];
            sys::read(from, &mut buf)
        });
        nap_us(50_000);
        ok!(sys::close(from));
        is!(ok!(sys::write(to, b"abc")), 3);
        is!(reader.join().ok(), Some(Ok(3)));
        let status = in_child(|| {
            let _ = sc!(SYS_rt_sigaction, libc::SIGPIPE, [1u64, 0, 0, 0].as_ptr(), 0, 8);
            i32::from(sys::write(to, b"x") != Err(libc::EPIPE))
        })?;
        is!(status, 0);
    }
    ends_close_although_other_threads_have_used_the_table {
        let (from, to) = ok!(sys::pipe(0));
        let (gate, open) = ok!(sys::pipe(0));
        let other = std::thread::spawn(move || sys::read(gate, &mut [0]));
        nap_us(20_000);
        ok!(sys::close(to));
        is!(ok!(poll(&[(from, libc::POLLIN)], 0)), [libc::POLLHUP]);
        ok!(sys::close(open));
        is!(other.join().ok(), Some(Ok(0)));
    }
    exec_and_exit_close_what_other_threads_have_used {
        let (from, to) = ok!(sys::pipe(libc::O_CLOEXEC));
        let (gate, open) = ok!(sys::pipe(0));
        let pid = ok!(sys::fork());
        if pid == 0 {
            for _ in 0..2 {
                std::thread::spawn(move || loop { let _ = sys::write(to, &[]); });
            }
            nap_us(20_000);
            let _ = sys::close(open);
            let _ = sc!(SYS_dup2, gate, 0);
            let words = ["sh", "-c", "read line"].map(path);
            let argv = [words[0], words[1], words[2], 0];
            let _ = sc!(SYS_execve, path("/bin/sh"), argv.as_ptr(), [0u64].as_ptr());
            sys::exit(1);
        }
        ok!(sys::close(to));
        // The new program waits for the gate, and has neither end of the pipe.
        is!(ok!(poll(&[(from, libc::POLLIN)], 20_000)), [libc::POLLHUP]);
        ok!(sys::close(open));
        ok!(sys::wait(pid as i64, 0));
        let (from, to) = ok!(sys::pipe(0));
        let pid = ok!(sys::fork());
        if pid == 0 {
            std::thread::spawn(move || loop { let _ = sys::write(to, &[]); });
            nap_us(20_000);
            sys::exit(0);
        }
        ok!(sys::close(to));
        ok!(sys::wait(pid as i64, 0));
        is!(ok!(poll(&[(from, libc::POLLIN)], 0)), [libc::POLLHUP]);
    }
    a_reader_who_cannot_take_the_bytes_leaves_them_to_the_next {
        let (from, to) = ok!(sys::pipe(0));
        let nowhere = ok!(sys::mmap(0, PAGE, libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0));
        let first = std::thread::spawn(move || sc!(SYS_read, from, nowhere, 1));
        nap_us(50_000);
        let second = std::thread::spawn(move || sys::read(from, &mut [0; 8]));
        nap_us(50_000);
        ok!(sys::write(to, b"abc"));
        is!(first.join().ok(), Some(Err(libc::EFAULT)));
        is!(second.join().ok(), Some(Ok(3)));
    }
    a_writer_who_has_no_bytes_leaves_the_room_to_the_next {
        let (from, to) = ok!(sys::pipe(0));
        let nowhere = ok!(sys::mmap(0, PAGE, libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0));
        let mut all = vec![0; 65536];
        is!(ok!(sys::write(to, &all)), 65536);
        let first = std::thread::spawn(move || sc!(SYS_write, to, nowhere, 1));
        nap_us(50_000);
        let second = std::thread::spawn(move || sys::write(to, b"x"));
        nap_us(50_000);
        is!(ok!(sys::read(from, &mut all)), 65536);
        is!(first.join().ok(), Some(Err(libc::EFAULT)));
        is!(second.join().ok(), Some(Ok(1)));
    }
    end_of_file { let (from, to) = ok!(sys::pipe(0)); ok!(sys::close(to)); is!(ok!(sys::read(from, &mut [0])), 0); }
    write_without_reader {
        let (from, to) = ok!(sys::pipe(0));
        ok!(sys::close(from));
        is!(in_child(|| { let _ = sys::default_signal(libc::SIGPIPE); let _ = sys::write(to, b"x"); 0 })?, libc::SIGPIPE);
        ok!(sys::on_signal(libc::SIGPIPE, libc::SIG_IGN, 0));
        fails!(sys::write(to, b"x"), EPIPE);
    }
    what_went_through_before_the_last_reader_left_counts {
        ok!(sys::on_signal(libc::SIGPIPE, libc::SIG_IGN, 0));
        let (from, to) = ok!(sys::pipe(0));
        let pid = ok!(sys::fork());
        if pid == 0 {
            // When the pipe is full, the writer sleeps, and this process is its last reader.
            let full = within(10, || poll(&[(to, libc::POLLOUT)], 0) == Ok(vec![0]));
            sys::exit(i32::from(!full));
        }
        ok!(sys::close(from));
        is!(ok!(sys::write(to, &vec![1; 200_000])), 65536);
        is!(ok!(sys::wait(pid as i64, 0)), (pid, 0));
        fails!(sys::write(to, b"x"), EPIPE);
    }
    a_closed_fifo_keeps_no_buffer {
        const FIFOS: usize = 2000;
        let dir = scratch();
        let name = |n| format!("{dir}/{n}");
        for n in 0..FIFOS {
            ok!(sc!(SYS_mknod, path(&name(n)), libc::S_IFIFO | 0o600, 0));
        }
        let slab = || user::proc::meminfo("Slab").unwrap_or(0) as i64;
        let before = slab();
        for n in 0..FIFOS {
            let fd = ok!(sys::open(&name(n), libc::O_RDWR, 0));
            is!(ok!(sys::write(fd, b"x")), 1);
            ok!(sys::close(fd));
        }
        // The buffers alone would be 1000 KiB.
        holds!(slab() - before < 900 << 10);
        let fd = ok!(sys::open(&name(0), libc::O_RDWR | NONBLOCK, 0));
        fails!(sys::read(fd, &mut [0; 1]), EAGAIN);
    }
    a_fifo_hangs_up_on_those_who_have_seen_a_writer {
        let name = format!("{}/fifo", scratch());
        ok!(sc!(SYS_mknod, path(&name), libc::S_IFIFO | 0o600, 0));
        let open = |flags| sys::open(&name, flags | NONBLOCK, 0);
        let first = ok!(open(libc::O_RDONLY));
        is!(ok!(poll(&[(first, libc::POLLIN)], 0)), [0]);
        ok!(sys::close(ok!(open(libc::O_WRONLY))));
        is!(ok!(poll(&[(first, libc::POLLIN)], 0)), [libc::POLLHUP]);
        let second = ok!(open(libc::O_RDONLY));
        is!(ok!(poll(&[(first, libc::POLLIN), (second, libc::POLLIN)], 0)), [libc::POLLHUP, 0]);
        ok!(sys::close(ok!(open(libc::O_WRONLY))));
        is!(ok!(poll(&[(second, libc::POLLIN)], 0)), [libc::POLLHUP]);
        for fd in [first, second] { ok!(sys::close(fd)); }
        let third = ok!(open(libc::O_RDONLY));
        is!(ok!(poll(&[(third, libc::POLLIN)], 0)), [0]);
    }
    nonblocking {
        let (from, to) = ok!(sys::pipe(NONBLOCK));
        fails!(sys::read(from, &mut [0]), EAGAIN);
        let chunk = vec![1; 4096];
        let mut total = 0;
        let stop = loop { match sys::write(to, &chunk) { Ok(n) => total += n, Err(errno) => break errno } };
        is!(stop, libc::EAGAIN);
        is!(total, 65536);
        is!(ok!(sc!(SYS_fcntl, to, libc::F_GETPIPE_SZ)), 65536);
    }
    small_writes_are_atomic {
        let (from, to) = ok!(sys::pipe(0));
        for byte in 1..=4u8 {
            if ok!(sys::fork()) == 0 {
                for _ in 0..50 { let _ = sys::write(to, &[byte; 1000]); }
                sys::exit(0);
            }
        }
        ok!(sys::close(to));
        let (mut all, mut buf) = (Vec::new(), [0; 4096]);
        while let n @ 1.. = ok!(sys::read(from, &mut buf)) { all.extend_from_slice(&buf[..n]); }
        is!(all.len(), 200_000);
        for block in all.chunks(1000) { holds!(block.iter().all(|&b| b == block[0])); }
    }
    large_transfers_block_and_resume {
        let (from, to) = ok!(sys::pipe(0));
        if ok!(sys::fork()) == 0 {
            let data: Vec<u8> = (0..300_000u32).map(|i| ((i * 7) >> 3) as u8).collect();
            let _ = sys::close(from);
            sys::exit(i32::from(sys::write(to, &data) != Ok(data.len())));
        }
        ok!(sys::close(to));
        let (mut all, mut buf) = (Vec::new(), [0; 5000]);
        while let n @ 1.. = ok!(sys::read(from, &mut buf)) { all.extend_from_slice(&buf[..n]); }
        is!(all.len(), 300_000);
        holds!(all.iter().enumerate().all(|(i, &b)| b == ((i as u32 * 7) >> 3) as u8));
        is!(ok!(sys::wait(-1, 0)).1, 0);
    }
    pipe2_arguments {
        let mut fds = [0i32; 2];
        fails!(sc!(SYS_pipe2, fds.as_mut_ptr(), 0x1234_0000), EINVAL);
        fails!(sc!(SYS_pipe2, 8, 0), EFAULT);
        let (from, _) = ok!(sys::pipe(libc::O_CLOEXEC));
        is!(ok!(sc!(SYS_fcntl, from, libc::F_GETFD)), 1);
        is!(ok!(sc!(SYS_pipe, fds.as_mut_ptr())), 0);
    }
    wrong_end {
        let (from, to) = ok!(sys::pipe(0));
        fails!(sys::write(from, b"x"), EBADF);
        fails!(sys::read(to, &mut [0]), EBADF);
        fails!(sc!(SYS_lseek, from, 0, 0), ESPIPE);
        fails!(sc!(SYS_pread64, from, [0u8; 4].as_mut_ptr(), 4, 0), ESPIPE);
    }
    sizes {
        let (_, to) = ok!(sys::pipe(0));
        let got = ok!(sc!(SYS_fcntl, to, libc::F_SETPIPE_SZ, 100_000));
        holds!(got >= 100_000);
        is!(ok!(sc!(SYS_fcntl, to, libc::F_GETPIPE_SZ)), got);
        ok!(sys::write(to, &vec![0; 50_000]));
        fails!(sc!(SYS_fcntl, to, libc::F_SETPIPE_SZ, 4096), EBUSY);
    }
    fionread {
        let (from, to) = ok!(sys::pipe(0));
        ok!(sys::write(to, b"hello"));
        let mut n = 0i32;
        ok!(sc!(SYS_ioctl, from, libc::FIONREAD, &raw mut n));
        is!(n, 5);
    }
    named_pipes {
        let name = format!("{}/fifo", scratch());
        ok!(sc!(SYS_mknodat, libc::AT_FDCWD, path(&name), libc::S_IFIFO | 0o600, 0));
        fails!(sys::open(&name, libc::O_WRONLY | NONBLOCK, 0), ENXIO);
        let from = ok!(sys::open(&name, libc::O_RDONLY | NONBLOCK, 0));
        let to = ok!(sys::open(&name, libc::O_WRONLY, 0));
        ok!(sys::write(to, b"x"));
        is!(ok!(sys::read(from, &mut [0])), 1);
    }
    poll_tells_of_bytes_space_and_hangup {
        let (from, to) = ok!(sys::pipe(0));
        is!(ok!(poll(&[(from, libc::POLLIN), (to, libc::POLLOUT)], 0)), [0, libc::POLLOUT]);
        ok!(sys::write(to, b"x"));
        is!(ok!(poll(&[(from, libc::POLLIN)], 0)), [libc::POLLIN]);
        ok!(sys::close(to));
        is!(ok!(poll(&[(from, libc::POLLIN)], 0)), [libc::POLLIN | libc::POLLHUP]);
        is!(ok!(poll(&[(9999, libc::POLLIN), (-1, libc::POLLIN)], 0)), [libc::POLLNVAL, 0]);
        fails!(sc!(SYS_poll, 8, 1, 0), EFAULT);
    }
    poll_waits_and_times_out {
        let (from, to) = ok!(sys::pipe(0));
        let began = sys::now_ns();
        is!(ok!(poll(&[(from, libc::POLLIN)], 50)), [0]);
        holds!(sys::now_ns() - began >= 50_000_000);
        if ok!(sys::fork()) == 0 { nap_us(30_000); let _ = sys::write(to, b"x"); sys::exit(0); }
        is!(ok!(poll(&[(from, libc::POLLIN)], 10_000)), [libc::POLLIN]);
    }
    select_and_pselect {
        let (from, to) = ok!(sys::pipe(0));
        let mut set = [0u64; 16];
        set[from as usize / 64] = 1 << (from % 64);
        let (ask, time) = (set, [0u64, 10_000]);
        is!(ok!(sc!(SYS_select, from + 1, set.as_mut_ptr(), 0, 0, time.as_ptr())), 0);
        is!(set, [0; 16]);
        ok!(sys::write(to, b"x"));
        set = ask;
        is!(ok!(sc!(SYS_pselect6, from + 1, set.as_mut_ptr(), 0, 0, [5u64, 0].as_ptr(), 0)), 1);
        is!(set, ask);
        fails!(sc!(SYS_select, -1i64, 0, 0, 0, time.as_ptr()), EINVAL);
        set = [0; 16];
        set[0] = 1 << 50;
        fails!(sc!(SYS_select, 51, set.as_mut_ptr(), 0, 0, time.as_ptr()), EBADF);
    }
    // A descriptor that names a place alone is none that poll can ask; select calls it ready for all.
    polling_a_place {
        let fd = ok!(sys::open("/", libc::O_PATH, 0));
        is!(ok!(poll(&[(fd, libc::POLLIN)], -1)), [libc::POLLNVAL]);
        let bit = [1u64 << fd, 0];
        let mut sets = [bit; 3];
        let [read, write, except] = &mut sets;
        is!(ok!(sc!(SYS_select, 64, read.as_mut_ptr(), write.as_mut_ptr(), except.as_mut_ptr(), 0)), 3);
        is!(std::hint::black_box(sets), [bit; 3]);
        let mut except = bit;
        is!(ok!(sc!(SYS_pselect6, 64, 0, 0, except.as_mut_ptr(), 0, 0)), 1);
        is!(std::hint::black_box(except), bit);
    }
    ppoll_with_a_mask {
        let (from, _to) = ok!(sys::pipe(0));
        let mut list = [libc::pollfd { fd: from, events: libc::POLLIN, revents: 0 }];
        let (time, mask) = ([0u64, 5_000_000], 0u64);
        is!(ok!(sc!(SYS_ppoll, list.as_mut_ptr(), 1, time.as_ptr(), &raw const mask, 8)), 0);
        fails!(sc!(SYS_ppoll, list.as_mut_ptr(), 1, [0u64, 2_000_000_000].as_ptr(), 0, 8), EINVAL);
    }
    waiting_goes_on_after_a_stop {
        type Wait = fn(i32) -> Result<u64, i32>;
        const LONG: [u64; 2] = [1000, 0];
        let list = |fd: i32| [u64::from(fd as u32) | u64::from(libc::POLLIN as u16) << 32];
        let ways: [Wait; 5] = [
            |fd| poll(&[(fd, libc::POLLIN)], -1).map(|_| 1),
            |fd| poll(&[(fd, libc::POLLIN)], 1_000_000).map(|found| u64::from(found == [libc::POLLIN])),
            |fd| sc!(SYS_select, fd + 1, [1u64 << fd; 16].as_mut_ptr(), 0, 0, { LONG }.as_mut_ptr()),
            |fd| sc!(SYS_pselect6, fd + 1, [1u64 << fd; 16].as_mut_ptr(), 0, 0, { LONG }.as_mut_ptr(), 0),
            |fd| sc!(SYS_select, fd + 1, [1u64 << fd; 16].as_mut_ptr(), 0, 0, 0),
        ];
        for way in ways {
            let (from, to) = ok!(sys::pipe(0));
            let pid = ok!(sys::fork());
            if pid == 0 { sys::exit(i32::from(way(from) != Ok(1))); }
            stop_and_continue(pid)?;
            ok!(sys::write(to, b"x"));
            is!(ok!(sys::wait(pid as i64, 0)), (pid, 0));
            for fd in [from, to] { ok!(sys::close(fd)); }
        }
        // The call's mask is in force again when the call is restarted, and the old mask after it.
        ok!(sys::on_signal(libc::SIGUSR2, nothing as *const () as usize, 0));
        let (from, to) = ok!(sys::pipe(0));
        let pid = ok!(sys::fork());
        if pid == 0 {
            let (usual, during) = (1u64 << (libc::SIGUSR1 - 1), 1u64 << (libc::SIGUSR2 - 1));
            let _ = sc!(SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const usual, 0, 8);
            let answer = sc!(SYS_ppoll, list(from).as_mut_ptr(), 1, { LONG }.as_mut_ptr(), &raw const during, 8);
            let mut now = 0u64;
            let _ = sc!(SYS_rt_sigprocmask, libc::SIG_SETMASK, 0, &raw mut now, 8);
            sys::exit(i32::from((answer, std::hint::black_box(now)) != (Ok(1), usual)));
        }
        stop_and_continue(pid)?;
        ok!(sc!(SYS_kill, pid, libc::SIGUSR2));
        ok!(sys::write(to, b"x"));
        is!(ok!(sys::wait(pid as i64, 0)), (pid, 0));
    }
    waiting_ends_by_a_handler {
        ok!(sys::on_signal(libc::SIGALRM, nothing as *const () as usize, libc::SA_RESTART));
        ok!(sc!(SYS_setitimer, libc::ITIMER_REAL, [0u64, 20_000, 0, 20_000].as_ptr(), 0));
        let (from, _to) = ok!(sys::pipe(0));
        fails!(poll(&[(from, libc::POLLIN)], -1), EINTR);
        fails!(sc!(SYS_select, from + 1, [1u64 << from; 16].as_mut_ptr(), 0, 0, 0), EINTR);
        fails!(sc!(SYS_ppoll, 0, 0, 0, 0, 8), EINTR);
    }
    // Another thread closes one of the pipe's ends as soon as it is open, and opens another file, which gets the same
    // descriptor.
    a_pipe_that_cannot_be_shown_closes_nothing_else {
        const NOWHERE: u64 = 8;
        static DONE: AtomicBool = AtomicBool::new(false);
        let next = ok!(sys::open("/dev/null", libc::O_RDONLY, 0));
        ok!(sys::close(next));
        let other = std::thread::spawn(move || {
            let mut lost = 0;
            while !DONE.load(Relaxed) {
                let _ = sys::close(next);
                let Ok(fd) = sys::open("/dev/null", libc::O_RDONLY, 0) else { return -1 };
                let _ = sc!(SYS_sched_yield);
                lost += i32::from(sc!(SYS_fcntl, fd, libc::F_GETFD).is_err());
                let _ = sys::close(fd);
            }
            lost
        });
        let tries = [0; 3000].map(|_| sc!(SYS_pipe, NOWHERE));
        DONE.store(true, Relaxed);
        is!(other.join().unwrap_or(-1), 0);
        for done in tries { fails!(done, EFAULT); }
    }
    many_pipes {
        let limit = [8192u64, 8192];
        let _ = sc!(SYS_prlimit64, 0, libc::RLIMIT_NOFILE, limit.as_ptr(), 0);
        let pipes: Vec<(i32, i32)> = (0..2000).map_while(|_| sys::pipe(0).ok()).collect();
        is!(pipes.len(), 2000);
        for (i, &(_, to)) in pipes.iter().enumerate() { is!(ok!(sys::write(to, &(i as u32).to_ne_bytes())), 4); }
        for (i, &(from, _)) in pipes.iter().enumerate() {
            let mut buf = [0; 4];
            is!(ok!(sys::read(from, &mut buf)), 4);
            is!(u32::from_ne_bytes(buf), i as u32);
        }
    }
}
