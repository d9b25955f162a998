//! The holders of each 64-byte line: counts the moves that private caches of unlimited size would make.
//!
//! Guarantee: an access is a move exactly if another CPU holds the line and either this CPU does not (a load), or this
//! CPU is not the only holder (a store). The very first access to a line is no move: the line comes from memory. A move
//! is false sharing if the access concerns no word that ties the line to its holder: a load that reads no word written
//! since the line has had this owner, or a store to no word accessed since then.
//! Mechanism: a word for each line, changed by compare-and-swap, so that CPUs in different threads never lose a holder;
//! the directory of two levels is filled as memory is used. The counting follows mtrace.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes of a line.
pub const LINE: u64 = 64;

/// The most CPUs of a directory.
pub const CPUS: u32 = 32;

const CHUNK: u64 = 2 << 20; // bytes of memory described by one part of the directory

/// A line that moved from another CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The first byte of the line.
    pub line: u64,
    /// The access concerned none of the words for which the other CPU held the line.
    pub false_sharing: bool,
    /// The access was a store.
    pub store: bool,
}

/// Holders of a line (bits 0..32), words written since it had a single holder (32..40), words accessed since then
/// (40..48). Zero: never accessed.
#[derive(Clone, Copy)]
struct Entry(u64);

impl Entry {
    fn new(holders: u64, written: u64, touched: u64) -> Entry {
        Entry(holders | written << 32 | touched << 40)
    }

    fn holders(self) -> u64 {
        self.0 & 0xffff_ffff
    }

    fn written(self) -> u64 {
        self.0 >> 32 & 0xff
    }

    fn touched(self) -> u64 {
        self.0 >> 40 & 0xff
    }

    /// The entry after an access to `words` by the CPU whose bit is `me`, and, if the line moved, whether by false
    /// sharing.
    fn after(self, me: u64, words: u64, store: bool) -> (Entry, Option<bool>) {
        let (holders, written, touched) = (self.holders(), self.written(), self.touched());
        let kept = Entry::new(
            holders | me,
            written | if store { words } else { 0 },
            touched | words,
        );
        let mine = if store {
            holders == me
        } else {
            holders & me != 0
        };
        if holders == 0 || mine {
            (kept, None)
        } else if store {
            (Entry::new(me, words, words), Some(touched & words == 0))
        } else {
            (
                Entry::new(holders | me, written, touched | words),
                Some(written & words == 0),
            )
        }
    }
}

/// The lines of a machine's memory.
pub struct Directory {
    chunks: Vec<OnceLock<Box<[AtomicU64]>>>,
}

impl Directory {
    /// A directory for physical addresses below `bytes`; accesses beyond are ignored.
    pub fn new(bytes: u64) -> Directory {
        let chunks = (0..bytes.div_ceil(CHUNK)).map(|_| OnceLock::new());
        Directory {
            chunks: chunks.collect(),
        }
    }

    /// Records an access of `bytes` bytes at physical address `addr` by `cpu` and calls `moved` for each move: at most
    /// two, as an access crosses at most one line boundary.
    pub fn access(
        &self,
        cpu: u32,
        addr: u64,
        bytes: u64,
        store: bool,
        mut moved: impl FnMut(Move),
    ) {
        let end = addr + bytes.clamp(1, LINE);
        let mut at = addr;
        while at < end {
            let line = at & !(LINE - 1);
            let stop = end.min(line + LINE);
            if let Some(found) = self.line(cpu, line, words(at - line, stop - line), store) {
                moved(found);
            }
            at = stop;
        }
    }

    fn line(&self, cpu: u32, line: u64, words: u64, store: bool) -> Option<Move> {
        let chunk = self.chunks.get((line / CHUNK) as usize)?;
        let chunk = chunk.get_or_init(|| (0..CHUNK / LINE).map(|_| AtomicU64::new(0)).collect());
        let entry = &chunk[(line % CHUNK / LINE) as usize];
        let me = 1 << (cpu % CPUS);
        let mut seen = entry.load(Relaxed);
        loop {
            let (next, moved) = Entry(seen).after(me, words, store);
            if next.0 != seen {
                match entry.compare_exchange_weak(seen, next.0, Relaxed, Relaxed) {
                    Ok(_) => {}
                    Err(now) => {
                        seen = now;
                        continue;
                    }
                }
            }
            return moved.map(|false_sharing| Move {
                line,
                false_sharing,
                store,
            });
        }
    }
}

/// The 8-byte words of a line that contain its bytes `from..to`, a bit each.
fn words(from: u64, to: u64) -> u64 {
    (from / 8..to.div_ceil(8)).fold(0, |bits, word| bits | 1 << word)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The moves of a script of (cpu, address, bytes, store).
    fn play(script: &[(u32, u64, u64, bool)]) -> Vec<Option<bool>> {
        let directory = Directory::new(16 << 20);
        let one = |&(cpu, addr, bytes, store): &(u32, u64, u64, bool)| {
            let mut moved = None;
            directory.access(cpu, addr, bytes, store, |m| moved = Some(m.false_sharing));
            moved
        };
        script.iter().map(one).collect()
    }

    const TRUE: Option<bool> = Some(false);
    const FALSE: Option<bool> = Some(true);

    #[test]
    fn a_first_access_and_private_use_move_nothing() {
        assert_eq!(
            play(&[
                (0, 64, 8, false),
                (0, 64, 8, true),
                (0, 100, 4, false),
                (1, 128, 8, true)
            ]),
            [None; 4]
        );
    }

    #[test]
    fn readers_share_and_a_writer_takes_the_line_from_them() {
        let script = [
            (0, 0, 8, true),
            (1, 0, 8, false), // moves to 1 as well
            (1, 0, 8, false),
            (0, 0, 8, false), // 0 still has it
            (0, 0, 8, true),  // 1 loses it
            (0, 0, 8, true),
            (1, 0, 8, false),
        ];
        assert_eq!(play(&script), [None, TRUE, None, None, TRUE, None, TRUE]);
    }

    #[test]
    fn a_store_to_a_line_that_others_only_read_moves_it() {
        assert_eq!(play(&[(0, 0, 8, false), (1, 0, 8, true)]), [None, TRUE]);
    }

    #[test]
    fn different_words_of_one_line_are_false_sharing() {
        let script = [
            (0, 0, 8, true),
            (1, 8, 8, false),  // not what 0 wrote
            (1, 16, 8, true),  // nobody touched it
            (0, 8, 8, false),  // 1 did not write that since
            (0, 16, 8, false), // already moved
        ];
        assert_eq!(play(&script), [None, FALSE, FALSE, FALSE, None]);
    }

    #[test]
    fn an_access_across_two_lines_can_move_both() {
        let directory = Directory::new(1 << 20);
        directory.access(0, 0, 64, true, |_| panic!("first"));
        directory.access(0, 64, 8, true, |_| panic!("first"));
        let mut lines = Vec::new();
        directory.access(1, 60, 8, false, |m| lines.push((m.line, m.false_sharing)));
        assert_eq!(lines, [(0, false), (64, false)]);
    }

    #[test]
    fn memory_beyond_the_end_is_ignored() {
        let directory = Directory::new(CHUNK);
        directory.access(0, CHUNK, 8, true, |_| panic!("beyond"));
        directory.access(1, CHUNK, 8, true, |_| panic!("beyond"));
    }

    #[test]
    fn threads_lose_no_holder() {
        let directory = Directory::new(1 << 20);
        std::thread::scope(|scope| {
            for cpu in 0..8 {
                let directory = &directory;
                scope.spawn(move || {
                    for line in 0..1000 {
                        directory.access(cpu, line * LINE, 8, false, |_| {});
                    }
                });
            }
        });
        for line in 0..1000 {
            for cpu in 0..8 {
                directory.access(cpu, line * LINE, 8, false, |_| panic!("{cpu} lost {line}"));
            }
        }
    }
}
