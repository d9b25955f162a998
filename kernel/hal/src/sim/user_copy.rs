//! Accesses to the simulated user memory, through the translations of the CPU.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::SeqCst;

use vm_host::Access;

use crate::upcalls::Handled;
use crate::upcalls::symbols;
use crate::user::{check, check_word};
use crate::user_fault::UserFault;
use crate::{cpu, preempt, sim};

const WORD: usize = 8;

/// Bits of a page fault's error code.
const PRESENT: u64 = 1;
const WRITE: u64 = 2;

/// Performs `act` on the word at `va`, a multiple of eight. A missing page is brought in, with preemption on.
fn access<R>(va: u64, access: Access, act: impl Fn(&AtomicU64) -> R) -> Result<R, UserFault> {
    loop {
        preempt::disable();
        let result = sim::memory().access(cpu::id(), va, access, &act);
        preempt::enable();
        let fault = match result {
            Ok(value) => return Ok(value),
            Err(fault) => fault,
        };
        let write = if access == Access::Write { WRITE } else { 0 };
        let present = if fault.present { PRESENT } else { 0 };
        if preempt::count() > 0
            || symbols::page_fault(va, write | present, false) != Handled::Resolved
        {
            return Err(UserFault);
        }
    }
}

/// The parts of `len` bytes at `at` that lie in one word each: address of the word, first byte in it, and position in the
/// range.
fn words(at: u64, len: usize) -> impl Iterator<Item = (u64, core::ops::Range<usize>, usize)> {
    let mut done = 0;
    core::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let va = at + done as u64;
        let first = va as usize % WORD;
        let n = (WORD - first).min(len - done);
        let item = (va - first as u64, first..first + n, done);
        done += n;
        Some(item)
    })
}

/// Reads user memory at `from` into `to` as far as possible. Returns the number of bytes read. May sleep, with preemption on.
pub fn copy_in_partial(to: &mut [u8], from: u64) -> usize {
    if check(from, to.len()).is_err() {
        return 0;
    }
    for (va, part, done) in words(from, to.len()) {
        let Ok(word) = access(va, Access::Read, |word| word.load(SeqCst)) else {
            return done;
        };
        to[done..done + part.len()].copy_from_slice(&word.to_le_bytes()[part]);
    }
    to.len()
}

/// Writes `from` to user memory at `to` as far as possible. Returns the number of bytes written. May sleep, with preemption
/// on.
pub fn copy_out_partial(to: u64, from: &[u8]) -> usize {
    if check(to, from.len()).is_err() {
        return 0;
    }
    for (va, part, done) in words(to, from.len()) {
        let new = &from[done..done + part.len()];
        let write = |word: &AtomicU64| {
            change(word, |bytes| bytes[part.clone()].copy_from_slice(new));
        };
        if access(va, Access::Write, write).is_err() {
            return done;
        }
    }
    from.len()
}

/// Changes a word atomically. Returns its old bytes.
fn change(word: &AtomicU64, edit: impl Fn(&mut [u8; WORD])) -> [u8; WORD] {
    let next = |old: u64| {
        let mut bytes = old.to_le_bytes();
        edit(&mut bytes);
        Some(u64::from_le_bytes(bytes))
    };
    match word.fetch_update(SeqCst, SeqCst, next) {
        Ok(old) | Err(old) => old.to_le_bytes(),
    }
}

/// The 32 bits at `first` of a word.
fn half(bytes: [u8; WORD], first: usize) -> u32 {
    u32::from_le_bytes(core::array::from_fn(|i| bytes[first + i]))
}

/// Reads an aligned 32-bit word of user memory in one access.
///
/// # Errors
/// [`UserFault`] also if the address is not aligned.
pub fn load_u32(address: u64) -> Result<u32, UserFault> {
    check_word(address)?;
    let first = address as usize % WORD;
    let word = access(address - first as u64, Access::Read, |word| {
        word.load(SeqCst)
    })?;
    Ok(half(word.to_le_bytes(), first))
}

/// Replaces the aligned 32-bit word of user memory by `new` if it is `old`. Returns the value that it had.
///
/// # Errors
/// [`UserFault`] also if the address is not aligned.
pub fn atomic_cmpxchg_u32(address: u64, old: u32, new: u32) -> Result<u32, UserFault> {
    check_word(address)?;
    let first = address as usize % WORD;
    let replace = |bytes: &mut [u8; WORD]| {
        if half(*bytes, first) == old {
            bytes[first..first + 4].copy_from_slice(&new.to_le_bytes());
        }
    };
    let before = access(address - first as u64, Access::Write, |word| {
        change(word, replace)
    })?;
    Ok(half(before, first))
}
