//! Processes and threads.
pub mod upcall;
