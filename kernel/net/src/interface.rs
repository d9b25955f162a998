//! The interfaces of this machine, and where packets go.
//!
//! Guarantee: all that programs are told of interfaces, addresses and routes is from the rows of this file: by ioctl(2), AF_NETLINK and
//! /proc/net. Today they are constant: loopback alone. A device makes [`first_after`] and [`routes`] look into a table of its own;
//! their callers go from row to row by number, and keep no reference to one.

mod ioctl;

pub use ioctl::ioctl;

use crate::inet::endpoint::Ip;

/// The number of the loopback interface.
pub const INDEX: u32 = LOOPBACK.index;
/// Its name.
pub const NAME: &[u8] = LOOPBACK.name;
/// IFNAMSIZ: the most bytes of a name, with its NUL.
pub const NAME_ROOM: usize = 16;

/// An address and how many of its first bits name the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// The address.
    pub ip: Ip,
    /// Bits, of those that the address's family has.
    pub len: u8,
}

/// An interface.
#[derive(Clone, Copy, Debug)]
pub struct Interface {
    /// Its number, from 1.
    pub index: u32,
    /// Its name.
    pub name: &'static [u8],
    /// Flags as in netdevice(7), IFF_LOWER_UP among them.
    pub flags: u32,
    /// The largest packet.
    pub mtu: u32,
    /// The type of the hardware: an ARPHRD.
    pub hardware: u16,
    /// The hardware's address.
    pub address: [u8; 6],
    /// Its queue's length.
    pub queue: u32,
    /// Its addresses.
    pub addresses: &'static [Prefix],
}

const LOOPBACK: Interface = Interface {
    index: 1,
    name: b"lo",
    // IFF_UP, IFF_LOOPBACK, IFF_RUNNING, IFF_LOWER_UP.
    flags: 0x1_0049,
    mtu: 65_536,
    // ARPHRD_LOOPBACK.
    hardware: 772,
    address: [0; 6],
    queue: 1000,
    addresses: &[
        Prefix {
            ip: Ip::LOOPBACK4,
            len: 8,
        },
        Prefix {
            ip: Ip::LOOPBACK6,
            len: 128,
        },
    ],
};

/// The interface with the lowest number above `index`: from 0 on, all of them.
pub fn first_after(index: u32) -> Option<Interface> {
    (index < LOOPBACK.index).then_some(LOOPBACK)
}

/// All interfaces.
pub fn all() -> impl Iterator<Item = Interface> {
    core::iter::successors(first_after(0), |last| first_after(last.index))
}

/// The interface with this number.
pub fn by_index(index: u32) -> Option<Interface> {
    first_after(index.checked_sub(1)?).filter(|found| found.index == index)
}

/// The interface with this name.
pub fn by_name(name: &[u8]) -> Option<Interface> {
    all().find(|interface| interface.name == name)
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Fate {
    /// It is for this machine: RTN_LOCAL.
    Local = 2,
    /// It is for all of a network, this machine among them: RTN_BROADCAST.
    Broadcast = 3,
}

/// A route. All that there are today are in the table `local`, which the kernel fills.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// Addresses that it is for.
    pub to: Prefix,
    /// What becomes of packets to these.
    pub fate: Fate,
    /// The address that a packet without one comes from; IPv6 chooses it otherwise.
    pub source: Option<Ip>,
    /// The interface that it leads to.
    pub interface: u32,
}

const fn loopback_route(ip: Ip, len: u8, fate: Fate) -> Route {
    Route {
        to: Prefix { ip, len },
        fate,
        source: if len == 128 {
            None
        } else {
            Some(Ip::LOOPBACK4)
        },
        interface: INDEX,
    }
}

/// In the order in which Linux lists them.
const ROUTES: &[Route] = &[
    loopback_route(Ip::v4([127, 0, 0, 0]), 8, Fate::Local),
    loopback_route(Ip::LOOPBACK4, 32, Fate::Local),
    loopback_route(Ip::v4([127, 255, 255, 255]), 32, Fate::Broadcast),
    loopback_route(Ip::LOOPBACK6, 128, Fate::Local),
];

/// All routes.
pub fn routes() -> &'static [Route] {
    ROUTES
}

/// The route to an address: of those that are for it, the one for the fewest.
pub fn route_to(ip: Ip) -> Option<Route> {
    let fits = |route: &&Route| route.to.contains(ip);
    routes()
        .iter()
        .filter(fits)
        .max_by_key(|route| route.to.len)
        .copied()
}

impl Prefix {
    /// Whether an address is in this network.
    pub fn contains(self, ip: Ip) -> bool {
        let v4 = self.ip.as_v4().is_some();
        if v4 != ip.as_v4().is_some() {
            return false;
        }
        let free = if v4 { 32 } else { 128 } - u32::from(self.len);
        let differ = u128::from_be_bytes(self.ip.0) ^ u128::from_be_bytes(ip.0);
        differ.checked_shr(free).unwrap_or(0) == 0
    }
}
