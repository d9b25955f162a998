//! Sequences that fail because of a deliberate fault.

use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

use crate::ops::{Mix, op};
use crate::play::{Player, Setup};
use crate::play_with;

/// Sequences to try.
pub const TRIES: usize = 60;

/// Number of the [`TRIES`] sequences that fail after `prepare` has introduced a fault.
pub fn noticed(prepare: impl Fn(&Player)) -> usize {
    let mut runner = TestRunner::deterministic();
    let sequences = proptest::collection::vec(op(Mix::All), 1..120);
    let hook = take_hook();
    set_hook(Box::new(|_| ()));
    let failed = (0..TRIES)
        .filter(|_| {
            let ops = sequences.new_tree(&mut runner).unwrap().current();
            let run = || {
                let player = Player::new(Setup::default());
                prepare(&player);
                play_with(player, &ops);
            };
            catch_unwind(AssertUnwindSafe(run)).is_err()
        })
        .count();
    set_hook(hook);
    failed
}

/// A CPU that does not compare generations when it returns to a space.
#[test]
#[cfg(not(feature = "faulty-rmap"))]
fn a_missing_comparison_fails_the_tests() {
    let failed = noticed(Player::be_credulous);
    println!("{failed} of {TRIES} sequences noticed");
    assert!(
        failed > 0,
        "no sequence noticed that switches keep stale translations"
    );
}
