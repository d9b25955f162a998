//! Memory management of the kernel: where the VM meets memory, processes and programs.
//!
//! The VM itself is the crate `vm`; this module gives it a machine, hands it the memory that boot
//! found, and turns its answers into what processes see: signals, new programs, the choice of whom
//! to kill when memory is out.

mod background;
pub mod chaos;
mod daemon;
pub mod exec;
mod fault;
pub mod heap;
mod info;
mod init;
mod layout;
pub mod leak;
mod oom;
mod sleepers;
mod space;

use ksync::{Epoch, Once};
use vm::Slab;

pub use self::daemon::{fail_allocations, poll, poll_more, start_daemons};
pub use self::fault::{fault_in, page_fault};
pub use self::info::memory;
pub use self::init::{Initrd, init, initrd, machine_frames, release_initrd};
pub use self::layout::{no_aslr, shakes};
pub use self::oom::{
    admit_change, admit_process, is_condemned, last_resort, repay, score as oom_score,
};
pub use self::space::{
    FutexKey, FutexWord, activate, clear, fork, futex_word, max_rss_kib, write_at,
};
pub use hal::machine::KernelMachine;
pub use vm::Space;

/// The virtual memory system of this machine.
pub type Vm = vm::Vm<KernelMachine>;

/// Set once by [`init`], before anything allocates beyond the boot run.
static VM: Once<&'static Vm> = Once::new();
static SLAB: Once<Slab> = Once::new();

/// The virtual memory system.
///
/// # Panics
/// Before [`init`].
#[inline]
pub fn vm() -> &'static Vm {
    VM.get().expect("the VM is set up first")
}

/// The kernel's heap.
///
/// # Panics
/// Before [`init`].
#[inline]
pub fn slab() -> &'static Slab {
    SLAB.get().expect("the heap is set up first")
}

/// Where lock-free readers of the whole kernel are waited for.
#[inline]
pub fn epoch() -> &'static Epoch {
    &vm().epoch
}

/// Memory is low.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoMemory;

/// Whether the kernel may make another long-lived object for a program.
///
/// Small objects are then allocated without a check, from what stays in reserve.
///
/// # Errors
/// [`NoMemory`] if memory is low, or the failure injector says so.
#[inline]
pub fn admit() -> Result<(), NoMemory> {
    let admitted = vm().alloc.admits(&ksync::pin());
    admitted.then_some(()).ok_or(NoMemory)
}
