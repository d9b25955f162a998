//! What a failed clone(2) with CLONE_SYSVSEM leaves of the sharing of what semaphores undo: nothing. Only the last use of a slot undoes, at
//! once: a use that lasted for a grace period longer would undo after the wait for the process has returned.
#![cfg(not(shuttle))]

#[path = "support/signals.rs"]
mod signals;
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use abi::raw::general as raw;
use hal::UserFrame;
use proc::fork::{self, CloneArgs, ForkError, Opening};
use proc::group::setpgid;
use proc::{Process, sem_undo};
use signals::{USR1, as_child, block, catch, kill_group};
use support::{THREAD, me};

/// How often adjustments were made.
static UNDONE: AtomicU32 = AtomicU32::new(0);

struct Adjustments;

impl Drop for Adjustments {
    fn drop(&mut self) {
        UNDONE.fetch_add(1, SeqCst);
    }
}

/// What happens to a clone(2) after it shares the caller's slot.
struct Fails(fn() -> Result<(), ForkError>);

impl Opening for Fails {
    fn prepare(&mut self, _process: &Arc<Process>) -> Result<(), ForkError> {
        (self.0)()
    }

    fn complete(&mut self) {}
}

/// A signal for the caller's group: the new process would miss it, so it is not made.
fn signal() -> Result<(), ForkError> {
    assert_eq!(kill_group(me().pid(), USR1), Ok(()));
    Ok(())
}

/// The new process's descriptor cannot be stored.
fn fault() -> Result<(), ForkError> {
    Err(ForkError::Fault)
}

/// Makes adjustments, calls clone(2), which fails, and leaves the slot.
fn fail(flags: u64, fails: fn() -> Result<(), ForkError>, why: ForkError) {
    let before = UNDONE.load(SeqCst);
    let slot = sem_undo::own().expect("a process");
    slot.get_or_make(|| Box::new(Adjustments));
    drop(slot);
    let args = CloneArgs {
        flags: flags | u64::from(raw::CLONE_SYSVSEM),
        ..CloneArgs::default()
    };
    let made = fork::clone(&args, &UserFrame::default(), Some(&mut Fails(fails)));
    assert_eq!(made, Err(why));
    assert_eq!(UNDONE.load(SeqCst), before, "the caller uses it");
    sem_undo::leave();
    assert_eq!(UNDONE.load(SeqCst), before + 1, "nobody uses it");
}

#[test]
fn a_clone_that_fails_does_not_keep_what_semaphores_undo() {
    as_child(|| {
        assert_eq!(setpgid(me().pid(), me().pid()), Ok(()));
        catch(USR1);
        fail(0, fault, ForkError::Fault);
        fail(THREAD, fault, ForkError::Fault);
        fail(0, signal, ForkError::Signal);
        block(&[USR1]);
    });
}
