//! Credentials: who a thread acts as.
//!
//! Each thread owns its copy, so fork touches no counter that others touch.  The set is immutable once published; a
//! change builds a new one ([`task::thread::Thread::set_cred`]).

pub use ::cred::{
    AfterExec, Cap, CapSet, Charge, Cred, LookAs, MemoryCharge, NotPermitted, Payer, SecureBits,
    SetIds,
};
