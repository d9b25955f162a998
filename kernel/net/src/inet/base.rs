//! What sockets of TCP and of UDP have in common.

use cred::{Cap, MemoryCharge, Payer};
use ksync::Mutex;
use task::current::current;
use task::wait::WaitQueue;
use vfs::attr::Attr;
use vfs::error::FsError;
use vfs::ino::new_ino;
use vfs::inode::mode;
use vfs::lock::LockSlot;

use super::endpoint::{AF_UNSPEC, Endpoint, Family, Ip};
use super::option::{self, InetOptions};
use super::ports::{self, Entry, Owner, Place};
use super::protocol::Protocol;
use super::settings;
use crate::address::{Type, family};
use crate::error::{Result, SocketError};
use crate::local::BindLock;
use crate::option::{Options, REUSEADDR, REUSEPORT};

/// The part of a socket that does not depend on its protocol.
pub struct Base {
    /// The family. Constant.
    pub family: Family,
    /// The type. Constant.
    pub kind: Type,
    /// Settings of all families.
    pub options: Options,
    /// Settings of the internet's.
    pub inet: InetOptions,
    /// The inode's number. Constant.
    pub ino: u64,
    /// The user that made it, which pays for it. Constant.
    pub payer: Payer,
    /// The locks that programs take.
    pub locks: LockSlot,
    /// Held by one bind, listen or connect at a time, but not while it waits for the other side.
    pub binding: Mutex<(), BindLock>,
    /// Callers of poll(2), which wait for another use of the socket.
    pub changes: WaitQueue,
    owner: (u32, u32),
    _charge: MemoryCharge,
}

impl Base {
    /// For a new socket whose other objects have so many bytes; charged to the caller's user.
    pub fn new(family: Family, kind: Type, bytes: usize) -> Base {
        let me = current();
        let (cred, payer) = (me.cred(), me.payer());
        Base {
            family,
            kind,
            options: Options::default(),
            inet: InetOptions::default(),
            ino: new_ino(),
            payer,
            locks: LockSlot::new(),
            binding: Mutex::new(()),
            changes: WaitQueue::new(),
            owner: (cred.fsuid, cred.fsgid),
            _charge: MemoryCharge::new(payer, bytes + ports::BYTES),
        }
    }

    /// What the table of ports is to know.
    pub fn entry(&self, ip: Ip, owner: Owner) -> Entry {
        Entry {
            family: self.family,
            ip,
            only_v6: self.inet.is_on(option::V6ONLY),
            reuse: self.options.kept(REUSEADDR) == Some(true),
            share: self.options.kept(REUSEPORT) == Some(true),
            uid: self.owner.0,
            auto: false,
            owner,
        }
    }

    /// The endpoint of a bind, which the caller may have.
    ///
    /// # Errors
    /// `Invalid`, `WrongFamily`; `NotAvailable` for an address that is not this machine's; `Access` for a port that needs a capability.
    pub fn to_bind(&self, raw: &[u8]) -> Result<Endpoint> {
        let mut copy = [0; 16];
        let unnamed = self.family == Family::V4 && family(raw) == Some(AF_UNSPEC);
        let raw = match raw.get(..16) {
            // As in Linux, 0.0.0.0 of no family is that of IPv4.
            Some(raw) if unnamed && raw[4..8] == [0; 4] => {
                copy.copy_from_slice(raw);
                copy[..2].copy_from_slice(&self.family.number().to_le_bytes());
                &copy[..]
            }
            _ => raw,
        };
        let to = Endpoint::parse(self.family, raw, false)?;
        if !to.ip.is_any() && !to.ip.is_local() {
            return Err(SocketError::NotAvailable);
        }
        let only_v6 = self.inet.is_on(option::V6ONLY);
        if self.family == Family::V6 && only_v6 && to.ip.as_v4().is_some() {
            return Err(FsError::Invalid.into());
        }
        let low = u64::from(to.port) < settings::unprivileged_start();
        if to.port != 0 && low && !current().cred().capable(Cap::NetBindService) {
            return Err(FsError::Access.into());
        }
        Ok(to)
    }

    /// Where a connect, or a packet, from a socket with the address `own` leads.
    ///
    /// # Errors
    /// `Unreachable`; `Invalid` if the socket's address is one of the other family.
    pub fn to_reach(&self, to: Endpoint, own: Ip) -> Result<Endpoint> {
        let v4 = to.ip.as_v4().is_some();
        if v4 && self.inet.is_on(option::V6ONLY) {
            return Err(SocketError::Unreachable);
        }
        if own != Ip::ANY6 && own.as_v4().is_some() != v4 {
            return Err(FsError::Invalid.into());
        }
        Ok(Endpoint {
            ip: to.ip.destination()?,
            port: to.port,
        })
    }

    /// Gives the socket this port, or any.
    ///
    /// # Errors
    /// `AddressInUse`, `NoMemory`.
    pub fn take_port(&self, protocol: Protocol, port: u16, entry: Entry) -> Result<Place> {
        mem::admit_process()?;
        match port {
            0 => ports::bind_any(protocol, self.ino, entry),
            port => ports::bind(protocol, port, self.ino, entry),
        }
    }

    /// Sets an option of the internet's levels; `bound` says whether the socket has a port.
    ///
    /// # Errors
    /// As [`InetOptions::set`].
    pub fn set_option(&self, level: i32, option: u32, value: &[u8], bound: bool) -> Result<()> {
        if (level, option) == option::V6ONLY && bound {
            return Err(FsError::Invalid.into());
        }
        self.inet
            .set(level, option, value, (self.family, self.kind))
    }

    /// For fstat(2).
    pub fn attr(&self) -> Attr {
        let (uid, gid) = self.owner;
        Attr {
            uid,
            gid,
            ..Attr::unnamed(self.ino, mode::SOCK | 0o777)
        }
    }
}
