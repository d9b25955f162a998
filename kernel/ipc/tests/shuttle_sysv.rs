//! System V objects beside their removal, and beside the end of a process that undoes, with a switch possible at every access to an atomic.
#![cfg(shuttle)]

mod objects;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use ipc::sysv::error::SysvError;
use ipc::sysv::msg::{self, Choice, Message, Want};
use ipc::sysv::sem::undo::List;
use ipc::sysv::{sem, shm};
use objects::*;
use threads::everywhere;

/// A thread waits, another removes the set: the first is answered, once, whichever comes first.
#[test]
fn an_operation_beside_a_removal() {
    everywhere(|| {
        on(2, || {
            let id = set(1);
            spawn(None, move || {
                let ended = op(id, &[(0, -1, 0)]);
                assert!(matches!(
                    ended,
                    Err(SysvError::Removed | SysvError::Invalid)
                ));
            });
            sem::remove(id, by(1)).expect("its owner");
            wait_for_ends(1);
        });
    });
}

/// A list ends, whose adjustment is what a thread waits for.
#[test]
fn an_operation_beside_an_undo() {
    everywhere(|| {
        on(2, || {
            let id = set(1);
            op(id, &[(0, 1, 0)]).expect("done");
            let list = List::new();
            op_with(&list, id, &[(0, -1, UNDO)]).expect("done");
            spawn(None, move || op(id, &[(0, -1, 0)]).expect("given back"));
            drop(list);
            wait_for_ends(1);
            assert_eq!(value(id), Ok(0));
        });
    });
}

/// A list ends while its set is removed.
#[test]
fn an_undo_beside_a_removal() {
    everywhere(|| {
        on(2, || {
            let id = set(1);
            let list = List::new();
            op_with(&list, id, &[(0, 2, UNDO)]).expect("done");
            spawn(None, move || drop(list));
            sem::remove(id, by(1)).expect("its owner");
            wait_for_ends(1);
            assert_eq!(value(id), Err(SysvError::Invalid));
        });
    });
}

/// A wait times out while it is answered: the unit is taken if and only if the call says so.
#[test]
fn an_answer_beside_the_deadline() {
    everywhere(|| {
        on(2, || {
            let id = set(1);
            spawn(None, move || {
                hal::time::spin_ns(100_000);
                op(id, &[(0, 1, 0)]).expect("done");
            });
            let taken = op_for(id, &[(0, -1, 0)], 100_000);
            wait_for_ends(1);
            match taken {
                Ok(()) => assert_eq!(value(id), Ok(0)),
                Err(why) => assert_eq!((why, value(id)), (SysvError::Again, Ok(1))),
            }
        });
    });
}

/// A segment is attached and detached while it is removed: it goes once, and not while it is attached.
#[test]
fn an_attachment_beside_a_removal() {
    everywhere(|| {
        on(2, || {
            let id = segment(1);
            let done = Arc::new(AtomicU32::new(0));
            let ends = done.clone();
            spawn(None, move || {
                let memory = Memory::new();
                match memory.attach(id) {
                    Ok(at) => {
                        assert!(attached(id).is_some_and(|n| n >= 1));
                        assert!(memory.detach(at));
                    }
                    Err(why) => assert!(matches!(why, SysvError::Removed | SysvError::Invalid)),
                }
                drop(memory);
                ends.store(1, SeqCst);
            });
            shm::remove(id, by(1)).expect("its owner");
            wait_for_ends(1);
            assert_eq!((done.load(SeqCst), attached(id)), (1, None));
            assert_eq!(shm::registry().count(), 0);
        });
    });
}

/// A receiver waits beside a sender and a removal: the message is received, or goes with the queue.
#[test]
fn a_receiver_beside_a_sender_and_a_removal() {
    everywhere(|| {
        on(2, || {
            let id = msg::get(MAKE, by(1)).expect("a queue");
            spawn(None, move || {
                let want = Want {
                    choice: Choice::Any,
                    room: 10,
                    cuts: false,
                    waits: true,
                };
                match msg::receive(id, want, by(2)) {
                    Ok(message) => assert_eq!(message.text, [5]),
                    Err(why) => assert!(matches!(why, SysvError::Removed | SysvError::Invalid)),
                }
            });
            let message = Message::new(1, vec![5], by(1)).expect("memory");
            msg::send(id, message, false, by(1)).expect("room");
            msg::remove(id, by(1)).expect("its owner");
            wait_for_ends(1);
        });
    });
}
