//! Addresses of AF_NETLINK.

use alloc::vec::Vec;

use cred::Cap;
use task::current::current;
use vfs::error::FsError;

use super::message::word;
use crate::address::{Address, family};
use crate::error::Result;

/// The number of the family.
pub const AF_NETLINK: u16 = 16;
/// Bytes of a struct sockaddr_nl.
const ADDRESS: usize = 12;
/// The address of a socket, or of a group.
#[derive(Clone, Copy, Default)]
pub struct Endpoint {
    /// The number of a socket, 0 for the kernel's.
    pub port: u32,
    /// Groups as bits, the first 32.
    pub groups: u32,
}

impl Endpoint {
    /// That of a struct sockaddr_nl.
    ///
    /// # Errors
    /// `Invalid`.
    pub fn parse(raw: &[u8]) -> Result<Endpoint> {
        match (family(raw), word(raw, 4), word(raw, 8)) {
            (Some(AF_NETLINK), Some(port), Some(groups)) => Ok(Endpoint { port, groups }),
            _ => Err(FsError::Invalid.into()),
        }
    }

    /// The struct sockaddr_nl.
    pub fn address(self) -> Address {
        let mut raw = Vec::with_capacity(ADDRESS);
        raw.extend_from_slice(&u32::from(AF_NETLINK).to_ne_bytes());
        raw.extend_from_slice(&self.port.to_ne_bytes());
        raw.extend_from_slice(&self.groups.to_ne_bytes());
        Address(raw)
    }

    /// Fails with `Perm` for what takes the capability: anything but the kernel.
    pub fn check(self) -> Result<()> {
        let kernel = (self.port, self.groups) == (0, 0);
        match kernel || current().cred().capable(Cap::NetAdmin) {
            true => Ok(()),
            false => Err(FsError::Perm.into()),
        }
    }
}
