//! sysfs: processors, memory nodes, and the settings of the VM.

use alloc::boxed::Box;
use alloc::format;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use cred::Payer;
use hal::cpu;
use vfs::dentry::Dentry;
use vfs::dynamic::{DynDir, DynFile, Dynamic, Emit, Entry, Fixed, FixedDir, Text, ino_below};
use vfs::error::{FsError, Result};
use vfs::inode::{Inode, mode};
use vfs::mount::new_dev;
use vfs::put;
use vfs::superblock::{FsKind, Super};
use vm::{Machine, Pfn, SharedSuperpages, Superpages};

type Tree = &'static [(&'static str, Fixed)];

const ROOT: Tree = &[
    ("block", Fixed::Dir(&[])),
    ("bus", Fixed::Dir(&[])),
    ("class", Fixed::Dir(&[])),
    ("dev", Fixed::Dir(&[])),
    ("devices", Fixed::Dir(&[("system", Fixed::Dir(SYSTEM))])),
    ("fs", Fixed::Dir(&[("cgroup", Fixed::Dir(&[]))])),
    ("kernel", Fixed::Dir(KERNEL)),
];

const SYSTEM: Tree = &[
    (
        "cpu",
        Fixed::Made(|| {
            Box::new(Numbered {
                fixed: CPUS,
                name: "cpu",
                count: cpu::count,
                entries: CPU,
            })
        }),
    ),
    (
        "node",
        Fixed::Made(|| {
            Box::new(Numbered {
                fixed: NODES,
                name: "node",
                count: nodes,
                entries: NODE,
            })
        }),
    ),
];

const KERNEL: Tree = &[
    (
        "debug",
        Fixed::Private(&[
            (
                "fail_page_alloc",
                Fixed::Dir(&[("interval", Fixed::Setting(failures, set_failures))]),
            ),
            (
                "fault_around_bytes",
                Fixed::Setting(fault_around, set_fault_around),
            ),
            ("look_for_use", Fixed::Setting(looks, look_for_use)),
        ]),
    ),
    (
        "mm",
        Fixed::Dir(&[(
            "transparent_hugepage",
            Fixed::Dir(&[
                ("defrag", Fixed::Setting(defrag, set_defrag)),
                ("enabled", Fixed::Setting(superpages, set_superpages)),
                ("hpage_pmd_size", Fixed::File(|t| text(t, "2097152\n"))),
                (
                    "shmem_enabled",
                    Fixed::Setting(shmem_superpages, set_shmem_superpages),
                ),
                // What a read finds untouched gets a page of its own.
                ("use_zero_page", Fixed::File(|t| text(t, "0\n"))),
            ]),
        )]),
    ),
];

const CPUS: Tree = &[
    ("isolated", Fixed::File(|t| text(t, "\n"))),
    ("kernel_max", Fixed::File(|t| text(t, "255\n"))),
    ("offline", Fixed::File(|t| text(t, "\n"))),
    ("online", Fixed::File(|t| range(t, cpu::count()))),
    ("possible", Fixed::File(|t| range(t, cpu::count()))),
    ("present", Fixed::File(|t| range(t, cpu::count()))),
];

const NODES: Tree = &[
    ("has_cpu", Fixed::File(|t| range(t, nodes()))),
    ("has_memory", Fixed::File(|t| range(t, nodes()))),
    ("online", Fixed::File(|t| range(t, nodes()))),
    ("possible", Fixed::File(|t| range(t, nodes()))),
];

/// The subdirectories of a CPU or node, by name, with the files of each. The name "" puts the files into the
/// directory itself.
type Entries = &'static [(&'static str, Files)];
/// The files of such a directory: the name, and the function that prints the content for a CPU's or node's number.
type Files = &'static [(&'static str, fn(usize, &mut Text))];

const CPU: Entries = &[(
    "topology",
    &[
        ("core_cpus", |i, t| mask(t, core::iter::once(i))),
        ("core_cpus_list", |i, t| put!(t, "{i}\n")),
        ("core_id", |i, t| put!(t, "{i}\n")),
        ("core_siblings", |i, t| mask(t, package(i))),
        ("core_siblings_list", package_list),
        ("package_cpus", |i, t| mask(t, package(i))),
        ("package_cpus_list", package_list),
        ("physical_package_id", |i, t| put!(t, "{}\n", cpu::node(i))),
        ("thread_siblings", |i, t| mask(t, core::iter::once(i))),
        ("thread_siblings_list", |i, t| put!(t, "{i}\n")),
    ],
)];

/// The CPUs of CPU `i`'s package. Each NUMA node counts as one package.
fn package(i: usize) -> impl Iterator<Item = usize> {
    (0..cpu::count()).filter(move |&c| cpu::node(c) == cpu::node(i))
}

fn package_list(i: usize, out: &mut Text) {
    put_list(out, package(i));
    out.push(b"\n");
}

const NODE: Entries = &[(
    "",
    &[
        ("cpulist", |i, t| {
            put_list(t, (0..cpu::count()).filter(|&c| cpu::node(c) == i));
            t.push(b"\n");
        }),
        ("cpumap", |i, t| {
            mask(t, (0..cpu::count()).filter(|&c| cpu::node(c) == i))
        }),
        ("distance", distance),
        ("meminfo", node_meminfo),
    ],
)];

/// A new sysfs.
pub fn new_super() -> Result<Arc<Super>> {
    let dev = new_dev();
    let root = Dynamic::Dir(Box::new(FixedDir(ROOT))).inode(dev, 1, 0o555, (0, 0));
    Ok(Arc::new(Super {
        kind: FsKind::Sysfs,
        dev,
        root: Dentry::new(None, b"", root, Payer::NOBODY),
        quota: None,
        inodes: None,
    }))
}

fn text(out: &mut Text, s: &str) -> Result<()> {
    out.push(s.as_bytes());
    Ok(())
}

fn nodes() -> usize {
    mem::vm().machine.ndomains()
}

fn range(out: &mut Text, n: usize) -> Result<()> {
    put_list(out, 0..n);
    out.push(b"\n");
    Ok(())
}

/// Prints ascending numbers as a list of ranges: `0-3,5`.
pub fn put_list(out: &mut Text, numbers: impl Iterator<Item = usize>) {
    let mut open: Option<(usize, usize)> = None;
    let mut first = true;
    let mut close = |out: &mut Text, run: Option<(usize, usize)>| {
        let Some((a, b)) = run else {
            return;
        };
        if !core::mem::take(&mut first) {
            out.push(b",");
        }
        if a == b {
            put!(out, "{a}");
        } else {
            put!(out, "{a}-{b}");
        }
    };
    for n in numbers {
        open = match open {
            Some((a, b)) if b + 1 == n => Some((a, n)),
            run => {
                close(out, run);
                Some((n, n))
            }
        };
    }
    close(out, open);
}

/// Prints numbers below 256 as a bit mask in words of 32 bits, highest word first.
fn mask(out: &mut Text, numbers: impl Iterator<Item = usize>) {
    let mut words = [0u32; 8];
    for n in numbers.filter(|&n| n < 256) {
        words[n / 32] |= 1 << (n % 32);
    }
    let used = cpu::count().div_ceil(32).clamp(1, 8);
    for (i, w) in words[..used].iter().enumerate().rev() {
        put!(out, "{w:08x}{}", if i > 0 { "," } else { "\n" });
    }
}

fn distance(node: usize, out: &mut Text) {
    for other in 0..nodes() {
        let gap = if other > 0 { " " } else { "" };
        put!(out, "{gap}{}", mem::vm().machine.distance(node, other));
    }
    out.push(b"\n");
}

fn node_meminfo(node: usize, out: &mut Text) {
    let (free, total) = mem::vm().alloc.domain_pages(node);
    for (name, pages) in [
        ("MemTotal:", total),
        ("MemFree:", free),
        ("MemUsed:", total - free.min(total)),
    ] {
        put!(out, "Node {node} {name:<15} {:>8} kB\n", pages * 4);
    }
}

fn fault_around(out: &mut Text) -> Result<()> {
    put!(out, "{}\n", mem::vm().fault_around());
    Ok(())
}

fn set_fault_around(data: &[u8]) -> Result<()> {
    let text = core::str::from_utf8(data).map_err(|_| FsError::Invalid)?;
    let bytes: u64 = text.trim().parse().map_err(|_| FsError::Invalid)?;
    if bytes > 2 << 20 {
        return Err(FsError::Invalid);
    }
    mem::vm().set_fault_around(bytes);
    Ok(())
}

/// Pages that the last look for use found, and the signs of use that it counted and cleared.
static LOOKED: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

fn looks(out: &mut Text) -> Result<()> {
    let [pages, signs] = LOOKED.each_ref().map(|n| n.load(Relaxed));
    put!(out, "{pages} {signs}\n");
    Ok(())
}

/// Looks at each page of the machine, for measurements; ends early with the caller's process.
fn look_for_use(_: &[u8]) -> Result<()> {
    let (vm, mut pages, mut signs) = (mem::vm(), 0, 0);
    for pfn in 0..vm.pages.len() as u32 {
        if vm.machine.must_stop() {
            break;
        }
        if let Some(found) = vm.look_for_use(Pfn(pfn)) {
            pages += 1;
            signs += found;
        }
    }
    LOOKED[0].store(pages, Relaxed);
    LOOKED[1].store(signs, Relaxed);
    Ok(())
}

/// Prints the names of a setting's values, that of the present value in brackets.
fn choices<T: PartialEq>(out: &mut Text, names: &[(&str, T)], now: &T) -> Result<()> {
    for (n, (name, which)) in names.iter().enumerate() {
        let (open, close) = if which == now { ("[", "]") } else { ("", "") };
        put!(out, "{}{open}{name}{close}", if n == 0 { "" } else { " " });
    }
    put!(out, "\n");
    Ok(())
}

/// Whether faults wait until a free run of frames has been made: they never do.
const DEFRAG: [(&str, bool); 5] = [
    ("always", false),
    ("defer", false),
    ("defer+madvise", false),
    ("madvise", false),
    ("never", true),
];

fn defrag(out: &mut Text) -> Result<()> {
    choices(out, &DEFRAG, &true)
}

/// Accepts the value that is in effect.
fn set_defrag(data: &[u8]) -> Result<()> {
    let known = DEFRAG
        .iter()
        .find(|(name, _)| name.as_bytes() == value(data));
    known
        .filter(|(_, kept)| *kept)
        .map(|_| ())
        .ok_or(FsError::Invalid)
}

/// What was written to a setting, without the end of the line.
fn value(data: &[u8]) -> &[u8] {
    data.strip_suffix(b"\n").unwrap_or(data)
}

fn superpages(out: &mut Text) -> Result<()> {
    choices(out, &Superpages::NAMES, &mem::vm().superpages())
}

fn shmem_superpages(out: &mut Text) -> Result<()> {
    choices(out, &SharedSuperpages::NAMES, &mem::vm().shmem_superpages())
}

fn set_shmem_superpages(data: &[u8]) -> Result<()> {
    let which = SharedSuperpages::named(value(data)).ok_or(FsError::Invalid)?;
    mem::vm().set_shmem_superpages(which);
    Ok(())
}

fn set_superpages(data: &[u8]) -> Result<()> {
    let which = Superpages::named(data.trim_ascii_end()).ok_or(FsError::Invalid)?;
    mem::vm().set_superpages(which);
    Ok(())
}

fn failures(out: &mut Text) -> Result<()> {
    put!(out, "{}\n", mem::vm().alloc.injector_period());
    Ok(())
}

fn set_failures(data: &[u8]) -> Result<()> {
    let text = core::str::from_utf8(data).map_err(|_| FsError::Invalid)?;
    mem::fail_allocations(text.trim().parse().map_err(|_| FsError::Invalid)?);
    Ok(())
}

/// A directory with fixed entries, and one subdirectory for each CPU or node: `cpu0`, `cpu1`, ...
struct Numbered {
    fixed: Tree,
    name: &'static str,
    count: fn() -> usize,
    entries: Entries,
}

impl DynDir for Numbered {
    fn lookup(&self, this: &Inode, name: &[u8]) -> Result<Arc<Inode>> {
        let digits = name.strip_prefix(self.name.as_bytes()).unwrap_or(b"");
        let number = core::str::from_utf8(digits)
            .ok()
            .and_then(|d| d.parse::<usize>().ok());
        // Of the texts that are a number, only the one that `list` shows: no sign, no leading zero.
        let canonical = digits == b"0" || !digits.starts_with(b"0") && !digits.starts_with(b"+");
        match number.filter(|&n| n < (self.count)() && canonical) {
            Some(n) => {
                let dir = match self.entries {
                    // The files are in this directory itself.
                    [("", files)] => Dynamic::Dir(Box::new(Things { n, files })),
                    entries => Dynamic::Dir(Box::new(Thing { n, entries })),
                };
                Ok(dir.inode(this.dev, ino_below(this.ino, name), 0o555, (0, 0)))
            }
            None => FixedDir(self.fixed).lookup(this, name),
        }
    }

    fn list(&self, this: &Inode, from: u64, emit: &mut Emit) -> Result<()> {
        let fixed = self.fixed.len() as u64 + 2;
        let mut full = false;
        if from < fixed {
            FixedDir(self.fixed).list(this, from, &mut |e| {
                full = !emit(e);
                !full
            })?;
        }
        for n in from.saturating_sub(fixed) as usize..(self.count)() {
            let name = format!("{}{n}", self.name);
            let ino = ino_below(this.ino, name.as_bytes());
            let next = fixed + n as u64 + 1;
            if full
                || !emit(Entry {
                    next,
                    ino,
                    kind: mode::DIR,
                    name: name.as_bytes(),
                })
            {
                break;
            }
        }
        Ok(())
    }
}

/// The directory of one CPU or node, with subdirectories.
struct Thing {
    n: usize,
    entries: Entries,
}

impl DynDir for Thing {
    fn lookup(&self, this: &Inode, name: &[u8]) -> Result<Arc<Inode>> {
        let (_, files) = self
            .entries
            .iter()
            .find(|(n, _)| n.as_bytes() == name)
            .ok_or(FsError::NotFound)?;
        let dir = Dynamic::Dir(Box::new(Things { n: self.n, files }));
        Ok(dir.inode(this.dev, ino_below(this.ino, name), 0o555, (0, 0)))
    }

    fn list(&self, this: &Inode, from: u64, emit: &mut Emit) -> Result<()> {
        for (i, (name, _)) in self.entries.iter().enumerate().skip(from as usize - 2) {
            let name = name.as_bytes();
            let ino = ino_below(this.ino, name);
            if !emit(Entry {
                next: i as u64 + 3,
                ino,
                kind: mode::DIR,
                name,
            }) {
                break;
            }
        }
        Ok(())
    }
}

/// A directory with files of one CPU or node.
struct Things {
    n: usize,
    files: Files,
}

struct ThingFile(usize, fn(usize, &mut Text));

impl DynFile for ThingFile {
    fn print(&self, out: &mut Text) -> Result<()> {
        (self.1)(self.0, out);
        Ok(())
    }
}

impl DynDir for Things {
    fn lookup(&self, this: &Inode, name: &[u8]) -> Result<Arc<Inode>> {
        let (_, print) = self
            .files
            .iter()
            .find(|(n, _)| n.as_bytes() == name)
            .ok_or(FsError::NotFound)?;
        let file = Dynamic::File(Box::new(ThingFile(self.n, *print)));
        Ok(file.inode(this.dev, ino_below(this.ino, name), 0o444, (0, 0)))
    }

    fn list(&self, this: &Inode, from: u64, emit: &mut Emit) -> Result<()> {
        for (i, (name, _)) in self.files.iter().enumerate().skip(from as usize - 2) {
            let name = name.as_bytes();
            let ino = ino_below(this.ino, name);
            if !emit(Entry {
                next: i as u64 + 3,
                ino,
                kind: mode::REG,
                name,
            }) {
                break;
            }
        }
        Ok(())
    }
}
