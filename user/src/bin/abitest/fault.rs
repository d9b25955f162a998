//! The signal, code and address that a bad access gets.

use crate::harness::*;
use user::sys::{self, Fault, catch, jump, mmap, munmap, peek, poke};

fn segv(code: i32, addr: u64) -> Option<Fault> {
    Some(Fault {
        signal: libc::SIGSEGV,
        code,
        addr,
    })
}

const MAPERR: i32 = 1;
const ACCERR: i32 = 2;
const ADRERR: i32 = 2;

tests! { "fault";
    nothing_mapped {
        let base = ok!(anon(1));
        ok!(munmap(base, PAGE));
        is!(catch(|| peek(base + 5)), segv(MAPERR, base + 5));
        is!(catch(|| poke(base + 7, 1)), segv(MAPERR, base + 7));
        is!(catch(|| peek(8)), segv(MAPERR, 8));
    }
    write_to_read_only {
        let base = ok!(mmap(0, PAGE, libc::PROT_READ, ANON, -1, 0));
        is!(catch(|| poke(base + 3, 1)), segv(ACCERR, base + 3));
        is!(catch(|| peek(base)), None);
    }
    access_to_prot_none {
        let base = ok!(mmap(0, PAGE, libc::PROT_NONE, ANON, -1, 0));
        is!(catch(|| peek(base + 1)), segv(ACCERR, base + 1));
        ok!(sc!(SYS_mprotect, base, PAGE, RW));
        is!(catch(|| poke(base, 1)), None);
    }
    mprotect_takes_effect_on_resident_pages {
        let base = ok!(anon(4));
        for i in 0..4 { poke(base + i * PAGE, 1); }
        ok!(sc!(SYS_mprotect, base + PAGE, 2 * PAGE, libc::PROT_READ));
        is!(catch(|| poke(base + PAGE, 1)), segv(ACCERR, base + PAGE));
        is!(catch(|| poke(base + 2 * PAGE + 9, 1)), segv(ACCERR, base + 2 * PAGE + 9));
        is!(catch(|| { poke(base, 2); poke(base + 3 * PAGE, 2) }), None);
        ok!(sc!(SYS_mprotect, base, 4 * PAGE, libc::PROT_NONE));
        is!(catch(|| peek(base + 3 * PAGE)), segv(ACCERR, base + 3 * PAGE));
        ok!(sc!(SYS_mprotect, base, 4 * PAGE, RW));
        is!(peek(base + PAGE), 1);
    }
    munmap_takes_effect_on_resident_pages {
        let base = ok!(anon(3));
        for i in 0..3 { poke(base + i * PAGE, 1); }
        ok!(munmap(base + PAGE, PAGE));
        is!(catch(|| peek(base + PAGE)), segv(MAPERR, base + PAGE));
        is!(catch(|| { poke(base, 2); poke(base + 2 * PAGE, 2) }), None);
    }
    execution_of_data {
        let base = ok!(anon(1));
        poke(base, 0xc3);
        is!(catch(|| jump(base)), segv(ACCERR, base));
        ok!(sc!(SYS_mprotect, base, PAGE, libc::PROT_READ | libc::PROT_EXEC));
        is!(catch(|| jump(base)), None);
    }
    kernel_addresses {
        is!(catch(|| peek(0xffff_8000_0000_0000)).map(|f| f.signal), Some(libc::SIGSEGV));
        is!(catch(|| poke(0xffff_ffff_8000_0000, 1)).map(|f| f.signal), Some(libc::SIGSEGV));
        // Not canonical: the CPU reports no address, so the test expects none.
        is!(catch(|| peek(0x8000_0000_0000_0000)).map(|f| f.signal), Some(libc::SIGSEGV));
    }
    the_context_of_a_fault_has_its_address_and_error {
        let base = ok!(mmap(0, 2 * PAGE, libc::PROT_READ, ANON, -1, 0));
        ok!(munmap(base + PAGE, PAGE));
        for (addr, write, error) in [(base + 3, true, 7), (base + PAGE + 5, false, 4), (base + PAGE + 6, true, 6)] {
            holds!(catch(|| { peek(base); if write { poke(addr, 1) } else { poke(addr, peek(addr)) } }).is_some());
            is!(sys::caught_context(), (addr, error));
        }
        // Nobody learns whether a kernel address is mapped.
        let addr = 0xffff_8000_0000_0000;
        holds!(catch(|| peek(addr)).is_some());
        is!(sys::caught_context(), (addr, 5));
    }
    beyond_the_end_of_a_file {
        let fd = file_with(b"hello")?;
        let base = ok!(mmap(0, 3 * PAGE, RW, libc::MAP_SHARED, fd, 0));
        is!(catch(|| poke(base + 4095, 1)), None);
        let bus = Some(Fault { signal: libc::SIGBUS, code: ADRERR, addr: base + PAGE + 2 });
        is!(catch(|| peek(base + PAGE + 2)), bus);
        is!(catch(|| poke(base + PAGE + 2, 1)), bus);
    }
    beyond_the_end_of_a_file_private {
        let fd = file_with(b"hello")?;
        let base = ok!(mmap(0, 3 * PAGE, RW, libc::MAP_PRIVATE, fd, 0));
        is!(catch(|| poke(base + PAGE, 1)), Some(Fault { signal: libc::SIGBUS, code: ADRERR, addr: base + PAGE }));
    }
    truncation_takes_pages_away {
        let fd = file_with(&[7; 8192])?;
        let shared = ok!(mmap(0, 2 * PAGE, RW, libc::MAP_SHARED, fd, 0));
        let private = ok!(mmap(0, 2 * PAGE, RW, libc::MAP_PRIVATE, fd, 0));
        poke(shared + PAGE, 1);
        poke(private + PAGE, 2);
        ok!(sc!(SYS_ftruncate, fd, 100));
        let bus = |addr| Some(Fault { signal: libc::SIGBUS, code: ADRERR, addr });
        is!(catch(|| peek(shared + PAGE)), bus(shared + PAGE));
        is!(catch(|| peek(private + PAGE)), bus(private + PAGE));
        is!([peek(shared + 99), peek(shared + 100)], [7, 0]);
        ok!(sc!(SYS_ftruncate, fd, 8192));
        is!(peek(shared + PAGE), 0);
    }
    stack_grows_down {
        // There is room below on purpose: a growing stack keeps a gap to the next mapping.
        let base = ok!(mmap(0, 2048 * PAGE, libc::PROT_NONE, ANON, -1, 0));
        ok!(munmap(base, 2048 * PAGE));
        let top = base + 1500 * PAGE;
        ok!(mmap(top, PAGE, RW, ANON | libc::MAP_GROWSDOWN | libc::MAP_FIXED, -1, 0));
        poke(top, 1);
        is!(catch(|| poke(top - 8, 2)), None);
    }
    deep_recursion_on_the_main_stack {
        fn depth(n: u64) -> u64 {
            let pad = std::hint::black_box([n; 64]);
            if n == 0 { pad[0] } else { depth(n - 1) + std::hint::black_box(&pad)[63] }
        }
        is!(depth(4000), 4000 * 4001 / 2);
    }
    stack_overflow_is_a_fault {
        let limit = [1u64 << 20, 8 << 20];
        ok!(sc!(SYS_prlimit64, 0, libc::RLIMIT_STACK, limit.as_ptr(), 0));
        let status = in_child(|| {
            #[expect(unconditional_recursion, reason = "overflowing the stack is the test")]
            fn forever(n: u64) -> u64 {
                let pad = std::hint::black_box([n; 64]);
                forever(n + 1) + std::hint::black_box(&pad)[63]
            }
            let _ = sys::default_signal(libc::SIGSEGV);
            forever(0) as i32
        })?;
        is!(status & 0x7f, libc::SIGSEGV);
    }
    division_by_zero_and_bad_instructions {
        let base = ok!(anon(2));
        // xor ecx, ecx; div ecx
        for (i, byte) in [0x31, 0xc9, 0xf7, 0xf1].into_iter().enumerate() { poke(base + i as u64, byte); }
        // ud2
        for (i, byte) in [0x0f, 0x0b].into_iter().enumerate() { poke(base + 64 + i as u64, byte); }
        // hlt: privileged
        poke(base + 128, 0xf4);
        // int3
        poke(base + 192, 0xcc);
        ok!(sc!(SYS_mprotect, base, PAGE, libc::PROT_READ | libc::PROT_EXEC));
        is!(catch(|| jump(base)), Some(Fault { signal: libc::SIGFPE, code: 1, addr: base + 2 }));
        is!(catch(|| jump(base + 64)), Some(Fault { signal: libc::SIGILL, code: 2, addr: base + 64 }));
        is!(catch(|| jump(base + 128)).map(|f| f.signal), Some(libc::SIGSEGV));
        // SI_KERNEL, the code of every exception without a more specific one.
        is!(catch(|| jump(base + 192)), Some(Fault { signal: libc::SIGTRAP, code: 0x80, addr: 0 }));
    }
    there_are_no_local_descriptors {
        let base = ok!(anon(1));
        // mov eax, selector; mov ds, eax; ret. The selectors are those of a local table, from its first to its last.
        let selectors = [0x0007u16, 0x1007, 0x8007, 0xffff];
        for (i, selector) in selectors.into_iter().enumerate() {
            let [low, high] = selector.to_le_bytes();
            for (j, byte) in [0xb8, low, high, 0, 0, 0x8e, 0xd8, 0xc3].into_iter().enumerate() {
                poke(base + 64 * i as u64 + j as u64, byte);
            }
        }
        ok!(sc!(SYS_mprotect, base, PAGE, libc::PROT_READ | libc::PROT_EXEC));
        for i in 0..selectors.len() as u64 {
            // A protection fault, and not one of a page at the address where the table would be.
            is!(catch(|| jump(base + 64 * i)), segv(0x80, 0));
        }
    }
    floating_point_exceptions_say_which {
        let base = ok!(anon(1));
        // Divides 1 by 0, 0 by 0: fldcw of a word on the stack; fld1 or fldz; fldz; fdivp; fwait.
        for (at, first, unmasked) in [(0, 0xe8, 0x7b), (64, 0xee, 0x7e)] {
            let code = [
                0x66, 0xc7, 0x44, 0x24, 0xf8, unmasked, 0x03, 0xd9, 0x6c, 0x24, 0xf8,
                0xd9, first, 0xd9, 0xee, 0xde, 0xf9, 0x9b, 0xc3,
            ];
            for (i, byte) in code.into_iter().enumerate() { poke(base + at + i as u64, byte); }
        }
        ok!(sc!(SYS_mprotect, base, PAGE, libc::PROT_READ | libc::PROT_EXEC));
        for (at, code) in [(0, 3), (64, 7)] {
            // In a child, because the floating-point unit has a pending exception afterwards.
            is!(in_child(|| catch(|| jump(base + at)).filter(|f| f.signal == libc::SIGFPE).map_or(99, |f| f.code))?, code << 8);
        }
    }
    a_handler_returns_to_the_same_floating_point_control {
        extern "C" fn nothing(_: i32) {}
        // movl of MXCSR with "denormals are zeros" to the stack, ldmxcsr; then stmxcsr to a word.
        let code = ok!(anon(1));
        let load = [0xc7, 0x44, 0x24, 0xf8, 0xc0, 0x1f, 0, 0, 0x0f, 0xae, 0x54, 0x24, 0xf8, 0xc3];
        let store = [0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0x0f, 0xae, 0x18, 0xc3];
        let word = ok!(anon(1));
        for (i, byte) in load.into_iter().enumerate() { poke(code + i as u64, byte); }
        for (i, byte) in store.into_iter().enumerate() { poke(code + 64 + i as u64, byte); }
        for (i, byte) in word.to_le_bytes().into_iter().enumerate() { poke(code + 66 + i as u64, byte); }
        ok!(sc!(SYS_mprotect, code, PAGE, libc::PROT_READ | libc::PROT_EXEC));
        ok!(sys::on_signal(libc::SIGUSR1, nothing as *const () as usize, 0));
        jump(code);
        ok!(sc!(SYS_tgkill, ok!(sc!(SYS_getpid)), ok!(sc!(SYS_gettid)), libc::SIGUSR1));
        jump(code + 64);
        is!(u16::from_le_bytes([peek(word), peek(word + 1)]), 0x1fc0);
    }
    unhandled_faults_kill_with_their_signal {
        is!(in_child(|| i32::from(peek(8)))? & 0x7f, libc::SIGSEGV);
    }
}
