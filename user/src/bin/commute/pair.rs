//! Two actors, one on each of CPUs 0 and 1, that run the cases of a batch together.
//!
//! A round of a case: both sides prepare, write again to memory that a fork may have made copy-on-write, and meet at a
//! barrier. Then the window opens, one side acts while the other spins in user mode, then the other acts, and the
//! window closes; so everything that a CPU's kernel does within the window is caused by one of the two operations (or
//! by a timer tick, which an observer sees). Afterwards both sides check their results and undo their operations.
//! `pause` in the loops lets an emulator switch to the other CPU at once.

use crate::act::{Actor, Op};
use crate::board::{self, Word, word};
use crate::{files, memory, process, world};
use commute::cases::Case;
use commute::marker::Marker;
use commute::model::Mode;
use commute::variant::Variant;
use std::sync::atomic::Ordering::SeqCst;
use user::sys;

/// The side that acts first in each round.
const FIRST: [usize; 5] = [0, 1, 0, 1, 0];

/// Rounds that warm up.
const WARM: usize = 2;

/// The number of reads of a word after which a side gives up waiting for the other: far more than any operation takes.
const PATIENCE: u64 = 100_000_000;

/// Runs `batch` in new processes. Returns none, or the index of the case that failed and the reason.
///
/// # Errors
/// No process can be created.
pub fn run(mode: Mode, batch: &[Case]) -> Result<Option<(usize, String)>, String> {
    board::clear();
    let hosts = if mode == Mode::Processes { 2 } else { 1 };
    for side in 0..hosts {
        match sys::fork().map_err(|e| format!("fork: errno {e}"))? {
            0 => host(side, mode, batch),
            _ => continue,
        }
    }
    for _ in 0..hosts {
        let (_, status) = wait_for_host()?;
        if status != 0 {
            board::fail(&format!("an actor ended with status {status:#x}"));
        }
    }
    let failed = word(Word::Failed).load(SeqCst) != 0;
    let place = word(Word::Place).load(SeqCst) as usize;
    Ok(failed.then(|| (place, board::message())))
}

/// The next child that ends, not counting the common target of signals.
fn wait_for_host() -> Result<(u64, i32), String> {
    loop {
        let (pid, status) = sys::wait(-1, 0).map_err(|e| format!("wait: errno {e}"))?;
        if pid != word(Word::Target).load(SeqCst) {
            return Ok((pid, status));
        }
    }
}

fn host(side: usize, mode: Mode, batch: &[Case]) -> ! {
    if mode != Mode::Processes {
        let batch: Vec<Case> = batch.to_vec();
        std::thread::spawn(move || act_out(1, mode, &batch));
    }
    act_out(side, mode, batch);
    // The other thread of this process must have finished, too.
    sys::exit(0)
}

fn act_out(side: usize, mode: Mode, batch: &[Case]) {
    if let Err(message) = try_to_act(side, mode, batch) {
        board::fail(&message);
        sys::exit(3);
    }
}

fn try_to_act(side: usize, mode: Mode, batch: &[Case]) -> Result<(), String> {
    sys::tie_to_cpu(sys::cpus()[side]).map_err(|e| format!("sched_setaffinity: errno {e}"))?;
    let mut rounds = 0;
    let mut meet = || {
        rounds += 2;
        word(Word::Arrived).fetch_add(1, SeqCst);
        wait_until(|| word(Word::Arrived).load(SeqCst) >= rounds)
    };
    board::touch();
    let mut actor = Actor::new(side, mode);
    meet()?;
    world::enter(&mut actor)?;
    meet()?;
    for (place, case) in batch.iter().enumerate() {
        if side == 0 {
            word(Word::Place).store(place as u64, SeqCst);
        }
        memory::restore(&actor)?;
        let op = find(case.sides[side]).ok_or("nobody knows how to do that")?;
        for (round, &first) in FIRST.iter().enumerate() {
            let measured = round >= WARM;
            if measured && side == 0 {
                let [high, low] = case.number.to_be_bytes();
                board::mark(Marker::Digit(high));
                board::mark(Marker::Digit(low));
            }
            one_round(&mut actor, op, first, &mut meet)
                .map_err(|e| format!("CPU {side}, round {round}: {e}"))?;
            if side == 0 {
                board::mark(if measured {
                    Marker::Right
                } else {
                    Marker::Drop
                });
            }
        }
    }
    world::leave(&actor);
    meet()
}

fn one_round(
    actor: &mut Actor,
    op: &Op,
    first: usize,
    meet: &mut impl FnMut() -> Result<(), String>,
) -> Result<(), String> {
    let side = actor.side;
    // One after the other: both may need a descriptor for a moment, and the lowest free one must stay the same.
    if side == 1 {
        meet()?;
    }
    let act = (op.prepare)(actor)?;
    if side == 0 {
        word(Word::Turn).store(0, SeqCst);
        meet()?;
    }
    meet()?;
    actor.touch_again();
    meet()?;
    let got = if side == 0 {
        board::mark(Marker::Open);
        let early = (first == 0).then(|| act.carry_out());
        word(Word::Turn).store(1, SeqCst);
        wait_until(|| word(Word::Turn).load(SeqCst) == 2)?;
        let got = early.unwrap_or_else(|| act.carry_out());
        board::mark(Marker::Close);
        got
    } else {
        wait_until(|| word(Word::Turn).load(SeqCst) == 1)?;
        let got = act.carry_out();
        word(Word::Turn).store(2, SeqCst);
        got
    };
    meet()?;
    if side == 1 {
        meet()?;
    }
    (op.finish)(actor, got)?;
    if side == 0 {
        meet()?;
    }
    meet()
}

/// Spins until `done`.
fn wait_until(done: impl Fn() -> bool) -> Result<(), String> {
    for _ in 0..PATIENCE {
        if done() {
            return Ok(());
        }
        if word(Word::Failed).load(SeqCst) != 0 {
            sys::exit(3);
        }
        std::hint::spin_loop();
    }
    Err("the other side does not come".into())
}

fn all_ops() -> impl Iterator<Item = &'static Op> {
    let groups = memory::OPS.iter().chain(&process::OPS).chain(&files::OPS);
    groups.copied().flatten()
}

/// The implementation of `variant`.
pub fn find(variant: &Variant) -> Option<&'static Op> {
    all_ops().find(|op| op.call == variant.call && op.name == variant.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use commute::variant;

    #[test]
    fn every_variant_can_be_done_and_nothing_else_is_there() {
        for variant in variant::ALL {
            assert!(
                find(variant).is_some(),
                "{} {}",
                variant.call.name(),
                variant.name
            );
        }
        assert_eq!(all_ops().count(), variant::ALL.len());
    }
}
