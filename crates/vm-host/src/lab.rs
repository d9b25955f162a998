//! A VM on simulated CPUs for tests: programs that run in spaces, and a check of all frames at the end.

use std::sync::Arc;

use vm::{FaultError, Machine, Pfn, SharedSuperpages, Space, Superpages, Tuning, Vm};

use crate::{Access, Sim, listed};

/// Faults of one access after which it counts as stuck. Fault injection and other threads of the program cause some.
const PATIENCE: usize = 100_000;

fn machine(frames: usize, cpus: usize) -> Vm<Sim> {
    Sim::new(frames, cpus, if cpus > 1 { 2 } else { 1 }).into_vm()
}

/// See the module.
pub struct Lab {
    /// The VM.
    pub vm: Arc<Vm<Sim>>,
    cpus: usize,
    /// Number of frames in use before the first test.
    allocated: usize,
}

impl Lab {
    /// A machine of `frames` frames and `cpus` CPUs. This thread plays all of them until others [`join`](Lab::join).
    pub fn new(frames: usize, cpus: usize) -> Lab {
        Lab::tuned(frames, cpus, Tuning::DEFAULT)
    }

    /// As `new`, with other limits.
    pub fn tuned(frames: usize, cpus: usize, tuning: Tuning) -> Lab {
        Lab::of(machine(frames, cpus), cpus, tuning)
    }

    /// As `tuned`, where all programs get superpages.
    pub fn with_superpages(frames: usize, cpus: usize, tuning: Tuning) -> Lab {
        let mut vm = machine(frames, cpus);
        vm.alloc.allow_reservations();
        vm.set_superpages(Superpages::Always);
        vm.set_shmem_superpages(SharedSuperpages::Always);
        Lab::of(vm, cpus, tuning)
    }

    fn of(mut vm: Vm<Sim>, cpus: usize, tuning: Tuning) -> Lab {
        vm.tune(tuning);
        let vm = Arc::new(vm);
        vm.machine.be_strict();
        let allocated = vm.alloc.check().expect("a consistent start").allocated;
        Lab {
            vm,
            cpus,
            allocated,
        }
    }

    /// Number of CPUs.
    pub fn cpus(&self) -> usize {
        self.cpus
    }

    /// This thread plays all CPUs in turn: brings them online.
    pub fn play_all(&self) {
        (1..self.cpus).for_each(|cpu| self.vm.epoch.online(cpu));
    }

    /// Makes this thread play `cpu` while `body` runs.
    pub fn join<R>(&self, cpu: usize, body: impl FnOnce() -> R) -> R {
        ksync::host::set_cpu(cpu);
        self.vm.epoch.online(cpu);
        let result = body();
        self.vm.epoch.offline(cpu);
        result
    }

    /// The work of a clock tick on a CPU.
    pub fn tick(&self) {
        tick(&self.vm);
    }

    /// Makes the current CPU run `space`.
    pub fn run(&self, space: &Arc<Space>) {
        let pin = ksync::pin();
        let (later, empty) = (space.clone(), self.vm.pmaps.empty_root());
        let source = Box::new(move || later.pmap().root_info_or(empty));
        self.vm
            .machine
            .load(&pin, || space.activate(&self.vm, &pin), source);
    }

    /// Makes the current CPU, which runs `space`, run no space.
    pub fn stop(&self, space: &Space) {
        let pin = ksync::pin();
        self.vm.machine.unload(&pin);
        space.deactivate(&pin);
    }

    /// Accesses the word at `va` like the program on `cpu`, which runs `space`: page faults are served.
    ///
    /// # Errors
    /// The signal that the program would get, or no memory.
    pub fn touch<R>(
        &self,
        space: &Space,
        cpu: usize,
        va: u64,
        access: Access,
        mut act: impl FnMut(&std::sync::atomic::AtomicU64) -> R,
    ) -> Result<R, FaultError> {
        for _ in 0..PATIENCE {
            if let Ok(result) = self.vm.machine.access(cpu, va, access, &mut act) {
                return Ok(result);
            }
            space.fault(&self.vm, va, kind(access))?;
            // The CPU that is about to remove a stale root or entry of this one needs a turn.
            ksync::relax();
        }
        panic!("CPU {cpu} faults at {va:#x} for {access:?} for ever");
    }

    /// A frame of the machine, for a number of any size.
    pub fn frame(&self, n: usize) -> Pfn {
        let first = crate::arena::FIRST;
        first.add((n % (self.vm.pages.len() - first.index())) as u32)
    }

    /// Checks that everything was freed. To be called when all spaces are cleared and all objects released, and only
    /// this thread is left.
    ///
    /// # Panics
    /// If a frame is lost or free twice, or something is retired for ever.
    pub fn finish(&self) {
        ksync::host::set_cpu(0);
        self.vm.epoch.online(0);
        (1..self.cpus).for_each(|cpu| self.vm.epoch.offline(cpu));
        self.vm.epoch.drain();
        self.vm.drain_limbo();
        self.vm.epoch.drain();
        assert_eq!(self.vm.epoch.pending(), 0, "retired objects wait for ever");
        assert_eq!(self.vm.limbo.frames(), 0, "frames wait for ever");
        listed::check(&self.vm, std::iter::empty());
        let census = self.vm.alloc.check().expect("consistent free lists");
        assert_eq!(
            census.allocated, self.allocated,
            "frames were lost, or freed twice"
        );
    }
}

/// The work of a clock tick on a CPU.
pub fn tick<M: Machine>(vm: &Vm<M>) {
    vm.epoch.quiescent(&mut ksync::pin());
    vm.epoch.reclaim(&ksync::pin());
    vm.poll_limbo(&ksync::pin());
    vm.alloc.poll(&ksync::pin());
}

/// The VM's type for an access.
pub fn kind(access: Access) -> vm::Access {
    match access {
        Access::Read => vm::Access::Read,
        Access::Write => vm::Access::Write,
        Access::Fetch => vm::Access::Exec,
    }
}
