//! What counts against the limits of memory, and what counts only once.

use crate::harness::*;
use crate::privileges::{as_child, exec};
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

/// A program that ends with status 0, and has `bss` bytes of memory that its file does not hold.
fn with_bss(name: &str, bss: u64) -> Result<String, String> {
    let mut bytes = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x3e\0\x01\0\0\0".to_vec();
    // The entry, behind the headers; program headers at offset 64; no section headers.
    for word in [0x40_00b0u64, 64, 0] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(b"\0\0\0\0\x40\0\x38\0\x02\0\x40\0\0\0\0\0");
    for (flags, addr, in_file, in_memory) in [(5, 0x40_0000, PAGE, PAGE), (6, 0x50_0000, 0, bss)] {
        let kind = u64::from(libc::PT_LOAD) | flags << 32;
        for word in [kind, 0, addr, addr, in_file, in_memory, PAGE] {
            bytes.extend(word.to_le_bytes());
        }
    }
    // mov eax, 60; xor edi, edi; syscall.
    bytes.extend(b"\xb8\x3c\0\0\0\x31\xff\x0f\x05");
    bytes.resize(PAGE as usize, 0);
    let file = format!("{}/{name}", scratch());
    std::fs::write(&file, bytes).map_err(|e| e.to_string())?;
    ok!(sc!(SYS_chmod, path(&file), 0o755));
    Ok(file)
}

tests! { "limits";
    programs_run_with_an_unlimited_stack {
        // A position-independent one, and one that is not.
        for file in ["/bin/true".to_owned(), with_bss("small", MIB)?] {
            for bytes in [u64::MAX, 60 << 40, 30 << 40] {
                let errno = as_child(|| limit(libc::RLIMIT_STACK, bytes), || Err(exec(&file, ""))).err();
                is!(errno, None);
            }
        }
    }
    a_program_larger_than_the_limits_does_not_run {
        let run = |bss: u64, resource: u32, bytes: u64| {
            let file = with_bss("large", bss)?;
            // Returns only if execve fails.
            let errno = as_child(|| limit(resource, bytes), || Err(exec(&file, ""))).err();
            Ok(errno.unwrap_or(0))
        };
        for (resource, other) in [(libc::RLIMIT_AS, libc::RLIMIT_DATA), (libc::RLIMIT_DATA, libc::RLIMIT_AS)] {
            is!(run(256 * MIB, resource, 64 * MIB), Ok::<i32, String>(libc::ENOMEM));
            is!(run(256 * MIB, resource, 512 * MIB), Ok(0));
            is!(run(32 * MIB, resource, 64 * MIB), Ok(0));
            is!(run(32 * MIB, other, 64 * MIB), Ok(0));
        }
        // The stack is not data.
        is!(run(MIB, libc::RLIMIT_DATA, MIB), Ok(0));
        is!(run(MIB, libc::RLIMIT_AS, MIB), Ok(libc::ENOMEM));
    }
    no_bytes_are_locked_anywhere {
        for at in [PAGE, 0xffff_8880_0000_0000, PAGE.wrapping_neg()] {
            is!(ok!(sc!(SYS_mlock, at, 0)), 0);
            is!(ok!(sc!(SYS_mlock2, at, 0, 0)), 0);
            is!(ok!(sc!(SYS_munlock, at, 0)), 0);
        }
    }
    nothing_moves_to_the_lowest_addresses {
        let base = ok!(anon(1));
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        is!(in_child(|| {
            let _ = sc!(SYS_setresuid, 4321, 4321, 4321);
            let moved = |to| sc!(SYS_mremap, base, PAGE, PAGE, flags, to);
            i32::from([0, PAGE].map(moved) != [Err(libc::EPERM); 2])
        })?, 0);
    }
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
    // A call that takes no further memory is not refused, however much is in use.
    what_only_moves_and_stacks_are_not_data {
        let (base, to) = (ok!(map(0, 8 * MIB, RW, 0)), ok!(map(0, 8 * MIB, 0, 0)));
        ok!(limit(libc::RLIMIT_DATA, PAGE));
        ok!(limit(libc::RLIMIT_AS, PAGE));
        let fixed = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        is!(ok!(sc!(SYS_mremap, base, 8 * MIB, 8 * MIB, fixed, to)), to);
        is!(ok!(sc!(SYS_mremap, to, 8 * MIB, 4 * MIB, fixed, base)), base);
    }
    what_grows_down_is_no_data {
        ok!(limit(libc::RLIMIT_DATA, PAGE));
        fails!(map(0, MIB, RW, 0), ENOMEM);
        ok!(map(0, MIB, RW, libc::MAP_GROWSDOWN));
    }
    a_stack_grows_as_far_as_its_limit_is_now {
        let touches = |top: u64, bytes: u64| sys::catch(|| sys::poke(top - bytes, 1)).is_none();
        let top = ok!(map(0x1000_0000_0000, PAGE, RW, libc::MAP_GROWSDOWN | libc::MAP_FIXED)) + PAGE;
        ok!(sc!(SYS_prlimit64, 0, libc::RLIMIT_STACK, [MIB, 64 * MIB].as_ptr(), 0));
        holds!(!touches(top, 2 * MIB));
        ok!(sc!(SYS_prlimit64, 0, libc::RLIMIT_STACK, [32 * MIB, 64 * MIB].as_ptr(), 0));
        holds!(touches(top, 16 * MIB));
        holds!(!touches(top, 48 * MIB));
    }
    who_shares_memory_has_a_stack_limit_of_its_own {
        static LATER: libc::timespec = libc::timespec { tv_sec: i64::MAX, tv_nsec: 0 };
        let top = ok!(map(0x1000_0000_0000, PAGE, RW, libc::MAP_GROWSDOWN | libc::MAP_FIXED)) + PAGE;
        let child = ok!(sys::clone_asleep(libc::SIGCHLD, &LATER));
        ok!(sc!(SYS_prlimit64, child, libc::RLIMIT_STACK, [64 * 1024u64, MIB].as_ptr(), 0));
        let fault = sys::catch(|| sys::poke(top - MIB, 1));
        ok!(sc!(SYS_kill, child, libc::SIGKILL));
        holds!(fault.is_none());
    }
    a_stack_counts_as_all_that_is_mapped {
        let top = ok!(map(0x1000_0000_0000, PAGE, RW, libc::MAP_GROWSDOWN | libc::MAP_FIXED)) + PAGE;
        ok!(limit(libc::RLIMIT_AS, mapped() + 2 * MIB));
        holds!(sys::catch(|| sys::poke(top - MIB, 1)).is_none());
        holds!(sys::catch(|| sys::poke(top - 4 * MIB, 1)).is_some());
    }
    // Memory locks are not inherited by a child, so the kernel makes the store in this process.
    a_locked_stack_counts_as_locked {
        let flags = libc::MAP_GROWSDOWN | libc::MAP_FIXED | libc::MAP_LOCKED;
        let top = ok!(map(0x1000_0000_0000, PAGE, RW, flags)) + PAGE;
        ok!(limit(libc::RLIMIT_MEMLOCK, MIB));
        ok!(sc!(SYS_clock_gettime, 0, top - 2 * MIB));
        ok!(sc!(SYS_setresuid, 1000, 1000, 1000));
        fails!(sc!(SYS_clock_gettime, 0, top - 4 * MIB), EFAULT);
        ok!(limit(libc::RLIMIT_MEMLOCK, 0));
        ok!(sc!(SYS_clock_gettime, 0, top - MIB));
    }
    who_may_lock_nothing_is_told_so_when_it_asks {
        ok!(sc!(SYS_mlockall, libc::MCL_FUTURE));
        let locked = ok!(map(0, PAGE, RW, 0));
        ok!(limit(libc::RLIMIT_MEMLOCK, 0));
        ok!(sc!(SYS_setresuid, 1000, 1000, 1000));
        fails!(sc!(SYS_mlock, locked, PAGE), EPERM);
        fails!(map(0, PAGE, RW, libc::MAP_LOCKED), EPERM);
        fails!(map(0, PAGE, RW, 0), EAGAIN);
        fails!(sc!(SYS_mremap, locked, PAGE, 2 * PAGE, libc::MREMAP_MAYMOVE), EAGAIN);
        let both = libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP;
        ok!(sc!(SYS_mremap, locked, PAGE, PAGE, both, 0));
    }
}
