//! Wait queues, their memory, and their listeners.

use super::*;
use core::sync::atomic::AtomicU32;

crate::lock_class!(QueueLock, "test wait queue", rank = 100);

static ROUNDS: [Round; 32] = [const { Round::after(0) }; 32];

/// Threads that no other test has: the tests run side by side.
fn threads<const N: usize>() -> [u32; N] {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let first = NEXT.fetch_add(N as u32, Relaxed);
    assert!(first as usize + N <= ROUNDS.len());
    core::array::from_fn(|n| first + n as u32)
}

/// The registration of a thread that begins to sleep.
fn sleeper(tid: u32) -> Registration {
    Registration::new(tid, ROUNDS[tid as usize].begin())
}

enum Threads {}

impl Sleepers for Threads {
    fn round(_: &CpuPin, tid: u32) -> Option<&Round> {
        ROUNDS.get(tid as usize)
    }

    fn wake(_: &CpuPin, _: u32) {}

    fn listener_round(_: &CpuPin, number: u32) -> Option<&Round> {
        let crowd = || CROWD.get()?.get(number as usize - 1000);
        HEARD
            .get(number as usize)
            .map_or_else(crowd, |heard| Some(&heard.0))
    }

    /// The listeners with even numbers wake a thread.
    fn call(_: &CpuPin, number: u32, cause: Option<Cause>) -> bool {
        if cause == Some(Cause::HangUp) {
            HANG_UPS.fetch_add(1, Relaxed);
        }
        HEARD[number as usize].1.fetch_add(1, Relaxed);
        number.is_multiple_of(2)
    }
}

/// Rounds of listeners, and how often each was called.
static HEARD: [(Round, AtomicU64); 24] = [const { (Round::after(0), AtomicU64::new(0)) }; 24];

/// The rounds of further listeners, from number 1000 on.
static CROWD: std::sync::OnceLock<alloc::vec::Vec<Round>> = std::sync::OnceLock::new();
/// Calls with the cause [`Cause::HangUp`].
static HANG_UPS: AtomicU64 = AtomicU64::new(0);

type Queue = WaitQueue<Threads, QueueLock>;

fn listen(queue: &Queue, number: u32, exclusive: bool) -> Registration {
    let round = HEARD[number as usize].0.begin();
    let me = Registration::listener(number, round, exclusive);
    assert!(queue.add(me));
    me
}

fn calls(numbers: core::ops::Range<usize>) -> alloc::vec::Vec<u64> {
    let calls = |(_, calls): &(Round, AtomicU64)| calls.swap(0, Relaxed);
    HEARD[numbers].iter().map(calls).collect()
}

#[test]
fn a_listener_takes_no_wake_up_from_a_thread() {
    let queue = Queue::new();
    listen(&queue, 0, false);
    listen(&queue, 1, true);
    let [thread] = threads();
    assert!(queue.add(sleeper(thread)));
    listen(&queue, 2, false);
    assert!(queue.wake_one());
    assert_eq!(calls(0..3), [1, 1, 0]);
    assert!(!queue.wake_one(), "only a listener is left");
    assert_eq!(calls(0..3), [0, 0, 1]);
    assert_eq!(queue.wake_all(), 0);
}

#[test]
fn exclusive_listeners_take_turns() {
    let queue = Queue::new();
    // Those with odd numbers wake nobody, so the wake-up goes on to the next; the last is not exclusive.
    for number in 4..9 {
        listen(&queue, number, number < 8);
    }
    assert_eq!(queue.wake_all(), 2);
    assert_eq!(calls(4..9), [1, 0, 0, 0, 1]);
    listen(&queue, 4, true);
    assert_eq!(queue.wake_all(), 1);
    assert_eq!(calls(4..9), [0, 1, 1, 0, 0]);
    assert_eq!(queue.wake_all(), 1);
    assert_eq!(calls(4..9), [1, 0, 0, 1, 0]);
    assert_eq!(queue.wake_all(), 0);
}

#[test]
fn a_listener_is_called_once_a_round_and_for_its_causes() {
    let queue = Queue::new();
    let me = Registration::listener(10, HEARD[10].0.begin(), false);
    let other = Queue::new();
    assert!(queue.add(me.except(Cause::Room)) && other.add(me));
    assert!(queue.add(Registration::listener(12, HEARD[12].0.begin(), false)));
    assert_eq!(queue.wake_all_for(Cause::Room), 1);
    assert_eq!(calls(10..13), [0, 0, 1], "the other one stays");
    assert_eq!(queue.wake_all_for(Cause::Input), 1);
    assert_eq!(other.wake_all(), 0, "its round is over");
    assert_eq!(calls(10..13), [1, 0, 0]);
    // A thread is woken for any cause.
    let [thread] = threads();
    assert!(queue.add(sleeper(thread).except(Cause::Room)));
    assert_eq!(queue.wake_all_for(Cause::Room), 1);
}

#[test]
fn a_standing_listener_is_called_by_each_wake_up_until_its_round_ends() {
    let queue = Queue::new();
    let rounds = &HEARD[3].0;
    let me = Registration::listener(3, rounds.begin(), false).standing();
    assert!(queue.add(me.except(Cause::Room)));
    for _ in 0..3 {
        assert_eq!(queue.wake_all_for(Cause::Room), 0);
        queue.wake_all_for(Cause::HangUp);
        queue.wake_all();
        assert!(!queue.wake_one(), "it takes no wake-up");
    }
    assert_eq!(calls(3..4), [9]);
    assert_eq!(HANG_UPS.swap(0, Relaxed), 3);
    // Beside a thread, which is woken once.
    let [thread] = threads();
    assert!(queue.add(sleeper(thread)));
    assert!(queue.wake_one());
    assert!(!queue.wake_one());
    assert_eq!(calls(3..4), [2]);
    rounds.end();
    queue.wake_all();
    assert_eq!(calls(3..4), [0]);
    assert!(queue.is_empty());
}

/// Two looks at a file are in progress, and the one whose round is over registers last.
#[test]
fn a_registration_of_an_earlier_round_replaces_no_later_one() {
    let queue = Queue::new();
    let round = |number: u32| HEARD[number as usize].0.begin();
    let early = Registration::listener(9, round(9), false);
    let late = Registration::listener(9, round(9), false);
    assert!(queue.add(late) && queue.add(early));
    queue.wake_all();
    assert_eq!(calls(9..10), [1], "as the first of the queue");
    let first = Registration::listener(13, round(13), false);
    let early = Registration::listener(9, round(9), false);
    let late = Registration::listener(9, round(9), false);
    assert!(queue.add(first) && queue.add(late) && queue.add(early));
    queue.wake_all();
    assert_eq!(calls(9..10), [1], "as the last of several");
}

/// More than are handled in one hold of the lock.
#[test]
fn many_exclusive_listeners_stay_in_order() {
    let queue = Queue::new();
    for number in (14..24).chain(14..24) {
        listen(&queue, number, true);
    }
    assert_eq!(queue.wake_all(), 1);
    assert_eq!(queue.wake_all(), 1);
    assert_eq!(calls(14..24), [1, 1, 1, 0, 0, 0, 0, 0, 0, 0]);
}

/// One more may listen once another one is gone.
#[test]
fn a_queue_has_so_many_listeners_and_no_more() {
    const BEGIN: u32 = 1000;
    let most = MOST_LISTENERS as u32;
    let all = CROWD.get_or_init(|| (0..most + 2).map(|_| Round::after(0)).collect());
    let queue = Queue::new();
    let add = |n: u32| {
        let round = all[n as usize].begin();
        queue.add(Registration::listener(BEGIN + n, round, false))
    };
    // A thread is not in their way, nor they in its.
    let [first, second] = threads();
    assert!(queue.add(sleeper(first)));
    assert!((0..most).all(add));
    assert!(!add(most) && !add(most + 1));
    assert!(queue.add(sleeper(second)));
    all[7].end();
    assert!(add(most) && !add(most + 1));
    assert_eq!(queue.list.lock().len(), MOST_LISTENERS + 2);
}

#[test]
fn what_sleepers_leave_behind_takes_no_memory() {
    let queue = WaitQueue::<Threads, QueueLock>::new();
    let threads: [u32; 2] = threads();
    for _ in 0..100 {
        for tid in threads {
            assert!(queue.add(sleeper(tid)));
        }
    }
    let room = |more: &mut Further| more.as_ref().map_or(0, |list| list.capacity());
    let room = queue.list.lock().more.with(room);
    assert!(room <= 4, "room for {room} beside the first");
}

#[test]
fn many_sleepers_leave_a_short_list() {
    let mut queue = WaitQueue::<Threads, QueueLock>::new();
    let room = |more: &mut Further| more.as_ref().map_or(0, |list| list.capacity());
    let sleep = |queue: &WaitQueue<_, _>, tid| assert!(queue.add(sleeper(tid)));
    let [first, second] = threads();
    let list = Box::new(VecDeque::with_capacity(4096));
    queue.list.lock().grow(list);
    sleep(&queue, first);
    assert!(queue.list.lock().more.with(room) <= KEEP);
    sleep(&queue, second);
    assert_eq!(queue.wake_all(), 2);
    queue.clear();
    assert_eq!(queue.list.lock().more.with(room), 0);
    sleep(&queue, first);
    assert_eq!(queue.wake_all(), 1);
}

#[test]
fn a_thread_that_listens_again_takes_one_place() {
    let queue = WaitQueue::<Threads, QueueLock>::new();
    let [first, again] = threads().map(sleeper);
    assert!(queue.add(first));
    for _ in 0..if cfg!(miri) { 20 } else { 1000 } {
        assert!(queue.add(again));
    }
    let room = |more: &mut Further| more.as_ref().map_or(0, |list| list.capacity());
    let room = queue.list.lock().more.with(room);
    assert!(room <= 4, "room for {room} beside the first");
    assert_eq!(queue.wake_all(), 2);
}
