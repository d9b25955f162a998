//! /proc/pantala: the kernel's own counts, raw.
//!
//! The kernel keeps counts per CPU and never sums them; readers do. Each file has one line a thing, of `name=value`
//! pairs; a reader must accept names that it does not know.

use super::Tree;
use crate::arch::{self, sample};
use crate::fs::dynamic::{Fixed, Text};
use crate::fs::error::Result;
use crate::kern::sched;
use crate::mm;
use crate::put;
use core::sync::atomic::Ordering::Relaxed;
use vm::Machine;
use vm::stats::VmTotals;

/// The directory's files.
pub const ROOT: Tree = &[
    ("cpu", Fixed::File(cpu)),
    ("locks", Fixed::File(locks)),
    ("node", Fixed::File(node)),
];

/// TSC ticks as nanoseconds.
fn ticks_to_ns(ticks: u64) -> u64 {
    let hz = u128::from(arch::time::tsc_hz().max(1));
    (u128::from(ticks) * 1_000_000_000 / hz) as u64
}

/// One line a CPU: interrupts, times, scheduling, faults, flushes, pages, the last stall and the last sample.
fn cpu(out: &mut Text) -> Result<()> {
    let vm = mm::vm();
    let mut tables = vm.pmaps.all_counts();
    for n in 0..arch::cpu::count() {
        put!(out, "cpu={n} node={}", arch::cpu::node(n));
        if let Some([timer, reschedule, call, device]) = arch::percpu::interrupt_counts(n) {
            put!(
                out,
                " timer={timer} reschedule={reschedule} call={call} device={device}"
            );
        }
        if let Some(s) = sched::stats(n) {
            let get = |count: &core::sync::atomic::AtomicU64| count.load(Relaxed);
            put!(
                out,
                " user_ns={} nice_ns={}",
                get(&s.user_ns),
                get(&s.nice_ns)
            );
            put!(
                out,
                " sys_ns={} idle_ns={}",
                get(&s.sys_ns),
                get(&s.idle_ns)
            );
            put!(
                out,
                " switches={} threads={}",
                get(&s.switches),
                get(&s.forks)
            );
            put!(out, " steals={} ipis={}", get(&s.steals), get(&s.ipis));
        }
        for (name, value) in VmTotals::sum(core::iter::once(vm.stats.of(n))).each() {
            put!(out, " {name}={value}");
        }
        if let Some(t) = tables.next() {
            put!(
                out,
                " flush_sent={} flush_targets={}",
                t.sent.get(),
                t.targets.get()
            );
            put!(
                out,
                " flush_avoided={} tables_made={}",
                t.avoided.get(),
                t.tables_made.get()
            );
        }
        let pages = vm.alloc.cpu_stats(n);
        put!(
            out,
            " pages_local={} pages_remote={}",
            pages.taken_local,
            pages.taken_remote
        );
        if let Some(s) = sample::of(n) {
            put!(
                out,
                " stall_ns={} lock=\"{}\" pc={:#x}",
                ticks_to_ns(s.stalled),
                s.label,
                s.pc
            );
            if let Some((name, offset)) = s.function {
                put!(
                    out,
                    " fn=\"{:#}+{offset:#x}\"",
                    rustc_demangle::demangle(name)
                );
            }
        }
        out.push(b"\n");
    }
    Ok(())
}

/// One line a lock that anybody has ever waited for.
fn locks(out: &mut Text) -> Result<()> {
    ksync::for_each_class(|c| {
        put!(
            out,
            "name=\"{}\" rank={} contended={}",
            c.name,
            c.rank,
            c.contended
        );
        put!(
            out,
            " stall_ns={} acquired={}\n",
            ticks_to_ns(c.stall_ticks),
            c.acquired
        );
    });
    Ok(())
}

/// One line a NUMA node.
fn node(out: &mut Text) -> Result<()> {
    let vm = mm::vm();
    for n in 0..vm.machine.ndomains() {
        let (free, total) = vm.alloc.domain_pages(n);
        put!(out, "node={n} pages={total} free={free}\n");
    }
    Ok(())
}
