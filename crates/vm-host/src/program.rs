//! A program on a simulated CPU: loads and stores that fault and are served, as under the kernel.

use std::sync::Arc;

use vm::space::Space;
use vm::{FaultError, Vm};

use crate::Sim;
use crate::mmu::{self, Access};

/// A space with the habits of a process: it runs on a CPU, faults are served, and it is cleared at its end.
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

    /// A copy.
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

    /// Loads a word, on the calling CPU, which runs the program.
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

/// Frames in use once everything deferred is done; `free` is what was free at the start.
pub fn used_frames(vm: &Vm<Sim>, free: usize) -> usize {
    vm.epoch.drain();
    vm.drain_limbo();
    free - vm.alloc.free_pages()
}

/// Waits for everything deferred and checks that each frame is where it belongs; `free` is what was free at the start.
pub fn check_frames(vm: &Vm<Sim>, free: usize) {
    vm.epoch.drain();
    vm.drain_limbo();
    vm.epoch.drain();
    assert_eq!(vm.limbo.frames(), 0, "frames are left in limbo");
    vm.alloc.check().expect("the allocator is consistent");
    assert_eq!(vm.alloc.free_pages(), free, "frames were lost or found");
}
