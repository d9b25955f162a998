//! Memory.

use super::{BAD, NONE, apart, limited, limited_nobody, nobody};
use crate::harness::*;
use user::sys;

/// A page at an address that the kernel chooses.
fn mapped(prot: i32, flags: i32) -> Result<u64, i32> {
    sys::mmap(0, PAGE, prot, flags, -1, 0)
}

/// The first page of a file.
fn of_file(fd: i32, prot: i32, flags: i32) -> Result<u64, i32> {
    sys::mmap(0, PAGE, prot, flags, fd, 0)
}

/// A locked page.
fn locked() -> Result<u64, i32> {
    let at = anon(1)?;
    sc!(SYS_mlock, at, PAGE).map(|_| at)
}

/// Three pages, the second of which is unmapped.
fn hole() -> Result<u64, i32> {
    let at = anon(3)?;
    sys::munmap(at + PAGE, PAGE).map(|_| at)
}

/// Whether a page is resident.
fn resident(at: u64) -> Result<bool, i32> {
    let mut map = [0u8];
    sc!(SYS_mincore, at, PAGE, map.as_mut_ptr())?;
    Ok(map[0] & 1 == 1)
}

/// Whether a page filled with sevens contains `then` after an advice.
fn advised(advice: i32, then: u8) -> Result<bool, i32> {
    let at = anon(1)?;
    sys::poke(at, 7);
    sc!(SYS_madvise, at, PAGE, advice)?;
    Ok(sys::peek(at) == then)
}

errnos! {
    madvise EINVAL |_| sc!(SYS_madvise, 1, PAGE, 0);
    madvise EINVAL |_| sc!(SYS_madvise, PAGE, PAGE, 9999);
    madvise ENOMEM |_| sc!(SYS_madvise, PAGE, PAGE, 0);
    madvise EACCES |h| sc!(SYS_madvise, of_file(h.reader, libc::PROT_READ, libc::MAP_SHARED)?, PAGE, libc::MADV_REMOVE);
    madvise EFAULT |h| { sc!(SYS_ftruncate, h.fd, 0)?; sc!(SYS_madvise, of_file(h.fd, RW, libc::MAP_SHARED)?, PAGE, libc::MADV_POPULATE_WRITE) };
    madvise EINVAL |_| sc!(SYS_madvise, locked()?, PAGE, libc::MADV_DONTNEED);
    madvise EINVAL |_| sc!(SYS_madvise, locked()?, PAGE, libc::MADV_COLD);
    madvise EINVAL |_| sc!(SYS_madvise, locked()?, PAGE, libc::MADV_PAGEOUT);
    madvise EINVAL |h| sc!(SYS_madvise, of_file(h.fd, RW, libc::MAP_PRIVATE)?, PAGE, libc::MADV_FREE);
    madvise EINVAL |h| sc!(SYS_madvise, of_file(h.fd, RW, libc::MAP_SHARED)?, PAGE, libc::MADV_WIPEONFORK);
    madvise EINVAL |_| sc!(SYS_madvise, mapped(libc::PROT_READ, ANON)?, PAGE, libc::MADV_POPULATE_WRITE);
    madvise EINVAL |_| sc!(SYS_madvise, mapped(libc::PROT_NONE, ANON)?, PAGE, libc::MADV_POPULATE_READ);
    madvise ENOMEM |_| sc!(SYS_madvise, hole()?, 3 * PAGE, libc::MADV_POPULATE_READ);
    mincore EINVAL |_| sc!(SYS_mincore, 1, PAGE, 0);
    mincore ENOMEM |_| sc!(SYS_mincore, PAGE, PAGE, [0u8; 1].as_mut_ptr());
    mincore EFAULT |_| sc!(SYS_mincore, anon(1)?, PAGE, BAD);
    mlock ENOMEM |_| sc!(SYS_mlock, PAGE, PAGE);
    mlock EINVAL |_| sc!(SYS_mlock, PAGE, u64::MAX - PAGE);
    mlock ENOMEM |_| limited_nobody(libc::RLIMIT_MEMLOCK, PAGE, || sc!(SYS_mlock, anon(2)?, 2 * PAGE));
    mlock EPERM |_| limited_nobody(libc::RLIMIT_MEMLOCK, 0, || sc!(SYS_mlock, anon(1)?, PAGE));
    mlock2 EINVAL |_| sc!(SYS_mlock2, PAGE, PAGE, 0x80);
    mlock2 ENOMEM |_| sc!(SYS_mlock2, PAGE, PAGE, libc::MLOCK_ONFAULT);
    mlock2 EPERM |_| limited_nobody(libc::RLIMIT_MEMLOCK, 0, || sc!(SYS_mlock2, anon(1)?, PAGE, 0));
    mlockall EINVAL |_| sc!(SYS_mlockall, 0);
    mlockall EINVAL |_| sc!(SYS_mlockall, libc::MCL_ONFAULT);
    mlockall EINVAL |_| sc!(SYS_mlockall, 0x80);
    mlockall ENOMEM |_| limited_nobody(libc::RLIMIT_MEMLOCK, PAGE, || sc!(SYS_mlockall, libc::MCL_CURRENT));
    mlockall EPERM |_| limited_nobody(libc::RLIMIT_MEMLOCK, 0, || sc!(SYS_mlockall, libc::MCL_CURRENT));
    mmap EACCES |h| of_file(h.writer, libc::PROT_READ, libc::MAP_PRIVATE);
    mmap EACCES |h| of_file(h.reader, RW, libc::MAP_SHARED);
    mmap EAGAIN |_| limited_nobody(libc::RLIMIT_MEMLOCK, PAGE, || sys::mmap(0, 4 * PAGE, RW, ANON | libc::MAP_LOCKED, -1, 0));
    mmap EBADF |_| of_file(NONE, RW, libc::MAP_PRIVATE);
    mmap EBADF |h| of_file(h.place, libc::PROT_READ, libc::MAP_PRIVATE);
    mmap EEXIST |_| sys::mmap(anon(1)?, PAGE, RW, ANON | libc::MAP_FIXED_NOREPLACE, -1, 0);
    mmap EINVAL |_| sys::mmap(0, 0, RW, ANON, -1, 0);
    mmap EINVAL |_| sys::mmap(0, PAGE, RW, libc::MAP_ANONYMOUS, -1, 0);
    mmap EINVAL |h| sys::mmap(0, PAGE, RW, libc::MAP_PRIVATE, h.fd, 1);
    mmap EINVAL |_| sys::mmap(anon(2)? + 1, PAGE, RW, ANON | libc::MAP_FIXED, -1, 0);
    mmap EINVAL |_| sys::mmap(0, PAGE, RW, libc::MAP_SHARED_VALIDATE | libc::MAP_ANONYMOUS, -1, 0);
    mmap EINVAL |_| sys::mmap(0, PAGE, RW, libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_GROWSDOWN, -1, 0);
    mmap EINVAL |h| of_file(h.fd, RW, libc::MAP_PRIVATE | libc::MAP_GROWSDOWN);
    mmap EINVAL |h| of_file(h.fd, RW, libc::MAP_PRIVATE | libc::MAP_HUGETLB);
    mmap ENODEV |h| of_file(h.at, libc::PROT_READ, libc::MAP_PRIVATE);
    mmap ENODEV |h| of_file(h.from, libc::PROT_READ, libc::MAP_PRIVATE);
    mmap ENOMEM |_| sys::mmap(0, 1 << 47, RW, ANON, -1, 0);
    mmap ENOMEM |_| limited(libc::RLIMIT_AS, 64 << 20, || sys::mmap(0, 128 << 20, RW, ANON, -1, 0));
    mmap ENOMEM |_| limited(libc::RLIMIT_DATA, PAGE, || sys::mmap(0, 16 << 20, RW, ANON, -1, 0));
    mmap EOPNOTSUPP |h| of_file(h.fd, RW, libc::MAP_SHARED_VALIDATE | 0x20_0000);
    mmap EOPNOTSUPP |h| of_file(h.fd, RW, libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC);
    mmap EOVERFLOW |h| sys::mmap(0, PAGE, libc::PROT_READ, libc::MAP_PRIVATE, h.fd, 1 << 63);
    mmap EPERM |h| h.mounted(libc::MS_NOEXEC, || of_file(h.open("m/f", libc::O_RDWR)?, libc::PROT_READ | libc::PROT_EXEC, libc::MAP_PRIVATE));
    mmap EPERM |_| nobody(|| sys::mmap(PAGE, PAGE, RW, ANON | libc::MAP_FIXED, -1, 0));
    mprotect EINVAL |_| sc!(SYS_mprotect, 1, PAGE, 0);
    mprotect ENOMEM |_| sc!(SYS_mprotect, PAGE, PAGE, 0);
    mprotect EACCES |h| sc!(SYS_mprotect, of_file(h.reader, libc::PROT_READ, libc::MAP_SHARED)?, PAGE, RW);
    mprotect EACCES |h| h.mounted(libc::MS_NOEXEC, || { let at = of_file(h.open("m/f", libc::O_RDWR)?, libc::PROT_READ, libc::MAP_PRIVATE)?; let got = sc!(SYS_mprotect, at, PAGE, libc::PROT_EXEC); sys::munmap(at, PAGE)?; got });
    mprotect EINVAL |_| sc!(SYS_mprotect, anon(1)?, PAGE, 0x10);
    mprotect EINVAL |_| sc!(SYS_mprotect, anon(1)?, PAGE, RW | libc::PROT_GROWSDOWN);
    mprotect EINVAL |_| sc!(SYS_mprotect, anon(1)?, PAGE, RW | libc::PROT_GROWSDOWN | libc::PROT_GROWSUP);
    mremap EINVAL |_| sc!(SYS_mremap, 1, PAGE, PAGE, 0);
    mremap EFAULT |_| sc!(SYS_mremap, PAGE, PAGE, 2 * PAGE, 1);
    mremap EAGAIN |_| limited_nobody(libc::RLIMIT_MEMLOCK, PAGE, || sc!(SYS_mremap, locked()?, PAGE, 9 * PAGE, libc::MREMAP_MAYMOVE));
    mremap EFAULT |_| { let at = anon(2)?; sc!(SYS_mprotect, at, PAGE, 0)?; sc!(SYS_mremap, at, 2 * PAGE, 3 * PAGE, libc::MREMAP_MAYMOVE) };
    mremap EINVAL |_| sc!(SYS_mremap, anon(1)?, PAGE, 0, 0);
    mremap EINVAL |_| sc!(SYS_mremap, anon(1)?, PAGE, PAGE, 8);
    mremap EINVAL |_| sc!(SYS_mremap, anon(1)?, 0, PAGE, libc::MREMAP_MAYMOVE);
    mremap EINVAL |_| sc!(SYS_mremap, anon(2)?, 2 * PAGE, PAGE, libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP);
    mremap EINVAL |_| sc!(SYS_mremap, anon(1)?, PAGE, PAGE, libc::MREMAP_DONTUNMAP);
    mremap EINVAL |_| sc!(SYS_mremap, anon(1)?, PAGE, PAGE, libc::MREMAP_FIXED, 1u64 << 32);
    mremap EINVAL |_| sc!(SYS_mremap, anon(1)?, PAGE, PAGE, libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED, 1);
    mremap EINVAL |_| { let at = anon(2)?; sc!(SYS_mremap, at, 2 * PAGE, 2 * PAGE, libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED, at + PAGE) };
    mremap ENOMEM |_| { let at = anon(2)?; sc!(SYS_mprotect, at + PAGE, PAGE, 0)?; sc!(SYS_mremap, at, PAGE, 2 * PAGE, 0) };
    mremap ENOMEM |_| limited(libc::RLIMIT_AS, 64 << 20, || sc!(SYS_mremap, anon(1)?, PAGE, 128 << 20, libc::MREMAP_MAYMOVE));
    msync EINVAL |_| sc!(SYS_msync, PAGE, PAGE, 0x80);
    msync EINVAL |_| sc!(SYS_msync, PAGE, PAGE, libc::MS_SYNC | libc::MS_ASYNC);
    msync ENOMEM |_| sc!(SYS_msync, PAGE, PAGE, libc::MS_SYNC);
    msync EBUSY |_| sc!(SYS_msync, locked()?, PAGE, libc::MS_INVALIDATE);
    msync EINVAL |_| sc!(SYS_msync, anon(1)? + 1, PAGE, libc::MS_SYNC);
    munlock ENOMEM |_| sc!(SYS_munlock, PAGE, PAGE);
    munlock EINVAL |_| sc!(SYS_munlock, PAGE, u64::MAX - PAGE);
    munmap EINVAL |_| sc!(SYS_munmap, 1, PAGE);
    munmap EINVAL |_| sc!(SYS_munmap, PAGE, 0);
    munmap EINVAL |_| sc!(SYS_munmap, 1u64 << 62, PAGE);
}

flags! {
    brk GROW |_| apart(|| { let end = sc!(SYS_brk, 0)?; Ok(sc!(SYS_brk, end + PAGE)? == end + PAGE) });
    brk LIMIT |_| limited(libc::RLIMIT_DATA, PAGE, || { let end = sc!(SYS_brk, 0)?; Ok(sc!(SYS_brk, end + (1 << 20))? == end) });
    madvise MADV_COLD |_| advised(libc::MADV_COLD, 7);
    madvise MADV_DODUMP |_| advised(libc::MADV_DODUMP, 7);
    madvise MADV_DOFORK |_| { let at = anon(1)?; sc!(SYS_madvise, at, PAGE, libc::MADV_DONTFORK)?; sc!(SYS_madvise, at, PAGE, libc::MADV_DOFORK)?; apart(|| Ok(sys::catch(|| sys::peek(at)).is_none())) };
    madvise MADV_DONTDUMP |_| advised(libc::MADV_DONTDUMP, 7);
    madvise MADV_DONTFORK |_| { let at = anon(1)?; sc!(SYS_madvise, at, PAGE, libc::MADV_DONTFORK)?; apart(|| Ok(sys::catch(|| sys::peek(at)).is_some())) };
    madvise MADV_DONTNEED |_| advised(libc::MADV_DONTNEED, 0);
    madvise MADV_DONTNEED_LOCKED |_| { let at = locked()?; sys::poke(at, 7); sc!(SYS_madvise, at, PAGE, 24)?; Ok(sys::peek(at) == 0) };
    madvise MADV_FREE |_| { let at = anon(1)?; sys::poke(at, 7); sc!(SYS_madvise, at, PAGE, libc::MADV_FREE)?; Ok(matches!(sys::peek(at), 0 | 7)) };
    madvise MADV_HUGEPAGE |_| advised(libc::MADV_HUGEPAGE, 7);
    madvise MADV_KEEPONFORK |_| { let at = anon(1)?; sys::poke(at, 7); sc!(SYS_madvise, at, PAGE, libc::MADV_WIPEONFORK)?; sc!(SYS_madvise, at, PAGE, libc::MADV_KEEPONFORK)?; apart(|| Ok(sys::peek(at) == 7)) };
    madvise MADV_NOHUGEPAGE |_| advised(libc::MADV_NOHUGEPAGE, 7);
    madvise MADV_NORMAL |_| advised(libc::MADV_NORMAL, 7);
    madvise MADV_PAGEOUT |_| advised(libc::MADV_PAGEOUT, 7);
    madvise MADV_POPULATE_READ |_| { let at = anon(2)?; sc!(SYS_madvise, at, 2 * PAGE, libc::MADV_POPULATE_READ)?; resident(at + PAGE) };
    madvise MADV_POPULATE_WRITE |_| { let at = anon(2)?; sc!(SYS_madvise, at, 2 * PAGE, libc::MADV_POPULATE_WRITE)?; resident(at + PAGE) };
    madvise MADV_RANDOM |_| advised(libc::MADV_RANDOM, 7);
    madvise MADV_REMOVE |_| { let at = mapped(RW, libc::MAP_SHARED | libc::MAP_ANONYMOUS)?; sys::poke(at, 7); sc!(SYS_madvise, at, PAGE, libc::MADV_REMOVE)?; Ok(sys::peek(at) == 0) };
    madvise MADV_SEQUENTIAL |_| advised(libc::MADV_SEQUENTIAL, 7);
    madvise MADV_WILLNEED |_| advised(libc::MADV_WILLNEED, 7);
    madvise MADV_WIPEONFORK |_| { let at = anon(1)?; sys::poke(at, 7); sc!(SYS_madvise, at, PAGE, libc::MADV_WIPEONFORK)?; apart(|| Ok(sys::peek(at) == 0)) };
    mlock LOCK |_| { let at = anon(2)?; sc!(SYS_mlock, at + 5, PAGE)?; Ok(resident(at)? && resident(at + PAGE)?) };
    mlock2 MLOCK_ONFAULT |_| { let at = anon(1)?; sc!(SYS_mlock2, at, PAGE, libc::MLOCK_ONFAULT)?; Ok(!resident(at)?) };
    mlockall MCL_CURRENT |_| apart(|| { let at = anon(2)?; sc!(SYS_mlockall, libc::MCL_CURRENT)?; Ok(resident(at)? && sc!(SYS_madvise, at, PAGE, libc::MADV_DONTNEED) == Err(libc::EINVAL)) });
    mlockall MCL_FUTURE |_| apart(|| { sc!(SYS_mlockall, libc::MCL_FUTURE)?; resident(anon(2)?) });
    mlockall MCL_ONFAULT |_| apart(|| { sc!(SYS_mlockall, libc::MCL_FUTURE | libc::MCL_ONFAULT)?; let at = anon(1)?; Ok(!resident(at)? && sc!(SYS_madvise, at, PAGE, libc::MADV_DONTNEED) == Err(libc::EINVAL)) });
    mmap MAP_32BIT |_| Ok(mapped(RW, ANON | libc::MAP_32BIT)? >> 31 == 0);
    mmap MAP_ANONYMOUS |_| Ok(sys::peek(mapped(RW, ANON)?) == 0);
    mmap MAP_DENYWRITE |h| { of_file(h.fd, libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_DENYWRITE)?; h.open("f", libc::O_WRONLY).and_then(sys::close) };
    mmap MAP_EXECUTABLE |_| mapped(RW, ANON | libc::MAP_EXECUTABLE);
    mmap MAP_FIXED |_| { let at = anon(1)?; sys::poke(at, 7); Ok(sys::mmap(at, PAGE, RW, ANON | libc::MAP_FIXED, -1, 0)? == at && sys::peek(at) == 0) };
    mmap MAP_FIXED_NOREPLACE |_| { let at = anon(1)?; sys::munmap(at, PAGE)?; Ok(sys::mmap(at, PAGE, RW, ANON | libc::MAP_FIXED_NOREPLACE, -1, 0)? == at) };
    mmap MAP_GROWSDOWN |_| { let at = anon(600)? + 599 * PAGE; sys::munmap(at - 599 * PAGE, 600 * PAGE)?; sys::mmap(at, PAGE, RW, ANON | libc::MAP_FIXED | libc::MAP_GROWSDOWN, -1, 0)?; sys::poke(at, 1); Ok(sys::catch(|| sys::poke(at - 8, 1)).is_none()) };
    mmap MAP_LOCKED |_| { let at = sys::mmap(0, 2 * PAGE, RW, ANON | libc::MAP_LOCKED, -1, 0)?; Ok(resident(at + PAGE)? && sc!(SYS_madvise, at, PAGE, libc::MADV_DONTNEED) == Err(libc::EINVAL)) };
    mmap MAP_NONBLOCK |_| Ok(!resident(mapped(RW, ANON | libc::MAP_POPULATE | libc::MAP_NONBLOCK)?)?);
    mmap MAP_NORESERVE |_| sys::mmap(0, 1 << 36, RW, ANON | libc::MAP_NORESERVE, -1, 0);
    mmap MAP_POPULATE |_| resident(sys::mmap(0, 2 * PAGE, RW, ANON | libc::MAP_POPULATE, -1, 0)? + PAGE);
    mmap MAP_PRIVATE |h| { let at = of_file(h.fd, RW, libc::MAP_PRIVATE)?; sys::poke(at, b'x'); Ok(sys::peek(of_file(h.fd, RW, libc::MAP_SHARED)?) == b'0') };
    mmap MAP_SHARED |h| { let at = of_file(h.fd, RW, libc::MAP_SHARED)?; sys::poke(at, b'x'); Ok(sys::peek(of_file(h.fd, RW, libc::MAP_SHARED)?) == b'x') };
    mmap MAP_SHARED_VALIDATE |h| { let at = of_file(h.fd, RW, libc::MAP_SHARED_VALIDATE)?; sys::poke(at, b'x'); Ok(sys::peek(of_file(h.fd, RW, libc::MAP_SHARED)?) == b'x') };
    mmap MAP_STACK |_| mapped(RW, ANON | libc::MAP_STACK);
    mmap PROT_EXEC |_| { let at = anon(1)?; sys::poke(at, 0xc3); sc!(SYS_mprotect, at, PAGE, libc::PROT_READ | libc::PROT_EXEC)?; Ok(sys::catch(|| sys::jump(at)).is_none()) };
    mmap PROT_NONE |_| { let at = mapped(libc::PROT_NONE, ANON)?; Ok(sys::catch(|| sys::peek(at)).is_some()) };
    mmap PROT_READ |_| { let at = mapped(libc::PROT_READ, ANON)?; Ok(sys::catch(|| sys::peek(at)).is_none() && sys::catch(|| sys::poke(at, 1)).is_some()) };
    mmap PROT_WRITE |_| { let at = mapped(libc::PROT_WRITE, ANON)?; Ok(sys::catch(|| sys::poke(at, 1)).is_none()) };
    mprotect PROT_GROWSDOWN |_| { let at = anon(600)? + 599 * PAGE; sys::munmap(at - 599 * PAGE, 600 * PAGE)?; sys::mmap(at, PAGE, RW, ANON | libc::MAP_FIXED | libc::MAP_GROWSDOWN, -1, 0)?; sys::poke(at - 8, 1); sc!(SYS_mprotect, at, PAGE, libc::PROT_READ | libc::PROT_GROWSDOWN)?; Ok(sys::catch(|| sys::poke(at - 8, 1)).is_some()) };
    mprotect PROT_NONE |_| { let at = anon(1)?; sc!(SYS_mprotect, at, PAGE, libc::PROT_NONE)?; Ok(sys::catch(|| sys::peek(at)).is_some()) };
    mprotect PROT_SEM |_| sc!(SYS_mprotect, anon(1)?, PAGE, RW | 8);
    mremap MREMAP_DONTUNMAP |_| { let at = anon(1)?; sys::poke(at, 7); let to = sc!(SYS_mremap, at, PAGE, PAGE, libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP)?; Ok([sys::peek(at), sys::peek(to)] == [0, 7]) };
    mremap MREMAP_FIXED |_| { let (at, to) = (anon(1)?, anon(1)?); sys::poke(at, 7); Ok(sc!(SYS_mremap, at, PAGE, PAGE, libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED, to)? == to && sys::peek(to) == 7) };
    mremap MREMAP_MAYMOVE |_| { let at = anon(2)?; sys::poke(at, 7); sc!(SYS_mprotect, at + PAGE, PAGE, 0)?; let to = sc!(SYS_mremap, at, PAGE, 2 * PAGE, libc::MREMAP_MAYMOVE)?; Ok(to != at && sys::peek(to) == 7) };
    msync MS_ASYNC |h| sc!(SYS_msync, of_file(h.fd, RW, libc::MAP_SHARED)?, PAGE, libc::MS_ASYNC);
    msync MS_INVALIDATE |h| sc!(SYS_msync, of_file(h.fd, RW, libc::MAP_SHARED)?, PAGE, libc::MS_SYNC | libc::MS_INVALIDATE);
    msync MS_SYNC |h| { let at = of_file(h.fd, RW, libc::MAP_SHARED)?; sys::poke(at, b'x'); sc!(SYS_msync, at, PAGE, libc::MS_SYNC)?; let mut byte = [0]; sc!(SYS_pread64, h.fd, byte.as_mut_ptr(), 1, 0)?; Ok(byte == *b"x") };
    munlock UNLOCK |_| { let at = locked()?; sc!(SYS_munlock, at, PAGE)?; sc!(SYS_madvise, at, PAGE, libc::MADV_DONTNEED) };
    munlockall UNLOCK |_| apart(|| { let at = locked()?; sc!(SYS_mlockall, libc::MCL_FUTURE)?; sc!(SYS_munlockall)?; sc!(SYS_madvise, at, PAGE, libc::MADV_DONTNEED)?; Ok(!resident(anon(1)?)?) });
}
