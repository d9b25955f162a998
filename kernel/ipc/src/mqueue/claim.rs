//! How large a queue is, and what its maker is charged for it.

use ksync::atomic::{AtomicU64, Ordering::Relaxed};

use cred::{Cap, Charge, Cred, Payer};
use vfs::error::{FsError, Result};

use super::{
    DEFAULT_MESSAGES, DEFAULT_SIZE, HARD_MESSAGES, HARD_SIZE, MAX_MESSAGES, MAX_QUEUES, MAX_SIZE,
    PRIORITIES,
};

/// Bytes that Linux counts for a message besides its text, and for a priority that has messages.
const HEAD: usize = 48;

hal::machine_static! {
    /// Queues that there are. Atomic.
    static QUEUES: AtomicU64 = AtomicU64::new(0);
}

/// The size of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The most messages.
    pub messages: usize,
    /// The most bytes of one.
    pub size: usize,
}

impl Shape {
    /// The size that a program asks for by `wanted`, messages and bytes, or that of a queue whose maker does not say.
    ///
    /// # Errors
    /// `Invalid` if `cred` may not make such a queue.
    pub fn new(wanted: Option<[i64; 2]>, cred: &Cred) -> Result<Shape> {
        let least = |a: &AtomicU64, b: &AtomicU64| a.load(Relaxed).min(b.load(Relaxed));
        let [messages, size] = match wanted {
            Some(wanted) => wanted.map(|n| u64::try_from(n).unwrap_or(0)),
            None => [
                least(&MAX_MESSAGES, &DEFAULT_MESSAGES),
                least(&MAX_SIZE, &DEFAULT_SIZE),
            ],
        };
        let most = match cred.capable(Cap::SysResource) {
            true => [HARD_MESSAGES, HARD_SIZE],
            false => [MAX_MESSAGES.load(Relaxed), MAX_SIZE.load(Relaxed)],
        };
        if messages == 0 || size == 0 || messages > most[0] || size > most[1] {
            return Err(FsError::Invalid);
        }
        Ok(Shape {
            messages: messages as usize,
            size: size as usize,
        })
    }

    /// Bytes that are charged, as Linux counts them.
    fn bytes(self) -> usize {
        let priorities = self.messages.min(PRIORITIES as usize);
        self.messages * (self.size + HEAD) + priorities * HEAD
    }
}

/// One of the queues that there may be.
pub(super) struct Counted(());

impl Counted {
    /// Counts another queue, of a maker with these credentials.
    ///
    /// # Errors
    /// `NoSpace` if there are too many.
    pub fn new(cred: &Cred) -> Result<Counted> {
        let most = match cred.capable(Cap::SysResource) {
            true => u64::MAX,
            false => MAX_QUEUES.load(Relaxed),
        };
        let next = |others: u64| (others < most).then_some(others + 1);
        let counted = QUEUES.fetch_update(Relaxed, Relaxed, next);
        counted.map(|_| Counted(())).map_err(|_| FsError::NoSpace)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        QUEUES.fetch_sub(1, Relaxed);
    }
}

/// What a queue's maker is charged for it.
pub(super) struct Claim {
    payer: Payer,
    bytes: usize,
    _counted: Counted,
}

impl Claim {
    /// Charges a queue to the user of `cred`, whom RLIMIT_MSGQUEUE permits `limit` bytes.
    ///
    /// # Errors
    /// `TooManyFiles` beyond the limit. Nothing is charged.
    pub fn new(counted: Counted, shape: Shape, cred: &Cred, limit: u64) -> Result<Claim> {
        let bytes = shape.bytes();
        let (payer, kind) = (cred.payer, Charge::Queues);
        if bytes as u64 > limit || !payer.charge_within(kind, bytes, limit) {
            return Err(FsError::TooManyFiles);
        }
        Ok(Claim {
            payer,
            bytes,
            _counted: counted,
        })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.payer.give_back(Charge::Queues, self.bytes);
    }
}
