//! setsockopt(2) and getsockopt(2). The options of the level SOL_SOCKET are here, those of others with their families.

use cred::Cap;
use hal::uaccess::UserPtr;
use hal::uio::IoBuf;
use net::socket::{OPTION, Type};
use net::{Socket, interface, netlink};
use task::current::current;
use task::time::realtime_ns;

use super::{file_of, of};
use crate::call::Args;
use crate::errno::Errno;
use crate::fsutil::fault;

const SOL_SOCKET: i32 = 1;
const MICROSECOND: u64 = 1000;

/// The time stamp of a packet as a control message: its type, and a struct timeval or timespec. `None` for a stream, as in Linux, and
/// without the option. A packet that came before the option was set has the time at which it is received.
pub(super) fn stamp(socket: &dyn Socket, came: u64) -> Option<(i32, [u64; 2])> {
    let option = socket.options().stamps();
    if option == 0 || socket.kind() == Type::Stream {
        return None;
    }
    let ns = if came == 0 { realtime_ns() } else { came };
    let unit = match option {
        so::TIMESTAMP | so::TIMESTAMP_NEW => MICROSECOND,
        _ => 1,
    };
    let parts = [ns / 1_000_000_000, ns % 1_000_000_000 / unit];
    Some((option as i32, parts))
}

/// Numbers of options, named as in socket(7) without their prefix `SO_`.
mod so {
    pub const TYPE: u32 = 3;
    pub const ERROR: u32 = 4;
    pub const SNDBUF: u32 = 7;
    pub const RCVBUF: u32 = 8;
    pub const LINGER: u32 = 13;
    pub const PASSCRED: u32 = 16;
    pub const PEERCRED: u32 = 17;
    pub const RCVLOWAT: u32 = 18;
    pub const SNDLOWAT: u32 = 19;
    pub const RCVTIMEO: u32 = 20;
    pub const SNDTIMEO: u32 = 21;
    pub const BINDTODEVICE: u32 = 25;
    pub const TIMESTAMP: u32 = 29;
    pub const ACCEPTCONN: u32 = 30;
    pub const SNDBUFFORCE: u32 = 32;
    pub const RCVBUFFORCE: u32 = 33;
    pub const TIMESTAMPNS: u32 = 35;
    pub const PROTOCOL: u32 = 38;
    pub const DOMAIN: u32 = 39;
    pub const TIMESTAMP_NEW: u32 = 63;
    pub const TIMESTAMPNS_NEW: u32 = 64;
}

/// setsockopt(2).
pub fn set(a: &mut Args) -> Result<u64, Errno> {
    let file = file_of(a.int(0))?;
    let socket = of(&file)?;
    let (option, at, len) = (a.uint(2), a.get(3), a.int(4));
    if len < 0 {
        return Err(Errno::EINVAL);
    }
    if a.int(1) != SOL_SOCKET {
        let (mut value, n) = ([0; 4], (len as usize).min(4));
        if n > 0 && IoBuf::user(at, n).take(&mut value[..n]).map_err(fault)? < n {
            return Err(Errno::EFAULT);
        }
        socket.set_option(a.int(1), option, &value[..n])?;
        return Ok(0);
    }
    if option == so::BINDTODEVICE {
        return bind_to_device(socket, at, len as usize);
    }
    if len < size_of::<i32>() as i32 {
        return Err(Errno::EINVAL);
    }
    let value = UserPtr::<i32>::new(at).read().map_err(fault)?;
    let needs = |bytes| match len >= bytes {
        true => Ok(()),
        false => Err(Errno::EINVAL),
    };
    match option {
        so::SNDBUF | so::SNDBUFFORCE | so::RCVBUF | so::RCVBUFFORCE => {
            set_limit(socket, option, value)?;
        }
        so::LINGER => {
            needs(8)?;
            let [on, seconds] = UserPtr::<[i32; 2]>::new(at).read().map_err(fault)?;
            socket.options().set_linger(on != 0, seconds as u32);
        }
        so::PASSCRED => {
            socket.shows_ids().ok_or(Errno::EOPNOTSUPP)?;
            socket.show_ids(value != 0);
        }
        so::TIMESTAMP | so::TIMESTAMPNS | so::TIMESTAMP_NEW | so::TIMESTAMPNS_NEW => {
            // As in Linux, they replace one another, and any of them turns all off.
            let options = socket.options();
            options.set_stamps(if value != 0 { option } else { 0 });
            socket.stamp_packets(value != 0);
        }
        so::RCVTIMEO | so::SNDTIMEO => {
            needs(16)?;
            let ns = timeout(UserPtr::<[i64; 2]>::new(at).read().map_err(fault)?)?;
            socket.options().set_timeout(option == so::SNDTIMEO, ns);
        }
        other if socket.options().keep(other, value != 0) => {}
        _ => return Err(Errno::ENOPROTOOPT),
    }
    Ok(0)
}

/// SO_BINDTODEVICE: all packets of the socket are to go by a device, and `lo` is the only one; an empty name ends that.
///
/// # Errors
/// ENODEV, EFAULT; EPERM where a device is bound already.
fn bind_to_device(socket: &dyn Socket, at: u64, len: usize) -> Result<u64, Errno> {
    const LONGEST: usize = interface::NAME_ROOM - 1;
    let (mut name, n) = ([0; LONGEST], len.min(LONGEST));
    if n > 0 && IoBuf::user(at, n).take(&mut name[..n]).map_err(fault)? < n {
        return Err(Errno::EFAULT);
    }
    let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
    if !name.is_empty() && name != interface::NAME {
        return Err(Errno::ENODEV);
    }
    let options = socket.options();
    if options.is_on_loopback() && !current().cred().capable(Cap::NetRaw) {
        return Err(Errno::EPERM);
    }
    options.bind_to_loopback(!name.is_empty());
    Ok(0)
}

/// SO_SNDBUF and its like.
///
/// # Errors
/// EPERM.
fn set_limit(socket: &dyn Socket, option: u32, value: i32) -> Result<(), Errno> {
    let force = matches!(option, so::SNDBUFFORCE | so::RCVBUFFORCE);
    if force && !current().cred().capable(Cap::NetAdmin) {
        return Err(Errno::EPERM);
    }
    // As in Linux, a negative size is a large one.
    let bytes = value as u32 as usize;
    match option {
        so::SNDBUF | so::SNDBUFFORCE => socket.set_send_limit(bytes),
        _ => socket.set_receive_limit(bytes),
    }
    Ok(())
}

/// The nanoseconds of a struct timeval: 0 for no timeout.
///
/// # Errors
/// EDOM.
fn timeout([seconds, micros]: [i64; 2]) -> Result<u64, Errno> {
    if !(0..1_000_000).contains(&micros) {
        return Err(Errno::EDOM);
    }
    // As in Linux, negative seconds do not wait.
    let Ok(seconds) = u64::try_from(seconds) else {
        return Ok(1);
    };
    Ok(seconds
        .saturating_mul(1_000_000_000)
        .saturating_add(micros as u64 * MICROSECOND))
}

/// getsockopt(2).
pub fn get(a: &mut Args) -> Result<u64, Errno> {
    let file = file_of(a.int(0))?;
    let socket = of(&file)?;
    let len_at = UserPtr::<i32>::new(a.get(4));
    let room = usize::try_from(len_at.read().map_err(fault)?).map_err(|_| Errno::EINVAL)?;
    let mut bytes = [0; OPTION];
    let len = if (a.int(1), a.uint(2)) == (SOL_SOCKET, so::BINDTODEVICE) {
        device(socket, room, &mut bytes)?
    } else if a.int(1) == SOL_SOCKET {
        let mut words = [0; 4];
        let count = value(socket, a.uint(2), &mut words)?;
        bytes[..16].copy_from_slice(words.map(i32::to_ne_bytes).as_flattened());
        4 * count
    } else {
        socket.option(a.int(1), a.uint(2), &mut bytes)?
    };
    let n = len.min(room);
    let mut out = IoBuf::user(a.get(3), n);
    if n > 0 && out.put(&bytes[..n]).map_err(fault)? < n {
        return Err(Errno::EFAULT);
    }
    let whole = (a.int(1), a.uint(2)) == (netlink::LEVEL, netlink::LIST_MEMBERSHIPS);
    let told = if whole { len } else { n };
    len_at.write(&(told as i32)).map_err(fault)?;
    Ok(0)
}

/// SO_BINDTODEVICE: puts the name of the device into `out`, which has zeroes, if there is one; returns its length with the NUL.
///
/// # Errors
/// EINVAL where there is no room for a name.
fn device(socket: &dyn Socket, room: usize, out: &mut [u8]) -> Result<usize, Errno> {
    if !socket.options().is_on_loopback() {
        return Ok(0);
    }
    if room < interface::NAME_ROOM {
        return Err(Errno::EINVAL);
    }
    let len = interface::NAME.len();
    out[..len].copy_from_slice(interface::NAME);
    Ok(len + 1)
}

/// Puts the value of an option into `out`; returns the number of words.
///
/// # Errors
/// ENOPROTOOPT.
fn value(socket: &dyn Socket, option: u32, out: &mut [i32; 4]) -> Result<usize, Errno> {
    let options = socket.options();
    out[0] = match option {
        so::TYPE => socket.kind() as i32,
        so::DOMAIN => socket.domain() as i32,
        so::PROTOCOL => socket.protocol() as i32,
        so::ERROR => socket
            .take_error()
            .map_or(0, |e| i32::from(Errno::from(e).get())),
        so::SNDBUF => socket.send_limit() as i32,
        so::RCVBUF => options.receive_buffer() as i32,
        so::RCVLOWAT | so::SNDLOWAT => 1,
        so::ACCEPTCONN => i32::from(socket.listens()),
        so::TIMESTAMP | so::TIMESTAMPNS | so::TIMESTAMP_NEW | so::TIMESTAMPNS_NEW => {
            i32::from(options.stamps() == option)
        }
        so::PASSCRED => i32::from(socket.shows_ids().ok_or(Errno::EOPNOTSUPP)?),
        so::LINGER => {
            let (on, seconds) = options.linger();
            (out[0], out[1]) = (i32::from(on), seconds as i32);
            return Ok(2);
        }
        so::PEERCRED => {
            let ids = socket.peer_ids();
            let ids = ids.map_or([0, -1, -1], |ids| {
                [ids.pid, ids.uid, ids.gid].map(|n| n as i32)
            });
            out[..3].copy_from_slice(&ids);
            return Ok(3);
        }
        so::RCVTIMEO | so::SNDTIMEO => {
            let ns = options.timeout(option == so::SNDTIMEO);
            let parts = [ns / 1_000_000_000, ns % 1_000_000_000 / MICROSECOND];
            for (i, part) in parts.into_iter().enumerate() {
                out[2 * i] = part as i32;
                out[2 * i + 1] = (part >> 32) as i32;
            }
            return Ok(4);
        }
        other => i32::from(options.kept(other).ok_or(Errno::ENOPROTOOPT)?),
    };
    Ok(1)
}
