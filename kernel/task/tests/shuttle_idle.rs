//! Idle time of a CPU that becomes busy while another one reads it, with a switch possible at every access to an atomic.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p task --release --test shuttle_idle`; `PANTALA_SCHEDULES` says how many schedules
//! the test tries.
#![cfg(shuttle)]

mod processes;

use processes::{MS, Stopped, explore, on, spawn, stop_everywhere, wait_for_ends};
use task::sched;

/// The reader's clock may be ahead of that of the CPU that was idle, by less than this.
const AHEAD: u64 = MS / 10;

fn becomes_busy() {
    on(2, || {
        hal::time::spin_ns(MS);
        let mut last = sched::idle_ns(1);
        spawn(Some(1), || ());
        for _ in 0..3 {
            let now = sched::idle_ns(1);
            assert!(now + AHEAD > last, "{last}, then {now}");
            last = now;
        }
        wait_for_ends(1);
    });
}

#[test]
fn idle_time_never_decreases() {
    explore(becomes_busy);
    stop_everywhere(Stopped::Idle, becomes_busy);
}
