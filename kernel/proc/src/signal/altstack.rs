//! The alternate stack that handlers run on.

use ksync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

pub(super) const SS_ONSTACK: u32 = 1;
pub(super) const SS_DISABLE: u32 = 2;
/// sigaltstack(2): the alternate stack is disabled while a handler runs, on that stack or not.
pub const SS_AUTODISARM: u32 = 1 << 31;

/// The alternate stack of sigaltstack(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AltStack {
    /// Lowest address.
    pub sp: u64,
    /// Bytes; 0 for none.
    pub size: u64,
    /// SS_AUTODISARM or 0.
    pub flags: u32,
}

impl AltStack {
    /// No alternate stack.
    pub const NONE: AltStack = AltStack {
        sp: 0,
        size: 0,
        flags: 0,
    };

    /// Whether the stack pointer `sp` is on it: above its lowest address, up to one past its last byte, where it is empty.
    pub fn contains(&self, sp: u64) -> bool {
        self.size != 0 && sp > self.sp && sp - self.sp <= self.size
    }
}

/// Where a thread keeps its alternate stack, at first none. Only the thread itself uses it, and its maker before it runs.
#[derive(Default)]
pub struct OwnAltStack {
    sp: AtomicU64,
    size: AtomicU64,
    flags: AtomicU32,
}

impl OwnAltStack {
    /// The stack.
    pub fn get(&self) -> AltStack {
        AltStack {
            sp: self.sp.load(Relaxed),
            size: self.size.load(Relaxed),
            flags: self.flags.load(Relaxed),
        }
    }

    /// Replaces the stack.
    pub fn set(&self, stack: AltStack) {
        self.sp.store(stack.sp, Relaxed);
        self.size.store(stack.size, Relaxed);
        self.flags.store(stack.flags, Relaxed);
    }
}

/// The words of a `stack_t` as sigaltstack(2) reports them, for a thread whose stack pointer is `sp`.
pub fn altstack_words(stack: &AltStack, sp: u64) -> [u64; 3] {
    let state = match stack {
        s if s.size == 0 => SS_DISABLE,
        s if s.contains(sp) => SS_ONSTACK,
        _ => 0,
    };
    [stack.sp, u64::from(state | stack.flags), stack.size]
}
