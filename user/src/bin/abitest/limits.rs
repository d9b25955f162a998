//! What counts against limits of memory, and what counts once.

use crate::harness::*;
use user::sys;

const MIB: u64 = 1 << 20;
const RO: i32 = libc::PROT_READ;

fn limit(resource: u32, bytes: u64) -> Result<u64, i32> {
    let both = [bytes, bytes];
    sc!(SYS_prlimit64, 0, resource, both.as_ptr(), 0)
}

/// Bytes that the process has mapped.
fn mapped() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split(' ').next().and_then(|n| n.parse::<u64>().ok());
    pages.unwrap_or(0) * PAGE
}

fn map(at: u64, bytes: u64, prot: i32, more: i32) -> Result<u64, i32> {
    sys::mmap(at, bytes, prot, ANON | more, -1, 0)
}

tests! { "limits";
    what_is_locked_already_counts_once {
        let base = ok!(map(0, 4 * MIB, RW, 0));
        ok!(limit(libc::RLIMIT_MEMLOCK, MIB));
        ok!(sc!(SYS_setresuid, 1000, 1000, 1000));
        ok!(sc!(SYS_mlock, base, 700 * 1024));
        ok!(sc!(SYS_mlock, base, 700 * 1024));
        ok!(sc!(SYS_mlock, base + 300 * 1024, 700 * 1024));
        fails!(sc!(SYS_mlock, base, MIB + PAGE), ENOMEM);
        fails!(sc!(SYS_mlock, base + 2 * MIB, 64 * 1024), ENOMEM);
    }
    the_heap_is_locked_within_the_limit {
        ok!(limit(libc::RLIMIT_MEMLOCK, MIB));
        ok!(sc!(SYS_setresuid, 1000, 1000, 1000));
        ok!(sc!(SYS_mlockall, libc::MCL_FUTURE));
        let now = ok!(sc!(SYS_brk, 0));
        is!(ok!(sc!(SYS_brk, now + 2 * MIB)), now);
        is!(ok!(sc!(SYS_brk, now + 64 * 1024)), now + 64 * 1024);
    }
    what_a_mapping_replaces_is_given_back {
        let base = ok!(map(0, 64 * MIB, RW, 0));
        ok!(limit(libc::RLIMIT_AS, mapped() + 8 * MIB));
        fails!(map(0, 16 * MIB, RW, 0), ENOMEM);
        is!(ok!(map(base, 64 * MIB, RW, libc::MAP_FIXED)), base);
        let both = libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP;
        fails!(sc!(SYS_mremap, base, 32 * MIB, 32 * MIB, both, 0), ENOMEM);
        fails!(sc!(SYS_mremap, base, 64 * MIB, 80 * MIB, libc::MREMAP_MAYMOVE), ENOMEM);
    }
    what_becomes_writable_counts_as_data {
        let (read_only, none) = (ok!(map(0, 32 * MIB, RO, 0)), ok!(map(0, 32 * MIB, 0, 0)));
        let small = ok!(map(0, MIB, RW, 0));
        let shared = ok!(sys::mmap(0, 32 * MIB, RO, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1, 0));
        ok!(limit(libc::RLIMIT_DATA, 16 * MIB));
        fails!(map(0, 32 * MIB, RW, 0), ENOMEM);
        ok!(map(0, 32 * MIB, RO, 0));
        fails!(sc!(SYS_mprotect, read_only, 32 * MIB, RW), ENOMEM);
        fails!(sc!(SYS_mprotect, none, 32 * MIB, RW), ENOMEM);
        ok!(sc!(SYS_mprotect, none, 32 * MIB, RO));
        ok!(sc!(SYS_mprotect, shared, 32 * MIB, RW));
        ok!(sc!(SYS_mprotect, small, MIB, RW));
        fails!(sc!(SYS_mremap, small, MIB, 32 * MIB, libc::MREMAP_MAYMOVE), ENOMEM);
    }
}
