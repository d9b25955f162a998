//! Memory that all processes of a run share: what the two sides tell each other, and the marker page.
//!
//! Both lie at fixed addresses, so that they are the same in every process. The sides' words lie in lines of their own.

use commute::marker::{self, Marker};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use user::sys;

/// Where the board begins.
const BOARD: u64 = 0x5b10_0000;

const BYTES: u64 = 16 << 10;

/// A word of the board, each in a line of its own.
#[derive(Clone, Copy)]
pub enum Word {
    /// How often a side has come to a barrier, both together.
    Arrived,
    /// Whose turn it is within a window.
    Turn,
    /// Not 0: somebody has failed.
    Failed,
    /// The case that is being run, as its place in the batch.
    Place,
    /// A side's child is ready.
    Ready(usize),
    /// A side's child shall go on.
    Go(usize),
    /// A word for futex calls of one side.
    Own(usize),
    /// A word for futex calls of both.
    One,
    /// The process that both sides send signals to.
    Target,
}

const MESSAGE: u64 = BOARD + 4096;
const MESSAGE_BYTES: u64 = 400;

/// Where the word lies.
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
/// The memory cannot be had.
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

/// Makes this process's tables map all of the board.
pub fn touch() {
    for page in 0..BYTES / 4096 {
        sys::peek(BOARD + page * 4096);
    }
    word(Word::Ready(1)).fetch_add(0, SeqCst);
    sys::atomic(MESSAGE).fetch_add(0, SeqCst);
    mark(Marker::Drop);
}

/// Begins a batch.
pub fn clear() {
    for w in [Word::Arrived, Word::Turn, Word::Failed, Word::Place] {
        word(w).store(0, SeqCst);
    }
}

/// Tells an observer.
pub fn mark(marker: Marker) {
    sys::poke64(marker.address(), 1);
}

/// Leaves a message for the process that started the batch; the first one counts.
pub fn fail(message: &str) {
    if word(Word::Failed).swap(1, SeqCst) != 0 {
        return;
    }
    let bytes = message.bytes().take(MESSAGE_BYTES as usize - 1).chain([0]);
    for (at, byte) in (MESSAGE..).zip(bytes) {
        sys::poke(at, byte);
    }
}

/// The message that was left.
pub fn message() -> String {
    let bytes = (MESSAGE..MESSAGE + MESSAGE_BYTES).map(sys::peek);
    let bytes: Vec<u8> = bytes.take_while(|&byte| byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}
