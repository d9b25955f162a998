//! The numbers that sockets of AF_NETLINK have instead of addresses: port ids.
//!
//! Guarantee: two sockets never have the same one. A socket that does not ask for one gets its process's number, if that is free, else one above
//! 2^31, which no process has.
//!
//! A bind and a close take the lock of one of sixteen shards. Process numbers are handed out by CPU, so processes on different CPUs seldom meet.

use alloc::collections::BTreeSet;
use core::iter;

use ksync::Spin;

ksync::lock_class!(pub NetlinkPortLock, "netlink ports", rank = 84);

/// Shards of the numbers.
const SHARDS: usize = 16;
/// Numbers that are tried before there is said to be none free: of 2^31, so that many sockets cannot make a bind long.
const TRIES: u64 = 64;
/// Bytes that a number takes.
pub const BYTES: usize = 4 * size_of::<u32>();

hal::machine_static! {
    static TAKEN: [Spin<BTreeSet<u32>, NetlinkPortLock>; SHARDS] =
        [const { Spin::new(BTreeSet::new()) }; SHARDS];
}

/// A number that is taken until this is dropped.
#[derive(Debug)]
pub struct Port(u32);

impl Port {
    /// Takes a number. `None` if another socket has it.
    pub fn take(number: u32) -> Option<Port> {
        let new = TAKEN[number as usize % SHARDS].lock().insert(number);
        new.then(|| Port(number))
    }

    /// Takes the number of a process, or another one: at random, so that no user can take beforehand those that would be tried.
    pub fn choose(pid: u32) -> Option<Port> {
        let at_random = (0..TRIES).map(|_| {
            let mut any = [0; 4];
            drivers::random::fill(&mut any);
            1 << 31 | u32::from_ne_bytes(any)
        });
        Port::first_free(iter::once(pid).chain(at_random))
    }

    /// Takes the first of these numbers that no other socket has; `None` if others have all.
    pub fn first_free(mut numbers: impl Iterator<Item = u32>) -> Option<Port> {
        numbers.find_map(Port::take)
    }

    /// The number.
    pub fn number(&self) -> u32 {
        self.0
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        TAKEN[self.0 as usize % SHARDS].lock().remove(&self.0);
    }
}
