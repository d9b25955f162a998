//! Chains of processes that fork repeatedly: how long their shadow chains get, and how many pages they keep.
//!
//! `PANTALA_SCALE` multiplies the memory of the forking server: 16 is 64 MiB, of which its children keep 2 GiB.
#![cfg(not(any(loom, shuttle)))]

use std::collections::HashSet;
use std::sync::Arc;

use vm::page::State;
use vm::space::{Advice, COPY_DEPTH, HARD_DEPTH, MapArgs, Space};
use vm::{FaultError, MapProt, Pfn};
use vm_host::{Access, Lab};

const PAGE: u64 = 4096;
const AT: u64 = 0x4000_0000;
const RW: MapProt = MapProt::all();

/// Number of pages of anonymous memory.
fn anonymous(lab: &Lab) -> usize {
    lab.vm.epoch.drain();
    lab.vm.drain_limbo();
    let is_anon = |n: &usize| lab.vm.pages.get(Pfn(*n as u32)).state() == State::Anon;
    (0..lab.vm.pages.len()).filter(is_anon).count()
}

/// A process, and the expected contents of its pages; pages without an entry are zeroes.
struct Process {
    space: Arc<Space>,
    shows: Vec<Option<u64>>,
}

impl Drop for Process {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // After a failed test it cannot be dropped.
            std::mem::forget(self.space.clone());
        }
    }
}

struct World {
    lab: Lab,
    /// The last value written: each is written once.
    value: u64,
}

impl World {
    fn new(frames: usize) -> World {
        let lab = Lab::new(frames, 1);
        vm_host::obstruct(&lab.vm);
        World { lab, value: 0 }
    }

    fn map(&self, p: &mut Process, page: u64, pages: u64) {
        let args = MapArgs::anon(pages * PAGE, RW).at(AT + page * PAGE);
        p.space.map(&self.lab.vm, &args).unwrap();
        p.shows[page as usize..(page + pages) as usize].fill(Some(0));
    }

    /// A process with room for `pages` private pages.
    fn process(&mut self, pages: u64) -> Process {
        let mut p = Process {
            space: Space::new(&self.lab.vm).unwrap(),
            shows: vec![None; pages as usize],
        };
        self.map(&mut p, 0, pages);
        p
    }

    fn fork(&self, p: &Process) -> Process {
        Process {
            space: p.space.fork(&self.lab.vm).expect("a fork is not refused"),
            shows: p.shows.clone(),
        }
    }

    fn write(&mut self, p: &mut Process, pages: impl IntoIterator<Item = u64>) {
        self.lab.run(&p.space);
        for page in pages {
            if p.shows[page as usize].is_some() {
                self.value += 1;
                let value = self.value;
                let store = |word: &std::sync::atomic::AtomicU64| {
                    word.store(value, std::sync::atomic::Ordering::Relaxed)
                };
                let va = AT + page * PAGE;
                let done = self.lab.touch(&p.space, 0, va, Access::Write, store);
                assert_eq!(done, Ok(()), "page {page}");
                p.shows[page as usize] = Some(value);
            }
        }
        self.lab.stop(&p.space);
    }

    /// Checks every `step`-th page.
    fn check(&self, p: &Process, step: usize) {
        self.lab.run(&p.space);
        for (page, &shows) in p.shows.iter().enumerate().step_by(step) {
            let va = AT + page as u64 * PAGE;
            let load = |word: &std::sync::atomic::AtomicU64| {
                word.load(std::sync::atomic::Ordering::Relaxed)
            };
            let seen = self.lab.touch(&p.space, 0, va, Access::Read, load);
            assert_eq!(seen, shows.ok_or(FaultError::NotMapped), "page {page}");
        }
        self.lab.stop(&p.space);
    }

    fn depth(&self, p: &Process) -> usize {
        let mut depth = 0;
        p.space.for_each_entry(0, &mut |entry| {
            depth = depth.max(entry.depth);
            true
        });
        assert!(depth <= HARD_DEPTH, "{depth} layers");
        depth
    }

    /// Number of different page contents that the processes can read.
    fn contents(&self, all: &[Process]) -> usize {
        let shown = all.iter().flat_map(|p| p.shows.iter().flatten().copied());
        shown.collect::<HashSet<u64>>().len()
    }

    fn end(self, all: Vec<Process>) {
        for p in all {
            p.space.clear(&self.lab.vm);
        }
        self.lab.finish();
    }
}

/// Linear congruential, high bits.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

fn scale() -> u64 {
    let asked = std::env::var("PANTALA_SCALE").ok();
    asked.and_then(|n| n.parse().ok()).unwrap_or(1)
}

/// A server with much memory that rewrites little of it between forks, and whose children all live.
#[test]
fn a_forking_server_keeps_each_content_once() {
    let (cold, hot, forks) = (1024 * scale(), 16 * scale(), 2000);
    let bound = (cold + hot * (forks + 1)) as usize;
    let mut world = World::new(bound + bound / 8 + 40_000);
    let mut server = world.process(cold + hot);
    world.write(&mut server, 0..cold + hot);
    let mut children = Vec::new();
    for n in 0..forks {
        let child = world.fork(&server);
        world.depth(&child);
        children.push(child);
        // The hot pages are in the middle.
        world.write(&mut server, cold / 2..cold / 2 + hot);
        world.depth(&server);
        if n % 250 == 0 {
            world.check(&children[n as usize], 7);
        }
    }
    let pages = anonymous(&world.lab);
    println!("{pages} pages, {bound} contents");
    assert!(
        pages <= bound + bound / 20,
        "{pages} pages for {bound} contents"
    );
    for child in children.iter().step_by(97) {
        world.check(child, 3);
    }
    children.push(server);
    world.end(children);
}

/// However many pages the dropped layers have, a fork folds until the bound holds.
#[test]
fn large_layers_go_in_one_fork() {
    const PAGES: u64 = 700;
    let mut world = World::new(30_000);
    let mut server = world.process(PAGES);
    let mut children = Vec::new();
    // The last page of each layer is never written again: a pass skips all the others before it finds that one visible.
    for n in 0..40 {
        world.write(&mut server, 0..PAGES - n);
        children.push(world.fork(&server));
        assert!(world.depth(&server) <= COPY_DEPTH + 1);
    }
    children.iter().step_by(9).for_each(|p| world.check(p, 1));
    children.push(server);
    world.end(children);
}

/// Servers that rewrite a random part. A page may be copied when layers are merged, but not often.
#[test]
fn partial_rewriting_copies_each_page_a_few_times() {
    const COLD: u64 = 1024;
    const HOT: u64 = 64;
    for (forks, writes, most) in [(400, 32, 1.05), (800, 8, 2.5), (1000, 1, 5.0)] {
        let mut world = World::new(60_000);
        let mut server = world.process(COLD + HOT);
        world.write(&mut server, 0..COLD + HOT);
        let (mut dice, mut children) = (Dice(1), Vec::new());
        for _ in 0..forks {
            children.push(world.fork(&server));
            let hot = (0..writes).map(|_| 500 + dice.roll(HOT));
            let hot: Vec<u64> = hot.collect();
            world.write(&mut server, hot);
            world.depth(&server);
        }
        children.push(server);
        let (pages, contents) = (anonymous(&world.lab), world.contents(&children));
        let copied = (pages - COLD as usize) as f64 / (contents - COLD as usize) as f64;
        println!("{forks} forks, {writes} writes: {copied:.2} pages for each content");
        assert!(copied <= most, "{copied} pages for each content");
        for child in children.iter().step_by(41) {
            world.check(child, 1);
        }
        world.end(children);
    }
}

/// Each process forks one child, and all live: no process shares its parent's chain for long.
#[test]
fn a_line_of_generations_stays_short() {
    const COLD: u64 = 256;
    let mut world = World::new(20_000);
    let mut first = world.process(COLD);
    world.write(&mut first, 0..COLD);
    let mut line = vec![first];
    for n in 0..600 {
        let mut child = world.fork(&line[n]);
        world.write(&mut child, [n as u64 * 7 % COLD]);
        world.depth(&child);
        line.push(child);
    }
    let (pages, contents) = (anonymous(&world.lab), world.contents(&line));
    println!("{pages} pages for {contents} contents");
    assert!(pages <= 4 * contents);
    line.iter().step_by(13).for_each(|p| world.check(p, 1));
    world.end(line);
}

/// Random families: any process forks, writes, exits, and changes parts of its map.
#[test]
fn random_families_see_what_they_must() {
    for seed in 0..8 {
        random_family(seed, 600);
    }
}

fn random_family(seed: u64, steps: usize) {
    const PAGES: u64 = 48;
    let mut world = World::new(30_000);
    let mut dice = Dice(seed);
    let mut first = world.process(PAGES);
    world.write(&mut first, 0..PAGES);
    let mut all = vec![first];
    let mut deepest = 0;
    for _ in 0..steps {
        let which = dice.roll(all.len() as u64) as usize;
        let mut p = all.swap_remove(which);
        let (page, len) = (dice.roll(PAGES), 1 + dice.roll(6));
        let len = len.min(PAGES - page);
        match dice.roll(24) {
            0..8 => {
                let child = world.fork(&p);
                all.push(child);
                world.write(&mut p, [page]);
            }
            8..16 => world.write(&mut p, page..page + len),
            16 => change_map(&world, &mut p, page, len, dice.roll(4)),
            17 => {
                p.space.maintain(&world.lab.vm);
            }
            18 => {
                p.space.drop_tables(&world.lab.vm);
            }
            19 | 20 if all.len() > 12 => {
                p.space.clear(&world.lab.vm);
                continue;
            }
            _ => world.check(&p, 1),
        }
        deepest = deepest.max(world.depth(&p));
        all.push(p);
    }
    all.iter().for_each(|p| world.check(p, 1));
    println!("seed {seed}: {} live, {deepest} layers", all.len());
    world.end(all);
}

fn change_map(world: &World, p: &mut Process, page: u64, len: u64, how: u64) {
    let (vm, at) = (&world.lab.vm, AT + page * PAGE);
    let range = page as usize..(page + len) as usize;
    match how {
        0 => {
            p.space.unmap(vm, at, len * PAGE).unwrap();
            p.shows[range].fill(None);
        }
        1 => world.map(p, page, len),
        2 => {
            let done = p.space.advise(vm, at, len * PAGE, Advice::DontNeed);
            assert_eq!(
                done.is_ok(),
                p.shows[range.clone()].iter().all(Option::is_some)
            );
            p.shows[range]
                .iter_mut()
                .flatten()
                .for_each(|shows| *shows = 0);
        }
        // Splits an entry.
        _ => drop(
            p.space
                .protect(vm, at, len * PAGE, MapProt::READ | MapProt::WRITE),
        ),
    }
}
