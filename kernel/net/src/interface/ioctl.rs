//! The interfaces as ioctl(2) shows them on any socket.

use hal::uaccess::UserPtr;
use hal::uio::IoBuf;
use vfs::error::FsError;

use super::{Interface, NAME_ROOM, all, by_index, by_name, first_after};

/// Bytes of a struct ifreq.
const REQUEST: usize = 40;

mod request {
    pub const GIFNAME: u32 = 0x8910;
    pub const GIFCONF: u32 = 0x8912;
    pub const GIFFLAGS: u32 = 0x8913;
    pub const GIFADDR: u32 = 0x8915;
    pub const GIFDSTADDR: u32 = 0x8917;
    pub const GIFBRDADDR: u32 = 0x8919;
    pub const GIFNETMASK: u32 = 0x891b;
    pub const GIFMETRIC: u32 = 0x891d;
    pub const GIFMTU: u32 = 0x8921;
    pub const GIFHWADDR: u32 = 0x8927;
    pub const GIFINDEX: u32 = 0x8933;
    pub const GIFTXQLEN: u32 = 0x8942;
}

/// A struct sockaddr_in of this address.
fn v4(address: [u8; 4]) -> [u8; 16] {
    let mut raw = [0; 16];
    raw[0] = 2;
    raw[4..8].copy_from_slice(&address);
    raw
}

fn word(value: u32) -> [u8; 16] {
    let mut raw = [0; 16];
    raw[..4].copy_from_slice(&value.to_ne_bytes());
    raw
}

/// The addresses of IPv4 of an interface, and their masks.
fn addresses(interface: &Interface) -> impl Iterator<Item = ([u8; 4], [u8; 4])> {
    interface.addresses.iter().filter_map(|prefix| {
        let free = 32 - u32::from(prefix.len.min(32));
        let mask = u32::MAX.checked_shl(free).unwrap_or(0);
        Some((prefix.ip.as_v4()?, mask.to_be_bytes()))
    })
}

/// What a request about an interface answers behind its name; `None` for another request.
fn answer(number: u32, interface: &Interface) -> Option<[u8; 16]> {
    let (address, mask) = addresses(interface).next().unwrap_or_default();
    Some(match number {
        // The structure has 16 bits for flags.
        request::GIFFLAGS => word(interface.flags & 0xffff),
        request::GIFADDR | request::GIFDSTADDR => v4(address),
        request::GIFBRDADDR => v4([0; 4]),
        request::GIFNETMASK => v4(mask),
        request::GIFMETRIC => word(0),
        request::GIFMTU => word(interface.mtu),
        request::GIFINDEX => word(interface.index),
        request::GIFTXQLEN => word(interface.queue),
        request::GIFHWADDR => {
            let mut raw = [0; 16];
            raw[..2].copy_from_slice(&interface.hardware.to_ne_bytes());
            raw[2..8].copy_from_slice(&interface.address);
            raw
        }
        _ => return None,
    })
}

fn put(at: u64, bytes: &[u8]) -> Result<(), FsError> {
    match IoBuf::user(at, bytes.len()).put(bytes)? {
        n if n == bytes.len() => Ok(()),
        _ => Err(FsError::Fault),
    }
}

/// The name of an interface, with NULs behind it.
fn padded(interface: &Interface) -> [u8; NAME_ROOM] {
    let mut raw = [0; NAME_ROOM];
    raw[..interface.name.len()].copy_from_slice(interface.name);
    raw
}

/// The list of interfaces with addresses: a struct ifconf.
fn list(at: u64) -> Result<(), FsError> {
    let head = UserPtr::<[u64; 2]>::new(at);
    let [len, buffer] = head.read()?;
    let room = usize::try_from(len as i32).map_err(|_| FsError::Invalid)?;
    let mut used = 0;
    for interface in all() {
        for (address, _) in addresses(&interface) {
            if buffer != 0 && room - used < REQUEST {
                break;
            }
            let mut raw = [0; REQUEST];
            raw[..NAME_ROOM].copy_from_slice(&padded(&interface));
            raw[NAME_ROOM..32].copy_from_slice(&v4(address));
            if buffer != 0 {
                put(buffer.wrapping_add(used as u64), &raw)?;
            }
            used += REQUEST;
        }
    }
    Ok(UserPtr::<i32>::new(at).write(&(used as i32))?)
}

/// Answers an ioctl(2) about interfaces; `None` if it is about something else.
pub fn ioctl(number: u32, at: u64) -> Option<Result<u64, FsError>> {
    let result = match number {
        request::GIFCONF => list(at),
        request::GIFNAME => name(at),
        number => {
            // Whether the request exists does not depend on the interface.
            answer(number, &first_after(0)?)?;
            about(at, number)
        }
    };
    Some(result.map(|()| 0))
}

/// The name of the interface with a number.
fn name(at: u64) -> Result<(), FsError> {
    let index = UserPtr::<u32>::new(at.wrapping_add(NAME_ROOM as u64)).read()?;
    let interface = by_index(index).ok_or(FsError::NoDevice)?;
    put(at, &padded(&interface))
}

fn about(at: u64, number: u32) -> Result<(), FsError> {
    let asked = UserPtr::<[u8; NAME_ROOM]>::new(at).read()?;
    let len = asked.iter().position(|&b| b == 0).unwrap_or(NAME_ROOM);
    let interface = by_name(&asked[..len]).ok_or(FsError::NoDevice)?;
    let answer = answer(number, &interface).ok_or(FsError::NotTty)?;
    put(at.wrapping_add(NAME_ROOM as u64), &answer)
}
