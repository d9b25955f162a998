//! Sockets of the internet, over the loopback interface. The page `doc/inet.md` has the guarantees and the protocols.
//!
//! - [`endpoint`] has addresses, [`ports`] says which socket has which port, [`option`] and [`settings`] what can be set;
//! - `joined` counts the sockets of a port that have a peer;
//! - [`pair`] is a connection of TCP, [`tcp`] its sockets, `stream` their sends and receives, `shutdown` their ends;
//! - [`late`] tries connects again that wait for room;
//! - [`datagram`] is UDP and UDP-Lite, `control` their control messages, `coverage` the checksums of UDP-Lite.

mod base;
mod control;
mod coverage;
pub mod datagram;
pub mod endpoint;
mod joined;
pub mod late;
pub mod option;
pub mod pair;
pub mod ports;
pub mod protocol;
pub mod settings;
mod shutdown;
mod stream;
pub mod tcp;
