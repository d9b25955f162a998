//! Memory policy: get_mempolicy(2), set_mempolicy(2).
//!
//! Every thread has the same policy: memory comes from the node on which the thread runs. That is Linux's
//! MPOL_DEFAULT as well as MPOL_LOCAL; other modes fail with EINVAL, as unknown ones.

use abi::raw::general as nr;
use hal::uaccess::UserPtr;
use proc::UserThreadExt;
use task::current::current;
use vm::Machine;

use super::errno::Errno;
use crate::call::{Args, Handler};

/// The calls of this file.
pub const HANDLERS: &[(u32, Handler)] = &[
    (nr::__NR_get_mempolicy, get_mempolicy),
    (nr::__NR_set_mempolicy, set_mempolicy),
];

const DEFAULT: u32 = 0;
const LOCAL: u32 = 4;
const F_ADDR: u64 = 2;
const F_MEMS_ALLOWED: u64 = 4;
/// Linux's limit on the length of a node mask: a page of bits.
const MASK_MAX: u64 = 4096 * 8;

fn nodes() -> u64 {
    mem::vm().machine.ndomains() as u64
}

/// Number of 64-bit words of a node mask. The calls give its length as one more than the number of bits.
///
/// # Errors
/// EINVAL if it is longer than [`MASK_MAX`] bits.
fn words(max_node: u64) -> Result<usize, Errno> {
    let bits = max_node.saturating_sub(1);
    if bits > MASK_MAX {
        return Err(Errno::EINVAL);
    }
    Ok(bits.div_ceil(64) as usize)
}

fn set_mempolicy(a: &mut Args) -> Result<u64, Errno> {
    let (mode, mask) = (a.uint(0), UserPtr::<u64>::new(a.get(1)));
    if !matches!(mode, DEFAULT | LOCAL) {
        return Err(Errno::EINVAL);
    }
    if a.get(1) != 0 {
        for i in 0..words(a.get(2))? {
            if mask.add(i).read()? != 0 {
                return Err(Errno::EINVAL);
            }
        }
    }
    Ok(0)
}

fn get_mempolicy(a: &mut Args) -> Result<u64, Errno> {
    let (mask, max_node, addr, flags) = (a.get(1), a.get(2), a.get(3), a.get(4));
    let shown = match flags {
        F_MEMS_ALLOWED => (1u64 << nodes()) - 1,
        0 if addr == 0 => 0,
        F_ADDR => {
            let space = current().process().space();
            space
                .and_then(|space| space.entry_at(addr))
                .map(|_| 0)
                .ok_or(Errno::EFAULT)?
        }
        _ => return Err(Errno::EINVAL),
    };
    if mask != 0 && max_node < nodes() {
        return Err(Errno::EINVAL);
    }
    UserPtr::<u32>::new(a.get(0)).write_if_some(&DEFAULT)?;
    if mask != 0 {
        for i in 0..words(max_node)?.max(1) {
            let word = if i == 0 { shown } else { 0 };
            UserPtr::<u64>::new(mask).add(i).write(&word)?;
        }
    }
    Ok(0)
}
