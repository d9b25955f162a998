//! Shared memory: shmget(2), shmat(2), shmdt(2), shmctl(2).
//!
//! Guarantee: a segment is one object of the VM, which all its attachments map. It goes when it is removed and has no attachment; until then
//! its id works, as in Linux also after its removal. The number of attachments is exact when a call that ends one, or the wait for a process
//! that had one, has returned.
//!
//! Mechanism: the VM tells the segment of each attachment that a map makes, copies for a child or ends ([`vm::object::Watch`]). A call that attaches
//! holds the segment like an attachment until the mapping is there. The operation that counts down to 0 in a removed segment takes
//! the base reference out of it, and so is the one that frees it. The segment's lock guards that count.

use alloc::sync::Arc;
use ksync::atomic::{AtomicU64, Ordering::Relaxed};

use cred::{Cap, Charge};
use ksync::{Once, Spin};
use vm::object::Watch;
use vm::{ObjectRef, Quota};

use super::charge::Charged;
use super::error::{Result, SysvError};
use super::perm::{Caller, NewOwner, PRIVATE, Perm, READ, WRITE};
use super::present::{now, own_pid};
use super::registry::{Object, Registry, Wanted};

ksync::lock_class!(pub SegmentLock, "System V memory", rank = 84);

/// Bits of a segment's mode beside the nine: it was removed, and it is locked.
const REMOVED: u32 = 0o1000;
const LOCKED: u32 = 0o2000;
/// Permission to execute.
const EXEC: u32 = 0o111;

/// The largest segment, and its default limit and that of the pages of all segments, as in Linux: so large that other limits count.
const UNLIMITED: u64 = u64::MAX - (1 << 24);
/// Of the pages that segments may have together, the user's part in eighths.
const USERS_EIGHTHS: u64 = 7;
const PAGE: u64 = hal::PAGE_SIZE as u64;

hal::machine_static! {
    static SEGMENTS: Once<Registry<Segment>> = Once::new();
    /// The limit on the pages that segments have.
    static QUOTA: Once<&'static Quota> = Once::new();
    /// Pages of all segments by their sizes. Atomic.
    static PAGES: AtomicU64 = AtomicU64::new(0);
    /// /proc/sys/kernel/shmmax: bytes of a segment. Atomic.
    pub static MAX_BYTES: AtomicU64 = AtomicU64::new(UNLIMITED);
    /// /proc/sys/kernel/shmall: pages of all segments. Atomic.
    pub static MAX_PAGES: AtomicU64 = AtomicU64::new(UNLIMITED);
    /// /proc/sys/kernel/shmmni: segments. Atomic.
    pub static MAX_SEGMENTS: AtomicU64 = AtomicU64::new(4096);
}

pub(super) fn init() {
    SEGMENTS.get_or_init(Registry::new);
    if let Ok(quota) = vfs::quota::claim(vfs::quota::default_limit()) {
        let _ = QUOTA.set(quota);
    }
}

/// The segments.
///
/// # Panics
/// Before they are set up, at boot.
pub fn registry() -> &'static Registry<Segment> {
    SEGMENTS.get().expect("set up at boot")
}

/// What a segment's lock guards.
struct State {
    perm: Perm,
    attach_time: u64,
    detach_time: u64,
    change_time: u64,
    last_pid: u32,
    /// Attachments, and calls that are about to make one.
    attached: u64,
    /// While it is locked.
    locked: Option<Charged>,
    /// `None` once the segment is being freed.
    object: Option<ObjectRef>,
}

/// A segment.
pub struct Segment {
    id: i32,
    /// The key that it was made with.
    key: i32,
    /// Bytes, as the maker has asked for.
    size: u64,
    maker: u32,
    bytes: Charged,
    pages: Charged,
    state: Spin<State, SegmentLock>,
}

/// What IPC_STAT and /proc show of a segment.
#[derive(Clone, Copy, Debug)]
pub struct Shown {
    /// Owner and mode.
    pub perm: Perm,
    /// Bytes.
    pub size: u64,
    /// Seconds of real time, or 0: of the last attachment, of the last end of one, and of the last change.
    pub times: [u64; 3],
    /// The process that made it.
    pub maker: u32,
    /// The process that last attached or detached it, or 0.
    pub last_pid: u32,
    /// Attachments.
    pub attached: u64,
}

/// What SHM_INFO shows.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    /// Segments.
    pub segments: usize,
    /// Their pages by size.
    pub pages: u64,
    /// Pages that are there.
    pub resident: u64,
}

fn pages(bytes: u64) -> u64 {
    bytes.div_ceil(PAGE)
}

/// A segment that is held like an attachment, while a mapping of it is made.
pub struct Held {
    segment: Arc<Segment>,
    object: Option<ObjectRef>,
}

impl Held {
    /// What is to be mapped, whole.
    ///
    /// # Panics
    /// Never: it is there until the drop.
    pub fn object(&self) -> &ObjectRef {
        self.object.as_ref().expect("until the drop")
    }

    /// Its bytes.
    pub fn size(&self) -> u64 {
        self.segment.size
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(object) = self.object.take() {
            object.release(mem::vm());
        }
        self.segment.count_down(|_| ());
    }
}

/// Finds a segment, or makes one of `size` bytes (shmget(2)). Sleeps.
///
/// # Errors
/// As shmget(2) says; `NoSpace` also beyond the user's limit.
pub fn get(wanted: Wanted, size: u64, caller: Caller<'_>) -> Result<i32> {
    let most = MAX_SEGMENTS.load(Relaxed);
    let fits = |segment: &Segment| {
        let fits = size <= segment.size;
        fits.then_some(()).ok_or(SysvError::Invalid)
    };
    registry().get(wanted, caller, most, fits, |id| {
        make(id, wanted, size, caller)
    })
}

/// The limit on the pages of all segments of one user.
fn users_pages() -> u64 {
    QUOTA
        .get()
        .map_or(0, |quota| quota.limit() / 8 * USERS_EIGHTHS)
}

fn make(id: i32, wanted: Wanted, size: u64, caller: Caller<'_>) -> Result<Arc<Segment>> {
    if size == 0 || size > MAX_BYTES.load(Relaxed) {
        return Err(SysvError::Invalid);
    }
    let quota = QUOTA.get().copied().ok_or(SysvError::NoMemory)?;
    let all = PAGES.load(Relaxed).saturating_add(pages(size));
    if all > MAX_PAGES.load(Relaxed) {
        return Err(SysvError::NoSpace);
    }
    if size > vfs::inode::MAX_SIZE {
        return Err(SysvError::NoMemory);
    }
    let bytes = Charged::bytes(caller.cred, size_of::<Segment>() + size_of::<vm::Object>())?;
    let count = pages(size) as usize;
    let pages = Charged::new(caller.cred, Charge::SharedPages, count, users_pages())?;
    let object = ObjectRef::new_file(mem::vm(), Some(quota)).map_err(|_| SysvError::NoMemory)?;
    object.truncate(mem::vm(), size.next_multiple_of(PAGE));
    let segment = Arc::new(Segment {
        id,
        key: wanted.key,
        size,
        maker: caller.pid,
        bytes,
        pages,
        state: Spin::new(State {
            perm: Perm::new(wanted.key, id, wanted.flags, caller.cred),
            attach_time: 0,
            detach_time: 0,
            change_time: now(),
            last_pid: 0,
            attached: 0,
            locked: None,
            object: Some(object.clone()),
        }),
    });
    object.set_tag(segment.clone());
    object.set_watch(segment.clone());
    // Changes are made under the lock of the keys, but for those that only lessen it.
    PAGES.fetch_add(count as u64, Relaxed);
    Ok(segment)
}

/// Holds a segment that is to be attached for reading, or also for writing and execution (shmat(2)).
///
/// # Errors
/// `Invalid` if there is none with that id, `Removed`, `Denied`.
pub fn hold(id: i32, (writes, executes): (bool, bool), caller: Caller<'_>) -> Result<Held> {
    let segment = registry().find(id)?;
    let want = READ | if writes { WRITE } else { 0 } | if executes { EXEC } else { 0 };
    let mut state = segment.state.lock();
    state.perm.check(want, caller.cred)?;
    let object = state.object.clone().ok_or(SysvError::Removed)?;
    state.attached += 1;
    drop(state);
    Ok(Held {
        segment,
        object: Some(object),
    })
}

/// Whether an object of the VM is that of a segment: for shmdt(2).
pub fn is_segment(object: &vm::Object) -> bool {
    object.tag().is_some_and(|tag| tag.is::<Segment>())
}

/// Removes a segment (IPC_RMID): it goes once it has no attachment. Sleeps.
///
/// # Errors
/// `Invalid`, `NotOwner`, `Removed`.
pub fn remove(id: i32, caller: Caller<'_>) -> Result<()> {
    let registry = registry();
    let mut keys = registry.lock_keys();
    let segment = registry.find(id)?;
    let mut state = segment.state.lock();
    state.perm.check_owner(caller.cred)?;
    if state.object.is_none() {
        return Err(SysvError::Removed);
    }
    let perm = state.perm;
    state.perm.key = PRIVATE;
    state.perm.mode |= REMOVED;
    let object = state.take_if_unused();
    drop(state);
    Registry::<Segment>::forget_key(&mut keys, &perm);
    drop(keys);
    segment.end(object);
    Ok(())
}

/// Changes a segment's owner (IPC_SET).
///
/// # Errors
/// `Invalid`, `NotOwner`, `Removed`.
pub fn set(id: i32, new: NewOwner, caller: Caller<'_>) -> Result<()> {
    let segment = registry().find(id)?;
    let mut state = segment.state.lock();
    state.perm.check_owner(caller.cred)?;
    if state.object.is_none() {
        return Err(SysvError::Removed);
    }
    state.perm.set_owner(new)?;
    state.change_time = now();
    Ok(())
}

/// Locks a segment's pages into memory or unlocks them (SHM_LOCK, SHM_UNLOCK). Pages that are there stay anyway: it is shown, and the
/// segment counts against `limit`, that of the caller's RLIMIT_MEMLOCK in bytes.
///
/// # Errors
/// `Invalid`, `Removed`; `NotOwner` for a caller that may not; `NoMemory` beyond the limit.
pub fn lock(id: i32, on: bool, limit: u64, caller: Caller<'_>) -> Result<()> {
    let segment = registry().find(id)?;
    let privileged = caller.cred.capable(Cap::IpcLock);
    let may = |perm: &Perm| privileged || perm.is_owner(caller.cred) && !(on && limit == 0);
    let charged = if on {
        let limit = if privileged { u64::MAX } else { limit / PAGE };
        let count = pages(segment.size) as usize;
        let charged = Charged::new(caller.cred, Charge::LockedPages, count, limit);
        Some(charged.map_err(|_| SysvError::NoMemory))
    } else {
        None
    };
    let mut state = segment.state.lock();
    if !may(&state.perm) {
        return Err(SysvError::NotOwner);
    }
    if state.object.is_none() {
        return Err(SysvError::Removed);
    }
    let old = match charged {
        None => {
            state.perm.mode &= !LOCKED;
            state.locked.take()
        }
        // A second time has no effect.
        Some(charged) if state.locked.is_none() => {
            state.locked = Some(charged?);
            state.perm.mode |= LOCKED;
            None
        }
        Some(charged) => charged.ok(),
    };
    drop(state);
    drop(old);
    Ok(())
}

/// Segments, and their pages. Takes time in proportion to the pages that are there.
pub fn totals() -> Totals {
    let mut resident = 0;
    registry().each(|segment| resident += segment.resident());
    Totals {
        segments: registry().count(),
        pages: PAGES.load(Relaxed),
        resident,
    }
}

impl State {
    /// The base reference, if the segment was removed and nothing has it attached: the caller frees it.
    fn take_if_unused(&mut self) -> Option<ObjectRef> {
        let unused = self.attached == 0 && self.perm.mode & REMOVED != 0;
        unused.then(|| self.object.take()).flatten()
    }
}

impl Segment {
    /// What is shown of it, if the caller may read it; `all` for SHM_STAT_ANY, for which anybody may.
    ///
    /// # Errors
    /// `Denied`, `Removed`.
    pub fn stat(&self, all: bool, caller: Caller<'_>) -> Result<Shown> {
        if !all {
            self.state.lock().perm.check(READ, caller.cred)?;
        }
        self.shown().ok_or(SysvError::Removed)
    }

    /// What is shown of it; `None` if it is being freed.
    pub fn shown(&self) -> Option<Shown> {
        let state = self.state.lock();
        state.object.as_ref()?;
        Some(Shown {
            perm: state.perm,
            size: self.size,
            times: [state.attach_time, state.detach_time, state.change_time],
            maker: self.maker,
            last_pid: state.last_pid,
            attached: state.attached,
        })
    }

    /// Its pages that are there.
    pub fn resident(&self) -> u64 {
        let object = self.state.lock().object.clone();
        object.map_or(0, |object| {
            let count = object.resident();
            object.release(mem::vm());
            count
        })
    }

    /// The key that it was made with.
    pub fn key(&self) -> i32 {
        self.key
    }

    /// Ends an attachment, or what counts as one; `note` is called under the lock. Frees the segment if it was removed and this was the last.
    fn count_down(&self, note: impl FnOnce(&mut State)) {
        let mut state = self.state.lock();
        debug_assert!(state.attached > 0, "an attachment was counted");
        state.attached -= 1;
        note(&mut state);
        let object = state.take_if_unused();
        drop(state);
        self.end(object);
    }

    /// Frees the segment, if the caller has taken its base reference. May sleep.
    fn end(&self, object: Option<ObjectRef>) {
        let Some(object) = object else { return };
        let locked = self.state.lock().locked.take();
        drop(locked);
        PAGES.fetch_sub(pages(self.size), Relaxed);
        registry().withdraw(self);
        object.release(mem::vm());
    }
}

impl Object for Segment {
    fn id(&self) -> i32 {
        self.id
    }

    fn perm(&self) -> Perm {
        self.state.lock().perm
    }

    fn bytes(&self) -> usize {
        self.bytes.amount()
    }

    fn give_back(&self) {
        self.bytes.give_back();
        self.pages.give_back();
    }
}

impl Watch for Segment {
    fn attached(&self) {
        let pid = own_pid();
        let mut state = self.state.lock();
        state.attached += 1;
        (state.attach_time, state.last_pid) = (now(), pid);
    }

    fn detached(&self) {
        let pid = own_pid();
        self.count_down(|state| (state.detach_time, state.last_pid) = (now(), pid));
    }
}
