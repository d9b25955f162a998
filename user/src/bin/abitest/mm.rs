//! mmap, munmap, mprotect, mremap, madvise, msync, brk and the limits on them.

use crate::harness::*;
use user::sys::{self, mmap, munmap, peek, peek64, poke, poke64};

/// No user address, whether page tables have four levels or five.
const USER_END: u64 = 0x00ff_ffff_ffff_f000;

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
        // Grandchildren write alternate pages; nobody sees another's.
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
        // Half of it can be filled; Linux says how much, or EFAULT, never more.
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
