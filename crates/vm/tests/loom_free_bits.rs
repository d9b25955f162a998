//! A thread that finds an entry free sees all that its last user did with it, in every order that the memory model allows.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p vm --release --test loom_free_bits`
#![cfg(loom)]

use ksync::atomic::{AtomicUsize, Ordering::Relaxed};
use loom::{sync::Arc, thread};
use vm::rmap::{FreeBits, Part};

/// Two entries, of which the second is in use by the model's other thread, and the page that it is listed with.
struct World {
    free: FreeBits<1>,
    page: AtomicUsize,
}

/// The user takes the entry out of its list and gives it back, while another thread does `act`.
fn beside_a_user(act: fn(&World)) {
    loom::model(move || {
        let world = Arc::new(World {
            free: FreeBits::default(),
            page: AtomicUsize::new(0),
        });
        world.free.fill(1);
        assert_eq!(world.free.reserve(1), Some(Part::one(0)));
        world.page.store(7, Relaxed);
        let user = world.clone();
        let user = thread::spawn(move || {
            user.page.store(0, Relaxed);
            user.free.give_back(Part::one(0));
        });
        act(&world);
        user.join().unwrap();
    });
}

#[test]
fn an_entry_that_is_reserved_again_is_as_its_last_user_left_it() {
    beside_a_user(|world| {
        if world.free.reserve(1).is_some() {
            assert_eq!(world.page.load(Relaxed), 0);
        }
    });
}

#[test]
fn a_chunk_whose_entries_are_all_free_is_used_no_more() {
    beside_a_user(|world| {
        if world.free.count() == 1 {
            assert_eq!(world.page.load(Relaxed), 0);
        }
    });
}

#[test]
fn an_entry_that_is_left_out_as_free_is_listed_no_more() {
    beside_a_user(|world| {
        if world.free.is_free(0) {
            assert_eq!(world.page.load(Relaxed), 0);
        }
    });
}
