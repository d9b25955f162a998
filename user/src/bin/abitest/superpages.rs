//! Superpages, as far as programs ask for them, forbid them and see them.

use crate::privileges::exec;
use crate::reports::is_chaotic;
use user::sys;

/// PR_SET_THP_DISABLE.
fn set(args: [u64; 4]) -> Result<u64, i32> {
    let [on, a, b, c] = args;
    sc!(SYS_prctl, libc::PR_SET_THP_DISABLE, on, a, b, c)
}

/// PR_GET_THP_DISABLE.
fn get(args: [u64; 4]) -> Result<u64, i32> {
    let [a, b, c, d] = args;
    sc!(SYS_prctl, libc::PR_GET_THP_DISABLE, a, b, c, d)
}

/// What a program says, as its exit status, that a test has executed with the argument `--forbids`: whether it may not have
/// superpages.
pub fn forbids() -> i32 {
    get([0; 4]).map_or(9, |forbids| forbids as i32)
}

/// The exit status of a child that executes `act`.
fn status(act: impl FnOnce() -> i32) -> Result<i32, String> {
    let pid = ok!(sys::fork());
    if pid == 0 {
        sys::exit(act());
    }
    Ok(ok!(sys::wait(pid as i64, 0)).1 >> 8)
}

fn again() -> i32 {
    100 + exec("/proc/self/exe", "--forbids")
}

/// The line of /proc/self/status that says whether the process may have superpages.
fn told() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("THP_enabled:\t"))?;
    line.parse().ok()
}

/// The sum of a line's numbers in smaps, of the mappings that overlap a range.
fn in_smaps(name: &str, range: std::ops::Range<u64>) -> u64 {
    let text = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    let (mut within, mut sum) = (false, 0);
    for line in text.lines() {
        if let Some((start, rest)) = line.split_once('-')
            && let Ok(start) = u64::from_str_radix(start, 16)
        {
            let end = rest.split(' ').next().unwrap_or_default();
            let end = u64::from_str_radix(end, 16).unwrap_or(start);
            within = start < range.end && end > range.start;
        } else if within && let Some(rest) = line.strip_prefix(name) {
            let number = rest.trim_start_matches(':').split_whitespace().next();
            sum += number.and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
        }
    }
    sum
}

const BLOCK: u64 = 2 << 20;

/// New memory, private or shared.
fn map(len: u64, kind: i32) -> Result<u64, String> {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    Ok(ok!(sys::mmap(
        0,
        len,
        prot,
        kind | libc::MAP_ANONYMOUS,
        -1,
        0
    )))
}

/// Asks for superpages, and writes to each page.
fn fill(at: u64, len: u64) -> Result<std::ops::Range<u64>, String> {
    ok!(sc!(SYS_madvise, at, len, libc::MADV_HUGEPAGE));
    let range = at..at + len;
    range
        .clone()
        .step_by(4096)
        .for_each(|at| sys::poke64(at, at));
    Ok(range)
}

/// Four superpages of private memory that ask for superpages, aligned, each page written to; and whether one may be made there.
fn filled() -> Result<(std::ops::Range<u64>, u64), String> {
    let at = map(5 * BLOCK, libc::MAP_PRIVATE)?.next_multiple_of(BLOCK);
    let range = fill(at, 4 * BLOCK)?;
    let eligible = in_smaps("THPeligible", range.clone());
    Ok((range, eligible))
}

/// As [`filled`], of shared memory: its blocks are those of its offsets, which need not agree with addresses.
fn filled_shared() -> Result<std::ops::Range<u64>, String> {
    fill(map(6 * BLOCK, libc::MAP_SHARED)?, 6 * BLOCK)
}

/// What a setting of superpages says: the value in brackets.
fn setting(name: &str) -> Option<String> {
    let text =
        std::fs::read_to_string(format!("/sys/kernel/mm/transparent_hugepage/{name}")).ok()?;
    let (_, rest) = text.split_once('[')?;
    Some(rest.split_once(']')?.0.to_owned())
}

tests! { "superpages";
    prctl_forbids_them {
        is!(get([0; 4]), Ok(0));
        is!(told(), Some(1));
        for (on, forbids) in [(1, 1), (0, 0), (7, 1), (u64::MAX << 32, 1), (0, 0)] {
            is!(set([on, 0, 0, 0]), Ok(0));
            is!(get([0; 4]), Ok(forbids));
            is!(told(), Some(1 - forbids));
        }
        for args in [[1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 0, 1], [0, 1, 0, 0]] {
            fails!(set(args), EINVAL);
        }
        is!(get([0; 4]), Ok(0));
        for args in [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]] {
            fails!(get(args), EINVAL);
        }
    }
    children_and_programs_inherit_that {
        is!(status(again)?, 0);
        is!(set([1, 0, 0, 0]), Ok(0));
        is!(status(|| get([0; 4]).map_or(9, |on| on as i32))?, 1);
        is!(status(again)?, 1);
        // A child's choice is its own, and so is that of a program that it executes.
        is!(status(|| { let _ = set([0; 4]); again() })?, 0);
        is!(get([0; 4]), Ok(1));
        is!(set([0; 4]), Ok(0));
        is!(status(|| { let _ = set([1, 0, 0, 0]); again() })?, 1);
        is!(get([0; 4]), Ok(0));
    }
    threads_have_it_together {
        let other = std::thread::spawn(|| set([1, 0, 0, 0]));
        is!(other.join().ok(), Some(Ok(0)));
        is!(get([0; 4]), Ok(1));
    }
    memory_that_asks_gets_none_where_they_are_forbidden {
        is!(set([1, 0, 0, 0]), Ok(0));
        let (range, eligible) = filled()?;
        is!((eligible, in_smaps("AnonHugePages", range.clone())), (0, 0));
        holds!(in_smaps("Rss", range.clone()) == 8192 || is_chaotic());
        is!(set([0; 4]), Ok(0));
        is!(in_smaps("AnonHugePages", range.clone()), 0);
        holds!(range.step_by(4096).all(|at| sys::peek64(at) == at));
        let (range, eligible) = filled()?;
        // How many it gets depends on what memory is free.
        is!(eligible, u64::from(setting("enabled") != Some("never".into())));
        holds!(in_smaps("AnonHugePages", range) <= 8192);
    }
    settings_have_the_values_of_linux {
        let of = |name: &str| std::fs::read_to_string(format!("/sys/kernel/mm/transparent_hugepage/{name}")).unwrap_or_default();
        is!(of("hpage_pmd_size"), "2097152\n");
        for (name, values) in [
            ("enabled", "always madvise never\n"),
            ("shmem_enabled", "always within_size advise never deny force\n"),
            ("defrag", "always defer defer+madvise madvise never\n"),
        ] {
            is!(of(name).replace(['[', ']'], ""), values);
            let now = setting(name).ok_or("no value")?;
            holds!(values.trim_end().split(' ').any(|value| value == now));
        }
        holds!(["0\n", "1\n"].contains(&of("use_zero_page").as_str()));
        let file = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
        let before = setting("shmem_enabled");
        for wrong in ["", "nonsense\n", "alway", "never\n\n"] {
            let fd = ok!(sys::open(file, libc::O_WRONLY, 0));
            if !wrong.is_empty() {
                fails!(sys::write(fd, wrong.as_bytes()), EINVAL);
            }
            ok!(sys::close(fd));
        }
        is!(setting("shmem_enabled"), before);
        // The value that it has anyway.
        let now = before.ok_or("no value")?;
        let fd = ok!(sys::open(file, libc::O_WRONLY, 0));
        is!(sys::write(fd, now.as_bytes()), Ok(now.len()));
        is!(sys::write(fd, format!("{now}\n").as_bytes()), Ok(now.len() + 1));
    }
    shared_memory_shows_them_apart {
        let range = filled_shared()?;
        let shown = in_smaps("ShmemPmdMapped", range.clone());
        let setting = setting("shmem_enabled").ok_or("no value")?;
        if ["never", "deny"].contains(&setting.as_str()) {
            is!(shown, 0);
        } else {
            // One at least, of six; unless pages are taken away all the time.
            holds!(shown >= 2048 || is_chaotic());
        }
        is!((shown % 2048, in_smaps("AnonHugePages", range.clone())), (0, 0));
        let all = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let all = all.lines().find_map(|line| line.strip_prefix("ShmemPmdMapped:"));
        let all = all.and_then(|rest| rest.trim().split(' ').next()?.parse::<u64>().ok());
        holds!(all.ok_or("no line")? >= shown || is_chaotic());
        holds!(range.clone().step_by(4096).all(|at| sys::peek64(at) == at));
        // A part divides its superpage, and only that.
        ok!(sc!(SYS_mprotect, range.start + (5 << 19), 4096, libc::PROT_READ));
        let left = in_smaps("ShmemPmdMapped", range.clone());
        holds!(left + 2048 >= shown && left <= shown || is_chaotic());
        ok!(sc!(SYS_munmap, range.start, range.end - range.start));
        is!(in_smaps("ShmemPmdMapped", range), 0);
    }
    meminfo_counts_them {
        let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let names = ["AnonHugePages", "ShmemHugePages", "ShmemPmdMapped", "FileHugePages", "FilePmdMapped"];
        let found: Vec<&str> = text.lines().filter_map(|line| line.split_once(':')).map(|(name, _)| name)
            .filter(|name| names.contains(name)).collect();
        is!(found, names);
    }
}
