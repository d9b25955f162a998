//! Rows of the tables of NETLINK_ROUTE, as messages: interfaces, their addresses, routes, and the rules that choose tables of routes.
//!
//! There are the attributes that say something of this machine. As in /proc/net/dev, the numbers of packets are 0: there are none.

use super::message::{Answer, Writer};
use crate::inet::endpoint::{Family, Ip};
use crate::interface::{Fate, Interface, Prefix, Route};

/// Kinds of messages: an interface, an address, a route, a rule.
const NEWLINK: u16 = 16;
const NEWADDR: u16 = 20;
const NEWROUTE: u16 = 24;
const NEWRULE: u16 = 32;

/// The most bytes of a message.
pub const LONGEST: usize = 1024;

/// The table of routes that the kernel fills.
pub const LOCAL_TABLE: u32 = 255;
/// The table of routes that programs fill.
pub const MAIN_TABLE: u32 = 254;
/// The table that is looked into last.
const DEFAULT_TABLE: u32 = 253;
/// RT_SCOPE_HOST, RT_SCOPE_LINK.
const SCOPE_HOST: u8 = 254;
const SCOPE_LINK: u8 = 253;
/// RTPROT_KERNEL.
pub const BY_KERNEL: u8 = 2;
/// IFA_F_PERMANENT.
const PERMANENT: u32 = 0x80;
/// RTM_F_CLONED: an answer about one address. And flags of such an answer about an address of IPv4: RTCF_LOCAL, RTCF_BROADCAST.
const CLONED: u32 = 0x200;
const CACHED_LOCAL: u32 = 0x8000_0000;
const CACHED_BROADCAST: u32 = 0x1000_0000;

/// Attributes of an interface, named as in rtnetlink(7) without their prefix `IFLA_`.
mod link {
    pub const ADDRESS: u16 = 1;
    pub const BROADCAST: u16 = 2;
    pub const IFNAME: u16 = 3;
    pub const MTU: u16 = 4;
    pub const QDISC: u16 = 6;
    pub const STATS: u16 = 7;
    pub const TXQLEN: u16 = 13;
    pub const OPERSTATE: u16 = 16;
    pub const LINKMODE: u16 = 17;
    pub const STATS64: u16 = 23;
    pub const GROUP: u16 = 27;
    pub const PROMISCUITY: u16 = 30;
    pub const NUM_TX_QUEUES: u16 = 31;
    pub const NUM_RX_QUEUES: u16 = 32;
    pub const CARRIER: u16 = 33;
    pub const CARRIER_CHANGES: u16 = 35;
    pub const PROTO_DOWN: u16 = 39;
}

/// Numbers in a struct rtnl_link_stats and a struct rtnl_link_stats64.
const STATISTICS: usize = 24;
const STATISTICS64: usize = 25;

/// An interface, as `family` sees it: AF_INET6 shows less.
pub fn interface(out: &mut Writer, answer: Answer, interface: &Interface, family: u8) {
    let message = out.begin(NEWLINK, answer);
    out.put(&[family, 0]);
    out.put(&interface.hardware.to_ne_bytes());
    for word in [interface.index, interface.flags, 0] {
        out.put(&word.to_ne_bytes());
    }
    out.text(link::IFNAME, interface.name);
    out.word(link::MTU, interface.mtu);
    out.attribute(link::ADDRESS, &interface.address);
    // It is not known whether packets arrive, and this says so.
    out.attribute(link::OPERSTATE, &[0]);
    if u16::from(family) != Family::V6.number() {
        out.word(link::TXQLEN, interface.queue);
        out.attribute(link::LINKMODE, &[0]);
        out.word(link::GROUP, 0);
        out.word(link::PROMISCUITY, 0);
        out.word(link::NUM_TX_QUEUES, 1);
        out.word(link::NUM_RX_QUEUES, 1);
        out.attribute(link::CARRIER, &[1]);
        out.word(link::CARRIER_CHANGES, 0);
        out.attribute(link::PROTO_DOWN, &[0]);
        out.attribute(link::BROADCAST, &[0; 6]);
        out.text(link::QDISC, b"noqueue");
        out.attribute(link::STATS64, &[0; 8 * STATISTICS64]);
        out.attribute(link::STATS, &[0; 4 * STATISTICS]);
    }
    out.end(message);
}

/// The family's number, and the bytes of an address as that family has them: the last ones.
fn parts(ip: &Ip) -> (u8, &[u8]) {
    match ip.as_v4() {
        Some(_) => (Family::V4.number() as u8, &ip.0[12..]),
        None => (Family::V6.number() as u8, &ip.0),
    }
}

/// An address of an interface.
pub fn address(out: &mut Writer, answer: Answer, interface: &Interface, prefix: &Prefix) {
    const ADDRESS: u16 = 1;
    const LOCAL: u16 = 2;
    const LABEL: u16 = 3;
    const CACHEINFO: u16 = 6;
    const FLAGS: u16 = 8;
    const PROTO: u16 = 11;
    /// IFAPROT_KERNEL_LO: the kernel has given it to a loopback interface.
    const OF_LOOPBACK: u8 = 1;
    let (family, bytes) = parts(&prefix.ip);
    let message = out.begin(NEWADDR, answer);
    out.put(&[family, prefix.len, PERMANENT as u8, SCOPE_HOST]);
    out.put(&interface.index.to_ne_bytes());
    out.attribute(ADDRESS, bytes);
    if bytes.len() == 4 {
        out.attribute(LOCAL, bytes);
        out.text(LABEL, interface.name);
    } else {
        out.attribute(PROTO, &[OF_LOOPBACK]);
    }
    out.word(FLAGS, PERMANENT);
    // It is preferred, and valid, for ever, and was made when the machine started.
    let times = [u32::MAX, u32::MAX, 0, 0].map(u32::to_ne_bytes);
    out.attribute(CACHEINFO, times.as_flattened());
    out.end(message);
}

/// Attributes of a route, as for [`link`]: `RTA_`.
mod rta {
    pub const DST: u16 = 1;
    pub const SRC: u16 = 2;
    pub const OIF: u16 = 4;
    pub const PRIORITY: u16 = 6;
    pub const PREFSRC: u16 = 7;
    pub const CACHEINFO: u16 = 12;
    pub const TABLE: u16 = 15;
    pub const PREF: u16 = 20;
    pub const UID: u16 = 25;
}

/// How often the kernel refers to a route, and how often and when it was used, which nobody counts.
const CACHE: [u8; 32] = [0; 32];

/// The eight bytes at the beginning of a struct rtmsg.
struct Start {
    family: u8,
    to: u8,
    from: u8,
    table: u32,
    by: u8,
    scope: u8,
    fate: Fate,
}

impl Start {
    fn put(&self, out: &mut Writer, flags: u32) {
        let table = self.table as u8;
        out.put(&[self.family, self.to, self.from, 0, table]);
        out.put(&[self.by, self.scope, self.fate as u8]);
        out.put(&flags.to_ne_bytes());
    }
}

/// A route.
pub fn route(out: &mut Writer, answer: Answer, row: &Route) {
    let (family, bytes) = parts(&row.to.ip);
    let v4 = bytes.len() == 4;
    let message = out.begin(NEWROUTE, answer);
    Start {
        family,
        to: row.to.len,
        from: 0,
        table: LOCAL_TABLE,
        by: BY_KERNEL,
        scope: match row.fate {
            _ if !v4 => 0,
            Fate::Local => SCOPE_HOST,
            Fate::Broadcast => SCOPE_LINK,
        },
        fate: row.fate,
    }
    .put(out, 0);
    out.word(rta::TABLE, LOCAL_TABLE);
    out.attribute(rta::DST, bytes);
    if let Some(source) = &row.source {
        out.attribute(rta::PREFSRC, parts(source).1);
    }
    if !v4 {
        out.word(rta::PRIORITY, 0);
        out.attribute(rta::CACHEINFO, &CACHE);
        out.attribute(rta::PREF, &[0]);
    }
    out.word(rta::OIF, row.interface);
    out.end(message);
}

/// What was asked about the way to one address.
pub struct Asked {
    /// The address.
    pub to: Ip,
    /// The address that a packet is to come from.
    pub from: Option<Ip>,
    /// The table is to be named: for addresses of IPv4 it else is the main one.
    pub table: bool,
    /// The user.
    pub uid: u32,
}

/// The way to one address, by a route.
pub fn way(out: &mut Writer, answer: Answer, asked: &Asked, by: &Route) {
    let (family, to) = parts(&asked.to);
    let v4 = to.len() == 4;
    let whole = 8 * to.len() as u8;
    let table = if v4 && !asked.table {
        MAIN_TABLE
    } else {
        LOCAL_TABLE
    };
    let message = out.begin(NEWROUTE, answer);
    Start {
        family,
        to: whole,
        from: if v4 && asked.from.is_none() { 0 } else { whole },
        table,
        by: if v4 { 0 } else { BY_KERNEL },
        scope: 0,
        fate: by.fate,
    }
    .put(
        out,
        match by.fate {
            _ if !v4 => 0,
            Fate::Local => CLONED | CACHED_LOCAL,
            Fate::Broadcast => CLONED | CACHED_LOCAL | CACHED_BROADCAST,
        },
    );
    out.word(rta::TABLE, table);
    out.attribute(rta::DST, to);
    let from = asked.from.unwrap_or(Ip::ANY6);
    if !v4 || asked.from.is_some() {
        out.attribute(rta::SRC, parts(&from).1);
    }
    out.word(rta::OIF, by.interface);
    if !v4 || asked.from.is_none() {
        let source = by.source.unwrap_or(asked.to.source());
        out.attribute(rta::PREFSRC, parts(&source).1);
    }
    if v4 {
        out.word(rta::UID, asked.uid);
    } else {
        out.word(rta::PRIORITY, 0);
        out.attribute(rta::PREF, &[0]);
    }
    out.attribute(rta::CACHEINFO, &CACHE);
    out.end(message);
}

/// A rule: packets of a family look into a table, in the order of the priorities.
#[derive(Clone, Copy)]
pub struct Rule {
    family: Family,
    priority: u32,
    table: u32,
}

const fn rule_of(family: Family, priority: u32, table: u32) -> Rule {
    Rule {
        family,
        priority,
        table,
    }
}

/// The rules that Linux begins with.
const RULES: [Rule; 5] = [
    rule_of(Family::V4, 0, LOCAL_TABLE),
    rule_of(Family::V4, 32_766, MAIN_TABLE),
    rule_of(Family::V4, 32_767, DEFAULT_TABLE),
    rule_of(Family::V6, 0, LOCAL_TABLE),
    rule_of(Family::V6, 32_766, MAIN_TABLE),
];

/// The rules of a family, or of all.
pub fn rules(family: Option<Family>) -> impl Iterator<Item = Rule> {
    let fits = move |rule: &Rule| family.is_none_or(|family| family == rule.family);
    RULES.into_iter().filter(fits)
}

/// A rule.
pub fn rule(out: &mut Writer, answer: Answer, row: Rule) {
    /// FR_ACT_TO_TBL: look into the table.
    const LOOK_INTO: u8 = 1;
    const PRIORITY: u16 = 6;
    const SUPPRESS_PREFIXLEN: u16 = 14;
    const TABLE: u16 = 15;
    const PROTOCOL: u16 = 21;
    let family = row.family.number() as u8;
    let message = out.begin(NEWRULE, answer);
    out.put(&[family, 0, 0, 0, row.table as u8, 0, 0, LOOK_INTO]);
    out.put(&[0; 4]);
    out.word(TABLE, row.table);
    out.word(SUPPRESS_PREFIXLEN, u32::MAX);
    out.attribute(PROTOCOL, &[BY_KERNEL]);
    if row.priority != 0 {
        out.word(PRIORITY, row.priority);
    }
    out.end(message);
}
