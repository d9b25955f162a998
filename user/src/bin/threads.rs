//! `threads SECONDS`: threads that take a mutex, wait on a condition variable, end and are joined, again and again.
//!
//! Guarantee: the status is 0 if each thread of each round has started, was woken, has ended with its own index as
//! result, and was joined.
//! Mechanism: a round's threads have small stacks, which are mapped and unmapped each time; now and then the last of
//! them finds the end of the round already announced, and the first ones sleep until it is.

use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Threads of a round.
const THREADS: usize = 64;
/// Bytes of a thread's stack.
const STACK: usize = 64 << 10;

/// What the threads of a round share.
#[derive(Default)]
struct Round {
    state: Mutex<State>,
    told: Condvar,
}

#[derive(Default)]
struct State {
    begun: usize,
    ended: usize,
    over: bool,
}

impl Round {
    fn take_part(&self, number: usize) -> usize {
        let mut state = self.state.lock().expect("no thread panics");
        state.begun += 1;
        while !state.over {
            // Short waits may time out, too.
            let wait = Duration::from_millis(1 + number as u64 % 16);
            state = self
                .told
                .wait_timeout(state, wait)
                .expect("no thread panics")
                .0;
        }
        state.ended += 1;
        drop(state);
        thread::yield_now();
        number
    }
}

/// Runs one round; returns the error.
fn play(number: u64) -> Result<(), String> {
    let round = Arc::new(Round::default());
    let start = |n| -> Result<JoinHandle<usize>, String> {
        let round = round.clone();
        let made = thread::Builder::new()
            .stack_size(STACK)
            .spawn(move || round.take_part(n));
        made.map_err(|e| format!("thread {n}: {e}"))
    };
    let threads = (0..THREADS).map(start).collect::<Result<Vec<_>, _>>();
    round.state.lock().map_err(|e| e.to_string())?.over = true;
    round.told.notify_all();
    for (n, thread) in threads?.into_iter().enumerate() {
        let said = thread.join().map_err(|_| format!("thread {n} panicked"))?;
        if said != n {
            return Err(format!("thread {n} says that it is {said}"));
        }
    }
    let state = round.state.lock().map_err(|e| e.to_string())?;
    if (state.begun, state.ended) != (THREADS, THREADS) {
        return Err(format!(
            "round {number}: {} began and {} ended",
            state.begun, state.ended
        ));
    }
    Ok(())
}

fn main() {
    let seconds = std::env::args().nth(1).and_then(|text| text.parse().ok());
    let Some(seconds) = seconds else {
        eprintln!("usage: threads SECONDS");
        std::process::exit(2)
    };
    let (end, mut rounds) = (Instant::now() + Duration::from_secs(seconds), 0);
    while Instant::now() < end {
        if let Err(reason) = play(rounds) {
            println!("threads: WRONG: {reason}");
            std::process::exit(1);
        }
        rounds += 1;
    }
    println!("threads: {rounds} rounds of {THREADS} right");
}
