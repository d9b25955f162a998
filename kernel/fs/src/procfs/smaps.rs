//! /proc/PID/smaps and /proc/PID/smaps_rollup: what is resident of the mappings of an address space.
//!
//! All files lie in memory, as Linux's tmpfs has them, so what Linux calls file memory is nowhere: shared memory and the pages
//! of files are its shmem. A page that no reader has mapped is not resident, even if its file has it.

use mem::Space;
use proc::look::Image;
use task::current::current;
use vfs::dynamic::Text;
use vfs::error::{FsError, Result};
use vfs::put;
use vm::map::{EntryArgs, EntryFlags, Prot};
use vm::space::{EntryInfo, Resident, WHOLE};

use super::maps::{each_mapping, put_line};

/// Prints a line with a number of KiB.
fn line(out: &mut Text, name: &str, kib: u64) {
    put!(out, "{name:<15} {kib:>8} kB\n");
}

fn kib(pages: u64) -> u64 {
    pages * 4
}

/// KiB of a share, which is counted in parts of pages.
fn share_kib(share: u64) -> u64 {
    share / (WHOLE / 4)
}

/// What is resident of one mapping.
fn resident(space: &Space, args: &EntryArgs) -> Resident {
    let range = (args.start, args.end);
    space.resident_in(mem::vm(), range, args.flags, &mut || {
        !current().kill_pending()
    })
}

/// The share of the space in a locked mapping.
fn locked(args: &EntryArgs, found: &Resident) -> u64 {
    match args.flags.contains(EntryFlags::LOCKED) {
        true => found.share(),
        false => 0,
    }
}

/// Prints the lines that both files have. `by_kind` is the share in anonymous and in other memory, which only the second has.
fn sums(out: &mut Text, found: &Resident, locked: u64, by_kind: bool) {
    line(out, "Rss:", kib(found.pages()));
    line(out, "Pss:", share_kib(found.share()));
    line(out, "Pss_Dirty:", share_kib(found.dirty.share));
    if by_kind {
        line(out, "Pss_Anon:", share_kib(found.anon_share));
        line(out, "Pss_File:", 0);
        line(
            out,
            "Pss_Shmem:",
            share_kib(found.share() - found.anon_share),
        );
    }
    line(out, "Shared_Clean:", kib(found.clean.shared));
    line(out, "Shared_Dirty:", kib(found.dirty.shared));
    line(out, "Private_Clean:", kib(found.clean.private));
    line(out, "Private_Dirty:", kib(found.dirty.private));
    line(out, "Referenced:", kib(found.referenced));
    line(out, "Anonymous:", kib(found.anon));
    // MADV_FREE frees at once.
    line(out, "LazyFree:", 0);
    line(out, "AnonHugePages:", kib(found.anon_large));
    line(out, "ShmemPmdMapped:", kib(found.other_large));
    line(out, "FilePmdMapped:", 0);
    line(out, "Shared_Hugetlb:", 0);
    // One column less, as in Linux.
    put!(out, "Private_Hugetlb: {:>7} kB\n", 0);
    line(out, "Swap:", 0);
    line(out, "SwapPss:", 0);
    line(out, "Locked:", share_kib(locked));
}

/// The two letters of each property of a mapping that has one here, in Linux's order.
fn put_flags(out: &mut Text, args: &EntryArgs) {
    let is = |flag| args.flags.contains(flag);
    let (may, can) = (
        |prot| args.maxprot.contains(prot),
        |prot| args.prot.contains(prot),
    );
    let shared = is(EntryFlags::SHARED);
    let device = is(EntryFlags::DEVICE);
    let reserves = !shared && !is(EntryFlags::NORESERVE) && can(Prot::WRITE);
    out.push(b"VmFlags: ");
    for (holds, letters) in [
        (can(Prot::READ), b"rd "),
        (can(Prot::WRITE), b"wr "),
        (can(Prot::EXEC), b"ex "),
        // A shared mapping of a file that was not opened for writing is one only in name.
        (shared && may(Prot::WRITE), b"sh "),
        (may(Prot::READ), b"mr "),
        (may(Prot::WRITE), b"mw "),
        (may(Prot::EXEC), b"me "),
        (shared, b"ms "),
        (is(EntryFlags::GROWSDOWN), b"gd "),
        (device, b"pf "),
        (is(EntryFlags::LOCKED), b"lo "),
        (device, b"io "),
        (is(EntryFlags::DONTFORK), b"dc "),
        (device || is(EntryFlags::SPECIAL), b"de "),
        (reserves, b"ac "),
        (is(EntryFlags::NORESERVE), b"nr "),
        (is(EntryFlags::WIPEONFORK), b"wf "),
        (is(EntryFlags::DONTDUMP), b"dd "),
        (is(EntryFlags::HUGEPAGE), b"hg "),
        (is(EntryFlags::NOHUGEPAGE), b"nh "),
    ] {
        if holds {
            out.push(letters);
        }
    }
    out.push(b"\n");
}

/// Prints smaps.
pub fn smaps(image: &Image, from: u64, out: &mut Text) -> Result<Option<u64>> {
    let put = &mut |out: &mut Text, space: &Space, e: &EntryInfo| {
        let (args, found) = (&e.args, resident(space, &e.args));
        put_line(out, image, e);
        line(out, "Size:", (args.end - args.start) / 1024);
        line(out, "KernelPageSize:", 4);
        line(out, "MMUPageSize:", 4);
        sums(out, &found, locked(args, &found), false);
        let eligible = space.may_get_superpages(mem::vm(), e);
        put!(out, "THPeligible:    {}\n", u8::from(eligible));
        put_flags(out, args);
    };
    Ok(each_mapping(image, from, out, put))
}

/// Prints smaps_rollup.
///
/// # Errors
/// `NoProcess`: the process has no memory.
pub fn rollup(image: &Image, _: u64, out: &mut Text) -> Result<Option<u64>> {
    let space = image.space.as_ref().ok_or(FsError::NoProcess)?;
    let (mut sum, mut sum_locked) = (Resident::default(), 0);
    let mut bounds: Option<(u64, u64)> = None;
    space.for_each_entry(0, &mut |e| {
        let found = resident(space, &e.args);
        sum += found;
        sum_locked += locked(&e.args, &found);
        bounds = Some((bounds.map_or(e.args.start, |(first, _)| first), e.args.end));
        !current().kill_pending()
    });
    let (first, end) = bounds.unwrap_or_default();
    let start = out.position();
    put!(out, "{first:08x}-{end:08x} ---p 00000000 00:00 0");
    out.pad(start, 73);
    out.push(b"[rollup]\n");
    sums(out, &sum, sum_locked, true);
    Ok(None)
}
