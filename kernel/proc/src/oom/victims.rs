//! Which processes are killed when memory is out.
//!
//! A process costs the memory that its end frees: anonymous pages, page tables, kernel stacks, and its part of what the
//! kernel holds for its user's descriptors ([`holders`](super::holders)). There are four kinds of victims:
//!
//! - *one large process*: it is killed, with the processes that share its address space;
//! - *an exec group*: processes that were forked from one execve and have not called execve since, many and together more
//!   than twice as large as the largest process. Memory that they share counts once. All are killed in one pass, and
//!   cannot fork meanwhile. Only the founder, whose execve began the group, is spared the first time: it may be a
//!   shell whose children use the memory. A process that changes its real user begins a group, too: the memory of one
//!   user's processes is no reason to kill another user's, or the program of root that forked both;
//! - *processes of one user*, for whose descriptors the kernel holds more than the largest process costs: those that
//!   have most descriptors open are killed;
//! - *many small processes of many exec groups*: those that started last are killed, so many that an eighth of what all
//!   cost becomes free. The age up to which they are killed is a power of two of nanoseconds. Processes that cost less
//!   than half of the average are spared.
//!
//! A search takes time in proportion to the processes and what they have mapped, and each search frees a large part of
//! that. It allocates nothing, and can be preempted but for short sections. Init is never chosen, nor is a process with
//! an `oom_score_adj` of -1000.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec;
use core::fmt::{self, Display, Formatter, Write};
use ksync::atomic::{AtomicU64, Ordering};

use hal::kprintln;
use hal::stack::FRAMES_PER_STACK;
use mem::{Space, vm};
use task::time;

use super::eligible::is_eligible;
use super::holders::{Holders, Most};
use crate::process::Process;
use crate::{ids, signal};

/// Most groups that a search keeps apart; a further one takes the place of the smallest.
const GROUPS: usize = 64;
/// A group with fewer members is not chosen.
const MANY: u32 = 8;
/// A single process that costs less than this fraction of the sum of all costs is not chosen.
const SMALL_PART: u64 = 16;
/// The fraction of the sum of all costs that is freed by killing the youngest processes.
const YOUNG_PART: u64 = 8;
/// Processes are counted by the binary logarithm of their age in nanoseconds.
const AGES: usize = 64;
/// An estimate of a process's heap objects, in pages.
const OBJECTS: u64 = 2;
/// A founder that was spared is not spared again within this time, in nanoseconds.
const MEMORY_NS: u64 = 60 * time::SECOND;

hal::machine_static! {
    /// The group that is being killed, 0 for none: its members cannot fork. Written by the killer.
    static MARKED_KILLED: AtomicU64 = AtomicU64::new(0);
}

/// Whether a group is being killed, so that its members may not fork.
#[inline]
pub fn is_marked_killed(exec_group: u64) -> bool {
    MARKED_KILLED.load(Ordering::Relaxed) == exec_group && exec_group != 0
}

/// The memory that a process uses, in pages.
struct Cost {
    /// Memory that no other process uses.
    own: u64,
    /// Memory that it shares with its group, or once did.
    shared: u64,
}

impl Cost {
    /// `None` for a process that has no address space any more.
    fn of(p: &Process) -> Option<Cost> {
        let cost = p.space()?.cost();
        let stacks = u64::from(p.thread_count()) * FRAMES_PER_STACK as u64;
        Some(Cost {
            own: cost.own + cost.tables + stacks + OBJECTS,
            shared: cost.shared,
        })
    }

    fn sum(&self) -> u64 {
        self.own + self.shared
    }

    /// The cost with what `oom_score_adj` adds or subtracts.
    fn adjusted(&self, p: &Process) -> u64 {
        let share = vm().alloc.total_pages() as i64 * i64::from(p.oom_adj()) / 1000;
        (self.sum() as i64 + share).max(0) as u64
    }
}

/// /proc/PID/oom_score: the adjusted cost of a process, in thousandths of memory.
pub fn score(p: &Process) -> u64 {
    Cost::of(p).map_or(0, |cost| {
        cost.adjusted(p) * 1000 / vm().alloc.total_pages().max(1) as u64
    })
}

#[derive(Clone, Copy, Default)]
struct ExecGroup {
    exec_group: u64,
    members: u32,
    own: u64,
    shared: u64,
}

impl ExecGroup {
    fn sum(&self) -> u64 {
        self.own + self.shared
    }
}

/// The result of a search.
struct Census {
    /// Users for whose descriptors the kernel holds much.
    holders: Holders,
    groups: Box<[ExecGroup]>,
    /// The process with the highest adjusted cost, and that cost.
    largest: Option<(u64, Arc<Process>)>,
    /// The sums of the pages that processes alone use, by the processes' age.
    ages: Box<[u64]>,
    /// The sum of the pages that processes alone use, and how many processes that are.
    sum: u64,
    count: u64,
    /// Some processes are ending, and may have memory still.
    dying: bool,
}

impl Census {
    fn clear(&mut self) {
        self.groups.fill(ExecGroup::default());
        self.ages.fill(0);
        (self.largest, self.sum, self.count, self.dying) = (None, 0, 0, false);
    }

    /// Counts `p`, whose cost is `cost`. `now` is in nanoseconds since boot.
    fn add(&mut self, p: &Arc<Process>, cost: &Cost, now: u64) {
        let adjusted = cost.adjusted(p);
        if self
            .largest
            .as_ref()
            .is_none_or(|(most, _)| adjusted > *most)
        {
            self.largest = Some((adjusted, p.clone()));
        }
        self.sum += cost.own;
        self.count += 1;
        self.ages[age(p, now)] += cost.own;
        let exec_group = p.exec_group();
        let found = self.groups.iter().position(|f| f.exec_group == exec_group);
        // The smallest of the table is of no interest, unless it grows again.
        let place = found.or_else(|| (0..GROUPS).min_by_key(|&i| self.groups[i].own));
        let Some(place) = place else { return };
        let group = &mut self.groups[place];
        if found.is_none() {
            *group = ExecGroup {
                exec_group,
                ..ExecGroup::default()
            };
        }
        group.members += 1;
        group.own += cost.own;
        group.shared = group.shared.max(cost.shared);
    }
}

/// The binary logarithm of a process's age in nanoseconds.
fn age(p: &Process, now: u64) -> usize {
    (now.saturating_sub(p.start_ns()) | 1).ilog2() as usize
}

/// The processes that are being killed.
pub(super) enum Victims {
    /// A process, and those that share its address space. The space is held, so no other has its address.
    One {
        victim: Arc<Process>,
        space: Option<Arc<Space>>,
    },
    /// A group, with or without its founder.
    ExecGroup { exec_group: u64, founder: bool },
    /// The processes of one user that have most descriptors.
    Holders(Most),
    /// Processes that started at `since` or later, in nanoseconds since boot, and cost at least `least` pages.
    Young { since: u64, least: u64 },
}

impl Victims {
    /// Whether `p` is one of them, if it [may be killed](is_eligible), which the caller checks.
    fn has(&self, p: &Process) -> bool {
        match self {
            Victims::One { victim, space } => {
                p.pid() == victim.pid() || space.as_ref().is_some_and(|space| p.may_empty(space))
            }
            Victims::ExecGroup {
                exec_group,
                founder,
            } => p.exec_group() == *exec_group && (*founder || !p.is_founder()),
            Victims::Holders(most) => most.has(p),
            Victims::Young { since, least } => {
                p.start_ns() >= *since && Cost::of(p).is_some_and(|cost| cost.own >= *least)
            }
        }
    }

    /// Sends SIGKILL to the victims that are eligible and not ending already; returns how many these are.
    fn kill(&self) -> u32 {
        let mut killed = 0;
        ids::each_process(2, |p| {
            if is_eligible(p) && !p.is_ending() && self.has(p) {
                signal::kill_process(p);
                killed += 1;
            }
            true
        });
        killed
    }

    /// Whether no victim has memory any more. Kills members of a group, and processes that share a victim's space, that the kill has
    /// missed: they were forked meanwhile, with numbers that it had passed. `killed` is when the
    /// victims were killed, in nanoseconds since boot: a process that started later is none.
    ///
    /// A process that shares a victim's space counts until it has left that, and has emptied it if it was the last.
    pub(super) fn are_gone(&self, killed: u64) -> bool {
        let mut left = false;
        ids::each_process(2, |p| {
            let was_there = p.start_ns() <= killed;
            let is_victim = match self {
                // It may take long to end once it has left its space.
                Victims::One {
                    space: Some(space), ..
                } => p.may_empty(space),
                // Their descriptors are what is waited for, and may be closed one by one.
                Victims::Holders(most) => was_there && p.is_ending() && most.is_of(p),
                // What the dying cost gets less and less.
                Victims::Young { since, .. } => {
                    was_there && p.is_ending() && p.start_ns() >= *since
                }
                _ => self.has(p),
            };
            if is_eligible(p) && is_victim {
                left = true;
                // Of these kinds all members are to end, also those that the kill has missed. A second SIGKILL changes nothing.
                if matches!(self, Victims::ExecGroup { .. } | Victims::One { .. }) {
                    signal::kill_process(p);
                }
            }
            true
        });
        !left
    }

    /// Ends the killing: the members of a group may fork again.
    pub(super) fn allow_forks(&self) {
        MARKED_KILLED.store(0, Ordering::Relaxed);
    }
}

/// What the killer has decided after a search.
pub(super) enum Choice {
    /// These processes have been killed.
    Killed(Victims),
    /// No process may be chosen, but some are ending.
    Dying,
    /// No process may be chosen.
    Nobody,
}

/// What the killer keeps from one search to the next.
pub(super) struct Killer {
    census: Census,
    /// The group whose founder was spared last, and when.
    spared: (u64, u64),
}

impl Killer {
    /// Allocates all memory that the killer will ever need.
    pub(super) fn new() -> Killer {
        Killer {
            census: Census {
                holders: Holders::new(),
                groups: vec![ExecGroup::default(); GROUPS].into(),
                largest: None,
                ages: vec![0; AGES].into(),
                sum: 0,
                count: 0,
                dying: false,
            },
            spared: (0, 0),
        }
    }

    /// Searches all processes, chooses victims and sends them SIGKILL; does not wait for their end. Processes that are
    /// ending already are not chosen and spare no other: the caller has waited for the victims of the call before.
    pub(super) fn choose_and_kill(&mut self) -> Choice {
        let now = time::monotonic_ns();
        self.census.clear();
        self.census.holders.search();
        ids::each_process(2, |p| {
            if !is_eligible(p) {
            } else if p.is_ending() {
                self.census.dying = true;
            } else if let Some(mut cost) = Cost::of(p) {
                cost.own += self.census.holders.share(p);
                self.census.add(p, &cost, now);
            }
            true
        });
        let Some(victims) = self.choose(now) else {
            return if self.census.dying {
                Choice::Dying
            } else {
                Choice::Nobody
            };
        };
        if let Victims::ExecGroup { exec_group, .. } = victims {
            MARKED_KILLED.store(exec_group, Ordering::SeqCst);
        }
        let killed = victims.kill();
        self.report(&victims, killed);
        self.census.largest = None;
        Choice::Killed(victims)
    }

    /// The victims among the processes of the census, of the first kind that applies: an exec group, one user's processes, one
    /// process, the youngest. `None` if the census has no process. A group that is chosen again within [`MEMORY_NS`] loses its
    /// founder, too.
    fn choose(&mut self, now: u64) -> Option<Victims> {
        let census = &self.census;
        let (most, largest) = census.largest.as_ref()?;
        let group = census
            .groups
            .iter()
            .filter(|f| f.members >= MANY)
            .max_by_key(|f| f.sum());
        if let Some(group) = group
            && group.sum() > 2 * most
            && group.sum() * SMALL_PART > census.sum
        {
            let exec_group = group.exec_group;
            let founder = self.spared.0 == exec_group && now - self.spared.1 < MEMORY_NS;
            self.spared = (exec_group, now);
            return Some(Victims::ExecGroup {
                exec_group,
                founder,
            });
        }
        if let Some(holder) = census.holders.largest()
            && holder.pages > *most
        {
            return Some(Victims::Holders(holder.most()));
        }
        if most * SMALL_PART >= census.sum {
            return Some(Victims::One {
                victim: largest.clone(),
                space: largest.space(),
            });
        }
        let mut sum = 0;
        // The age, as a binary logarithm, up to which the processes cost enough.
        let bound = census.ages.iter().position(|&cost| {
            sum += cost;
            sum * YOUNG_PART >= census.sum
        });
        let since = now.saturating_sub(2 << bound.unwrap_or(AGES - 2).min(AGES - 2));
        let least = census.sum / census.count.max(1) / 2;
        Some(Victims::Young { since, least })
    }

    fn report(&self, victims: &Victims, killed: u32) {
        match victims {
            Victims::One { victim: p, .. } => {
                let most = self.census.largest.as_ref().map_or(0, |(most, _)| *most);
                kprintln!(
                    "out of memory: killed process {} ({}), {} KiB of its own",
                    p.pid(),
                    Name(Some(p)),
                    most * 4
                );
            }
            Victims::ExecGroup {
                exec_group,
                founder,
            } => {
                let group = self
                    .census
                    .groups
                    .iter()
                    .find(|f| f.exec_group == *exec_group);
                let founder_id = exec_group % u64::from(task::ids::ID_LIMIT);
                let first = ids::find_process(founder_id as u32);
                kprintln!(
                    "out of memory: killed {killed} processes forked from {founder_id} ({}), {} KiB; {}",
                    first.as_ref().map_or(Name(None), |p| Name(Some(p))),
                    group.map_or(0, ExecGroup::sum) * 4,
                    if *founder {
                        "that one as well"
                    } else {
                        "that one is spared"
                    }
                );
            }
            Victims::Holders(_) => {
                let holder = self.census.holders.largest();
                let (uid, pages) = holder.map_or((0, 0), |h| (h.uid, h.pages));
                kprintln!(
                    "out of memory: killed {killed} processes of user {uid}, for whose descriptors the kernel holds {} KiB",
                    pages * 4
                );
            }
            Victims::Young { since, .. } => kprintln!(
                "out of memory: killed {killed} processes started in the last {} ms",
                time::monotonic_ns().saturating_sub(*since) / 1_000_000
            ),
        }
    }
}

/// A process's name as it is printed, without a copy.
struct Name<'a>(Option<&'a Process>);

impl Display for Name<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let comm = self.0.map(Process::comm).unwrap_or_default();
        let name = comm.split(|&b| b == 0).next().unwrap_or_default();
        for part in name.utf8_chunks() {
            for c in part.valid().chars() {
                // A user chose the name, and the console would obey it.
                f.write_char(if c.is_control() {
                    char::REPLACEMENT_CHARACTER
                } else {
                    c
                })?;
            }
            if !part.invalid().is_empty() {
                f.write_char(char::REPLACEMENT_CHARACTER)?;
            }
        }
        Ok(())
    }
}
