//! `forkbomb [SECONDS]`: every process forks as fast as it can, until the time is over or fork fails for good.
//!
//! All of them are one process group, and each ends when the time is over, so that a system that survives is usable after.

use user::sys;

fn main() {
    let seconds = std::env::args()
        .nth(1)
        .and_then(|text| text.parse::<u64>().ok())
        .unwrap_or(3);
    let end = sys::now_ns() + seconds * 1_000_000_000;
    let mut refused = 0u64;
    while sys::now_ns() < end {
        match sys::fork() {
            Ok(0) => refused = 0,
            Ok(_) => while matches!(sys::wait(-1, libc::WNOHANG), Ok((1.., _))) {},
            Err(_) => {
                refused += 1;
                let ts = [0u64, 1_000_000];
                let _ = sys::call(libc::SYS_nanosleep, &[ts.as_ptr() as u64, 0]);
            }
        }
    }
    while sys::wait(-1, 0).is_ok() {}
    sys::exit(i32::from(refused > 0) * 3)
}
