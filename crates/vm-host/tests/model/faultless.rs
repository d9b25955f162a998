//! Properties that hold for every sequence of operations.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use vm::Tuning;
use vm::space::Advice;

use crate::ops::{Mix, Op, What, op};
use crate::play::{Player, Setup};
use crate::{play, play_with};

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

/// With small limits. Every `injector`-th page allocation, and every `heap`-th allocation that may fail, fails, if not
/// 0.
fn play_small(ops: &[Op], injector: u32, heap: u32) {
    let setup = Setup {
        injector,
        heap,
        tuning: Tuning::SMALL,
        ..Setup::default()
    };
    play_with(Player::new(setup), ops);
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

    /// Allocations fail now and then; an operation that is retried succeeds.
    #[test]
    fn failing_allocations_lose_nothing(ops in prop::collection::vec(op(Mix::All), 1..100), period in 3_u32..9) {
        play(&ops, period);
    }
}

proptest! {
    #![proptest_config(config(80))]

    /// Every hint is refreshed, every limit reached, and forks fold.
    #[test]
    fn small_bounds_change_nothing(ops in prop::collection::vec(op(Mix::All), 1..120)) {
        play_small(&ops, 0, 0);
    }

    /// The same for deep chains.
    #[test]
    fn deep_chains_of_few_layers_show_the_right_page(ops in prop::collection::vec(op(Mix::Forks), 1..200)) {
        play_small(&ops, 0, 0);
    }

    /// Three spaces at most, which fork each other.
    #[test]
    fn families_show_the_right_page(ops in prop::collection::vec(op(Mix::Families), 1..250)) {
        let setup = Setup { tuning: Tuning::SMALL, spaces: 3, ..Setup::default() };
        play_with(Player::new(setup), &ops);
    }

    /// Shared memory in all that mremap does.
    #[test]
    fn shared_memory_is_one_wherever_it_is_mapped(ops in prop::collection::vec(op(Mix::Shared), 1..120)) {
        play(&ops, 0);
    }

    /// Heap allocations fail now and then.
    #[test]
    fn a_heap_that_fails_loses_nothing(ops in prop::collection::vec(op(Mix::All), 1..100), period in 2_u32..6) {
        play_small(&ops, 0, period);
    }

    /// Both kinds of allocations fail.
    #[test]
    fn short_memory_loses_nothing_of_deep_chains(ops in prop::collection::vec(op(Mix::Forks), 1..150), pages in 3_u32..9, blocks in 2_u32..6) {
        play_small(&ops, pages, blocks);
    }
}

/// Leaves of 2 MiB come by promotion alone.
const BY_PAGE: Tuning = Tuning {
    fill_leaves: false,
    ..Tuning::DEFAULT
};

/// Leaves of 2 MiB that all sequences of blocks have promoted.
static PROMOTED: AtomicU64 = AtomicU64::new(0);

fn play_blocks(ops: &[Op], injector: u32, tuning: Tuning) {
    let setup = Setup {
        injector,
        tuning,
        spaces: 4,
        superpages: true,
        ..Setup::default()
    };
    PROMOTED.fetch_add(play_with(Player::new(setup), ops), Relaxed);
}

proptest! {
    #![proptest_config(config(30))]

    /// Programs get superpages.
    #[test]
    fn superpages_show_the_right_page(ops in prop::collection::vec(op(Mix::Blocks), 1..80)) {
        play_blocks(&ops, 0, Tuning::DEFAULT);
    }

    /// As above, where no fault fills a leaf at once.
    #[test]
    fn promoted_superpages_show_the_right_page(ops in prop::collection::vec(op(Mix::Blocks), 1..60), period in 5_u32..90) {
        play_blocks(&ops, period, BY_PAGE);
    }

    /// As above, with every hint refreshed, and allocations that fail.
    #[test]
    fn superpages_without_memory_show_the_right_page(ops in prop::collection::vec(op(Mix::Blocks), 1..60), period in 5_u32..90) {
        play_blocks(&ops, period, Tuning::SMALL);
    }
}

/// The whole of a block is written, forked, written by both, unmapped in part and mapped again.
#[test]
fn a_block_that_is_written_whole_is_promoted() {
    let (s, at, whole) = (0, 0, 8);
    let map = Op::Map {
        space: s,
        at,
        len: whole,
        what: What::Private,
        prot: 3,
        strict: false,
        place: 0,
        populate: false,
    };
    let fill = |space| Op::Advise {
        space,
        at,
        len: whole,
        advice: Advice::PopulateWrite,
    };
    let before = PROMOTED.load(Relaxed);
    play_blocks(&[map.clone(), fill(0)], 0, BY_PAGE);
    assert!(PROMOTED.load(Relaxed) > before);
    let ops = [
        map,
        fill(0),
        Op::Fork { space: 0 },
        fill(0),
        fill(1),
        Op::Unmap {
            space: 0,
            at: 4,
            len: 0,
        },
        Op::Compare,
        Op::ScanAll,
        Op::Exit { space: 0 },
        Op::Compare,
    ];
    play_blocks(&ops, 0, Tuning::DEFAULT);
}

/// Pages of a stack's unmapped end stay in the object that a child shares.
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

/// Below the address at which the first write after a fork found the end of the stack.
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

/// A layer was visible to its space only; a fork shared it; and the child has dropped the layer above since, so that
/// the parent's next write needs no new layer.
#[test]
fn what_was_known_of_a_layer_before_a_fork_is_asked_again() {
    let (at, second) = (14, 1);
    let write = |space, page| Op::Write {
        space,
        cpu: space,
        at: at + page,
        word: 0,
    };
    let map = Op::Map {
        space: 0,
        at,
        len: 4,
        what: What::Private,
        prot: 3,
        strict: false,
        place: 0,
        populate: false,
    };
    let fork = Op::Fork { space: 0 };
    let ops = [
        vec![map, write(0, 0), write(0, 1), write(0, 2), fork.clone()],
        // The second page is moved to the front, because only this space can see its layer.
        vec![write(0, 0), Op::Exit { space: second }, write(0, 1), fork],
        vec![write(second, 0), write(second, 1)],
        vec![Op::Maintain { space: second }, write(0, 0), write(0, 2)],
        vec![Op::Compare],
    ];
    play_small(&ops.concat(), 0, 0);
}
