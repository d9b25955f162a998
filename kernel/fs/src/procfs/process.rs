//! /proc/PID and /proc/PID/task/TID: the directory of a process or thread.

use alloc::boxed::Box;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::any::Any;

use proc::CLOCK_TICKS;
use proc::look::Image;
use proc::process::Process;
use proc::rlimit::Resource;
use proc::timers::{self, Notify};
use task::thread::Thread;
use vfs::dynamic::{DynDir, DynFile, Dynamic, Emit, Entry, Text, ino_below};
use vfs::error::{FsError, Result};
use vfs::file::FileRef;
use vfs::inode::{Inode, Node, mode};
use vfs::put;

use super::names::put_comm;
use super::numbers::{digits, number};
use super::whom::{Whom, look, thread, thread_of};
use super::{descriptors, limits, links, login, maps, memory, oom, pagemap, smaps, status, system};

/// The inode of /proc/ID, where `id` is `p`'s pid or the tid of one of its threads.
pub fn directory(dev: u64, root: u64, p: &Arc<Process>, id: u32) -> Arc<Inode> {
    let mut buf = [0; 10];
    let ino = ino_below(root, digits(id, &mut buf));
    Dynamic::Dir(Box::new(Dir {
        whom: Whom {
            process: Arc::downgrade(p),
            tid: id,
        },
        thread: false,
    }))
    .inode(
        dev,
        ino,
        0o555,
        p.shown_owner(thread(p, id).as_deref(), true),
    )
}

type Print = fn(&Arc<Process>, u32, &mut Text) -> Result<()>;
type Store = fn(&Process, u32, &[u8]) -> Result<()>;

/// Kinds of entries.
enum What {
    File(Print, u32),
    /// A file that poll(2) takes for more than one that never blocks. As in Linux, an epoll takes no others of these directories.
    Mounts(Print),
    /// A file that shows more to an opener that may inspect the process; the second function prints it for the others.
    Judged(Print, Print),
    /// A file that can also be written.
    Value(Print, Store),
    /// A file about the memory. Opening it needs permission to inspect the process.
    Memory(memory::Print, u32),
    Pagemap,
    Link(links::Place),
    Fds,
    FdInfos,
    Tasks,
}

/// The entries of /proc/PID. Those marked false are absent from the directory of a thread.
const ENTRIES: &[(&str, What, bool)] = &[
    ("auxv", What::Memory(memory::auxv, 0o400), true),
    (
        "cgroup",
        What::File(|_, _, t| text(t, "0::/\n"), 0o444),
        true,
    ),
    ("cmdline", What::File(memory::cmdline, 0o444), true),
    ("comm", What::File(comm, 0o444), true),
    (
        "coredump_filter",
        What::Value(coredump_filter, set_coredump_filter),
        false,
    ),
    ("cwd", What::Link(links::cwd), true),
    ("environ", What::Memory(memory::environ, 0o400), true),
    ("exe", What::Link(links::exe), true),
    ("fd", What::Fds, true),
    ("fdinfo", What::FdInfos, true),
    ("io", What::File(io, 0o400), true),
    (
        "limits",
        What::File(|p, _, t| limits::limits(p, t), 0o444),
        true,
    ),
    ("loginuid", What::Value(login::uid, login::set_uid), true),
    ("maps", What::Memory(maps::maps, 0o444), true),
    (
        "mountinfo",
        What::Mounts(|_, _, t| system::mountinfo(t)),
        true,
    ),
    ("mounts", What::Mounts(|_, _, t| system::mounts(t)), true),
    (
        "oom_score",
        What::File(|p, _, t| oom::score(p, t), 0o444),
        true,
    ),
    (
        "oom_score_adj",
        What::Value(|p, _, t| oom::adj(p, t), |p, _, data| oom::set_adj(p, data)),
        true,
    ),
    ("pagemap", What::Pagemap, true),
    ("root", What::Link(links::root), true),
    ("sessionid", What::File(login::session, 0o444), true),
    ("smaps", What::Memory(smaps::smaps, 0o444), true),
    ("smaps_rollup", What::Memory(smaps::rollup, 0o444), true),
    ("stat", What::Judged(stat, public_stat), true),
    ("statm", What::File(status::statm, 0o444), true),
    ("status", What::File(status::status, 0o444), true),
    ("task", What::Tasks, false),
    ("timers", What::File(timers, 0o444), false),
    // Where a thread waits in the kernel is told to nobody.
    ("wchan", What::File(|_, _, t| text(t, "0"), 0o444), true),
];

fn text(out: &mut Text, s: &str) -> Result<()> {
    out.push(s.as_bytes());
    Ok(())
}

/// The directory /proc/PID, or that of a thread.
struct Dir {
    whom: Whom,
    thread: bool,
}

impl Dir {
    fn entries(&self) -> impl Iterator<Item = (usize, &'static (&'static str, What, bool))> {
        let thread = self.thread;
        ENTRIES
            .iter()
            .enumerate()
            .filter(move |(_, e)| e.2 || !thread)
    }
}

/// The process whose directory /proc/PID `file` is, in `Some(None)` if its record is gone; it may have been reaped. `None` if
/// the file is another one, /proc/PID/task/TID among them.
pub fn named_by(file: &FileRef) -> Option<Option<Arc<Process>>> {
    let Node::Dynamic(Dynamic::Dir(dir)) = &file.inode()?.node else {
        return None;
    };
    let dir = dir.as_any()?.downcast_ref::<Dir>()?;
    (!dir.thread).then(|| dir.whom.process.upgrade())
}

impl DynDir for Dir {
    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn lookup(&self, this: &Inode, name: &[u8]) -> Result<Arc<Inode>> {
        let p = self.whom.find()?;
        let whom = self.whom.clone();
        let (_, (_, what, _)) = self
            .entries()
            .find(|(_, e)| e.0.as_bytes() == name)
            .ok_or(FsError::NotFound)?;
        let (node, perm) = match what {
            What::File(print, perm) => (PidFile::entry(whom, *print, None, None), *perm),
            What::Mounts(print) => (
                Dynamic::File(Box::new(PidFile {
                    whom,
                    print: *print,
                    public: None,
                    store: None,
                    pollable: true,
                })),
                0o444,
            ),
            What::Judged(print, public) => {
                (PidFile::entry(whom, *print, Some(*public), None), 0o444)
            }
            What::Value(print, store) => (PidFile::entry(whom, *print, None, Some(*store)), 0o644),
            What::Memory(print, perm) => (
                Dynamic::File(Box::new(memory::MemoryFile {
                    whom,
                    print: *print,
                })),
                *perm,
            ),
            What::Pagemap => (Dynamic::File(Box::new(pagemap::Pagemap(whom))), 0o400),
            What::Link(place) => (
                Dynamic::Link(Box::new(links::PidLink {
                    whom,
                    place: *place,
                })),
                0o777,
            ),
            What::FdInfos => (Dynamic::Dir(Box::new(descriptors::FdInfos(whom))), 0o555),
            What::Fds => (Dynamic::Dir(Box::new(links::Fds(whom))), 0o500),
            What::Tasks => (Dynamic::Dir(Box::new(Tasks(whom.process))), 0o555),
        };
        // Only directories that everybody may list have these permissions.
        let owner = p.shown_owner(thread(&p, self.whom.tid).as_deref(), perm == 0o555);
        Ok(node.inode(this.dev, ino_below(this.ino, name), perm, owner))
    }

    fn list(&self, this: &Inode, from: u64, emit: &mut Emit) -> Result<()> {
        self.whom.find_dir()?;
        for (i, (name, what, _)) in self.entries().filter(|(i, _)| *i as u64 + 2 >= from) {
            let kind = match what {
                What::File(..)
                | What::Mounts(..)
                | What::Judged(..)
                | What::Value(..)
                | What::Memory(..)
                | What::Pagemap => mode::REG,
                What::Link(_) => mode::LNK,
                What::Fds | What::FdInfos | What::Tasks => mode::DIR,
            };
            let name = name.as_bytes();
            let ino = ino_below(this.ino, name);
            if !emit(Entry {
                next: i as u64 + 3,
                ino,
                kind,
                name,
            }) {
                break;
            }
        }
        Ok(())
    }
}

struct PidFile {
    whom: Whom,
    print: Print,
    /// What is printed instead for an opener that may not inspect the process.
    public: Option<Print>,
    store: Option<Store>,
    pollable: bool,
}

impl PidFile {
    fn entry(whom: Whom, print: Print, public: Option<Print>, store: Option<Store>) -> Dynamic {
        Dynamic::File(Box::new(PidFile {
            whom,
            print,
            public,
            store,
            pollable: false,
        }))
    }
}

impl DynFile for PidFile {
    fn print(&self, out: &mut Text) -> Result<()> {
        (self.print)(&self.whom.find()?, self.whom.tid, out)
    }

    /// A program that may see more can be made to read, so its opener decides as well.
    fn open(&self, _: u32) -> Result<Option<Box<dyn DynFile>>> {
        let Some(print) = self.public else {
            return Ok(None);
        };
        if look(&*self.whom.find()?, self.whom.tid).is_ok() {
            return Ok(None);
        }
        Ok(Some(Box::new(PidFile {
            whom: self.whom.clone(),
            print,
            public: None,
            store: None,
            pollable: false,
        })))
    }

    fn pollable(&self) -> bool {
        self.pollable
    }

    fn store(&self, data: &[u8]) -> Result<()> {
        let store = self.store.ok_or(FsError::Invalid)?;
        store(&*self.whom.find()?, self.whom.tid, data)
    }
}

/// The directory /proc/PID/task.
struct Tasks(Weak<Process>);

impl Tasks {
    fn process(&self) -> Result<Arc<Process>> {
        let p = self.0.upgrade().filter(|p| !p.is_reaped());
        p.ok_or(FsError::NoProcess)
    }
}

impl DynDir for Tasks {
    fn lookup(&self, this: &Inode, name: &[u8]) -> Result<Arc<Inode>> {
        let p = self.process()?;
        let tid = number(name).ok_or(FsError::NotFound)?;
        // The leader is listed until the process is reaped, even if the leader has ended.
        if tid != p.pid() {
            thread_of(&p, tid).ok_or(FsError::NotFound)?;
        }
        let dir = Dynamic::Dir(Box::new(Dir {
            whom: Whom {
                process: self.0.clone(),
                tid,
            },
            thread: true,
        }));
        let owner = p.shown_owner(thread(&p, tid).as_deref(), true);
        Ok(dir.inode(this.dev, ino_below(this.ino, name), 0o555, owner))
    }

    fn list(&self, this: &Inode, from: u64, emit: &mut Emit) -> Result<()> {
        let mut tids: Vec<u32> = Vec::new();
        let mut room = true;
        let p = self.process().map_err(|_| FsError::NotFound)?;
        p.each_thread(|t| {
            room = tids.try_reserve(1).is_ok();
            if room {
                tids.push(t.tid());
            }
            room
        });
        if !tids.contains(&p.pid()) {
            room = room && tids.try_reserve(1).is_ok();
            if room {
                tids.push(p.pid());
            }
        }
        if !room {
            return Err(FsError::NoMemory);
        }
        tids.sort_unstable();
        for tid in tids.into_iter().filter(|&t| u64::from(t) + 2 >= from) {
            let mut buf = [0; 10];
            let name = digits(tid, &mut buf);
            let next = u64::from(tid) + 3;
            if !emit(Entry {
                next,
                ino: ino_below(this.ino, name),
                kind: mode::DIR,
                name,
            }) {
                break;
            }
        }
        Ok(())
    }
}

/// The name of the thread, or of the process if the thread has ended.
pub(super) fn name_of(p: &Process, tid: u32) -> [u8; 16] {
    thread_of(p, tid).map_or_else(|| p.comm(), |t| t.comm())
}

fn coredump_filter(p: &Arc<Process>, tid: u32, out: &mut Text) -> Result<()> {
    // A process without memory has none.
    if look(p, tid).is_ok_and(|image| image.space.is_none()) {
        return Ok(());
    }
    put!(out, "{:08x}\n", p.coredump_filter());
    Ok(())
}

/// A number in decimal, octal (0) or hexadecimal notation (0x); of its bits Linux's nine count.
fn set_coredump_filter(p: &Process, _: u32, data: &[u8]) -> Result<()> {
    const KNOWN: u32 = 0x1ff;
    let text = core::str::from_utf8(data).map_err(|_| FsError::Invalid)?;
    let text = text.strip_suffix('\n').unwrap_or(text);
    let (digits, radix) = match text.strip_prefix("0x") {
        Some(digits) => (digits, 16),
        None if text.len() > 1 && text.starts_with('0') => (text, 8),
        None => (text, 10),
    };
    let bits = u32::from_str_radix(digits, radix).map_err(|_| FsError::Invalid)?;
    p.set_coredump_filter(bits & KNOWN);
    Ok(())
}

/// Prints the POSIX timers, as proc(5) says.
fn timers(p: &Arc<Process>, tid: u32, out: &mut Text) -> Result<()> {
    look(p, tid)?;
    let all = timers::all(p).map_err(|_| FsError::NoMemory)?;
    for (id, spec) in all {
        let (how, whom, number) = match spec.notify {
            Notify::Nobody => ("none", "pid", p.pid()),
            Notify::Process => ("signal", "pid", p.pid()),
            Notify::Thread(tid) => ("signal", "tid", tid),
        };
        let value = spec.value.unwrap_or(id.into());
        let (signo, clock) = (spec.signo, spec.clock);
        put!(
            out,
            "ID: {id}\nsignal: {signo}/{value:016x}\nnotify: {how}/{whom}.{number}\nClockID: {clock}\n"
        );
    }
    Ok(())
}

fn comm(p: &Arc<Process>, tid: u32, out: &mut Text) -> Result<()> {
    put_comm(out, &name_of(p, tid));
    out.push(b"\n");
    Ok(())
}

fn io(p: &Arc<Process>, tid: u32, out: &mut Text) -> Result<()> {
    look(p, tid)?;
    for name in [
        "rchar",
        "wchar",
        "syscr",
        "syscw",
        "read_bytes",
        "write_bytes",
        "cancelled_write_bytes",
    ] {
        put!(out, "{name}: 0\n");
    }
    Ok(())
}

/// The state letter of a thread of `p`: 'Z' for a leader that has ended, and for every thread of a zombie, whose last
/// thread can still be found until it has left its CPU.
pub(super) fn letter(p: &Process, t: Option<&Thread>) -> char {
    match t {
        Some(t) if !p.is_zombie() => t.state_letter() as char,
        _ => 'Z',
    }
}

/// Prints stat for the caller.
fn stat(p: &Arc<Process>, tid: u32, out: &mut Text) -> Result<()> {
    put_stat(p, tid, look(p, tid).ok(), out)
}

/// Prints stat without addresses.
fn public_stat(p: &Arc<Process>, tid: u32, out: &mut Text) -> Result<()> {
    put_stat(p, tid, None, out)
}

/// What stat shows of a thread's priority: that with which it runs, its nice value, its own real-time priority and its policy. Zeroes and
/// the usual priority for one that has ended.
fn priorities(t: Option<&Thread>) -> [i32; 4] {
    let Some(t) = t else { return [20, 0, 0, 0] };
    let (nice, setting) = (i32::from(t.nice()), t.setting());
    let priority = match t.priority() {
        0 => 20 + nice,
        real_time => -1 - i32::from(real_time),
    };
    [
        priority,
        nice,
        setting.priority.into(),
        setting.policy as i32,
    ]
}

/// Prints stat, with addresses only if `shown`, the memory that the caller may inspect, is given.
fn put_stat(p: &Process, tid: u32, shown: Option<Image>, out: &mut Text) -> Result<()> {
    let thread = thread_of(p, tid);
    let ticks = |ns: u64| ns / (1_000_000_000 / CLOCK_TICKS);
    let (times, children) = (p.times(), p.child_times());
    let permitted = shown.is_some();
    let Image {
        space,
        program,
        brk,
    } = shown.unwrap_or_else(|| p.image());
    let usage = space
        .as_ref()
        .map(|s| s.usage(mem::vm()))
        .unwrap_or_default();
    let terminal = p.session().and_then(|session| session.terminal());
    let (tty, front) = terminal.map_or((0, -1), |t| (t.number(), i64::from(t.foreground())));
    let [priority, nice, own_priority, policy] = priorities(thread.as_deref());
    put!(out, "{tid} (");
    put_comm(out, &name_of(p, tid));
    put!(
        out,
        ") {} {} {} {} ",
        letter(p, thread.as_deref()),
        p.ppid(),
        p.pgid(),
        p.sid()
    );
    put!(
        out,
        "{tty} {front} 4194304 {} {} ",
        times.minor_faults,
        children.minor_faults
    );
    put!(out, "{} {} ", times.major_faults, children.major_faults);
    put!(out, "{} {} ", ticks(times.user_ns), ticks(times.sys_ns));
    put!(
        out,
        "{} {} ",
        ticks(children.user_ns),
        ticks(children.sys_ns)
    );
    put!(
        out,
        "{priority} {nice} {} 0 {} ",
        p.threads_shown(),
        ticks(p.start_ns())
    );
    put!(
        out,
        "{} {} {} ",
        usage.mapped * 4096,
        usage.resident,
        p.rlimit(Resource::Rss)
    );
    // Without permission to inspect the process, the caller gets no addresses. For the code it gets 1 or 0: whether
    // there is any.
    let code = match (permitted, space) {
        (true, _) => program.code,
        (false, Some(_)) => (1, 1),
        (false, None) => (0, 0),
    };
    let only = |address: u64| if permitted { address } else { 0 };
    let stack = only(program.stack_start);
    put!(out, "{} {} {stack} 0 0 ", code.0, code.1);
    // The first four would show signals as obsolete 32-bit masks, so they are 0; `status` has the full masks. The last is
    // the signal that the parent gets: SIGCHLD.
    put!(out, "0 0 0 0 0 0 0 17 ");
    let cpu = thread.as_ref().map_or(0, |t| t.cpu());
    put!(out, "{cpu} {own_priority} {policy} 0 0 0 ");
    for address in [
        program.data.0,
        program.data.1,
        brk.start,
        program.args.0,
        program.args.1,
        program.env().0,
        program.env().1,
    ] {
        put!(out, "{} ", only(address));
    }
    out.push(b"0\n");
    Ok(())
}
