//! How much of a packet of UDP-Lite its checksum covers.
//!
//! Nothing damages a packet on the loopback interface, so no sum is made. What is left of it is what programs see: a socket that asks for more than a packet's sender
//! has covered does not get the packet.

use ksync::atomic::{AtomicI32, Ordering::Relaxed};
use vfs::error::FsError;

use crate::error::{Result, SocketError};

/// UDPLITE_SEND_CSCOV.
const SEND: u32 = 10;
/// UDPLITE_RECV_CSCOV.
const RECEIVE: u32 = 11;
/// Bytes of the header, which is always covered.
const HEAD: i32 = 8;
/// The value of an option that was never set.
const UNSET: i32 = -1;

/// The two options of a socket, in bytes from the header on; 0 for all.
pub struct Coverage {
    /// Atomic.
    sent: AtomicI32,
    /// Atomic.
    wanted: AtomicI32,
}

impl Coverage {
    /// Neither is set.
    pub fn new() -> Coverage {
        Coverage {
            sent: AtomicI32::new(UNSET),
            wanted: AtomicI32::new(UNSET),
        }
    }

    fn option(&self, option: u32) -> Result<&AtomicI32> {
        match option {
            SEND => Ok(&self.sent),
            RECEIVE => Ok(&self.wanted),
            _ => Err(SocketError::NoOption),
        }
    }

    /// Sets an option.
    ///
    /// # Errors
    /// `Invalid` for less than an int; `NoOption`, also where the socket is not one of UDP-Lite.
    pub fn set(&self, option: u32, value: &[u8], lite: bool) -> Result<()> {
        let word = value.first_chunk().ok_or(FsError::Invalid)?;
        let kept = match i32::from_ne_bytes(*word) {
            0 => 0,
            bytes => bytes.clamp(HEAD, i32::from(u16::MAX)),
        };
        let option = self.option(option)?;
        if !lite {
            return Err(SocketError::NoOption);
        }
        option.store(kept, Relaxed);
        Ok(())
    }

    /// The value of an option.
    ///
    /// # Errors
    /// `NoOption`.
    pub fn get(&self, option: u32) -> Result<i32> {
        Ok(self.option(option)?.load(Relaxed).max(0))
    }

    /// How much is covered of a packet that is sent with `len` bytes after the header; `None` for all.
    pub fn of_packet(&self, len: usize) -> Option<u16> {
        let covered = u16::try_from(self.sent.load(Relaxed)).ok()?;
        let whole = len + HEAD as usize;
        (covered > 0 && usize::from(covered) < whole).then_some(covered)
    }

    /// Whether a packet of which so much is covered may be received. As in Linux, a socket that has never set the option takes all, and one that has set
    /// it to 0 those that are covered wholly.
    pub fn admits(&self, covered: Option<u16>) -> bool {
        let wanted = self.wanted.load(Relaxed);
        covered.is_none_or(|covered| wanted != 0 && i32::from(covered) >= wanted)
    }
}
