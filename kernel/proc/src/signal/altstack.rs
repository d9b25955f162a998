//! The alternate stack that handlers run on.

use ksync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

const SS_ONSTACK: u32 = 1;
const SS_DISABLE: u32 = 2;
/// sigaltstack(2): the alternate stack is disabled while a handler runs, on that stack or not.
pub const SS_AUTODISARM: u32 = 1 << 31;
/// The fewest bytes of an alternate stack: Linux's MINSIGSTKSZ.
const MIN_SIZE: u64 = 2048;

/// The alternate stack of sigaltstack(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AltStack {
    /// Lowest address.
    pub sp: u64,
    /// Bytes; 0 for none.
    pub size: u64,
    /// The flags with which it was set, SS_DISABLE among them; frames keep them. 0 at first.
    pub flags: u32,
}

impl AltStack {
    /// No alternate stack: none has been set. A frame that says so leaves one alone that the handler sets, as in Linux.
    pub const NONE: AltStack = AltStack {
        sp: 0,
        size: 0,
        flags: 0,
    };

    /// No alternate stack: it is disabled. A frame that says so disables one that the handler sets.
    pub const DISABLED: AltStack = AltStack {
        flags: SS_DISABLE,
        ..AltStack::NONE
    };

    /// Whether the stack pointer `sp` is on it: above its lowest address, up to one past its last byte, where it is empty.
    pub fn contains(&self, sp: u64) -> bool {
        self.size != 0 && sp > self.sp && sp - self.sp <= self.size
    }

    /// Whether a thread with the stack pointer `sp` counts as running on it. With SS_AUTODISARM it does not, as in Linux: a
    /// handler disables the stack, so the thread is there only if the program itself has gone there.
    pub fn is_in_use(&self, sp: u64) -> bool {
        self.flags & SS_AUTODISARM == 0 && self.contains(sp)
    }

    /// The stack that takes this one's place, of the words of a `stack_t`, for a thread whose stack pointer is `sp`.
    ///
    /// # Errors
    /// [`AltStackError`].
    pub(super) fn replacement(
        &self,
        sp: u64,
        [base, flags, size]: [u64; 3],
    ) -> Result<AltStack, AltStackError> {
        if self.is_in_use(sp) {
            return Err(AltStackError::InUse);
        }
        let flags = flags as u32;
        // SS_ONSTACK is accepted, as Linux does, and means nothing.
        let new = match flags & !SS_AUTODISARM {
            SS_DISABLE => AltStack {
                flags,
                ..AltStack::NONE
            },
            0 | SS_ONSTACK => AltStack {
                sp: base,
                size,
                flags,
            },
            _ => return Err(AltStackError::Invalid),
        };
        if new.flags & SS_DISABLE == 0 && size < MIN_SIZE && new != *self {
            return Err(AltStackError::Small);
        }
        Ok(new)
    }
}

/// Why the alternate stack was not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AltStackError {
    /// The thread runs on it.
    InUse,
    /// There are no such flags.
    Invalid,
    /// The new one is too small.
    Small,
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
        s if s.is_in_use(sp) => SS_ONSTACK,
        _ => 0,
    };
    [
        stack.sp,
        u64::from(state | stack.flags & SS_AUTODISARM),
        stack.size,
    ]
}
