//! Texts that are made when they are read: how long they may become.
#![cfg(not(shuttle))]

mod support;

use support::on;
use vfs::dynamic::Text;
use vfs::error::FsError;

const MIB: usize = 1 << 20;

#[test]
fn a_text_has_at_most_sixteen_mebibytes() {
    on(1, || {
        let piece = vec![b'x'; MIB];
        let mut text = Text::new();
        for _ in 0..16 {
            text.push(&piece);
        }
        assert_eq!(text.position(), 16 * MIB);
        assert_eq!(text.finish().map(|bytes| bytes.len()), Ok(16 * MIB));
    });
}

#[test]
fn what_follows_a_piece_that_does_not_fit_is_dropped_too() {
    on(1, || {
        let mut text = Text::new();
        text.push(b"head");
        text.push(&vec![b'x'; 16 * MIB]);
        let before = text.position();
        text.push(b"t");
        text.pad(0, 100);
        assert_eq!((before, text.position()), (4, 4));
        assert_eq!(text.finish().err(), Some(FsError::NoMemory));
    });
}
