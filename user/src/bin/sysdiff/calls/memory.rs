//! Mappings: all lie in one arena of pages, most of them in aligned blocks of eight.

use super::{Call, files};
use crate::actor::{Act, Name, say};
use crate::dice::{digest, short};
use crate::normal;
use user::sys::{self, access};

/// Bytes of a page.
pub const PAGE: u64 = 4096;
/// The address of the arena.
pub const ARENA: u64 = 0x1000_0000_0000;
/// Pages of the arena.
pub const PAGES: u64 = 64;
/// Pages from the start of one block to the next.
const SEAT: u64 = 8;

/// See [`super::FAMILIES`].
pub const CALLS: &[Call] = &[
    (16, map),
    (10, unmap),
    (9, protect),
    (18, remap),
    (10, advise),
    (4, resident),
    (2, sync),
    (3, lock),
    (24, store),
    (12, load),
    (5, fill),
    (4, exchange),
];

fn at(page: u64) -> u64 {
    ARENA + page * PAGE
}

fn is_mapped(page: u64) -> bool {
    let mut vector = [0u8; 1];
    page < PAGES
        && sys::call(
            libc::SYS_mincore,
            &[at(page), PAGE, vector.as_mut_ptr() as u64],
        )
        .is_ok()
}

/// Whether there is a mapping at the start of a block.
pub fn is_anything_mapped() -> bool {
    (0..PAGES / SEAT).any(|n| is_mapped(n * SEAT))
}

/// An address at which a mapping may start.
fn seat(act: &mut Act) -> u64 {
    if act.dice.chance(80) {
        act.dice.below(PAGES / SEAT) * SEAT
    } else {
        act.dice.below(PAGES)
    }
}

/// A mapped page, if there is one; mostly the first of a mapping.
fn mapped(act: &mut Act) -> u64 {
    let start = seat(act);
    if act.dice.chance(6) {
        return start;
    }
    let seats = (0..PAGES / SEAT).map(|n| (start + n * SEAT) % PAGES);
    let pages = (0..PAGES).map(|n| (start + n) % PAGES);
    seats
        .chain(pages)
        .find(|&page| is_mapped(page))
        .unwrap_or(start)
}

/// A mapped page with mapped pages around it.
pub fn inside(act: &mut Act) -> u64 {
    let page = mapped(act);
    let further = page + act.dice.below(SEAT);
    if is_mapped(further) { further } else { page }
}

/// A number of pages from `page`: mostly no more than are mapped there.
fn length(act: &mut Act, page: u64) -> u64 {
    let most = (0..SEAT).take_while(|&n| is_mapped(page + n)).count() as u64;
    let wanted = 1 + act.dice.below(SEAT);
    if act.dice.chance(70) && most > 0 {
        wanted.min(most)
    } else {
        wanted.min(PAGES - page)
    }
}

fn protection(act: &mut Act) -> i32 {
    let rw = libc::PROT_READ | libc::PROT_WRITE;
    act.dice.of_these(&[
        rw,
        rw,
        rw,
        rw,
        rw,
        libc::PROT_READ,
        libc::PROT_READ,
        libc::PROT_NONE,
        rw | libc::PROT_EXEC,
    ])
}

/// Creates a mapping.
pub fn map(act: &mut Act) {
    let (page, pages) = (seat(act), 1 + act.dice.below(SEAT));
    let pages = pages.min(PAGES - page);
    let prot = if act.dice.chance(60) {
        libc::PROT_READ | libc::PROT_WRITE
    } else {
        protection(act)
    };
    let mut flags = if act.dice.chance(55) {
        libc::MAP_SHARED
    } else {
        libc::MAP_PRIVATE
    };
    let (mut fd, mut offset) = (-1, 0);
    if act.dice.chance(65) {
        flags |= libc::MAP_ANONYMOUS;
    } else {
        fd = files::regular(act);
        offset = act.dice.below(3) * PAGE;
    }
    flags |= if act.dice.chance(85) {
        libc::MAP_FIXED
    } else {
        libc::MAP_FIXED_NOREPLACE
    };
    flags |= act
        .dice
        .bits(&[(libc::MAP_POPULATE, 8), (libc::MAP_NORESERVE, 5)]);
    say!(
        act,
        "mmap(@{page}, {pages}, prot {prot:#x}, {flags:#x}, {fd}, {})",
        offset / PAGE
    );
    let result = sys::mmap(at(page), pages * PAGE, prot, flags, fd, offset);
    located(act, result);
}

fn located(act: &mut Act, result: Result<u64, i32>) {
    match result {
        Ok(addr) => say!(act, " = {}", normal::address(addr)),
        Err(errno) => say!(act, " = {}", Name(errno)),
    }
}

fn unmap(act: &mut Act) {
    let page = mapped(act);
    let pages = length(act, page);
    say!(act, "munmap(@{page}, {pages})");
    let _ = act.call(libc::SYS_munmap, &[at(page), pages * PAGE]);
}

fn protect(act: &mut Act) {
    let page = inside(act);
    let (pages, prot) = (length(act, page), protection(act));
    say!(act, "mprotect(@{page}, {pages}, {prot:#x})");
    let _ = act.call(libc::SYS_mprotect, &[at(page), pages * PAGE, prot as u64]);
}

fn remap(act: &mut Act) {
    let page = mapped(act);
    let old = if act.dice.chance(8) {
        0
    } else {
        length(act, page)
    };
    let new = 1 + act.dice.below(SEAT);
    let to = seat(act).min(PAGES - new);
    let mut flags = 0;
    match act.dice.below(10) {
        // In place: shrinks and grows the mapping.
        0..5 => {}
        5..9 => flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED,
        _ => flags = libc::MREMAP_MAYMOVE,
    }
    if flags & libc::MREMAP_FIXED != 0 && act.dice.chance(12) {
        flags |= libc::MREMAP_DONTUNMAP;
    }
    // A target that overlaps the source is refused only if the old length is not zero.
    let old = if page >= to && page < to + new {
        old.max(1)
    } else {
        old
    };
    let new = if flags & libc::MREMAP_DONTUNMAP != 0 {
        old.max(1)
    } else {
        new
    }
    .min(PAGES - to);
    say!(act, "mremap(@{page}, {old}, {new}, {flags:#x}, @{to})");
    let result = sys::call(
        libc::SYS_mremap,
        &[at(page), old * PAGE, new * PAGE, flags as u64, at(to)],
    );
    located(act, result);
    // A mapping moved out of the arena is moved back to where the program can use it.
    if let Ok(addr) = result.filter_away() {
        let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
        say!(act, ", to @{to}");
        let result = sys::call(
            libc::SYS_mremap,
            &[addr, new * PAGE, new * PAGE, flags, at(to)],
        );
        located(act, result);
    }
}

/// An address outside of the arena.
trait Away {
    /// The address, if it is one outside of the arena.
    fn filter_away(self) -> Result<u64, i32>;
}

impl Away for Result<u64, i32> {
    fn filter_away(self) -> Result<u64, i32> {
        self.and_then(|addr| {
            if (ARENA..at(PAGES)).contains(&addr) {
                Err(0)
            } else {
                Ok(addr)
            }
        })
    }
}

fn advise(act: &mut Act) {
    let page = inside(act);
    let pages = length(act, page);
    let advice = act.dice.of_these(&[
        libc::MADV_DONTNEED,
        libc::MADV_DONTNEED,
        libc::MADV_DONTNEED,
        libc::MADV_REMOVE,
        libc::MADV_REMOVE,
        libc::MADV_DONTFORK,
        libc::MADV_DOFORK,
        libc::MADV_WIPEONFORK,
        libc::MADV_KEEPONFORK,
        libc::MADV_WILLNEED,
        libc::MADV_POPULATE_READ,
        libc::MADV_POPULATE_WRITE,
        77,
    ]);
    say!(act, "madvise(@{page}, {pages}, {advice})");
    let _ = act.call(libc::SYS_madvise, &[at(page), pages * PAGE, advice as u64]);
}

fn resident(act: &mut Act) {
    let page = mapped(act);
    let pages = length(act, page);
    let mut vector = [0u8; SEAT as usize];
    say!(act, "mincore(@{page}, {pages})");
    if act
        .call(
            libc::SYS_mincore,
            &[at(page), pages * PAGE, vector.as_mut_ptr() as u64],
        )
        .is_ok()
    {
        say!(act, " ");
        vector[..pages as usize]
            .iter()
            .for_each(|byte| say!(act, "{}", byte & 1));
    }
}

fn sync(act: &mut Act) {
    let page = mapped(act);
    let pages = length(act, page);
    let flags = act.dice.of_these(&[
        libc::MS_SYNC,
        libc::MS_ASYNC,
        libc::MS_INVALIDATE,
        libc::MS_SYNC | libc::MS_ASYNC,
    ]);
    say!(act, "msync(@{page}, {pages}, {flags})");
    let _ = act.call(libc::SYS_msync, &[at(page), pages * PAGE, flags as u64]);
}

fn lock(act: &mut Act) {
    let page = inside(act);
    let pages = length(act, page);
    let (name, nr, flags) = act.dice.of_these(&[
        ("mlock", libc::SYS_mlock, 0),
        ("munlock", libc::SYS_munlock, 0),
        ("mlock2", libc::SYS_mlock2, 1),
    ]);
    say!(act, "{name}(@{page}, {pages})");
    let _ = act.call(nr, &[at(page), pages * PAGE, flags]);
}

/// A word of a page.
fn word(act: &mut Act) -> u64 {
    act.dice.of_these(&[0, 0, 8, 2048, 4088])
}

fn tried<T>(act: &mut Act, result: Result<T, (i32, i32)>, told: impl FnOnce(&mut Act, T)) {
    match result {
        Ok(value) => told(act, value),
        Err((signal, code)) => say!(act, " = signal {signal} code {code}"),
    }
}

fn store(act: &mut Act) {
    let (page, word) = (inside(act), word(act));
    let value = act.dice.below(0x10000);
    say!(act, "store(@{page}+{word}, {value:x})");
    let result = access::try_store(at(page) + word, value);
    tried(act, result, |act, ()| say!(act, " = ok"));
}

fn load(act: &mut Act) {
    let (page, word) = (inside(act), word(act));
    say!(act, "load(@{page}+{word})");
    let result = access::try_load(at(page) + word);
    tried(act, result, |act, value| say!(act, " = {value:x}"));
}

/// Writes to each page of a range until one faults.
fn fill(act: &mut Act) {
    let page = mapped(act);
    let pages = length(act, page);
    let value = act.dice.below(0x10000);
    say!(act, "fill(@{page}, {pages}, {value:x})");
    let result =
        (page..page + pages).try_for_each(|page| access::try_store(at(page) + 16, value + page));
    tried(act, result, |act, ()| say!(act, " = ok"));
}

/// Reads or writes a file or pipe, with a buffer in the arena.
fn exchange(act: &mut Act) {
    let page = inside(act);
    let addr = at(page) + act.dice.of_these(&[0, 0, 100, 4090]);
    let len = act.dice.of_these(&[8, 100, 4096, 6000, 12_288]);
    let fd = files::regular(act);
    let offset = act.dice.of_these(&[0, 0, 50, 4096, 8192]);
    let (name, nr) = act.dice.of_these(&[
        ("pread64", libc::SYS_pread64),
        ("pwrite64", libc::SYS_pwrite64),
    ]);
    say!(
        act,
        "{name}({fd}, @{page}+{}, {len}, {offset})",
        (addr - ARENA) % PAGE
    );
    let _ = act.call(nr, &[fd as u64, addr, len, offset]);
}

/// The contents of a page for a snapshot.
pub fn content(page: u64) -> Content {
    if !is_mapped(page) {
        return Content::Unmapped;
    }
    let mut bytes = [0u8; PAGE as usize];
    for word in 0..PAGE / 8 {
        match access::try_load(at(page) + word * 8) {
            Ok(value) => bytes[word as usize * 8..][..8].copy_from_slice(&value.to_le_bytes()),
            Err((signal, code)) => return Content::Faults(signal, code),
        }
    }
    if bytes == [0; PAGE as usize] {
        Content::Zero
    } else {
        Content::Bytes(short(digest(&bytes)))
    }
}

/// See [`content`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// No mapping.
    Unmapped,
    /// It cannot be read: signal and code.
    Faults(i32, i32),
    /// Zeroes.
    Zero,
    /// A checksum.
    Bytes(u16),
}

impl std::fmt::Display for Content {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Content::Unmapped => f.write_str("-"),
            Content::Faults(signal, code) => write!(f, "s{signal}.{code}"),
            Content::Zero => f.write_str("0"),
            Content::Bytes(sum) => write!(f, "{sum:04x}"),
        }
    }
}
