//! Random waits, wake-ups, moves and changes of words, compared with a slow reference of queues.
#![cfg(not(shuttle))]

mod programs;
mod support;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use proc::futex::{self, ANY, FutexError};
use proc::ids;
use proc::signal::{SigInfo, send_thread, sig};
use programs::{MEMORY, MS, catch, join, load, seeded, store, take, thread, with_memory};
use support::nap;
use task::park::Deadline;
use task::time::monotonic_ns;
use vm::ObjectRef;
use vm_host::random::Random;

/// The words: few, so that waiters meet.
const WORDS: usize = 4;
/// Most threads that wait at once.
const WAITERS: usize = 12;

/// What a wait ended with.
type Outcome = Result<(), FutexError>;

/// A thread that waits, as the reference has it.
#[derive(Clone, Debug)]
struct Waiter {
    tid: u32,
    bits: u32,
    /// When it gives up.
    until: Option<u64>,
}

/// The queues of the words, and what each ended wait must have returned.
#[derive(Default)]
struct Reference {
    values: [u32; WORDS],
    queues: [Vec<Waiter>; WORDS],
    outcomes: BTreeMap<u32, Outcome>,
}

impl Reference {
    fn waiting(&self) -> usize {
        self.queues.iter().map(Vec::len).sum()
    }

    fn wait(&mut self, word: usize, value: u32, waiter: Waiter) {
        if self.values[word] == value {
            self.queues[word].push(waiter);
        } else {
            self.outcomes.insert(waiter.tid, Err(FutexError::Changed));
        }
    }

    fn wake(&mut self, word: usize, count: u32, bits: u32) -> u32 {
        let mut woken = 0;
        let (mut left, outcomes) = (Vec::new(), &mut self.outcomes);
        for waiter in self.queues[word].drain(..) {
            if woken < count && waiter.bits & bits != 0 {
                outcomes.insert(waiter.tid, Ok(()));
                woken += 1;
            } else {
                left.push(waiter);
            }
        }
        self.queues[word] = left;
        woken
    }

    fn requeue(&mut self, (from, to): (usize, usize), wake: u32, moves: u32) -> (u32, u32) {
        let woken = self.wake(from, wake, ANY);
        let all = core::mem::take(&mut self.queues[from]);
        let moved = all.len().min(moves as usize);
        let (go, stay) = all.split_at(moved);
        self.queues[from] = stay.to_vec();
        self.queues[to].extend_from_slice(go);
        (woken, moved as u32)
    }

    /// Takes the waiter off its queue.
    fn leave(&mut self, tid: u32, outcome: Outcome) {
        for queue in &mut self.queues {
            queue.retain(|waiter| waiter.tid != tid);
        }
        self.outcomes.insert(tid, outcome);
    }

    fn pass(&mut self, now: u64) {
        let late = |w: &&Waiter| w.until.is_some_and(|until| until <= now);
        let gone: Vec<u32> = self
            .queues
            .iter()
            .flatten()
            .filter(late)
            .map(|w| w.tid)
            .collect();
        for tid in gone {
            self.leave(tid, Err(FutexError::Timeout));
        }
    }
}

/// The kernel's side: the threads that have gone on, with what they got.
struct Kernel {
    outcomes: Arc<Mutex<BTreeMap<u32, Outcome>>>,
    words: [u64; WORDS],
    shared: bool,
}

impl Kernel {
    fn wait(&self, word: usize, value: u32, bits: u32, deadline: Deadline) -> u32 {
        let (outcomes, addr, shared) = (self.outcomes.clone(), self.words[word], self.shared);
        thread(move || {
            let outcome = futex::wait(addr, shared, value, bits, deadline);
            if outcome == Err(FutexError::Signal) {
                assert!(take(sig::INT).is_some());
            }
            let tid = task::current::current().tid();
            outcomes.lock().unwrap().insert(tid, outcome);
        })
    }

    fn play(&self, random: &mut Random, reference: &mut Reference) {
        let (word, other) = (random.below(WORDS), random.below(WORDS));
        let (addr, count) = (self.words[word], random.below(5) as u32);
        match random.below(12) {
            0..=4 if reference.waiting() < WAITERS => {
                let value = random.below(2) as u32;
                let bits = [ANY, ANY, 1, 2, 3][random.below(5)];
                let until = (random.below(4) == 0)
                    .then(|| monotonic_ns() + (10 + random.below(60) as u64) * MS);
                let tid = self.wait(
                    word,
                    value,
                    bits,
                    until.map_or(Deadline::Never, Deadline::At),
                );
                reference.wait(word, value, Waiter { tid, bits, until });
            }
            0..=6 => {
                let bits = [ANY, ANY, 1, 2][random.below(4)];
                let woken = futex::wake(addr, self.shared, count, bits);
                assert_eq!(woken, Ok(reference.wake(word, count, bits)));
            }
            7..=9 if word != other => self.requeue(random, reference, (word, other)),
            7..=9 => {}
            10 => {
                reference.values[word] ^= 1;
                store(addr, reference.values[word]);
            }
            _ => {
                let all: Vec<u32> = reference.queues.iter().flatten().map(|w| w.tid).collect();
                if let Some(&tid) = all.get(random.below(WAITERS)) {
                    let t = ids::find_thread(tid).expect("a thread that waits");
                    assert_eq!(send_thread(&t, SigInfo::kernel(sig::INT)), Ok(()));
                    reference.leave(tid, Err(FutexError::Signal));
                }
            }
        }
    }

    fn requeue(&self, random: &mut Random, reference: &mut Reference, pair: (usize, usize)) {
        let (wake, moves) = (random.below(3) as u32, random.below(4) as u32);
        let (from, to) = (self.words[pair.0], self.words[pair.1]);
        let expected = match random.below(3) {
            0 => None,
            n => Some(n as u32 - 1),
        };
        let result = futex::requeue(from, to, self.shared, wake, moves, expected);
        let holds = expected.is_none_or(|value| value == reference.values[pair.0]);
        let right = match holds {
            true => Ok(reference.requeue(pair, wake, moves)),
            false => Err(FutexError::Changed),
        };
        assert_eq!(result, right, "{wake} {moves}");
    }

    /// Plays so many steps; after each one exactly those threads have gone on that should.
    fn compare(&self, seed: u64, steps: usize) {
        let mut random = seeded(seed);
        let mut reference = Reference::default();
        let mut all = Vec::new();
        for step in 0..steps {
            self.play(&mut random, &mut reference);
            all.extend(reference.queues.iter().flatten().map(|w| w.tid));
            nap(3);
            // No deadline is so close to the look that it matters when exactly it is.
            let now = monotonic_ns();
            let close = |w: &Waiter| w.until.is_some_and(|until| until.abs_diff(now) < 2 * MS);
            if reference.queues.iter().flatten().any(close) {
                nap(5);
            }
            reference.pass(monotonic_ns());
            let outcomes = self.outcomes.lock().unwrap().clone();
            assert_eq!(outcomes, reference.outcomes, "seed {seed}, step {step}");
        }
        for (word, &addr) in self.words.iter().enumerate() {
            assert_eq!(load(addr), Some(reference.values[word]));
            let left = reference.queues[word].len() as u32;
            assert_eq!(futex::wake(addr, self.shared, u32::MAX, ANY), Ok(left));
        }
        all.into_iter().for_each(join);
    }
}

/// Words of one page, of which two are next to each other.
fn words(at: u64) -> [u64; WORDS] {
    [at, at + 4, at + 512, at + 2048]
}

fn play(seeds: core::ops::Range<u64>, shared: bool) {
    for seed in seeds {
        with_memory(2, move || {
            catch(sig::INT);
            let mut at = MEMORY;
            if shared {
                programs::share_memory();
                at = programs::SHARED;
            }
            let kernel = Kernel {
                outcomes: Arc::default(),
                words: words(at),
                shared,
            };
            kernel.compare(seed, 120);
        });
    }
}

#[test]
fn private_words_agree_with_the_reference() {
    play(0..12, false);
}

#[test]
fn shared_words_agree_with_the_reference() {
    play(100..112, true);
}

/// The words of the calls are at another address than those that waiters use: each call names the same word anew.
#[test]
fn shared_words_at_two_addresses_agree_with_the_reference() {
    for seed in 200..204 {
        with_memory(2, move || {
            catch(sig::INT);
            let object = ObjectRef::new_shared(mem::vm(), programs::PAGE).expect("memory");
            programs::map_shared(&object, programs::SHARED);
            programs::map_shared(&object, programs::SHARED + 4 * programs::PAGE);
            object.release(mem::vm());
            let mut words = words(programs::SHARED);
            words[1] += 4 * programs::PAGE;
            words[3] += 4 * programs::PAGE;
            let kernel = Kernel {
                outcomes: Arc::default(),
                words,
                shared: true,
            };
            kernel.compare(seed, 120);
        });
    }
}
