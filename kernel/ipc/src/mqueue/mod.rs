//! POSIX message queues. `doc/mqueue.md` has the guarantees, the order of locks, and the time lines.
//!
//! [`open`] and [`unlink`] find queues by their names; [`send`], [`receive`] and [`register`] are about an open file. Beneath them: `queue` has a queue and
//! its ends, `claim` what its maker is charged, `transfer` the messages, `notice` the registration of a process that is to be told, `file` the
//! operations of the open file, `names` the file system in which the queues are.

mod claim;
mod file;
mod names;
mod notice;
mod queue;
mod transfer;

use ksync::atomic::AtomicU64;

pub use self::claim::Shape;
pub use self::file::{QueueFile, shape};
pub(crate) use self::names::bytes;
pub use self::names::{How, mount, open, unlink};
pub use self::notice::{Notice, Registration, register, unregister};
pub use self::transfer::{Message, check_room, check_send, receive, send};

/// One more than the highest priority.
pub const PRIORITIES: u32 = 32768;
/// The most that `msg_max` and `msg_default` may be, and that a queue of a privileged process may have.
pub const HARD_MESSAGES: u64 = 65536;
/// The same for `msgsize_max` and `msgsize_default`.
pub const HARD_SIZE: u64 = 16 << 20;
/// The least that `msgsize_max` and `msgsize_default` may be.
pub const LEAST_SIZE: u64 = 128;

hal::machine_static! {
    /// /proc/sys/fs/mqueue/queues_max. Atomic, as those that follow.
    pub static MAX_QUEUES: AtomicU64 = AtomicU64::new(256);
    /// msg_max: messages of a queue.
    pub static MAX_MESSAGES: AtomicU64 = AtomicU64::new(10);
    /// msgsize_max: bytes of a message.
    pub static MAX_SIZE: AtomicU64 = AtomicU64::new(8192);
    /// msg_default: messages of a queue whose maker does not say.
    pub static DEFAULT_MESSAGES: AtomicU64 = AtomicU64::new(10);
    /// msgsize_default: bytes of a message there.
    pub static DEFAULT_SIZE: AtomicU64 = AtomicU64::new(8192);
}
