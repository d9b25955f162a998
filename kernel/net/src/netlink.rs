//! Sockets of AF_NETLINK: programs ask the kernel by messages. The page `doc/netlink.md` has the guarantees and the protocol.
//!
//! - `socket` has the sockets, which are queues of datagrams to one program, `address` their addresses, [`ports`] their numbers, and `option` what can be
//!   set;
//! - [`message`] reads and writes messages;
//! - [`route`] is the one protocol, NETLINK_ROUTE: it says what a request asks; `rows` has the rows of its tables as messages, and
//!   [`listing`] writes all rows of one, datagram by datagram.

mod address;
pub mod listing;
pub mod message;
mod option;
pub mod ports;
pub mod route;
mod rows;
mod socket;

pub use address::AF_NETLINK;
pub use option::{LEVEL, LIST_MEMBERSHIPS};
pub use socket::NetlinkSocket;
