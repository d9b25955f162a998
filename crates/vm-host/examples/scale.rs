//! What the VM's paths take natively, on one processor of the host and on many at once.
//!
//! Each thread plays a CPU of a machine of host memory ([`Arena`]) and calls the fault handler where a program would fault:
//! locks, atomics and cache lines are the host's; traps, translations and flushes are not there. So figures of one build
//! compare with those of another, and with its own for fewer threads. For each case a line: the nanoseconds that an
//! operation takes a thread, for each number of threads; the median of the runs, and how far they stray.
//!
//! Settings, of the environment: `THREADS="1 2 4"`, `RUNS=5`, `MS=200` for each measurement, `CASES=file,exec`.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use vm::object::ObjectRef;
use vm::space::{MapArgs, Source};
use vm::{Access, EntryFlags, MapProt, Space, Vm};
use vm_host::{Arena, lab};

const PAGE: u64 = 4096;
/// Frames of the machine: 1 GiB.
const FRAMES: usize = 1 << 18;
/// Pages of a thread's memory, and of the file.
const PAGES: u64 = 512;
/// Pages of a program's text that an exec touches.
const TEXT: u64 = 128;
/// Pages that a child of a fork writes, and those of its stack and data that an exec writes.
const WRITTEN: u64 = 16;
/// Pages that a parent has.
const PARENT: u64 = 64;
/// Where the first thread's memory is; the next one's is 1 GiB further on, so that they share no page table.
const FIRST: u64 = 1 << 32;

/// What all threads share.
struct Bench {
    vm: Vm<Arena>,
    /// The space of the cases where threads share one.
    common: Arc<Space>,
    /// A file whose pages are all resident.
    file: ObjectRef,
}

/// A thread.
struct Worker<'a> {
    bench: &'a Bench,
    space: Arc<Space>,
    /// Where its memory is.
    at: u64,
}

struct Case {
    name: &'static str,
    /// Whether all threads run one space.
    one_space: bool,
    /// Bytes that a fault on a resident page maps around it.
    around: u64,
    prepare: fn(&Worker<'_>),
    /// Does some operations; returns how many.
    step: fn(&Worker<'_>) -> u64,
}

/// What most cases have in common.
const PLAIN: Case = Case {
    name: "",
    one_space: false,
    around: 1 << 16,
    prepare: |_| (),
    step: |_| 0,
};

const CASES: [Case; 6] = [
    Case {
        name: "zero-fill, a page, mapped and unmapped with others",
        step: |worker| worker.fill(),
        ..PLAIN
    },
    Case {
        name: "the same, all threads in one space",
        one_space: true,
        step: |worker| worker.fill(),
        ..PLAIN
    },
    Case {
        name: "file: a resident page of one that all map, a fault each",
        around: PAGE,
        step: |worker| worker.read_file(1),
        ..PLAIN
    },
    Case {
        name: "the same, 16 pages a fault, each page",
        step: |worker| worker.read_file(16),
        ..PLAIN
    },
    Case {
        name: "fork of 64 pages, 16 of them written, exit",
        prepare: |worker| {
            worker.map_anon(PARENT);
            worker.write(PARENT);
        },
        step: |worker| worker.fork(),
        ..PLAIN
    },
    Case {
        name: "exec: a space, 128 pages of text that all map, 16 of its own",
        step: |worker| worker.exec(),
        ..PLAIN
    },
];

impl Worker<'_> {
    fn vm(&self) -> &Vm<Arena> {
        &self.bench.vm
    }

    fn map_anon(&self, pages: u64) {
        let args = MapArgs::anon(pages * PAGE, MapProt::READ | MapProt::WRITE).at(self.at);
        assert_eq!(self.space.map(self.vm(), &args), Ok(self.at));
    }

    /// Maps the first pages of the file, shared, at `at`.
    fn map_file(&self, at: u64, pages: u64) {
        let args = MapArgs {
            flags: EntryFlags::SHARED,
            source: Source::Object(&self.bench.file, 0),
            ..MapArgs::anon(pages * PAGE, MapProt::READ).at(at)
        };
        assert_eq!(self.space.map(self.vm(), &args), Ok(at));
    }

    fn write(&self, pages: u64) {
        touch(self.vm(), &self.space, self.at, pages, 1, Access::Write);
    }

    fn unmap(&self, pages: u64) {
        let done = self.space.unmap(self.vm(), self.at, pages * PAGE);
        assert_eq!(done, Ok(()));
    }

    fn fill(&self) -> u64 {
        self.map_anon(PAGES);
        self.write(PAGES);
        self.unmap(PAGES);
        PAGES
    }

    /// Maps the file, reads each `step`-th page of it, unmaps it. Returns the number of pages of the file.
    fn read_file(&self, step: u64) -> u64 {
        self.map_file(self.at, PAGES);
        touch(self.vm(), &self.space, self.at, PAGES, step, Access::Read);
        self.unmap(PAGES);
        PAGES
    }

    fn fork(&self) -> u64 {
        let child = self.space.fork(self.vm()).expect("memory for a child");
        let child = Worker {
            space: child,
            ..*self
        };
        self.instead(&child.space, || child.write(WRITTEN));
        child.space.clear(self.vm());
        1
    }

    fn exec(&self) -> u64 {
        let program = Worker {
            space: Space::new(self.vm()).expect("memory for a space"),
            ..*self
        };
        self.instead(&program.space, || {
            let text = self.at + (1 << 28);
            program.map_file(text, TEXT);
            touch(self.vm(), &program.space, text, TEXT, 16, Access::Read);
            program.map_anon(WRITTEN);
            program.write(WRITTEN);
        });
        program.space.clear(self.vm());
        1
    }

    /// Runs `other` on this thread's CPU, instead of its space, while `act` runs.
    fn instead(&self, other: &Space, act: impl FnOnce()) {
        switch(self.vm(), &self.space, other);
        act();
        switch(self.vm(), other, &self.space);
    }
}

/// Faults on each `step`-th page of a mapping.
fn touch(vm: &Vm<Arena>, space: &Space, at: u64, pages: u64, step: u64, access: Access) {
    for page in (0..pages).step_by(step as usize) {
        assert_eq!(space.fault(vm, at + page * PAGE, access), Ok(()));
    }
}

fn switch(vm: &Vm<Arena>, from: &Space, to: &Space) {
    let pin = ksync::pin();
    from.deactivate(&pin);
    let _root = to.activate(vm, &pin);
}

impl Bench {
    /// A machine with so many CPUs for threads; one more is the caller's.
    fn new(threads: usize) -> Bench {
        ksync::host::set_cpu(threads);
        let vm = Arena::new(FRAMES, threads + 1, 1).into_vm();
        // The others come online when a thread plays them.
        (0..threads).for_each(|cpu| vm.epoch.offline(cpu));
        let file = ObjectRef::new_file(&vm, None).expect("memory for a file");
        file.truncate(&vm, PAGES * PAGE);
        for index in 0..PAGES {
            let mut source = |to: &mut [u8]| {
                to.fill(1);
                to.len()
            };
            let done = file.write(&vm, index * PAGE, PAGE, &mut source);
            done.expect("memory for a page");
        }
        let common = Space::new(&vm).expect("memory for a space");
        vm.epoch.offline(threads);
        Bench { vm, common, file }
    }

    /// Ends the bench.
    fn finish(self) {
        let cpu = ksync::pin().cpu();
        self.vm.epoch.online(cpu);
        self.common.clear(&self.vm);
        self.file.release(&self.vm);
    }

    /// Nanoseconds an operation of a thread, while so many threads do it.
    fn measure(&self, case: &Case, threads: usize, time: Duration) -> f64 {
        self.vm.set_fault_around(case.around);
        let (start, stop) = (Barrier::new(threads + 1), AtomicBool::new(false));
        let sums = std::thread::scope(|scope| {
            let work = |cpu| {
                let (start, stop) = (&start, &stop);
                scope.spawn(move || self.play(case, cpu, start, stop))
            };
            let workers: Vec<_> = (0..threads).map(work).collect();
            start.wait();
            std::thread::sleep(time);
            stop.store(true, Relaxed);
            let sum = |worker: std::thread::ScopedJoinHandle<'_, _>| {
                worker.join().expect("a worker failed")
            };
            workers
                .into_iter()
                .map(sum)
                .fold((0.0, 0), |sums, (time, done): (f64, u64)| {
                    (sums.0 + time, sums.1 + done)
                })
        });
        sums.0 / sums.1 as f64
    }

    /// Plays a CPU. Returns the nanoseconds that it worked, and how many operations it did.
    fn play(&self, case: &Case, cpu: usize, start: &Barrier, stop: &AtomicBool) -> (f64, u64) {
        ksync::host::set_cpu(cpu);
        self.vm.epoch.online(cpu);
        let own = Space::new(&self.vm).expect("memory for a space");
        let worker = Worker {
            bench: self,
            space: if case.one_space {
                self.common.clone()
            } else {
                own.clone()
            },
            at: FIRST + ((cpu as u64) << 30),
        };
        let _root = worker.space.activate(&self.vm, &ksync::pin());
        (case.prepare)(&worker);
        start.wait();
        let (begin, mut done) = (Instant::now(), 0);
        while !stop.load(Relaxed) {
            done += (case.step)(&worker);
            lab::tick(&self.vm);
        }
        let time = begin.elapsed().as_nanos() as f64;
        worker.space.deactivate(&ksync::pin());
        own.clear(&self.vm);
        self.vm.epoch.offline(cpu);
        (time, done)
    }
}

/// The words of a setting, or of its default.
fn setting(name: &str, default: &str) -> Vec<String> {
    let value = std::env::var(name).unwrap_or_else(|_| default.to_owned());
    value
        .split([' ', ','])
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect()
}

fn number(word: &str) -> usize {
    word.parse()
        .unwrap_or_else(|_| panic!("{word} is no number"))
}

fn main() {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let all: Vec<String> = (0..)
        .map(|n| 1 << n)
        .take_while(|&n| n <= processors)
        .map(|n: usize| n.to_string())
        .collect();
    let threads: Vec<usize> = setting("THREADS", &all.join(" "))
        .iter()
        .map(|word| number(word))
        .collect();
    let (runs, time) = (
        number(&setting("RUNS", "5")[0]),
        number(&setting("MS", "200")[0]),
    );
    let chosen = setting("CASES", "");
    let most = threads.iter().copied().max().unwrap_or(1);
    // A thread that waits for a lock gives its processor away only where there are too few.
    ksync::host::spin(most <= processors);
    println!(
        "{}; nanoseconds an operation of a thread, with {threads:?} threads",
        vm::rmap::NAME
    );
    let bench = Bench::new(most);
    for case in CASES.iter().filter(|case| {
        chosen.is_empty() || chosen.iter().any(|word| case.name.contains(word.as_str()))
    }) {
        print!("{:<64}", case.name);
        for &threads in &threads {
            let once = |_| bench.measure(case, threads, Duration::from_millis(time as u64));
            let mut figures: Vec<f64> = (0..runs).map(once).collect();
            figures.sort_by(f64::total_cmp);
            let median = figures[runs / 2];
            let stray = (figures[runs - 1] - figures[0]) / 2.0 / median * 100.0;
            print!(" {median:>9.0} ±{stray:<3.0}%");
        }
        println!();
    }
    bench.finish();
}
