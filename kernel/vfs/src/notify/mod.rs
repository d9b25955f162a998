//! Watches of inodes: what is told of what happens to a file, and how an operation finds out that nothing is.
//!
//! Guarantee: an operation on a file that nobody watches, in a directory that nobody watches, reads two words for it, each in a line
//! that it reads anyway, and takes no lock. Each event is told to every watch that was there before the operation began and is there
//! when it ends. Events of the names of one directory are told in the order in which the names changed. Mechanism: see
//! `doc/inotify.md`.
//!
//! - [`event`] says what an event is, and what a watch is asked; [`table`] finds the watches of an inode;
//! - [`told`] tells the events of files, of names and of attributes; `of_inode` those that only the watches of one inode are told.

pub mod event;
mod of_inode;
pub mod table;
pub mod told;
