//! The kernel's command line, parsed as Linux parses it.
//!
//! The kernel takes the options that it has; the code that needs `panic=`, `pantala.exit=`, `maxcpus=` and `lockprof`
//! has read them earlier. Of the other words, `name=value` becomes part of init's environment and the rest become
//! init's arguments, as does everything after `--`.

use alloc::vec::Vec;

use vm::{SharedSuperpages, Superpages};

/// The options on the command line.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The whole command line.
    pub cmdline: Vec<u8>,
    /// `rdinit=` or `init=`: the program to run first.
    pub init: Option<Vec<u8>>,
    /// Arguments for init, after its name.
    pub args: Vec<Vec<u8>>,
    /// Environment for init.
    pub env: Vec<Vec<u8>>,
    /// `selftest`: test the scheduler before init starts.
    pub selftest: bool,
    /// `vmchaos`: remove translations and page tables of random spaces as long as programs run.
    pub vmchaos: bool,
    /// `leakcheck`: account for every frame when init has ended.
    pub leakcheck: bool,
    /// `watchdog_thresh=SECONDS`: after how long the watchdog reports a CPU that takes no interrupts; 0 for no
    /// watchdog. It reports a sleep for a lock after three times that.
    pub watchdog_seconds: u32,
    /// `sections`: raise the timer's interrupt often, to find long sections without preemption.
    pub sections: bool,
    /// `failalloc=N`: make each Nth allocation fail, of those that may fail, once init runs.
    pub failalloc: u32,
    /// `transparent_hugepage=`: which mappings get superpages; `None` if the option is not there or has another value.
    pub superpages: Option<Superpages>,
    /// `transparent_hugepage_shmem=`: which shared memory gets superpages; `None` as above.
    pub shmem_superpages: Option<SharedSuperpages>,
    /// `pv_chunks=N`: most frames of pv entries, 0 for any number.
    #[cfg(any(feature = "pv-obm", feature = "pv-stock"))]
    pub pv_chunks: usize,
}

/// Options of a Linux kernel that [`options`] ignores, so that init does not get them. Most mean nothing here;
/// `panic` and `maxcpus` have been read earlier.
const IGNORED: &[&[u8]] = &[
    b"console",
    b"quiet",
    b"panic",
    b"debug",
    b"loglevel",
    b"ro",
    b"rw",
    b"root",
    b"rootfstype",
    b"rootflags",
    b"rootwait",
    b"maxcpus",
    b"nr_cpus",
    b"nosmp",
    b"mitigations",
    b"pti",
    b"nopti",
    b"kaslr",
    b"nokaslr",
    b"earlyprintk",
    b"earlycon",
    b"cgroup_disable",
    b"noapic",
    b"nolapic",
    b"acpi",
    b"pci",
    b"reboot",
    b"tsc",
    b"clocksource",
    b"lpj",
    b"initrd",
    b"BOOT_IMAGE",
    b"apparmor",
    b"selinux",
    b"security",
    b"nowatchdog",
    b"isolcpus",
    b"nohz",
    b"random.trust_cpu",
    b"printk.time",
    b"ignore_loglevel",
    b"keep_bootcon",
    // Read by the machine layer before this.
    b"lockprof",
];

/// Splits the line into words at blanks. Double quotes keep blanks together and are removed.
fn words(line: &[u8]) -> Vec<Vec<u8>> {
    let mut out: Vec<Vec<u8>> = Vec::new();
    let mut word: Option<Vec<u8>> = None;
    let mut quoted = false;
    for &b in line {
        match b {
            b'"' => {
                quoted = !quoted;
                word.get_or_insert_with(Vec::new);
            }
            b' ' | b'\t' | b'\n' | 0 if !quoted => out.extend(word.take()),
            b => word.get_or_insert_with(Vec::new).push(b),
        }
    }
    out.extend(word);
    out
}

fn number(value: &[u8]) -> Option<i64> {
    core::str::from_utf8(value).ok()?.parse().ok()
}

/// Parses the command line. Needs the heap, so it is called after `mem::init`.
pub fn options(line: &[u8]) -> Options {
    let mut o = Options {
        cmdline: line.to_vec(),
        watchdog_seconds: 10,
        ..Options::default()
    };
    let mut rdinit = None;
    let mut rest = false;
    for word in words(line) {
        if rest {
            o.args.push(word);
            continue;
        }
        let split = word.iter().position(|&b| b == b'=');
        let (name, value) = match split {
            Some(n) => (&word[..n], Some(&word[n + 1..])),
            None => (&word[..], None),
        };
        match (name, value) {
            (b"--", None) => rest = true,
            (b"init", Some(v)) => o.init = Some(v.to_vec()),
            (b"rdinit", Some(v)) => rdinit = Some(v.to_vec()),
            (b"selftest", None) => o.selftest = true,
            (b"vmchaos", None) => o.vmchaos = true,
            (b"leakcheck", None) => o.leakcheck = true,
            (b"sections", None) => o.sections = true,
            (b"failalloc", Some(v)) => {
                o.failalloc = number(v).unwrap_or(0).clamp(0, i64::from(u32::MAX)) as u32
            }
            (b"watchdog_thresh", Some(v)) => {
                o.watchdog_seconds = number(v).unwrap_or(10).clamp(0, 60) as u32
            }
            (b"transparent_hugepage", Some(v)) => o.superpages = Superpages::named(v),
            (b"transparent_hugepage_shmem", Some(v)) => {
                o.shmem_superpages = SharedSuperpages::named(v);
            }
            #[cfg(any(feature = "pv-obm", feature = "pv-stock"))]
            (b"pv_chunks", Some(v)) => {
                o.pv_chunks = number(v).unwrap_or(0).clamp(0, i64::from(u32::MAX)) as usize
            }
            (b"norandmaps", None) => proc::layout::no_aslr(),
            (name, _) if IGNORED.contains(&name) => {}
            // As on Linux, options with a dot are for modules, so init does not get them.
            (name, _) if name.contains(&b'.') => {}
            (_, Some(_)) => o.env.push(word),
            (_, None) => o.args.push(word),
        }
    }
    // The root is always an initramfs, for which `rdinit=` counts, as on Linux.
    o.init = rdinit.or(o.init);
    o
}
