//! What one process may see of another.
//!
//! Guarantee: whoever gets memory of a process to look at was allowed to look at the process as it was when it had that
//! memory: of an execve that changes both memory and credentials it sees all or nothing.
//!
//! Mechanism: execve changes them, and what tells of them, under the lock of the address space, and a look takes them
//! under it. Other changes of credentials leave the memory; they hide it first where it may hold what the new ones must
//! not see. So a look reads the credentials before it reads whether the memory is hidden.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use cred::{AfterExec, Cred, LookAs, NotPermitted};
use mem::Space;
use task::current::Current;
use task::thread::Thread;

use super::process::{self, Brk, Process, Program, flag};
use super::space::UserSpace;
use crate::UserThreadExt;

/// The memory of a process at one moment, and what lies where in it.
pub struct Image {
    /// The memory; none for kernel processes and zombies.
    pub space: Option<Arc<Space>>,
    /// What execve left to read.
    pub program: Program,
    /// The heap.
    pub brk: Brk,
}

/// What execve puts in place of the old program.
pub(super) struct NewProgram {
    pub space: Arc<UserSpace>,
    pub program: Program,
    pub brk: Brk,
    pub after: AfterExec,
}

impl Process {
    fn seen(&self, thread: Option<&Thread>) -> (Arc<Cred>, bool, Image) {
        let space = self.space.lock();
        let cred = match thread {
            Some(t) => t.cred(),
            None => self.cred.lock_nested().clone(),
        };
        let dumpable = space.is_none() || self.has(flag::DUMPABLE);
        let image = Image {
            space: space.as_ref().map(|s| s.space().clone()),
            program: self.program.lock_nested().clone(),
            brk: *self.brk.lock_nested(),
        };
        (cred, dumpable, image)
    }

    /// Its memory, as far as everybody may see it.
    pub fn image(&self) -> Image {
        self.seen(None).2
    }

    /// Its memory, if the caller may look into the process, or into one `thread` of it.
    pub fn image_shown(&self, thread: Option<&Thread>, by: LookAs) -> Result<Image, NotPermitted> {
        let me = task::current::current();
        let (cred, dumpable, image) = self.seen(thread);
        let own = self.pid() == me.process().pid();
        if own || me.cred().may_look(&cred, dumpable, by) {
            Ok(image)
        } else {
            Err(NotPermitted)
        }
    }

    /// The user and the group that own its files in /proc: its effective ones, but the super-user's where its memory is
    /// hidden or gone. A directory that everybody may list, `listed`, has the effective ones always.
    pub fn shown_owner(&self, thread: Option<&Thread>, listed: bool) -> (u32, u32) {
        let (cred, dumpable, image) = self.seen(thread);
        let own = listed || dumpable && image.space.is_some();
        if own && !self.is_kernel() {
            (cred.euid, cred.egid)
        } else {
            (0, 0)
        }
    }

    /// What its memory holds is not for its user any more: nobody without CAP_SYS_PTRACE may look, and the parent's death
    /// is no concern of it.
    pub(super) fn hide(&self) {
        self.set_flag(flag::DUMPABLE, false);
        self.set_death_signal(0);
    }

    /// execve by `me`, the only thread. Returns the old memory, which the caller drops.
    pub(super) fn become_program(&self, me: &Current, new: NewProgram) -> Option<Arc<UserSpace>> {
        let after = new.after;
        if after.secure || after.exposed {
            // The parent has no power over the program.
            self.set_death_signal(0);
        }
        let cred = Arc::new(after.cred);
        let uid = cred.uid;
        let at = process::address_of(Some(&new.space));
        // Dropped without a lock.
        let mut old_cred = cred.clone();
        let mut program = new.program;
        let mut space = self.space.lock();
        let old_thread = me.replace_cred(cred);
        core::mem::swap(&mut *self.cred.lock_nested(), &mut old_cred);
        core::mem::swap(&mut *self.program.lock_nested(), &mut program);
        *self.brk.lock_nested() = new.brk;
        self.set_flag(flag::DUMPABLE, after.dumpable);
        self.uid.store(uid, Ordering::Relaxed);
        self.space_at.store(at, Ordering::Relaxed);
        let old = space.replace(new.space);
        drop(space);
        drop((old_thread, old_cred, program));
        old
    }
}
