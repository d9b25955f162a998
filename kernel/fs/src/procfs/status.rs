//! /proc/PID/status and statm: what everybody may know of a process or thread.

use alloc::sync::Arc;

use cred::{Charge, Cred};
use hal::PAGE_SIZE;
use mem::Space;
use proc::UserThreadExt;
use proc::look::Image;
use proc::process::Process;
use proc::rlimit::Resource;
use proc::signal::{self, SigSet, sig};
use task::thread::Thread;
use vfs::dynamic::Text;
use vfs::error::Result;
use vfs::put;
use vm::space::Usage;

use super::names::put_comm_in_line;
use super::process::{letter, name_of};
use super::whom::thread_of;

/// The two values of `sa_handler` that are no address of a handler.
const SIG_DFL: u64 = 0;
const SIG_IGN: u64 = 1;

/// Pages of code that the program has, and of the libraries that it has mapped.
fn code(image: &Image, usage: &Usage) -> (u64, u64) {
    let page = PAGE_SIZE as u64;
    let (start, end) = image.program.code;
    let pages = end.div_ceil(page).saturating_sub(start / page);
    let own = pages.min(usage.text);
    (own, usage.text - own)
}

/// Prints statm.
pub fn statm(p: &Arc<Process>, _: u32, out: &mut Text) -> Result<()> {
    let image = p.image();
    let Some(space) = &image.space else {
        out.push(b"0 0 0 0 0 0 0\n");
        return Ok(());
    };
    let (u, kinds) = (space.usage(mem::vm()), space.resident_kinds(mem::vm()));
    put!(
        out,
        "{} {} {} {} 0 {} 0\n",
        u.mapped,
        kinds.anon + kinds.shared,
        kinds.shared,
        code(&image, &u).0,
        u.data + u.stack
    );
    Ok(())
}

/// Prints the lines of status about memory.
fn memory(image: &Image, space: &Space, out: &mut Text) {
    let (u, kinds) = (space.usage(mem::vm()), space.resident_kinds(mem::vm()));
    let resident = kinds.anon + kinds.shared;
    let (own, libraries) = code(image, &u);
    for (name, pages) in [
        // Peaks are not recorded.
        ("VmPeak", u.mapped),
        ("VmSize", u.mapped),
        ("VmLck", u.locked),
        ("VmPin", 0),
        ("VmHWM", resident),
        ("VmRSS", resident),
        ("RssAnon", kinds.anon),
        // All files lie in memory, as those of Linux's tmpfs.
        ("RssFile", 0),
        ("RssShmem", kinds.shared),
        ("VmData", u.data),
        ("VmStk", u.stack),
        ("VmExe", own),
        ("VmLib", libraries),
        ("VmPTE", u.tables),
        ("VmSwap", 0),
        ("HugetlbPages", 0),
    ] {
        put!(out, "{name}:\t{:>8} kB\n", pages * 4);
    }
    put!(
        out,
        "CoreDumping:\t0\nTHP_enabled:\t{}\n",
        u8::from(!space.forbids_superpages())
    );
}

/// Prints status.
pub fn status(p: &Arc<Process>, tid: u32, out: &mut Text) -> Result<()> {
    let thread = thread_of(p, tid);
    let cred = thread.as_ref().map_or_else(|| p.cred(), |t| t.cred());
    let state = letter(p, thread.as_deref());
    let word = match state {
        'R' => "running",
        'S' => "sleeping",
        'D' => "disk sleep",
        'T' => "stopped",
        'Z' => "zombie",
        _ => "dead",
    };
    put!(out, "Name:\t");
    put_comm_in_line(out, &name_of(p, tid));
    let umask = p.fs().map_or(0, |fs| fs.umask());
    put!(
        out,
        "\nUmask:\t{umask:04o}\nState:\t{state} ({word})\nTgid:\t{}\nNgid:\t0\n",
        p.pid()
    );
    put!(out, "Pid:\t{tid}\nPPid:\t{}\nTracerPid:\t0\n", p.ppid());
    owners(p, tid, &cred, out);
    let image = p.image();
    if let Some(space) = &image.space {
        memory(&image, space, out);
    }
    put!(out, "Threads:\t{}\n", p.threads_shown());
    signals(p, thread.as_deref(), out);
    rights(&cred, out);
    places(thread.as_deref(), out);
    let times = p.times();
    put!(out, "voluntary_ctxt_switches:\t{}\n", times.voluntary);
    put!(out, "nonvoluntary_ctxt_switches:\t{}\n", times.involuntary);
    Ok(())
}

/// Prints the lines about users and groups, and about sessions.
fn owners(p: &Process, tid: u32, cred: &Cred, out: &mut Text) {
    put!(
        out,
        "Uid:\t{}\t{}\t{}\t{}\n",
        cred.uid,
        cred.euid,
        cred.suid,
        cred.fsuid
    );
    put!(
        out,
        "Gid:\t{}\t{}\t{}\t{}\n",
        cred.gid,
        cred.egid,
        cred.sgid,
        cred.fsgid
    );
    put!(out, "FDSize:\t{}\nGroups:\t", p.descriptor_room());
    for (i, g) in cred.groups().iter().enumerate() {
        put!(out, "{}{g}", if i > 0 { " " } else { "" });
    }
    // As on Linux, a space ends the list of groups, even an empty one.
    put!(
        out,
        " \nNStgid:\t{}\nNSpid:\t{tid}\nNSpgid:\t{}\nNSsid:\t{}\n",
        p.pid(),
        p.pgid(),
        p.sid()
    );
}

/// Prints the lines about capabilities, and about what a program may give up.
fn rights(cred: &Cred, out: &mut Text) {
    for (name, set) in [
        ("Inh", cred.caps.inheritable),
        ("Prm", cred.caps.permitted),
        ("Eff", cred.caps.effective),
        ("Bnd", cred.caps.bounding),
        ("Amb", cred.caps.ambient),
    ] {
        put!(out, "Cap{name}:\t{:016x}\n", set.bits());
    }
    put!(out, "NoNewPrivs:\t{}\n", u8::from(cred.no_new_privs));
    out.push(b"Seccomp:\t0\nSeccomp_filters:\t0\n");
    // Neither can be controlled by prctl(2).
    out.push(b"Speculation_Store_Bypass:\tunknown\nSpeculationIndirectBranch:\tunsupported\n");
}

/// Prints the lines about CPUs and nodes on which it may run, and have memory.
fn places(thread: Option<&Thread>, out: &mut Text) {
    let cpus = hal::cpu::count();
    let mask = if cpus >= 64 {
        u64::MAX
    } else {
        (1 << cpus) - 1
    };
    let mask = thread.map_or(mask, |t| t.affinity().words()[0] & mask);
    put!(out, "Cpus_allowed:\t{mask:x}\nCpus_allowed_list:\t");
    crate::sysfs::put_list(out, (0..cpus.min(64)).filter(|c| mask >> c & 1 != 0));
    out.push(b"\nMems_allowed:\t1\nMems_allowed_list:\t0\n");
}

/// Prints the lines about signals.
fn signals(p: &Process, thread: Option<&Thread>, out: &mut Text) {
    let (mut ignored, mut caught) = (0u64, 0u64);
    for signo in 1..=sig::MAX {
        match signal::action(p, signo).handler {
            SIG_DFL => {}
            SIG_IGN => ignored |= SigSet::one(signo).0,
            _ => caught |= SigSet::one(signo).0,
        }
    }
    // ShdPnd shows the pending signals of the thread and of the process together; SigPnd is 0.
    let pending = thread.map_or(0, |t| signal::pending(t).0);
    let blocked = thread.map_or(0, |t| t.blocked().0);
    put!(
        out,
        "SigQ:\t{}/{}\nSigPnd:\t{:016x}\n",
        p.payer().held(Charge::Signals),
        p.rlimit(Resource::Sigpending),
        0
    );
    put!(out, "ShdPnd:\t{pending:016x}\nSigBlk:\t{blocked:016x}\n");
    put!(out, "SigIgn:\t{ignored:016x}\nSigCgt:\t{caught:016x}\n");
}
