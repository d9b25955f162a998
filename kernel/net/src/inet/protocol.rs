//! The protocols that have ports.

/// A protocol. Each has ports of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// UDP-Lite.
    UdpLite,
}

impl Protocol {
    /// Its number, which is also that of its level of options.
    pub const fn number(self) -> u32 {
        match self {
            Protocol::Tcp => 6,
            Protocol::Udp => 17,
            Protocol::UdpLite => 136,
        }
    }
}
