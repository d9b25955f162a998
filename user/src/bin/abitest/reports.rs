//! Reports about memory: /proc/PID/smaps, smaps_rollup, maps, status and statm.

use crate::harness::*;
use user::sys;

pub const PAGE: u64 = 4096;
const RW: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// The names of the lines that Linux 6.1 prints for each mapping in smaps, after the first line.
const LINES: [&str; 23] = [
    "Size",
    "KernelPageSize",
    "MMUPageSize",
    "Rss",
    "Pss",
    "Pss_Dirty",
    "Shared_Clean",
    "Shared_Dirty",
    "Private_Clean",
    "Private_Dirty",
    "Referenced",
    "Anonymous",
    "LazyFree",
    "AnonHugePages",
    "ShmemPmdMapped",
    "FilePmdMapped",
    "Shared_Hugetlb",
    "Private_Hugetlb",
    "Swap",
    "SwapPss",
    "Locked",
    "THPeligible",
    "VmFlags",
];

/// Lines of smaps_rollup.
const SUMS: [&str; 21] = [
    "Rss",
    "Pss",
    "Pss_Dirty",
    "Pss_Anon",
    "Pss_File",
    "Pss_Shmem",
    "Shared_Clean",
    "Shared_Dirty",
    "Private_Clean",
    "Private_Dirty",
    "Referenced",
    "Anonymous",
    "LazyFree",
    "AnonHugePages",
    "ShmemPmdMapped",
    "FilePmdMapped",
    "Shared_Hugetlb",
    "Private_Hugetlb",
    "Swap",
    "SwapPss",
    "Locked",
];

/// Lines of status.
const STATUS: [&str; 56] = [
    "Name",
    "Umask",
    "State",
    "Tgid",
    "Ngid",
    "Pid",
    "PPid",
    "TracerPid",
    "Uid",
    "Gid",
    "FDSize",
    "Groups",
    "NStgid",
    "NSpid",
    "NSpgid",
    "NSsid",
    "VmPeak",
    "VmSize",
    "VmLck",
    "VmPin",
    "VmHWM",
    "VmRSS",
    "RssAnon",
    "RssFile",
    "RssShmem",
    "VmData",
    "VmStk",
    "VmExe",
    "VmLib",
    "VmPTE",
    "VmSwap",
    "HugetlbPages",
    "CoreDumping",
    "THP_enabled",
    "Threads",
    "SigQ",
    "SigPnd",
    "ShdPnd",
    "SigBlk",
    "SigIgn",
    "SigCgt",
    "CapInh",
    "CapPrm",
    "CapEff",
    "CapBnd",
    "CapAmb",
    "NoNewPrivs",
    "Seccomp",
    "Seccomp_filters",
    "Speculation_Store_Bypass",
    "SpeculationIndirectBranch",
    "Cpus_allowed",
    "Cpus_allowed_list",
    "Mems_allowed",
    "Mems_allowed_list",
    "voluntary_ctxt_switches",
];

/// Lines that later versions of Linux have, or those for other processors.
const LATER: [&str; 5] = [
    "KSM",
    "ProtectionKey",
    "Kthread",
    "untag_mask",
    "x86_Thread_features",
];

fn text(pid: u64, name: &str) -> Result<String, String> {
    let file = if pid == 0 {
        format!("/proc/self/{name}")
    } else {
        format!("/proc/{pid}/{name}")
    };
    std::fs::read_to_string(&file).map_err(|e| format!("{file}: {e}"))
}

/// Whether translations may vanish at any moment, so that nobody can say what is resident.
pub fn is_chaotic() -> bool {
    let line = std::fs::read_to_string("/proc/cmdline").unwrap_or_default();
    line.split_whitespace().any(|word| word == "vmchaos")
}

/// What smaps says of one mapping.
struct Mapping {
    start: u64,
    end: u64,
    /// The others: name and the rest.
    lines: Vec<(String, String)>,
}

impl Mapping {
    fn kib(&self, name: &str) -> u64 {
        let value = self.lines.iter().find(|(n, _)| n == name);
        value
            .and_then(|(_, rest)| rest.strip_suffix(" kB")?.trim().parse().ok())
            .unwrap_or(u64::MAX / 1024)
    }

    fn has(&self, flag: &str) -> bool {
        let flags = self.lines.iter().find(|(n, _)| n == "VmFlags");
        flags.is_some_and(|(_, rest)| rest.split_whitespace().any(|f| f == flag))
    }

    /// Rss, Pss, Shared_Clean, Shared_Dirty, Private_Clean, Private_Dirty, Anonymous.
    fn sizes(&self) -> [u64; 7] {
        [
            "Rss",
            "Pss",
            "Shared_Clean",
            "Shared_Dirty",
            "Private_Clean",
            "Private_Dirty",
            "Anonymous",
        ]
        .map(|n| self.kib(n))
    }
}

/// Start and end of a line of maps.
fn bounds(line: &str) -> Option<(u64, u64)> {
    let (range, _) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    Some((
        u64::from_str_radix(start, 16).ok()?,
        u64::from_str_radix(end, 16).ok()?,
    ))
}

fn mappings_in(text: &str) -> Vec<Mapping> {
    let mut all: Vec<Mapping> = Vec::new();
    for line in text.lines() {
        if let Some((start, end)) = bounds(line) {
            all.push(Mapping {
                start,
                end,
                lines: Vec::new(),
            });
        } else if let (Some(last), Some((name, rest))) = (all.last_mut(), line.split_once(':'))
            && !LATER.contains(&name)
        {
            last.lines.push((name.to_owned(), rest.to_owned()));
        }
    }
    all
}

/// What smaps of a process says of the mapping that begins at an address.
fn mapping(pid: u64, at: u64) -> Result<Mapping, String> {
    let all = mappings_in(&text(pid, "smaps")?);
    all.into_iter()
        .find(|m| m.start == at)
        .ok_or_else(|| format!("no mapping at {at:x}"))
}

/// Memory that is no neighbour of a mapping with the same properties.
pub fn map(pages: u64, flags: i32) -> Result<u64, String> {
    let at = ok!(sys::mmap(
        0,
        (pages + 2) * PAGE,
        libc::PROT_NONE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        -1,
        0
    )) + PAGE;
    ok!(sys::mmap(
        at,
        pages * PAGE,
        RW,
        flags | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
        -1,
        0
    ));
    Ok(at)
}

pub fn touch(at: u64, pages: std::ops::Range<u64>, write: bool) {
    for n in pages {
        if write {
            sys::poke(at + n * PAGE, 7)
        } else {
            let _ = sys::peek(at + n * PAGE);
        }
    }
}

/// A child that executes `prepare` and sleeps, and the end by which it is told to end.
pub fn child(prepare: impl FnOnce()) -> Result<u64, String> {
    let (from, to) = ok!(sys::pipe(0));
    let pid = ok!(sys::fork());
    if pid == 0 {
        prepare();
        let _ = sys::write(to, b"x");
        loop {
            // A process that sleeps for a second has no page tables on Pantala.
            nap_us(50_000);
        }
    }
    is!(sys::read(from, &mut [0]), Ok(1));
    ok!(sys::close(from));
    ok!(sys::close(to));
    Ok(pid)
}

pub fn end(pid: u64) -> Result<(), String> {
    ok!(sc!(SYS_kill, pid, libc::SIGKILL));
    ok!(sys::wait(pid as i64, 0));
    Ok(())
}

/// A line of status or meminfo, in KiB.
fn status_kib(pid: u64, name: &str) -> Result<u64, String> {
    let text = text(pid, "status")?;
    let rest = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"));
    let number = rest.and_then(|rest| rest.strip_suffix(" kB")?.trim().parse().ok());
    number.ok_or_else(|| format!("no {name}"))
}

fn names(text: &str) -> Vec<&str> {
    let all = text
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(name, _)| name);
    all.filter(|name| !LATER.contains(name)).collect()
}

/// Reads `len` bytes at a position.
fn at(fd: i32, position: usize, len: usize) -> Result<Vec<u8>, i32> {
    let mut bytes = vec![0; len];
    let got = sc!(SYS_pread64, fd, bytes.as_mut_ptr(), len, position)?;
    bytes.truncate(got as usize);
    Ok(bytes)
}

tests! { "reports";
    smaps_has_the_lines_of_linux {
        let text = text(0, "smaps")?;
        let all = mappings_in(&text);
        holds!(all.len() > 3);
        for one in &all {
            let names: Vec<&str> = one.lines.iter().map(|(name, _)| name.as_str()).collect();
            is!(names, LINES);
            is!(one.kib("Size"), (one.end - one.start) / 1024);
            is!((one.kib("KernelPageSize"), one.kib("MMUPageSize")), (4, 4));
            let sum: u64 = one.sizes()[2..6].iter().sum();
            is!(one.kib("Rss"), sum);
            holds!(one.kib("Pss") <= one.kib("Rss") && one.kib("Rss") <= one.kib("Size"));
        }
        // The columns of numbers, which some programs rely on.
        for line in text.lines().filter(|line| line.ends_with(" kB")) {
            is!(line.len(), 27);
        }
        let heads: Vec<u64> = all.iter().map(|m| m.start).collect();
        holds!(heads.is_sorted());
    }
    smaps_says_what_was_touched {
        let at = map(8, libc::MAP_PRIVATE)?;
        is!(mapping(0, at)?.sizes(), [0; 7]);
        touch(at, 0..3, true);
        let found = mapping(0, at)?;
        is!(found.kib("Size"), 32);
        if !is_chaotic() {
            is!(found.sizes(), [12, 12, 0, 0, 0, 12, 12]);
            is!((found.kib("Pss_Dirty"), found.kib("Referenced")), (12, 12));
        }
        for (flag, has) in [("rd", true), ("wr", true), ("ex", false), ("mr", true), ("mw", true), ("me", true), ("sh", false), ("ms", false), ("ac", true), ("lo", false)] {
            is!((flag, found.has(flag)), (flag, has));
        }
        ok!(sc!(SYS_madvise, at, 8 * PAGE, libc::MADV_DONTNEED));
        is!(mapping(0, at)?.sizes(), [0; 7]);
        for (advice, flag) in [(libc::MADV_DONTFORK, "dc"), (libc::MADV_DONTDUMP, "dd"), (libc::MADV_WIPEONFORK, "wf"), (libc::MADV_HUGEPAGE, "hg"), (libc::MADV_NOHUGEPAGE, "nh")] {
            ok!(sc!(SYS_madvise, at, 8 * PAGE, advice));
            holds!(mapping(0, at)?.has(flag));
        }
        holds!(!mapping(0, at)?.has("hg"));
    }
    pages_that_two_processes_map_are_shared {
        if is_chaotic() {
            return Err("skip: translations vanish".into());
        }
        let at = map(4, libc::MAP_PRIVATE)?;
        touch(at, 0..4, true);
        let reader = child(|| touch(at, 0..4, false))?;
        is!(mapping(0, at)?.sizes(), [16, 8, 0, 16, 0, 0, 16]);
        is!(mapping(reader, at)?.sizes(), [16, 8, 0, 16, 0, 0, 16]);
        is!(mapping(0, at)?.kib("Pss_Dirty"), 8);
        let writer = child(|| touch(at, 0..4, true))?;
        is!(mapping(writer, at)?.sizes(), [16, 16, 0, 0, 0, 16, 16]);
        is!(mapping(0, at)?.sizes(), [16, 8, 0, 16, 0, 0, 16]);
        end(writer)?;
        end(reader)?;
        is!(mapping(0, at)?.sizes(), [16, 16, 0, 0, 0, 16, 16]);
    }
    shared_memory_is_not_anonymous {
        if is_chaotic() {
            return Err("skip: translations vanish".into());
        }
        let at = map(4, libc::MAP_SHARED)?;
        touch(at, 0..2, true);
        is!(mapping(0, at)?.sizes(), [8, 8, 0, 0, 0, 8, 0]);
        let found = mapping(0, at)?;
        holds!(found.has("sh") && found.has("ms") && !found.has("ac"));
        let other = child(|| touch(at, 0..2, false))?;
        is!(mapping(0, at)?.sizes(), [8, 4, 0, 8, 0, 0, 0]);
        end(other)?;
        is!(mapping(0, at)?.sizes(), [8, 8, 0, 0, 0, 8, 0]);
    }
    locked_memory_counts_by_its_share {
        let at = map(4, libc::MAP_PRIVATE)?;
        ok!(sc!(SYS_mlock, at, 4 * PAGE));
        let found = mapping(0, at)?;
        holds!(found.has("lo"));
        if !is_chaotic() {
            is!((found.kib("Locked"), found.kib("Pss")), (16, 16));
        }
        ok!(sc!(SYS_munlock, at, 4 * PAGE));
        is!(mapping(0, at)?.kib("Locked"), 0);
    }
    rollup_has_the_sums {
        let at = map(64, libc::MAP_PRIVATE)?;
        let shared = map(64, libc::MAP_SHARED)?;
        touch(at, 0..64, true);
        touch(shared, 0..64, true);
        let pid = child(|| { touch(at, 0..32, true); touch(shared, 0..16, false); })?;
        // Pages of the program that this process reaches for the first time meanwhile are shared from then on.
        let (mut rollup, mut all) = (String::new(), Vec::new());
        for _ in 0..20 {
            rollup = text(pid, "smaps_rollup")?;
            all = mappings_in(&text(pid, "smaps")?);
            if is_chaotic() || text(pid, "smaps_rollup")? == rollup {
                break;
            }
        }
        let (head, rest) = rollup.split_once('\n').ok_or("no lines")?;
        is!(names(rest), SUMS);
        let own = |m: &&Mapping| m.start < 1 << 47;
        let (first, last) = (all.first().map_or(0, |m| m.start), all.iter().rfind(own).map_or(0, |m| m.end));
        is!(bounds(head), Some((first, last)));
        holds!(head.contains(" ---p 00000000 00:00 0   ") && head.ends_with(" [rollup]") && head.len() == 81);
        if !is_chaotic() {
            let sums = mappings_in(&rollup);
            let sums = sums.first().ok_or("no mapping")?;
            for name in SUMS.into_iter().filter(|name| !name.starts_with("Pss") && *name != "Locked" && *name != "SwapPss") {
                is!((name, sums.kib(name)), (name, all.iter().map(|m| m.kib(name)).sum()));
            }
            let parts: u64 = ["Pss_Anon", "Pss_File", "Pss_Shmem"].map(|n| sums.kib(n)).iter().sum();
            // Each is rounded down.
            holds!(parts <= sums.kib("Pss") && parts + 3 > sums.kib("Pss"));
            let each: u64 = all.iter().map(|m| m.kib("Pss")).sum();
            holds!(each <= sums.kib("Pss") && each + all.len() as u64 > sums.kib("Pss"));
        }
        end(pid)?;
    }
    a_zombie_has_no_mappings {
        let pid = ok!(sys::fork());
        if pid == 0 {
            sys::exit(0);
        }
        while !text(pid, "stat")?.contains(") Z ") {
            nap_us(1000);
        }
        is!((text(pid, "smaps")?, text(pid, "maps")?), (String::new(), String::new()));
        // From Linux 6.12 on, it cannot even be opened.
        let rollup = sys::open(&format!("/proc/{pid}/smaps_rollup"), libc::O_RDONLY, 0);
        fails!(rollup.and_then(|fd| sys::read(fd, &mut [0; 8])), ESRCH);
        is!(text(pid, "statm")?, "0 0 0 0 0 0 0\n");
        let status = text(pid, "status")?;
        holds!(!names(&status).iter().any(|name| name.starts_with("Vm") || name.starts_with("Rss") || *name == "THP_enabled"));
        ok!(sys::wait(pid as i64, 0));
    }
    long_files_are_read_piece_by_piece {
        const MAPPINGS: u64 = 1000;
        let at_address = ok!(sys::mmap(0, MAPPINGS * PAGE, RW, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0));
        for n in (1..MAPPINGS).step_by(2) {
            ok!(sc!(SYS_mprotect, at_address + n * PAGE, PAGE, libc::PROT_READ));
        }
        let pid = child(|| {})?;
        for name in ["maps", "smaps"] {
            let whole = text(pid, name)?;
            let starts: Vec<u64> = whole.lines().filter_map(bounds).map(|(start, _)| start).collect();
            holds!(starts.is_sorted_by(|a, b| a < b));
            let ours = starts.iter().filter(|&&start| (at_address..at_address + MAPPINGS * PAGE).contains(&start)).count();
            is!(ours as u64, MAPPINGS);
            let fd = ok!(sys::open(&format!("/proc/{pid}/{name}"), libc::O_RDONLY, 0));
            let bytes = whole.as_bytes();
            // Backwards, forwards, and beyond the end.
            for position in [0, 5, bytes.len() - 7, 33_000, 32_000, 40_001, 64 << 10, 1, bytes.len() / 2].into_iter().filter(|at| *at < bytes.len()) {
                let got = ok!(at(fd, position, 100));
                is!((name, position, got.is_empty()), (name, position, false));
                is!(got, bytes[position..position + got.len()]);
            }
            is!(at(fd, bytes.len(), 100), Ok(Vec::new()));
            is!(at(fd, bytes.len() + 12_345, 100), Ok(Vec::new()));
            // What is read after a change, from the start, is new.
            ok!(sys::close(fd));
        }
        end(pid)?;
    }
    status_has_the_lines_of_linux {
        let text = text(0, "status")?;
        let mut expected = STATUS.to_vec();
        expected.push("nonvoluntary_ctxt_switches");
        is!(names(&text), expected);
        let kib = |name| status_kib(0, name);
        holds!(kib("VmPeak")? >= kib("VmSize")? && kib("VmHWM")? <= kib("VmPeak")?);
        holds!(kib("VmExe")? > 0 && kib("VmExe")? + kib("VmLib")? < kib("VmSize")?);
    }
    status_says_what_kind_of_memory_is_resident {
        if is_chaotic() {
            return Err("skip: translations vanish".into());
        }
        // Linux's counts may be a little behind.
        const SLACK: u64 = 1024;
        let near = |now: u64, before: u64, more: u64| now + SLACK > before + more && now < before + more + SLACK;
        let all = |pid| -> Result<[u64; 3], String> {
            Ok([status_kib(pid, "RssAnon")?, status_kib(pid, "RssFile")?, status_kib(pid, "RssShmem")?])
        };
        let pid = child(|| {})?;
        let [anon, file, shmem] = all(pid)?;
        end(pid)?;
        let pid = child(|| {
            let (private, shared) = (map(2048, libc::MAP_PRIVATE), map(1024, libc::MAP_SHARED));
            touch(private.unwrap_or(0), 0..2048, true);
            touch(shared.unwrap_or(0), 0..1024, true);
        })?;
        let now = all(pid)?;
        holds!(near(now[0], anon, 8192) && near(now[1], file, 0) && near(now[2], shmem, 4096));
        let rss = status_kib(pid, "VmRSS")?;
        is!(rss, now.iter().sum());
        let statm: Vec<u64> = text(pid, "statm")?.split_whitespace().filter_map(|n| n.parse().ok()).collect();
        is!(statm.len(), 7);
        is!(statm[0] * 4, status_kib(pid, "VmSize")?);
        is!((statm[1] * 4, statm[2] * 4), (rss, now[1] + now[2]));
        is!(statm[3] * 4, status_kib(pid, "VmExe")?);
        is!(statm[5] * 4, status_kib(pid, "VmData")? + status_kib(pid, "VmStk")?);
        end(pid)?;
    }
    reports_do_not_stop_changes_of_the_map {
        // A reader that never stops, beside a process that maps and unmaps.
        let pid = child(|| {
            let _ = std::thread::Builder::new().spawn(|| loop {
                if let Ok(at) = map(64, libc::MAP_PRIVATE) {
                    touch(at, 0..64, true);
                    let _ = sys::munmap(at - PAGE, 66 * PAGE);
                }
            });
        })?;
        for _ in 0..15 {
            let all = mappings_in(&text(pid, "smaps")?);
            for one in &all {
                holds!(one.kib("Rss") <= one.kib("Size") && one.lines.len() == 23);
            }
            holds!(!text(pid, "smaps_rollup")?.is_empty() && status_kib(pid, "VmRSS")? < 1 << 30);
        }
        end(pid)?;
    }
}
