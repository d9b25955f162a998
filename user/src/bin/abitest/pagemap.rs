//! /proc/PID/pagemap.

use crate::harness::*;
use crate::reports::{PAGE, child, end, is_chaotic, map, touch};
use user::sys;

const PFN: u64 = (1 << 55) - 1;
const EXCLUSIVE: u64 = 1 << 56;
const FILE: u64 = 1 << 61;
const SWAPPED: u64 = 1 << 62;
const PRESENT: u64 = 1 << 63;
/// The first address that no program has.
const END: u64 = (1 << 47) - PAGE;
/// A user without any process.
const NOBODY: u32 = 42_021;

fn open(pid: u64) -> Result<i32, i32> {
    let name = if pid == 0 {
        "self".into()
    } else {
        pid.to_string()
    };
    sys::open(&format!("/proc/{name}/pagemap"), libc::O_RDONLY, 0)
}

fn read(fd: i32, position: u64, entries: &mut [u64]) -> Result<u64, i32> {
    sc!(
        SYS_pread64,
        fd,
        entries.as_mut_ptr(),
        entries.len() * 8,
        position
    )
}

/// The entries of pages from an address on.
fn entries(fd: i32, at: u64, pages: usize) -> Result<Vec<u64>, i32> {
    let mut entries = vec![u64::MAX; pages];
    match read(fd, at / PAGE * 8, &mut entries)? {
        n if n == pages as u64 * 8 => Ok(entries),
        _ => Err(libc::EIO),
    }
}

/// What is said of each page but for its frame, and for bits that a kernel may have been built without.
fn kinds(entries: &[u64]) -> Vec<u64> {
    entries
        .iter()
        .map(|entry| entry & (PRESENT | SWAPPED | FILE | EXCLUSIVE))
        .collect()
}

tests! { "pagemap";
    it_says_which_pages_are_there {
        let at = map(8, libc::MAP_PRIVATE)?;
        let fd = ok!(open(0));
        is!(kinds(&ok!(entries(fd, at, 8))), [0; 8]);
        touch(at, 2..5, true);
        let found = ok!(entries(fd, at - PAGE, 10));
        if !is_chaotic() {
            let own = PRESENT | EXCLUSIVE;
            is!(kinds(&found), [0, 0, 0, own, own, own, 0, 0, 0, 0]);
            let mut frames: Vec<u64> = found[3..6].iter().map(|entry| entry & PFN).collect();
            frames.sort_unstable();
            frames.dedup();
            holds!(frames.len() == 3 && frames[0] > 0);
        }
        holds!(found[..3].iter().chain(&found[6..]).all(|entry| entry & (PRESENT | PFN) == 0));
        ok!(sys::munmap(at, 8 * PAGE));
        is!(kinds(&ok!(entries(fd, at, 8))), [0; 8]);
    }
    shared_memory_and_files_are_told {
        let shared = map(2, libc::MAP_SHARED)?;
        touch(shared, 0..2, true);
        let file = file_with(&[1; 2 * PAGE as usize])?;
        let at = ok!(sys::mmap(0, 2 * PAGE, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE, file, 0));
        touch(at, 0..1, false);
        touch(at, 1..2, true);
        let fd = ok!(open(0));
        let (both, pages) = (ok!(entries(fd, shared, 2)), ok!(entries(fd, at, 2)));
        if !is_chaotic() {
            is!(kinds(&both), [PRESENT | FILE | EXCLUSIVE; 2]);
            is!(kinds(&pages), [PRESENT | FILE | EXCLUSIVE, PRESENT | EXCLUSIVE]);
        }
    }
    a_page_of_two_processes_is_not_exclusive {
        let at = map(3, libc::MAP_PRIVATE)?;
        touch(at, 0..3, true);
        let pid = child(|| {
            touch(at, 0..2, false);
            touch(at, 2..3, true);
        })?;
        touch(at, 0..3, false);
        let (own, other) = (ok!(entries(ok!(open(0)), at, 3)), ok!(entries(ok!(open(pid)), at, 3)));
        // Where reverse maps list entries, a page that a fault has found counts as mapped twice.
        if !is_chaotic() {
            is!(kinds(&own)[..2], [PRESENT; 2]);
            is!(kinds(&other), [PRESENT, PRESENT, PRESENT | EXCLUSIVE]);
            holds!(own[0] & PFN == other[0] & PFN && own[2] & PFN != other[2] & PFN);
        }
        end(pid)?;
    }
    a_large_page_counts_as_its_pages {
        const LARGE: u64 = 2 << 20;
        let at = map(2 * LARGE / PAGE, libc::MAP_PRIVATE)?.next_multiple_of(LARGE);
        let _ = sc!(SYS_madvise, at, LARGE, libc::MADV_HUGEPAGE);
        touch(at, 0..LARGE / PAGE, true);
        let found = ok!(entries(ok!(open(0)), at, (LARGE / PAGE) as usize));
        if !is_chaotic() { holds!(found.iter().all(|entry| entry & PRESENT != 0)); }
        // In one frame of 2 MiB they follow one another.
        let first = found[0] & PFN;
        if first.is_multiple_of(LARGE / PAGE) && found[511] & PFN == first + 511 {
            holds!((0..512).all(|n| found[n as usize] & PFN == first + n));
        }
    }
    positions_are_those_of_entries {
        let fd = ok!(open(0));
        let mut two = [7u64; 2];
        for position in [1, 4, 12] { fails!(read(fd, position, &mut two), EINVAL); }
        for len in [1, 7, 12] { fails!(sc!(SYS_pread64, fd, two.as_mut_ptr(), len, 0), EINVAL); }
        is!(ok!(sc!(SYS_pread64, fd, two.as_mut_ptr(), 0, 8)), 0);
        is!(two, [7; 2]);
        // The last page of a program, and what is behind it.
        is!(ok!(read(fd, END / PAGE * 8 - 8, &mut two)), 8);
        is!(kinds(&two), [0, 7 & (PRESENT | FILE)]);
        for position in [END / PAGE * 8, 1 << 60, 1 << 62] {
            is!(ok!(read(fd, position, &mut two)), 0);
        }
        is!(ok!(sc!(SYS_lseek, fd, 16, libc::SEEK_SET)), 16);
        is!(ok!(sc!(SYS_read, fd, two.as_mut_ptr(), 16)), 16);
        is!(ok!(sc!(SYS_lseek, fd, 0, libc::SEEK_CUR)), 32);
        fails!(sc!(SYS_lseek, fd, 0, libc::SEEK_END), EINVAL);
        fails!(sc!(SYS_pread64, fd, 8, 16, 0), EFAULT);
    }
    a_read_that_faults_reads_no_part {
        let at = ok!(sys::mmap(0, 3 * PAGE, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0));
        ok!(sc!(SYS_mprotect, at + 2 * PAGE, PAGE, libc::PROT_NONE));
        let (fd, end) = (ok!(open(0)), at + 2 * PAGE);
        // In the middle of an entry; between two; after one whole batch of entries, however large.
        for (to, len) in [(end - 12, 16), (end - 8, 16), (end - 2 * PAGE, 3 * PAGE)] {
            fails!(sc!(SYS_read, fd, to, len), EFAULT);
            is!(ok!(sc!(SYS_lseek, fd, 0, libc::SEEK_CUR)), 0);
        }
        is!(ok!(sc!(SYS_read, fd, end - 16, 16)), 16);
    }
    a_long_read_has_an_entry_for_each_page {
        const PAGES: u64 = 1 << 18;
        let none = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let at = ok!(sys::mmap(0, PAGES * PAGE, libc::PROT_READ | libc::PROT_WRITE, none, -1, 0));
        let _ = sc!(SYS_madvise, at, PAGES * PAGE, libc::MADV_NOHUGEPAGE);
        let marks = [0, 1, 63, 64, 1000, PAGES / 2 + 511, PAGES - 1];
        for n in marks { sys::poke(at + n * PAGE, 1); }
        let found = ok!(entries(ok!(open(0)), at, PAGES as usize));
        let there: Vec<u64> = (0..PAGES).filter(|&n| found[n as usize] & PRESENT != 0).collect();
        holds!(there.iter().all(|n| marks.contains(n)));
        if !is_chaotic() { is!(there, marks); }
    }
    frames_are_for_the_privileged {
        let at = map(1, libc::MAP_PRIVATE)?;
        touch(at, 0..1, true);
        let root = ok!(open(0));
        let pid = child(|| ())?;
        let status = in_child(|| {
            if sys::become_user(NOBODY, &[]).is_err() { return 1; }
            // Not that of others.
            if open(pid) != Err(libc::EACCES) { return 2; }
            // The right to read its own is back once it may be looked into.
            if sc!(SYS_prctl, libc::PR_SET_DUMPABLE, 1).is_err() { return 3; }
            let Ok(fd) = open(0) else { return 4 };
            sys::poke(at, 1);
            let Ok(own) = entries(fd, at, 1) else { return 5 };
            if own[0] & PFN != 0 || own[0] & PRESENT == 0 && !is_chaotic() { return 6; }
            // What counts is the right at the open.
            match entries(root, at, 1) {
                Ok(other) if other[0] & PFN != 0 || is_chaotic() => 0,
                _ => 7,
            }
        })?;
        is!(status, 0);
        end(pid)?;
    }
    what_has_ended_has_no_entries {
        let pid = child(|| ())?;
        let fd = ok!(open(pid));
        let mut one = [7];
        is!(ok!(read(fd, 0, &mut one)), 8);
        end(pid)?;
        is!(ok!(read(fd, 0, &mut one)), 0);
    }
}
