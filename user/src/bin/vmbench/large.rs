//! Cases that need gigabytes, or ten thousand processes: run only if their names are asked for.

use crate::harness::{Case, NOT_HERE, PAGE, Worker, err};
use crate::memory::{self, nothing};
use crate::pipes::{get, pipe, put};
use crate::process::fork;
use std::process::{Command, Stdio};
use user::{proc, sys};

/// What the names of these cases begin with.
pub const PREFIX: &str = "large-";

/// The cases of this file.
pub const CASES: &[Case] = &[
    Case {
        name: "large-fork",
        what: "fork, exit, wait; 1 GiB resident",
        phases: &[""],
        prepare: nothing,
        work: |w| fork(w, 1 << 30, 20),
    },
    Case {
        name: "large-shrink",
        what: "mapping of a file's page that goes when the file is cut; as many of one page as there are sharers",
        phases: &[""],
        prepare: nothing,
        work: shrink,
    },
    Case {
        name: "large-zfod",
        what: "page touched of 64 MiB, with mmap and munmap",
        phases: &[""],
        prepare: nothing,
        work: |w| zero_fill(w, None),
    },
    Case {
        name: "large-huge",
        what: "page touched of 64 MiB that ask for huge pages, with mmap and munmap",
        phases: &[""],
        prepare: nothing,
        work: |w| zero_fill(w, Some(libc::MADV_HUGEPAGE)),
    },
    Case {
        name: "large-promote",
        what: "page of 64 MiB that get superpages when all pages are there, which come one by one",
        phases: &[""],
        prepare: nothing,
        work: promote,
    },
    Case {
        name: "large-leaf",
        what: "superpage made of pages, divided, and taken away, by another CPU each time",
        phases: &["-made", "-divided", "-gone"],
        prepare: nothing,
        work: leaf,
    },
    Case {
        name: "large-mapping",
        what: "memory that the kernel takes to map a page, of 64 MiB that another mapping has in memory",
        phases: &[],
        prepare: nothing,
        work: mapping,
    },
    Case {
        name: "large-scan",
        what: "look for use of a page of 256 MiB, for each of the 100 processes that map it",
        phases: &[""],
        prepare: nothing,
        work: |w| look(w, 256 << 20),
    },
    Case {
        name: "large-look",
        what: "look for use of a page of 1 GiB, for each of the 100 processes that map it",
        phases: &[""],
        prepare: nothing,
        work: |w| look(w, 1 << 30),
    },
    Case {
        name: "large-make",
        what: "build of the program in /src by make with four jobs",
        phases: &[""],
        prepare: nothing,
        work: make,
    },
];

/// One page of a file, mapped by all sharers, is cut off.
fn shrink(w: &mut Worker) -> Result<(), String> {
    let path = format!("{}/vmbench.{}.cut", w.plan.dir, std::process::id());
    let fd = sys::open(&path, libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC, 0o600)
        .map_err(err("open of a new file"))?;
    std::fs::remove_file(&path).map_err(|e| format!("unlink: {e}"))?;
    sys::write(fd, &[7; PAGE as usize]).map_err(err("write"))?;
    let base = sys::mmap(0, PAGE, libc::PROT_READ, libc::MAP_SHARED, fd, 0)
        .map_err(err("mmap of a file"))?;
    let [seen, hold] = [pipe()?, pipe()?];
    let sharers = w.plan.sharers;
    for _ in 0..sharers {
        if sys::fork().map_err(err("fork"))? == 0 {
            let _ = sys::close(hold.1);
            let told = put(seen.1, sys::peek(base));
            let _ = sys::read(hold.0, &mut [0]);
            sys::exit(i32::from(told.is_err()));
        }
        if get(seen.0)? != 7 {
            return Err("a sharer saw another page".into());
        }
    }
    w.barrier();
    w.start();
    sys::call(libc::SYS_ftruncate, &[fd as u64, 0]).map_err(err("ftruncate"))?;
    w.stop(0, sharers);
    let _ = sys::close(hold.1);
    for _ in 0..sharers {
        let (pid, status) = sys::wait(-1, 0).map_err(err("wait4"))?;
        if status != 0 {
            return Err(format!("process {pid} ended with status {status:#x}"));
        }
    }
    Ok(())
}

/// Memory of 64 MiB, for which huge pages are asked or not.
fn zero_fill(w: &mut Worker, advice: Option<i32>) -> Result<(), String> {
    const REGION: u64 = 64 << 20;
    let touched = || {
        let base = memory::map_anon(REGION)?;
        if let Some(advice) = advice {
            sys::call(libc::SYS_madvise, &[base, REGION, advice as u64]).map_err(err("madvise"))?;
        }
        memory::touch(base, REGION);
        Ok::<u64, String>(base)
    };
    w.barrier();
    for _ in 0..w.plan.scaled(8) {
        w.start();
        memory::unmap(touched()?, REGION)?;
        w.stop(0, REGION / PAGE);
    }
    let base = touched()?;
    memory::check_touched(base, REGION)?;
    memory::unmap(base, REGION)
}

/// Bytes of a superpage.
const BLOCK: u64 = 2 << 20;

/// Pantala fills a superpage at once unless the first access is a read, and makes one of the pages when all are there. Linux fills
/// at once in any case where that is asked for, and makes superpages of single pages when it is told to, by copies.
fn promote(w: &mut Worker) -> Result<(), String> {
    const REGION: u64 = 64 << 20;
    /// Since Linux 6.1.
    const MADV_COLLAPSE: u64 = 25;
    let ours = proc::rmap().is_some();
    let advise = |base, advice: u64| {
        let advised = sys::call(libc::SYS_madvise, &[base, REGION, advice]);
        advised.map(drop).map_err(err("madvise"))
    };
    w.barrier();
    for _ in 0..w.plan.scaled(4) {
        let room = memory::map_anon(REGION + BLOCK)?;
        let base = room.next_multiple_of(BLOCK);
        if ours {
            advise(base, libc::MADV_HUGEPAGE as u64)?;
        }
        w.start();
        if ours {
            for addr in (base..base + REGION).step_by(BLOCK as usize) {
                let _ = sys::peek64(addr);
            }
        }
        memory::touch(base, REGION);
        if !ours {
            advise(base, libc::MADV_HUGEPAGE as u64)?;
            advise(base, MADV_COLLAPSE)?;
        }
        w.stop(0, REGION / PAGE);
        let large = proc::meminfo("AnonHugePages").unwrap_or(0);
        if large < REGION {
            return Err(format!("{large} bytes are in superpages"));
        }
        memory::unmap(room, REGION + BLOCK)?;
    }
    Ok(())
}

/// Each step is by the CPU after the one that did the step before. A leaf is made by the fault of its last page; it is divided by an munmap
/// of one page, and gone by one of all.
fn leaf(w: &mut Worker) -> Result<(), String> {
    const LEAVES: u64 = 16;
    const REGION: u64 = LEAVES * BLOCK;
    if proc::rmap().is_none() {
        return Err(format!(
            "{NOT_HERE}only Pantala makes a superpage of pages where they are"
        ));
    }
    let cpus = w.plan.cpus.clone();
    let turn = |w: &Worker, step: usize| {
        sys::tie_to_cpu(cpus[(w.index + step) % cpus.len()]).map_err(err("sched_setaffinity"))
    };
    for _ in 0..w.plan.scaled(8) {
        turn(w, 0)?;
        let room = memory::map_anon(REGION + BLOCK)?;
        let base = room.next_multiple_of(BLOCK);
        sys::call(
            libc::SYS_madvise,
            &[base, REGION, libc::MADV_HUGEPAGE as u64],
        )
        .map_err(err("madvise"))?;
        let leaves = || (base..base + REGION).step_by(BLOCK as usize);
        // A first access that is a read keeps the fault from filling the leaf at once.
        for at in leaves() {
            let _ = sys::peek64(at);
        }
        leaves().for_each(|at| memory::touch(at, BLOCK - PAGE));
        w.barrier();
        turn(w, 1)?;
        w.start();
        leaves().for_each(|at| memory::touch(at + BLOCK - PAGE, PAGE));
        w.stop(0, LEAVES);
        w.barrier();
        let large = proc::meminfo("AnonHugePages").unwrap_or(0);
        if large < REGION * w.plan.workers as u64 {
            return Err(format!("{large} bytes are in superpages"));
        }
        w.barrier();
        turn(w, 2)?;
        w.start();
        for at in leaves().skip(LEAVES as usize / 2) {
            memory::unmap(at, PAGE)?;
        }
        w.stop(1, LEAVES / 2);
        w.barrier();
        turn(w, 3)?;
        w.start();
        memory::unmap(base, REGION / 2)?;
        w.stop(2, LEAVES / 2);
        memory::unmap(room, REGION + BLOCK)?;
    }
    Ok(())
}

/// Which of the harness's figures of memory is that of a mapping.
const MAPPING: usize = 2;

/// A second mapping of memory that is there: what is missing afterwards are tables and entries.
fn mapping(w: &mut Worker) -> Result<(), String> {
    const REGION: u64 = 64 << 20;
    let fd = sys::call(libc::SYS_memfd_create, &[c"mapped".as_ptr() as u64, 0]);
    let fd = fd.map_err(err("memfd_create"))?;
    sys::call(libc::SYS_ftruncate, &[fd, REGION]).map_err(err("ftruncate"))?;
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let map = || sys::mmap(0, REGION, prot, libc::MAP_SHARED, fd as i32, 0).map_err(err("mmap"));
    let first = map()?;
    memory::touch(first, REGION);
    let second = map()?;
    let pages = || (0..REGION).step_by(PAGE as usize);
    // Its second call takes no more memory.
    let free = || proc::meminfo("MemFree").and_then(|_| proc::meminfo("MemFree"));
    w.barrier();
    let before = free();
    w.barrier();
    let wrong = pages().find(|at| sys::peek64(second + at) != first + at);
    w.barrier();
    w.memory(MAPPING, before, REGION / PAGE * w.plan.workers as u64);
    w.barrier();
    if let Some(at) = wrong {
        return Err(format!(
            "the page at {at:#x} reads wrong through its second mapping"
        ));
    }
    memory::unmap(second, REGION)?;
    memory::unmap(first, REGION)
}

/// Waits for the end of a pipe, and wakes now and then: the tables of processes that sleep for a second are dropped.
fn wake_until_closed(pipe: i32) {
    let mut ask = [u64::from(pipe as u32) | (libc::POLLIN as u64) << 32];
    while sys::call(libc::SYS_poll, &[ask.as_mut_ptr() as u64, 1, 200]) == Ok(0) {}
}

/// All pages of the machine are looked at, and the others are few. Linux looks at pages when it needs memory, and has no file that asks
/// for that in Debian's configuration.
fn look(w: &mut Worker, region: u64) -> Result<(), String> {
    const SHARERS: u64 = 100;
    const FILE: &str = "/sys/kernel/debug/look_for_use";
    if std::fs::metadata(FILE).is_err() {
        return Err(format!("{NOT_HERE}there is no {FILE}"));
    }
    let (prot, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_SHARED | libc::MAP_ANONYMOUS,
    );
    let base = sys::mmap(0, region, prot, flags, -1, 0).map_err(err("mmap"))?;
    memory::touch(base, region);
    let pages = || (base..base + region).step_by(PAGE as usize);
    let [seen, hold] = [pipe()?, pipe()?];
    // With this one.
    for _ in 1..SHARERS {
        if sys::fork().map_err(err("fork"))? == 0 {
            let _ = sys::close(hold.1);
            let right = pages().all(|addr| sys::peek64(addr) == addr);
            let told = put(seen.1, u8::from(right));
            wake_until_closed(hold.0);
            sys::exit(i32::from(told.is_err()));
        }
        if get(seen.0)? != 1 {
            return Err("a sharer saw another page".into());
        }
    }
    w.barrier();
    w.start();
    std::fs::write(FILE, "1").map_err(|e| format!("{FILE}: {e}"))?;
    w.stop(0, region / PAGE * SHARERS);
    let found = std::fs::read_to_string(FILE).map_err(|e| format!("{FILE}: {e}"))?;
    let mut found = found
        .split_whitespace()
        .map(|n| n.parse::<u64>().unwrap_or(0));
    let (all, signs) = (found.next().unwrap_or(0), found.next().unwrap_or(0));
    let _ = sys::close(hold.1);
    for _ in 1..SHARERS {
        sys::wait(-1, 0).map_err(err("wait4"))?;
    }
    // Entries that nobody used are made around a fault, and have no sign.
    if all < region / PAGE || signs < region / PAGE {
        return Err(format!("{signs} signs of use at {all} pages"));
    }
    Ok(())
}

fn make(w: &mut Worker) -> Result<(), String> {
    let source = w.plan.source.clone();
    let run = |what: &str| {
        let mut command = Command::new("make");
        let ran = command
            .args(["-s", "-j4", "-C", &source, what])
            .stdin(Stdio::null())
            .status();
        match ran {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("make {what}: {status}")),
            Err(error) => Err(format!("{NOT_HERE}make: {error}")),
        }
    };
    if std::fs::metadata(&source).is_err() {
        return Err(format!("{NOT_HERE}there is no {source}"));
    }
    run("clean")?;
    w.barrier();
    w.start();
    run("all")?;
    w.stop(0, 1);
    Ok(())
}
