//! System V objects: ids and keys, charges, what is left after a removal, and many threads.
#![cfg(not(shuttle))]

mod objects;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use cred::{Account, CapSet, Charge, Cred, Payer};
use ipc::sysv::error::SysvError;
use ipc::sysv::msg::{self, Choice, Message, Want};
use ipc::sysv::perm::{Caller, Perm};
use ipc::sysv::registry::{Object, Wanted};
use ipc::sysv::sem::undo::List;
use ipc::sysv::{sem, shm};
use objects::*;
use vm_host::heap::{self, Heap};

#[global_allocator]
static HEAP: Heap = Heap;

/// A user without privileges, with an account.
fn user(uid: u32) -> (Cred, &'static Account) {
    let account: &Account = Box::leak(Box::new(Account::new(2, uid)));
    let mut cred = Cred::root();
    (cred.uid, cred.euid, cred.gid, cred.egid, cred.fsgid) = (uid, uid, uid, uid, uid);
    cred.caps.effective = CapSet::EMPTY;
    cred.payer = Payer::new(account);
    (cred, account)
}

fn wanted(key: i32) -> Wanted {
    Wanted { key, flags: CREATE }
}

#[test]
fn ids_are_not_given_out_again_at_once() {
    on(2, || {
        let mut seen = Vec::new();
        for _ in 0..100 {
            let id = segment(1);
            assert!(!seen.contains(&id));
            seen.push(id);
            shm::remove(id, by(1)).expect("its owner");
            assert_eq!(shm::remove(id, by(1)), Err(SysvError::Invalid));
        }
        assert!(seen.iter().all(|id| id & 0x7fff == 0), "the lowest index");
        assert_eq!((shm::registry().count(), shm::registry().highest()), (0, 0));
    });
}

#[test]
fn a_class_has_its_own_bits() {
    let (owner, _) = user(10);
    let perm = Perm::new(1, 1, 0o640, &owner);
    let (mut member, _) = user(11);
    member.groups = Some(Arc::new(vec![10]));
    let (other, _) = user(12);
    for (cred, reads, writes) in [
        (&owner, true, true),
        (&member, true, false),
        (&other, false, false),
    ] {
        assert_eq!(perm.check(0o400, cred).is_ok(), reads);
        assert_eq!(perm.check(0o020, cred).is_ok(), writes);
    }
    let closed = Perm {
        mode: 0o077,
        ..perm
    };
    assert_eq!(closed.check(0o444, &owner), Err(SysvError::Denied));
    assert_eq!(closed.check(0o444, &Cred::root()), Ok(()));
}

#[test]
fn a_user_is_charged_until_the_object_goes() {
    on(2, || {
        let (cred, account) = user(1000);
        let me = Caller {
            cred: &cred,
            pid: 5,
        };
        let id = shm::get(wanted(7), 3 * 4096, me).expect("a segment");
        assert_eq!(account.held(Charge::SharedPages), 3);
        assert_eq!(shm::lock(id, true, 4096 * 2, me), Err(SysvError::NoMemory));
        shm::lock(id, true, 4096 * 3, me).expect("within the limit");
        assert_eq!(account.held(Charge::LockedPages), 3);
        let memory = Memory::new();
        let at = memory.attach(id).expect("attached");
        shm::remove(id, me).expect("its owner");
        assert_eq!(account.held(Charge::SharedPages), 3);
        assert!(memory.detach(at) && !memory.detach(at));
        assert_eq!(account.held(Charge::LockedPages), 0);
        let set = sem::get(wanted(7), 100, me).expect("a set");
        let queue = msg::get(wanted(7), me).expect("a queue");
        let message = Message::new(1, vec![0; 1000], me).expect("a message");
        msg::send(queue, message, false, me).expect("room");
        assert!(account.held(Charge::Ipc) > 1000 + 100 * 8);
        sem::remove(set, me).expect("its owner");
        msg::remove(queue, me).expect("its owner");
        // At once, though the objects themselves go after a grace period.
        assert_eq!(
            (account.held(Charge::Ipc), account.held(Charge::SharedPages)),
            (0, 0)
        );
        drop(memory);
    });
}

#[test]
fn a_removal_makes_room_for_the_same_at_once() {
    on(1, || {
        let (cred, _) = user(1000);
        let me = Caller {
            cred: &cred,
            pid: 5,
        };
        let most = (1..30).map(|bits| 1u64 << bits).rev().find(|&pages| {
            let id = shm::get(MAKE, pages * 4096, me);
            id.is_ok_and(|id| shm::remove(id, me).is_ok())
        });
        let most = most.expect("some pages");
        for _ in 0..20 {
            let id = shm::get(MAKE, most * 4096, me).expect("all were given back");
            shm::remove(id, me).expect("its owner");
        }
    });
}

#[test]
fn one_user_does_not_fill_memory_with_objects() {
    on(1, || {
        let (cred, account) = user(1000);
        let me = Caller {
            cred: &cred,
            pid: 5,
        };
        let mut ids = Vec::new();
        let last = loop {
            match sem::get(MAKE, 32000, me) {
                Ok(id) => ids.push(id),
                Err(why) => break why,
            }
        };
        assert!(
            matches!(last, SysvError::NoSpace | SysvError::NoMemory),
            "{last:?}"
        );
        let size = u64::MAX >> 20;
        assert_eq!(shm::get(MAKE, size, me), Err(SysvError::NoMemory));
        let all = mem::vm().alloc.total_pages() as u64 * 4096;
        assert_eq!(shm::get(MAKE, all, me), Err(SysvError::NoSpace));
        for id in ids {
            sem::remove(id, me).expect("its owner");
        }
        assert_eq!(account.held(Charge::Ipc), 0);
    });
}

#[test]
fn attachments_are_counted_in_spaces_and_their_copies() {
    on(2, || {
        let id = segment(4);
        let one = Memory::new();
        let at = one.attach(id).expect("attached");
        let copy = Memory(mem::fork(&one.0).expect("memory"));
        assert_eq!(attached(id), Some(2));
        one.0
            .protect(mem::vm(), at + 4096, 4096, vm::MapProt::READ)
            .expect("mapped");
        let second = Memory(mem::fork(&one.0).expect("memory"));
        assert_eq!(attached(id), Some(3));
        drop(copy);
        assert_eq!(attached(id), Some(2));
        assert!(second.detach(at));
        assert_eq!(attached(id), Some(1));
        shm::remove(id, by(1)).expect("its owner");
        assert_eq!(attached(id), Some(1));
        drop(one);
        assert_eq!(attached(id), None);
        drop(second);
    });
}

/// mremap has grown an attachment; a detachment takes what Linux takes.
#[test]
fn a_grown_attachment_is_detached_with_its_first_part() {
    on(2, || {
        let id = segment(4);
        let vm = mem::vm();
        // Pages that are made read-only, and those that are left.
        for (changed, left) in [(0..0, 8..8), (2..3, 3..8), (2..4, 4..8), (5..6, 5..8)] {
            let memory = Memory::new();
            // Mappings are put below one another: what is behind is free then.
            let room = memory.attach(id).expect("attached");
            let at = memory.attach(id).expect("attached");
            assert!(at + 4 * 4096 == room && memory.detach(room));
            let page = |n: u64| at + n * 4096;
            let grow = vm::space::RemapArgs {
                old: at,
                old_len: 4 * 4096,
                new_len: 8 * 4096,
                target: vm::space::RemapTarget::Stay,
                keep_old: false,
            };
            let space = &memory.0;
            assert_eq!(space.remap(vm, &grow), Ok(at), "room behind it");
            let bytes = (changed.end - changed.start) * 4096;
            let split = space.protect(vm, page(changed.start), bytes, vm::MapProt::READ);
            assert_eq!(split, Ok(()));
            assert!(memory.detach(at));
            let is_there = |n| space.protect(vm, page(n), 4096, vm::MapProt::READ).is_ok();
            let there: Vec<u64> = (0..8).filter(|&n| is_there(n)).collect();
            assert_eq!(there, left.collect::<Vec<_>>(), "{changed:?}");
        }
        assert_eq!(attached(id), Some(0));
        shm::remove(id, by(1)).expect("its owner");
    });
}

#[test]
fn lists_of_adjustments_are_independent() {
    on(2, || {
        let id = set(1);
        let (one, two) = (List::new(), List::new());
        op_with(&one, id, &[(0, 3, UNDO)]).expect("done");
        op_with(&two, id, &[(0, 4, UNDO), (0, 1, 0)]).expect("done");
        drop(one);
        assert_eq!(value(id), Ok(5));
        sem::write(id, 0, 2, by(1)).expect("its owner");
        drop(two);
        assert_eq!(value(id), Ok(2));
        let list = List::new();
        op_with(&list, id, &[(0, 3, UNDO)]).expect("done");
        sem::remove(id, by(1)).expect("its owner");
        drop(list);
        // An adjustment has a range, and an operation beyond it changes nothing.
        let id = set(1);
        let list = List::new();
        for _ in 0..2 {
            op_with(&list, id, &[(0, 32767, UNDO)]).expect("done");
            sem::operate(id, Vec::new(), task::park::Deadline::Never, None, by(1))
                .expect("nothing");
            op(id, &[(0, -32767, 0)]).expect("done");
            if value(id) == Ok(0) {
                let again = op_with(&list, id, &[(0, 2, UNDO)]);
                assert_eq!(again, Err(SysvError::Range));
                break;
            }
        }
        assert_eq!(value(id), Ok(0));
        drop(list);
    });
}

#[test]
fn a_list_of_adjustments_keeps_nothing_of_a_removed_set() {
    on(1, || {
        let removed = |list: &List| {
            let id = set(1);
            op_with(list, id, &[(0, 1, UNDO)]).expect("done");
            sem::remove(id, by(1)).expect("its owner");
            mem::epoch().drain();
        };
        // Tables grow, and do not shrink.
        removed(&List::new());
        let list = List::new();
        let before = heap::live();
        removed(&list);
        let kept = heap::live() - before;
        // Room for a few ids.
        assert!((0..=16).contains(&kept), "{kept} bytes");
        drop(list);
    });
}

#[test]
fn an_owner_is_read_beside_the_lock_of_the_object() {
    on(1, || {
        let queue = msg::get(MAKE, by(1)).expect("a queue");
        let (set, queue) = (
            sem::registry().find(set(1)).expect("a set"),
            msg::registry().find(queue).expect("a queue"),
        );
        // A lock that sleeps may not be taken.
        let _pin = ksync::pin();
        assert_eq!((set.perm().mode, queue.perm().mode), (0o600, 0o600));
    });
}

/// Numbers below `end`, the same in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (self.0 >> 33) % end
    }
}

/// The value after a call on one semaphore that has `value`; `None` if it must wait.
fn after(mut value: i32, ops: &[Op]) -> Option<i32> {
    for &(_, by, _) in ops {
        let blocked = by == 0 && value != 0 || value + i32::from(by) < 0;
        value += i32::from(by);
        if blocked {
            return None;
        }
    }
    Some(value)
}

/// How many threads wait for a semaphore.
fn waiting(id: i32) -> u32 {
    let set = sem::registry().find(id).expect("a set");
    let one = set.read(0, by(1)).expect("a semaphore");
    one.want_more + one.want_zero
}

/// Threads wait for a semaphore with random calls: after each change the first that can go on does, until none can.
#[test]
fn those_that_can_go_on_do_in_the_order_in_which_they_came() {
    on(2, || {
        let (mut numbers, mut threads) = (Numbers(1), 0);
        for _ in 0..50 {
            let id = set(1);
            let (mut value, mut waits) = (0, Vec::new());
            for _ in 0..12 {
                let mut by = || numbers.below(7) as i16 - 3;
                let mut ops: Vec<Op> = vec![(0, by(), 0), (0, by(), 0), (0, by(), 0)];
                ops.truncate(1 + numbers.below(3) as usize);
                let Some(new) = after(value, &ops) else {
                    waits.push(ops.clone());
                    spawn(None, move || {
                        let ended = op(id, &ops);
                        assert!(matches!(ended, Ok(()) | Err(SysvError::Removed)));
                    });
                    threads += 1;
                    while (waiting(id) as usize) < waits.len() {
                        nap(1);
                    }
                    continue;
                };
                value = new;
                op(id, &ops).expect("no wait");
                while let Some(at) = waits.iter().position(|w| after(value, w).is_some()) {
                    value = after(value, &waits.remove(at)).unwrap_or(value);
                }
                assert_eq!(objects::value(id), Ok(value));
                assert_eq!(waiting(id) as usize, waits.len());
            }
            sem::remove(id, by(1)).expect("its owner");
            wait_for_ends(threads);
        }
    });
}

#[test]
fn a_thread_that_goes_on_lets_others_go_on() {
    on(2, || {
        let id = set(3);
        for to in 1..3 {
            spawn(None, move || {
                op(id, &[(to - 1, -1, 0), (to, 1, 0)]).expect("no signal")
            });
        }
        while waiting(id) == 0 {
            nap(1);
        }
        op(id, &[(0, 1, 0)]).expect("no wait");
        wait_for_ends(2);
        op(id, &[(2, -1, NO_WAIT)]).expect("both went on");
    });
}

#[test]
fn waits_end_in_time() {
    on(2, || {
        let id = set(1);
        assert_eq!(op_for(id, &[(0, -1, 0)], MS), Err(SysvError::Again));
        let one = sem::registry()
            .find(id)
            .and_then(|s| s.read(0, by(1)))
            .expect("a set");
        assert_eq!((one.want_more, one.want_zero), (0, 0));
    });
}

/// Threads take and give a few units of several semaphores in both orders: nothing is lost, and nobody is left waiting.
#[test]
fn many_threads_take_turns() {
    on(4, || {
        static INSIDE: AtomicU32 = AtomicU32::new(0);
        let id = set(3);
        op(id, &[(0, 2, 0), (1, 2, 0), (2, 1, 0)]).expect("done");
        for n in 0..6u16 {
            spawn(None, move || {
                for turn in 0..100u16 {
                    let (a, b) = ((n + turn) % 2, (n + turn + 1) % 2);
                    op(id, &[(a, -1, 0), (2, -1, 0), (b, -1, 0)]).expect("no signal");
                    assert_eq!(INSIDE.fetch_add(1, SeqCst), 0);
                    INSIDE.fetch_sub(1, SeqCst);
                    op(id, &[(b, 1, 0), (2, 1, 0), (a, 1, 0)]).expect("no wait");
                }
            });
        }
        wait_for_ends(6);
        op(id, &[(0, -2, NO_WAIT), (1, -2, NO_WAIT), (2, -1, NO_WAIT)]).expect("all is there");
    });
}

const ANY: Want = Want {
    choice: Choice::Any,
    room: 100,
    cuts: false,
    waits: true,
};

/// A sender waits for room; IPC_SET takes its permission, and nothing is sent for it when there is room.
#[test]
fn a_sender_that_may_no_longer_send_does_not() {
    on(2, || {
        let new = |mode, most| msg::NewSettings {
            owner: ipc::sysv::perm::NewOwner {
                uid: 0,
                gid: 0,
                mode,
            },
            most,
        };
        let id = msg::get(MAKE, by(1)).expect("a queue");
        msg::set(id, new(0o622, 4), by(1)).expect("its owner");
        let send = move |cred: &Cred, kind| {
            let me = Caller { cred, pid: 5 };
            let message = Message::new(kind, vec![0; 4], me).expect("memory");
            msg::send(id, message, true, me)
        };
        send(&Cred::root(), 1).expect("room");
        spawn(None, move || {
            assert_eq!(send(&user(1000).0, 2), Err(SysvError::Denied));
        });
        spawn(None, move || assert_eq!(send(&Cred::root(), 3), Ok(())));
        nap(5);
        msg::set(id, new(0o600, 2), by(1)).expect("its owner");
        msg::set(id, new(0o600, 100), by(1)).expect("its owner");
        wait_for_ends(2);
        let kinds = [(); 2].map(|()| msg::receive(id, ANY, by(1)).expect("a message").kind);
        assert_eq!(kinds, [1, 3]);
        let none = msg::receive(
            id,
            Want {
                waits: false,
                ..ANY
            },
            by(1),
        );
        assert_eq!(none.err(), Some(SysvError::NoMessage));
        msg::remove(id, by(1)).expect("its owner");
    });
}

/// Senders and receivers, more of them than the queue has room for: each message is received once.
#[test]
fn many_threads_talk() {
    on(4, || {
        static SUM: AtomicU32 = AtomicU32::new(0);
        let id = msg::get(MAKE, by(1)).expect("a queue");
        let new = msg::NewSettings {
            owner: ipc::sysv::perm::NewOwner {
                uid: 0,
                gid: 0,
                mode: 0o600,
            },
            most: 12,
        };
        msg::set(id, new, by(1)).expect("its owner");
        for n in 0..3u32 {
            spawn(None, move || {
                for turn in 0..100u32 {
                    let text = (n * 100 + turn).to_ne_bytes().to_vec();
                    let message = Message::new(i64::from(n) + 1, text, by(n)).expect("memory");
                    msg::send(id, message, true, by(n)).expect("no signal");
                }
            });
            spawn(None, move || {
                let mut last = None;
                for _ in 0..100 {
                    let want = Want {
                        choice: Choice::Of(i64::from(n) + 1),
                        ..ANY
                    };
                    let message = msg::receive(id, want, by(n)).expect("no signal");
                    let bytes = message.text.try_into().expect("four bytes");
                    let number = u32::from_ne_bytes(bytes);
                    assert!(last.is_none_or(|last| last < number), "in order");
                    last = Some(number);
                    SUM.fetch_add(number, SeqCst);
                }
            });
        }
        wait_for_ends(6);
        assert_eq!(SUM.load(SeqCst), 299 * 300 / 2);
        msg::remove(id, by(1)).expect("its owner");
    });
}
