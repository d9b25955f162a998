//! Programs that share private memory, and how much of it there is.

use std::sync::Arc;

use vm::page::State;
use vm::space::MapArgs;
use vm::{MapProt, Tuning, Vm};
use vm_host::Sim;
use vm_host::program::{Program, check_frames};

pub const PAGE: u64 = 4096;
/// Where programs have their memory.
pub const AT: u64 = 0x7000_0000;

/// A machine, of which a test leaves no frame in use.
pub struct Lab {
    pub vm: Arc<Vm<Sim>>,
    free: usize,
}

impl Lab {
    pub fn new() -> Lab {
        Lab::tuned(Tuning::DEFAULT)
    }

    pub fn tuned(tuning: Tuning) -> Lab {
        let mut vm = Sim::new(8192, 2, 1).into_vm();
        vm.tune(tuning);
        let vm = Arc::new(vm);
        let free = vm.alloc.free_pages();
        Lab { vm, free }
    }

    /// A program with so many pages at [`AT`], each containing its number.
    pub fn program_of(&self, pages: u64) -> Program {
        let program = Program::new(&self.vm);
        let args = MapArgs::anon(pages * PAGE, MapProt::all()).at(AT);
        program.space.map(&self.vm, &args).unwrap();
        write(&program, 0..pages, 0);
        program
    }

    pub fn unmap(&self, p: &Program, pages: std::ops::Range<u64>) {
        let len = (pages.end - pages.start) * PAGE;
        p.space
            .unmap(&self.vm, AT + pages.start * PAGE, len)
            .unwrap();
    }

    /// Number of pages of private memory after two runs of the background work.
    pub fn pages(&self) -> u64 {
        self.vm.tend();
        self.vm.tend();
        self.pages_now()
    }

    /// Number of pages of private memory.
    pub fn pages_now(&self) -> u64 {
        self.vm.epoch.drain();
        self.vm.drain_limbo();
        let mut pages = 0;
        self.vm
            .alloc
            .check_and_visit(&mut |_, page| {
                pages += u64::from(page.state() == State::Anon);
            })
            .expect("consistent lists");
        pages
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            check_frames(&self.vm, self.free);
        }
    }
}

/// Writes to each of the pages its number plus `plus`.
pub fn write(p: &Program, pages: std::ops::Range<u64>, plus: u64) {
    p.run(|p| pages.for_each(|n| p.write(AT + n * PAGE, n + plus).unwrap()));
}
