//! Memory that all processes of a run share: the words by which the two sides synchronize, and the marker page.
//!
//! Both lie at fixed addresses, so that they are the same in every process. The sides' words lie in lines of their own.

use commute::marker::{self, Marker};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use user::sys;

/// The address of the board.
const BOARD: u64 = 0x5b10_0000;

const BYTES: u64 = 16 << 10;

/// A word of the board, each in a line of its own.
#[derive(Clone, Copy)]
pub enum Word {
    /// How often the sides have arrived at a barrier, added up.
    Arrived,
    /// The side that acts now within a window.
    Turn,
    /// Not 0: a process has failed.
    Failed,
    /// The index in the batch of the running case.
    Place,
    /// A side's child is ready.
    Ready(usize),
    /// A side's child may continue.
    Go(usize),
    /// A word for futex calls of one side.
    Own(usize),
    /// A word for futex calls of both.
    One,
    /// The process to which both sides send signals.
    Target,
}

const MESSAGE: u64 = BOARD + 4096;
const MESSAGE_BYTES: u64 = 400;

/// The address of the word.
pub fn address(word: Word) -> u64 {
    let line = match word {
        Word::Arrived => 0,
        Word::Turn => 1,
        Word::Failed => 2,
        Word::Place => 3,
        Word::Target => 4,
        Word::One => 5,
        Word::Ready(side) => 8 + side,
        Word::Go(side) => 10 + side,
        Word::Own(side) => 12 + side,
    };
    BOARD + 64 * line as u64
}

/// The word itself.
pub fn word(word: Word) -> &'static AtomicU64 {
    sys::atomic(address(word))
}

/// Maps the board and the marker page.
///
/// # Errors
/// The memory cannot be mapped.
pub fn make() -> Result<(), String> {
    for (at, bytes) in [(BOARD, BYTES), (marker::PAGE, 4096)] {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        sys::mmap(at, bytes, prot, flags, -1, 0)
            .map_err(|e| format!("mmap of the board: errno {e}"))?;
    }
    touch();
    Ok(())
}

/// Populates this process's page tables for the whole board.
pub fn touch() {
    for page in 0..BYTES / 4096 {
        sys::peek(BOARD + page * 4096);
    }
    word(Word::Ready(1)).fetch_add(0, SeqCst);
    sys::atomic(MESSAGE).fetch_add(0, SeqCst);
    mark(Marker::Drop);
}

/// Resets the board for a batch.
pub fn clear() {
    for w in [Word::Arrived, Word::Turn, Word::Failed, Word::Place] {
        word(w).store(0, SeqCst);
    }
}

/// Announces a marker to an observer.
pub fn mark(marker: Marker) {
    sys::poke64(marker.address(), 1);
}

/// Leaves a message for the process that started the batch; only the first message is kept.
pub fn fail(message: &str) {
    if word(Word::Failed).swap(1, SeqCst) != 0 {
        return;
    }
    let bytes = message.bytes().take(MESSAGE_BYTES as usize - 1).chain([0]);
    for (at, byte) in (MESSAGE..).zip(bytes) {
        sys::poke(at, byte);
    }
}

/// The message that [`fail`] left.
pub fn message() -> String {
    let bytes = (MESSAGE..MESSAGE + MESSAGE_BYTES).map(sys::peek);
    let bytes: Vec<u8> = bytes.take_while(|&byte| byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}
