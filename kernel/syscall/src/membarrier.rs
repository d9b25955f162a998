//! membarrier(2): full fences on the CPUs that run other threads.
//!
//! A fence on another CPU is an interrupt: its return to the program is serialising, too, as is the entry into another address space. Those
//! on the CPUs of other users' programs are shared by all callers and bounded in number, so that no program keeps these busy.

use core::sync::atomic::{Ordering, fence};

use abi::raw::general as nr;
use hal::ipi;
use proc::process::flag;
use proc::{UserThreadExt, active_space};
use task::current::current;
use task::pace::Pace;

use super::errno::Errno;
use crate::call::{Args, Handler};

/// The call of this file. It returns by way of the full frame, because that return is serialising.
pub const FULL_FRAME: &[(u32, Handler)] = &[(nr::__NR_membarrier, membarrier)];

const QUERY: u32 = 0;
const GLOBAL: u32 = 1;
const GLOBAL_EXPEDITED: u32 = 2;
const REGISTER_GLOBAL_EXPEDITED: u32 = 4;
const PRIVATE_EXPEDITED: u32 = 8;
const REGISTER_PRIVATE_EXPEDITED: u32 = 16;
const PRIVATE_EXPEDITED_SYNC_CORE: u32 = 32;
const REGISTER_PRIVATE_EXPEDITED_SYNC_CORE: u32 = 64;
/// All commands. Those that restart sequences of rseq(2) are absent.
const ALL: u32 = 127;

/// membarrier(2). EPERM for a command that the process has not announced.
fn membarrier(a: &mut Args) -> Result<u64, Errno> {
    if a.uint(1) != 0 {
        return Err(Errno::EINVAL);
    }
    let me = current();
    let p = me.process();
    let own = |announced| {
        if !p.flag(announced) {
            return Err(Errno::EPERM);
        }
        fence_on(active_space::cpus_in(p));
        Ok(0)
    };
    match a.uint(0) {
        QUERY => Ok(ALL.into()),
        // No program needs to announce that it wants these: they reach every CPU.
        GLOBAL => everywhere(GLOBAL_PAUSE),
        GLOBAL_EXPEDITED => everywhere(EXPEDITED_PAUSE),
        REGISTER_GLOBAL_EXPEDITED => Ok(0),
        PRIVATE_EXPEDITED => own(flag::BARRIERS),
        REGISTER_PRIVATE_EXPEDITED => {
            p.set_switch(flag::BARRIERS, true);
            Ok(0)
        }
        PRIVATE_EXPEDITED_SYNC_CORE => own(flag::CODE_BARRIERS),
        REGISTER_PRIVATE_EXPEDITED_SYNC_CORE => {
            p.set_switch(flag::CODE_BARRIERS, true);
            Ok(0)
        }
        _ => Err(Errno::EINVAL),
    }
}

/// Nanoseconds between two rounds of fences on all CPUs, at least.
const GLOBAL_PAUSE: u64 = 1_000_000;
const EXPEDITED_PAUSE: u64 = 50_000;

static ROUNDS: Pace = Pace::new();

/// Fences on all CPUs, after the caller's and before this returns. May sleep for `pause` nanoseconds, or for others' rounds.
fn everywhere(pause: u64) -> Result<u64, Errno> {
    fence(Ordering::SeqCst);
    ROUNDS.share(pause, || fence_on(0..hal::cpu::count()));
    fence(Ordering::SeqCst);
    Ok(0)
}

/// A full fence on this CPU before it asks for `cpus`, on those, and on this one again.
fn fence_on(cpus: impl Iterator<Item = usize>) {
    fence(Ordering::SeqCst);
    ipi::call(cpus, &(), |()| fence(Ordering::SeqCst));
    fence(Ordering::SeqCst);
}
