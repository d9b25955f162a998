//! Synchronisation: locks that know their name and rank, epochs, per-CPU data.
#![no_std]
