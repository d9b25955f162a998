//! Random operations on several spaces, against a model that is one map of words; with fault injection in between.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use proptest::prelude::*;
use vm::object::ObjectRef;
use vm::space::{Advice, MapArgs, RemapArgs, RemapTarget, Source};
use vm::{EntryFlags, FaultError, MapProt, Pfn, Vm, VmError};
use vm_host::Sim;
use vm_host::program::{Program, check_frames};

const PAGE: u64 = 4096;
const AT: u64 = 0x7000_0000;
/// Number of pages of the test's window.
const WINDOW: u64 = 24;
const FILES: usize = 2;
const FILE_PAGES: u64 = 12;
const FRAMES: usize = 3000;

#[derive(Clone, Debug)]
enum Op {
    Map {
        page: u64,
        pages: u64,
        shared: bool,
        file: Option<(usize, u64)>,
        write: bool,
    },
    Unmap {
        page: u64,
        pages: u64,
    },
    Protect {
        page: u64,
        pages: u64,
        prot: u8,
    },
    Read {
        page: u64,
    },
    Write {
        page: u64,
    },
    Fork,
    Exit,
    Switch(usize),
    DontNeed {
        page: u64,
        pages: u64,
    },
    Remap {
        page: u64,
        pages: u64,
        to: u64,
        new_pages: u64,
    },
    Truncate {
        file: usize,
        bytes: u64,
    },
    WriteFile {
        file: usize,
        page: u64,
    },
    Punch {
        file: usize,
        page: u64,
    },
    Scan,
    DropTables,
    Maintain,
    Reclaim,
}

fn op() -> impl Strategy<Value = Op> {
    let page = 0..WINDOW;
    let pages = 1..8u64;
    let file = prop::option::weighted(0.4, (0..FILES, 0..FILE_PAGES));
    prop_oneof![
        4 => (page.clone(), pages.clone(), any::<bool>(), file, any::<bool>())
            .prop_map(|(page, pages, shared, file, write)| Op::Map { page, pages, shared, file, write }),
        2 => (page.clone(), pages.clone()).prop_map(|(page, pages)| Op::Unmap { page, pages }),
        2 => (page.clone(), pages.clone(), 0..3u8).prop_map(|(page, pages, prot)| Op::Protect { page, pages, prot }),
        12 => page.clone().prop_map(|page| Op::Read { page }),
        20 => page.clone().prop_map(|page| Op::Write { page }),
        4 => Just(Op::Fork),
        3 => Just(Op::Exit),
        6 => (0..8usize).prop_map(Op::Switch),
        2 => (page.clone(), pages.clone()).prop_map(|(page, pages)| Op::DontNeed { page, pages }),
        2 => (page.clone(), pages.clone(), 0..WINDOW, 1..8u64)
            .prop_map(|(page, pages, to, new_pages)| Op::Remap { page, pages, to, new_pages }),
        1 => (0..FILES, 0..FILE_PAGES * PAGE).prop_map(|(file, bytes)| Op::Truncate { file, bytes: bytes & !7 }),
        2 => (0..FILES, 0..FILE_PAGES).prop_map(|(file, page)| Op::WriteFile { file, page }),
        1 => (0..FILES, 0..FILE_PAGES).prop_map(|(file, page)| Op::Punch { file, page }),
        2 => Just(Op::Scan),
        1 => Just(Op::DropTables),
        1 => Just(Op::Maintain),
        1 => Just(Op::Reclaim),
    ]
}

/// The contents of one page of a program.
#[derive(Clone, Debug)]
struct Cell {
    prot: u8,
    what: What,
}

#[derive(Clone, Debug)]
enum What {
    /// Private: the file behind it, if any, and its own value after the first write.
    Private {
        file: Option<(usize, u64)>,
        own: Option<u64>,
    },
    File(usize, u64),
    /// Shared memory: the number of the mapping, and the page in it.
    Memory(u64, u64),
}

struct Model {
    programs: Vec<BTreeMap<u64, Cell>>,
    /// Words of files, and sizes.
    files: Vec<(HashMap<u64, u64>, u64)>,
    memory: HashMap<(u64, u64), u64>,
    next: u64,
}

impl Model {
    fn file_word(&self, file: usize, page: u64) -> Result<u64, FaultError> {
        let (words, size) = &self.files[file];
        if page * PAGE >= *size {
            Err(FaultError::Bus)
        } else {
            Ok(words.get(&page).copied().unwrap_or(0))
        }
    }

    fn read(&self, program: usize, page: u64) -> Result<u64, FaultError> {
        let cell = self.programs[program]
            .get(&page)
            .ok_or(FaultError::NotMapped)?;
        if cell.prot == 0 {
            return Err(FaultError::Denied);
        }
        match cell.what {
            // Truncating a file cuts its private copies off.
            What::Private {
                file: Some((file, at)),
                own,
            } => self.file_word(file, at).map(|word| own.unwrap_or(word)),
            What::File(file, at) => self.file_word(file, at),
            What::Private { file: None, own } => Ok(own.unwrap_or(0)),
            What::Memory(number, at) => Ok(self.memory.get(&(number, at)).copied().unwrap_or(0)),
        }
    }

    fn write(&mut self, program: usize, page: u64, word: u64) -> Result<(), FaultError> {
        match self.programs[program].get(&page) {
            None => return Err(FaultError::NotMapped),
            Some(cell) if cell.prot < 2 => return Err(FaultError::Denied),
            Some(_) => {}
        }
        self.read(program, page)?;
        let cell = self.programs[program].get_mut(&page).expect("just seen");
        match &mut cell.what {
            What::Private { own, .. } => *own = Some(word),
            What::File(file, at) => drop(self.files[*file].0.insert(*at, word)),
            What::Memory(number, at) => drop(self.memory.insert((*number, *at), word)),
        }
        Ok(())
    }
}

fn prot(n: u8) -> MapProt {
    match n {
        0 => MapProt::empty(),
        1 => MapProt::READ,
        _ => MapProt::READ | MapProt::WRITE,
    }
}

struct World {
    vm: Arc<Vm<Sim>>,
    programs: Vec<Program>,
    files: Vec<ObjectRef>,
    model: Model,
    current: usize,
    count: u64,
}

impl World {
    fn new() -> World {
        let vm = Arc::new(Sim::new(FRAMES, 1, 1).into_vm());
        vm_host::obstruct(&vm);
        let files = (0..FILES)
            .map(|_| ObjectRef::new_file(&vm, None).unwrap())
            .collect();
        let model = Model {
            programs: vec![BTreeMap::new()],
            files: vec![(HashMap::new(), 0); FILES],
            memory: HashMap::new(),
            next: 0,
        };
        let programs = vec![Program::new(&vm)];
        programs[0].load();
        World {
            vm,
            programs,
            files,
            model,
            current: 0,
            count: 100,
        }
    }

    fn fresh(&mut self) -> u64 {
        self.count += 1;
        self.count
    }

    fn switch(&mut self, to: usize) {
        self.programs[self.current].unload();
        self.current = to % self.programs.len();
        self.programs[self.current].load();
    }

    fn map(
        &mut self,
        page: u64,
        pages: u64,
        shared: bool,
        file: Option<(usize, u64)>,
        write: bool,
    ) {
        let source = file.map_or(Source::Anon, |(file, at)| {
            Source::Object(&self.files[file], at * PAGE)
        });
        let args = MapArgs {
            flags: if shared {
                EntryFlags::SHARED
            } else {
                EntryFlags::empty()
            },
            prot: prot(1 + u8::from(write)),
            source,
            ..MapArgs::anon(pages * PAGE, MapProt::all()).at(AT + page * PAGE)
        };
        self.programs[self.current]
            .space
            .map(&self.vm, &args)
            .unwrap();
        self.model.next += 1;
        for n in 0..pages {
            let what = match (shared, file) {
                (true, Some((file, at))) => What::File(file, at + n),
                (true, None) => What::Memory(self.model.next, n),
                (false, file) => What::Private {
                    file: file.map(|(file, at)| (file, at + n)),
                    own: None,
                },
            };
            self.model.programs[self.current].insert(
                page + n,
                Cell {
                    prot: 1 + u8::from(write),
                    what,
                },
            );
        }
    }

    fn remap(&mut self, page: u64, pages: u64, to: u64, new_pages: u64) {
        let cells = &self.model.programs[self.current];
        // Growth beyond a private file's part, or of several kinds of mappings at once, has its own tests.
        let whole = (page..page + pages).all(|p| cells.contains_key(&p));
        let new_pages = new_pages.min(pages);
        let args = RemapArgs {
            old: AT + page * PAGE,
            old_len: pages * PAGE,
            new_len: new_pages * PAGE,
            target: RemapTarget::Fixed(AT + to * PAGE),
            keep_old: false,
        };
        let overlap = page < to + new_pages && to < page + pages;
        let result = self.programs[self.current].space.remap(&self.vm, &args);
        if !whole {
            assert_eq!(result, Err(VmError::NotMapped));
        } else if overlap {
            assert_eq!(result, Err(VmError::Invalid));
        } else {
            assert_eq!(result, Ok(AT + to * PAGE));
            let cells = &mut self.model.programs[self.current];
            let moved: Vec<_> = (page..page + pages)
                .map(|p| cells.remove(&p).expect("whole"))
                .collect();
            for (n, cell) in moved.into_iter().take(new_pages as usize).enumerate() {
                cells.insert(to + n as u64, cell);
            }
        }
    }

    fn discard(&mut self, page: u64, pages: u64) {
        let range = || page..page + pages;
        let cells = &mut self.model.programs[self.current];
        let whole = range().all(|p| cells.contains_key(&p));
        let result = self.programs[self.current].space.advise(
            &self.vm,
            AT + page * PAGE,
            pages * PAGE,
            Advice::DontNeed,
        );
        assert_eq!(
            result,
            if whole {
                Ok(())
            } else {
                Err(VmError::NotMapped)
            }
        );
        for p in range() {
            if let Some(Cell {
                what: What::Private { own, .. },
                ..
            }) = cells.get_mut(&p)
            {
                *own = None;
            }
        }
    }

    fn protect(&mut self, page: u64, pages: u64, bits: u8) {
        let space = &self.programs[self.current].space;
        let result = space.protect(&self.vm, AT + page * PAGE, pages * PAGE, prot(bits));
        let cells = &mut self.model.programs[self.current];
        if (page..page + pages).all(|p| cells.contains_key(&p)) {
            assert_eq!(result, Ok(()));
            (page..page + pages).for_each(|p| cells.get_mut(&p).expect("whole").prot = bits);
        } else {
            assert_eq!(result, Err(VmError::NotMapped));
        }
    }

    fn truncate(&mut self, file: usize, bytes: u64) {
        self.files[file].truncate(&self.vm, bytes);
        let (words, size) = &mut self.model.files[file];
        // The word is the first in its page.
        words.retain(|page, _| page * PAGE < bytes);
        *size = bytes;
    }

    fn write_file(&mut self, file: usize, page: u64) {
        let word = self.fresh();
        let mut copy = |bytes: &mut [u8]| {
            bytes.copy_from_slice(&word.to_le_bytes());
            8
        };
        assert_eq!(
            self.files[file].write(&self.vm, page * PAGE, 8, &mut copy),
            Ok(8)
        );
        let (words, size) = &mut self.model.files[file];
        words.insert(page, word);
        *size = (*size).max(page * PAGE + 8);
    }

    fn apply(&mut self, op: &Op) {
        let now = self.current;
        match *op {
            Op::Map {
                page,
                pages,
                shared,
                file,
                write,
            } => self.map(page, pages, shared, file, write),
            Op::Unmap { page, pages } => {
                self.programs[now]
                    .space
                    .unmap(&self.vm, AT + page * PAGE, pages * PAGE)
                    .unwrap();
                (page..page + pages).for_each(|p| {
                    self.model.programs[now].remove(&p);
                });
            }
            Op::Protect { page, pages, prot } => self.protect(page, pages, prot),
            Op::Read { page } => {
                assert_eq!(
                    self.programs[now].read(AT + page * PAGE),
                    self.model.read(now, page),
                    "page {page}"
                );
            }
            Op::Write { page } => {
                let word = self.fresh();
                let want = self.model.write(now, page, word);
                assert_eq!(
                    self.programs[now].write(AT + page * PAGE, word),
                    want,
                    "page {page}"
                );
            }
            Op::Fork if self.programs.len() < 8 => {
                let child = self.programs[now].fork().unwrap();
                self.programs.push(child);
                self.model.programs.push(self.model.programs[now].clone());
            }
            Op::Exit if self.programs.len() > 1 => {
                self.programs[now].unload();
                drop(self.programs.remove(now));
                self.model.programs.remove(now);
                self.current = now % self.programs.len();
                self.programs[self.current].load();
            }
            Op::Fork | Op::Exit => {}
            Op::Switch(to) => self.switch(to),
            Op::DontNeed { page, pages } => self.discard(page, pages),
            Op::Remap {
                page,
                pages,
                to,
                new_pages,
            } => self.remap(page, pages, to, new_pages),
            Op::Truncate { file, bytes } => self.truncate(file, bytes),
            Op::WriteFile { file, page } => self.write_file(file, page),
            Op::Punch { file, page } => {
                self.files[file].punch(&self.vm, page * PAGE, PAGE);
                self.model.files[file].0.remove(&page);
            }
            Op::Scan => (0..FRAMES as u32).for_each(|pfn| {
                let _ = self.vm.chaos_scan(Pfn(pfn));
            }),
            Op::DropTables => {
                let _ = self.programs[now].space.drop_tables(&self.vm);
            }
            Op::Maintain => {
                let _ = self.programs[now].space.maintain(&self.vm);
                self.vm.tend();
            }
            Op::Reclaim => {
                self.vm.epoch.drain();
                self.vm.drain_limbo();
            }
        }
    }

    /// Checks that every page of every program is as in the model.
    fn check(&mut self) {
        for n in 0..self.programs.len() {
            self.switch(n);
            for page in 0..WINDOW + 8 {
                let found = self.programs[n].read(AT + page * PAGE);
                assert_eq!(found, self.model.read(n, page), "program {n}, page {page}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn spaces_do_what_the_model_does(ops in prop::collection::vec(op(), 1..150)) {
        let mut world = World::new();
        let free = {
            world.vm.alloc.free_pages()
        };
        for op in &ops {
            world.apply(op);
        }
        world.check();
        world.programs[world.current].unload();
        world.programs.clear();
        for file in world.files.drain(..) {
            file.release(&world.vm);
        }
        check_frames(&world.vm, free);
    }
}
