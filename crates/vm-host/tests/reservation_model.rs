//! Reservations of several objects against a slow reference, with memory that runs out and allocations that fail.
//!
//! The reference knows each reserved run, its age and the frames that were taken from it, and the frames in use. Runs may
//! be broken, oldest first, by a request that memory above the marks does not serve; by nothing else. After each
//! operation the counts of free memory must be exact, and each page must be a frame of its place or of no reservation.
//!
//! `PANTALA_CASES=200 cargo test -p vm-host --test reservation_model` plays more games.
#![cfg(not(any(loom, shuttle)))]

use std::collections::{BTreeMap, BTreeSet};

use ksync::host::set_cpu;
use ksync::pin;
use vm::alloc::{Blocks, Place, RUN_FRAMES};
use vm::{NoMemory, PageAllocator, Pfn, Rights};
use vm_host::{Arena, Random};

const CPUS: usize = 3;
const OBJECTS: usize = 4;
/// Blocks of an object that are used.
const BLOCKS: u32 = 5;
const STEPS: usize = 1500;
const ALL: [Rights; 4] = [Rights::User, Rights::Kernel, Rights::Table, Rights::Reserve];

/// An object and one of its blocks.
type Key = (usize, u32);

/// A reserved run.
struct Run {
    first: Pfn,
    /// Places whose frames are taken.
    taken: BTreeSet<u32>,
    /// When it last began to have a frame to give.
    since: usize,
}

impl Run {
    fn untaken(&self) -> usize {
        (RUN_FRAMES as usize) - self.taken.len()
    }

    fn place_of(&self, pfn: Pfn) -> Option<u32> {
        let offset = pfn.0.checked_sub(self.first.0)?;
        (offset < RUN_FRAMES).then_some(offset)
    }
}

struct Game {
    random: Random,
    alloc: PageAllocator,
    blocks: [Blocks; OBJECTS],
    runs: BTreeMap<Key, Run>,
    held: Vec<Pfn>,
    /// By frame number, whether it is among `held`.
    used: Vec<bool>,
    injects: bool,
    now: usize,
    /// What must happen in some game.
    seen: BTreeSet<&'static str>,
    arena: Arena,
}

fn place((object, block): Key, offset: u32) -> Place {
    Place {
        object: 64 * (object + 1),
        index: block * RUN_FRAMES + offset,
    }
}

impl Game {
    fn new(seed: u64, domains: usize) -> Game {
        let arena = Arena::new(6000, CPUS, domains);
        let mut alloc = arena.allocator();
        alloc.allow_reservations();
        Game {
            random: Random(seed),
            alloc,
            blocks: Default::default(),
            runs: BTreeMap::new(),
            held: Vec::new(),
            used: vec![false; arena.pages().len()],
            injects: false,
            now: 0,
            seen: BTreeSet::new(),
            arena,
        }
    }

    fn domain(&self, pfn: Pfn) -> usize {
        self.arena.pages().get(pfn).domain()
    }

    fn untaken(&self) -> usize {
        self.runs.values().map(Run::untaken).sum()
    }

    fn key(&mut self) -> (Key, u32) {
        let object = self.random.below(OBJECTS);
        let block = self.random.below(BLOCKS as usize) as u32;
        let offset = self.random.below(RUN_FRAMES as usize) as u32;
        ((object, block), offset)
    }

    fn rights(&mut self) -> Rights {
        ALL[self.random.below(4)]
    }

    /// A frame that was in use by nobody is the caller's now; it is of no reservation.
    fn hold(&mut self, pfn: Pfn) {
        let before = std::mem::replace(&mut self.used[pfn.index()], true);
        assert!(!before, "{pfn:?} was in use");
        for (key, run) in &self.runs {
            let place = run.place_of(pfn);
            assert!(
                place.is_none_or(|place| run.taken.contains(&place)),
                "{pfn:?} is reserved for {key:?}"
            );
        }
        self.held.push(pfn);
    }

    /// Reservations that have been broken since the last look: of each domain, those with the oldest frames to give.
    fn notice_broken(&mut self, may_break: bool) {
        let gone: Vec<Key> = self
            .runs
            .keys()
            .copied()
            .filter(|&key| self.alloc.reserved_run(place(key, 0)).is_none())
            .collect();
        assert!(gone.is_empty() || may_break, "{gone:?} broken for nothing");
        let gone: BTreeMap<Key, Run> = gone
            .into_iter()
            .filter_map(|key| Some((key, self.runs.remove(&key)?)))
            .collect();
        for (key, run) in &gone {
            assert!(run.untaken() != 0, "{key:?} had nothing to give");
            let domain = self.domain(run.first);
            let mut older = self.runs.values().filter(|other| {
                self.domain(other.first) == domain
                    && other.untaken() != 0
                    && other.since < run.since
            });
            assert!(older.next().is_none(), "an older one than {key:?} stayed");
            self.seen.insert("broken");
        }
    }

    /// Whether a request of one frame may break a reservation: no domain has a listed frame above the users' mark.
    fn is_short(&self) -> bool {
        let untaken: usize = self.untaken();
        self.alloc.spare_pages() <= untaken
    }

    fn take(&mut self) {
        let (key, offset) = self.key();
        let (reserve, still) = (self.random.below(4) != 0, self.random.below(8) != 0);
        let short = self.is_short();
        let at = (place(key, offset), &self.blocks[key.0]);
        let placed = self.alloc.alloc_at(&pin(), at, reserve, || still);
        let before = self.runs.get(&key);
        let wanted = before.filter(|run| !run.taken.contains(&offset));
        let Ok(placed) = placed else {
            if let Some(run) = self.runs.get_mut(&key).filter(|run| run.untaken() == 1) {
                // It may have been whole for a moment.
                run.since = if run.taken.contains(&offset) {
                    run.since
                } else {
                    self.now
                };
            }
            return self.fail(Rights::User);
        };
        if let Some(pfn) = wanted.map(|run| run.first.add(offset)) {
            assert_eq!(placed.pfn, pfn, "the frame at its place");
            let now = self.now;
            let run = self.runs.get_mut(&key).expect("just found");
            run.taken.insert(offset);
            assert_eq!(placed.whole, run.untaken() == 0);
            if placed.whole {
                (run.since, _) = (now, self.seen.insert("whole"));
            }
        } else {
            assert!(!placed.whole);
            self.notice_broken(short);
            let run = self.alloc.reserved_run(place(key, offset));
            if let Some(first) = run.filter(|_| !self.runs.contains_key(&key)) {
                assert!(reserve && still && placed.pfn == first.add(offset));
                let taken = BTreeSet::from([offset]);
                let since = self.now;
                self.runs.insert(
                    key,
                    Run {
                        first,
                        taken,
                        since,
                    },
                );
                return self.hold(placed.pfn);
            }
        }
        self.hold(placed.pfn);
        self.notice_broken(false);
    }

    /// A request has failed: that must have had a reason.
    fn fail(&mut self, rights: Rights) {
        self.notice_broken(true);
        assert!(self.injects || self.untaken() == 0, "a frame is untaken");
        if !self.injects && rights == Rights::Reserve {
            let free = self.alloc.free_pages();
            assert!(free <= 96 * CPUS, "{free} frames are in no magazine");
        }
        self.seen.insert("failed");
    }

    fn alloc(&mut self, rights: Rights) -> Result<(), NoMemory> {
        let short = self.is_short();
        match self.alloc.alloc(&pin(), rights) {
            Ok(pfn) => {
                self.notice_broken(short);
                self.hold(pfn);
                Ok(())
            }
            Err(NoMemory) => {
                self.fail(rights);
                Err(NoMemory)
            }
        }
    }

    fn alloc_run(&mut self) {
        let order = 1 + self.random.below(10) as u8;
        let rights = self.rights();
        if let Ok(first) = self.alloc.alloc_order(&pin(), order, rights) {
            self.notice_broken(true);
            (0..1 << order).for_each(|n| self.hold(first.add(n)));
        } else {
            self.notice_broken(true);
            assert!(self.injects || self.untaken() == 0, "a frame is untaken");
        }
    }

    /// A frame that is freed goes back to the run that it was taken from.
    fn forget(&mut self, pfn: Pfn) {
        self.used[pfn.index()] = false;
        let now = self.now;
        let found = self
            .runs
            .iter_mut()
            .find_map(|(key, run)| Some((*key, run.place_of(pfn)?, run)));
        if let Some((key, offset, run)) = found {
            if run.untaken() == 0 {
                run.since = now;
            }
            assert!(run.taken.remove(&offset));
            if run.taken.is_empty() {
                self.runs.remove(&key);
                self.seen.insert("emptied");
            }
        }
    }

    fn free(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let many = 1 << self.random.below(11);
        let from = self.random.below(self.held.len());
        let end = (from + many).min(self.held.len());
        let gone: Vec<Pfn> = self.held.drain(from..end).collect();
        if self.random.one_in(2) {
            self.alloc.free_bulk(&pin(), &gone);
        } else {
            gone.iter().for_each(|&pfn| self.alloc.free(&pin(), pfn));
        }
        // Two runs that were whole may be in either order; the game has only one moment.
        gone.into_iter().for_each(|pfn| {
            self.now += 1;
            self.forget(pfn);
        });
    }

    fn end_object(&mut self) {
        let object = self.random.below(OBJECTS);
        let from = self.random.below((BLOCKS * RUN_FRAMES) as usize) as u32;
        let identity = place((object, 0), 0).object;
        self.alloc
            .end_reservations(identity, from, &self.blocks[object]);
        self.runs
            .retain(|key, _| key.0 != object || place(*key, 0).index < from);
    }

    fn step(&mut self) {
        set_cpu(self.random.below(CPUS));
        self.now += 1;
        match self.random.below(100) {
            0..60 => self.take(),
            60..72 => {
                let rights = self.rights();
                let _either = self.alloc(rights);
            }
            72..84 => self.free(),
            84..88 => self.alloc_run(),
            88..90 => self.end_object(),
            90..94 => {
                let (before, gives) = (self.runs.len(), self.untaken() != 0);
                assert_eq!(self.alloc.break_oldest(&pin()), gives);
                self.notice_broken(true);
                assert_eq!(before - self.runs.len(), usize::from(gives));
            }
            94 => {
                let rights = self.rights();
                while self.alloc(rights).is_ok() {}
            }
            95 => {
                self.injects = !self.injects;
                let period = if self.injects { 5 } else { 0 };
                self.alloc.set_injector(period, 0);
            }
            _ => {
                let (key, offset) = self.key();
                let many = RUN_FRAMES >> self.random.below(4);
                for n in 0..many {
                    let at = place(key, (offset + n) % RUN_FRAMES);
                    if let Ok(Some(placed)) = self.alloc.take_placed(&pin(), at) {
                        self.now += 1;
                        let now = self.now;
                        let run = self.runs.get_mut(&key).expect("a reservation");
                        run.taken.insert(at.index % RUN_FRAMES);
                        if placed.whole {
                            (run.since, _) = (now, self.seen.insert("whole"));
                        }
                        self.hold(placed.pfn);
                    }
                }
            }
        }
        let total = self.alloc.total_pages();
        assert_eq!(self.alloc.free_pages(), total - self.held.len());
    }

    fn check(&self) {
        for cpu in 0..CPUS {
            set_cpu(cpu);
            self.alloc.drain(&pin());
        }
        let census = self.alloc.check().expect("consistent records");
        assert_eq!(census.reserved, self.untaken());
        assert_eq!(census.allocated, self.held.len());
        for (key, run) in &self.runs {
            let first = self.alloc.reserved_run(place(*key, 0));
            assert_eq!(first, Some(run.first), "{key:?}");
        }
        let domains = 1 + self.domain(Pfn(self.arena.pages().len() as u32 - 1));
        for domain in 0..domains {
            let here = |pfn: &&Pfn| self.domain(**pfn) == domain;
            let held = self.held.iter().filter(here).count();
            let (free, all) = self.alloc.domain_pages(domain);
            assert_eq!(free, all - held, "domain {domain}");
        }
    }

    fn finish(mut self) -> BTreeSet<&'static str> {
        self.alloc.set_injector(0, 0);
        self.alloc.free_bulk(&pin(), &self.held);
        for pfn in std::mem::take(&mut self.held) {
            self.forget(pfn);
        }
        assert!(self.runs.is_empty(), "a run without pages is free");
        self.check();
        self.seen
    }
}

#[test]
fn random_objects_get_what_the_reference_says() {
    let cases = std::env::var("PANTALA_CASES").ok();
    let cases: u64 = cases.and_then(|n| n.parse().ok()).unwrap_or(12);
    let mut seen = BTreeSet::new();
    for seed in 1..=cases {
        let mut game = Game::new(seed * 7919, 1 + seed as usize % 2);
        for step in 0..STEPS {
            game.step();
            if step % 50 == 0 {
                game.check();
            }
        }
        seen.extend(game.finish());
    }
    let all = ["broken", "emptied", "failed", "whole"];
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), all);
    set_cpu(0);
}
