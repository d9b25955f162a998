//! What one process may see of another.
//!
//! Guarantee: a process that gets another's memory to look at was allowed to look at that process as it was when it had
//! that memory. Of an execve, which changes both memory and credentials, a look sees both changes or neither.
//!
//! Mechanism: execve changes the memory, the credentials and the data about them under the lock of the address space,
//! and a look reads them under that lock. Other changes of credentials keep the memory; if it may hold what the new
//! credentials must not show, they first clear DUMPABLE. So a look reads the credentials before it reads DUMPABLE.

use alloc::sync::Arc;
use ksync::atomic::Ordering;

use cred::{AfterExec, Cred, LookAs, NotPermitted};
use mem::Space;
use task::current::Current;
use task::thread::Thread;

use super::process::{self, Brk, Process, Program, flag};
use super::space::SpaceUser;
use crate::UserThreadExt;

/// The memory of a process at one moment, and where its parts are.
#[derive(Default)]
pub struct Image {
    /// The memory; none for the kernel's process and for zombies.
    pub space: Option<Arc<Space>>,
    /// The parts of the program that other processes may read.
    pub program: Program,
    /// The heap.
    pub brk: Brk,
}

/// What execve puts in the place of the old program.
pub(super) struct NewProgram {
    pub space: Arc<SpaceUser>,
    pub program: Program,
    pub brk: Brk,
    pub after: AfterExec,
}

/// What processes may have in common, for kcmp(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The memory.
    Memory,
    /// The table of descriptors.
    Descriptors,
    /// Root, working directory and umask.
    Directories,
    /// The actions of signals.
    Actions,
}

impl Process {
    /// The address of a part, by which it differs from all others that exist; 0 for none.
    pub fn identity(&self, part: Part) -> usize {
        match part {
            Part::Memory => self.space_address(),
            Part::Descriptors => self.files_address(),
            Part::Directories => self.fs_address(),
            Part::Actions => Arc::as_ptr(&self.signals.lock().actions) as usize,
        }
    }

    /// The credentials of the process, or of `thread`, whether the process's own user may look into it, and its memory: as they
    /// were together, see above. Takes the lock of the space and, under it, those of the other fields.
    fn seen(&self, thread: Option<&Thread>) -> (Arc<Cred>, bool, Image) {
        let space = self.space.lock();
        let cred = match thread {
            Some(t) => t.cred(),
            None => self.cred.lock_nested().clone(),
        };
        // Nothing is hidden where there is no memory.
        let dumpable = space.is_none() || self.has(flag::DUMPABLE);
        let image = match space.as_ref() {
            Some(space) => Image {
                space: Some(space.space().clone()),
                program: self.program.lock_nested().clone(),
                brk: *self.brk.lock_nested(),
            },
            // The addresses of memory that is gone may be those of a process that lives, from which this one was forked.
            None => Image::default(),
        };
        (cred, dumpable, image)
    }

    /// The memory of the process, without a check of rights: for data that every process may see.
    pub fn image(&self) -> Image {
        self.seen(None).2
    }

    /// The memory of the process, if the caller may look into the process or, where `thread` is given, into that thread
    /// of it. A process may always look into itself.
    ///
    /// # Errors
    /// The caller may not look.
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

    /// The user and group ids that own the process's files in /proc: its effective ones, or 0 where its memory is
    /// hidden or gone. A directory that everybody may list (`listed`) always has the effective ones. Those of the
    /// kernel's process belong to 0.
    pub fn shown_owner(&self, thread: Option<&Thread>, listed: bool) -> (u32, u32) {
        let (cred, dumpable, image) = self.seen(thread);
        let own = listed || dumpable && image.space.is_some();
        if own && !self.is_kernel() {
            (cred.euid, cred.egid)
        } else {
            (0, 0)
        }
    }

    /// Hides the memory, because it is not for its user any more: only a process with CAP_SYS_PTRACE may look into it.
    /// The parent's death sends no signal any more, either.
    pub(super) fn hide(&self) {
        self.set_flag(flag::DUMPABLE, false);
        self.set_death_signal(0);
    }

    /// Makes the changes of an execve by `me`, the only thread, in one step: memory, program, heap, and the credentials of
    /// process and thread. Returns the old use of memory, which the caller drops with no lock held. A program that is `secure` or
    /// `exposed` gets no signal on its parent's death.
    ///
    /// The process still has open what the new program must not have. So DUMPABLE is set only if nobody may look at the
    /// new program but those that could look at the old one. The caller sets it once it has closed these descriptors.
    pub(super) fn become_program(&self, me: &Current, new: NewProgram) -> Option<Arc<SpaceUser>> {
        let after = new.after;
        if after.secure || after.exposed {
            // The parent has no power over the new program.
            self.set_death_signal(0);
        }
        // Those that may look at the new program have at least its credentials.
        let no_wider = after
            .cred
            .may_look(&me.cred(), self.has(flag::DUMPABLE), LookAs::Real);
        let cred = Arc::new(after.cred);
        let uid = cred.uid;
        let at = process::address_of(Some(&new.space));
        // The old ones are dropped after the locks are released.
        let mut old_cred = cred.clone();
        let mut program = new.program;
        let mut space = self.space.lock();
        let old_thread = me.replace_cred(cred);
        core::mem::swap(&mut *self.cred.lock_nested(), &mut old_cred);
        core::mem::swap(&mut *self.program.lock_nested(), &mut program);
        *self.brk.lock_nested() = new.brk;
        self.set_flag(flag::DUMPABLE, after.dumpable && no_wider);
        self.uid.store(uid, Ordering::Relaxed);
        self.space_at.store(at, Ordering::Relaxed);
        let old = space.replace(new.space);
        drop(space);
        drop((old_thread, old_cred, program));
        old
    }
}
