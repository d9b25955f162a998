//! `forkbomb [SECONDS [KIB]]`: every process writes KIB kibibytes of private memory and forks as fast as it can, until
//! the time is over, or the system has killed one of its children.
//!
//! All processes are one process group, and each ends when the time is over, so that a system that survives is usable
//! afterwards. Status 0: the time was over; 3: fork was refused at the end; 4: the system has killed children.

use user::sys;

/// Reaps a child that has ended, and returns whether it was killed.
fn reap(options: i32) -> Option<bool> {
    match sys::wait(-1, options) {
        Ok((1.., status)) => Some(libc::WIFSIGNALED(status)),
        _ => None,
    }
}

fn main() {
    let mut args = std::env::args().skip(1).map(|text| text.parse::<u64>());
    let seconds = args.next().and_then(Result::ok).unwrap_or(3);
    let bytes = args.next().and_then(Result::ok).unwrap_or(0) << 10;
    let end = sys::now_ns() + seconds * 1_000_000_000;
    let (prot, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
    );
    let base = sys::mmap(0, bytes.max(4096), prot, flags, -1, 0).unwrap_or_default();
    let (mut refused, mut killed) = (false, false);
    while sys::now_ns() < end && !killed {
        let forked = sys::fork();
        refused = forked.is_err();
        if refused {
            sys::nap(1_000_000);
        }
        if forked == Ok(0) {
            (base..base + bytes)
                .step_by(4096)
                .for_each(|at| sys::poke64(at, end));
        } else {
            while let Some(by_signal) = reap(libc::WNOHANG) {
                killed |= by_signal;
            }
        }
    }
    while reap(0).is_some() {}
    sys::exit(match (killed, refused) {
        (true, _) => 4,
        (false, true) => 3,
        (false, false) => 0,
    })
}
