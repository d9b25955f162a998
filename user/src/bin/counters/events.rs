//! Processes, interrupts, shootdowns and time.

use super::counts::{Count, word};
use super::{HERE, Needs, THERE, Test, Verdict, between, exact, over};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use user::sys;

const PAGE: u64 = 4096;

/// The tests.
pub const TESTS: &[Test] = &[
    Test {
        name: "events/fork",
        needs: Needs::Nothing,
        run: forks,
    },
    Test {
        name: "events/vfork",
        needs: Needs::Nothing,
        run: vforks,
    },
    Test {
        name: "events/exec",
        needs: Needs::Nothing,
        run: execs,
    },
    Test {
        name: "events/timer",
        needs: Needs::Nothing,
        run: timers,
    },
    Test {
        name: "events/time",
        needs: Needs::Nothing,
        run: times,
    },
    Test {
        name: "events/sample",
        needs: Needs::TwoCpus,
        run: samples,
    },
    Test {
        name: "events/ipi",
        needs: Needs::TwoCpus,
        run: ipis,
    },
    Test {
        name: "events/shootdown",
        needs: Needs::TwoCpus,
        run: shootdowns,
    },
    Test {
        name: "keys/serial",
        needs: Needs::Keys,
        run: keys,
    },
    Test {
        name: "events/no-shootdown",
        needs: Needs::Nothing,
        run: no_shootdowns,
    },
];

fn failed(what: &str) -> impl Fn(sys::Errno) -> String {
    move |errno| format!("{what}: errno {errno}")
}

fn forks() -> Verdict {
    let (grown, done) = over(|| {
        for _ in 0..20 {
            let pid = sys::fork().map_err(failed("fork"))?;
            if pid == 0 {
                sys::exit(0)
            }
            sys::wait(pid as i64, 0).map_err(failed("wait"))?;
        }
        Ok::<(), String>(())
    });
    done?;
    exact("forks", grown.sum(Count::Forks), 20)?;
    exact("threads", grown.sum(Count::Threads), 20)?;
    exact("vforks", grown.sum(Count::Vforks), 0)
}

fn vforks() -> Verdict {
    let (grown, done) = over(|| {
        for _ in 0..20 {
            let pid = sys::vfork_exit().map_err(failed("vfork"))?;
            sys::wait(pid as i64, 0).map_err(failed("wait"))?;
        }
        Ok::<(), String>(())
    });
    done?;
    exact("vforks", grown.sum(Count::Vforks), 20)?;
    exact("forks", grown.sum(Count::Forks), 0)
}

fn execs() -> Verdict {
    let path = c"/usr/bin/tiny-true";
    let argv = [path.as_ptr(), std::ptr::null()];
    let envp = [std::ptr::null()];
    let (grown, done) = over(|| {
        for _ in 0..10 {
            let pid = sys::vfork_exec(path, &argv, &envp).map_err(failed("vfork"))?;
            let (_, status) = sys::wait(pid as i64, 0).map_err(failed("wait"))?;
            exact("the program's status", status.into(), 0)?;
        }
        Ok::<(), String>(())
    });
    done?;
    exact("execs", grown.sum(Count::Execs), 10)
}

/// Milliseconds between the ticks of a CPU that runs something.
const TICK_MS: i64 = 4;

fn timers() -> Verdict {
    let cpu = HERE;
    let sleeps = 40;
    let (grown, ms) = over(|| {
        let began = sys::now_ns();
        (0..sleeps).for_each(|_| sys::nap(2_000_000));
        ((sys::now_ns() - began) / 1_000_000) as i64
    });
    // One interrupt ends each sleep; on a slow machine ticks come besides, and a sleep that crosses a slot of the timer
    // wheel wakes the CPU once more. Ticks during the measurement of a reading's own cost have been subtracted.
    between(
        "timer interrupts",
        grown.of(cpu, Count::Timer),
        sleeps - 4,
        2 * sleeps + ms / TICK_MS,
    )
}

fn times() -> Verdict {
    let cpu = HERE;
    let (grown, (slept, span)) = over(|| {
        let began = sys::now_ns();
        sys::nap(200_000_000);
        let slept = sys::now_ns() - began;
        while sys::now_ns() - began < slept + 200_000_000 {}
        (slept as i64, (sys::now_ns() - began) as i64)
    });
    let of = |count| grown.of(cpu, count);
    // The sleep itself is 200 ms; the time beyond that may have been spent on entering and leaving it.
    between("idle ns", of(Count::IdleNs), 190_000_000, slept)?;
    let ticks = of(Count::Timer) * TICK_MS * 1_000_000;
    between(
        "user and system ns",
        of(Count::UserNs) + of(Count::SysNs),
        TICK_MS * 1_000_000,
        ticks,
    )?;
    between("user ns", of(Count::UserNs), TICK_MS * 1_000_000, ticks)?;
    between("interrupt ns", of(Count::IntrNs), 1, span - 190_000_000)
}

/// The order for a helper on the other CPU.
static ORDER: AtomicU64 = AtomicU64::new(0);

fn samples() -> Verdict {
    let other = THERE;
    let helper = std::thread::spawn(move || {
        let _ = sys::tie_to_cpu(other);
        ORDER.store(1, SeqCst);
        while ORDER.load(SeqCst) == 1 {}
    });
    while ORDER.load(SeqCst) == 0 {
        sys::nap(1_000_000);
    }
    sys::nap(100_000_000);
    let pc = word(other, "pc");
    ORDER.store(2, SeqCst);
    let _ = helper.join();
    if pc == "0x0" {
        Ok(())
    } else {
        Err(format!("a CPU in user mode was sampled at {pc}"))
    }
}

fn ipis() -> Verdict {
    let (cpu, other) = (HERE, THERE);
    let (from, to) = sys::pipe(0).map_err(failed("pipe"))?;
    let wakes = 40;
    let helper = std::thread::spawn(move || {
        let _ = sys::tie_to_cpu(other);
        let mut byte = [0];
        while let Ok(1) = sys::read(from, &mut byte) {
            if byte[0] == 1 {
                break;
            }
        }
    });
    sys::nap(20_000_000);
    let (grown, ()) = over(|| {
        for _ in 0..wakes {
            let _ = sys::write(to, &[0]);
            // Long enough for the other CPU to go idle again.
            sys::nap(5_000_000);
        }
    });
    let _ = sys::write(to, &[1]);
    let _ = helper.join();
    // A reader that was not yet asleep needs no interrupt; kernel threads may be woken meanwhile.
    let few = wakes / 10;
    between(
        "IPIs sent",
        grown.of(cpu, Count::Ipis),
        wakes - few,
        wakes + few,
    )?;
    between(
        "IPIs taken",
        grown.of(other, Count::Reschedule),
        wakes - few,
        wakes + few,
    )
}

/// Maps, touches and unmaps a page `times` times.
fn map_and_unmap(times: i64) -> Verdict {
    let (prot, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
    );
    for _ in 0..times {
        let at = sys::mmap(0, PAGE, prot, flags, -1, 0).map_err(failed("mmap"))?;
        sys::poke(at, 1);
        sys::munmap(at, PAGE).map_err(failed("munmap"))?;
    }
    Ok(())
}

fn shootdowns() -> Verdict {
    let (cpu, other) = (HERE, THERE);
    let helper = std::thread::spawn(move || {
        let _ = sys::tie_to_cpu(other);
        ORDER.store(1, SeqCst);
        while ORDER.load(SeqCst) == 1 {}
    });
    while ORDER.load(SeqCst) == 0 {
        sys::nap(1_000_000);
    }
    let (grown, done) = over(|| map_and_unmap(50));
    ORDER.store(2, SeqCst);
    let _ = helper.join();
    done?;
    exact("shootdowns", grown.of(cpu, Count::FlushSent), 50)?;
    exact("CPUs interrupted", grown.of(cpu, Count::FlushTargets), 50)?;
    exact("calls taken", grown.of(other, Count::Call), 50)
}

fn no_shootdowns() -> Verdict {
    let (grown, done) = over(|| map_and_unmap(50));
    done?;
    exact("shootdowns", grown.of(HERE, Count::FlushSent), 0)?;
    exact("avoided", grown.of(HERE, Count::FlushAvoided), 50)
}

/// Keys that the test of the serial line waits for.
const KEYS: i64 = 20;

fn keys() -> Verdict {
    let (grown, line) = over(|| {
        println!("type {} letters and return", KEYS - 1);
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).map(|_| line)
    });
    let line = line.map_err(|e| e.to_string())?;
    exact("keys", line.len() as i64, KEYS)?;
    // One interrupt may deliver several bytes, and a byte may cause two: its own, and a FIFO timeout if the FIFO was
    // not emptied in time. The test's own output causes none.
    between("device interrupts", grown.sum(Count::Device), 1, 2 * KEYS)
}
