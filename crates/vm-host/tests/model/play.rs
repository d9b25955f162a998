//! Runs operations on a VM and on the reference, and compares.

mod compare;

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

use vm::object::ObjectRef;
use vm::space::Chaos;
use vm::space::{Advice, MapArgs, MapFlags, RemapArgs, RemapTarget, Source, Space, USER_LOW};
use vm::{EntryFlags, FaultError, MapProt, Pfn, Tuning, VmError};
use vm_host::heap::{learn, refuse_each, spare};
use vm_host::model::{self, Model, WORDS};
use vm_host::{Access, Lab};

use crate::blocks;
use crate::ops::{At, Op, STACKS, WINDOWS, What, prot};

const PAGE: u64 = 4096;
const CPUS: usize = 3;
const FRAMES: usize = 4096;
/// Frames where programs get superpages.
const MANY_FRAMES: usize = 24 << 10;
const FILES: usize = 3;
/// Most pages that a space may map, and where programs get superpages.
const MAX_PAGES: usize = 160;
const MANY_PAGES: usize = 3000;
/// First page numbers of the windows.
const TABLES: u64 = (128 << 9) - 16;
const ROOTS: u64 = (1 << 27) - 8;
const STACK: u64 = 1 << 34;
/// One beyond the last page that may be mapped.
const HIGH: u64 = (1 << 35) - 1;

/// The configuration of a player.
#[derive(Clone, Copy)]
pub struct Setup {
    /// Every so many allocations of a page one fails, if not 0.
    pub injector: u32,
    /// Every so many allocations that may fail one does, if not 0.
    pub heap: u32,
    /// The VM's limits.
    pub tuning: Tuning,
    /// Most spaces at a time.
    pub spaces: usize,
    /// Programs get superpages, and operations use the pages and lengths of [`blocks`].
    pub superpages: bool,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            injector: 0,
            heap: 0,
            tuning: Tuning::DEFAULT,
            spaces: 8,
            superpages: false,
        }
    }
}

/// See the module.
pub struct Player {
    setup: Setup,
    /// Number of allocations until one fails.
    blocks_left: Cell<u32>,
    lab: Lab,
    model: Model,
    spaces: Vec<Option<Arc<Space>>>,
    files: Vec<ObjectRef>,
    /// The space that each CPU runs.
    running: [Option<usize>; CPUS],
    /// Value of the next store.
    value: u64,
    turn: usize,
    injected: bool,
}

/// Whenever the VM is about to read a table, some core walks and caches one of the tests' addresses.
fn speculate_between_steps(lab: &Lab, superpages: bool) {
    let (vm, step) = (Arc::downgrade(&lab.vm), AtomicU64::new(0));
    lab.vm.machine.on_table(Some(Box::new(move |_| {
        let n = step.fetch_add(1, Relaxed);
        if let Some(vm) = vm.upgrade().filter(|_| n % 3 == 0) {
            let n = n / 3;
            let page = match n % 5 {
                _ if superpages => blocks::BLOCKS + n * 37 % blocks::PAGES,
                0 => ROOTS + n % 18,
                1 => STACK + n % 18,
                _ => TABLES + n % 34,
            };
            vm.machine.speculate(n as usize % CPUS, page * PAGE);
        }
    })));
}

/// An empty space that places mappings well below its end, out of the tests' ranges.
fn fresh(lab: &Lab) -> Arc<Space> {
    let space = Space::new(&lab.vm).unwrap();
    space.set_mmap_base((HIGH - 4096) * PAGE);
    space
}

fn is_stack(page: u64) -> bool {
    (STACK - 1024..STACK + 64).contains(&page)
}

impl Player {
    /// A machine with one empty space.
    pub fn new(setup: Setup) -> Player {
        let lab = if setup.superpages {
            Lab::with_superpages(MANY_FRAMES, CPUS, setup.tuning)
        } else {
            Lab::tuned(FRAMES, CPUS, setup.tuning)
        };
        lab.play_all();
        vm_host::obstruct(&lab.vm);
        let file = || ObjectRef::new_file(&lab.vm, None).unwrap();
        let first = learn(file);
        let files: Vec<_> = [first]
            .into_iter()
            .chain((1..FILES).map(|_| file()))
            .collect();
        // Makes a leaf of an index.
        learn(|| files[0].allocate(&lab.vm, 9 * PAGE, PAGE, false).unwrap());
        files[0].truncate(&lab.vm, 0);
        let first = fresh(&lab);
        let mut model = Model {
            spaces: vec![Some(model::Space::default())],
            ..Model::default()
        };
        model.files.resize(FILES, model::File::default());
        lab.vm.alloc.set_injector(setup.injector, 1);
        speculate_between_steps(&lab, setup.superpages);
        Player {
            setup,
            blocks_left: Cell::new(setup.heap),
            lab,
            model,
            spaces: vec![Some(first)],
            files,
            running: [None; CPUS],
            value: 1,
            turn: 0,
            injected: setup.injector != 0 || setup.heap != 0,
        }
    }

    /// Runs one operation and checks everything that is visible at once.
    pub fn play(&mut self, op: &Op) {
        self.turn += 1;
        ksync::host::set_cpu(self.turn % CPUS);
        self.act(op);
        self.check_caches();
    }

    /// Compares everything, ends everything, and checks all frames. Returns how many leaves of 2 MiB were made.
    pub fn finish(&mut self) -> u64 {
        self.compare();
        for space in 0..self.spaces.len() {
            self.exit(space);
        }
        self.lab.vm.alloc.set_injector(0, 0);
        for file in self.files.drain(..) {
            file.release(&self.lab.vm);
        }
        self.lab.finish();
        let counts = self.lab.vm.counts();
        assert_eq!(counts.leaves(), 0, "every leaf has gone");
        counts.promotions
    }

    fn act(&mut self, op: &Op) {
        match *op {
            Op::Map {
                space,
                at,
                len,
                what,
                prot,
                strict,
                place,
                populate,
            } => {
                self.map(space, at, len, what, prot, strict, place, populate);
            }
            Op::Stack { space, at, len } => self.map_stack(space, at, len),
            Op::Unmap { space, at, len } => {
                let (s, at) = self.place(space, at);
                let len = self.pages(at, len);
                self.model.space(s).unmap(at, len);
                assert_eq!(
                    self.space(s).unmap(&self.lab.vm, at * PAGE, len * PAGE),
                    Ok(())
                );
            }
            Op::Protect {
                space,
                at,
                len,
                prot: bits,
            } => {
                let (s, at) = self.place(space, at);
                let len = self.pages(at, len);
                let expected = self.model.space(s).protect(at, len, prot(bits));
                let got = self
                    .space(s)
                    .protect(&self.lab.vm, at * PAGE, len * PAGE, prot(bits));
                assert_eq!(got, expected);
            }
            Op::Remap {
                space,
                at,
                old,
                new,
                target,
                to,
                keep,
            } => self.remap(space, at, old, new, target, to, keep),
            Op::Advise {
                space,
                at,
                len,
                advice,
            } => self.advise(space, at, len, advice),
            Op::Lock { space, at, len, on } => self.set_locked(space, at, len, on),
            Op::Fork { space } => self.fork(space),
            Op::Exit { space } => {
                let s = self.pick(space);
                self.exit(s);
            }
            Op::Read {
                space,
                cpu,
                at,
                word,
            } => self.read(space, cpu, at, word),
            Op::Write {
                space,
                cpu,
                at,
                word,
            } => self.write(space, cpu, at, word),
            Op::Fetch { space, cpu, at } => {
                let (s, at) = self.place(space, at);
                let expected = self.model.access(s, at, Access::Fetch);
                assert_eq!(
                    self.touch(s, usize::from(cpu) % CPUS, at * PAGE, Access::Fetch, None)
                        .map(drop),
                    expected
                );
            }
            Op::Peek { space, at, word } => self.peek(space, at, word.into()),
            Op::Poke { space, at, word } => self.poke(space, at, word.into()),
            _ => self.act_beside(op),
        }
    }

    /// Operations on files, and fault injection.
    fn act_beside(&mut self, op: &Op) {
        match *op {
            Op::ReadFile { file, page, word } => {
                let f = usize::from(file) % FILES;
                let expected = self.model.files[f].read(page.into(), word.into());
                assert_eq!(self.read_file(f, page.into(), word.into()), expected);
            }
            Op::WriteFile { file, page, word } => {
                self.write_file(usize::from(file) % FILES, page.into(), word.into())
            }
            Op::Truncate { file, eighths } => {
                let f = usize::from(file) % FILES;
                let size = u64::from(eighths) * PAGE / 8;
                self.model.files[f].truncate(size);
                self.files[f].truncate(&self.lab.vm, size);
                assert_eq!(self.files[f].size(), size);
            }
            Op::Punch { file, from, len } => {
                let f = usize::from(file) % FILES;
                let (from, len) = (u64::from(from) * PAGE / 8, u64::from(len) * PAGE / 8);
                self.model.files[f].punch(from, from + len);
                self.files[f].punch(&self.lab.vm, from, len);
            }
            Op::Scan { nth } => {
                let pfn = self.lab.frame(nth.into());
                if let Chaos::Removed(_) = self.lab.vm.chaos_scan(pfn) {
                    assert!(
                        !self.mapped_frames().contains(&pfn),
                        "a scan missed a mapping of {pfn:?}"
                    );
                }
            }
            Op::ScanAll => {
                for n in 0..self.lab.vm.alloc.total_pages() {
                    self.lab.vm.chaos_scan(self.lab.frame(n));
                }
                assert_eq!(self.mapped_frames(), [], "scans missed mappings");
            }
            Op::Speculate { cpu, at } => {
                let cpu = usize::from(cpu) % CPUS;
                if let Some(s) = self.running[cpu] {
                    let at = self.page_of(s, at);
                    self.lab.vm.machine.speculate(cpu, at * PAGE);
                }
            }
            Op::DropTables { space } => {
                let s = self.pick(space);
                self.space(s).drop_tables(&self.lab.vm);
            }
            Op::Maintain { space } => {
                let s = self.pick(space);
                self.space(s).maintain(&self.lab.vm);
                self.lab.vm.tend();
            }
            Op::Tick => {
                for cpu in 0..CPUS {
                    ksync::host::set_cpu(cpu);
                    self.lab.tick();
                }
            }
            Op::Compare => self.compare(),
            _ => unreachable!("played by `act`"),
        }
    }

    /// The frames that the spaces map now.
    fn mapped_frames(&self) -> Vec<Pfn> {
        let pin = ksync::pin();
        let mut frames = Vec::new();
        for (space, model) in self.spaces.iter().zip(&self.model.spaces) {
            let (Some(space), Some(model)) = (space, model) else {
                continue;
            };
            let ptes = model
                .pages
                .keys()
                .map(|at| space.pmap().lookup(&self.lab.vm, &pin, at * PAGE));
            frames.extend(ptes.flatten().map(|pte| pte.pfn()));
            assert!(
                space.pmap().resident(&self.lab.vm) <= model.pages.len(),
                "more is resident than mapped"
            );
        }
        frames
    }

    fn space(&self, space: usize) -> Arc<Space> {
        self.spaces[space].clone().expect("a living space")
    }

    fn pick(&mut self, space: u8) -> usize {
        let living: Vec<usize> = (0..self.spaces.len())
            .filter(|&s| self.spaces[s].is_some())
            .collect();
        if living.is_empty() {
            self.spaces.push(Some(fresh(&self.lab)));
            self.model.spaces.push(Some(model::Space::default()));
            return self.spaces.len() - 1;
        }
        living[usize::from(space) % living.len()]
    }

    fn most_pages(&self) -> usize {
        if self.setup.superpages {
            MANY_PAGES
        } else {
            MAX_PAGES
        }
    }

    /// The number of pages of an operation that begins at a page.
    fn pages(&self, at: u64, len: u8) -> u64 {
        if self.setup.superpages {
            blocks::pages_of(at, len)
        } else {
            len.into()
        }
    }

    fn page_of(&mut self, space: usize, at: At) -> u64 {
        let superpages = self.setup.superpages;
        let pages = &self.model.space(space).pages;
        match at {
            _ if superpages => blocks::page_of(at),
            0..32 => TABLES + u64::from(at),
            32..STACKS => ROOTS + u64::from(at - 32),
            STACKS..WINDOWS => STACK + u64::from(at - STACKS),
            _ if pages.is_empty() => TABLES,
            _ => *pages
                .keys()
                .nth(usize::from(at - WINDOWS) % pages.len())
                .unwrap(),
        }
    }

    fn place(&mut self, space: u8, at: At) -> (usize, u64) {
        let s = self.pick(space);
        (s, self.page_of(s, at))
    }

    #[expect(clippy::too_many_arguments, reason = "the operation's fields")]
    fn map(
        &mut self,
        space: u8,
        at: At,
        len: u8,
        what: What,
        bits: u8,
        strict: bool,
        place: u8,
        populate: bool,
    ) {
        let (s, at) = self.place(space, at);
        let len = self.pages(at, len);
        if self.model.space(s).pages.len() > self.most_pages() {
            return;
        }
        let (fixed, noreplace) = (place < 4 && !is_stack(at), place == 4 && !is_stack(at));
        let (shared, file) = match what {
            What::Private => (false, None),
            What::Shared => (true, None),
            What::PrivateFile(file, page) => {
                (false, Some((usize::from(file) % FILES, u64::from(page))))
            }
            What::SharedFile(file, page) => {
                (true, Some((usize::from(file) % FILES, u64::from(page))))
            }
        };
        let maxprot = if strict { prot(bits) } else { MapProt::all() };
        let object = file.map(|(file, page)| (self.files[file].clone(), page * PAGE));
        let args = MapArgs {
            addr: if place < 6 && !is_stack(at) {
                at * PAGE
            } else {
                0
            },
            len: len * PAGE - u64::from(place) * 100,
            prot: prot(bits),
            maxprot,
            flags: if shared {
                EntryFlags::SHARED
            } else {
                EntryFlags::empty()
            },
            // If memory is short, an unpredictable part is populated.
            place: MapFlags {
                fixed,
                noreplace,
                populate: populate && !self.injected,
                on_fault: false,
                low: false,
            },
            source: object.as_ref().map_or(Source::Anon, |(object, offset)| {
                Source::Object(object, *offset)
            }),
        };
        let map = |player: &Player| player.space(s).map(&player.lab.vm, &args);
        let got = self.patiently(map, VmError::NoMemory);
        if noreplace && !self.model.space(s).is_free(at, len) {
            assert_eq!(got, Err(VmError::Exists));
            return;
        }
        let put = got.unwrap() / PAGE;
        let wished = (fixed || noreplace || (place == 5 && self.model.space(s).is_free(at, len)))
            && !is_stack(at);
        assert!(put == at || !wished, "mapped somewhere else");
        assert!(
            fixed || self.model.space(s).is_free(put, len),
            "mapped over something"
        );
        let source = match (file, shared) {
            (Some((file, index)), _) => model::Source::File { file, index },
            (None, true) => model::Source::File {
                file: self.model.new_shared(len),
                index: 0,
            },
            (None, false) => model::Source::Zero,
        };
        self.model.space(s).map(put, len, |n| model::Page {
            prot: prot(bits),
            maxprot,
            shared,
            named: file.is_some(),
            locked: false,
            dontfork: false,
            wipe: false,
            grows: false,
            source: match source {
                model::Source::File { file, index } => model::Source::File {
                    file,
                    index: index + n,
                },
                zero => zero,
            },
            own: None,
        });
        drop(object);
        if populate && !self.injected {
            self.model.populate(s, put, len);
        }
    }

    fn map_stack(&mut self, space: u8, at: At, len: u8) {
        if self.setup.superpages {
            return;
        }
        let (s, at) = self.place(space, at);
        let mut args = MapArgs::anon(u64::from(len) * PAGE, prot(3));
        args.addr = at * PAGE;
        args.place.fixed = true;
        args.flags = EntryFlags::GROWSDOWN;
        assert_eq!(self.space(s).map(&self.lab.vm, &args), Ok(at * PAGE));
        self.model.space(s).map(at, len.into(), |_| model::Page {
            prot: prot(3),
            maxprot: MapProt::all(),
            shared: false,
            named: false,
            locked: false,
            dontfork: false,
            wipe: false,
            grows: true,
            source: model::Source::Zero,
            own: None,
        });
    }

    #[expect(clippy::too_many_arguments, reason = "the operation's fields")]
    fn remap(&mut self, space: u8, at: At, old: u8, new: u8, target: u8, to: At, keep: bool) {
        let (s, at) = self.place(space, at);
        let to = self.page_of(s, to);
        let (old, new) = (self.pages(at, old), self.pages(to, new));
        let crosses = |start: u64, len: u64| (start..=start + len).any(is_stack);
        if crosses(at, old)
            || crosses(to, new)
            || self.model.space(s).pages.len() > self.most_pages()
        {
            return;
        }
        let target = match target {
            0 => RemapTarget::Stay,
            1 => RemapTarget::Fixed(to * PAGE),
            _ => RemapTarget::MayMove,
        };
        if old == 0 && matches!(target, RemapTarget::Fixed(_)) && (to..to + new).contains(&at) {
            return;
        }
        let args = RemapArgs {
            old: at * PAGE,
            old_len: old * PAGE,
            new_len: new * PAGE,
            target,
            keep_old: keep,
        };
        let expected = self.model.space(s).may_remap(&args, USER_LOW / PAGE, HIGH);
        let got = self.space(s).remap(&self.lab.vm, &args);
        if let Err(why) = expected {
            assert_eq!(got, Err(why), "{args:x?}");
            return;
        }
        let put = got.unwrap_or_else(|why| panic!("{why:?}: {args:x?}")) / PAGE;
        let model = self.model.space(s);
        if let RemapTarget::Fixed(_) = target {
            assert_eq!(put, to);
            model.unmap(to, new);
        }
        if old == 0 {
            assert!(model.is_free(put, new));
            model.duplicate(at, put, new);
        } else if put != at {
            assert!(model.is_free(put, new), "moved over something");
            model.relocate(at, old, put, new, keep);
        } else if new < old {
            model.unmap(at + new, old - new);
        } else {
            model.extend(at + old, new - old);
        }
    }

    fn advise(&mut self, space: u8, at: At, len: u8, advice: Advice) {
        let (s, at) = self.place(space, at);
        let len = self.pages(at, len);
        let mut range = self.model.space(s).pages.range(at..at + len);
        if advice == Advice::WipeOnFork && range.any(|(_, page)| page.shared || page.named) {
            // The caller of the VM refuses this.
            return;
        }
        let run = |player: &Player| {
            player
                .space(s)
                .advise(&player.lab.vm, at * PAGE, len * PAGE, advice)
        };
        if !matches!(advice, Advice::PopulateRead | Advice::PopulateWrite) {
            let expected = self.model.advise(s, at, len, advice);
            assert_eq!(run(self), expected, "{advice:?}");
            return;
        }
        let got = self.patiently(|player| run(player), VmError::NoMemory);
        let access = if advice == Advice::PopulateRead {
            Access::Read
        } else {
            Access::Write
        };
        let expected = if self.model.space(s).covers(at, len) {
            (at..at + len)
                .try_for_each(|n| self.model.access(s, n, access))
                .map_err(|why| match why {
                    FaultError::Bus => VmError::Denied,
                    _ => VmError::Invalid,
                })
        } else {
            Err(VmError::NotMapped)
        };
        assert_eq!(got, expected, "{advice:?}");
    }

    fn set_locked(&mut self, space: u8, at: At, len: u8, on: bool) {
        let (s, at) = self.place(space, at);
        let len = self.pages(at, len);
        let lock = |player: &Player| {
            player
                .space(s)
                .set_locked(&player.lab.vm, at * PAGE, len * PAGE, on)
        };
        let got = self.patiently(lock, VmError::NoMemory);
        if !self.model.space(s).covers(at, len) {
            assert_eq!(got, Err(VmError::NotMapped));
            return;
        }
        assert_eq!(got, Ok(()));
        self.model
            .space(s)
            .pages
            .range_mut(at..at + len)
            .for_each(|(_, page)| page.locked = on);
        if on {
            self.model.populate(s, at, len);
        }
    }

    fn fork(&mut self, space: u8) {
        let s = self.pick(space);
        if self.spaces.iter().flatten().count() >= self.setup.spaces {
            return;
        }
        let parent = self.space(s);
        let vm = &self.lab.vm;
        let fork = || spare(|| drop(Space::new(vm)), || parent.fork(vm));
        let mut forks = (0..100).map(|_| self.short(fork));
        let child = forks.find_map(|fork| match fork {
            Err(VmError::NoMemory) if self.injected => None,
            fork => Some(fork.unwrap()),
        });
        let child = child.expect("memory in the end");
        let Tuning {
            copy_depth,
            hard_depth,
            ..
        } = self.setup.tuning;
        child.for_each_entry(0, &mut |entry| {
            let most = if self.injected {
                hard_depth
            } else {
                copy_depth
            };
            assert!(entry.depth <= most, "{} layers", entry.depth);
            true
        });
        let copy = self.model.space(s).fork();
        self.model.spaces.push(Some(copy));
        self.spaces.push(Some(child));
    }

    fn exit(&mut self, space: usize) {
        let Some(real) = self.spaces[space].take() else {
            return;
        };
        self.model.spaces[space] = None;
        // Half of them are still loaded on some CPU, as by an idle one.
        if self.turn.is_multiple_of(2) {
            self.leave(space, &real);
        }
        real.clear(&self.lab.vm);
        self.leave(space, &real);
    }

    /// CPUs that switch keep stale translations from now on.
    pub fn be_credulous(&self) {
        self.lab.vm.machine.be_credulous();
    }

    fn leave(&mut self, space: usize, real: &Space) {
        for cpu in 0..CPUS {
            if self.running[cpu] == Some(space) {
                ksync::host::set_cpu(cpu);
                self.lab.stop(real);
                self.running[cpu] = None;
            }
        }
    }

    fn switch(&mut self, cpu: usize, space: usize) {
        if self.running[cpu] == Some(space) {
            return;
        }
        ksync::host::set_cpu(cpu);
        if let Some(old) = self.running[cpu].take() {
            let old = self.space(old);
            self.lab.stop(&old);
        }
        self.lab.run(&self.space(space));
        self.running[cpu] = Some(space);
    }

    /// Runs `act` with the configured heap failures.
    fn short<R>(&self, act: impl FnOnce() -> R) -> R {
        refuse_each(self.setup.heap, &self.blocks_left, act)
    }

    /// Repeats an operation that failed for lack of memory until it succeeds, if memory is not really short.
    fn patiently<R: PartialEq, E: PartialEq>(
        &self,
        act: impl Fn(&Player) -> Result<R, E>,
        no_memory: E,
    ) -> Result<R, E> {
        for _ in 0..1000 {
            let got = self.short(|| act(self));
            match &got {
                Err(why) if *why == no_memory && self.injected => {}
                _ => return got,
            }
        }
        panic!("no memory, again and again");
    }

    fn touch(
        &mut self,
        s: usize,
        cpu: usize,
        va: u64,
        access: Access,
        store: Option<u64>,
    ) -> Result<u64, FaultError> {
        self.switch(cpu, s);
        ksync::host::set_cpu(cpu);
        let act = |word: &std::sync::atomic::AtomicU64| {
            if let Some(value) = store {
                word.store(value, SeqCst);
            }
            word.load(SeqCst)
        };
        let space = self.space(s);
        self.patiently(
            |player| player.lab.touch(&space, cpu, va, access, act),
            FaultError::NoMemory,
        )
    }

    fn read(&mut self, space: u8, cpu: u8, at: At, word: u8) {
        let (s, at) = self.place(space, at);
        let word = usize::from(word);
        let expected = self
            .model
            .access(s, at, Access::Read)
            .map(|()| self.model.load(s, at, word));
        let got = self.touch(
            s,
            usize::from(cpu) % CPUS,
            at * PAGE + WORDS[word],
            Access::Read,
            None,
        );
        assert_eq!(got, expected, "space {s} reads {:#x}", at * PAGE);
    }

    fn write(&mut self, space: u8, cpu: u8, at: At, word: u8) {
        let (s, at) = self.place(space, at);
        let word = usize::from(word);
        self.value += 1;
        let expected = self.model.access(s, at, Access::Write).map(|()| self.value);
        if expected.is_ok() {
            self.model.store(s, at, word, self.value);
        }
        let value = Some(self.value);
        let got = self.touch(
            s,
            usize::from(cpu) % CPUS,
            at * PAGE + WORDS[word],
            Access::Write,
            value,
        );
        assert_eq!(got, expected, "space {s} writes {:#x}", at * PAGE);
    }

    fn peek(&mut self, space: u8, at: At, word: usize) {
        let (s, at) = self.place(space, at);
        let expected = self
            .model
            .access(s, at, Access::Read)
            .map(|()| self.model.load(s, at, word));
        let space = self.space(s);
        let read = |player: &Player| {
            let mut bytes = [0; 8];
            let done = space.read_at(&player.lab.vm, at * PAGE + WORDS[word], &mut bytes)?;
            assert_eq!(done, 8);
            Ok(u64::from_le_bytes(bytes))
        };
        assert_eq!(self.patiently(read, FaultError::NoMemory), expected);
    }

    fn poke(&mut self, space: u8, at: At, word: usize) {
        let (s, at) = self.place(space, at);
        self.value += 1;
        let bytes = self.value.to_le_bytes();
        let expected = self.model.access(s, at, Access::Write);
        if expected.is_ok() {
            self.model.store(s, at, word, self.value);
        }
        let space = self.space(s);
        let write = |player: &Player| {
            space
                .write_at(&player.lab.vm, at * PAGE + WORDS[word], &bytes)
                .map(drop)
        };
        assert_eq!(self.patiently(write, FaultError::NoMemory), expected);
    }

    fn read_file(&self, file: usize, page: u64, word: usize) -> Option<u64> {
        let mut bytes = Vec::new();
        self.files[file].read(&self.lab.vm, page * PAGE + WORDS[word], &mut |piece| {
            let take = piece.len().min(8 - bytes.len());
            bytes.extend_from_slice(&piece[..take]);
            take
        });
        bytes.try_into().ok().map(u64::from_le_bytes)
    }

    fn write_file(&mut self, file: usize, page: u64, word: usize) {
        self.value += 1;
        let bytes = self.value.to_le_bytes();
        let write = |player: &Player| {
            player.files[file].write(&player.lab.vm, page * PAGE + WORDS[word], 8, &mut |piece| {
                piece.copy_from_slice(&bytes[..piece.len()]);
                piece.len()
            })
        };
        assert_eq!(self.patiently(write, vm::NoMemory), Ok(8));
        self.model.files[file].write(page, word, self.value);
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // After a failed run the state cannot be dropped.
            std::mem::forget(self.lab.vm.clone());
            std::mem::forget(std::mem::take(&mut self.spaces));
            std::mem::forget(std::mem::take(&mut self.files));
        }
    }
}
