//! Faults by kind, and where pages come from.

use super::counts::{self, Count, Counts};
use super::{HERE, Needs, Test, Verdict, between, exact, over};
use user::sys;

const PAGE: u64 = 4096;
/// Pages touched by each test of faults.
const PAGES: u64 = 512;

/// The tests.
pub const TESTS: &[Test] = &[
    Test {
        name: "memory/nothing",
        needs: Needs::Nothing,
        run: nothing,
    },
    Test {
        name: "memory/zero-fill",
        needs: Needs::Nothing,
        run: zero_fill,
    },
    Test {
        name: "memory/resident",
        needs: Needs::Nothing,
        run: resident,
    },
    Test {
        name: "memory/cow-copy",
        needs: Needs::Nothing,
        run: copied,
    },
    Test {
        name: "memory/cow-move",
        needs: Needs::Nothing,
        run: moved,
    },
    Test {
        name: "memory/upgraded",
        needs: Needs::Nothing,
        run: upgraded,
    },
    Test {
        name: "memory/pages-taken",
        needs: Needs::Nothing,
        run: pages_taken,
    },
    Test {
        name: "memory/pages-remote",
        needs: Needs::TwoNodes,
        run: pages_remote,
    },
];

/// Private anonymous memory.
fn memory(pages: u64) -> Result<u64, String> {
    let (prot, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
    );
    sys::mmap(0, pages * PAGE, prot, flags, -1, 0).map_err(|e| format!("mmap: errno {e}"))
}

fn write_each(at: u64, pages: u64) {
    (0..pages).for_each(|n| sys::poke64(at + n * PAGE, n + 1));
}

/// Checks all kinds of faults: `wanted` of one and none of the others.
fn only(grown: &Counts, kind: Count, wanted: i64) -> Verdict {
    let kinds = [
        Count::ZeroFill,
        Count::Resident,
        Count::Upgraded,
        Count::CowCopy,
        Count::CowMove,
        Count::Around,
    ];
    for each in kinds {
        let wanted = if each == kind { wanted } else { 0 };
        exact(&format!("{each:?}"), grown.sum(each), wanted)?;
    }
    Ok(())
}

fn nothing() -> Verdict {
    let (grown, ()) = over(|| ());
    only(&grown, Count::ZeroFill, 0)?;
    exact("forks", grown.sum(Count::Forks), 0)?;
    exact("execs", grown.sum(Count::Execs), 0)?;
    exact("shootdowns", grown.of(HERE, Count::FlushSent), 0)
}

fn zero_fill() -> Verdict {
    let at = memory(PAGES)?;
    let (grown, ()) = over(|| write_each(at, PAGES));
    only(&grown, Count::ZeroFill, PAGES as i64)
}

fn resident() -> Verdict {
    // Page by page; the file is one that Linux has, too.
    let knob = std::fs::write("/sys/kernel/debug/fault_around_bytes", "4096");
    knob.map_err(|e| format!("fault_around_bytes: {e}"))?;
    let fd = super::file()?;
    let bytes = [7; PAGE as usize];
    for _ in 0..PAGES {
        sys::write(fd, &bytes).map_err(|e| format!("write: errno {e}"))?;
    }
    let at = sys::mmap(0, PAGES * PAGE, libc::PROT_READ, libc::MAP_SHARED, fd, 0);
    let at = at.map_err(|e| format!("mmap: errno {e}"))?;
    let (grown, sum) = over(|| {
        (0..PAGES)
            .map(|n| u64::from(sys::peek(at + n * PAGE)))
            .sum::<u64>()
    });
    let _ = std::fs::write("/sys/kernel/debug/fault_around_bytes", "65536");
    exact("bytes read", sum as i64, 7 * PAGES as i64)?;
    only(&grown, Count::Resident, PAGES as i64)
}

/// Forks a child that lives until the pipe's write end is closed; returns its pid and that end.
///
/// It sleeps when this function returns, so that its own faults before are not counted with the caller's.
fn child() -> Result<(u64, i32), String> {
    let error = |e| format!("errno {e}");
    let (from, to) = sys::pipe(0).map_err(error)?;
    let pid = sys::fork().map_err(error)?;
    if pid == 0 {
        let _ = sys::close(to);
        let _ = sys::read(from, &mut [0]);
        sys::exit(0)
    }
    let _ = sys::close(from);
    while !sleeps(pid)? {
        std::thread::yield_now();
    }
    Ok((pid, to))
}

fn sleeps(pid: u64) -> Result<bool, String> {
    let path = format!("/proc/{pid}/stat");
    let stat = std::fs::read_to_string(&path).map_err(|e| format!("{path}: {e}"))?;
    // The state follows the name, which may contain blanks and brackets.
    let state = stat
        .rsplit(')')
        .next()
        .and_then(|rest| rest.trim_start().chars().next());
    Ok(state == Some('S'))
}

fn end(child: (u64, i32)) -> Verdict {
    let _ = sys::close(child.1);
    sys::wait(child.0 as i64, 0)
        .map(drop)
        .map_err(|e| format!("wait: errno {e}"))
}

fn copied() -> Verdict {
    let at = memory(PAGES)?;
    write_each(at, PAGES);
    let child = child()?;
    // The child keeps the pages, so each write copies one.
    let (grown, ()) = over(|| write_each(at, PAGES));
    end(child)?;
    only(&grown, Count::CowCopy, PAGES as i64)
}

fn moved() -> Verdict {
    let at = memory(PAGES)?;
    write_each(at, PAGES);
    end(child()?)?;
    // No other process has the pages any more: none is copied; each is moved to the front object or found there.
    let (grown, ()) = over(|| write_each(at, PAGES));
    exact("copies", grown.sum(Count::CowCopy), 0)?;
    let taken = grown.sum(Count::CowMove) + grown.sum(Count::Upgraded);
    exact("moved or upgraded", taken, PAGES as i64)
}

fn upgraded() -> Verdict {
    let at = memory(PAGES)?;
    write_each(at, PAGES);
    for prot in [libc::PROT_READ, libc::PROT_READ | libc::PROT_WRITE] {
        sys::call(libc::SYS_mprotect, &[at, PAGES * PAGE, prot as u64])
            .map_err(|e| format!("mprotect: errno {e}"))?;
    }
    let (grown, ()) = over(|| write_each(at, PAGES));
    only(&grown, Count::Upgraded, PAGES as i64)
}

/// Pages that a CPU fetched from the node less those in its cache: the pages allocated on the CPU less those freed.
fn pages_taken() -> Verdict {
    let pages = 4096;
    let at = memory(pages)?;
    let (grown, ()) = over(|| write_each(at, pages));
    let fetched = grown.sum(Count::PagesLocal) + grown.sum(Count::PagesRemote);
    let used = fetched - grown.sum(Count::PagesCached);
    // Besides the pages: a page table for each 512 and the upper levels, radix nodes and backings of the object.
    between(
        "pages taken",
        used,
        pages as i64,
        pages as i64 + pages as i64 / 16 + 16,
    )
}

fn pages_remote() -> Verdict {
    let free = counts::free_pages(0);
    // The allocation exceeds the node's free pages by so much, which must come from another node.
    let more = 2048;
    let pages = free + more;
    let at = memory(pages as u64)?;
    let (grown, ()) = over(|| write_each(at, pages as u64));
    let (local, remote) = (grown.sum(Count::PagesLocal), grown.sum(Count::PagesRemote));
    // The node's last pages are reserved for the kernel, so a little more comes from the other node.
    between("remote pages", remote, more - 64, more + free / 4)?;
    between("local pages", local, free * 3 / 4, free)
}
