//! poll(2), ppoll(2), select(2), pselect6(2).
//!
//! Each builds a list of open files with the events it wants, and parks. The step of the park first registers with
//! every file's wait queue, then looks at its state, so it misses no event. The list holds references to the files,
//! so another thread may close a descriptor meanwhile.

use alloc::vec::Vec;

use abi::raw::general as nr;
use hal::uaccess::UserPtr;
use proc::SignalExt;
use proc::signal::{RestartBlock, SigSet};
use task::account::charge_large;
use task::current::current;
use task::park::{Deadline, Interruptible, ParkError, Step, park};
use task::wait::Waiter;
use vfs::fdtable::NR_OPEN;
use vfs::file::FileRef;
use vfs::poll::PollMask;

use super::errno::Errno;
use super::fsutil::{fault, fd_limit, file, with_files};
use crate::call::{Args, Handler};

/// The calls of this file.
pub const HANDLERS: &[(u32, Handler)] = &[
    (nr::__NR_poll, poll),
    (nr::__NR_ppoll, ppoll),
    (nr::__NR_select, select),
    (nr::__NR_pselect6, pselect),
];

/// One descriptor: its file, the events wanted and those found.
struct Item {
    file: Option<FileRef>,
    events: PollMask,
    found: PollMask,
}

impl Item {
    /// What is wanted of an open file: without one, and if it was opened with O_PATH, POLLNVAL has been found.
    fn of(file: Option<FileRef>, events: PollMask) -> Item {
        let file = file.filter(|f| !f.is_place());
        let found = match file {
            Some(_) => PollMask::NONE,
            None => PollMask::NVAL,
        };
        Item {
            file,
            events,
            found,
        }
    }

    fn look(&mut self, waiter: Option<&mut Waiter>) -> bool {
        let always = PollMask::ERR | PollMask::HUP | PollMask::NVAL;
        if let Some(file) = &self.file {
            self.found = file.poll(waiter) & (self.events | always);
        }
        !self.found.is_empty()
    }
}

/// Waits until a file is ready; returns how many are, 0 after `deadline`.
///
/// # Errors
/// ERESTARTNOHAND if a signal came first.
fn wait(items: &mut Vec<Item>, deadline: Deadline) -> Result<usize, Errno> {
    let ready = items
        .iter_mut()
        .filter_map(|i| i.look(None).then_some(()))
        .count();
    if ready > 0 || deadline == Deadline::now() {
        return Ok(ready);
    }
    let ended = park(items, deadline, Interruptible::Yes, |items, w| {
        let mut ready = 0;
        for item in items.iter_mut() {
            ready += usize::from(item.look(Some(w)));
        }
        if ready > 0 {
            Step::Done(ready)
        } else {
            Step::Wait
        }
    });
    match ended {
        Ok(n) => Ok(n),
        Err(ParkError::Timeout) => Ok(0),
        // If no handler runs, as after a stop, the call is restarted.
        Err(ParkError::Signal) => Err(Errno::ERESTARTNOHAND),
    }
}

/// Reads a timeout from user memory: seconds, and parts of which a second has `unit`. A null pointer means no
/// timeout. As on Linux, the microseconds of select(2) may be a second and more.
///
/// # Errors
/// EFAULT, EINVAL.
pub fn timeout(addr: u64, unit: i64) -> Result<Deadline, Errno> {
    if addr == 0 {
        return Ok(Deadline::Never);
    }
    let [sec, part] = UserPtr::<[i64; 2]>::new(addr).read().map_err(fault)?;
    if sec < 0 || part < 0 || unit == 1_000_000_000 && part >= unit {
        return Err(Errno::EINVAL);
    }
    let ns = (sec as u64)
        .saturating_mul(1_000_000_000)
        .saturating_add((part as u64).saturating_mul(1_000_000_000 / unit as u64));
    Ok(if ns == 0 {
        Deadline::now()
    } else {
        Deadline::after(ns)
    })
}

/// Writes the time that is left to user memory at `addr`, as Linux does for all of these calls but poll. Returns
/// whether a restarted call would read it there.
fn put_left(addr: u64, deadline: Deadline, unit: u64) -> bool {
    if addr == 0 {
        return true;
    }
    let left = deadline.left().unwrap_or(0);
    let raw = [
        left / 1_000_000_000,
        left % 1_000_000_000 / (1_000_000_000 / unit),
    ];
    // As on Linux, it is no error if the program's memory cannot be written.
    UserPtr::<[u64; 2]>::new(addr).write(&raw).is_ok()
}

/// Ends ppoll, select or pselect6: writes the time that is left and returns `result`. Where that time could not be
/// written, a restarted call would wait for the whole time again, so an interrupted call fails with EINTR instead.
fn finish(
    result: Result<u64, Errno>,
    addr: u64,
    deadline: Deadline,
    unit: u64,
) -> Result<u64, Errno> {
    match (put_left(addr, deadline, unit), result) {
        (false, Err(Errno::ERESTARTNOHAND)) => Err(Errno::EINTR),
        (_, result) => result,
    }
}

/// Sets the caller's signal mask for the duration of the call; returns whether it did. A null pointer leaves the mask
/// as it is.
///
/// # Errors
/// EFAULT; EINVAL if `size` is not that of the kernel's sigset_t.
pub fn set_mask(addr: u64, size: u64) -> Result<bool, Errno> {
    if addr == 0 {
        return Ok(false);
    }
    if size != 8 {
        return Err(Errno::EINVAL);
    }
    let mask = UserPtr::<u64>::new(addr).read().map_err(fault)?;
    current().set_temporary_mask(SigSet(mask & !SigSet::UNMASKABLE.0));
    Ok(true)
}

/// Restores the signal mask, unless a signal interrupted the call: that one is delivered under the temporary mask
/// first.
pub fn end_mask(masked: bool, result: &Result<u64, Errno>) {
    if masked && !matches!(result, Err(Errno::EINTR | Errno::ERESTARTNOHAND)) {
        current().restore_mask();
    }
}

fn poll(a: &mut Args) -> Result<u64, Errno> {
    let ms = a.int(2);
    let deadline = match ms {
        0 => Deadline::now(),
        n if n < 0 => Deadline::Never,
        n => Deadline::after(n as u64 * 1_000_000),
    };
    poll_until(a.get(0), a.uint(1), deadline)
}

/// poll(2) with a deadline. If a signal interrupts it and runs no handler, it is restarted with the same deadline.
///
/// # Errors
/// As for poll(2); ERESTART_RESTARTBLOCK if a signal interrupted it.
pub fn poll_until(addr: u64, count: u32, deadline: Deadline) -> Result<u64, Errno> {
    match poll_list(addr, count, deadline) {
        Err(Errno::ERESTARTNOHAND) => {
            current().set_restart(RestartBlock::Poll {
                addr,
                count,
                deadline,
            });
            Err(Errno::ERESTART_RESTARTBLOCK)
        }
        result => result,
    }
}

fn ppoll(a: &mut Args) -> Result<u64, Errno> {
    let deadline = timeout(a.get(2), 1_000_000_000)?;
    let masked = set_mask(a.get(3), a.get(4))?;
    let result = poll_list(a.get(0), a.uint(1), deadline);
    let result = finish(result, a.get(2), deadline, 1_000_000_000);
    end_mask(masked, &result);
    result
}

/// A struct pollfd: descriptor, events wanted, events found.
type PollFd = u64;

/// poll(2) with a deadline, without a restart.
///
/// # Errors
/// EINVAL if the list is longer than RLIMIT_NOFILE; EFAULT, ENOMEM; ERESTARTNOHAND, with nothing written, if a signal came
/// first.
fn poll_list(addr: u64, count: u32, deadline: Deadline) -> Result<u64, Errno> {
    if u64::from(count) > fd_limit().min(NR_OPEN) {
        return Err(Errno::EINVAL);
    }
    let at = UserPtr::<PollFd>::new(addr);
    let _held = charge_large(count as usize * size_of::<Item>());
    let mut items: Vec<Item> = Vec::new();
    items
        .try_reserve_exact(count as usize)
        .map_err(|_| Errno::ENOMEM)?;
    for i in 0..count as usize {
        let raw = at.add(i).read().map_err(fault)?;
        let (fd, events) = (raw as i32, PollMask((raw >> 32) as u16));
        // A negative descriptor is ignored; one that is not open, or open with O_PATH, is reported as POLLNVAL.
        let file = if fd < 0 { None } else { file(fd).ok() };
        let mut item = Item::of(file, events);
        if fd < 0 {
            item.found = PollMask::NONE;
        }
        items.push(item);
    }
    let ready = wait(&mut items, deadline)?;
    let words = UserPtr::<u16>::new(addr);
    for (i, item) in items.iter().enumerate() {
        words.add(4 * i + 3).write(&item.found.0).map_err(fault)?;
    }
    Ok(ready as u64)
}

fn select(a: &mut Args) -> Result<u64, Errno> {
    let deadline = timeout(a.get(4), 1_000_000)?;
    finish(select_sets(a, deadline), a.get(4), deadline, 1_000_000)
}

fn pselect(a: &mut Args) -> Result<u64, Errno> {
    let deadline = timeout(a.get(4), 1_000_000_000)?;
    let mut masked = false;
    if a.get(5) != 0 {
        let [mask, size] = UserPtr::<[u64; 2]>::new(a.get(5)).read().map_err(fault)?;
        masked = set_mask(mask, size)?;
    }
    let result = finish(select_sets(a, deadline), a.get(4), deadline, 1_000_000_000);
    end_mask(masked, &result);
    result
}

/// For each of the three sets: the events that make a descriptor ready in it, and the event to ask the file for.
const SETS: [(PollMask, PollMask); 3] = [
    (PollMask(1 | 64 | 16 | 8 | 32), PollMask::READ),
    (PollMask(4 | 256 | 8 | 32), PollMask::WRITE),
    (PollMask(2 | 32), PollMask::PRI),
];

/// The three sets of select(2), one after another, each of as many words as `n` descriptors need.
struct Sets {
    n: usize,
    bits: Vec<u64>,
}

impl Sets {
    /// Sets without words, but with memory for them.
    ///
    /// # Errors
    /// ENOMEM.
    fn with_room(n: usize) -> Result<Sets, Errno> {
        let mut sets = Sets {
            n,
            bits: Vec::new(),
        };
        sets.bits
            .try_reserve_exact(3 * sets.words())
            .map_err(|_| Errno::ENOMEM)?;
        Ok(sets)
    }

    /// The sets in user memory at the addresses `at`; those at null are empty.
    ///
    /// # Errors
    /// ENOMEM, EFAULT.
    fn read(at: [UserPtr<u64>; 3], n: usize) -> Result<Sets, Errno> {
        let mut sets = Sets::with_room(n)?;
        for at in at {
            for w in 0..sets.words() {
                let bits = if at.is_null() {
                    0
                } else {
                    at.add(w).read().map_err(fault)?
                };
                sets.bits.push(bits & word_mask(n, w));
            }
        }
        Ok(sets)
    }

    /// Writes the sets to user memory at the addresses `at`, but those at null.
    ///
    /// # Errors
    /// EFAULT.
    fn write(&self, at: [UserPtr<u64>; 3]) -> Result<(), Errno> {
        let words = self.words();
        for (s, at) in at.into_iter().enumerate() {
            if !at.is_null() {
                for w in 0..words {
                    at.add(w).write(&self.bits[s * words + w]).map_err(fault)?;
                }
            }
        }
        Ok(())
    }

    /// Words of each set.
    fn words(&self) -> usize {
        self.n.div_ceil(64)
    }

    /// The place of a descriptor in set `s`: the index of the word, and the bit in it.
    fn place(&self, s: usize, fd: usize) -> (usize, u64) {
        (s * self.words() + fd / 64, 1 << (fd % 64))
    }

    /// Whether set `s` has a descriptor.
    fn has(&self, s: usize, fd: usize) -> bool {
        let (word, bit) = self.place(s, fd);
        self.bits[word] & bit != 0
    }

    /// The events to ask the file of a descriptor for; none if no set has it.
    fn wanted(&self, fd: usize) -> PollMask {
        let mut events = PollMask::NONE;
        for (s, (_, ask)) in SETS.iter().enumerate() {
            if self.has(s, fd) {
                events |= *ask;
            }
        }
        events
    }

    /// The descriptors of the sets in ascending order, and for each its file and the events wanted. One open with O_PATH is
    /// ready at once, in all sets. The caller has been charged for this list.
    ///
    /// # Errors
    /// EBADF if a descriptor is not open; ENOMEM.
    fn list(&self) -> Result<(Vec<u32>, Vec<Item>), Errno> {
        let mut items: Vec<Item> = Vec::new();
        let mut fds: Vec<u32> = Vec::new();
        for fd in 0..self.n {
            let events = self.wanted(fd);
            if events.is_empty() {
                continue;
            }
            let file = file(fd as i32)?;
            items.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
            fds.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
            items.push(Item::of(Some(file), events));
            fds.push(fd as u32);
        }
        Ok((fds, items))
    }

    /// The part of these sets that is ready, and how many bits it has. `fds` and `items` are those of
    /// [`list`](Self::list), with the events that were found.
    ///
    /// # Errors
    /// ENOMEM.
    fn ready(&self, fds: &[u32], items: &[Item]) -> Result<(Sets, u64), Errno> {
        let mut out = Sets::with_room(self.n)?;
        out.bits.resize(3 * self.words(), 0);
        let mut count = 0;
        for (item, &fd) in items.iter().zip(fds) {
            for (s, (hit, _)) in SETS.iter().enumerate() {
                if self.has(s, fd as usize) && item.found.intersects(*hit) {
                    let (word, bit) = self.place(s, fd as usize);
                    out.bits[word] |= bit;
                    count += 1;
                }
            }
        }
        Ok((out, count))
    }
}

/// select(2) with a deadline, and with the call's other arguments in `a`: waits until a descriptor is ready, writes the
/// sets of those that are, and returns how many bits these have. The caller still has to write the time that is left.
///
/// # Errors
/// As for select(2); ERESTARTNOHAND if a signal came first.
fn select_sets(a: &Args, deadline: Deadline) -> Result<u64, Errno> {
    let n = usize::try_from(a.int(0)).map_err(|_| Errno::EINVAL)?;
    // A set may be longer than the table of descriptors; no descriptor beyond the table can be open.
    let size = with_files(|files| Ok(files.size()))?;
    let n = n.min(size.max(1).next_multiple_of(64));
    let at = [1, 2, 3].map(|i| UserPtr::<u64>::new(a.get(i)));
    let sets = Sets::read(at, n)?;
    let _held = charge_large(n * (size_of::<Item>() + size_of::<u32>()));
    let (fds, mut items) = sets.list()?;
    wait(&mut items, deadline)?;
    let (ready, count) = sets.ready(&fds, &items)?;
    ready.write(at)?;
    Ok(count)
}

/// The bits of word `w` that belong to a set of `n` descriptors.
fn word_mask(n: usize, w: usize) -> u64 {
    match n - 64 * w {
        left if left >= 64 => u64::MAX,
        left => (1 << left) - 1,
    }
}
