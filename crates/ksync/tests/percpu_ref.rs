//! References counted per CPU.
#![cfg(not(any(loom, shuttle)))]

mod support;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    thread,
};

use ksync::{Epoch, PerCpuRef, host, pin};

use support::{Dropped, rounds};

#[test]
fn per_cpu_references_end_after_kill() {
    let epoch = Epoch::new(4);
    let drops = Arc::new(AtomicUsize::new(0));
    let first = PerCpuRef::new(4, Dropped(drops.clone()));
    thread::scope(|s| {
        for cpu in 0..4 {
            let (mine, epoch) = (first.clone(), &epoch);
            s.spawn(move || {
                host::set_cpu(cpu);
                for _ in 0..rounds(5000) {
                    let more = mine.clone();
                    drop(more);
                    epoch.quiescent(&mut pin());
                }
                epoch.offline(cpu);
            });
        }
        thread::yield_now();
        // Another thread may play the same CPU.
        first.kill(&epoch);
    });
    assert!(first.is_killed());
    assert_eq!(drops.load(SeqCst), 0);
    let second = first.clone();
    drop(first);
    assert_eq!(drops.load(SeqCst), 0);
    drop(second);
    assert_eq!(drops.load(SeqCst), 1);
}

/// References wander between the first CPU and the last; each is dropped only after the next has been taken.
#[test]
fn per_cpu_references_are_never_counted_too_low() {
    const CPUS: usize = 64;
    let epoch = Epoch::new(CPUS);
    let first = PerCpuRef::new(CPUS, ());
    let done = AtomicBool::new(false);
    thread::scope(|s| {
        let wanderers = [1, 2].map(|cpu| {
            let (mut mine, done) = (first.clone(), &done);
            s.spawn(move || {
                for _ in 0..rounds(200_000) {
                    host::set_cpu(cpu);
                    let next = mine.clone();
                    host::set_cpu(CPUS - cpu);
                    mine = next;
                }
                done.store(true, SeqCst);
                mine
            })
        });
        while !done.load(SeqCst) {
            let seen = first.references();
            assert!(seen >= 3, "{seen} of at least 3");
        }
        drop(wanderers.map(|wanderer| wanderer.join().unwrap()));
    });
    assert_eq!(first.references(), 1);
    (0..CPUS).for_each(|cpu| epoch.offline(cpu));
    first.kill(&epoch);
}
