//! Quotas of file systems in memory.
//!
//! A quota is never freed, so files refer to theirs without a reference count. A quota that no file refers to any more is
//! used again for the next file system. So there are as many quotas as were in use at one time.

use alloc::boxed::Box;
use alloc::vec::Vec;

use cred::{Charge, Cred};
use hal::{PAGE_SIZE, cpu};
use ksync::Spin;
use vm::Quota;

use super::error::{FsError, Result};

ksync::lock_class!(pub QuotaLock, "file system quotas", rank = 83);

hal::machine_static! {
    /// All quotas, and for each whether a file system has it.
    static QUOTAS: Spin<Vec<(&'static Quota, bool)>, QuotaLock> = Spin::new(Vec::new());
}

/// The default limit of a file system: half as many pages as memory has; and as many files.
pub fn default_limit() -> u64 {
    mem::vm().alloc.total_pages() as u64 / 2
}

/// Whether nothing is charged to the quota.
pub(super) fn is_idle(quota: &Quota) -> bool {
    quota.objects() == 0 && quota.used() == 0
}

/// A quota of `limit` pages, or files, for a new file system, which gives it back by [`release`].
///
/// # Errors
/// No memory.
pub fn claim(limit: u64) -> Result<&'static Quota> {
    let mut quotas = QUOTAS.lock();
    let unused = quotas
        .iter_mut()
        .find(|(quota, taken)| !taken && is_idle(quota) && quota.resize(limit).is_ok());
    if let Some((quota, taken)) = unused {
        *taken = true;
        return Ok(quota);
    }
    quotas.try_reserve(1).map_err(|_| FsError::NoMemory)?;
    let quota = Box::leak(Box::new(Quota::new(cpu::count(), limit)));
    quotas.push((quota, true));
    Ok(quota)
}

/// Gives a quota back because its file system is gone. Pages of its files may still be mapped, and charged to it.
pub fn release(quota: &'static Quota) {
    let mut quotas = QUOTAS.lock();
    if let Some((_, taken)) = quotas.iter_mut().find(|(q, _)| core::ptr::eq(*q, quota)) {
        *taken = false;
    }
}

/// The names and files of one user without privileges, with their attributes but without their pages, may take memory divided by this.
const NAMES_PART: u64 = 4;

/// Fails with `NoSpace` if the names and files of the user of `cred` take too much memory.
pub(super) fn may_name(cred: &Cred) -> Result<()> {
    let pages = mem::vm().alloc.total_pages() as u64;
    let most = pages / NAMES_PART * PAGE_SIZE as u64;
    let payer = cred.payer;
    if payer.is_limited() && payer.is_over(Charge::Names, most) && !cred.beyond_user_limits() {
        return Err(FsError::NoSpace);
    }
    Ok(())
}

/// Changes the limit of a quota, in pages or files.
///
/// # Errors
/// `Invalid` if more than that is in use.
pub fn resize(quota: &'static Quota, limit: u64) -> Result<()> {
    let _serial = QUOTAS.lock();
    quota.resize(limit).map_err(|_| FsError::Invalid)
}

/// The number of pages that the value of the option `size=` stands for: bytes, with a suffix, or a percentage of memory.
/// `None` if it is neither; 0 stands for no limit.
pub fn parse_size(value: &[u8]) -> Option<u64> {
    let value = core::str::from_utf8(value).ok()?;
    if let Some(percent) = value.strip_suffix('%') {
        let percent: u64 = percent.parse().ok()?;
        let pages = mem::vm().alloc.total_pages() as u64;
        return Some(pages.checked_mul(percent)? / 100);
    }
    Some(parse_number(value)?.div_ceil(PAGE_SIZE as u64))
}

/// A number with a suffix for a power of 1024 (`k`, `m`, `g`, and so on), as in options of mount(2).
pub fn parse_number(value: &str) -> Option<u64> {
    let power = value.bytes().last().and_then(|last| {
        b"kmgtpe"
            .iter()
            .position(|&s| s == last.to_ascii_lowercase())
    });
    let digits = &value[..value.len() - usize::from(power.is_some())];
    let shift = power.map_or(0, |power| 10 * (power as u32 + 1));
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}
