//! Memory policy: get_mempolicy(2), set_mempolicy(2), mbind(2).
//!
//! Memory comes from the node on which the thread runs, or from another where that has none: MPOL_LOCAL, which is Linux's default.
//! A thread's policy is stored, inherited and reported, and must be one that this meets: a preference, or one that allows every node.
//! mbind checks its arguments, and stores nothing: all mappings have the default policy.

use abi::raw::general as nr;
use cred::Cap;
use hal::PAGE_SIZE;
use hal::uaccess::UserPtr;
use proc::user_thread::{MemoryPolicy, memory_policy, set_memory_policy};
use task::current::current;
use vm::Machine;

use super::credentials::require;
use super::errno::Errno;
use super::mm::{covered, space};
use crate::call::{Args, Handler};

/// The calls of this file.
pub const HANDLERS: &[(u32, Handler)] = &[
    (nr::__NR_get_mempolicy, get_mempolicy),
    (nr::__NR_set_mempolicy, set_mempolicy),
    (nr::__NR_mbind, mbind),
];

/// Modes.
mod mode {
    pub const DEFAULT: u32 = 0;
    pub const PREFERRED: u32 = 1;
    pub const BIND: u32 = 2;
    pub const INTERLEAVE: u32 = 3;
    pub const LOCAL: u32 = 4;
    pub const PREFERRED_MANY: u32 = 5;
}

/// Flags beside the mode: how the nodes are understood where those that are allowed change, which never happens here.
const RELATIVE: u32 = 1 << 14;
const STATIC: u32 = 1 << 15;

const F_NODE: u64 = 1;
const F_ADDR: u64 = 2;
const F_MEMS_ALLOWED: u64 = 4;
/// Linux's limit on the length of a node mask: a page of bits.
const MASK_MAX: u64 = 4096 * 8;

fn nodes() -> u64 {
    mem::vm().machine.ndomains() as u64
}

/// A mask with each node.
fn all_nodes() -> u64 {
    u64::MAX >> (u64::from(u64::BITS) - nodes())
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

/// Reads a policy: a mode with its flags, and a mask of nodes, none for a null pointer.
///
/// # Errors
/// EINVAL for what is no policy, or one that this kernel does not meet. EFAULT.
fn read(how: u32, mask: u64, max_node: u64) -> Result<MemoryPolicy, Errno> {
    let flags = how & (RELATIVE | STATIC);
    if flags == RELATIVE | STATIC || how & !flags > mode::PREFERRED_MANY {
        return Err(Errno::EINVAL);
    }
    let mut given = 0;
    let count = words(max_node)?;
    if mask != 0 {
        for i in 0..count {
            let mut word: u64 = UserPtr::new(mask).add(i).read()?;
            let bits = max_node.saturating_sub(1) - 64 * i as u64;
            if bits < 64 {
                word &= (1 << bits) - 1;
            }
            match i {
                0 => given = word,
                _ if word != 0 => return Err(Errno::EINVAL),
                _ => {}
            }
        }
    }
    let allowed = given & all_nodes();
    // Nodes that do not exist are left out, but some must be there.
    if given != 0 && allowed == 0 {
        return Err(Errno::EINVAL);
    }
    let plain = given == 0 && flags == 0;
    let meets = match how & !flags {
        mode::DEFAULT => given == 0,
        mode::LOCAL => plain,
        mode::PREFERRED => plain || given != 0,
        mode::PREFERRED_MANY => given != 0,
        mode::BIND | mode::INTERLEAVE => allowed == all_nodes(),
        _ => false,
    };
    if !meets {
        return Err(Errno::EINVAL);
    }
    // As in Linux, to prefer no node is to prefer the nearest.
    let how = if how == mode::PREFERRED && given == 0 {
        mode::LOCAL
    } else {
        how
    };
    Ok(MemoryPolicy {
        mode: how,
        nodes: allowed,
    })
}

fn set_mempolicy(a: &mut Args) -> Result<u64, Errno> {
    let new = read(a.uint(0), a.get(1), a.get(2))?;
    set_memory_policy(new);
    Ok(0)
}

/// mbind(2). As on Linux, the arguments are checked before the mappings; MPOL_MF_MOVE_ALL needs CAP_SYS_NICE.
fn mbind(a: &mut Args) -> Result<u64, Errno> {
    const MOVE_ALL: u32 = 4;
    const FLAGS: u32 = 7;
    let (start, len, flags) = (a.get(0), a.get(1), a.uint(5));
    if flags & !FLAGS != 0 {
        return Err(Errno::EINVAL);
    }
    if flags & MOVE_ALL != 0 {
        require(&current().cred(), Cap::SysNice)?;
    }
    let page = PAGE_SIZE as u64;
    if start % page != 0 {
        return Err(Errno::EINVAL);
    }
    let len = len.checked_next_multiple_of(page).ok_or(Errno::EINVAL)?;
    start.checked_add(len).ok_or(Errno::EINVAL)?;
    if len == 0 {
        return Ok(0);
    }
    read(a.uint(2), a.get(3), a.get(4))?;
    if covered(&*space()?, start, len, |_| true) < len {
        return Err(Errno::EFAULT);
    }
    Ok(0)
}

fn get_mempolicy(a: &mut Args) -> Result<u64, Errno> {
    let (mask, max_node, addr, flags) = (a.get(1), a.get(2), a.get(3), a.get(4));
    let shown = match flags {
        F_MEMS_ALLOWED => MemoryPolicy {
            mode: mode::DEFAULT,
            nodes: all_nodes(),
        },
        0 if addr == 0 => memory_policy(),
        F_ADDR => {
            space()?.entry_at(addr).ok_or(Errno::EFAULT)?;
            MemoryPolicy::default()
        }
        // The node from which an interleaving thread's next page comes.
        F_NODE if addr == 0 && memory_policy().mode == mode::INTERLEAVE => MemoryPolicy {
            mode: hal::cpu::node(ksync::pin().cpu()) as u32,
            nodes: 0,
        },
        _ => return Err(Errno::EINVAL),
    };
    if mask != 0 && max_node < nodes() {
        return Err(Errno::EINVAL);
    }
    UserPtr::<u32>::new(a.get(0)).write_if_some(&shown.mode)?;
    if mask != 0 {
        for i in 0..words(max_node)?.max(1) {
            let word = if i == 0 { shown.nodes } else { 0 };
            UserPtr::<u64>::new(mask).add(i).write(&word)?;
        }
    }
    Ok(0)
}
