//! The table of a directory's names, with hashes that the test chooses.
#![cfg(not(shuttle))]

mod support;

use std::sync::Arc;

use ksync::CpuPin;
use support::on;
use vfs::table::{NameTable, Named};

struct Name(u32, Vec<u8>);

impl Named for Name {
    fn hash(&self) -> u32 {
        self.0
    }
    fn is_named(&self, _: &CpuPin, hash: u32, name: &[u8]) -> bool {
        (self.0, &*self.1) == (hash, name)
    }
}

/// Names whose hashes are the same, or differ in their highest bits alone.
#[test]
fn names_with_one_hash_are_told_apart() {
    on(1, || {
        let table = NameTable::new();
        let name = |n: u32| Arc::new(Name(0x0abc_def0 | (n % 2) << 31, vec![n as u8]));
        let names: Vec<_> = (0..40).map(name).collect();
        for (n, name) in names.iter().enumerate() {
            table.insert(name).unwrap();
            assert_eq!(table.count(), n + 1);
        }
        let found = |name: &Name| {
            let pin = ksync::pin();
            table.find(&pin, name.0, &name.1).map(Arc::as_ptr)
        };
        assert!(
            names
                .iter()
                .all(|name| found(name) == Some(Arc::as_ptr(name)))
        );
        for (n, name) in names.iter().enumerate() {
            table.remove(name);
            assert_eq!((found(name), table.count()), (None, 39 - n));
            assert!(names[n + 1..].iter().all(|name| found(name).is_some()));
        }
    });
}
