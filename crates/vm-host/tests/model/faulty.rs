//! A reverse map that skips a backing now and then does not go unnoticed.

use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

use crate::ops::{Mix, op};
use crate::play;

/// Sequences to try.
const TRIES: usize = 60;

#[test]
fn a_skipped_backing_fails_the_tests() {
    let mut runner = TestRunner::deterministic();
    let sequences = proptest::collection::vec(op(Mix::All), 1..120);
    let hook = take_hook();
    set_hook(Box::new(|_| ()));
    let failed = (0..TRIES)
        .filter(|_| {
            let ops = sequences.new_tree(&mut runner).unwrap().current();
            catch_unwind(AssertUnwindSafe(|| play(&ops, 0))).is_err()
        })
        .count();
    set_hook(hook);
    println!("{failed} of {TRIES} sequences noticed");
    assert!(failed > 0, "no sequence noticed that scans skip mappings");
}
