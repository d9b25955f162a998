//! What setsockopt(2) sets at the level SOL_NETLINK. Numbers are named as in netlink(7) without their prefix `NETLINK_`.

use cred::Cap;
use ksync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use task::current::current;
use vfs::error::FsError;

use super::message::word;
use crate::error::{Result, SocketError};

/// The level of its options: SOL_NETLINK.
pub const LEVEL: i32 = 270;
/// NETLINK_LIST_MEMBERSHIPS. Its value says how long it is even to a caller that has no room for it.
pub const LIST_MEMBERSHIPS: u32 = 9;
/// Groups that one can be a member of: those of NETLINK_ROUTE in Linux 6.1.
const GROUPS: u32 = 36;

const ADD_MEMBERSHIP: u32 = 1;
const DROP_MEMBERSHIP: u32 = 2;
/// NETLINK_PKTINFO.
pub const PKTINFO: u32 = 3;
const BROADCAST_ERROR: u32 = 4;
/// NETLINK_NO_ENOBUFS.
pub const NO_ENOBUFS: u32 = 5;
const LISTEN_ALL_NSID: u32 = 8;
/// NETLINK_CAP_ACK.
pub const CAP_ACK: u32 = 10;
/// NETLINK_EXT_ACK.
pub const EXT_ACK: u32 = 11;
/// NETLINK_GET_STRICT_CHK.
pub const GET_STRICT_CHK: u32 = 12;
/// Those that are on or off. Nothing is broadcast, and there is one namespace: NETLINK_BROADCAST_ERROR and NETLINK_LISTEN_ALL_NSID have nothing to do.
const SWITCHES: [u32; 7] = [
    PKTINFO,
    BROADCAST_ERROR,
    NO_ENOBUFS,
    LISTEN_ALL_NSID,
    CAP_ACK,
    EXT_ACK,
    GET_STRICT_CHK,
];

/// The settings of one socket. Each is atomic.
#[derive(Default)]
pub struct Settings {
    /// Bits by number of [`SWITCHES`].
    switches: AtomicU32,
    /// Group n is bit n - 1. Nothing changes of which members would be told.
    groups: AtomicU64,
}

impl Settings {
    /// Whether a switch is on.
    pub fn is_on(&self, switch: u32) -> bool {
        self.switches.load(Relaxed) & 1 << switch != 0
    }

    /// The groups that an address shows: the first 32.
    pub fn first_groups(&self) -> u32 {
        self.groups.load(Relaxed) as u32
    }

    /// Sets these.
    pub fn set_first_groups(&self, groups: u32) {
        let set = |old: u64| Some(old >> 32 << 32 | u64::from(groups));
        let _ = self.groups.fetch_update(Relaxed, Relaxed, set);
    }

    fn set_membership(&self, group: u32, member: bool) -> Result<()> {
        if !(1..=GROUPS).contains(&group) {
            return Err(FsError::Invalid.into());
        }
        let bit = 1 << (group - 1);
        if member {
            self.groups.fetch_or(bit, Relaxed);
        } else {
            self.groups.fetch_and(!bit, Relaxed);
        }
        Ok(())
    }

    /// Sets an option.
    ///
    /// # Errors
    /// `NoOption`, `Invalid`, `Perm`.
    pub fn set(&self, level: i32, option: u32, value: &[u8]) -> Result<()> {
        if level != LEVEL {
            return Err(SocketError::NoOption);
        }
        // As in Linux, a value that is too short is 0, and a group must have a number.
        let value = word(value, 0).unwrap_or(0);
        match option {
            ADD_MEMBERSHIP => self.set_membership(value, true),
            DROP_MEMBERSHIP => self.set_membership(value, false),
            LISTEN_ALL_NSID if !current().cred().capable(Cap::NetBroadcast) => {
                Err(FsError::Perm.into())
            }
            switch if SWITCHES.contains(&switch) => {
                match value {
                    0 => self.switches.fetch_and(!(1 << switch), Relaxed),
                    _ => self.switches.fetch_or(1 << switch, Relaxed),
                };
                Ok(())
            }
            _ => Err(SocketError::NoOption),
        }
    }

    /// Puts the value of an option into `out`; returns the bytes.
    ///
    /// # Errors
    /// `NoOption`.
    pub fn show(&self, level: i32, option: u32, out: &mut [u8]) -> Result<usize> {
        let mut put = |bytes: &[u8]| {
            out[..bytes.len()].copy_from_slice(bytes);
            Ok(bytes.len())
        };
        match (level, option) {
            // As in Linux, there is no list before there is a group.
            (LEVEL, LIST_MEMBERSHIPS) => match self.groups.load(Relaxed) {
                0 => Ok(0),
                groups => put(&groups.to_ne_bytes()),
            },
            (LEVEL, switch) if SWITCHES.contains(&switch) => {
                put(&u32::from(self.is_on(switch)).to_ne_bytes())
            }
            _ => Err(SocketError::NoOption),
        }
    }
}
