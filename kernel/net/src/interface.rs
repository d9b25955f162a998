//! The one interface, loopback, as ioctl(2) shows it on any socket.

use hal::uaccess::UserPtr;
use hal::uio::IoBuf;
use vfs::error::FsError;

/// The interface's number.
pub const INDEX: u32 = 1;
/// Its name.
pub const NAME: &[u8] = b"lo";
/// The largest packet.
pub const MTU: u32 = 65_536;
/// IFF_UP, IFF_LOOPBACK, IFF_RUNNING.
pub const FLAGS: u32 = 0x49;
/// ARPHRD_LOOPBACK.
pub const HARDWARE: u16 = 772;
/// Its queue's length.
pub const QUEUE: u32 = 1000;

/// Bytes of a struct ifreq.
const REQUEST: usize = 40;
/// IFNAMSIZ: the most bytes of a name, with its NUL.
pub const NAME_ROOM: usize = 16;

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

/// What a request about an interface answers behind its name; `None` for another request.
fn answer(number: u32) -> Option<[u8; 16]> {
    Some(match number {
        request::GIFFLAGS => word(FLAGS),
        request::GIFADDR | request::GIFDSTADDR => v4([127, 0, 0, 1]),
        request::GIFBRDADDR => v4([0; 4]),
        request::GIFNETMASK => v4([255, 0, 0, 0]),
        request::GIFMETRIC => word(0),
        request::GIFMTU => word(MTU),
        request::GIFINDEX => word(INDEX),
        request::GIFTXQLEN => word(QUEUE),
        request::GIFHWADDR => {
            let mut raw = [0; 16];
            raw[..2].copy_from_slice(&HARDWARE.to_ne_bytes());
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

/// The list of interfaces: a struct ifconf.
fn list(at: u64) -> Result<(), FsError> {
    let head = UserPtr::<[u64; 2]>::new(at);
    let [len, buffer] = head.read()?;
    let room = usize::try_from(len as i32).map_err(|_| FsError::Invalid)?;
    let mut used = REQUEST;
    if buffer != 0 {
        let mut raw = [0; REQUEST];
        raw[..NAME.len()].copy_from_slice(NAME);
        raw[NAME_ROOM..32].copy_from_slice(&v4([127, 0, 0, 1]));
        used = if room < REQUEST { 0 } else { REQUEST };
        put(buffer, &raw[..used])?;
    }
    Ok(UserPtr::<i32>::new(at).write(&(used as i32))?)
}

/// Answers an ioctl(2) about interfaces; `None` if it is about something else.
pub fn ioctl(number: u32, at: u64) -> Option<Result<u64, FsError>> {
    let result = match number {
        request::GIFCONF => list(at),
        request::GIFNAME => name(at),
        number => {
            let answer = answer(number)?;
            about(at, &answer)
        }
    };
    Some(result.map(|()| 0))
}

/// The name of the interface with a number.
fn name(at: u64) -> Result<(), FsError> {
    let index = UserPtr::<u32>::new(at.wrapping_add(NAME_ROOM as u64)).read()?;
    if index != INDEX {
        return Err(FsError::NoDevice);
    }
    let mut raw = [0; NAME_ROOM];
    raw[..NAME.len()].copy_from_slice(NAME);
    put(at, &raw)
}

fn about(at: u64, answer: &[u8; 16]) -> Result<(), FsError> {
    let asked = UserPtr::<[u8; NAME_ROOM]>::new(at).read()?;
    let len = asked.iter().position(|&b| b == 0).unwrap_or(NAME_ROOM);
    if &asked[..len] != NAME {
        return Err(FsError::NoDevice);
    }
    put(at.wrapping_add(NAME_ROOM as u64), answer)
}
