//! A program on a simulated CPU: loads and stores whose faults are served, as in the kernel.

use std::ops::Deref;
use std::sync::Arc;

use vm::object::ObjectRef;
use vm::page::{Page, State};
use vm::space::{MapArgs, RemapArgs, RemapTarget, Source, Space};
use vm::{EntryFlags, FaultError, MapProt, Pfn, Vm, VmError};

use crate::mmu::{self, Access};
use crate::{Lab, Sim};

/// A space used like a process's: it runs on a CPU, its faults are served, and it is cleared at the end.
pub struct Program {
    vm: Arc<Vm<Sim>>,
    /// Its address space.
    pub space: Arc<Space>,
}

impl Program {
    /// A program with an empty space.
    pub fn new(vm: &Arc<Vm<Sim>>) -> Program {
        Program {
            vm: vm.clone(),
            space: Space::new(vm).expect("memory for a space"),
        }
    }

    /// A program around a space.
    pub fn with(vm: &Arc<Vm<Sim>>, space: Arc<Space>) -> Program {
        Program {
            vm: vm.clone(),
            space,
        }
    }

    /// Forks the program.
    ///
    /// # Errors
    /// Those of [`Space::fork`].
    pub fn fork(&self) -> Result<Program, vm::VmError> {
        Ok(Program::with(&self.vm, self.space.fork(&self.vm)?))
    }

    /// Runs the program on the calling CPU.
    pub fn load(&self) {
        let pin = ksync::pin();
        let (later, empty) = (self.space.clone(), self.vm.pmaps.empty_root());
        let source = Box::new(move || later.pmap().root_info_or(empty));
        self.vm
            .machine
            .load(&pin, || self.space.activate(&self.vm, &pin), source);
    }

    /// Stops running it on the calling CPU.
    pub fn unload(&self) {
        let pin = ksync::pin();
        self.vm.machine.unload(&pin);
        self.space.deactivate(&pin);
    }

    /// Loads a word on the calling CPU, which runs the program.
    ///
    /// # Errors
    /// The signal that the program would get.
    pub fn read(&self, va: u64) -> Result<u64, FaultError> {
        self.retry(va, vm::Access::Read, || self.vm.machine.read(cpu(), va))
    }

    /// Stores a word.
    ///
    /// # Errors
    /// As for [`read`](Program::read).
    pub fn write(&self, va: u64, value: u64) -> Result<(), FaultError> {
        self.retry(va, vm::Access::Write, || {
            self.vm.machine.write(cpu(), va, value)
        })
    }

    /// Performs `act` on a word atomically.
    ///
    /// # Errors
    /// As for [`read`](Program::read).
    pub fn update(
        &self,
        va: u64,
        act: impl Fn(&std::sync::atomic::AtomicU64) -> u64,
    ) -> Result<u64, FaultError> {
        self.retry(va, vm::Access::Write, || {
            self.vm.machine.access(cpu(), va, Access::Write, &act)
        })
    }

    fn retry<R>(
        &self,
        va: u64,
        access: vm::Access,
        mut act: impl FnMut() -> Result<R, mmu::PageFault>,
    ) -> Result<R, FaultError> {
        loop {
            match act() {
                Ok(value) => return Ok(value),
                Err(_) => self.space.fault(&self.vm, va, access)?,
            }
        }
    }

    /// Runs `act` as the program, on the calling CPU.
    pub fn run<R>(&self, act: impl FnOnce(&Program) -> R) -> R {
        self.load();
        let result = act(self);
        self.unload();
        result
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if Arc::strong_count(&self.space) == 1 || !std::thread::panicking() {
            self.space.clear(&self.vm);
        }
    }
}

fn cpu() -> usize {
    ksync::pin().cpu()
}

/// Number of frames in use after all deferred work; `free` is the number of free frames at the start.
pub fn used_frames(vm: &Vm<Sim>, free: usize) -> usize {
    vm.epoch.drain();
    vm.drain_limbo();
    free - vm.alloc.free_pages()
}

/// A page of private memory that is at `index` of its object.
///
/// # Panics
/// There is none.
pub fn private_page(vm: &Vm<Sim>, index: u32) -> &'static Page {
    let mut all = (0..vm.pages.len() as u32).filter_map(|n| vm.pages.find(Pfn(n)));
    let found = all.find(|page| page.state() == State::Anon && page.index() == index);
    found.expect("a page of private memory")
}

/// Does all deferred work, then checks that every frame is free or accounted for; `free` is the number of free frames
/// at the start.
pub fn check_frames(vm: &Vm<Sim>, free: usize) {
    vm.epoch.drain();
    vm.drain_limbo();
    vm.epoch.drain();
    assert_eq!(vm.limbo.frames(), 0, "frames are left in limbo");
    vm.alloc.check().expect("the allocator is consistent");
    assert_eq!(vm.alloc.free_pages(), free, "frames were lost or found");
}

/// The only program of a lab, on one CPU.
pub struct Alone {
    /// The lab.
    pub lab: Lab,
    program: Program,
}

impl Deref for Alone {
    type Target = Program;

    fn deref(&self) -> &Program {
        &self.program
    }
}

impl Alone {
    /// One on a machine of so many frames.
    pub fn new(frames: usize) -> Alone {
        let lab = Lab::new(frames, 1);
        let program = Program::new(&lab.vm);
        program.load();
        Alone { lab, program }
    }

    /// Stores a word, which must succeed.
    pub fn store(&self, at: u64, value: u64) {
        assert_eq!(self.write(at, value), Ok(()));
    }

    /// Maps private memory at `at`.
    pub fn anon(&self, at: u64, len: u64, flags: EntryFlags) {
        let args = MapArgs {
            flags,
            ..MapArgs::anon(len, MapProt::all()).at(at)
        };
        assert_eq!(self.space.map(&self.lab.vm, &args), Ok(at));
    }

    /// A file of `len` bytes, mapped shared at `at`.
    pub fn file(&self, at: u64, len: u64) -> ObjectRef {
        let file = ObjectRef::new_file(&self.lab.vm, None).unwrap();
        file.truncate(&self.lab.vm, len);
        let args = MapArgs {
            source: Source::Object(&file, 0),
            flags: EntryFlags::SHARED,
            ..MapArgs::anon(len, MapProt::all()).at(at)
        };
        assert_eq!(self.space.map(&self.lab.vm, &args), Ok(at));
        file
    }

    /// mremap.
    ///
    /// # Errors
    /// Those of [`Space::remap`].
    pub fn remap(
        &self,
        (old, old_len): (u64, u64),
        new_len: u64,
        target: RemapTarget,
        keep_old: bool,
    ) -> Result<u64, VmError> {
        let args = RemapArgs {
            old,
            old_len,
            new_len,
            target,
            keep_old,
        };
        self.space.remap(&self.lab.vm, &args)
    }

    /// Ends the program, and checks that all frames are free. `file` is a mapped file to release.
    pub fn finish(self, file: Option<ObjectRef>) {
        if let Some(file) = file {
            file.release(&self.lab.vm);
        }
        self.unload();
        drop(self.program);
        self.lab.finish();
    }
}
