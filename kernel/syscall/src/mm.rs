//! Memory calls: mmap(2), munmap(2), mprotect(2), mremap(2), madvise(2), msync(2), mincore(2), brk(2).
//!
//! These handlers check arguments and limits as the manual pages say and translate them; `vm::Space` does the work.

use abi::raw::general as nr;
use hal::USER_END;
use proc::process::Brk;
use proc::{Process, Resource, UserThreadExt};
use vfs::file::File;
use vfs::place::flag as mount;
use vfs::regular;
use vm::space::{Advice, EntryInfo, MapArgs, MapFlags, RemapArgs, RemapTarget, Source};
use vm::{EntryFlags, MapProt as Prot, ObjectRef, VmError};

use super::errno::{Errno, vm as errno};
use super::fsutil::real_file;
use super::memfd::map_file;
use super::mlock::{is_locked, lock_by_default, may_lock, may_lock_any};
use crate::call::{Args, Handler};

/// The calls of this file.
pub const HANDLERS: &[(u32, Handler)] = &[
    (nr::__NR_mmap, mmap),
    (nr::__NR_munmap, munmap),
    (nr::__NR_mprotect, mprotect),
    (nr::__NR_mremap, mremap),
    (nr::__NR_madvise, madvise),
    (nr::__NR_msync, msync),
    (nr::__NR_mincore, mincore),
    (nr::__NR_brk, brk),
];

pub(super) const PAGE: u64 = elfload::PAGE;

/// Rounds a length up to whole pages; `None` if the result does not fit into 64 bits.
pub(super) fn pages(len: u64) -> Option<u64> {
    len.checked_next_multiple_of(PAGE)
}

/// Checks a range, whose start must be aligned to pages; returns its length, rounded up to pages.
///
/// # Errors
/// EINVAL if the start is not aligned, `outside` if the range does not lie in user space.
fn range(start: u64, len: u64, outside: Errno) -> Result<u64, Errno> {
    range_or(start, len, outside, outside)
}

/// As [`range`], but `wraps` is the error if the end does not fit into 64 bits.
pub(super) fn range_or(start: u64, len: u64, outside: Errno, wraps: Errno) -> Result<u64, Errno> {
    if !start.is_multiple_of(PAGE) {
        return Err(Errno::EINVAL);
    }
    let len = pages(len).ok_or(wraps)?;
    match start.checked_add(len) {
        Some(end) if end <= USER_END || len == 0 => Ok(len),
        Some(_) => Err(outside),
        None => Err(wraps),
    }
}

fn prot_from(bits: u64) -> Prot {
    Prot::from_bits_truncate(bits as u8)
}

const _: () = assert!(
    Prot::READ.bits() as u32 == nr::PROT_READ
        && Prot::WRITE.bits() as u32 == nr::PROT_WRITE
        && Prot::EXEC.bits() as u32 == nr::PROT_EXEC
);

/// The flags that MAP_SHARED_VALIDATE accepts.
const KNOWN_FLAGS: u32 = nr::MAP_TYPE
    | nr::MAP_FIXED
    | nr::MAP_FIXED_NOREPLACE
    | nr::MAP_ANONYMOUS
    | nr::MAP_GROWSDOWN
    | nr::MAP_DENYWRITE
    | nr::MAP_EXECUTABLE
    | nr::MAP_LOCKED
    | nr::MAP_NORESERVE
    | nr::MAP_POPULATE
    | nr::MAP_NONBLOCK
    | nr::MAP_STACK
    | nr::MAP_HUGETLB
    | nr::MAP_32BIT;

/// mmap(2), with the checks in Linux's order. The mapping is made last, under the map's lock. Sleeps, also for memory.
fn mmap(a: &mut Args) -> Result<u64, Errno> {
    let (len, prot, flags, offset) = (a.get(1), prot_from(a.get(2)), a.get(3) as u32, a.get(5));
    if offset % PAGE != 0 {
        return Err(Errno::EINVAL);
    }
    let anonymous = flags & nr::MAP_ANONYMOUS != 0;
    let file = if anonymous {
        None
    } else {
        Some(real_file(a.int(4))?)
    };
    if len == 0 {
        return Err(Errno::EINVAL);
    }
    let len = pages(len).filter(|&l| l <= USER_END).ok_or(Errno::ENOMEM)?;
    if flags & nr::MAP_HUGETLB != 0 {
        // There is no file system of huge pages, so a file is of the wrong kind; and the pool of them is always empty.
        return Err(if anonymous {
            Errno::ENOMEM
        } else {
            Errno::EINVAL
        });
    }
    let (addr, mut place) = placement(a.get(0), flags)?;
    // Linux checks for overlap before it checks what the file may be mapped for.
    if place.noreplace && space()?.is_used(addr, len) {
        return Err(Errno::EEXIST);
    }
    let shared = sharing(flags, anonymous)?;
    let mut kind = entry_flags(flags, shared);
    lock_by_default(&mut kind, &mut place);
    if flags & nr::MAP_LOCKED != 0 {
        may_lock_any()?;
    }
    if kind.contains(EntryFlags::LOCKED) {
        may_lock(&*space()?, len, None, Errno::EAGAIN)?;
    }
    let (object, maxprot) = match &file {
        None => (None, Prot::all()),
        Some(file) => {
            let end = offset.checked_add(len).filter(|&end| end <= FILE_END);
            let range = offset..end.ok_or(Errno::EOVERFLOW)?;
            let (object, max) = file_object(file, shared, prot, range)?;
            if !shared && matches!(object.kind(), vm::object::Kind::Shared(_)) {
                // A private mapping of /dev/zero is anonymous memory, so it needs no object and may be extended.
                object.release(mem::vm());
                (None, max)
            } else {
                (Some(object), max)
            }
        }
    };
    // A fixed mapping replaces those in its range, so these do not count for the limits.
    let replaced = place.fixed && !place.noreplace;
    let admitted = admit_map(
        len,
        !shared && !kind.contains(EntryFlags::GROWSDOWN) && prot.contains(Prot::WRITE),
        replaced.then_some(addr),
    );
    let args = MapArgs {
        addr,
        len,
        prot,
        maxprot,
        flags: kind,
        place,
        source: Source::Anon,
    };
    let (Some(file), Some(object)) = (file, object) else {
        admitted?;
        return in_space(|space| space.map(mem::vm(), &args));
    };
    let at = admitted.and_then(|()| map_file(&file, (&object, offset), args));
    object.release(mem::vm());
    at
}

/// One more than the largest offset in a file, in bytes.
const FILE_END: u64 = 1 << 63;

/// Whether a mapping with these flags is shared.
///
/// # Errors
/// EINVAL for flags that contradict each other, EOPNOTSUPP for unknown ones with MAP_SHARED_VALIDATE.
fn sharing(flags: u32, anonymous: bool) -> Result<bool, Errno> {
    let grows = flags & nr::MAP_GROWSDOWN != 0;
    match flags & nr::MAP_TYPE {
        // MAP_GROWSDOWN is for stacks, which are private and anonymous.
        nr::MAP_SHARED if grows => Err(Errno::EINVAL),
        nr::MAP_SHARED => Ok(true),
        nr::MAP_SHARED_VALIDATE if anonymous => Err(Errno::EINVAL),
        nr::MAP_SHARED_VALIDATE if flags & !KNOWN_FLAGS != 0 => Err(Errno::EOPNOTSUPP),
        nr::MAP_SHARED_VALIDATE if grows => Err(Errno::EINVAL),
        nr::MAP_SHARED_VALIDATE => Ok(true),
        nr::MAP_PRIVATE if grows && !anonymous => Err(Errno::EINVAL),
        nr::MAP_PRIVATE => Ok(false),
        _ => Err(Errno::EINVAL),
    }
}

/// Whether `test` holds for any mapping in the range of `len` bytes from `start`.
pub(super) fn any_mapping(
    space: &mem::Space,
    start: u64,
    len: u64,
    test: impl Fn(&EntryInfo) -> bool,
) -> bool {
    let mut found = false;
    space.for_each_entry(start, &mut |entry| {
        if entry.args.start >= start + len {
            return false;
        }
        found = test(entry);
        !found
    });
    found
}

/// Checks limits for a new mapping, and waits for free memory: as on Linux, a program is not refused one because another
/// program has taken all memory at that moment. With `over`, the mapping replaces those in the `len` bytes from there.
///
/// # Errors
/// ENOMEM.
#[inline(always)]
pub(super) fn admit_map(len: u64, data: bool, over: Option<u64>) -> Result<(), Errno> {
    charge(proc::current().process(), len, data, over)?;
    Ok(mem::admit_process()?)
}

/// The address for mmap to map at, and the flags that say how binding it is.
///
/// # Errors
/// EINVAL for a fixed address that is not aligned, EPERM for one below the lowest user address.
fn placement(addr: u64, flags: u32) -> Result<(u64, MapFlags), Errno> {
    let noreplace = flags & nr::MAP_FIXED_NOREPLACE != 0;
    let fixed = flags & nr::MAP_FIXED != 0 || noreplace;
    let populate = flags & (nr::MAP_POPULATE | nr::MAP_NONBLOCK) == nr::MAP_POPULATE;
    if fixed && !addr.is_multiple_of(PAGE) {
        return Err(Errno::EINVAL);
    }
    if fixed && addr < vm::space::USER_LOW {
        // As Linux's mmap_min_addr: page 0 stays unmapped, so the use of a null pointer faults.
        return Err(Errno::EPERM);
    }
    // As on Linux, a hint is rounded up to a page and is at least the lowest user address.
    let addr = if fixed || addr == 0 {
        addr
    } else {
        pages(addr).unwrap_or(0).max(vm::space::USER_LOW)
    };
    Ok((
        addr,
        MapFlags {
            fixed,
            noreplace,
            populate,
            on_fault: false,
            low: flags & nr::MAP_32BIT != 0,
        },
    ))
}

fn entry_flags(flags: u32, shared: bool) -> EntryFlags {
    let translate = [
        (nr::MAP_GROWSDOWN, EntryFlags::GROWSDOWN),
        (nr::MAP_LOCKED, EntryFlags::LOCKED),
        (nr::MAP_NORESERVE, EntryFlags::NORESERVE),
    ];
    let mut out = EntryFlags::empty();
    out.set(EntryFlags::SHARED, shared);
    for (bit, flag) in translate {
        out.set(flag, flags & bit != 0);
    }
    out
}

/// The object of a file's pages, and the most that mprotect may later permit for a mapping of it.
///
/// # Errors
/// EACCES if the file is not open for that use, EPERM for code on a mount with `noexec`; those of the file.
fn file_object(
    file: &File,
    shared: bool,
    prot: Prot,
    range: core::ops::Range<u64>,
) -> Result<(ObjectRef, Prot), Errno> {
    if !file.readable() {
        return Err(Errno::EACCES);
    }
    let may_write = !shared || file.writable();
    if prot.contains(Prot::WRITE) && !may_write {
        return Err(Errno::EACCES);
    }
    let noexec = file
        .path
        .as_ref()
        .is_some_and(|place| place.mount.flags() & mount::NOEXEC != 0);
    if noexec && prot.contains(Prot::EXEC) {
        return Err(Errno::EPERM);
    }
    let object = file.object(range)?;
    let mut most = Prot::all();
    for (may, what) in [(may_write, Prot::WRITE), (!noexec, Prot::EXEC)] {
        if !may {
            most = most.difference(what);
        }
    }
    Ok((object, most))
}

/// How many bytes of a range lie in mappings for which `fits` holds. Other threads may change the map meanwhile, but
/// no byte is counted twice.
pub(super) fn covered(
    space: &mem::Space,
    start: u64,
    len: u64,
    fits: impl Fn(&EntryInfo) -> bool,
) -> u64 {
    let end = start.saturating_add(len);
    let (mut bytes, mut from) = (0, start);
    space.for_each_entry(start, &mut |entry| {
        let goes_on = entry.args.start < end;
        // Entries may be joined during the visit, so one may begin in a part that has been counted.
        let (first, behind) = (entry.args.start.max(from), entry.args.end.min(end));
        if first < behind {
            from = behind;
            if fits(entry) {
                bytes += behind - first;
            }
        }
        goes_on
    });
    bytes
}

/// Checks RLIMIT_AS, and RLIMIT_DATA if `data` is true, for `len` more bytes. With `over`, mappings in the `len`
/// bytes from there are replaced and do not count.
///
/// # Errors
/// ENOMEM beyond a limit.
fn charge(process: &Process, len: u64, data: bool, over: Option<u64>) -> Result<(), Errno> {
    let [limit, data_limit] = process.rlimits([Resource::As, Resource::Data]);
    if limit == u64::MAX && (!data || data_limit == u64::MAX) {
        return Ok(());
    }
    charge_limited(process, len, (limit, data.then_some(data_limit)), over)
}

/// The rest of [`charge`] where there is a limit: that of all mappings, and that of data if it counts.
#[cold]
fn charge_limited(
    process: &Process,
    len: u64,
    (limit, data_limit): (u64, Option<u64>),
    over: Option<u64>,
) -> Result<(), Errno> {
    let space = process.space().ok_or(Errno::ENOMEM)?;
    let usage = space.usage(mem::vm());
    let more = len - over.map_or(0, |start| covered(&space, start, len, |_| true));
    let exceeds = |now: u64, limit: u64| now.saturating_add(more) > limit;
    let data = |limit| exceeds(usage.data * PAGE, limit);
    if exceeds(usage.mapped * PAGE, limit) || data_limit.is_some_and(data) {
        return Err(Errno::ENOMEM);
    }
    Ok(())
}

fn munmap(a: &mut Args) -> Result<u64, Errno> {
    let len = range(a.get(0), a.get(1), Errno::EINVAL)?;
    if len == 0 {
        return Err(Errno::EINVAL);
    }
    in_space(|space| space.unmap(mem::vm(), a.get(0), len))?;
    Ok(0)
}

/// The protection bits that mprotect accepts.
const PROT_BITS: u64 = (nr::PROT_READ | nr::PROT_WRITE | nr::PROT_EXEC | nr::PROT_SEM) as u64;

/// mprotect(2). See [`protect`] for what has changed if it fails with EACCES or ENOMEM.
fn mprotect(a: &mut Args) -> Result<u64, Errno> {
    let (start, bits) = (a.get(0), a.get(2));
    let grows = bits & u64::from(nr::PROT_GROWSDOWN | nr::PROT_GROWSUP);
    if grows == u64::from(nr::PROT_GROWSDOWN | nr::PROT_GROWSUP) {
        return Err(Errno::EINVAL);
    }
    let len = range(start, a.get(1), Errno::ENOMEM)?;
    if (bits & !u64::from(nr::PROT_GROWSDOWN | nr::PROT_GROWSUP)) & !PROT_BITS != 0 {
        return Err(Errno::EINVAL);
    }
    if len == 0 {
        return Ok(0);
    }
    let (start, len) = match grows {
        0 => (start, len),
        // PROT_GROWSDOWN extends the range down to the start of a mapping that grows down; glibc uses it to make
        // stacks executable. No mapping grows up here.
        _ if grows == u64::from(nr::PROT_GROWSDOWN) => {
            let entry = space()?.entry_at(start).ok_or(Errno::ENOMEM)?;
            if !entry.args.flags.contains(EntryFlags::GROWSDOWN) {
                return Err(Errno::EINVAL);
            }
            (entry.args.start, start + len - entry.args.start)
        }
        _ => return Err(Errno::EINVAL),
    };
    mem::admit_change()?;
    let prot = prot_from(bits);
    if prot.contains(Prot::WRITE) {
        may_write_more(start, len)?;
    }
    protect(start, len, prot)
}

/// Checks RLIMIT_DATA for mappings in a range that are to become writable.
///
/// # Errors
/// ENOMEM beyond the limit.
fn may_write_more(start: u64, len: u64) -> Result<(), Errno> {
    let me = proc::current();
    let limit = me.process().rlimit(Resource::Data);
    if limit == u64::MAX {
        return Ok(());
    }
    let becomes_data =
        |entry: &EntryInfo| entry.args.may_be_data() && !entry.args.prot.contains(Prot::WRITE);
    match covered(&*space()?, start, len, becomes_data) {
        0 => Ok(()),
        more => charge_limited(me.process(), more, (u64::MAX, Some(limit)), None),
    }
}

/// Changes the protection of a range. As on Linux, where one mapping does not permit it or is missing, the part
/// before that is changed nonetheless.
///
/// # Errors
/// EACCES, ENOMEM.
fn protect(start: u64, len: u64, prot: Prot) -> Result<u64, Errno> {
    let space = space()?;
    let why = match space.protect(mem::vm(), start, len, prot) {
        Ok(()) => return Ok(0),
        Err(why @ (VmError::NotMapped | VmError::Denied)) => why,
        Err(why) => return Err(errno(why)),
    };
    let fits = |entry: &EntryInfo| entry.args.maxprot.contains(prot);
    let before = fitting(&space, start, len, fits);
    if before == len {
        // The map permits it now: another thread has changed it since the attempt.
        return Err(errno(why));
    }
    if before > 0 {
        space
            .protect(mem::vm(), start, before, prot)
            .map_err(errno)?;
    }
    match space.entry_at(start + before) {
        Some(_) => Err(Errno::EACCES),
        None => Err(Errno::ENOMEM),
    }
}

/// How many bytes from `start` on, at most `len`, are mapped without a gap by mappings for which `fits` holds.
pub(super) fn fitting(
    space: &mem::Space,
    start: u64,
    len: u64,
    fits: impl Fn(&EntryInfo) -> bool,
) -> u64 {
    let (mut at, end) = (start, start + len);
    space.for_each_entry(start, &mut |entry| {
        let goes_on = entry.args.start <= at && fits(entry);
        if goes_on {
            at = entry.args.end.min(end);
        }
        goes_on && at < end
    });
    at - start
}

/// mremap(2), with the checks in Linux's order. A length of zero makes a second mapping of shared memory.
fn mremap(a: &mut Args) -> Result<u64, Errno> {
    let (old, old_len, new_len, flags, to) =
        (a.get(0), a.get(1), a.get(2), a.get(3) as u32, a.get(4));
    let known = nr::MREMAP_MAYMOVE | nr::MREMAP_FIXED | nr::MREMAP_DONTUNMAP;
    let has = |bit: u32| flags & bit != 0;
    let keeps = has(nr::MREMAP_DONTUNMAP);
    if flags & !known != 0 || old % PAGE != 0 || new_len == 0 {
        return Err(Errno::EINVAL);
    }
    if (has(nr::MREMAP_FIXED) || keeps) && !has(nr::MREMAP_MAYMOVE) || keeps && old_len != new_len {
        return Err(Errno::EINVAL);
    }
    let new_len = pages(new_len)
        .filter(|&l| l <= USER_END)
        .ok_or(Errno::EINVAL)?;
    let mut old_len = range(old, old_len, Errno::EFAULT)?;
    let process = proc::current_process();
    let space = process.space().ok_or(Errno::EFAULT)?;
    let first = space.entry_at(old).ok_or(Errno::EFAULT)?;
    if has(nr::MREMAP_FIXED) || keeps {
        range(to, new_len, Errno::EINVAL)?;
        if to < old + old_len && old < to + new_len {
            return Err(Errno::EINVAL);
        }
    }
    // As on Linux, the destination is unmapped and the part beyond the new length is cut off first, even if the rest
    // of the call fails.
    if has(nr::MREMAP_FIXED) {
        space.unmap(mem::vm(), to, new_len).map_err(errno)?;
    }
    if new_len < old_len {
        space
            .unmap(mem::vm(), old + new_len, old_len - new_len)
            .map_err(errno)?;
        old_len = new_len;
    }
    if new_len == old_len && !has(nr::MREMAP_FIXED) && !keeps {
        return Ok(old);
    }
    if old_len == 0 && !first.args.flags.contains(EntryFlags::SHARED) {
        return Err(Errno::EINVAL);
    }
    // Linux moves and extends only a range that lies in one of its mappings.
    if !space.is_one_mapping(old, old_len) {
        return Err(Errno::EFAULT);
    }
    if new_len > old_len && is_locked(&first) {
        may_lock(&space, new_len - old_len, None, Errno::EAGAIN)?;
    }
    let more = if keeps { new_len } else { new_len - old_len };
    if more > 0 {
        let data = first.args.may_be_data() && first.args.prot.contains(Prot::WRITE);
        charge(&process, more, data, None)?;
    }
    if has(nr::MREMAP_FIXED) && to < vm::space::USER_LOW {
        return Err(Errno::EPERM);
    }
    mem::admit_process()?;
    let target = match (has(nr::MREMAP_FIXED), has(nr::MREMAP_MAYMOVE)) {
        (true, _) => RemapTarget::Fixed(to),
        (false, true) => RemapTarget::MayMove,
        (false, false) => RemapTarget::Stay,
    };
    let args = RemapArgs {
        old,
        old_len,
        new_len,
        target,
        keep_old: keeps,
    };
    space.remap(mem::vm(), &args).map_err(|e| match e {
        VmError::NotMapped => Errno::EFAULT,
        e => errno(e),
    })
}

pub(super) fn advice_from(raw: u32) -> Result<Advice, Errno> {
    Ok(match raw {
        nr::MADV_DONTNEED => Advice::DontNeed,
        nr::MADV_DONTNEED_LOCKED => Advice::DontNeedLocked,
        nr::MADV_FREE => Advice::Free,
        nr::MADV_DONTFORK => Advice::DontFork,
        nr::MADV_DOFORK => Advice::DoFork,
        nr::MADV_WIPEONFORK => Advice::WipeOnFork,
        nr::MADV_KEEPONFORK => Advice::KeepOnFork,
        nr::MADV_DONTDUMP => Advice::DontDump,
        nr::MADV_DODUMP => Advice::DoDump,
        nr::MADV_REMOVE => Advice::Remove,
        nr::MADV_POPULATE_READ => Advice::PopulateRead,
        nr::MADV_POPULATE_WRITE => Advice::PopulateWrite,
        nr::MADV_HUGEPAGE => Advice::HugePage,
        nr::MADV_NOHUGEPAGE => Advice::NoHugePage,
        // Hints about order of access and reclaim, and a wish for superpages at once, none of which this kernel uses.
        nr::MADV_NORMAL
        | nr::MADV_WILLNEED
        | nr::MADV_RANDOM
        | nr::MADV_SEQUENTIAL
        | nr::MADV_COLD
        | nr::MADV_PAGEOUT
        | nr::MADV_COLLAPSE => Advice::Nothing,
        // As on a Linux without KSM and without handling of memory failures.
        _ => return Err(Errno::EINVAL),
    })
}

fn madvise(a: &mut Args) -> Result<u64, Errno> {
    let advice = advice_from(a.get(2) as u32)?;
    let start = a.get(0);
    let len = range_or(start, a.get(1), Errno::ENOMEM, Errno::EINVAL)?;
    if len == 0 {
        return Ok(0);
    }
    let raw = a.get(2) as u32;
    let asks_first = matches!(raw, nr::MADV_COLD | nr::MADV_PAGEOUT | nr::MADV_WIPEONFORK);
    if advice.changes_entries() {
        mem::admit_change()?;
    }
    proc::with_space(|space| {
        if asks_first && any_mapping(space, start, len, |entry| is_unfit(raw, entry)) {
            return Err(advise_before(
                space,
                (start, len),
                (raw, advice),
                VmError::Invalid,
            ));
        }
        let advised = match advice {
            Advice::Remove => {
                space.remove_file_pages(mem::vm(), start, len, &mut regular::free_by_mapping)
            }
            advice => space.advise(mem::vm(), start, len, advice),
        };
        advised.map_err(|why| advise_before(space, (start, len), (raw, advice), why))
    })
    .ok_or(Errno::ENOMEM)??;
    Ok(0)
}

/// Whether madvise refuses the advice `raw` for a mapping.
pub(super) fn is_unfit(raw: u32, entry: &EntryInfo) -> bool {
    let is = |flag| entry.args.flags.contains(flag);
    let is_shared = is(EntryFlags::SHARED) || is(EntryFlags::FILE);
    match raw {
        nr::MADV_COLD | nr::MADV_PAGEOUT => is_locked(entry) || is(EntryFlags::DEVICE),
        nr::MADV_WIPEONFORK => is_shared,
        nr::MADV_DONTNEED => is_locked(entry) || is(EntryFlags::DEVICE),
        nr::MADV_DONTNEED_LOCKED | nr::MADV_DOFORK => is(EntryFlags::DEVICE),
        nr::MADV_DODUMP => is(EntryFlags::DEVICE) || is(EntryFlags::SPECIAL),
        nr::MADV_FREE => is_locked(entry) || is_shared,
        _ => false,
    }
}

/// Ends an madvise that failed because of `why`; returns the errno of the call. As on Linux, the part before the
/// first mapping that refuses the advice takes it nonetheless; for advice that makes pages present, the part before
/// the first gap does.
#[cold]
fn advise_before(
    space: &mem::Space,
    (start, len): (u64, u64),
    (raw, advice): (u32, Advice),
    why: VmError,
) -> Errno {
    let populates = matches!(advice, Advice::PopulateRead | Advice::PopulateWrite);
    let said = |why| match why {
        VmError::Denied if populates => Errno::EFAULT,
        why => errno(why),
    };
    let before = match why {
        VmError::NotMapped if populates => fitting(space, start, len, |_| true),
        VmError::Invalid if !populates => {
            let mut end = start + len;
            space.for_each_entry(start, &mut |entry| {
                let found = entry.args.start < end && is_unfit(raw, entry);
                if found {
                    end = entry.args.start.max(start);
                }
                !found && entry.args.end < end
            });
            end - start
        }
        _ => 0,
    };
    if before == 0 || before == len {
        return said(why);
    }
    match space.advise(mem::vm(), start, before, advice) {
        Err(first) if populates => said(first),
        _ => said(why),
    }
}

fn msync(a: &mut Args) -> Result<u64, Errno> {
    let flags = a.get(2) as u32;
    let both = nr::MS_ASYNC | nr::MS_SYNC;
    if flags & !(both | nr::MS_INVALIDATE) != 0 || flags & both == both {
        return Err(Errno::EINVAL);
    }
    let len = range(a.get(0), a.get(1), Errno::ENOMEM)?;
    if flags & nr::MS_INVALIDATE != 0 && any_mapping(&*space()?, a.get(0), len, is_locked) {
        return Err(Errno::EBUSY);
    }
    // Files live in memory alone: a write to a shared mapping changes the very pages that read(2) copies.
    mapped(a.get(0), len)
}

/// Checks that all of a range is mapped; returns 0.
///
/// # Errors
/// ENOMEM if it is not.
pub(super) fn mapped(start: u64, len: u64) -> Result<u64, Errno> {
    if len > 0 {
        in_space(|space| space.advise(mem::vm(), start, len, Advice::Nothing))?;
    }
    Ok(0)
}

fn mincore(a: &mut Args) -> Result<u64, Errno> {
    let (start, out) = (a.get(0), a.get(2));
    let len = range(start, a.get(1), Errno::ENOMEM)?;
    let space = space()?;
    let mut resident = alloc::vec::Vec::new();
    // In steps, so that a large range needs no large buffer.
    const STEP: u64 = 512 * PAGE;
    for at in (start..start + len).step_by(STEP as usize) {
        if proc::current().kill_pending() {
            return Err(Errno::EINTR);
        }
        resident.clear();
        let step = STEP.min(start + len - at);
        space
            .resident(mem::vm(), at, step, &mut resident)
            .map_err(errno)?;
        hal::user::copy_out(out.wrapping_add((at - start) / PAGE), &resident)?;
    }
    Ok(0)
}

/// brk(2) as a system call: returns the end of the heap, which has changed or not.
fn brk(a: &mut Args) -> Result<u64, Errno> {
    let want = a.get(0);
    let me = proc::current();
    let process = me.process();
    let now = process.brk();
    // Without the lock: only execve, of a process with one thread, changes the start of the heap.
    if want < now.start || want > USER_END {
        return Ok(now.end);
    }
    let _lock = process.lock_brk();
    let now = process.brk();
    Ok(move_break(process, now, want).unwrap_or(now.end))
}

/// Moves the end of the heap to `want`, which is not below its start. The caller holds [`Process::lock_brk`]. Returns
/// the new end; `None` if a limit, a mapping in the way or a lack of memory prevents that.
fn move_break(process: &Process, now: Brk, want: u64) -> Option<u64> {
    let limit = process.rlimit(Resource::Data);
    if limit != u64::MAX && want - now.start > limit {
        return None;
    }
    let (old_end, new_end) = (pages(now.end)?, pages(want)?);
    if new_end > old_end {
        charge(process, new_end - old_end, true, None).ok()?;
        mem::admit_process().ok()?;
        let mut place = MapFlags {
            fixed: true,
            noreplace: true,
            ..MapFlags::default()
        };
        let mut flags = EntryFlags::HEAP;
        lock_by_default(&mut flags, &mut place);
        if flags.contains(EntryFlags::LOCKED) {
            may_lock(&*space().ok()?, new_end - old_end, None, Errno::EAGAIN).ok()?;
        }
        let args = MapArgs {
            addr: old_end,
            place,
            flags,
            ..MapArgs::anon(new_end - old_end, Prot::READ | Prot::WRITE)
        };
        in_space(|space| space.map(mem::vm(), &args)).ok()?;
    } else if new_end < old_end {
        in_space(|space| space.unmap(mem::vm(), new_end, old_end - new_end)).ok()?;
    }
    process.set_brk(Brk { end: want, ..now });
    Some(want)
}

/// Calls `f` with the address space of the calling thread's process.
///
/// # Errors
/// ENOMEM if the process has none; those of `f`.
pub(super) fn in_space<R>(f: impl FnOnce(&mem::Space) -> Result<R, VmError>) -> Result<R, Errno> {
    proc::with_space(|space| f(space))
        .ok_or(Errno::ENOMEM)?
        .map_err(errno)
}

pub(super) fn space() -> Result<alloc::sync::Arc<mem::Space>, Errno> {
    proc::current_process().space().ok_or(Errno::ENOMEM)
}
