//! CPUs with translation caches, over the frames of an [`Arena`].
//!
//! Each core translates by walking the real page tables in software, caches what it has found, and drops only what it
//! is asked to. It is an adversary: it walks and caches speculatively at every opportunity ([`Sim::speculate`]), caches
//! upper levels separately from leaves and starts walks from them, and drops no more than the architecture demands. It
//! may have translations of 4 KiB and of 2 MiB for one address at once, and then uses either, in turn.
//! Cached translations are tagged with address-space identifiers, so those of a pmap outlive a switch. A missing
//! invalidation shows as an access that still succeeds, or that reaches a frame with another owner.
//!
//! Accesses and flush requests exclude each other per core, which represents the synchronous interrupt.
//!
//! Cores that run one pmap must agree: all of them must have the same frame cached for an address, or the test fails at
//! once (`Coherence`). So each test in which threads of a program share memory also tests coherence.
#![expect(
    unsafe_code,
    reason = "implements the unsafe trait `Machine` and touches simulated memory"
)]

mod cache;

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, RwLock};
#[cfg(not(any(loom, shuttle)))]
use std::sync::{Mutex, MutexGuard};

use ksync::CpuPin;
use ksync::atomic::AtomicU64 as Word;
#[cfg(loom)]
use loom::sync::{Mutex, MutexGuard};
#[cfg(shuttle)]
use shuttle::sync::{Mutex, MutexGuard};
use vm::object::Cache;
use vm::page::State;
use vm::pmap::RootInfo;
use vm::pmap::table::{ROOT_LEVEL, entry_shift, slot};
use vm::{CpuSet, Gather, Growth, Machine, Pfn, Pmap, Pte, Vm};

pub use cache::LARGE;
use cache::{Coherence, Core, piece};

use crate::{Arena, arena};

/// What a program wants of an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// A load.
    Read,
    /// A store.
    Write,
    /// An instruction fetch.
    Fetch,
}

/// The translation does not allow the access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageFault {
    /// Whether there was a translation, which forbids the access.
    pub present: bool,
}

/// Returns the root that the pmap which a core runs has now, and its generation.
pub type RootSource = Box<dyn Fn() -> RootInfo + Send>;

/// A machine whose CPUs translate addresses.
pub struct Sim {
    arena: Arena,
    cores: Box<[Mutex<Core>]>,
    /// Number of cores interrupted so far.
    interrupts: AtomicUsize,
    hook: RwLock<Option<Hook>>,
    frame_hook: RwLock<Option<Hook>>,
    mark_hook: RwLock<Option<Hook>>,
    flush_hook: RwLock<Option<FlushHook>>,
    /// Whether programs may reach only pages of objects. Atomic.
    strict: AtomicBool,
    /// Whether switches keep all translations, even stale ones. Atomic.
    credulous: AtomicBool,
    /// RLIMIT_STACK of all programs. Atomic.
    stack_limit: AtomicU64,
}

/// Code that a test runs between two steps of a walk.
pub type Hook = Box<dyn Fn(Pfn) + Send + Sync>;

/// Code that a test runs between a change of page tables and the flush.
pub type FlushHook = Arc<dyn Fn() + Send + Sync>;

impl Sim {
    /// A machine of `frames` frames and `cpus` CPUs in `domains` memory domains.
    pub fn new(frames: usize, cpus: usize, domains: usize) -> Sim {
        let coherence = Arc::<Coherence>::default();
        Sim {
            arena: Arena::new(frames, cpus, domains),
            cores: (0..cpus)
                .map(|cpu| {
                    Mutex::new(Core {
                        cpu,
                        coherence: coherence.clone(),
                        ..Core::default()
                    })
                })
                .collect(),
            interrupts: AtomicUsize::new(0),
            hook: RwLock::new(None),
            frame_hook: RwLock::new(None),
            mark_hook: RwLock::new(None),
            flush_hook: RwLock::new(None),
            strict: AtomicBool::new(false),
            credulous: AtomicBool::new(false),
            stack_limit: AtomicU64::new(8 << 20),
        }
    }

    /// A VM on this machine, with an empty template root.
    pub fn into_vm(self) -> Vm<Sim> {
        let (pages, alloc) = (self.arena.pages(), self.arena.allocator());
        let ncpus = self.ncpus();
        let vm = arena::vm_on(self, pages, alloc);
        // A mark in kernel space that every root must carry.
        vm.machine.words(vm.pmaps.empty_root())[511].store(KERNEL_MARK, Relaxed);
        // CPUs other than the first come online when a thread starts to play them.
        (1..ncpus).for_each(|cpu| vm.epoch.offline(cpu));
        vm
    }

    /// Makes this CPU load the root that `activate` returns, without serving a flush request in between. `source`
    /// returns later roots. Translations that the CPU cached when it ran the same pmap before stay, unless the pmap has
    /// changed since.
    pub fn load(&self, pin: &CpuPin, activate: impl FnOnce() -> RootInfo, source: RootSource) {
        let mut core = self.core(pin.cpu());
        core.leave();
        let info = activate();
        core.root = Some(info.root);
        core.source = Some(source);
        core.pmap = info.pmap;
        let tag = core.asids.enter(&info);
        if !tag.keep && !self.credulous.load(Relaxed) {
            core.invalidate_all(tag.asid);
        }
        core.come_back();
    }

    /// Makes switches keep all cached translations from now on, even stale ones. A deliberate fault, by which tests
    /// show that they would notice a real one.
    pub fn be_credulous(&self) {
        self.credulous.store(true, Relaxed);
    }

    /// Makes this CPU run no pmap.
    pub fn unload(&self, pin: &CpuPin) {
        let mut core = self.core(pin.cpu());
        core.leave();
        core.root = None;
        core.source = None;
        let _empty = core.asids.leave();
    }

    /// Loads eight bytes as a user program on `cpu`.
    ///
    /// # Errors
    /// The page fault that the program would take.
    pub fn read(&self, cpu: usize, va: u64) -> Result<u64, PageFault> {
        self.access(cpu, va, Access::Read, |word| word.load(SeqCst))
    }

    /// Stores eight bytes as a user program on `cpu`.
    ///
    /// # Errors
    /// The page fault that the program would take.
    pub fn write(&self, cpu: usize, va: u64, value: u64) -> Result<(), PageFault> {
        self.access(cpu, va, Access::Write, |word| word.store(value, SeqCst))
    }

    /// Fetches an instruction as a user program on `cpu`.
    ///
    /// # Errors
    /// The page fault that the program would take.
    pub fn fetch(&self, cpu: usize, va: u64) -> Result<(), PageFault> {
        self.access(cpu, va, Access::Fetch, |_| ())
    }

    /// Lets `cpu` walk to and cache `va` speculatively. At most sets A.
    pub fn speculate(&self, cpu: usize, va: u64) {
        let mut core = self.core(cpu);
        let _ = self.translate(&mut core, va, Access::Read);
    }

    /// Performs `act` on the word at `va`.
    ///
    /// # Errors
    /// The page fault that the program would take.
    pub fn access<R>(
        &self,
        cpu: usize,
        va: u64,
        access: Access,
        act: impl FnOnce(&AtomicU64) -> R,
    ) -> Result<R, PageFault> {
        assert!(va.is_multiple_of(8));
        let mut core = self.core(cpu);
        match self.translate(&mut core, va, access) {
            Ok(pte) => {
                let frame = self.reached(pte, va).as_ptr();
                // SAFETY: inside the frame and aligned, as checked; simulated user memory is accessed as atomics, and
                // the arena lives as long as `self`.
                Ok(act(unsafe {
                    AtomicU64::from_ptr(frame.add(va as usize & 0xfff).cast())
                }))
            }
            Err(fault) => {
                core.invalidate(va);
                Err(fault)
            }
        }
    }

    /// Whether `cpu` has a leaf of either size for `va` cached, of the pmap that it runs.
    pub fn has_cached(&self, cpu: usize, va: u64) -> bool {
        let core = self.core(cpu);
        core.leaves.contains_key(&(core.asid(), va & !0xfff))
            || core.large.contains_key(&(core.asid(), va & !(LARGE - 1)))
    }

    /// Calls `hook` before each access of the VM, not of a core, to a table, on the thread that makes it.
    pub fn on_table(&self, hook: Option<Hook>) {
        *self.hook.write().expect("a hook failed") = hook;
    }

    /// Calls `hook` before each access of the VM, not of a program, to the bytes of a page, on the thread that makes it.
    pub fn on_frame(&self, hook: Option<Hook>) {
        *self.frame_hook.write().expect("a hook failed") = hook;
    }

    /// Calls `hook` when a core's walk has read the entry that ends it, and has not marked it yet, with the table. The core is
    /// locked, so the hook makes no flush.
    pub fn on_mark(&self, hook: Option<Hook>) {
        *self.mark_hook.write().expect("a hook failed") = hook;
    }

    /// Calls `hook` before each flush of the VM, on the thread that makes it; the hook may itself make the VM flush.
    pub fn on_flush(&self, hook: Option<FlushHook>) {
        *self.flush_hook.write().expect("a hook failed") = hook;
    }

    /// Sets the size limit of stacks, in bytes.
    pub fn set_stack_limit(&self, bytes: u64) {
        self.stack_limit.store(bytes, Relaxed);
    }

    /// From now on a test fails if a program reaches a frame that is not a page of an object.
    pub fn be_strict(&self) {
        self.strict.store(true, Relaxed);
    }

    /// The root that `cpu` has loaded.
    pub fn loaded_root(&self, cpu: usize) -> Option<Pfn> {
        self.core(cpu).root
    }

    /// Number of cores interrupted so far.
    pub fn interrupts(&self) -> usize {
        self.interrupts.load(Relaxed)
    }

    /// The bytes to which a translation leads. A program may reach frames that hold pages of programs, even pages that
    /// are being removed, but no others: such a frame was freed while a translation for it was cached. Devices are
    /// reached by unmanaged entries of the right memory type.
    fn reached(&self, pte: Pte, va: u64) -> NonNull<u8> {
        let pfn = pte.pfn();
        if let Some(frame) = self.arena.device(pfn) {
            let cache = pte.0 & (Pte::WT | Pte::CD);
            assert!(
                !pte.is_managed() && cache == device_cache(pfn).bits(),
                "a program at {va:#x} reaches a device through {pte:?}"
            );
            return frame;
        }
        let page = self.arena.pages().get(pfn);
        let fine = match page.state() {
            State::Anon | State::File => true,
            // Tests of the pmap alone enter frames straight from the allocator.
            State::Allocated => !self.strict.load(Relaxed),
            _ => false,
        };
        assert!(
            fine,
            "a program at {va:#x} reaches {pfn:?}, which is {:?}",
            page.state()
        );
        self.frame(pfn)
    }

    /// A table, as read by a walk: the frame must be a page table, perhaps an unlinked one.
    fn walked(&self, table: Pfn) -> &[Word; 512] {
        let state = self.arena.pages().get(table).state();
        assert!(
            state == State::Table,
            "a walk reads {table:?}, which is {state:?}"
        );
        self.words(table)
    }

    fn words(&self, table: Pfn) -> &[Word; 512] {
        self.arena.table_words(table)
    }

    fn core(&self, cpu: usize) -> MutexGuard<'_, Core> {
        self.cores[cpu]
            .lock()
            .expect("a test failed while it held a core")
    }

    fn translate(&self, core: &mut Core, va: u64, access: Access) -> Result<Pte, PageFault> {
        if let Some(pte) = core.cached(va) {
            // A store through an entry without D walks again, to set D.
            if allows(pte, access)? && (access != Access::Write || pte.is_dirty()) {
                return Ok(pte);
            }
        }
        let (mut table, mut level, mut rights) = self.start(core, va)?;
        while level > 1 {
            let pte = Pte(self.walked(table)[slot(va, level)].load(SeqCst));
            if !pte.is_present() {
                return Err(PageFault { present: false });
            }
            if level == 2 && pte.any(Pte::PS) {
                let word = &self.walked(table)[slot(va, 2)];
                self.call_before_mark(table);
                let Some(path) = self.mark(word, pte, rights, access)? else {
                    return self.translate(core, va, access);
                };
                core.cache_large(va, path);
                return Ok(piece(path, va));
            }
            rights &= pte.0;
            table = pte.pfn();
            level -= 1;
            let at = (core.asid(), level, va >> entry_shift(level + 1));
            core.tables.insert(at, (table, rights));
        }
        let word = &self.walked(table)[slot(va, 1)];
        let pte = Pte(word.load(SeqCst));
        self.call_before_mark(table);
        let Some(path) = self.mark(word, pte, rights, access)? else {
            return self.translate(core, va, access);
        };
        core.coherence
            .add(core.pmap, va & !0xfff, core.cpu, path.pfn());
        core.leaves.insert((core.asid(), va & !0xfff), path);
        Ok(path)
    }

    /// Sets A, and D for a store, in the entry that ends a walk and was read as `seen`, by a locked update. Returns the entry with W
    /// only if `rights`, those of the path above, have it; or `None` if it has changed since, perhaps from a leaf to a link: then the
    /// core walks again.
    fn mark(
        &self,
        word: &Word,
        seen: Pte,
        rights: u64,
        access: Access,
    ) -> Result<Option<Pte>, PageFault> {
        if !seen.is_present() {
            return Err(PageFault { present: false });
        }
        let path = if rights & Pte::W == 0 {
            seen.without(Pte::W)
        } else {
            seen
        };
        allows(path, access)?;
        let mark = Pte::A | if access == Access::Write { Pte::D } else { 0 };
        let marked = word.compare_exchange(seen.0, seen.0 | mark, SeqCst, SeqCst);
        Ok(marked.is_ok().then(|| path.with(mark)))
    }

    fn call_before_mark(&self, table: Pfn) {
        if let Ok(hook) = self.mark_hook.try_read()
            && let Some(hook) = &*hook
        {
            hook(table);
        }
    }

    /// The start of a walk: the lowest level that is cached.
    fn start(&self, core: &Core, va: u64) -> Result<(Pfn, u8, u64), PageFault> {
        for level in 1..ROOT_LEVEL {
            let at = (core.asid(), level, va >> entry_shift(level + 1));
            if let Some(&(table, rights)) = core.tables.get(&at) {
                return Ok((table, level, rights));
            }
        }
        core.root
            .map(|root| (root, ROOT_LEVEL, u64::MAX))
            .ok_or(PageFault { present: false })
    }
}

/// The memory type with which a device's frame must be mapped.
pub fn device_cache(pfn: Pfn) -> Cache {
    match pfn.0.wrapping_sub(arena::DEVICE.0) {
        0 | 1 => Cache::Uncached,
        2 => Cache::WriteCombining,
        _ => Cache::WriteBack,
    }
}

/// The last entry of the template root.
pub const KERNEL_MARK: u64 = 0xdead_0000_0000_0001;

fn allows(pte: Pte, access: Access) -> Result<bool, PageFault> {
    let fine = match access {
        Access::Read => true,
        Access::Write => pte.is_writable(),
        Access::Fetch => pte.is_executable(),
    };
    if fine {
        Ok(true)
    } else {
        Err(PageFault { present: true })
    }
}

/// Makes this CPU run `pmap`.
pub fn run(vm: &Vm<Sim>, pin: &CpuPin, pmap: &std::sync::Arc<Pmap>) {
    let (empty, later) = (vm.pmaps.empty_root(), pmap.clone());
    let source = Box::new(move || later.root_info_or(empty));
    vm.machine.load(pin, || pmap.activate(vm, pin), source);
}

/// Makes this CPU stop running `pmap`.
pub fn stop(vm: &Vm<Sim>, pin: &CpuPin, pmap: &Pmap) {
    vm.machine.unload(pin);
    pmap.deactivate(pin);
}

// SAFETY: the frames are those of the arena, which satisfies the conditions.
unsafe impl Machine for Sim {
    fn frame(&self, pfn: Pfn) -> NonNull<u8> {
        if let Ok(hook) = self.frame_hook.try_read()
            && let Some(hook) = &*hook
        {
            hook(pfn);
        }
        self.arena.frame(pfn)
    }

    fn frame_of(&self, address: *const u8) -> Option<Pfn> {
        self.arena.frame_of(address)
    }

    fn ncpus(&self) -> usize {
        self.arena.ncpus()
    }

    fn ndomains(&self) -> usize {
        self.arena.ndomains()
    }

    fn domain_of(&self, cpu: usize) -> usize {
        self.arena.domain_of(cpu)
    }

    fn domains_by_distance(&self, domain: usize) -> &[u8] {
        self.arena.domains_by_distance(domain)
    }

    fn ticks(&self) -> u64 {
        self.arena.ticks()
    }

    fn may_grow(&self, to: &Growth) -> bool {
        to.stack <= self.stack_limit.load(Relaxed)
    }

    fn copy_device(&self, to: Pfn, from: Pfn) {
        self.arena.copy_device(to, from);
    }

    fn flush(&self, cpus: &CpuSet, what: &Gather) {
        let hook = self
            .flush_hook
            .try_read()
            .ok()
            .and_then(|hook| hook.clone());
        if let Some(hook) = hook {
            hook();
        }
        for cpu in cpus.iter() {
            let mut core = self.core(cpu);
            self.interrupts.fetch_add(1, Relaxed);
            core.answer(what);
        }
    }

    fn table_words(&self, pfn: Pfn) -> &[Word; 512] {
        if let Ok(hook) = self.hook.try_read()
            && let Some(hook) = &*hook
        {
            hook(pfn);
        }
        self.words(pfn)
    }
}
