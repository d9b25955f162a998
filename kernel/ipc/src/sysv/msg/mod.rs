//! Message queues: msgget(2), msgsnd(2), msgrcv(2), msgctl(2).
//!
//! Guarantee: a message is received once, and messages of one type in the order in which they were sent. Threads that wait are served in the
//! order in which they came, as far as what they wait for permits. A queue has no more bytes, and no more messages, than its limit says.
//!
//! Mechanism: a queue has one lock. A receiver that must wait is on a list, and what is sent goes to the first one that takes it; a
//! sender that must wait is on another, with its message, which the receiver that makes room puts into the queue.

mod control;
mod queue;
mod transfer;

pub use self::control::{NewSettings, Shown, Sums, remove, set, sums};
pub(super) use self::queue::init;
pub use self::queue::{MAX_BYTES, MAX_MESSAGE, MAX_QUEUES, Message, Queue, get, registry};
pub use self::transfer::{Choice, Want, copy, receive, send};
