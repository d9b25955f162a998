//! Signals.
//!
//! A signal is *posted* to a thread or to a process (`send`), *taken* by a thread on its way to user mode or in
//! sigtimedwait (`take`, `deliver`), and *acted on* as the process's action says (`action`). The process's signal lock
//! orders posting, taking, stopping and changes of actions (`state`). Atomic words show whether a signal is pending,
//! without a lock (`pending`, `mask`).

mod action;
mod altstack;
mod deliver;
mod frame;
mod group;
mod info;
mod mask;
mod pending;
mod raise;
mod restart;
mod send;
mod set;
mod sigaction;
mod state;
mod stop;
mod take;
mod thread;

pub use action::{Action, ActionTable, SA_NOCLDSTOP};
pub use altstack::{AltStack, AltStackError, OwnAltStack, altstack_words};
pub use deliver::{before_user_return, may_want_restart};
pub use frame::sigreturn;
pub use group::{each_member, signal_group, signal_own_group, signal_whole_group};
pub use info::{SigFields, SigInfo, code};
pub(crate) use mask::signal_pending;
pub(super) use pending::ENTRY_BYTES;
pub use pending::{Pending, SharedPending, ThreadPending};
pub use raise::{deliver_fault, force, raise};
pub use restart::RestartBlock;
pub(crate) use send::{News, leave};
pub use send::{
    SendError, kill_process, may_signal, queue_process, send_of_file, send_process, send_thread,
};
pub(super) use send::{Sent, discard_of_timer, end_timers, send_of_timer};
pub use set::{SigSet, sig};
pub use sigaction::{action, set_action};
pub use state::Shared;
pub(crate) use state::StopReport;
pub(crate) use stop::notify_parent_stopped;
pub use take::{arrivals, pending, take};
pub use thread::{SignalExt, change_altstack};
