//! Files of /proc about the whole system.

use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use hal::cpu;
use ksync::Once;
use proc::{CLOCK_TICKS, ids, uts, with_fs};
use task::{sched, time};
use tty::pts::{self, Options};
use vfs::context::boot_root;
use vfs::dynamic::{Fixed, Text};
use vfs::error::{FsError, Result};
use vfs::full_name::{full_name, name_in_fs};
use vfs::mount;
use vfs::place::{MountRef, Path, flag};
use vfs::{put, quota};

use super::cpuinfo::cpuinfo;
use super::names::put_octal;
use super::settings;
use super::tree::Tree;
use crate::devpts;

/// The kernel's command line, for /proc/cmdline. Set once, at boot.
static COMMAND_LINE: Once<Vec<u8>> = Once::new();

/// Sets the text of /proc/cmdline. Called once, at boot.
pub fn set_command_line(line: &[u8]) {
    let _ = COMMAND_LINE.set(line.to_vec());
}

/// The fixed entries of /proc.
pub const ROOT: Tree = &[
    ("cmdline", Fixed::File(cmdline)),
    ("cpuinfo", Fixed::File(cpuinfo)),
    ("devices", Fixed::File(devices)),
    ("diskstats", Fixed::File(nothing)),
    ("filesystems", Fixed::File(filesystems)),
    ("interrupts", Fixed::File(interrupts)),
    ("loadavg", Fixed::File(loadavg)),
    ("locks", Fixed::File(super::descriptors::locks)),
    ("meminfo", Fixed::File(meminfo)),
    ("mounts", Fixed::Link("self/mounts")),
    ("net", Fixed::Dir(super::network::ROOT)),
    ("pantala", Fixed::Dir(super::pantala::ROOT)),
    ("partitions", Fixed::File(partitions)),
    ("stat", Fixed::File(stat)),
    ("swaps", Fixed::File(swaps)),
    ("sys", Fixed::Dir(settings::ROOT)),
    ("sysvipc", Fixed::Dir(super::sysvipc::ROOT)),
    ("uptime", Fixed::File(uptime)),
    ("version", Fixed::File(version)),
    ("vmstat", Fixed::File(vmstat)),
];

fn nothing(_: &mut Text) -> Result<()> {
    Ok(())
}

fn cmdline(out: &mut Text) -> Result<()> {
    out.push(COMMAND_LINE.get().map_or(&[], |c| c));
    out.push(b"\n");
    Ok(())
}

fn devices(out: &mut Text) -> Result<()> {
    out.push(b"Character devices:\n  1 mem\n  4 ttyS\n  5 /dev/tty\n  5 /dev/console\n  5 /dev/ptmx\n136 pts\n\nBlock devices:\n");
    Ok(())
}

fn filesystems(out: &mut Text) -> Result<()> {
    out.push(
        b"nodev\tsysfs\nnodev\ttmpfs\nnodev\tproc\nnodev\tdevtmpfs\nnodev\tramfs\nnodev\tdevpts\n",
    );
    Ok(())
}

fn interrupts(out: &mut Text) -> Result<()> {
    out.push(b"    ");
    for i in 0..cpu::count() {
        put!(out, "       CPU{i:<3}");
    }
    out.push(b"\nRES:");
    for i in 0..cpu::count() {
        let n = sched::stats(i).map_or(0, |s| s.ipis.load(Ordering::Relaxed));
        put!(out, " {n:>12}");
    }
    out.push(b"  Rescheduling interrupts sent\n");
    Ok(())
}

/// The number of all threads, and the highest id of a process.
fn processes() -> (u32, u32) {
    let (mut all, mut last) = (0, 0);
    ids::each_process(1, |p| {
        all += p.thread_count();
        last = p.pid();
        true
    });
    (all, last)
}

fn loadavg(out: &mut Text) -> Result<()> {
    let (all, last) = processes();
    for v in sched::load_average() {
        put!(out, "{}.{:02} ", v / 1000, v % 1000 / 10);
    }
    put!(out, "{}/{all} {last}\n", sched::runnable());
    Ok(())
}

fn meminfo(out: &mut Text) -> Result<()> {
    let memory = mem::memory();
    let (total, free) = (memory.total, memory.free);
    let kib = |bytes: u64| bytes / 1024;
    let counts = mem::vm().counts();
    let shared_leaves = counts.shared_leaves();
    let leaves = counts.leaves().max(shared_leaves);
    for (name, value) in [
        ("MemTotal:", kib(total)),
        ("MemFree:", kib(free)),
        ("MemAvailable:", kib(free)),
        ("Buffers:", 0),
        ("Cached:", 0),
        ("SwapCached:", 0),
        ("Active:", 0),
        ("Inactive:", 0),
        ("SwapTotal:", 0),
        ("SwapFree:", 0),
        ("Dirty:", 0),
        ("Writeback:", 0),
        ("Shmem:", 0),
        ("Slab:", kib(memory.slab)),
        // Mappings, where Linux counts a page once that several processes map.
        ("AnonHugePages:", (leaves - shared_leaves) * 2048),
        // No page is larger than 4 KiB: leaves map runs of pages.
        ("ShmemHugePages:", 0),
        ("ShmemPmdMapped:", shared_leaves * 2048),
        ("FileHugePages:", 0),
        ("FilePmdMapped:", 0),
        ("CommitLimit:", kib(total)),
        ("Committed_AS:", kib(total - free.min(total))),
        ("HugePages_Total:", 0),
        ("HugePages_Free:", 0),
        ("Hugepagesize:", 2048),
    ] {
        let unit = if name.starts_with("HugePages") {
            ""
        } else {
            " kB"
        };
        put!(out, "{name:<15} {value:>8}{unit}\n");
    }
    Ok(())
}

fn partitions(out: &mut Text) -> Result<()> {
    out.push(b"major minor  #blocks  name\n\n");
    Ok(())
}

fn swaps(out: &mut Text) -> Result<()> {
    out.push(b"Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n");
    Ok(())
}

fn stat(out: &mut Text) -> Result<()> {
    let tick = 1_000_000_000 / CLOCK_TICKS;
    let mut sum = [0u64; 4];
    let mut switches = 0;
    let mut forks = 0;
    let mut rows: Vec<[u64; 4]> = Vec::new();
    for i in 0..cpu::count() {
        let mut row = [0; 4];
        if let Some(s) = sched::stats(i) {
            let get = |a: &core::sync::atomic::AtomicU64| a.load(Ordering::Relaxed);
            row = [
                get(&s.user_ns),
                get(&s.nice_ns),
                get(&s.sys_ns),
                sched::idle_ns(i),
            ];
            switches += get(&s.switches);
            forks += get(&s.forks);
        }
        for (total, part) in sum.iter_mut().zip(row) {
            *total += part / tick;
        }
        rows.push(row.map(|ns| ns / tick));
    }
    put!(
        out,
        "cpu  {} {} {} {} 0 0 0 0 0 0\n",
        sum[0],
        sum[1],
        sum[2],
        sum[3]
    );
    for (i, r) in rows.iter().enumerate() {
        put!(
            out,
            "cpu{i} {} {} {} {} 0 0 0 0 0 0\n",
            r[0],
            r[1],
            r[2],
            r[3]
        );
    }
    let boot = time::realtime_ns().saturating_sub(time::monotonic_ns()) / 1_000_000_000;
    put!(
        out,
        "intr 0\nctxt {switches}\nbtime {boot}\nprocesses {forks}\n"
    );
    put!(
        out,
        "procs_running {}\nprocs_blocked 0\n",
        sched::runnable()
    );
    Ok(())
}

fn uptime(out: &mut Text) -> Result<()> {
    let up = time::monotonic_ns() / 10_000_000;
    let idle: u64 = (0..cpu::count())
        .map(|i| sched::idle_ns(i) / 10_000_000)
        .sum();
    put!(
        out,
        "{}.{:02} {}.{:02}\n",
        up / 100,
        up % 100,
        idle / 100,
        idle % 100
    );
    Ok(())
}

fn version(out: &mut Text) -> Result<()> {
    out.push(b"Pantala version ");
    out.push(uts::RELEASE);
    out.push(b" ");
    out.push(uts::VERSION);
    out.push(b"\n");
    Ok(())
}

fn vmstat(out: &mut Text) -> Result<()> {
    let counts = mem::vm().counts();
    put!(out, "nr_free_pages {}\n", mem::vm().alloc.free_pages());
    put!(
        out,
        "pgfault {}\npgmajfault 0\n",
        counts.zero_fill + counts.resident + counts.cow_copy
    );
    for (name, value) in counts.each() {
        put!(out, "vm_{name} {value}\n");
    }
    Ok(())
}

/// Prints a name with blanks, tabs, newlines and backslashes in octal, as the mount tables do.
fn escaped(out: &mut Text, name: &[u8]) {
    put_octal(out, name, b" \t\n\\");
}

fn options(out: &mut Text, flags: u32) {
    out.push(if flags & flag::RDONLY != 0 {
        b"ro"
    } else {
        b"rw"
    });
    for (bit, name) in [
        (flag::NOSUID, ",nosuid"),
        (flag::NODEV, ",nodev"),
        (flag::NOEXEC, ",noexec"),
        (flag::NOATIME, ",noatime"),
    ] {
        if flags & bit != 0 {
            out.push(name.as_bytes());
        }
    }
    if flags & flag::NOATIME == 0 {
        out.push(b",relatime");
    }
}

/// Calls `f` with each mount that is reachable from the caller's root, and with its path from there. A mount whose
/// path is longer than PATH_MAX is left out, also where `f` finds that. The first other error of `f` ends the calls.
fn each_mount(f: &mut dyn FnMut(&MountRef, &[u8]) -> Result<()>) -> Result<()> {
    let root = match with_fs(|fs| fs.root()) {
        Some(root) => root?,
        None => boot_root()?.clone(),
    };
    mount::for_each(|m| {
        let at = Path {
            mount: m.clone(),
            dentry: m.root.clone(),
        };
        let printed = full_name(&root, &at).and_then(
            |(name, reached)| {
                if reached { f(m, &name) } else { Ok(()) }
            },
        );
        match printed {
            Err(FsError::NameTooLong) => Ok(()),
            printed => printed,
        }
    })
}

/// Prints mounts.
pub fn mounts(out: &mut Text) -> Result<()> {
    each_mount(&mut |m, name| {
        let source = if m.source.is_empty() {
            "none"
        } else {
            &m.source
        };
        escaped(out, source.as_bytes());
        out.push(b" ");
        escaped(out, name);
        put!(out, " {} ", m.fs.kind.name());
        options(out, m.flags());
        if let Some(quota) = m.fs.quota
            && quota.limit() != quota::default_limit()
        {
            put!(out, ",size={}k", quota.limit() * 4);
        }
        if let Some(inodes) = m.fs.inodes
            && inodes.limit() != quota::default_limit()
        {
            put!(out, ",nr_inodes={}", inodes.limit());
        }
        if let Some(terminals) = devpts::terminals(&m.fs) {
            put_devpts(out, terminals.options());
        }
        out.push(b" 0 0\n");
        Ok(())
    })
}

/// Prints the options of a devpts.
fn put_devpts(out: &mut Text, options: Options) {
    for (name, id) in [("uid", options.uid), ("gid", options.gid)] {
        if let Some(id) = id {
            put!(out, ",{name}={id}");
        }
    }
    put!(
        out,
        ",mode={:03o},ptmxmode={:03o}",
        options.mode,
        options.ptmx_mode
    );
    if options.max < pts::MOST {
        put!(out, ",max={}", options.max);
    }
}

/// Prints mountinfo.
pub fn mountinfo(out: &mut Text) -> Result<()> {
    each_mount(&mut |m, name| {
        let root = name_in_fs(&m.root)?;
        let parent = m.over.as_ref().map_or(m.id, |(up, _)| up.id);
        put!(out, "{} {parent} 0:{} ", m.id, m.fs.dev);
        escaped(out, &root);
        if m.root.is_dead() {
            out.push(b"//deleted");
        }
        out.push(b" ");
        escaped(out, name);
        out.push(b" ");
        options(out, m.flags());
        let source = if m.source.is_empty() {
            "none"
        } else {
            &m.source
        };
        put!(out, " - {} ", m.fs.kind.name());
        escaped(out, source.as_bytes());
        out.push(if m.is_read_only() { b" ro\n" } else { b" rw\n" });
        Ok(())
    })
}
