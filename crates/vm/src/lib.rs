//! The machine-independent virtual memory system.
#![no_std]
extern crate alloc;
