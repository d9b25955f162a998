//! What a process has, and others may share: memory, descriptors, file-system context, credentials.

use alloc::sync::Arc;
use ksync::atomic::Ordering;

use cred::{Cred, Payer};
use ksync::ByteMutexGuard;
use mem::Space;
use vfs::{FdTable, FsContext, FsUse};

use super::{Brk, LEFT, Process, Program, address, address_of};
use crate::lock;
use crate::space::SpaceUser;

impl Process {
    /// A number for the program that the process runs: for [`runs_program`](Self::runs_program).
    pub fn program_number(&self) -> u32 {
        self.exec_id.get()
    }

    /// Whether the process certainly runs the program that it ran when [`program_number`](Self::program_number) returned `then`.
    pub fn runs_program(&self, then: u32) -> bool {
        self.exec_id.is_still(then)
    }

    /// The address space; none for the kernel's process and for zombies.
    pub fn space(&self) -> Option<Arc<Space>> {
        self.space.lock().as_ref().map(|s| s.space().clone())
    }

    /// The process's use of the address space, to be shared with a new process.
    pub(crate) fn user_space(&self) -> Option<Arc<SpaceUser>> {
        self.space.lock().clone()
    }

    /// Replaces the address space; returns the old one, which the caller drops with no lock held.
    pub(crate) fn set_space(&self, space: Option<Arc<SpaceUser>>) -> Option<Arc<SpaceUser>> {
        let at = address_of(space.as_ref());
        let mut slot = self.space.lock();
        self.space_at.store(at, Ordering::Relaxed);
        core::mem::replace(&mut *slot, space)
    }

    /// Takes the address space from a process that ends. Once the caller has ended the process's use, it calls
    /// [`Process::has_left_space`].
    pub(crate) fn leave_space(&self) -> Option<Arc<SpaceUser>> {
        let mut slot = self.space.lock();
        let at = address_of(slot.as_ref());
        self.space_at
            .store(if at == 0 { 0 } else { at | LEFT }, Ordering::Relaxed);
        slot.take()
    }

    /// If the process was the last user of its space, it has emptied it.
    pub(crate) fn has_left_space(&self) {
        self.space_at.store(0, Ordering::Release);
    }

    /// Whether the process uses `space`, or has left it and may be emptying it.
    pub(crate) fn may_empty(&self, space: &Arc<Space>) -> bool {
        self.space_at.load(Ordering::Acquire) & !LEFT == Arc::as_ptr(space) as usize
    }

    /// The address of the address space, as its identity; 0 for none. That of a process that ends may be one that no space
    /// has.
    pub(crate) fn space_address(&self) -> usize {
        self.space_at.load(Ordering::Relaxed)
    }

    /// The descriptor table; none for the kernel's process and for zombies. Only for threads of the process, see `crate::descriptors`.
    pub(crate) fn files(&self) -> Option<Arc<FdTable>> {
        self.files.lock().clone()
    }

    /// Replaces the descriptor table; returns the old one, which the caller drops with no lock held. No other thread of the process may be
    /// alive, and a calling thread of the process has dropped its cached reference (see `crate::reference_cache`).
    pub(crate) fn set_files(&self, files: Option<Arc<FdTable>>) -> Option<Arc<FdTable>> {
        let at = address(files.as_ref());
        let mut slot = self.files.lock();
        self.files_at.store(at, Ordering::Relaxed);
        core::mem::replace(&mut *slot, files)
    }

    /// The address of the descriptor table, as its identity; 0 for none.
    pub(crate) fn files_address(&self) -> usize {
        self.files_at.load(Ordering::Relaxed)
    }

    /// Root, working directory and umask; none for zombies.
    pub fn fs(&self) -> Option<Arc<FsContext>> {
        self.fs.lock().as_ref().map(|fs| fs.context().clone())
    }

    /// A use of the file-system context for another process. Outer `None`: there is no context; inner `None`: an execve keeps it unshared.
    pub(crate) fn share_fs(&self) -> Option<Option<FsUse>> {
        self.fs.lock().as_ref().map(FsUse::share)
    }

    /// Replaces the file-system context; returns the old one, which the caller drops unlocked. Conditions: see `set_files`.
    pub fn set_fs(&self, fs: Option<FsUse>) -> Option<FsUse> {
        let at = address(fs.as_ref().map(FsUse::context));
        let mut slot = self.fs.lock();
        self.fs_at.store(at, Ordering::Relaxed);
        core::mem::replace(&mut *slot, fs)
    }

    /// The address of the file-system context, as its identity; 0 for none.
    pub(crate) fn fs_address(&self) -> usize {
        self.fs_at.load(Ordering::Relaxed)
    }

    /// The credentials by which other processes judge this one: its first thread's. What a thread may do depends on [`Thread::cred`](task::thread::Thread::cred).
    pub fn cred(&self) -> Arc<Cred> {
        self.cred.lock().clone()
    }

    /// The account that pays for the process itself, from the end of its last thread on.
    pub fn payer(&self) -> Payer {
        self.cred.lock().payer
    }

    /// Replaces the credentials that other processes see. With another real user the process begins a new exec group.
    pub(crate) fn set_cred(&self, new: Arc<Cred>) {
        let uid = new.uid;
        let old = core::mem::replace(&mut *self.cred.lock(), new);
        if self.uid.swap(uid, Ordering::Relaxed) != uid {
            self.found_exec_group();
        }
        drop(old);
    }

    /// The real user id, without a lock.
    pub fn uid(&self) -> u32 {
        self.uid.load(Ordering::Relaxed)
    }

    /// Clears what execve left for other processes to read.
    pub(crate) fn clear_program(&self) {
        let program = Program::default();
        let _old = core::mem::replace(&mut *self.program.lock(), program);
    }

    /// The heap's bounds.
    pub fn brk(&self) -> Brk {
        *self.brk.lock()
    }

    /// Keeps other threads from changing the heap; sleeps while another thread changes it.
    pub fn lock_brk(&self) -> ByteMutexGuard<'_, lock::BreakLock> {
        self.brk_change.lock()
    }

    /// Stores the heap's bounds. The caller holds [`Process::lock_brk`].
    pub fn set_brk(&self, brk: Brk) {
        *self.brk.lock() = brk;
    }
}
