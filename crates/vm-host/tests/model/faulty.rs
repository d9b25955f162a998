//! A reverse map that skips a backing now and then does not go unnoticed.

use crate::noticed::{TRIES, noticed};

#[test]
fn a_skipped_backing_fails_the_tests() {
    let failed = noticed(|_| ());
    println!("{failed} of {TRIES} sequences noticed");
    assert!(failed > 0, "no sequence noticed that scans skip mappings");
}
