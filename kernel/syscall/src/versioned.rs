//! Structures that grow with the versions of the interface: a call passes their size.

use hal::uaccess::UserPtr;
use hal::{PAGE_SIZE, user};

use super::errno::Errno;
use super::fsutil::fault;

/// Reads a structure of `size` bytes, whose first version had `least`, and of which this kernel knows the first `N` words. Words that
/// the program does not have are zero. A program that was built for a newer kernel has a larger structure; if all that this kernel
/// does not know is zero, it asks for nothing more.
///
/// # Errors
/// EINVAL for one that is too small, E2BIG for one of more than a page or with something unknown, EFAULT.
pub fn read<const N: usize>(at: u64, size: u64, least: u64) -> Result<[u64; N], Errno> {
    if size > PAGE_SIZE as u64 {
        return Err(Errno::E2BIG);
    }
    if size < least {
        return Err(Errno::EINVAL);
    }
    let (size, known) = (size as usize, N * size_of::<u64>());
    let mut chunk = [0u8; 64];
    for from in (known..size).step_by(chunk.len()) {
        let len = chunk.len().min(size - from);
        user::copy_in(&mut chunk[..len], at.wrapping_add(from as u64)).map_err(fault)?;
        if chunk[..len].iter().any(|&byte| byte != 0) {
            return Err(Errno::E2BIG);
        }
    }
    let mut words = [0u64; N];
    let whole = size.min(known) / size_of::<u64>();
    for (i, word) in words[..whole].iter_mut().enumerate() {
        *word = UserPtr::new(at).add(i).read().map_err(fault)?;
    }
    let mut rest = [0u8; size_of::<u64>()];
    let more = size.min(known) % rest.len();
    if more > 0 {
        let from = whole * rest.len();
        user::copy_in(&mut rest[..more], at.wrapping_add(from as u64)).map_err(fault)?;
        words[whole] = u64::from_ne_bytes(rest);
    }
    Ok(words)
}
