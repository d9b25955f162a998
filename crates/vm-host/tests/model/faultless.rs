//! What holds for every sequence.

use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

use crate::ops::{Mix, Op, op};
use crate::play;

fn config(cases: u32) -> ProptestConfig {
    let asked = std::env::var("PANTALA_CASES")
        .ok()
        .and_then(|n| n.parse().ok());
    ProptestConfig {
        cases: asked.unwrap_or(cases),
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/model/regressions.txt"
        )))),
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config(150))]

    /// Everything at once.
    #[test]
    fn spaces_do_what_the_reference_does(ops in prop::collection::vec(op(Mix::All), 1..120)) {
        play(&ops, 0);
    }

    /// Few addresses, many forks and stores: deep chains.
    #[test]
    fn deep_chains_show_the_right_page(ops in prop::collection::vec(op(Mix::Forks), 1..200)) {
        play(&ops, 0);
    }

    /// Mostly files: truncation, holes, private copies.
    #[test]
    fn files_and_their_mappings_agree(ops in prop::collection::vec(op(Mix::Files), 1..120)) {
        play(&ops, 0);
    }

    /// Allocations fail every now and then; whoever retries gets what is due.
    #[test]
    fn failing_allocations_lose_nothing(ops in prop::collection::vec(op(Mix::All), 1..100), period in 3_u32..9) {
        play(&ops, period);
    }
}

/// The pages of a stack's unmapped end live on in the object that a child shares.
#[test]
fn a_stack_that_grows_again_shows_no_old_page() {
    let write = |at| Op::Write {
        space: 0,
        cpu: 0,
        at,
        word: 0,
    };
    play(
        &[
            Op::Stack {
                space: 0,
                at: 56,
                len: 1,
            },
            write(50),
            Op::Fork { space: 0 },
            Op::Unmap {
                space: 0,
                at: 48,
                len: 3,
            },
            write(48),
            Op::Compare,
        ],
        0,
    );
}

/// Below the place where the first write after a fork found the stack's end.
#[test]
fn scans_find_what_a_stack_grew_by_after_a_fork() {
    let write = |at| Op::Write {
        space: 0,
        cpu: 0,
        at,
        word: 0,
    };
    play(
        &[
            Op::Stack {
                space: 0,
                at: 56,
                len: 1,
            },
            write(56),
            Op::Fork { space: 0 },
            write(56),
            write(50),
            Op::ScanAll,
        ],
        0,
    );
}
