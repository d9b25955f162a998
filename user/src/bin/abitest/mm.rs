//! mmap, munmap, mprotect, mremap, madvise, msync, brk and the limits on them.

use crate::harness::*;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use user::proc;
use user::sys::{self, mmap, munmap, peek, peek64, poke, poke64};

/// An address beyond user space, with four as with five levels of page tables.
const USER_END: u64 = 0x00ff_ffff_ffff_f000;

/// Four pages of shared memory with a word in each.
fn shared_words() -> Result<u64, i32> {
    let base = mmap(
        0,
        4 * PAGE,
        RW,
        libc::MAP_SHARED | libc::MAP_ANONYMOUS,
        -1,
        0,
    )?;
    for n in 0..4 {
        poke64(base + n * PAGE, 20 + n);
    }
    Ok(base)
}

/// Pages of free memory.
fn free_pages() -> Result<u64, String> {
    let bytes = proc::meminfo("MemFree").ok_or("no MemFree in /proc/meminfo")?;
    Ok(bytes / PAGE)
}

fn words(base: u64) -> [u64; 4] {
    [0, 1, 2, 3].map(|n| peek64(base + n * PAGE))
}

/// The memory that a test of free memory takes, and the slack that it allows for other changes: Linux does not count
/// pages in a CPU's cache as free.
const FEW_MIB: u64 = 24 << 20;
const HALF: u64 = FEW_MIB / 2;
const SLACK: u64 = 7 << 20;

/// Private memory with a seven in each page.
fn filled(bytes: u64) -> Result<u64, i32> {
    let base = anon(bytes / PAGE)?;
    poke_bytes(base, bytes, 7);
    Ok(base)
}

fn poke_bytes(base: u64, bytes: u64, value: u8) {
    for page in (base..base + bytes).step_by(PAGE as usize) {
        poke(page, value);
    }
}

fn poke_all(base: u64, value: u8) {
    poke_bytes(base, FEW_MIB, value);
}

/// Bytes of free memory.
fn free_memory() -> Result<u64, i32> {
    proc::meminfo("MemFree").ok_or(libc::EIO)
}

/// Whether a condition becomes true in time. The promise is two seconds; a machine that shares its CPUs with others
/// gets twice that.
fn in_time(holds: impl Fn() -> bool) -> bool {
    soon(&holds) || soon(&holds)
}

/// A child that executes `act` and then waits for a signal.
fn sleeper_that(act: impl FnOnce()) -> Result<i32, i32> {
    let (from, to) = sys::pipe(0)?;
    let child = sys::fork()?;
    if child == 0 {
        act();
        let _ = sys::write(to, b".");
        loop {
            let _ = sc!(SYS_pause);
        }
    }
    sc!(SYS_read, from, [0u8; 1].as_mut_ptr(), 1)?;
    Ok(child as i32)
}

fn sleeper() -> Result<i32, i32> {
    sleeper_that(|| ())
}

/// Kills a child and waits for it.
fn ended(child: i32) -> Result<u64, i32> {
    sc!(SYS_kill, child, libc::SIGKILL)?;
    sc!(SYS_wait4, child, 0, 0, 0)
}

tests! { "mm";
    mmap_gives_zeroed_pages {
        let base = ok!(anon(16));
        for addr in (base..base + 16 * PAGE).step_by(8) { is!(peek64(addr), 0); }
    }
    mmap_length_zero { fails!(mmap(0, 0, RW, ANON, -1, 0), EINVAL); }
    mmap_length_too_large {
        fails!(mmap(0, 1 << 47, RW, ANON, -1, 0), ENOMEM);
        fails!(mmap(0, u64::MAX - 4096, RW, ANON, -1, 0), ENOMEM);
        fails!(mmap(0, u64::MAX, RW, ANON, -1, 0), ENOMEM);
    }
    mmap_neither_private_nor_shared { fails!(mmap(0, PAGE, RW, libc::MAP_ANONYMOUS, -1, 0), EINVAL); }
    mmap_offset_not_aligned {
        let fd = file_with(&[1; 8192])?;
        fails!(mmap(0, PAGE, RW, libc::MAP_PRIVATE, fd, 1), EINVAL);
    }
    mmap_bad_descriptor { fails!(mmap(0, PAGE, RW, libc::MAP_PRIVATE, 9999, 0), EBADF); }
    mmap_of_a_directory {
        let fd = ok!(sys::open("/tmp", libc::O_RDONLY, 0));
        fails!(mmap(0, PAGE, libc::PROT_READ, libc::MAP_PRIVATE, fd, 0), ENODEV);
    }
    mmap_of_a_pipe {
        let (from, _) = ok!(sys::pipe(0));
        fails!(mmap(0, PAGE, libc::PROT_READ, libc::MAP_PRIVATE, from, 0), ENODEV);
    }
    mmap_of_a_write_only_file {
        let name = format!("{}/w", scratch());
        let fd = ok!(sys::open(&name, libc::O_WRONLY | libc::O_CREAT, 0o600));
        fails!(mmap(0, PAGE, libc::PROT_READ, libc::MAP_PRIVATE, fd, 0), EACCES);
    }
    mmap_shared_writable_of_a_read_only_file {
        let name = format!("{}/r", scratch());
        ok!(sys::open(&name, libc::O_WRONLY | libc::O_CREAT, 0o600));
        let fd = ok!(sys::open(&name, libc::O_RDONLY, 0));
        fails!(mmap(0, PAGE, RW, libc::MAP_SHARED, fd, 0), EACCES);
        ok!(mmap(0, PAGE, RW, libc::MAP_PRIVATE, fd, 0));
        let base = ok!(mmap(0, PAGE, libc::PROT_READ, libc::MAP_SHARED, fd, 0));
        fails!(sc!(SYS_mprotect, base, PAGE, RW), EACCES);
    }
    mmap_hint_is_taken_when_free {
        let base = ok!(anon(4));
        ok!(munmap(base, 4 * PAGE));
        is!(ok!(mmap(base, 4 * PAGE, RW, ANON, -1, 0)), base);
        holds!(ok!(mmap(base, PAGE, RW, ANON, -1, 0)) != base);
    }
    mmap_hint_is_rounded_down {
        let base = ok!(anon(4));
        ok!(munmap(base, 4 * PAGE));
        let got = ok!(mmap(base + 123, PAGE, RW, ANON, -1, 0));
        is!(got % PAGE, 0);
    }
    mmap_32bit_keeps_below_two_gib {
        let at = ok!(mmap(0, 4 * PAGE, RW, ANON | libc::MAP_32BIT, -1, 0));
        holds!(at >= 1 << 30 && at + 4 * PAGE <= 1 << 31);
        poke(at, 1);
        let more = ok!(mmap(1 << 40, PAGE, RW, ANON | libc::MAP_32BIT, -1, 0));
        holds!(more + PAGE <= 1 << 31);
        fails!(mmap(0, 1 << 31, libc::PROT_NONE, ANON | libc::MAP_32BIT | libc::MAP_NORESERVE, -1, 0), ENOMEM);
        let fixed = ok!(mmap(1 << 40, PAGE, RW, ANON | libc::MAP_32BIT | libc::MAP_FIXED, -1, 0));
        is!(fixed, 1 << 40);
    }
    ranges_outside_user_space {
        const KERNEL: u64 = 0xffff_8880_0000_0000;
        fails!(sc!(SYS_madvise, KERNEL, PAGE, libc::MADV_NORMAL), ENOMEM);
        fails!(sc!(SYS_madvise, PAGE, u64::MAX - PAGE, libc::MADV_NORMAL), EINVAL);
        fails!(sc!(SYS_mlock, KERNEL, PAGE), ENOMEM);
        fails!(sc!(SYS_munlock, KERNEL, PAGE), ENOMEM);
        fails!(sc!(SYS_mlock, PAGE, u64::MAX - PAGE), EINVAL);
        fails!(sc!(SYS_mprotect, KERNEL, PAGE, 0), ENOMEM);
        fails!(sc!(SYS_msync, KERNEL, PAGE, libc::MS_SYNC), ENOMEM);
        fails!(munmap(KERNEL, PAGE), EINVAL);
    }
    mmap_fixed_replaces {
        let base = ok!(anon(3));
        for i in 0..3 { poke(base + i * PAGE, 7); }
        is!(ok!(mmap(base + PAGE, PAGE, RW, ANON | libc::MAP_FIXED, -1, 0)), base + PAGE);
        is!([peek(base), peek(base + PAGE), peek(base + 2 * PAGE)], [7, 0, 7]);
    }
    mmap_fixed_not_aligned {
        let base = ok!(anon(3));
        fails!(mmap(base + 1, PAGE, RW, ANON | libc::MAP_FIXED, -1, 0), EINVAL);
    }
    mmap_fixed_beyond_user_space {
        fails!(mmap(USER_END, PAGE, RW, ANON | libc::MAP_FIXED, -1, 0), ENOMEM);
        fails!(mmap(USER_END - PAGE, 2 * PAGE, RW, ANON | libc::MAP_FIXED, -1, 0), ENOMEM);
        fails!(mmap(0xffff_8000_0000_0000, PAGE, RW, ANON | libc::MAP_FIXED, -1, 0), ENOMEM | EINVAL);
    }
    mmap_fixed_noreplace {
        let base = ok!(anon(2));
        let flags = ANON | libc::MAP_FIXED_NOREPLACE;
        fails!(mmap(base, PAGE, RW, flags, -1, 0), EEXIST);
        ok!(munmap(base + PAGE, PAGE));
        fails!(mmap(base, 2 * PAGE, RW, flags, -1, 0), EEXIST);
        is!(ok!(mmap(base + PAGE, PAGE, RW, flags, -1, 0)), base + PAGE);
    }
    mmap_populate_and_noreserve {
        let base = ok!(mmap(0, 8 * PAGE, RW, ANON | libc::MAP_POPULATE, -1, 0));
        is!(peek(base + 7 * PAGE), 0);
        let big = ok!(mmap(0, 1 << 32, RW, ANON | libc::MAP_NORESERVE, -1, 0));
        poke(big + (1 << 31), 1);
        is!(peek(big + (1 << 31)), 1);
        ok!(munmap(big, 1 << 32));
    }
    mmap_shared_is_seen_by_a_child {
        let base = ok!(mmap(0, PAGE, RW, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1, 0));
        is!(in_child(|| { poke(base, 42); 0 })?, 0);
        is!(peek(base), 42);
    }
    mmap_private_is_not_seen_by_the_parent {
        let base = ok!(anon(1));
        poke(base, 1);
        is!(in_child(|| { let seen = peek(base); poke(base, 42); i32::from(seen != 1) })?, 0);
        is!(peek(base), 1);
    }
    private_pages_survive_generations {
        let base = ok!(anon(8));
        for i in 0..8 { poke64(base + i * PAGE, i); }
        // Grandchildren write alternate pages; no other process sees those writes.
        let status = in_child(|| {
            for i in (0..8).step_by(2) { poke64(base + i * PAGE, 100 + i); }
            let inner = in_child(|| {
                for i in (1..8).step_by(2) { poke64(base + i * PAGE, 200 + i); }
                let right = (0..8).all(|i| peek64(base + i * PAGE) == if i % 2 == 0 { 100 + i } else { 200 + i });
                i32::from(!right)
            });
            let right = (0..8).all(|i| peek64(base + i * PAGE) == if i % 2 == 0 { 100 + i } else { i });
            i32::from(inner != Ok(0) || !right)
        })?;
        is!(status, 0);
        for i in 0..8 { is!(peek64(base + i * PAGE), i); }
    }
    file_mapping_shows_the_file {
        let fd = file_with(b"hello")?;
        let base = ok!(mmap(0, PAGE, RW, libc::MAP_SHARED, fd, 0));
        is!([peek(base), peek(base + 4), peek(base + 5)], [b'h', b'o', 0]);
        poke(base, b'J');
        let mut buf = [0; 5];
        is!(ok!(sc!(SYS_pread64, fd, buf.as_mut_ptr(), 5, 0)), 5);
        is!(&buf, b"Jello");
        ok!(sc!(SYS_pwrite64, fd, c"y".as_ptr(), 1, 1));
        is!(peek(base + 1), b'y');
    }
    private_file_mapping_does_not_change_the_file {
        let fd = file_with(b"hello")?;
        let base = ok!(mmap(0, PAGE, RW, libc::MAP_PRIVATE, fd, 0));
        poke(base, b'J');
        let mut buf = [0; 5];
        ok!(sc!(SYS_pread64, fd, buf.as_mut_ptr(), 5, 0));
        is!(&buf, b"hello");
        is!(peek(base), b'J');
    }
    file_mapping_at_an_offset {
        let mut bytes = vec![1; 3 * PAGE as usize];
        bytes[2 * PAGE as usize] = 9;
        let fd = file_with(&bytes)?;
        let base = ok!(mmap(0, PAGE, libc::PROT_READ, libc::MAP_PRIVATE, fd, 2 * PAGE));
        is!([peek(base), peek(base + 1)], [9, 1]);
    }
    file_mapping_outlives_its_descriptor {
        let fd = file_with(b"hello")?;
        let base = ok!(mmap(0, PAGE, RW, libc::MAP_SHARED, fd, 0));
        ok!(sys::close(fd));
        is!(peek(base), b'h');
    }
    munmap_arguments {
        let base = ok!(anon(4));
        fails!(munmap(base + 1, PAGE), EINVAL);
        fails!(munmap(base, 0), EINVAL);
        fails!(munmap(USER_END, PAGE), EINVAL);
        fails!(munmap(base, u64::MAX), EINVAL);
    }
    munmap_of_nothing_succeeds {
        let base = ok!(anon(4));
        ok!(munmap(base, 4 * PAGE));
        ok!(munmap(base, 4 * PAGE));
    }
    munmap_middle_keeps_the_ends {
        let base = ok!(anon(5));
        for i in 0..5 { poke(base + i * PAGE, i as u8 + 1); }
        ok!(munmap(base + PAGE, 3 * PAGE));
        is!([peek(base), peek(base + 4 * PAGE)], [1, 5]);
        is!(ok!(mmap(base + PAGE, 3 * PAGE, RW, ANON | libc::MAP_FIXED_NOREPLACE, -1, 0)), base + PAGE);
        is!([peek(base + PAGE), peek(base + 3 * PAGE)], [0, 0]);
    }
    munmap_length_is_rounded_up {
        let base = ok!(anon(2));
        ok!(munmap(base, 1));
        is!(ok!(mmap(base, PAGE, RW, ANON | libc::MAP_FIXED_NOREPLACE, -1, 0)), base);
    }
    mprotect_arguments {
        let base = ok!(anon(4));
        fails!(sc!(SYS_mprotect, base + 1, PAGE, RW), EINVAL);
        ok!(sc!(SYS_mprotect, base, 0, RW));
        fails!(sc!(SYS_mprotect, base, PAGE, 0x4000_0000), EINVAL);
        ok!(munmap(base + PAGE, PAGE));
        fails!(sc!(SYS_mprotect, base, 3 * PAGE, libc::PROT_READ), ENOMEM);
    }
    mprotect_up_to_a_hole_takes_effect {
        let base = ok!(anon(3));
        ok!(munmap(base + PAGE, PAGE));
        fails!(sc!(SYS_mprotect, base, 3 * PAGE, libc::PROT_NONE), ENOMEM);
        poke(base + 2 * PAGE, 1);
    }
    mremap_grows_in_place {
        let base = ok!(anon(8));
        ok!(munmap(base + 2 * PAGE, 6 * PAGE));
        poke(base, 5);
        is!(ok!(sc!(SYS_mremap, base, 2 * PAGE, 8 * PAGE, 0, 0)), base);
        is!([peek(base), peek(base + 7 * PAGE)], [5, 0]);
    }
    mremap_cannot_grow_without_leave_to_move {
        let base = ok!(anon(4));
        ok!(sc!(SYS_mprotect, base + 2 * PAGE, PAGE, libc::PROT_READ));
        fails!(sc!(SYS_mremap, base, 2 * PAGE, 4 * PAGE, 0, 0), ENOMEM);
    }
    mremap_moves_with_contents {
        let base = ok!(anon(4));
        poke(base, 5);
        poke(base + PAGE, 6);
        ok!(sc!(SYS_mprotect, base + 2 * PAGE, PAGE, libc::PROT_READ));
        let moved = ok!(sc!(SYS_mremap, base, 2 * PAGE, 64 * PAGE, libc::MREMAP_MAYMOVE, 0));
        holds!(moved != base);
        is!([peek(moved), peek(moved + PAGE), peek(moved + 63 * PAGE)], [5, 6, 0]);
        is!(ok!(mmap(base, 2 * PAGE, RW, ANON | libc::MAP_FIXED_NOREPLACE, -1, 0)), base);
    }
    mremap_shrinks {
        let base = ok!(anon(4));
        poke(base, 5);
        is!(ok!(sc!(SYS_mremap, base, 4 * PAGE, PAGE, 0, 0)), base);
        is!(peek(base), 5);
        is!(ok!(mmap(base + PAGE, 3 * PAGE, RW, ANON | libc::MAP_FIXED_NOREPLACE, -1, 0)), base + PAGE);
        // The unmapped part may have a hole, and differ from the rest.
        ok!(sc!(SYS_munmap, base + 2 * PAGE, PAGE));
        ok!(sc!(SYS_mprotect, base + 3 * PAGE, PAGE, libc::PROT_READ));
        is!(ok!(sc!(SYS_mremap, base, 4 * PAGE, PAGE, 0, 0)), base);
        is!(peek(base), 5);
        is!(ok!(sc!(SYS_mremap, base, 4 * PAGE, 4 * PAGE, 0, 0)), base);
        is!(ok!(mmap(base + PAGE, 3 * PAGE, RW, ANON | libc::MAP_FIXED_NOREPLACE, -1, 0)), base + PAGE);
        ok!(munmap(base, 4 * PAGE));
        fails!(sc!(SYS_mremap, base, 2 * PAGE, PAGE, 0, 0), EFAULT);
    }
    mremap_fixed {
        let (from, to) = (ok!(anon(2)), ok!(anon(4)));
        poke(from, 5);
        poke(to, 9);
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        is!(ok!(sc!(SYS_mremap, from, 2 * PAGE, 2 * PAGE, flags, to)), to);
        is!(peek(to), 5);
    }
    mremap_arguments {
        let base = ok!(anon(4));
        let both = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        fails!(sc!(SYS_mremap, base + 1, PAGE, PAGE, 0, 0), EINVAL);
        fails!(sc!(SYS_mremap, base, PAGE, 0, 0, 0), EINVAL);
        fails!(sc!(SYS_mremap, base, PAGE, PAGE, 0x100, 0), EINVAL);
        fails!(sc!(SYS_mremap, base, PAGE, PAGE, libc::MREMAP_FIXED, base), EINVAL);
        fails!(sc!(SYS_mremap, base, 2 * PAGE, 2 * PAGE, both, base + PAGE), EINVAL);
        fails!(sc!(SYS_mremap, base, PAGE, PAGE, both, base + PAGE + 1), EINVAL);
        ok!(munmap(base, 4 * PAGE));
        fails!(sc!(SYS_mremap, base, PAGE, 2 * PAGE, libc::MREMAP_MAYMOVE, 0), EFAULT);
    }
    mremap_of_shared_memory_with_old_size_zero_duplicates {
        let base = ok!(mmap(0, PAGE, RW, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1, 0));
        poke(base, 5);
        let copy = ok!(sc!(SYS_mremap, base, 0, PAGE, libc::MREMAP_MAYMOVE, 0));
        poke(copy, 6);
        is!(peek(base), 6);
    }
    mremap_grows_shared_memory_back {
        let base = ok!(shared_words());
        ok!(sc!(SYS_mremap, base, 4 * PAGE, 2 * PAGE, 0, 0));
        is!(ok!(sc!(SYS_mremap, base, 2 * PAGE, 4 * PAGE, 0, 0)), base);
        is!(words(base), [20, 21, 22, 23]);
        // Once more, to another place.
        ok!(munmap(base + PAGE, 3 * PAGE));
        let moved = ok!(sc!(SYS_mremap, base, PAGE, 4 * PAGE, libc::MREMAP_MAYMOVE, 0));
        is!(words(moved), [20, 21, 22, 23]);
    }
    mremap_with_old_size_zero_shows_what_was_unmapped {
        let base = ok!(shared_words());
        ok!(munmap(base + 2 * PAGE, 2 * PAGE));
        let second = ok!(sc!(SYS_mremap, base, 0, 4 * PAGE, libc::MREMAP_MAYMOVE, 0));
        is!(words(second), [20, 21, 22, 23]);
        ok!(munmap(base, 2 * PAGE));
        ok!(munmap(second + PAGE, 3 * PAGE));
        let (third, flags) = (ok!(anon(4)), libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED);
        is!(ok!(sc!(SYS_mremap, second, 0, 4 * PAGE, flags, third)), third);
        is!(words(third), [20, 21, 22, 23]);
    }
    mremap_moves_a_part_of_shared_memory_that_grows_there {
        let (base, to) = (ok!(shared_words()), ok!(anon(4)));
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        is!(ok!(sc!(SYS_mremap, base, PAGE, PAGE, flags, to)), to);
        ok!(munmap(base + PAGE, 3 * PAGE));
        ok!(munmap(to + PAGE, 3 * PAGE));
        is!(ok!(sc!(SYS_mremap, to, PAGE, 4 * PAGE, 0, 0)), to);
        is!(words(to), [20, 21, 22, 23]);
    }
    mremap_dontunmap_shows_shared_memory_twice {
        let base = ok!(shared_words());
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP;
        let second = ok!(sc!(SYS_mremap, base, 4 * PAGE, 4 * PAGE, flags, 0));
        is!(words(second), [20, 21, 22, 23]);
        is!(words(base), [20, 21, 22, 23]);
        poke64(base + PAGE, 9);
        is!(peek64(second + PAGE), 9);
        let private = ok!(mmap(0, PAGE, RW, libc::MAP_PRIVATE, file_with(&[7; 4096])?, 0));
        poke(private, 8);
        let second = ok!(sc!(SYS_mremap, private, PAGE, PAGE, flags, 0));
        is!([peek(private), peek(second)], [7, 8]);
    }
    shared_memory_keeps_its_size {
        let base = ok!(shared_words());
        let grown = ok!(sc!(SYS_mremap, base, 4 * PAGE, 6 * PAGE, libc::MREMAP_MAYMOVE, 0));
        is!(words(grown), [20, 21, 22, 23]);
        // No access beyond the object's end succeeds, the kernel's included.
        let zero = ok!(sys::open("/dev/zero", libc::O_RDONLY, 0));
        fails!(sc!(SYS_read, zero, grown + 4 * PAGE, 8), EFAULT);
        let of_zero = ok!(mmap(0, 2 * PAGE, RW, libc::MAP_PRIVATE, zero, 0));
        let grown = ok!(sc!(SYS_mremap, of_zero, 2 * PAGE, 4 * PAGE, libc::MREMAP_MAYMOVE, 0));
        is!(peek64(grown + 3 * PAGE), 0);
    }
    shared_memory_outlives_what_is_mapped_of_it {
        let zero = ok!(sys::open("/dev/zero", libc::O_RDWR, 0));
        let base = ok!(mmap(0, 4 * PAGE, RW, libc::MAP_SHARED, zero, 0));
        for n in 0..4 { poke64(base + n * PAGE, 20 + n); }
        ok!(munmap(base + PAGE, 3 * PAGE));
        is!(ok!(sc!(SYS_mremap, base, PAGE, 4 * PAGE, 0, 0)), base);
        is!(words(base), [20, 21, 22, 23]);
        ok!(sc!(SYS_madvise, base + PAGE, 2 * PAGE, libc::MADV_REMOVE));
        is!(words(base), [20, 0, 0, 23]);
    }
    memory_that_parent_and_child_left_is_free_again {
        swept()?;
        // The parent unmaps half of it and writes the other half; then the child ends.
        let base = ok!(filled(FEW_MIB));
        let before = ok!(free_memory());
        let child = ok!(sleeper());
        ok!(munmap(base, HALF));
        for page in (base + HALF..base + 2 * HALF).step_by(PAGE as usize) { poke(page, 8); }
        holds!(ok!(free_memory()) < before - HALF / 2);
        ok!(ended(child));
        is!(in_time(|| free_memory().is_ok_and(|free| free > before + HALF - SLACK)), true);
        is!([peek(base + HALF), peek(base + 2 * HALF - PAGE)], [8, 8]);
    }
    memory_that_both_have_written_anew_is_free_again {
        swept()?;
        let base = ok!(filled(FEW_MIB));
        let before = ok!(free_memory());
        let child = ok!(sleeper_that(|| poke_all(base, 9)));
        poke_all(base, 8);
        // Each process has a copy; no process refers to the common pages any more.
        is!(in_time(|| free_memory().is_ok_and(|free| free > before - FEW_MIB - SLACK && free < before - FEW_MIB + SLACK)), true);
        ok!(ended(child));
        is!(in_time(|| free_memory().is_ok_and(|free| free > before - SLACK)), true);
        is!([peek(base), peek(base + FEW_MIB - PAGE)], [8, 8]);
    }
    memory_that_was_moved_and_unmapped_is_free_again {
        swept()?;
        let (base, to) = (ok!(filled(FEW_MIB)), ok!(anon(HALF / PAGE)));
        let before = ok!(free_memory());
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        is!(ok!(sc!(SYS_mremap, base + HALF, HALF, HALF, flags, to)), to);
        is!(peek(to), 7);
        ok!(munmap(to, HALF));
        is!(in_time(|| free_memory().is_ok_and(|free| free > before + HALF - SLACK)), true);
        is!(peek(base + HALF - PAGE), 7);
    }
    madvise_dontneed_zeroes_private_memory {
        let base = ok!(anon(4));
        for i in 0..4 { poke(base + i * PAGE, 7); }
        ok!(sc!(SYS_madvise, base + PAGE, 2 * PAGE, libc::MADV_DONTNEED));
        is!([peek(base), peek(base + PAGE), peek(base + 2 * PAGE), peek(base + 3 * PAGE)], [7, 0, 0, 7]);
    }
    madvise_dontneed_keeps_shared_memory {
        let base = ok!(mmap(0, PAGE, RW, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1, 0));
        poke(base, 7);
        ok!(sc!(SYS_madvise, base, PAGE, libc::MADV_DONTNEED));
        is!(peek(base), 7);
    }
    madvise_dontneed_of_a_private_file_shows_the_file_again {
        let fd = file_with(b"hello")?;
        let base = ok!(mmap(0, PAGE, RW, libc::MAP_PRIVATE, fd, 0));
        poke(base, b'J');
        ok!(sc!(SYS_madvise, base, PAGE, libc::MADV_DONTNEED));
        is!(peek(base), b'h');
    }
    madvise_free_gives_old_or_zero {
        let base = ok!(anon(1));
        poke(base, 7);
        ok!(sc!(SYS_madvise, base, PAGE, libc::MADV_FREE));
        holds!(matches!(peek(base), 0 | 7));
        poke(base, 8);
        is!(peek(base), 8);
        let shared = ok!(mmap(0, PAGE, RW, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1, 0));
        fails!(sc!(SYS_madvise, shared, PAGE, libc::MADV_FREE), EINVAL);
    }
    madvise_arguments {
        let base = ok!(anon(3));
        fails!(sc!(SYS_madvise, base + 1, PAGE, libc::MADV_NORMAL), EINVAL);
        fails!(sc!(SYS_madvise, base, PAGE, 12345), EINVAL);
        fails!(sc!(SYS_madvise, base, -1i64, libc::MADV_NORMAL), EINVAL);
        ok!(sc!(SYS_madvise, base, 0, libc::MADV_DONTNEED));
        ok!(sc!(SYS_madvise, base, PAGE, libc::MADV_WILLNEED));
        for advice in [libc::MADV_NORMAL, libc::MADV_RANDOM, libc::MADV_SEQUENTIAL] {
            ok!(sc!(SYS_madvise, base, 3 * PAGE, advice));
        }
        ok!(munmap(base + PAGE, PAGE));
        fails!(sc!(SYS_madvise, base, 3 * PAGE, libc::MADV_DONTNEED), ENOMEM);
    }
    msync_arguments {
        let base = ok!(anon(3));
        ok!(sc!(SYS_msync, base, PAGE, libc::MS_SYNC));
        ok!(sc!(SYS_msync, base, PAGE, libc::MS_ASYNC));
        ok!(sc!(SYS_msync, base, 0, libc::MS_SYNC));
        fails!(sc!(SYS_msync, base + 1, PAGE, libc::MS_SYNC), EINVAL);
        fails!(sc!(SYS_msync, base, PAGE, libc::MS_SYNC | libc::MS_ASYNC), EINVAL);
        fails!(sc!(SYS_msync, base, PAGE, 0x100), EINVAL);
        ok!(munmap(base + PAGE, PAGE));
        fails!(sc!(SYS_msync, base, 3 * PAGE, libc::MS_SYNC), ENOMEM);
    }
    brk_grows_and_shrinks {
        let base = ok!(sc!(SYS_brk, 0));
        holds!(base != 0);
        let start = base.next_multiple_of(PAGE);
        is!(ok!(sc!(SYS_brk, start + 4 * PAGE)), start + 4 * PAGE);
        is!(peek(start + 3 * PAGE), 0);
        poke(start + 3 * PAGE, 7);
        is!(ok!(sc!(SYS_brk, start)), start);
        is!(ok!(sc!(SYS_brk, start + 4 * PAGE)), start + 4 * PAGE);
        is!(peek(start + 3 * PAGE), 0);
    }
    threads_that_move_the_break_leave_what_lies_below_it_mapped {
        const MOST: u64 = 16;
        let start = ok!(sc!(SYS_brk, 0)).next_multiple_of(PAGE);
        is!(ok!(sc!(SYS_brk, start)), start);
        let cpus = sys::cpus();
        // The target addresses do not depend on where the kernel placed the other mappings. From the first move to the
        // last nothing is allocated, since the heap is memory of the allocator, too.
        let ready = &*Box::leak(Box::new(AtomicU64::new(0)));
        let mover = |(n, step): (usize, u64)| {
            let cpu = cpus[n % cpus.len()];
            move || {
                let _ = sys::tie_to_cpu(cpu);
                ready.fetch_add(1, SeqCst);
                while ready.load(SeqCst) < 3 { let _ = sc!(SYS_sched_yield); }
                (1..5000).all(|n| {
                    let want = start + n * step % (MOST + 1) * PAGE;
                    sc!(SYS_brk, want) == Ok(want)
                })
            }
        };
        let threads = [(0, 3), (1, 5), (2, 7)].map(|thread| std::thread::Builder::new().spawn(mover(thread)));
        let moved = threads.map(|thread| thread.is_ok_and(|thread| thread.join().unwrap_or(false)));
        let end = ok!(sc!(SYS_brk, 0));
        let mapped = |page: u64| sc!(SYS_mincore, start + page * PAGE, PAGE, [0u8].as_mut_ptr()) == Ok(0);
        let right = (0..MOST).all(|page| mapped(page) == (start + page * PAGE < end));
        is!((moved, right), ([true; 3], true));
    }
    brk_refuses_by_returning_the_old_break {
        let base = ok!(sc!(SYS_brk, 0));
        is!(ok!(sc!(SYS_brk, 1)), base);
        is!(ok!(sc!(SYS_brk, USER_END)), base);
        is!(ok!(sc!(SYS_brk, u64::MAX)), base);
    }
    rlimit_as_limits_mmap {
        let limit = [64u64 << 20, 64 << 20];
        ok!(sc!(SYS_prlimit64, 0, libc::RLIMIT_AS, limit.as_ptr(), 0));
        fails!(mmap(0, 128 << 20, RW, ANON, -1, 0), ENOMEM);
        let base = ok!(mmap(0, 1 << 20, RW, ANON, -1, 0));
        fails!(sc!(SYS_mremap, base, 1 << 20, 128 << 20, libc::MREMAP_MAYMOVE, 0), ENOMEM);
    }
    rlimit_data_limits_brk {
        let limit = [1u64 << 20, 1 << 20];
        ok!(sc!(SYS_prlimit64, 0, libc::RLIMIT_DATA, limit.as_ptr(), 0));
        let base = ok!(sc!(SYS_brk, 0));
        is!(ok!(sc!(SYS_brk, base + (8 << 20))), base);
    }
    user_copies_fail_cleanly {
        let base = ok!(anon(2));
        ok!(munmap(base + PAGE, PAGE));
        let zero = ok!(sys::open("/dev/zero", libc::O_RDWR, 0));
        // Half of the buffer can be filled; Linux returns that count, or EFAULT, never more.
        match sc!(SYS_read, zero, base + PAGE - 16, 32) {
            Ok(n) => holds!(n <= 16),
            Err(errno) => is!(errno, libc::EFAULT),
        }
        fails!(sc!(SYS_read, zero, base + PAGE, 32), EFAULT);
        fails!(sc!(SYS_read, zero, 0xffff_8000_0000_0000u64, 32), EFAULT);
        fails!(sc!(SYS_read, zero, 0x8000_0000_0000u64, 32), EFAULT);
        ok!(sc!(SYS_mprotect, base, PAGE, libc::PROT_READ));
        fails!(sc!(SYS_read, zero, base, 32), EFAULT);
    }
    user_copies_fault_pages_in {
        let base = ok!(anon(64));
        let zero = ok!(sys::open("/dev/zero", libc::O_RDWR, 0));
        is!(ok!(sc!(SYS_read, zero, base, 64 * PAGE)), 64 * PAGE);
        let fd = file_with(&[])?;
        is!(ok!(sc!(SYS_write, fd, ok!(anon(64)), 64 * PAGE)), 64 * PAGE);
    }
    mincore_of_locked_pages_of_a_file {
        let fd = file_with(&[1; 8192])?;
        ok!(sc!(SYS_ftruncate, fd, 4 * PAGE));
        for sharing in [libc::MAP_PRIVATE, libc::MAP_SHARED] {
            for prot in [RW, libc::PROT_READ] {
                let base = ok!(mmap(0, 4 * PAGE, prot, sharing, fd, 0));
                ok!(sc!(SYS_mlock, base, 4 * PAGE));
                let mut map = [9u8; 4];
                ok!(sc!(SYS_mincore, base, 4 * PAGE, map.as_mut_ptr()));
                is!(map.map(|byte| byte & 1), [1; 4]);
                ok!(sc!(SYS_munlock, base, 4 * PAGE));
                ok!(sc!(SYS_mincore, base, 4 * PAGE, map.as_mut_ptr()));
                is!(map.map(|byte| byte & 1), [1; 4]);
                ok!(munmap(base, 4 * PAGE));
            }
        }
        // The file is truncated under locked private copies.
        let base = ok!(mmap(0, 4 * PAGE, RW, libc::MAP_PRIVATE, fd, 0));
        ok!(sc!(SYS_mlock, base, 4 * PAGE));
        ok!(sc!(SYS_ftruncate, fd, PAGE));
        let mut map = [9u8; 4];
        ok!(sc!(SYS_mincore, base, 4 * PAGE, map.as_mut_ptr()));
        is!(map.map(|byte| byte & 1), [1, 0, 0, 0]);
        ok!(sc!(SYS_ftruncate, fd, 4 * PAGE));
        ok!(sc!(SYS_mincore, base, 4 * PAGE, map.as_mut_ptr()));
        is!(map[0] & 1, 1);
    }
    a_forking_server_keeps_what_its_children_read {
        // A server that rewrites some of its memory between any two forks, and whose children all live.
        const COLD: u64 = 2048;
        const HOT: u64 = 32;
        const CHILDREN: u64 = 300;
        /// Pages that a child may take besides: its stack, its page tables, the kernel's objects for it.
        const EACH: u64 = 96;
        let base = ok!(anon(COLD + HOT));
        let hot = base + COLD / 2 * PAGE;
        (0..COLD + HOT).for_each(|n| poke64(base + n * PAGE, n));
        let ((hold, let_go), (told, tell)) = (ok!(sys::pipe(0)), ok!(sys::pipe(0)));
        let before = free_pages()?;
        for n in 0..CHILDREN {
            if ok!(sys::fork()) == 0 {
                poke64(base, n);
                let _parent_reads = sys::write(tell, &[1]);
                let _ = sys::close(let_go);
                let _until_the_end = sys::read(hold, &mut [0]);
                let mine = (0..HOT).all(|page| peek64(hot + page * PAGE) == n << 16 | page);
                let cold = (1..COLD / 2).all(|page| peek64(base + page * PAGE) == page);
                sys::exit(i32::from(n > 0 && !mine || !cold || peek64(base) != n));
            }
            is!(ok!(sys::read(told, &mut [0])), 1);
            (0..HOT).for_each(|page| poke64(hot + page * PAGE, (n + 1) << 16 | page));
        }
        let used = before.saturating_sub(free_pages()?);
        ok!(sys::close(let_go));
        for _ in 0..CHILDREN { is!(ok!(sys::wait(-1, 0)).1, 0); }
        let bound = CHILDREN * (HOT + 1 + EACH);
        if used > bound { return Err(format!("{used} pages are used, and {bound} are enough")); }
    }
    mincore_or_enosys {
        let base = ok!(anon(2));
        poke(base, 1);
        let mut map = [9u8; 2];
        match sc!(SYS_mincore, base, 2 * PAGE, map.as_mut_ptr()) {
            Err(libc::ENOSYS) => return Err("skip: mincore is not there".into()),
            answer => is!(answer, Ok(0)),
        }
        is!([map[0] & 1, map[1] & 1], [1, 0]);
    }
}
