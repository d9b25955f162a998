//! The lock profile.

use super::counts::Count;
use super::{Needs, THERE, Test, Verdict, between, counts, exact, over};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use user::sys;

/// The tests.
pub const TESTS: &[Test] = &[
    Test {
        name: "locks/acquired",
        needs: Needs::LockProfile,
        run: acquired,
    },
    Test {
        name: "locks/contended",
        needs: Needs::TwoCpus,
        run: contended,
    },
    Test {
        name: "locks/accounts-agree",
        needs: Needs::TwoCpus,
        run: accounts_agree,
    },
    Test {
        name: "locks/longest-hold",
        needs: Needs::LockProfile,
        run: longest,
    },
];

fn acquired() -> Verdict {
    let fd = super::file()?;
    let (grown, ()) = over(|| {
        for n in 0..500 {
            let _ = sys::call(libc::SYS_lseek, &[fd as u64, n, libc::SEEK_SET as u64]);
        }
    });
    exact(
        "acquisitions of the file's position",
        grown.lock("file position")[0],
        500,
    )
}

static STEP: AtomicU64 = AtomicU64::new(0);

/// One thread writes much to a file, another one a little meanwhile: the second must wait for the file's lock. Returns
/// the duration of the long write, and the growth of the counts.
fn collide() -> Result<(i64, counts::Counts, usize), String> {
    let fd = super::file()?;
    let bytes = vec![1u8; 32 << 20];
    let other = THERE;
    let helper = std::thread::spawn(move || {
        let _ = sys::tie_to_cpu(other);
        STEP.store(1, SeqCst);
        while STEP.load(SeqCst) != 2 {}
        sys::nap(5_000_000);
        let _ = sys::call(libc::SYS_pwrite64, &[fd as u64, b"x".as_ptr() as u64, 1, 0]);
        STEP.store(3, SeqCst);
    });
    while STEP.load(SeqCst) != 1 {
        std::thread::yield_now();
    }
    let (grown, took) = over(|| {
        let began = sys::now_ns();
        STEP.store(2, SeqCst);
        let _ = sys::call(
            libc::SYS_pwrite64,
            &[fd as u64, bytes.as_ptr() as u64, bytes.len() as u64, 0],
        );
        let took = sys::now_ns() - began;
        while STEP.load(SeqCst) != 3 {}
        took as i64
    });
    let _ = helper.join();
    Ok((took, grown, other))
}

fn contended() -> Verdict {
    let (took, grown, other) = collide()?;
    let inode = grown.lock("inode");
    exact("waits for the file", inode[1], 1)?;
    // The wait began at least five milliseconds after the write did.
    between(
        "nanoseconds waited",
        inode[2],
        1,
        took - 5_000_000 + took / 4,
    )?;
    between(
        "time asleep for locks",
        grown.of(other, Count::SleepNs),
        1,
        took,
    )?;
    let label = counts::word(other, "lock");
    if label == "inode" {
        Ok(())
    } else {
        Err(format!("last contended: {label:?}, not the inode"))
    }
}

fn longest() -> Verdict {
    let longest = || {
        let mut now = counts::Counts::new();
        now.take();
        now.lock("inode")[3]
    };
    let before = longest();
    let (took, _, _) = collide()?;
    // No other thread writes files: the lock was held nearly as long as the write took, unless it had been held longer
    // before.
    let low = before.max(took / 2);
    between("longest hold", longest(), low, before.max(took + took / 4))
}

/// Checks that the waiting times counted by CPU and by lock agree.
fn accounts_agree() -> Verdict {
    let (grown, done) = over(|| {
        let collided = collide();
        let word = AtomicU64::new(0);
        let wake = [word.as_ptr() as u64, libc::FUTEX_WAKE as u64, 1];
        std::thread::scope(|scope| {
            for cpu in [THERE, super::HERE] {
                scope.spawn(move || {
                    let _ = sys::tie_to_cpu(cpu);
                    for _ in 0..20_000 {
                        let _ = sys::call(libc::SYS_futex, &wake);
                    }
                });
            }
        });
        collided.map(drop)
    });
    done?;
    let by_cpu = grown.sum(Count::SpinNs) + grown.sum(Count::SleepNs);
    let by_lock = grown.stalled();
    // The file's lock was waited for at least once; ticks are converted into nanoseconds separately for each CPU and
    // each lock.
    between("ns waited, by lock", by_lock, 1, i64::MAX)?;
    between("ns waited, by CPU", by_cpu, by_lock - 1000, by_lock + 1000)
}
