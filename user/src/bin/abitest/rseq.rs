//! rseq and membarrier.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};

use crate::harness::*;
use user::sys;

/// The word before each abort handler.
const SIGNATURE: u32 = 0x5305_3053;

fn rseq(at: u64, len: u32, flags: i32, signature: u32) -> Result<u64, i32> {
    sc!(SYS_rseq, at, len, flags, signature)
}

/// The thread's structure, which the C library has registered when it began: a second registration of it is refused.
fn registered() -> Option<u64> {
    let mut thread = 0u64;
    sc!(SYS_arch_prctl, 0x1003, &raw mut thread).ok()?;
    let near = (0..0x2000u64)
        .step_by(32)
        .flat_map(|far| [thread + far, thread - far]);
    near.map(|at| at & !31)
        .find(|&at| rseq(at, 32, 0, SIGNATURE) == Err(libc::EBUSY))
}

/// Ends the C library's registration; returns an area that is registered instead.
fn own() -> Result<u64, String> {
    let Some(old) = registered() else {
        return Err("skip: the C library has registered nothing".into());
    };
    ok!(rseq(old, 32, 1, SIGNATURE));
    let area = ok!(anon(1));
    ok!(rseq(area, 32, 0, SIGNATURE));
    Ok(area)
}

fn cpu_of(area: u64) -> u64 {
    sys::peek64(area) >> 32
}

static SIGNALS: AtomicU32 = AtomicU32::new(0);

extern "C" fn count(_: i32) {
    SIGNALS.fetch_add(1, SeqCst);
}

fn membarrier(command: u32) -> Result<u64, i32> {
    sc!(SYS_membarrier, command, 0, 0)
}

tests! { "rseq";
    the_c_library_registers_and_the_cpu_is_the_present_one {
        let Some(area) = registered() else {
            return Err("skip: the C library has registered nothing".into());
        };
        for _ in 0..20 {
            for cpu in sys::cpus() {
                ok!(sys::tie_to_cpu(cpu));
                is!(sys::peek64(area), (cpu as u64) << 32 | cpu as u64);
                nap_us(100);
                is!(cpu_of(area), cpu as u64);
            }
        }
        // A child has a copy; a thread has its own.
        let cpus = sys::cpus();
        let status = in_child(|| {
            let _ = sys::tie_to_cpu(cpus[0]);
            i32::from(cpu_of(area) != cpus[0] as u64)
        })?;
        is!(status, 0);
        let other = std::thread::spawn(registered).join().ok().flatten();
        holds!(other.is_some_and(|other| other != area));
    }
    registration {
        let Some(old) = registered() else {
            return Err("skip: the C library has registered nothing".into());
        };
        let area = ok!(anon(1));
        fails!(rseq(area, 32, 0, SIGNATURE), EINVAL);
        fails!(rseq(old, 32, 0, SIGNATURE + 1), EPERM);
        fails!(rseq(old, 32, 1, SIGNATURE + 1), EPERM);
        fails!(rseq(area, 32, 1, SIGNATURE), EINVAL);
        fails!(rseq(old, 32, 2, SIGNATURE), EINVAL);
        ok!(rseq(old, 32, 1, SIGNATURE));
        is!(cpu_of(old), u32::MAX.into());
        fails!(rseq(old, 32, 1, SIGNATURE), EINVAL);
        fails!(rseq(area, 31, 0, SIGNATURE), EINVAL);
        fails!(rseq(area + 8, 32, 0, SIGNATURE), EINVAL);
        fails!(rseq(1 << 63, 32, 0, SIGNATURE), EFAULT);
        ok!(rseq(area, 32, 0, SIGNATURE));
        fails!(rseq(area, 32, 0, SIGNATURE), EBUSY);
        ok!(sys::tie_to_cpu(sys::cpus()[0]));
        is!(cpu_of(area), sys::cpus()[0] as u64);
    }
    a_sequence_that_nothing_disturbs_ends {
        let area = own()?;
        let ended = (0..1000).filter(|_| sys::sequence(area, 10)).count();
        holds!(ended > 900);
    }
    a_signal_aborts_a_sequence {
        let area = own()?;
        ok!(sys::on_signal(libc::SIGALRM, count as *const () as usize, 0));
        let timer = [0u64, 0, 0, 30_000];
        ok!(sc!(SYS_setitimer, libc::ITIMER_REAL, timer.as_ptr(), 0));
        // It has no end of its own.
        while SIGNALS.load(SeqCst) == 0 { holds!(!sys::sequence(area, u64::MAX)); }
        is!(sys::peek64(area + 8), 0);
    }
    a_switch_aborts_a_sequence {
        let area = own()?;
        ok!(sys::tie_to_cpu(sys::cpus()[0]));
        let rival = ok!(sys::fork());
        if rival == 0 { loop { std::hint::spin_loop(); } }
        for _ in 0..3 { holds!(!sys::sequence(area, u64::MAX)); }
        is!(sys::peek64(area + 8), 0);
        ok!(sc!(SYS_kill, rival, libc::SIGKILL));
    }
    a_malformed_sequence_is_a_fault {
        let area = own()?;
        let status = in_child(|| {
            sys::poke64(area + 8, 0x10);
            nap_us(1000);
            0
        })?;
        is!(status & 0x7f, libc::SIGSEGV);
    }
    barriers {
        let all = ok!(membarrier(0));
        holds!(all & 0x19 == 0x19);
        fails!(sc!(SYS_membarrier, 0, 5, 0), EINVAL);
        fails!(membarrier(1 << 30), EINVAL);
        ok!(membarrier(1));
        fails!(membarrier(8), EPERM);
        ok!(membarrier(16));
        ok!(membarrier(8));
        fails!(membarrier(32), EPERM);
        ok!(membarrier(64));
        ok!(membarrier(32));
        ok!(membarrier(4));
        ok!(membarrier(2));
        is!(in_child(|| i32::from(membarrier(8).is_err()))?, 0);
    }
    // Dekker's protocol with a plain store and load on one side.
    barriers_order_the_other_threads {
        static TURN: AtomicU32 = AtomicU32::new(0);
        static SLOW: AtomicU32 = AtomicU32::new(0);
        static FAST: AtomicU32 = AtomicU32::new(0);
        static SAW: AtomicU32 = AtomicU32::new(0);
        static DONE: AtomicU32 = AtomicU32::new(0);
        static END: AtomicBool = AtomicBool::new(false);
        use std::sync::atomic::Ordering::Relaxed;
        ok!(membarrier(16));
        let fast = std::thread::spawn(|| {
            let mut last = 0;
            while !END.load(Relaxed) {
                let turn = TURN.load(SeqCst);
                if turn == last { std::hint::spin_loop(); continue; }
                last = turn;
                FAST.store(turn, Relaxed);
                std::sync::atomic::compiler_fence(SeqCst);
                SAW.store(SLOW.load(Relaxed), Relaxed);
                DONE.store(turn, SeqCst);
            }
        });
        let end = sys::now_ns() + 500_000_000;
        let mut turn = 0;
        while sys::now_ns() < end {
            turn += 1;
            TURN.store(turn, SeqCst);
            SLOW.store(turn, Relaxed);
            ok!(membarrier(8));
            let seen = FAST.load(Relaxed);
            while DONE.load(SeqCst) != turn { std::hint::spin_loop(); }
            holds!(seen == turn || SAW.load(Relaxed) == turn);
        }
        END.store(true, Relaxed);
        holds!(fast.join().is_ok());
    }
}
