//! splice, tee and vmsplice.

use crate::harness::*;
use user::sys;

const NONBLOCK: u32 = libc::SPLICE_F_NONBLOCK;

fn splice(from: i32, to: i32, len: usize, flags: u32) -> Result<u64, i32> {
    sc!(SYS_splice, from, 0, to, 0, len, flags)
}

fn take(from: i32, most: usize) -> Result<Vec<u8>, i32> {
    let mut bytes = vec![0; most];
    let n = sys::read(from, &mut bytes)?;
    bytes.truncate(n);
    Ok(bytes)
}

/// Fills a pipe; returns how many bytes it has now.
fn fill(to: i32) -> Result<usize, i32> {
    let flags = sc!(SYS_fcntl, to, libc::F_GETFL, 0)?;
    sc!(
        SYS_fcntl,
        to,
        libc::F_SETFL,
        flags | libc::O_NONBLOCK as u64
    )?;
    let mut total = 0;
    while let Ok(n) = sys::write(to, &[7; 4096]) {
        total += n;
    }
    sc!(SYS_fcntl, to, libc::F_SETFL, flags)?;
    Ok(total)
}

/// Writes `count` numbers in order.
fn count_up(to: i32, count: u32) {
    for from in (0..count).step_by(100) {
        let numbers = from..(from + 100).min(count);
        let bytes: Vec<u8> = numbers.flat_map(u32::to_ne_bytes).collect();
        let _ = sys::write(to, &bytes);
    }
}

/// Reads numbers to the end.
fn numbers(from: i32) -> Vec<u32> {
    let mut bytes = Vec::new();
    while let Ok(more) = take(from, 5000)
        && !more.is_empty()
    {
        bytes.extend(more);
    }
    let (words, _) = bytes.as_chunks::<4>();
    words.iter().map(|&word| u32::from_ne_bytes(word)).collect()
}

tests! { "splice";
    from_a_pipe_to_a_file_and_back {
        let (from, to) = ok!(sys::pipe(0));
        let file = file_with(b"0123456789")?;
        ok!(sys::write(to, b"hello world"));
        let mut at = 2u64;
        is!(ok!(sc!(SYS_splice, from, 0, file, &raw mut at, 5, 0)), 5);
        is!(at, 7);
        is!(ok!(take(from, 100)), b" world");
        at = 1;
        is!(ok!(sc!(SYS_splice, file, &raw mut at, to, 0, 100, 0)), 9);
        is!(at, 10);
        is!(ok!(take(from, 100)), b"1hello789");
        // The position of the file itself counts, and moves, if none is given.
        ok!(sc!(SYS_lseek, file, 4, 0));
        is!(ok!(splice(file, to, 3, 0)), 3);
        is!(ok!(sc!(SYS_lseek, file, 0, libc::SEEK_CUR)), 7);
        is!(ok!(take(from, 100)), b"llo");
        ok!(sys::write(to, b"XY"));
        is!(ok!(splice(from, file, 100, 0)), 2);
        is!(ok!(sc!(SYS_lseek, file, 0, libc::SEEK_CUR)), 9);
        ok!(sc!(SYS_lseek, file, 0, libc::SEEK_END));
        is!(ok!(splice(file, to, 3, 0)), 0);
    }
    from_pipe_to_pipe {
        let ((a, b), (c, d)) = (ok!(sys::pipe(0)), ok!(sys::pipe(0)));
        ok!(sys::write(b, b"abcdef"));
        is!(ok!(splice(a, d, 4, 0)), 4);
        is!(ok!(take(c, 100)), b"abcd");
        is!(ok!(take(a, 100)), b"ef");
        fails!(splice(a, d, 4, NONBLOCK), EAGAIN);
        ok!(sys::close(b));
        is!(ok!(splice(a, d, 4, 0)), 0);
    }
    what_finds_no_room_stays_in_order {
        let ((a, b), (c, d)) = (ok!(sys::pipe(0)), ok!(sys::pipe(0)));
        let full = ok!(fill(d));
        ok!(sys::write(b, b"one two"));
        fails!(splice(a, d, 100, NONBLOCK), EAGAIN);
        fails!(sc!(SYS_tee, a, d, 100, NONBLOCK), EAGAIN);
        let mut left = full;
        while left > 0 { left -= ok!(take(c, 4096)).len(); }
        is!(ok!(splice(a, d, 3, NONBLOCK)), 3);
        is!(ok!(take(c, 100)), b"one");
        is!(ok!(take(a, 100)), b" two");
        ok!(sys::write(b, b"three"));
        ok!(sys::close(c));
        let status = in_child(|| {
            let _ = sc!(SYS_rt_sigaction, libc::SIGPIPE, [1u64, 0, 0, 0].as_ptr(), 0, 8);
            i32::from(splice(a, d, 100, 0) != Err(libc::EPIPE))
        })?;
        is!(status, 0);
        let status = in_child(|| {
            let _ = sys::on_signal(libc::SIGPIPE, libc::SIG_DFL, 0);
            let _ = splice(a, d, 100, 0);
            0
        })?;
        is!(status, libc::SIGPIPE);
        is!(ok!(take(a, 100)), b"three");
    }
    a_tee_leaves_the_bytes {
        let ((a, b), (c, d)) = (ok!(sys::pipe(0)), ok!(sys::pipe(0)));
        ok!(sys::write(b, b"abcdef"));
        is!(ok!(sc!(SYS_tee, a, d, 4, 0)), 4);
        is!(ok!(sc!(SYS_tee, a, d, 100, 0)), 6);
        is!(ok!(take(c, 100)), b"abcdabcdef");
        is!(ok!(take(a, 100)), b"abcdef");
        fails!(sc!(SYS_tee, a, d, 4, NONBLOCK), EAGAIN);
        fails!(sc!(SYS_tee, a, b, 4, 0), EINVAL);
        let file = file_with(b"")?;
        fails!(sc!(SYS_tee, a, file, 4, 0), EINVAL);
        fails!(sc!(SYS_tee, d, c, 4, 0), EBADF);
        is!(ok!(sc!(SYS_tee, a, d, 0, 0)), 0);
        fails!(sc!(SYS_tee, a, d, 4, 99), EINVAL);
        ok!(sys::close(b));
        is!(ok!(sc!(SYS_tee, a, d, 4, 0)), 0);
    }
    memory_goes_into_a_pipe_and_comes_out {
        let (from, to) = ok!(sys::pipe(0));
        let (one, two) = (*b"hello ", *b"world");
        let parts = [one.as_ptr() as u64, 6, two.as_ptr() as u64, 5];
        is!(ok!(sc!(SYS_vmsplice, to, parts.as_ptr(), 2, 0)), 11);
        let mut got = [0u8; 20];
        let into = [got.as_mut_ptr() as u64, 20];
        is!(ok!(sc!(SYS_vmsplice, from, into.as_ptr(), 1, 0)), 11);
        is!(&got[..11], b"hello world");
        fails!(sc!(SYS_vmsplice, from, into.as_ptr(), 1, NONBLOCK), EAGAIN);
        ok!(fill(to));
        fails!(sc!(SYS_vmsplice, to, parts.as_ptr(), 2, NONBLOCK), EAGAIN);
        let file = file_with(b"")?;
        fails!(sc!(SYS_vmsplice, file, parts.as_ptr(), 2, 0), EBADF);
        fails!(sc!(SYS_vmsplice, to, parts.as_ptr(), 5000, 0), EINVAL);
        fails!(sc!(SYS_vmsplice, to, parts.as_ptr(), 2, 99), EINVAL);
    }
    errors_of_splice {
        let ((a, b), (_, d)) = (ok!(sys::pipe(0)), ok!(sys::pipe(0)));
        let file = file_with(b"abc")?;
        let at = 0u64;
        ok!(sys::write(b, b"x"));
        fails!(sc!(SYS_splice, a, &raw const at, d, 0, 1, 0), ESPIPE);
        fails!(sc!(SYS_splice, a, 0, d, &raw const at, 1, 0), ESPIPE);
        fails!(splice(a, b, 1, 0), EINVAL);
        fails!(splice(file, file, 1, 0), EINVAL);
        fails!(splice(a, d, 1, 99), EINVAL);
        fails!(splice(b, d, 1, 0), EBADF);
        fails!(splice(a, 9999, 1, 0), EBADF);
        is!(ok!(splice(a, 9999, 0, 0)), 0);
        ok!(sc!(SYS_fcntl, file, libc::F_SETFL, libc::O_APPEND));
        fails!(splice(a, file, 1, 0), EINVAL);
        let dir = ok!(sys::open("/tmp", libc::O_DIRECTORY, 0));
        fails!(splice(dir, d, 1, 0), EINVAL);
    }
    bytes_keep_their_order_through_two_pipes {
        const COUNT: u32 = 100_000;
        let ((a, b), (c, d)) = (ok!(sys::pipe(0)), ok!(sys::pipe(0)));
        let writer = std::thread::spawn(move || { count_up(b, COUNT); let _ = sys::close(b); });
        let mover = std::thread::spawn(move || {
            while splice(a, d, 3000, 0).is_ok_and(|n| n > 0) {}
            let _ = sys::close(d);
        });
        let got = numbers(c);
        holds!(writer.join().is_ok() && mover.join().is_ok());
        is!(got.len(), COUNT as usize);
        holds!(got.iter().zip(0..).all(|(&got, want)| got == want));
    }
    movers_and_readers_share_a_pipe_and_lose_nothing {
        const COUNT: u32 = 60_000;
        let (a, b) = ok!(sys::pipe(0));
        let writer = std::thread::spawn(move || { count_up(b, COUNT); let _ = sys::close(b); });
        let mut sinks = Vec::new();
        for _ in 0..2 {
            let (c, d) = ok!(sys::pipe(0));
            std::thread::spawn(move || {
                while splice(a, d, 4000, 0).is_ok_and(|n| n > 0) {}
                let _ = sys::close(d);
            });
            sinks.push(std::thread::spawn(move || numbers(c)));
        }
        let mut all = Vec::new();
        loop {
            let bytes = ok!(take(a, 4000));
            if bytes.is_empty() { break; }
            let (words, _) = bytes.as_chunks::<4>();
            all.extend(words.iter().map(|&word| u32::from_ne_bytes(word)));
        }
        for sink in sinks { all.extend(sink.join().unwrap_or_default()); }
        holds!(writer.join().is_ok());
        all.sort_unstable();
        is!(all.len(), COUNT as usize);
        holds!(all.iter().zip(0..).all(|(&got, want)| got == want));
    }
    a_signal_ends_a_splice_that_waits {
        extern "C" fn nothing(_: i32) {}
        ok!(sys::on_signal(libc::SIGALRM, nothing as *const () as usize, 0));
        let ((a, _b), (_c, d)) = (ok!(sys::pipe(0)), ok!(sys::pipe(0)));
        let timer = [0u64, 0, 0, 50_000];
        ok!(sc!(SYS_setitimer, libc::ITIMER_REAL, timer.as_ptr(), 0));
        fails!(splice(a, d, 1, 0), EINTR);
    }
}
