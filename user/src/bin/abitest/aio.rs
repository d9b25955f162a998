//! Asynchronous input and output.

use crate::harness::*;
use user::sys;

const PREAD: u64 = 0;
const PWRITE: u64 = 1;
const FSYNC: u64 = 2;
const NOOP: u64 = 6;
const PREADV: u64 = 7;

type Block = [u64; 8];

fn block(op: u64, fd: i32, buf: u64, len: u64, offset: u64) -> Block {
    [7, 0, op | (fd as u64) << 32, buf, len, offset, 0, 0]
}

fn setup(count: u32) -> Result<u64, i32> {
    let mut context = 0u64;
    sc!(SYS_io_setup, count, &raw mut context)?;
    Ok(context)
}

fn submit(context: u64, blocks: &[&Block]) -> Result<u64, i32> {
    let at: Vec<u64> = blocks.iter().map(|block| block.as_ptr() as u64).collect();
    sc!(SYS_io_submit, context, at.len(), at.as_ptr())
}

/// The events that are there, or come within a second, up to ten.
fn events(context: u64, least: u64) -> Result<Vec<[u64; 4]>, i32> {
    let (mut found, second) = (vec![[0u64; 4]; 10], [1u64, 0]);
    let n = sc!(
        SYS_io_getevents,
        context,
        least,
        10,
        found.as_mut_ptr(),
        second.as_ptr()
    )?;
    found.truncate(n as usize);
    Ok(found)
}

/// io_pgetevents(2), whose number the crate of the C library lacks.
fn pgetevents(context: u64, event: &mut [u64; 4], time: &[u64; 2], set: u64) -> Result<u64, i32> {
    const NUMBER: i64 = 333;
    let (event, time) = (event.as_mut_ptr() as u64, time.as_ptr() as u64);
    sys::call(NUMBER, &[context, 1, 1, event, time, set])
}

extern "C" fn on_signal(_: i32) {}

fn file() -> Result<i32, i32> {
    sys::open(
        &format!("{}/file", scratch()),
        libc::O_RDWR | libc::O_CREAT,
        0o600,
    )
}

tests! { "aio";
    operations_are_reported_in_order {
        let (context, fd) = (ok!(setup(8)), ok!(file()));
        let mut back = [0u8; 8];
        let write = block(PWRITE, fd, b"written!".as_ptr() as u64, 8, 3);
        let read = block(PREAD, fd, back.as_mut_ptr() as u64, 8, 5);
        is!(ok!(submit(context, &[&write])), 1);
        is!(ok!(submit(context, &[&read, &read])), 2);
        let done = ok!(events(context, 3));
        is!(done.len(), 3);
        is!(done[0], [7, write.as_ptr() as u64, 8, 0]);
        is!((done[1], done[2]), ([7, read.as_ptr() as u64, 6, 0], [7, read.as_ptr() as u64, 6, 0]));
        is!(&back[..6], b"itten!");
        is!(ok!(events(context, 0)).len(), 0);
        let parts = [[back.as_mut_ptr() as u64, 1], [back.as_mut_ptr() as u64 + 4, 2]];
        ok!(submit(context, &[&block(PREADV, fd, parts.as_ptr() as u64, 2, 3)]));
        is!(ok!(events(context, 1))[0][2], 3);
        is!((back[0], &back[4..6]), (b'w', &b"ri"[..]));
        ok!(submit(context, &[&block(FSYNC, fd, 0, 0, 0)]));
        is!(ok!(events(context, 1))[0][2], 0);
        ok!(sc!(SYS_io_destroy, context));
    }
    what_fails_is_an_event_or_an_errno {
        let (context, fd) = (ok!(setup(8)), ok!(file()));
        let good = block(PREAD, fd, [0u8; 4].as_ptr() as u64, 4, 0);
        is!(ok!(submit(context, &[&good, &block(PREAD, 99, 0, 0, 0), &good])), 1);
        is!(ok!(events(context, 1)).len(), 1);
        fails!(submit(context, &[&block(PREAD, 99, 0, 0, 0)]), EBADF);
        fails!(submit(context, &[&block(NOOP, fd, 0, 0, 0)]), EINVAL);
        fails!(submit(context, &[&block(77, fd, 0, 0, 0)]), EINVAL);
        fails!(submit(context, &[&block(PREAD, fd, 0, u64::MAX, 0)]), EINVAL);
        let mut reserved = good;
        reserved[6] = 1;
        fails!(submit(context, &[&reserved]), EINVAL);
        fails!(sc!(SYS_io_submit, context, -1i64, 0), EINVAL);
        fails!(sc!(SYS_io_submit, context, 1, 8), EFAULT);
        is!(ok!(sc!(SYS_io_submit, context, 0, 8)), 0);
        let to_nowhere = block(PWRITE, fd, 8, 4, 0);
        ok!(submit(context, &[&to_nowhere]));
        is!(ok!(events(context, 1))[0][2] as i64, -i64::from(libc::EFAULT));
        let read_only = ok!(sys::open("/proc/self/exe", libc::O_RDONLY, 0));
        fails!(submit(context, &[&block(PWRITE, read_only, 8, 4, 0)]), EBADF);
        fails!(sc!(SYS_io_cancel, context, good.as_ptr(), [0u64; 4].as_ptr()), EINVAL);
        fails!(sc!(SYS_io_getevents, context, 2, 1, 0, 0), EINVAL);
        fails!(sc!(SYS_io_getevents, context, -1i64, 1, 0, 0), EINVAL);
    }
    contexts_come_and_go {
        let mut context = 1u64;
        fails!(sc!(SYS_io_setup, 1, &raw mut context), EINVAL);
        context = 0;
        fails!(sc!(SYS_io_setup, 0, &raw mut context), EINVAL);
        fails!(sc!(SYS_io_setup, 0x50_0000, &raw mut context), EINVAL);
        fails!(sc!(SYS_io_setup, 1, 8), EFAULT);
        fails!(sc!(SYS_io_setup, 0x10_0000, &raw mut context), EAGAIN);
        fails!(sc!(SYS_io_destroy, 0), EINVAL);
        fails!(sc!(SYS_io_submit, 4096, 1, 0), EINVAL);
        let (one, other) = (ok!(setup(1)), ok!(setup(1)));
        holds!(one != other);
        let pid = ok!(sys::fork());
        if pid == 0 {
            // A child has none.
            sys::exit(i32::from(sc!(SYS_io_submit, one, 0, 0) != Err(libc::EINVAL)));
        }
        is!(ok!(sys::wait(pid as i64, 0)), (pid, 0));
        ok!(sc!(SYS_io_destroy, one));
        fails!(sc!(SYS_io_destroy, one), EINVAL);
        fails!(sc!(SYS_io_getevents, one, 0, 1, 0, 0), EINVAL);
        ok!(sc!(SYS_io_destroy, other));
    }
    what_cannot_be_handed_out_is_fetched_again {
        let (context, fd) = (ok!(setup(4)), ok!(file()));
        let write = block(PWRITE, fd, b"x".as_ptr() as u64, 1, 0);
        ok!(submit(context, &[&write, &write]));
        fails!(sc!(SYS_io_getevents, context, 1, 4, 8, 0), EFAULT);
        is!(ok!(events(context, 2)).len(), 2);
    }
    more_events_than_a_context_has_room_for_are_waited_for {
        let (context, fd) = (ok!(setup(1)), ok!(file()));
        let submitter = std::thread::spawn(move || {
            let write = block(PWRITE, fd, b"x".as_ptr() as u64, 1, 0);
            for _ in 0..9 {
                nap_us(10_000);
                while submit(context, &[&write]) == Err(libc::EAGAIN) {
                    nap_us(1000);
                }
            }
        });
        let (mut found, late) = (vec![[0u64; 4]; 9], [10u64, 0]);
        is!(ok!(sc!(SYS_io_getevents, context, 9, 9, found.as_mut_ptr(), late.as_ptr())), 9);
        holds!(submitter.join().is_ok());
    }
    a_counter_is_told_and_can_be_waited_for {
        let (context, fd) = (ok!(setup(4)), ok!(file()));
        let counter = ok!(sc!(SYS_eventfd2, 0, 0));
        let mut write = block(PWRITE, fd, b"x".as_ptr() as u64, 1, 0);
        write[7] = 1 | counter << 32;
        ok!(submit(context, &[&write, &write]));
        let mut count = 0u64;
        // Both are over at once, or soon.
        let mut sum = 0;
        while sum < 2 {
            ok!(sc!(SYS_read, counter, &raw mut count, 8));
            sum += count;
        }
        is!(ok!(events(context, 2)).len(), 2);
        write[7] = 1 | (fd as u64) << 32;
        fails!(submit(context, &[&write]), EINVAL);
    }
    an_event_is_waited_for_until_a_signal_or_the_time_is_over {
        let context = ok!(setup(4));
        let (mut event, short) = ([0u64; 4], [0u64, 20_000_000]);
        is!(ok!(sc!(SYS_io_getevents, context, 1, 1, event.as_mut_ptr(), short.as_ptr())), 0);
        is!(ok!(pgetevents(context, &mut event, &short, 0)), 0);
        let (mask, late) = ([0u64; 1], [5u64, 0]);
        let set = [mask.as_ptr() as u64, 8];
        let me = std::process::id();
        let pid = ok!(sys::fork());
        if pid == 0 {
            nap_us(100_000);
            let _ = sc!(SYS_kill, me, libc::SIGUSR1);
            sys::exit(0);
        }
        ok!(sys::on_signal(libc::SIGUSR1, on_signal as *const () as usize, 0));
        fails!(pgetevents(context, &mut event, &late, set.as_ptr() as u64), EINTR);
        ok!(sys::wait(pid as i64, 0));
    }
}
