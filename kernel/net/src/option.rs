//! What setsockopt(2) sets at the level SOL_SOCKET, for all families.

use ksync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use task::park::Deadline;

/// Bytes that a socket may have sent, and may have to receive, by default: Linux's wmem_default and rmem_default.
pub const SEND_DEFAULT: usize = 212_992;
/// The largest value that can be asked for; twice as much is kept, as in Linux.
const MOST: usize = 212_992;
/// The smallest values that are kept.
const SEND_LEAST: usize = 4608;
const RECEIVE_LEAST: usize = 2304;

/// Settings that are only kept: by their numbers in Linux.
pub const KEPT: [u32; 7] = [
    REUSEADDR, KEEPALIVE, BROADCAST, REUSEPORT, DONTROUTE, PRIORITY, PASSSEC,
];
/// SO_PASSSEC: there are no labels that could be passed.
pub const PASSSEC: u32 = 34;
/// SO_REUSEADDR.
pub const REUSEADDR: u32 = 2;
/// SO_KEEPALIVE.
pub const KEEPALIVE: u32 = 9;
/// SO_BROADCAST.
pub const BROADCAST: u32 = 6;
/// SO_REUSEPORT.
pub const REUSEPORT: u32 = 15;
/// SO_DONTROUTE.
pub const DONTROUTE: u32 = 5;
/// SO_PRIORITY.
pub const PRIORITY: u32 = 12;

/// The settings of one socket. Each is atomic, and is read by the calls that it is about.
#[derive(Default)]
pub struct Options {
    receive_buffer: AtomicUsize,
    /// Nanoseconds, 0 for no timeout.
    receive_timeout: AtomicU64,
    send_timeout: AtomicU64,
    /// Bits by index in [`KEPT`].
    kept: AtomicU64,
    /// The option of those about time stamps that is set; 0 for none.
    stamps: AtomicU32,
    lingers: AtomicBool,
    linger_seconds: AtomicU64,
    /// SO_BINDTODEVICE names `lo`, by which all packets go anyway.
    on_loopback: AtomicBool,
}

impl Options {
    /// Bytes that the socket may have to receive: only kept.
    pub fn receive_buffer(&self) -> usize {
        match self.receive_buffer.load(Relaxed) {
            0 => SEND_DEFAULT,
            bytes => bytes,
        }
    }

    /// Sets that, to twice the value.
    pub fn set_receive_buffer(&self, bytes: usize) {
        self.receive_buffer
            .store((2 * bytes.min(MOST)).max(RECEIVE_LEAST), Relaxed);
    }

    /// The limit for what was sent that SO_SNDBUF asks for.
    pub fn send_limit(bytes: usize) -> usize {
        (2 * bytes.min(MOST)).max(SEND_LEAST)
    }

    /// Nanoseconds after which a receive (or an accept), or with `send` a send (or a connect), gives up; 0 for never.
    pub fn timeout(&self, send: bool) -> u64 {
        if send {
            self.send_timeout.load(Relaxed)
        } else {
            self.receive_timeout.load(Relaxed)
        }
    }

    /// Sets that.
    pub fn set_timeout(&self, send: bool, ns: u64) {
        if send {
            self.send_timeout.store(ns, Relaxed);
        } else {
            self.receive_timeout.store(ns, Relaxed);
        }
    }

    /// When a call that begins now gives up.
    pub fn deadline(&self, send: bool) -> Deadline {
        match self.timeout(send) {
            0 => Deadline::Never,
            ns => Deadline::after(ns),
        }
    }

    /// A setting that is only kept; `None` if `number` is not one.
    pub fn kept(&self, number: u32) -> Option<bool> {
        let at = KEPT.iter().position(|&n| n == number)?;
        Some(self.kept.load(Relaxed) & 1 << at != 0)
    }

    /// Sets it; returns whether `number` is one.
    pub fn keep(&self, number: u32, on: bool) -> bool {
        let Some(at) = KEPT.iter().position(|&n| n == number) else {
            return false;
        };
        if on {
            self.kept.fetch_or(1 << at, Relaxed);
        } else {
            self.kept.fetch_and(!(1 << at), Relaxed);
        }
        true
    }

    /// The one of the options for time stamps (SO_TIMESTAMP and the like) that is set, by its number; 0 for none.
    pub fn stamps(&self) -> u32 {
        self.stamps.load(Relaxed)
    }

    /// Sets that.
    pub fn set_stamps(&self, number: u32) {
        self.stamps.store(number, Relaxed);
    }

    /// Takes over the settings of a listener.
    pub fn inherit(&self, from: &Options) {
        let words = [
            (&self.receive_timeout, &from.receive_timeout),
            (&self.send_timeout, &from.send_timeout),
            (&self.kept, &from.kept),
            (&self.linger_seconds, &from.linger_seconds),
        ];
        for (own, other) in words {
            own.store(other.load(Relaxed), Relaxed);
        }
        let bytes = from.receive_buffer.load(Relaxed);
        self.receive_buffer.store(bytes, Relaxed);
        self.lingers.store(from.lingers.load(Relaxed), Relaxed);
        self.bind_to_loopback(from.is_on_loopback());
    }

    /// Whether SO_BINDTODEVICE names `lo`.
    pub fn is_on_loopback(&self) -> bool {
        self.on_loopback.load(Relaxed)
    }

    /// Sets that.
    pub fn bind_to_loopback(&self, on: bool) {
        self.on_loopback.store(on, Relaxed);
    }

    /// SO_LINGER: whether, and seconds. Only TCP looks at it.
    pub fn linger(&self) -> (bool, u32) {
        let seconds = self.linger_seconds.load(Relaxed) as u32;
        (self.lingers.load(Relaxed), seconds)
    }

    /// Sets that.
    pub fn set_linger(&self, on: bool, seconds: u32) {
        self.lingers.store(on, Relaxed);
        if on {
            self.linger_seconds.store(seconds.into(), Relaxed);
        }
    }
}
