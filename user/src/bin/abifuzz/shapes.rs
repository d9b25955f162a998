//! Structures that system calls read, filled with plausible numbers and live objects.
//!
//! Mechanism: each is built in [`Bytes`] and copied to the next place of [`Scratch`]. No place begins a page, so that no call
//! which wants a page's address changes the mapping.

use crate::arena::PAGE;
use crate::live::Live;
use crate::random::Random;
use user::sys;

/// The bytes of one structure.
pub struct Bytes {
    data: [u64; Bytes::SIZE as usize / 8],
    len: usize,
}

impl Bytes {
    /// The most bytes.
    const SIZE: u64 = 320;

    /// No bytes yet.
    pub fn new() -> Bytes {
        Bytes {
            data: [0; Bytes::SIZE as usize / 8],
            len: 0,
        }
    }

    /// The bytes of them.
    pub fn len(&self) -> u64 {
        self.len as u64
    }

    /// Their address.
    pub fn address(&self) -> u64 {
        self.data.as_ptr().expose_provenance() as u64
    }

    fn byte(&mut self, byte: u8) -> &mut Self {
        if self.len < Bytes::SIZE as usize {
            self.data[self.len / 8] |= u64::from(byte) << (self.len % 8 * 8);
            self.len += 1;
        }
        self
    }

    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        for &byte in bytes {
            self.byte(byte);
        }
        self
    }

    /// Appends a number of two bytes.
    pub fn u16(&mut self, number: u16) -> &mut Self {
        self.bytes(&number.to_ne_bytes())
    }

    /// Appends a number of four bytes.
    pub fn u32(&mut self, number: u32) -> &mut Self {
        self.bytes(&number.to_ne_bytes())
    }

    /// Appends a number of eight bytes.
    pub fn u64(&mut self, number: u64) -> &mut Self {
        self.bytes(&number.to_ne_bytes())
    }

    /// A name of AF_UNIX: a path in the round's directory for even numbers, else an abstract one.
    pub fn unix(&mut self, me: u64, which: u64) -> &mut Self {
        self.u16(libc::AF_UNIX as u16);
        if which % 2 == 1 {
            self.byte(0).bytes(b"abifuzz-").u32(me as u32);
        } else {
            self.byte(b's');
        }
        self.byte(b'a' + which as u8);
        if which.is_multiple_of(2) {
            self.byte(0);
        }
        self
    }

    /// A port of 127.0.0.1.
    pub fn inet(&mut self, port: u16) -> &mut Self {
        self.u16(libc::AF_INET as u16).u16(port.to_be());
        self.bytes(&[127, 0, 0, 1]).u64(0)
    }

    /// A struct sigevent: by signal, none, or to a thread.
    pub fn sigevent(&mut self, random: &mut Random, me: u64) -> &mut Self {
        let signal = [libc::SIGALRM as u32, 34 + random.below(30) as u32][random.below(2) as usize];
        let notify = [0, 1, 4][random.below(3) as usize];
        self.u64(random.next())
            .u32(signal)
            .u32(notify)
            .u64(me)
            .u64(0)
            .u64(0)
    }
}

/// The kinds of structures.
#[derive(Clone, Copy, Debug)]
pub enum Shape {
    /// A socket's name.
    Name,
    /// A length that the call reads and writes.
    Length,
    /// An array of struct iovec.
    Vectors,
    /// One struct msghdr, or an array of struct mmsghdr.
    Message,
    Event,
    Itimer,
    Time,
    SemOps,
    SemValues,
    MessageText,
    Clone,
    Netlink,
    Signals,
    SigEvent,
    Polls,
    Word,
    Waiters,
    Lock,
    Number,
    Path,
}

/// All of them.
const SHAPES: &[Shape] = &[
    Shape::Name,
    Shape::Length,
    Shape::Vectors,
    Shape::Message,
    Shape::Event,
    Shape::Itimer,
    Shape::Time,
    Shape::SemOps,
    Shape::SemValues,
    Shape::MessageText,
    Shape::Clone,
    Shape::Netlink,
    Shape::Signals,
    Shape::SigEvent,
    Shape::Polls,
    Shape::Word,
    Shape::Waiters,
    Shape::Lock,
    Shape::Number,
    Shape::Path,
];

/// Memory for structures.
pub struct Scratch {
    base: u64,
    next: u64,
}

impl Scratch {
    const PAGES: u64 = 8;
    /// Bytes between structures.
    const STEP: u64 = 384;

    /// Maps it, and no memory behind it.
    pub fn new() -> Option<Scratch> {
        let rw = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let base = sys::mmap(0, (Scratch::PAGES + 1) * PAGE, rw, flags, -1, 0).ok()?;
        let end = base + Scratch::PAGES * PAGE;
        sys::call(libc::SYS_mprotect, &[end, PAGE, libc::PROT_NONE as u64]).ok()?;
        Some(Scratch { base, next: 0 })
    }

    /// Where `bytes` are now.
    fn put(&mut self, bytes: &Bytes) -> u64 {
        let places = (Scratch::PAGES * PAGE - 64) / Scratch::STEP;
        let mut at = self.base + 64 + self.next * Scratch::STEP;
        self.next = (self.next + 1) % places;
        if at.is_multiple_of(PAGE) {
            at += 32;
        }
        for (i, word) in bytes.data.iter().enumerate() {
            sys::poke64(at + i as u64 * 8, *word);
        }
        at
    }

    /// A structure of any kind.
    pub fn any(&mut self, random: &mut Random, live: &Live) -> u64 {
        let shape = SHAPES[random.below(SHAPES.len() as u64) as usize];
        self.make(shape, random, live)
    }

    /// A structure of this kind.
    pub fn make(&mut self, shape: Shape, random: &mut Random, live: &Live) -> u64 {
        // Numbers of its own: the ones after it do not depend on how many the structure takes.
        let random = &mut Random(random.next());
        let mut bytes = Bytes::new();
        match shape {
            Shape::Name => name(&mut bytes, random, live),
            Shape::Vectors => self.vectors(&mut bytes, random, live),
            Shape::Message => self.message(&mut bytes, random, live),
            Shape::Clone => self.clone_args(&mut bytes, random, live),
            Shape::Netlink => netlink(&mut bytes, random, live),
            Shape::Polls => {
                for _ in 0..8 {
                    bytes
                        .u32(live.fd(random) as u32)
                        .u32(random.next() as u32 & 0x3fff);
                }
            }
            Shape::Waiters => {
                for _ in 0..4 {
                    let word = self.make(Shape::Word, random, live);
                    bytes
                        .u64(random.below(2))
                        .u64(word)
                        .u32([2, 130][random.below(2) as usize])
                        .u32(0);
                }
            }
            Shape::SigEvent => {
                bytes.sigevent(random, live.me);
            }
            Shape::Itimer | Shape::Time | Shape::Signals | Shape::Path => {
                wait_or_path(shape, &mut bytes, random)
            }
            _ => numbers(shape, &mut bytes, random, live),
        }
        self.put(&bytes)
    }

    fn vectors(&mut self, bytes: &mut Bytes, random: &mut Random, live: &Live) {
        for _ in 0..16 {
            let base = match random.below(32) {
                0 => 0,
                1 => random.next(),
                2..6 => live.page(random),
                _ => self.base + 64 + random.below(Scratch::PAGES * PAGE / 2),
            };
            let len = match random.below(64) {
                0 => u64::MAX >> random.below(64),
                1 => PAGE * random.below(20),
                2 => random.below(70_000),
                3..20 => 0,
                _ => random.below(200),
            };
            bytes.u64(base).u64(len);
        }
    }

    /// A struct mmsghdr, whose begin is a struct msghdr, and another.
    fn message(&mut self, bytes: &mut Bytes, random: &mut Random, live: &Live) {
        for _ in 0..2 {
            let to = match random.below(3) {
                0 | 1 => 0,
                _ => self.make(Shape::Name, random, live),
            };
            let vectors = match random.below(4) {
                0 => {
                    let mut one = Bytes::new();
                    let at = self.make(Shape::Netlink, random, live);
                    one.u64(at).u64(random.below(120));
                    self.put(&one)
                }
                _ => self.make(Shape::Vectors, random, live),
            };
            let mut control = Bytes::new();
            ancillary(&mut control, random, live);
            let len = match random.below(16) {
                0 => random.below(300),
                1 => random.next(),
                2..5 => 0,
                _ => control.len(),
            };
            let at = self.put(&control);
            bytes
                .u64(to)
                .u64(name_length(random))
                .u64(vectors)
                .u64(random.below(5));
            bytes.u64(at).u64(len).u64(0).u64(0);
        }
    }

    /// A struct clone_args that shares no memory: the child would continue on the same stack.
    fn clone_args(&mut self, bytes: &mut Bytes, random: &mut Random, live: &Live) {
        let flags = (random.next() & random.next() & random.next()) & 0xffff_feff;
        let word = self.make(Shape::Word, random, live);
        bytes
            .u64(flags & !(libc::CLONE_VM as u64))
            .u64(word)
            .u64(word)
            .u64(word);
        bytes
            .u64([17, 0, 10, random.below(70)][random.below(4) as usize])
            .u64(0)
            .u64(0)
            .u64(0);
        bytes
            .u64([0, 0, word][random.below(3) as usize])
            .u64(random.below(3))
            .u64(live.fd(random));
    }
}

/// Structures of numbers alone.
fn numbers(shape: Shape, bytes: &mut Bytes, random: &mut Random, live: &Live) {
    match shape {
        Shape::Length => {
            bytes
                .u32([0, 2, 8, 12, 16, 28, 110, 128, u32::MAX, 1 << 20][random.below(10) as usize]);
        }
        Shape::Event => {
            bytes
                .u32(random.next() as u32 & random.next() as u32)
                .u64(random.next());
        }
        Shape::SemOps => {
            for _ in 0..4 {
                let by = (random.below(7) as i16 - 3) as u16;
                let flags = [0, 0x800, 0x1000, 0x1800][random.below(4) as usize];
                bytes.u16(random.below(7) as u16).u16(by).u16(flags);
            }
        }
        Shape::SemValues => (0..16).for_each(|_| {
            bytes.u16(random.below(9) as u16);
        }),
        Shape::MessageText => {
            bytes.u64(random.below(5));
            (0..30).for_each(|_| {
                bytes.u64(random.next());
            });
        }
        Shape::Word => {
            bytes
                .u32([0, 1, live.me as u32, 1 << 31][random.below(4) as usize])
                .u32(0);
        }
        Shape::Lock => {
            bytes
                .u16(random.below(3) as u16)
                .u16(random.below(3) as u16)
                .u32(0);
            bytes.u64(random.below(100)).u64(random.below(100)).u64(0);
        }
        Shape::Number => {
            bytes.u64(number(random)).u64(number(random));
        }
        _ => {}
    }
}

/// Times, sets of signals, paths.
fn wait_or_path(shape: Shape, bytes: &mut Bytes, random: &mut Random) {
    match shape {
        Shape::Itimer => {
            time(bytes, random);
            time(bytes, random);
        }
        Shape::Time => {
            time(bytes, random);
        }
        Shape::Signals => {
            // Mostly without SIGALRM, which wakes the round.
            let alarm = [1 << (libc::SIGALRM - 1), 0][random.below(16) as usize / 15];
            bytes.u64([0, u64::MAX, random.next(), 255][random.below(4) as usize] & !alarm);
        }
        Shape::Path => {
            let path: &[u8] = [
                &b"f"[..],
                b"g",
                b".",
                b"sa",
                b"/dev/ptmx",
                b"/proc/self/fd/5",
                b"/proc/self/mem",
                b"x",
                b"d/e",
            ][random.below(9) as usize];
            bytes.bytes(path);
        }
        _ => {}
    }
}

/// A plausible length or offset.
pub fn number(random: &mut Random) -> u64 {
    let any = random.next();
    [
        0,
        1,
        4,
        8,
        16,
        100,
        PAGE,
        any % 70_000,
        1 << (any % 64),
        any,
        any % 70_000,
        any % 300,
    ][random.below(12) as usize]
}

/// Lengths of names: right ones and others.
pub fn name_length(random: &mut Random) -> u64 {
    match random.below(12) {
        0 => random.below(200),
        1 => [0xffff_ffff, 0, 1, 2, 129, 15][random.below(6) as usize],
        2..7 => 16,
        7..9 => 28,
        9 => 12,
        _ => [110, 128, 4, 14][random.below(4) as usize],
    }
}

fn name(bytes: &mut Bytes, random: &mut Random, live: &Live) {
    match random.below(8) {
        0..3 => {
            bytes.unix(live.me, random.below(8));
        }
        3 | 4 => {
            bytes.inet([live.port, live.port, 0, 1][random.below(4) as usize]);
        }
        5 => {
            bytes
                .u16(libc::AF_INET6 as u16)
                .u16(live.port.to_be())
                .u32(0);
            bytes.u64(0).u64(1 << 56).u32(0);
        }
        6 => {
            bytes.u16(libc::AF_NETLINK as u16).u16(0);
            bytes
                .u32([0, 0, live.me as u32][random.below(3) as usize])
                .u32(random.below(2) as u32);
        }
        _ => {
            bytes
                .u16(random.below(50) as u16)
                .u64(random.next())
                .u64(random.next());
        }
    }
}

/// A struct timespec of at most some milliseconds, or one that is none.
fn time<'a>(bytes: &'a mut Bytes, random: &mut Random) -> &'a mut Bytes {
    let (seconds, nanoseconds) = [
        (0, 0),
        (0, 1),
        (0, random.below(3_000_000)),
        (0, random.below(3_000_000)),
        (0, 1_000_000_000),
        (u64::MAX, 5),
        (u64::MAX >> 1, 0),
        (random.next(), random.next()),
    ][random.below(8) as usize];
    bytes.u64(seconds).u64(nanoseconds)
}

/// Control messages: descriptors, credentials, others, of right and wrong lengths.
fn ancillary(bytes: &mut Bytes, random: &mut Random, live: &Live) {
    for _ in 0..random.below(3) {
        let wrong = match random.below(16) {
            0 => random.next(),
            1 => random.below(9),
            _ => 0,
        };
        match random.below(3) {
            0 => {
                let count = random.below(5);
                bytes
                    .u64((16 + 4 * count).wrapping_add(wrong))
                    .u32(libc::SOL_SOCKET as u32)
                    .u32(1);
                (0..count).for_each(|_| {
                    bytes.u32(live.fd(random) as u32);
                });
                if count % 2 == 1 {
                    bytes.u32(0);
                }
            }
            1 => {
                bytes
                    .u64(28u64.wrapping_add(wrong))
                    .u32(libc::SOL_SOCKET as u32)
                    .u32(2);
                bytes
                    .u32(live.pid(random) as u32)
                    .u32([0, 65534][random.below(2) as usize])
                    .u32(0)
                    .u32(0);
            }
            _ => {
                bytes
                    .u64(20u64.wrapping_add(wrong))
                    .u32([0, 1, 17, 41][random.below(4) as usize]);
                bytes.u32(random.below(60) as u32).u64(random.next());
            }
        }
    }
}

/// Messages of NETLINK_ROUTE: requests with attributes, of right and wrong lengths.
fn netlink(bytes: &mut Bytes, random: &mut Random, live: &Live) {
    for _ in 0..=random.below(2) {
        let body = [0, 1, 8, 12, 16, 16, 24, random.below(60)][random.below(8) as usize];
        let wrong = [0, 0, 0, random.next() & 0xff, u64::MAX][random.below(5) as usize];
        let kind = [16 + random.below(20), 18, 22, 26, random.below(100)][random.below(5) as usize];
        let flags = [1, 0x301, 0x305, 5, random.below(1 << 16)][random.below(5) as usize];
        let attributes = random.below(4);
        let len = 16 + body.div_ceil(4) * 4 + attributes * 8;
        bytes
            .u32(len.wrapping_add(wrong) as u32)
            .u16(kind as u16)
            .u16(flags as u16);
        bytes
            .u32(random.below(1000) as u32)
            .u32([0, live.me as u32][random.below(2) as usize]);
        for at in 0..body.div_ceil(4) * 4 {
            let family = [0, 2, 10, 1][random.below(4) as usize];
            let some = [0, 0, 1, random.next() as u8][random.below(4) as usize];
            bytes.byte(if at == 0 { family } else { some });
        }
        for _ in 0..attributes {
            let len = [8, 8, 8, 4, random.below(40)][random.below(5) as usize];
            bytes
                .u16(len as u16)
                .u16(random.below(40) as u16)
                .u32(random.below(20) as u32);
        }
    }
}
