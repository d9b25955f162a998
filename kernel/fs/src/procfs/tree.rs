//! How the fixed directories are written down.

use vfs::dynamic::Fixed;

/// Entries of a fixed directory.
pub type Tree = &'static [(&'static str, Fixed)];
