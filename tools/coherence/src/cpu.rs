//! One CPU's counters, and their increase within each phase.
//!
//! Guarantee: a phase's figures are the differences between its begin and end markers, summed over all times that the
//! phase ran on this CPU; events outside phases appear only in the totals.
//! Mechanism: the counters are atomics written by the CPU's own thread only (loads and stores, no read-modify-write);
//! the tables behind the mutex are accessed only at markers and moves, which are rare.

use crate::directory::Move;
use crate::labels::Place;
use crate::marker::Marker;
use crate::record::{Cause, Counts, Spot};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Entry points whose executions are counted on request.
pub const WATCHES: usize = 8;

/// What is counted; the values index a CPU's counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Event {
    /// Instructions of user programs.
    User,
    /// Instructions of the kernel, iterations of string instructions left out.
    Kernel,
    /// Iterations of the kernel's repeated string instructions.
    Repeated,
    /// Lines moved to this CPU by the kernel's other instructions.
    KernelMoves,
    /// Those of the `KernelMoves` that are false sharing.
    KernelFalse,
    /// Lines moved to this CPU by the kernel's repeated string instructions, which clear or copy pages and buffers.
    BulkMoves,
    /// Bytes that the kernel's repeated string instructions stored of one value each, which clears pages and objects.
    Filled,
    /// Lines moved to this CPU by user instructions.
    UserMoves,
    /// Those of the `UserMoves` that are false sharing.
    UserFalse,
    /// Accesses to memory of this CPU's node.
    Local,
    /// Accesses to memory of other nodes.
    Remote,
    /// The local accesses by kernel instructions.
    KernelLocal,
    /// The remote accesses by kernel instructions.
    KernelRemote,
    /// The first of the watched entry points.
    Watch,
}

const EVENTS: usize = Event::Watch as usize + WATCHES;

type Snapshot = [u64; EVENTS];

/// The most places recorded for each phase and CPU; moves at further places count only in the phase's totals.
const PLACES: usize = 65_536;

#[derive(Default)]
struct Places {
    by_pc: HashMap<u64, (u64, u64)>,
    by_line: HashMap<u64, (u64, u64)>,
    by_cause: HashMap<(u64, Place), (u64, u64)>,
}

/// Adds to an entry of a table whose size [`PLACES`] bounds.
fn add<K: Eq + std::hash::Hash>(table: &mut HashMap<K, (u64, u64)>, key: K, count: (u64, u64)) {
    if table.len() < PLACES || table.contains_key(&key) {
        let entry = table.entry(key).or_default();
        *entry = (entry.0 + count.0, entry.1 + count.1);
    }
}

impl Places {
    fn add(&mut self, pc: u64, line: u64, place: Option<Place>, falsely: u64) {
        add(&mut self.by_pc, pc, (1, falsely));
        add(&mut self.by_line, line, (1, falsely));
        if let Some(place) = place {
            add(&mut self.by_cause, (pc, place), (1, falsely));
        }
    }

    fn merge(&mut self, other: &mut Places) {
        let each = |mine: &mut HashMap<u64, _>, theirs: &mut HashMap<u64, _>| {
            theirs
                .drain()
                .for_each(|(key, count)| add(mine, key, count));
        };
        each(&mut self.by_pc, &mut other.by_pc);
        each(&mut self.by_line, &mut other.by_line);
        for (key, count) in other.by_cause.drain() {
            add(&mut self.by_cause, key, count);
        }
    }
}

#[derive(Default)]
struct Phase {
    gained: Snapshot,
    times: u64,
    ns: u64,
    places: Places,
}

#[derive(Default)]
struct Tables {
    /// Case, counters and time at the begin marker of the running phase.
    open: Option<(u16, Snapshot, Instant)>,
    pending: Places,
    phases: HashMap<(u16, u8), Phase>,
}

/// One CPU.
pub struct Cpu {
    counters: [AtomicU64; EVENTS],
    tables: Mutex<Option<Tables>>,
}

impl Cpu {
    /// A CPU that has counted nothing.
    pub const fn new() -> Cpu {
        Cpu {
            counters: [const { AtomicU64::new(0) }; EVENTS],
            tables: Mutex::new(None),
        }
    }

    /// Counts `n` events; called by the CPU's own thread only.
    pub fn count(&self, event: Event, n: u64) {
        self.count_index(event as usize, n);
    }

    /// Counts one execution of watched entry point `watch`.
    pub fn watched(&self, watch: usize) {
        self.count_index(Event::Watch as usize + watch.min(WATCHES - 1), 1);
    }

    /// Counts `n` of the event with index `index`.
    pub fn count_index(&self, index: usize, n: u64) {
        let counter = &self.counters[index];
        counter.store(counter.load(Relaxed) + n, Relaxed);
    }

    /// The counter itself, to which QEMU can add without a call.
    pub fn counter(&self, event: Event) -> &AtomicU64 {
        &self.counters[event as usize]
    }

    fn tables(&self) -> MutexGuard<'_, Option<Tables>> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the instruction at `pc`, a repeated `string` instruction or not, moved a line to this CPU; `place`
    /// is the object that it accessed, if known.
    pub fn moved(&self, pc: u64, string: bool, found: Move, place: Option<Place>) {
        let kernel = pc >= crate::insn::KERNEL;
        if kernel && string {
            self.count(Event::BulkMoves, 1);
            return;
        }
        let (all, falsely) = if kernel {
            (Event::KernelMoves, Event::KernelFalse)
        } else {
            (Event::UserMoves, Event::UserFalse)
        };
        self.count(all, 1);
        self.count(falsely, u64::from(found.false_sharing));
        if let Some(tables) = &mut *self.tables()
            && tables.open.is_some()
        {
            let falsely = u64::from(found.false_sharing);
            tables.pending.add(pc, found.line, place, falsely);
        }
    }

    fn snapshot(&self) -> Snapshot {
        std::array::from_fn(|index| self.counters[index].load(Relaxed))
    }

    /// Handles a marker that this CPU stored.
    pub fn marker(&self, marker: Marker) {
        let now = self.snapshot();
        let mut tables = self.tables();
        let tables = tables.get_or_insert_with(Tables::default);
        match marker {
            Marker::Begin(case) => {
                tables.open = Some((case, now, Instant::now()));
                tables.pending = Places::default();
            }
            Marker::Reset => tables.open = None,
            Marker::End(case, phase) => {
                // An end without a begin means that the worker moved between CPUs: the phase cannot be measured.
                let Some((began, before, at)) = tables.open.take() else {
                    return;
                };
                if began != case {
                    return;
                }
                let slot = tables.phases.entry((case, phase)).or_default();
                slot.times += 1;
                slot.ns += at.elapsed().as_nanos() as u64;
                for (sum, (now, before)) in slot.gained.iter_mut().zip(now.iter().zip(before)) {
                    *sum += now - before;
                }
                slot.places.merge(&mut tables.pending);
            }
        }
    }

    /// Everything counted since the start.
    pub fn totals(&self) -> Counts {
        counts(&self.snapshot())
    }
}

impl Default for Cpu {
    fn default() -> Self {
        Cpu::new()
    }
}

fn counts(from: &Snapshot) -> Counts {
    let of = |event: Event| from[event as usize];
    Counts {
        user: of(Event::User),
        kernel: of(Event::Kernel),
        repeated: of(Event::Repeated),
        kernel_moves: of(Event::KernelMoves),
        kernel_false: of(Event::KernelFalse),
        bulk_moves: of(Event::BulkMoves),
        filled: of(Event::Filled),
        user_moves: of(Event::UserMoves),
        user_false: of(Event::UserFalse),
        local: of(Event::Local),
        remote: of(Event::Remote),
        kernel_local: of(Event::KernelLocal),
        kernel_remote: of(Event::KernelRemote),
        watched: from[Event::Watch as usize..].to_vec(),
    }
}

/// A phase, all CPUs together.
pub struct PhaseSum {
    /// Case and phase.
    pub key: (u16, u8),
    /// Sums over the CPUs.
    pub counts: Counts,
    /// Times that the phase ran, all CPUs together.
    pub times: u64,
    /// Wall time spent in it, all CPUs together.
    pub ns: u64,
    /// The instructions that moved most lines, most first.
    pub instructions: Vec<Spot>,
    /// The lines moved most often, most often first.
    pub lines: Vec<Spot>,
    /// Instructions with the object that they moved, most moves first.
    pub causes: Vec<Cause>,
}

/// The phases of `cpus`, each with its `top` places.
pub fn phases(cpus: &[Cpu], top: usize) -> Vec<PhaseSum> {
    let mut sums: HashMap<(u16, u8), Phase> = HashMap::new();
    for cpu in cpus {
        let Some(tables) = &mut *cpu.tables() else {
            continue;
        };
        for (&key, phase) in &mut tables.phases {
            let sum = sums.entry(key).or_default();
            sum.times += phase.times;
            sum.ns += phase.ns;
            sum.gained
                .iter_mut()
                .zip(phase.gained)
                .for_each(|(a, b)| *a += b);
            sum.places.merge(&mut phase.places);
        }
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by_key(|(key, _)| *key);
    let finish = |(key, phase): ((u16, u8), Phase)| PhaseSum {
        key,
        counts: counts(&phase.gained),
        times: phase.times,
        ns: phase.ns,
        instructions: most(phase.places.by_pc, top),
        lines: most(phase.places.by_line, top),
        causes: causes(phase.places.by_cause, 4 * top),
    };
    sums.into_iter().map(finish).collect()
}

fn causes(table: HashMap<(u64, Place), (u64, u64)>, top: usize) -> Vec<Cause> {
    let cause = |((pc, place), (moves, false_sharing))| Cause {
        pc,
        place,
        moves,
        false_sharing,
    };
    let mut all: Vec<Cause> = table.into_iter().map(cause).collect();
    all.sort_by_key(|cause| (std::cmp::Reverse(cause.moves), cause.pc, cause.place));
    all.truncate(top);
    all
}

fn most(table: HashMap<u64, (u64, u64)>, top: usize) -> Vec<Spot> {
    let spot = |(addr, (moves, false_sharing))| Spot {
        addr,
        moves,
        false_sharing,
    };
    let mut spots: Vec<Spot> = table.into_iter().map(spot).collect();
    spots.sort_by_key(|spot| (std::cmp::Reverse(spot.moves), spot.addr));
    spots.truncate(top);
    spots
}

#[cfg(test)]
mod tests {
    use super::*;

    const KERNEL_PC: u64 = 0xffff_ffff_8000_0000;

    fn a_move(line: u64, false_sharing: bool) -> Move {
        Move {
            line,
            false_sharing,
            store: false,
        }
    }

    #[test]
    fn a_phase_gets_what_happens_within_it_and_nothing_else() {
        let cpus = [Cpu::new(), Cpu::new()];
        for (index, cpu) in cpus.iter().enumerate() {
            cpu.count(Event::Kernel, 1000);
            cpu.marker(Marker::Reset);
            for _ in 0..3 {
                cpu.marker(Marker::Begin(5));
                cpu.count(Event::Kernel, 7 + index as u64);
                cpu.watched(1);
                cpu.moved(KERNEL_PC, false, a_move(64, true), Some(Place::Stack));
                cpu.moved(0x40_0000, false, a_move(128, false), None);
                cpu.moved(KERNEL_PC, true, a_move(192, false), None);
                cpu.marker(Marker::End(5, 2));
                cpu.count(Event::Kernel, 100);
                cpu.moved(KERNEL_PC, false, a_move(0, false), None);
            }
        }
        let sums = phases(&cpus, 1);
        let [only] = &sums[..] else {
            panic!("{} phases", sums.len())
        };
        assert_eq!((only.key, only.times), ((5, 2), 6));
        assert_eq!(
            (only.counts.kernel, only.counts.watched[1]),
            (3 * 7 + 3 * 8, 6)
        );
        assert_eq!((only.counts.kernel_moves, only.counts.kernel_false), (6, 6));
        assert_eq!((only.counts.user_moves, only.counts.user_false), (6, 0));
        assert_eq!(
            only.lines,
            [Spot {
                addr: 64,
                moves: 6,
                false_sharing: 6
            }]
        );
        let cause = Cause {
            pc: KERNEL_PC,
            place: Place::Stack,
            moves: 6,
            false_sharing: 6,
        };
        assert_eq!(only.causes, [cause]);
        assert_eq!(cpus[1].totals().kernel, 1000 + 3 * 108);
    }

    #[test]
    fn an_end_without_its_beginning_counts_nothing() {
        let cpu = Cpu::new();
        cpu.marker(Marker::End(1, 0));
        cpu.marker(Marker::Begin(1));
        cpu.marker(Marker::End(2, 0));
        cpu.marker(Marker::Begin(1));
        cpu.marker(Marker::Reset);
        cpu.marker(Marker::End(1, 0));
        assert!(phases(&[cpu], 8).is_empty());
    }
}
