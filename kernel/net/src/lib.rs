//! Sockets. The page `doc/sockets.md` has the guarantees, the protocols and their time lines.
//!
//! - [`socket`] has what all families have in common: the trait [`Socket`], and [`SocketFile`], the open file of a socket; [`option`]
//!   has what setsockopt(2) sets;
//! - [`local`] is the family AF_UNIX; [`address`] has its addresses, [`names`] what they lead to, `connection` its listeners;
//! - [`inet`] has the families AF_INET and AF_INET6, [`interface`] the loopback interface, [`netlink`] the family AF_NETLINK, by which
//!   programs ask about it;
//! - [`accept`] is what a listener of any family has; `wait` has the waits of all;
//! - [`inbox`] is what a socket receives from, [`stream`] and [`packets`] what may be in it; [`rights`] has descriptors in
//!   messages, and [`in_flight`] finds sockets that only messages refer to;
//! - [`shown`] is the list of all sockets; [`ids`] has the process and the user of a sender.
//!
//! Errors are those of files, and a few of sockets: [`error`].

#![no_std]

extern crate alloc;

pub mod accept;
pub mod address;
mod connection;
pub mod error;
pub mod ids;
pub mod in_flight;
pub mod inbox;
pub mod inet;
pub mod interface;
pub mod local;
pub mod names;
pub mod netlink;
pub mod option;
pub mod packets;
pub mod rights;
pub mod shown;
pub mod socket;
pub mod stream;
mod transfer;
mod wait;

pub use error::SocketError;
pub use in_flight::collect;
pub use inet::datagram::UdpSocket;
pub use inet::tcp::TcpSocket;
pub use local::LocalSocket;
pub use netlink::NetlinkSocket;
pub use socket::{Socket, SocketFile};
