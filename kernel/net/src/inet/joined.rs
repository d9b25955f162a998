//! How many sockets with a peer have a port, by all that a bind to it asks of them.
//!
//! Guarantee: a question takes as many steps as there are users with such sockets, however many sockets, addresses and peers they have.

use alloc::collections::BTreeMap;
use core::ops::Bound::{self, Excluded, Included};

use super::endpoint::{Endpoint, Ip};

/// What a socket allows others at its port.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rules {
    /// The kernel has chosen the port, together with the peer.
    pub auto: bool,
    /// SO_REUSEADDR.
    pub reuse: bool,
    /// SO_REUSEPORT.
    pub share: bool,
    /// The user, with SO_REUSEPORT; else 0.
    pub uid: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    port: u16,
    rules: Rules,
    ip: Ip,
}

/// Bytes of what is known of the sockets of one kind.
pub(super) const BYTES: usize = 2 * size_of::<(Kind, usize)>();

const FIRST: Ip = Ip([0; 16]);
const LAST: Ip = Ip([255; 16]);
const FIRST4: Ip = Ip::ANY4;
const LAST4: Ip = Ip::v4([255; 4]);

/// The sockets with peers of one shard.
#[derive(Default)]
pub(super) struct Joined(BTreeMap<Kind, usize>);

impl Rules {
    fn permit(&self, new: &Rules) -> bool {
        new.share && self.share && new.uid == self.uid || new.reuse && self.reuse
    }
}

impl Joined {
    /// None.
    pub const fn new() -> Joined {
        Joined(BTreeMap::new())
    }

    /// Counts a socket.
    pub fn add(&mut self, Endpoint { ip, port }: Endpoint, rules: Rules) {
        *self.0.entry(Kind { port, rules, ip }).or_insert(0) += 1;
    }

    /// A socket that was counted is gone.
    pub fn remove(&mut self, Endpoint { ip, port }: Endpoint, rules: Rules) {
        let kind = Kind { port, rules, ip };
        if let Some(count) = self.0.get_mut(&kind) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(&kind);
            }
        }
    }

    /// The rules of a port's sockets, each once.
    fn rules(&self, port: u16) -> impl Iterator<Item = Rules> {
        let none = Rules {
            auto: false,
            reuse: false,
            share: false,
            uid: 0,
        };
        let mut from = Included(Kind {
            port,
            rules: none,
            ip: FIRST,
        });
        core::iter::from_fn(move || {
            let (kind, _) = self.0.range((from, Bound::Unbounded)).next()?;
            from = Excluded(Kind { ip: LAST, ..*kind });
            (kind.port == port).then_some(kind.rules)
        })
    }

    fn has(&self, port: u16, rules: Rules, (first, last): (Bound<Ip>, Bound<Ip>)) -> bool {
        let at = |ip| Kind { port, rules, ip };
        let range = (first.map(at), last.map(at));
        self.0.range(range).next().is_some()
    }

    /// Whether all sockets that a new one would meet at this endpoint allow it. `only_v6`: the address of all of IPv6 does not stand for those of IPv4.
    pub fn allow(&self, Endpoint { ip, port }: Endpoint, only_v6: bool, new: &Rules) -> bool {
        let one = (Included(ip), Included(ip));
        let (ranges, count) = match ip {
            Ip::ANY4 => ([(Included(FIRST4), Included(LAST4)), one], 1),
            Ip::ANY6 if only_v6 => (
                [
                    (Included(FIRST), Excluded(FIRST4)),
                    (Excluded(LAST4), Included(LAST)),
                ],
                2,
            ),
            Ip::ANY6 => ([(Included(FIRST), Included(LAST)), one], 1),
            _ => ([one, one], 1),
        };
        let meets = |rules| {
            let mut ranges = ranges[..count].iter();
            ranges.any(|&range| self.has(port, rules, range))
        };
        let mut rules = self.rules(port);
        rules.all(|rules| rules.permit(new) || !meets(rules))
    }

    /// Whether the kernel has chosen the port for all of them, together with the peer.
    pub fn are_auto(&self, port: u16) -> bool {
        self.rules(port).all(|rules| rules.auto)
    }
}
