//! /proc/PID/limits: the resource limits of a process.

use proc::process::Process;
use proc::rlimit::{INFINITY, Resource};
use vfs::dynamic::Text;
use vfs::error::Result;
use vfs::put;

/// Prints the limits, one in a line.
pub fn limits(p: &Process, out: &mut Text) -> Result<()> {
    const NAMES: [(&str, &str); 16] = [
        ("Max cpu time", "seconds"),
        ("Max file size", "bytes"),
        ("Max data size", "bytes"),
        ("Max stack size", "bytes"),
        ("Max core file size", "bytes"),
        ("Max resident set", "bytes"),
        ("Max processes", "processes"),
        ("Max open files", "files"),
        ("Max locked memory", "bytes"),
        ("Max address space", "bytes"),
        ("Max file locks", "locks"),
        ("Max pending signals", "signals"),
        ("Max msgqueue size", "bytes"),
        ("Max nice priority", ""),
        ("Max realtime priority", ""),
        ("Max realtime timeout", "us"),
    ];
    put!(
        out,
        "{:<25} {:<20} {:<20} {:<10}\n",
        "Limit",
        "Soft Limit",
        "Hard Limit",
        "Units"
    );
    for (i, (name, unit)) in NAMES.iter().enumerate() {
        let Some(resource) = Resource::from_raw(i as u32) else {
            continue;
        };
        let l = p.limit(resource);
        put!(out, "{name:<25} ");
        for value in [l.soft, l.hard] {
            if value == INFINITY {
                put!(out, "{:<20} ", "unlimited");
            } else {
                put!(out, "{value:<20} ");
            }
        }
        put!(out, "{unit:<10}\n");
    }
    Ok(())
}
