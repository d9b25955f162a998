//! The space that is named to sweep ends while another forks and ends: `vm/src/object/swept.rs`.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p vm-host --release --test shuttle_sweepers`
#![cfg(all(shuttle, not(feature = "listed")))]

use std::sync::{Arc, Mutex};

use vm::space::{Advice, Source, Space};
use vm_host::schedules::{AT, PAGE, World, explore, join, spawn, stop_after};

/// A family with two pages. The second is not for children of Y.
struct Family {
    y: Arc<Space>,
    /// What remains in the end: a child of Y.
    z: Mutex<Option<Arc<Space>>>,
}

/// CPUs on which something happens before the two threads begin. Each gets a shard of its own, for so many attach.
const BEFORE: [usize; 8] = [1, 2, 1, 2, 1, 2, 3, 4];

/// X, the world's space, is the sweeper; Y's attachment is in a shard behind that of the child that it will have.
fn family(world: &Arc<World>) -> Arc<Family> {
    world.map_pages(2, false, Source::Anon);
    world.set_word_at(&world.space, AT, 7);
    world.set_word_at(&world.space, AT + PAGE, 7);
    let y = Arc::new(Mutex::new(None));
    for cpu in BEFORE {
        let y = y.clone();
        let act = spawn(world, cpu, move |world| {
            let vm = &world.lab.vm;
            match cpu {
                3 => {
                    let space = world.space.fork(vm).unwrap();
                    let done = space.advise(vm, AT + PAGE, PAGE, Advice::DontFork);
                    assert_eq!(done, Ok(()));
                    *y.lock().unwrap() = Some(space);
                }
                // The end of one that was not given all names the first in the hub.
                4 => end(
                    world,
                    &y.lock().unwrap().as_ref().unwrap().fork(vm).unwrap(),
                ),
                _ => end(world, &world.space.fork(vm).unwrap()),
            }
        });
        join([act]);
    }
    let y = y.lock().unwrap().take().unwrap();
    let z = Mutex::new(None);
    Arc::new(Family { y, z })
}

fn end(world: &World, space: &Space) {
    space.clear(&world.lab.vm);
}

fn ends_beside(world: &Arc<World>, sweeper_first: bool) {
    let family = family(world);
    let theirs = family.clone();
    let sweeper = |world: &Arc<World>| spawn(world, 1, move |world| end(world, &world.space));
    let relative = |world: &Arc<World>| {
        spawn(world, 2, move |world| {
            let child = theirs.y.fork(&world.lab.vm).unwrap();
            *theirs.z.lock().unwrap() = Some(child);
            end(world, &theirs.y);
        })
    };
    if sweeper_first {
        let sweeper = sweeper(world);
        join([sweeper, relative(world)]);
    } else {
        let relative = relative(world);
        join([relative, sweeper(world)]);
    }
    world.lab.vm.tend();
    world.lab.vm.tend();
    assert_eq!(world.private_pages(), 1, "the page that nobody was given");
    let z = family.z.lock().unwrap().take().unwrap();
    assert_eq!(world.word(&z), 7);
    z.clear(&world.lab.vm);
}

#[test]
fn a_sweeper_that_is_stopped_while_it_ends_names_another() {
    stop_after(BEFORE.len(), |world| ends_beside(world, true));
}

#[test]
fn a_space_that_is_stopped_while_it_forks_and_ends_names_another() {
    stop_after(BEFORE.len(), |world| ends_beside(world, false));
}

#[test]
fn one_of_two_that_end_names_another() {
    explore(|world| ends_beside(world, true));
}
