//! /proc/pantala: the kernel's own counters, for each CPU.
//!
//! The kernel counts per CPU and leaves sums to the programs that read these files. Each line is about one CPU, lock,
//! node or user and consists of `name=value` pairs; a program that reads it must skip names that it does not know.

use alloc::boxed::Box;
use core::sync::atomic::Ordering::Relaxed;

use cred::{Cap, Charge};
use hal::sample;
use hal::time::ticks_to_ns;
use task::current::current;
use task::sched;
use vfs::dynamic::{DynFile, Fixed, Text};
use vfs::error::Result;
use vfs::put;
use vm::Machine;
use vm::stats::VmTotals;

use super::tree::Tree;

/// The files of /proc/pantala.
pub const ROOT: Tree = &[
    ("accounts", Fixed::Judged(|| Box::new(Accounts::shown()))),
    ("cpu", Fixed::Judged(|| Box::new(Cpus(sees_code())))),
    ("design", Fixed::File(design)),
    ("locks", Fixed::File(locks)),
    ("node", Fixed::File(node)),
    (
        "sections",
        Fixed::Judged(|| Box::new(Sections(sees_code()))),
    ),
];

/// One line for each user whose account is charged with something. A file that was opened with CAP_SYS_ADMIN shows all,
/// another one that of its opener's real user.
struct Accounts {
    only: Option<u32>,
}

impl Accounts {
    fn shown() -> Accounts {
        let cred = current().cred();
        let all = cred.capable(Cap::SysAdmin);
        Accounts {
            only: (!all).then_some(cred.uid),
        }
    }
}

impl DynFile for Accounts {
    fn print(&self, out: &mut Text) -> Result<()> {
        task::account::each(|a| {
            let [
                threads,
                memory,
                names,
                pipe_pages,
                locks,
                signals,
                in_flight,
                watches,
                ipc,
                shared,
                locked,
                notifiers,
                marks,
                queues,
                dir_marks,
            ] = [
                Charge::Threads,
                Charge::Memory,
                Charge::Names,
                Charge::PipePages,
                Charge::Locks,
                Charge::Signals,
                Charge::InFlight,
                Charge::Watches,
                Charge::Ipc,
                Charge::SharedPages,
                Charge::LockedPages,
                Charge::Notifiers,
                Charge::Marks,
                Charge::Queues,
                Charge::DirMarks,
            ]
            .map(|what| a.held(what));
            let told = watches + notifiers + marks + dir_marks;
            let files = names + pipe_pages + locks + in_flight + told;
            let used = threads + memory + files + signals + ipc + shared + locked + queues;
            if used != 0 && self.only.is_none_or(|uid| uid == a.uid()) {
                put!(out, "user={} threads={threads} memory={memory}", a.uid());
                put!(
                    out,
                    " names={names} pipe_pages={pipe_pages} locks={locks} signals={signals}"
                );
                put!(out, " in_flight={in_flight} watches={watches} ipc={ipc}");
                put!(out, " shared_pages={shared} locked_pages={locked}");
                put!(
                    out,
                    " notifiers={notifiers} marks={marks} queues={queues} dir_marks={dir_marks}\n"
                );
            }
        });
        Ok(())
    }
}

/// With which of the designs to choose from the kernel was built.
fn design(out: &mut Text) -> Result<()> {
    put!(out, "rmap={}\n", vm::rmap::NAME);
    Ok(())
}

/// Whether the caller may see which code the kernel runs.
fn sees_code() -> bool {
    current().cred().capable(Cap::Syslog)
}

/// The file `cpu`. Addresses of the kernel's code, and the functions there, are shown only if the opener has
/// CAP_SYSLOG.
struct Cpus(bool);

impl DynFile for Cpus {
    fn print(&self, out: &mut Text) -> Result<()> {
        cpu(out, self.0)
    }
}

/// One line for each CPU: interrupts, times, scheduling, faults, flushes, pages, waits for locks and the last sample.
fn cpu(out: &mut Text, addresses: bool) -> Result<()> {
    let vm = mem::vm();
    let mut tables = vm.pmaps.all_counts();
    for n in 0..hal::cpu::count() {
        put!(out, "cpu={n} node={}", hal::cpu::node(n));
        interrupts(out, n);
        scheduling(out, n);
        for (name, value) in VmTotals::sum(core::iter::once(vm.stats.of(n))).each() {
            put!(out, " {name}={value}");
        }
        if let Some(t) = tables.next() {
            let (sent, targets) = (t.sent.get(), t.targets.get());
            put!(out, " flush_sent={sent} flush_targets={targets}");
            let (avoided, made) = (t.avoided.get(), t.tables_made.get());
            put!(out, " flush_avoided={avoided} tables_made={made}");
        }
        let pages = vm.alloc.cpu_stats(n);
        let (local, remote) = (pages.taken_local, pages.taken_remote);
        put!(out, " pages_local={local} pages_remote={remote}");
        put!(out, " pages_cached={}", pages.cached);
        sampled(out, n, addresses);
        out.push(b"\n");
    }
    Ok(())
}

fn interrupts(out: &mut Text, cpu: usize) {
    if let Some([timer, reschedule, call, device]) = hal::percpu::interrupt_counts(cpu) {
        put!(out, " timer={timer} reschedule={reschedule}");
        put!(out, " call={call} device={device}");
    }
    put!(out, " intr_ns={}", hal::cpu::interrupt_ns(cpu));
}

fn scheduling(out: &mut Text, cpu: usize) {
    let Some(s) = sched::stats(cpu) else { return };
    let counts = [
        ("user_ns", &s.user_ns),
        ("nice_ns", &s.nice_ns),
        ("sys_ns", &s.sys_ns),
        ("switches", &s.switches),
        ("threads", &s.forks),
        ("steals", &s.steals),
        ("ipis", &s.ipis),
        ("execs", &s.execs),
        ("vforks", &s.vforks),
    ];
    put!(out, " idle_ns={}", sched::idle_ns(cpu));
    for (name, count) in counts {
        put!(out, " {name}={}", count.load(Relaxed));
    }
}

fn sampled(out: &mut Text, cpu: usize, addresses: bool) {
    let Some(s) = sample::of(cpu) else { return };
    let (spun, slept) = (ticks_to_ns(s.spun), ticks_to_ns(s.slept));
    put!(out, " spin_ns={spun} sleep_ns={slept}");
    put!(out, " lock=\"{}\"", s.label);
    if !addresses {
        return;
    }
    put!(out, " pc={:#x}", s.pc);
    if let Some((name, offset)) = s.function {
        let name = rustc_demangle::demangle(name);
        put!(out, " fn=\"{name:#}+{offset:#x}\"");
    }
}

/// One line for each lock class of which a lock was ever contended, or acquired while the lock profile was on.
fn locks(out: &mut Text) -> Result<()> {
    ksync::for_each_class(|c| {
        let (name, rank) = (c.name, c.rank);
        put!(out, "name=\"{name}\" rank={rank}");
        let (taken, contended) = (c.acquired, c.contended);
        put!(out, " acquired={taken} contended={contended}");
        let stalled = ticks_to_ns(c.stall_ticks);
        let longest = ticks_to_ns(c.longest_hold_ticks);
        put!(out, " stall_ns={stalled} longest_ns={longest}\n");
    });
    Ok(())
}

/// One line for each CPU: the longest time that preemption was off, in TSC ticks, and, if the opener has CAP_SYSLOG, the
/// function in which the timer's interrupt found it.
struct Sections(bool);

impl DynFile for Sections {
    fn print(&self, out: &mut Text) -> Result<()> {
        for n in 0..hal::cpu::count() {
            let Some((ticks, function)) = hal::sections::longest(n) else {
                continue;
            };
            put!(out, "cpu={n} ticks={ticks}");
            if let Some((name, offset)) = function.filter(|_| self.0) {
                let name = rustc_demangle::demangle(name);
                put!(out, " fn=\"{name:#}+{offset:#x}\"");
            }
            out.push(b"\n");
        }
        Ok(())
    }
}

/// One line for each NUMA node: its pages and its free pages.
fn node(out: &mut Text) -> Result<()> {
    let vm = mem::vm();
    for n in 0..vm.machine.ndomains() {
        let (free, total) = vm.alloc.domain_pages(n);
        put!(out, "node={n} pages={total} free={free}\n");
    }
    Ok(())
}
