//! Where a phase's kernel instructions are executed: how often each translated block ran in it.
//!
//! Guarantee: for each phase the executions of every block between its markers, exact if blocks run to their end.
//! Mechanism: each block has a counter of its own, to which QEMU adds without a call. The machine must have one CPU, so
//! that everything counted between two markers belongs to the phase.

use crate::marker::Marker;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A block: the address of its first instruction, and its number of instructions.
pub type Block = (u64, u32);

/// The blocks that a phase, named by case and index, executed, each with the number of its executions.
pub type PhaseBlocks = ((u16, u8), Vec<(Block, u64)>);

#[derive(Default)]
struct Tables {
    counters: HashMap<Block, &'static AtomicU64>,
    /// Bytes of each instruction of a block.
    lengths: HashMap<Block, Vec<u8>>,
    /// The running case, and the counters at its begin marker.
    open: Option<(u16, HashMap<Block, u64>)>,
    phases: HashMap<(u16, u8), HashMap<Block, u64>>,
}

/// The blocks of a machine, and those that each phase executed.
#[derive(Default)]
pub struct Profile(Mutex<Tables>);

impl Profile {
    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The counter of a block whose instructions have so many bytes each. It lives for ever, as the code that adds to it may.
    pub fn counter(&self, block: Block, lengths: Vec<u8>) -> &'static AtomicU64 {
        let mut tables = self.tables();
        tables.lengths.insert(block, lengths);
        tables
            .counters
            .entry(block)
            .or_insert_with(|| Box::leak(Box::new(AtomicU64::new(0))))
    }

    /// Bytes of each instruction of a block.
    pub fn lengths(&self, block: Block) -> Vec<u8> {
        self.tables()
            .lengths
            .get(&block)
            .cloned()
            .unwrap_or_default()
    }

    /// Handles a marker.
    pub fn marker(&self, marker: Marker) {
        let mut tables = self.tables();
        let now: HashMap<Block, u64> = tables
            .counters
            .iter()
            .map(|(&block, counter)| (block, counter.load(Relaxed)))
            .filter(|&(_, count)| count != 0)
            .collect();
        match marker {
            Marker::Begin(case) => tables.open = Some((case, now)),
            Marker::Reset => tables.open = None,
            Marker::End(case, phase) => {
                let Some((_, before)) = tables.open.take().filter(|(began, _)| *began == case)
                else {
                    return;
                };
                let sums = tables.phases.entry((case, phase)).or_default();
                for (block, count) in now {
                    let gained = count - before.get(&block).copied().unwrap_or(0);
                    if gained != 0 {
                        *sums.entry(block).or_default() += gained;
                    }
                }
            }
        }
    }

    /// For each phase its case and index, and each block that ran in it with its executions, by address.
    pub fn phases(&self) -> Vec<PhaseBlocks> {
        let sorted = |blocks: &HashMap<Block, u64>| {
            let mut blocks: Vec<_> = blocks.iter().map(|(&b, &n)| (b, n)).collect();
            blocks.sort_unstable();
            blocks
        };
        let tables = self.tables();
        let mut phases: Vec<_> = tables
            .phases
            .iter()
            .map(|(&key, blocks)| (key, sorted(blocks)))
            .collect();
        phases.sort_by_key(|(key, _)| *key);
        phases
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_gets_the_executions_between_its_markers() {
        let profile = Profile::default();
        let run = |block, n| {
            profile.counter(block, vec![1, 2]).fetch_add(n, Relaxed);
        };
        run((16, 3), 5);
        profile.marker(Marker::Begin(2));
        run((16, 3), 7);
        run((8, 1), 1);
        profile.marker(Marker::End(2, 0));
        run((8, 1), 100);
        profile.marker(Marker::Begin(2));
        run((8, 1), 1);
        profile.marker(Marker::End(2, 0));
        profile.marker(Marker::End(2, 1));
        assert_eq!(
            profile.phases(),
            [((2, 0), vec![((8, 1), 2), ((16, 3), 7)])]
        );
        assert_eq!(profile.lengths((8, 1)), [1, 2]);
    }
}
