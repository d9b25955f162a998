//! Superpages, as far as programs forbid them.

use crate::privileges::exec;
use user::sys;

/// PR_SET_THP_DISABLE.
fn set(args: [u64; 4]) -> Result<u64, i32> {
    let [on, a, b, c] = args;
    sc!(SYS_prctl, libc::PR_SET_THP_DISABLE, on, a, b, c)
}

/// PR_GET_THP_DISABLE.
fn get(args: [u64; 4]) -> Result<u64, i32> {
    let [a, b, c, d] = args;
    sc!(SYS_prctl, libc::PR_GET_THP_DISABLE, a, b, c, d)
}

/// What a program says, as its exit status, that a test has executed with the argument `--forbids`: whether it may not have
/// superpages.
pub fn forbids() -> i32 {
    get([0; 4]).map_or(9, |forbids| forbids as i32)
}

/// The exit status of a child that executes `act`.
fn status(act: impl FnOnce() -> i32) -> Result<i32, String> {
    let pid = ok!(sys::fork());
    if pid == 0 {
        sys::exit(act());
    }
    Ok(ok!(sys::wait(pid as i64, 0)).1 >> 8)
}

fn again() -> i32 {
    100 + exec("/proc/self/exe", "--forbids")
}

tests! { "superpages";
    prctl_forbids_them {
        is!(get([0; 4]), Ok(0));
        for (on, forbids) in [(1, 1), (0, 0), (7, 1), (u64::MAX << 32, 1), (0, 0)] {
            is!(set([on, 0, 0, 0]), Ok(0));
            is!(get([0; 4]), Ok(forbids));
        }
        for args in [[1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 0, 1], [0, 1, 0, 0]] {
            fails!(set(args), EINVAL);
        }
        is!(get([0; 4]), Ok(0));
        for args in [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]] {
            fails!(get(args), EINVAL);
        }
    }
    children_and_programs_inherit_that {
        is!(status(again)?, 0);
        is!(set([1, 0, 0, 0]), Ok(0));
        is!(status(|| get([0; 4]).map_or(9, |on| on as i32))?, 1);
        is!(status(again)?, 1);
        // A child's choice is its own, and so is that of a program that it executes.
        is!(status(|| { let _ = set([0; 4]); again() })?, 0);
        is!(get([0; 4]), Ok(1));
        is!(set([0; 4]), Ok(0));
        is!(status(|| { let _ = set([1, 0, 0, 0]); again() })?, 1);
        is!(get([0; 4]), Ok(0));
    }
    threads_have_it_together {
        let other = std::thread::spawn(|| set([1, 0, 0, 0]));
        is!(other.join().ok(), Some(Ok(0)));
        is!(get([0; 4]), Ok(1));
    }
}
