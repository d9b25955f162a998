//! Random operations on spaces, against the reference.
//!
//! One thread plays all CPUs in turn, so that every run of a seed is the same; and after each operation no CPU may
//! reach what the operation removed. `PANTALA_CASES` sets the number of sequences per test; failing ones are kept
//! beside this file in `regressions.txt` and tried first.

mod blocks;
#[cfg(not(feature = "faulty-rmap"))]
mod faultless;
#[cfg(feature = "faulty-rmap")]
mod faulty;
mod noticed;
mod ops;
mod play;

use ops::Op;
use play::{Player, Setup};
use vm_host::heap::Heap;

#[global_allocator]
static HEAP: Heap = Heap;

/// Every `injector`-th allocation of a page fails, if that is not 0.
fn play(ops: &[Op], injector: u32) {
    let setup = Setup {
        injector,
        ..Setup::default()
    };
    play_with(Player::new(setup), ops);
}

fn play_with(mut player: Player, ops: &[Op]) -> u64 {
    for op in ops {
        player.play(op);
    }
    player.finish()
}
