//! The kernel's counts, read with as little disturbance as possible: no allocation between two readings.

use user::sys;

/// CPUs whose counts are kept.
const CPUS: usize = 16;
/// The most lock classes whose counts are read.
const LOCKS: usize = 96;
/// The size of the buffer for a file of /proc/pantala.
const TEXT: usize = 64 << 10;

/// The counts of /proc/pantala/cpu that the tests check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Count {
    Timer,
    Reschedule,
    Call,
    Device,
    IntrNs,
    IdleNs,
    UserNs,
    SysNs,
    Ipis,
    Execs,
    Vforks,
    Threads,
    ZeroFill,
    Resident,
    Upgraded,
    CowCopy,
    CowMove,
    Around,
    Forks,
    FlushSent,
    FlushTargets,
    FlushAvoided,
    PagesLocal,
    PagesRemote,
    PagesCached,
    SpinNs,
    SleepNs,
}

const NAMES: [&[u8]; 27] = [
    b"timer",
    b"reschedule",
    b"call",
    b"device",
    b"intr_ns",
    b"idle_ns",
    b"user_ns",
    b"sys_ns",
    b"ipis",
    b"execs",
    b"vforks",
    b"threads",
    b"zero_fill",
    b"resident",
    b"upgraded",
    b"cow_copy",
    b"cow_move",
    b"around",
    b"forks",
    b"flush_sent",
    b"flush_targets",
    b"flush_avoided",
    b"pages_local",
    b"pages_remote",
    b"pages_cached",
    b"spin_ns",
    b"sleep_ns",
];

/// The counts of a lock class: acquisitions, contended ones, nanoseconds stalled, longest hold.
pub type Lock = [i64; 4];

/// All counts at one moment, or their increase.
#[derive(Clone)]
pub struct Counts {
    cpus: [[i64; NAMES.len()]; CPUS],
    /// A hash of the class's name, and its counts.
    locks: [(u64, Lock); LOCKS],
}

/// FNV-1a.
fn hash(name: &[u8]) -> u64 {
    let step = |h: u64, &b: &u8| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3);
    name.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// The pairs `name=value` of a line; a quoted value may contain blanks.
fn pairs(line: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let mut rest = line;
    std::iter::from_fn(move || {
        let equals = rest.iter().position(|&b| b == b'=')?;
        let (name, value) = (&rest[..equals], &rest[equals + 1..]);
        let (value, after) = match value.strip_prefix(b"\"") {
            Some(quoted) => {
                let end = quoted.iter().position(|&b| b == b'"')?;
                (&quoted[..end], &quoted[end + 1..])
            }
            None => {
                let end = value.iter().position(|&b| b == b' ').unwrap_or(value.len());
                value.split_at(end)
            }
        };
        rest = after.trim_ascii_start();
        Some((name, value))
    })
}

fn number(digits: &[u8]) -> i64 {
    let step = |n: i64, &b: &u8| n * 10 + i64::from(b.wrapping_sub(b'0'));
    digits
        .iter()
        .take_while(|b| b.is_ascii_digit())
        .fold(0, step)
}

/// Reads a file of /proc/pantala and passes each line to `f`.
fn each_line(name: &str, mut f: impl FnMut(&[u8])) {
    let mut text = [0; TEXT];
    let mut used = 0;
    if let Ok(fd) = sys::open(name, libc::O_RDONLY, 0) {
        while let Ok(n @ 1..) = sys::read(fd, &mut text[used..]) {
            used += n;
        }
        let _ = sys::close(fd);
    }
    text[..used]
        .split(|&b| b == b'\n')
        .filter(|line| !line.is_empty())
        .for_each(&mut f);
}

/// How many lines a file of /proc/pantala has.
pub fn lines(name: &str) -> usize {
    let mut n = 0;
    each_line(&format!("/proc/pantala/{name}"), |_| n += 1);
    n
}

/// Free pages in a node's lists.
pub fn free_pages(node: i64) -> i64 {
    let mut free = 0;
    each_line("/proc/pantala/node", |line| {
        let of = |wanted: &[u8]| {
            pairs(line)
                .find(|(name, _)| *name == wanted)
                .map(|(_, v)| number(v))
        };
        if of(b"node") == Some(node) {
            free = of(b"free").unwrap_or(0);
        }
    });
    free
}

/// The value of a word in a CPU's line.
pub fn word(cpu: usize, wanted: &str) -> String {
    let (mut at, mut found) = (0, String::new());
    each_line("/proc/pantala/cpu", |line| {
        if at == cpu
            && let Some((_, value)) = pairs(line).find(|(name, _)| *name == wanted.as_bytes())
        {
            found = String::from_utf8_lossy(value).into_owned();
        }
        at += 1;
    });
    found
}

impl Counts {
    /// All zero.
    pub const fn new() -> Counts {
        Counts {
            cpus: [[0; NAMES.len()]; CPUS],
            locks: [(0, [0; 4]); LOCKS],
        }
    }

    /// Reads them.
    pub fn take(&mut self) {
        let mut cpu = 0;
        each_line("/proc/pantala/cpu", |line| {
            if cpu < CPUS {
                for (name, value) in pairs(line) {
                    if let Some(at) = NAMES.iter().position(|known| *known == name) {
                        self.cpus[cpu][at] = number(value);
                    }
                }
            }
            cpu += 1;
        });
        let mut at = 0;
        each_line("/proc/pantala/locks", |line| {
            let slot = &mut self.locks[at.min(LOCKS - 1)];
            for (name, value) in pairs(line) {
                match name {
                    b"name" => slot.0 = hash(value),
                    b"acquired" => slot.1[0] = number(value),
                    b"contended" => slot.1[1] = number(value),
                    b"stall_ns" => slot.1[2] = number(value),
                    b"longest_ns" => slot.1[3] = number(value),
                    _ => {}
                }
            }
            at += 1;
        });
    }

    /// The increase since `before`.
    pub fn since(&self, before: &Counts) -> Counts {
        let mut grown = self.clone();
        for (cpu, old) in grown.cpus.iter_mut().zip(&before.cpus) {
            cpu.iter_mut().zip(old).for_each(|(new, old)| *new -= old);
        }
        for (class, counts) in &mut grown.locks {
            let old = before.locks.iter().find(|(of, _)| of == class);
            if let Some((_, old)) = old {
                counts
                    .iter_mut()
                    .zip(old)
                    .for_each(|(new, old)| *new -= old);
            }
        }
        grown
    }

    /// A count of one CPU.
    pub fn of(&self, cpu: usize, count: Count) -> i64 {
        self.cpus[cpu.min(CPUS - 1)][count as usize]
    }

    /// A count of all CPUs.
    pub fn sum(&self, count: Count) -> i64 {
        self.cpus.iter().map(|cpu| cpu[count as usize]).sum()
    }

    /// Nanoseconds waited for locks of all classes.
    pub fn stalled(&self) -> i64 {
        self.locks.iter().map(|(_, counts)| counts[2]).sum()
    }

    /// The counts of a lock class.
    pub fn lock(&self, name: &str) -> Lock {
        let class = hash(name.as_bytes());
        self.locks
            .iter()
            .find(|(of, _)| *of == class)
            .map_or([0; 4], |(_, counts)| *counts)
    }
}
