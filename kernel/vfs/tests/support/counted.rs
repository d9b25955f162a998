//! A file whose closes are counted.
#![allow(dead_code, reason = "no test uses all of it")]

use std::sync::Arc;

use ksync::atomic::{AtomicU32, Ordering::SeqCst};
use vfs::file::{File, FileOps, FileRef, Kind, o};

/// A file that counts how often it is closed.
pub struct Counted(pub Arc<AtomicU32>);

impl FileOps for Counted {
    fn close(&self, _: &File) {
        self.0.fetch_add(1, SeqCst);
    }
}

/// A file, and how often it was closed.
pub fn counted() -> (FileRef, Arc<AtomicU32>) {
    let closed = Arc::new(AtomicU32::new(0));
    let kind = Kind::Other(Box::new(Counted(closed.clone())));
    (File::open(None, kind, o::RDWR), closed)
}
