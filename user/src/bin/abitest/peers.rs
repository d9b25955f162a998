//! What processes do to one another: process_vm_readv and its kin, kcmp, priorities of input and output, sched_setattr; and the clock's
//! state, and handles.

use crate::harness::*;
use user::sys;

/// A child that has `memory` as it is now, and waits until it is killed.
fn sleeper() -> Result<u64, i32> {
    match sys::fork()? {
        0 => loop {
            let _ = sc!(SYS_pause);
        },
        pid => Ok(pid),
    }
}

fn end(pid: u64) {
    let _ = sc!(SYS_kill, pid, libc::SIGKILL);
    let _ = sys::wait(pid as i64, 0);
}

fn readv(pid: u64, here: &[u64], there: &[u64]) -> Result<u64, i32> {
    sc!(
        SYS_process_vm_readv,
        pid,
        here.as_ptr(),
        here.len() / 2,
        there.as_ptr(),
        there.len() / 2,
        0
    )
}

fn writev(pid: u64, here: &[u64], there: &[u64]) -> Result<u64, i32> {
    sc!(
        SYS_process_vm_writev,
        pid,
        here.as_ptr(),
        here.len() / 2,
        there.as_ptr(),
        there.len() / 2,
        0
    )
}

fn kcmp(a: u64, b: u64, kind: u32, x: i32, y: i32) -> Result<u64, i32> {
    sc!(SYS_kcmp, a, b, kind, x, y)
}

/// Runs `f` as a user without privileges, in a child; its exit status.
fn as_nobody(f: impl FnOnce() -> i32) -> Result<i32, String> {
    in_child(|| match sys::become_user(4321, &[]) {
        Ok(_) => f(),
        Err(_) => 99,
    })
}

const BEST_EFFORT: u64 = 2 << 13;

fn setattr(tid: u64, words: &mut [u64], flags: u32) -> Result<u64, i32> {
    sc!(SYS_sched_setattr, tid, words.as_mut_ptr(), flags)
}

fn getattr(tid: u64) -> Result<[u64; 6], i32> {
    let mut words = [0; 6];
    sc!(SYS_sched_getattr, tid, words.as_mut_ptr(), 48, 0)?;
    Ok(words)
}

tests! { "peers";
    memory_of_another_process_is_read_and_written {
        let memory = ok!(anon(3));
        for at in 0..3 * PAGE { sys::poke(memory + at, at as u8); }
        let pid = ok!(sleeper());
        for at in 0..3 * PAGE { sys::poke(memory + at, 0); }
        let buf = ok!(anon(3));
        // Two pieces here, three there, which do not match.
        let here = [buf, 5000, buf + 5000, 200];
        let there = [memory + 4090, 10, memory, 100, memory + 5000, 5090];
        is!(ok!(readv(pid, &here, &there)), 5200);
        let want = |from: u64, at: u64| (from + at) as u8;
        holds!((0..10).all(|at| sys::peek(buf + at) == want(4090, at)));
        holds!((0..100).all(|at| sys::peek(buf + 10 + at) == want(0, at)));
        holds!((0..5090).all(|at| sys::peek(buf + 110 + at) == want(5000, at)));
        sys::poke(buf, 77);
        is!(ok!(writev(pid, &[buf, 1], &[memory + 8000, 1])), 1);
        is!(ok!(readv(pid, &[buf + 1, 1], &[memory + 8000, 1])), 1);
        is!((sys::peek(buf + 1), sys::peek(memory + 8000)), (77, 0));
        // It ends where there is no memory.
        is!(ok!(readv(pid, &[buf, 3 * PAGE], &[memory + 3 * PAGE - 10, 10, 8, 10])), 10);
        end(pid);
        fails!(readv(pid, &[buf, 1], &[memory, 1]), ESRCH);
    }
    copies_of_memory_check_their_arguments {
        let pid = ok!(sleeper());
        let buf = ok!(anon(1));
        fails!(readv(pid, &[buf, 1], &[8, 1]), EFAULT);
        fails!(writev(pid, &[buf, 1], &[8, 1]), EFAULT);
        fails!(readv(pid, &[1 << 63, 1], &[buf, 1]), EFAULT);
        fails!(sc!(SYS_process_vm_readv, pid, [buf, 1].as_ptr(), 1, [buf, 1].as_ptr(), 1, 1), EINVAL);
        fails!(sc!(SYS_process_vm_readv, pid, [buf, 1].as_ptr(), 1, [buf, 1].as_ptr(), 5000, 0), EINVAL);
        fails!(sc!(SYS_process_vm_readv, pid, [buf, 1].as_ptr(), 5000, [buf, 1].as_ptr(), 1, 0), EINVAL);
        is!(ok!(readv(9_999_999, &[buf, 0], &[buf, 1])), 0);
        is!(ok!(readv(pid, &[buf, 1], &[])), 0);
        let status = as_nobody(|| {
            let tries = [readv(pid, &[buf, 1], &[buf, 1]), writev(pid, &[buf, 1], &[buf, 1])];
            i32::from(tries != [Err(libc::EPERM), Err(libc::EPERM)])
        })?;
        is!(status, 0);
        end(pid);
    }
    advice_for_another_process {
        let pid = ok!(sleeper());
        let fd = ok!(sc!(SYS_pidfd_open, pid, 0)) as i32;
        // As the child has it.
        let buf = ok!(anon(2));
        let end_of_stack = [0u8; 8];
        let mapped = end_of_stack.as_ptr() as u64 & !(PAGE - 1);
        let advise = |fd: i32, ranges: &[u64], advice: i32| {
            sc!(SYS_process_madvise, fd, ranges.as_ptr(), ranges.len() / 2, advice, 0)
        };
        is!(ok!(advise(fd, &[mapped, PAGE], libc::MADV_COLD)), PAGE);
        is!(ok!(advise(fd, &[mapped, 0, mapped, PAGE], libc::MADV_WILLNEED)), PAGE);
        // The child has not got what was mapped since; what comes before it counts.
        fails!(advise(fd, &[buf, PAGE], libc::MADV_COLD), ENOMEM);
        is!(ok!(advise(fd, &[mapped, PAGE, buf, PAGE], libc::MADV_PAGEOUT)), PAGE);
        fails!(advise(fd, &[mapped + 1, PAGE], libc::MADV_COLD), EINVAL);
        fails!(advise(fd, &[mapped, PAGE], libc::MADV_DONTNEED), EINVAL);
        fails!(sc!(SYS_process_madvise, fd, [mapped, PAGE].as_ptr(), 1, libc::MADV_COLD, 1), EINVAL);
        let (from, _) = ok!(sys::pipe(0));
        fails!(advise(from, &[mapped, PAGE], libc::MADV_COLD), EBADF);
        let status = as_nobody(|| {
            i32::from(advise(fd, &[mapped, PAGE], libc::MADV_COLD) != Err(libc::EACCES))
        })?;
        is!(status, 0);
        end(pid);
        fails!(advise(fd, &[mapped, PAGE], libc::MADV_COLD), ESRCH);
        fails!(sc!(SYS_process_madvise, 9999, [buf, PAGE].as_ptr(), 1, libc::MADV_COLD, 0), EBADF);
    }
    kcmp_tells_what_is_one {
        let me = ok!(sc!(SYS_getpid));
        let pid = ok!(sleeper());
        let one = ok!(sys::open("/dev/null", libc::O_RDONLY, 0));
        let two = ok!(sys::open("/dev/null", libc::O_RDONLY, 0));
        let same = ok!(sc!(SYS_dup, one)) as i32;
        is!(ok!(kcmp(me, me, 0, one, same)), 0);
        let order = ok!(kcmp(me, me, 0, one, two));
        holds!(order == 1 || order == 2);
        is!(ok!(kcmp(me, me, 0, two, one)), 3 - order);
        is!(ok!(kcmp(me, pid, 0, 1, 1)), 0);
        for kind in [1, 2, 3, 4] {
            is!(ok!(kcmp(me, me, kind, 0, 0)), 0);
            holds!(ok!(kcmp(me, pid, kind, 0, 0)) != 0);
        }
        fails!(kcmp(me, me, 0, one, 9999), EBADF);
        let epoll = ok!(sc!(SYS_epoll_create1, 0)) as i32;
        let (from, _) = ok!(sys::pipe(0));
        let event = [1u32, 0, 0];
        ok!(sc!(SYS_epoll_ctl, epoll, libc::EPOLL_CTL_ADD, from, event.as_ptr()));
        let in_epoll = |fd: i32, slot: [i32; 3]| sc!(SYS_kcmp, me, me, 7, fd, slot.as_ptr());
        is!(ok!(in_epoll(from, [epoll, from, 0])), 0);
        holds!(ok!(in_epoll(one, [epoll, from, 0])) > 0);
        fails!(in_epoll(from, [epoll, from, 1]), ENOENT);
        fails!(in_epoll(from, [epoll, one, 0]), ENOENT);
        fails!(in_epoll(from, [one, from, 0]), EINVAL);
        fails!(in_epoll(9999, [epoll, from, 0]), EBADF);
        fails!(in_epoll(from, [9999, from, 0]), EBADF);
        fails!(sc!(SYS_kcmp, me, me, 7, from, 8), EFAULT);
        fails!(kcmp(me, me, 99, 0, 0), EINVAL);
        fails!(kcmp(me, 9_999_999, 1, 0, 0), ESRCH);
        is!(as_nobody(|| i32::from(kcmp(pid, pid, 1, 0, 0) != Err(libc::EPERM)))?, 0);
        end(pid);
    }
    priorities_of_input_and_output_are_kept_and_inherited {
        let set = |tid: u64, value: u64| sc!(SYS_ioprio_set, 1, tid, value);
        ok!(set(0, BEST_EFFORT | 6));
        is!(ok!(sc!(SYS_ioprio_get, 1, 0)), BEST_EFFORT | 6);
        let pid = ok!(sleeper());
        is!(ok!(sc!(SYS_ioprio_get, 1, pid)), BEST_EFFORT | 6);
        ok!(set(pid, BEST_EFFORT | 1));
        is!(ok!(sc!(SYS_ioprio_get, 1, 0)), BEST_EFFORT | 6);
        is!(ok!(sc!(SYS_ioprio_get, 1, pid)), BEST_EFFORT | 1);
        // Of a group, the best.
        is!(ok!(sc!(SYS_ioprio_get, 2, 0)), BEST_EFFORT | 1);
        ok!(sc!(SYS_ioprio_set, 2, 0, 3 << 13));
        is!(ok!(sc!(SYS_ioprio_get, 1, pid)), 3 << 13);
        fails!(set(0, 5 << 13), EINVAL);
        fails!(sc!(SYS_ioprio_set, 9, 0, BEST_EFFORT), EINVAL);
        fails!(set(9_999_999, BEST_EFFORT), ESRCH);
        let status = as_nobody(|| {
            let tries = [set(pid, BEST_EFFORT), set(0, 1 << 13), set(0, BEST_EFFORT)];
            i32::from(tries != [Err(libc::EPERM), Err(libc::EPERM), Ok(0)])
        })?;
        is!(status, 0);
        end(pid);
    }
    attributes_of_scheduling {
        let attr = |policy: u64, flags: u64, nice: i32| [48 | policy << 32, flags, u64::from(nice as u32), 0, 0, 0, 0, 0];
        ok!(setattr(0, &mut attr(3, 1, 7), 0));
        is!(ok!(getattr(0))[..3], [48 | 3 << 32, 1, 7]);
        is!(ok!(sc!(SYS_sched_getscheduler, 0)), 3 | 0x4000_0000);
        is!(ok!(sc!(SYS_getpriority, 0, 0)), 13);
        // Nice values beyond the range count as its ends.
        ok!(setattr(0, &mut attr(0, 0, 99), 0));
        is!(ok!(getattr(0))[..3], [48, 0, 19]);
        let mut small = attr(0, 0, 5);
        small[0] = 40;
        fails!(setattr(0, &mut small, 0), E2BIG);
        is!(small[0] as u32 as u64 % 8, 0);
        holds!(small[0] as u32 >= 48);
        let mut large = attr(0, 0, 5);
        large[0] = 64;
        ok!(setattr(0, &mut large, 0));
        large[7] = 1;
        large[0] = 64;
        fails!(setattr(0, &mut large, 0), E2BIG);
        fails!(setattr(0, &mut attr(99, 0, 0), 0), EINVAL);
        fails!(setattr(0, &mut attr(0, 1 << 20, 0), 0), EINVAL);
        fails!(setattr(0, &mut attr(0, 0, 0), 1), EINVAL);
        fails!(sc!(SYS_sched_setattr, 0, 0, 0), EINVAL);
        fails!(sc!(SYS_sched_setattr, 0, 8, 0), EFAULT);
        fails!(setattr(9_999_999, &mut attr(0, 0, 0), 0), ESRCH);
        let status = as_nobody(|| {
            let tries = [setattr(0, &mut attr(0, 0, -5), 0), setattr(0, &mut attr(0, 0, 19), 0)];
            i32::from(tries != [Err(libc::EPERM), Ok(0)])
        })?;
        is!(status, 0);
    }
    the_state_of_the_clock_can_be_read {
        let mut state = [0u64; 26];
        let kept = ok!(sc!(SYS_adjtimex, state.as_mut_ptr()));
        holds!(kept <= 5);
        let mut now = [0i64; 2];
        ok!(sc!(SYS_clock_gettime, 0, now.as_mut_ptr()));
        holds!((state[9] as i64 - now[0]).abs() <= 1);
        is!(ok!(sc!(SYS_clock_adjtime, 0, state.as_mut_ptr())), kept);
        fails!(sc!(SYS_clock_adjtime, 1, state.as_mut_ptr()), EOPNOTSUPP);
        fails!(sc!(SYS_clock_adjtime, 99, state.as_mut_ptr()), EINVAL);
        fails!(sc!(SYS_adjtimex, 8), EFAULT);
        // The end of an adjustment by adjtime(3), of which there is none.
        let mut none = [0u64; 26];
        none[0] = 0x8001;
        is!(ok!(sc!(SYS_adjtimex, none.as_mut_ptr())), kept);
        is!(none[1], 0);
        is!(as_nobody(|| {
            let asked = |modes: u64| {
                let mut state = [0u64; 26];
                state[0] = modes;
                sc!(SYS_adjtimex, state.as_mut_ptr())
            };
            i32::from([asked(2), asked(0x8001)] != [Err(libc::EPERM); 2])
        })?, 0);
    }
    handles_of_files {
        let mut handle = [0u32; 40];
        handle[0] = 128;
        let mut mount = 0i32;
        let at = libc::AT_FDCWD;
        let named = sc!(SYS_name_to_handle_at, at, path("/tmp"), handle.as_mut_ptr(), &raw mut mount, 0);
        holds!(matches!(named, Ok(0) | Err(libc::EOPNOTSUPP)));
        fails!(sc!(SYS_name_to_handle_at, at, path("/nothing"), handle.as_mut_ptr(), &raw mut mount, 0), ENOENT);
        fails!(sc!(SYS_name_to_handle_at, at, path("/tmp"), handle.as_mut_ptr(), &raw mut mount, 0x8000), EINVAL);
        is!(as_nobody(|| {
            let handle = [8u32, 1, 0, 0];
            i32::from(sc!(SYS_open_by_handle_at, at, handle.as_ptr(), 0) != Err(libc::EPERM))
        })?, 0);
    }
    policies_of_memory_are_kept_and_inherited {
        let mut mask = [0u64; 16];
        ok!(sc!(SYS_get_mempolicy, 0, mask.as_mut_ptr(), 1024, 0, 4));
        let all = mask[0];
        let get = || {
            let (mut mode, mut mask) = (99u32, [0u64; 16]);
            let got = sc!(SYS_get_mempolicy, &raw mut mode, mask.as_mut_ptr(), 1024, 0, 0);
            got.map(|_| (mode, mask[0]))
        };
        let set = |mode: u32, nodes: u64| sc!(SYS_set_mempolicy, mode, [nodes].as_ptr(), 65);
        is!(ok!(get()), (0, 0));
        for mode in [2, 3, 5] {
            ok!(set(mode, all));
            is!(ok!(get()), (mode, all));
            is!(in_child(|| i32::from(get() != Ok((mode, all))))?, 0);
            fails!(set(mode, 0), EINVAL);
        }
        ok!(set(1, 1));
        is!(ok!(get()), (1, 1));
        ok!(set(1, 0));
        is!(ok!(get()), (4, 0));
        fails!(set(4, 1), EINVAL);
        fails!(set(0, 1), EINVAL);
        fails!(set(2 | 3 << 14, all), EINVAL);
        fails!(set(6 | 1 << 9, all), EINVAL);
        ok!(set(0, 0));
        is!(ok!(get()), (0, 0));
        let map = ok!(anon(2));
        let bind = |at: u64, len: u64, mode: u32, flags: u32| sc!(SYS_mbind, at, len, mode, &raw const all, 65, flags);
        ok!(bind(map, 2 * PAGE, 2, 0));
        ok!(bind(map, 0, 2, 0));
        fails!(bind(map + 1, PAGE, 2, 0), EINVAL);
        fails!(bind(map, PAGE, 99, 0), EINVAL);
        fails!(bind(map, PAGE, 2, 64), EINVAL);
        ok!(sys::munmap(map + PAGE, PAGE));
        fails!(bind(map, 2 * PAGE, 2, 0), EFAULT);
        is!(as_nobody(|| i32::from(bind(map, PAGE, 2, 4) != Err(libc::EPERM)))?, 0);
    }
}
