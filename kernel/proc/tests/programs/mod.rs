//! Programs with memory, threads and files, for tests that need more than the kernel of `support`.
#![allow(dead_code, unused_imports, reason = "no test uses all of it")]

pub mod elf;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

use cred::{AfterExec, Cred, SetIds};
use elfload::AuxInfo;
use elfload::stack::Strings;
use hal::sim::program;
use hal::uaccess::UserPtr;
use hal::uio::IoBuf;
use hal::{UserFrame, context};
use mem::{Space, vm};
use proc::exec::{self, ExecFailed, PRIVILEGED_STACK};
use proc::fork::{self, CloneArgs, ForkError};
use proc::image::{self, ExecError, Loaded, Manner, Places, Request};
use proc::signal::{self, Action, SigInfo, SigSet};
use proc::wait4::Children;
use proc::{CredentialsExt, Resource, UserThreadExt, exit, ids, with_fs, with_space};
use task::current::current;
use task::time;
use vfs::file::{FileRef, o};
use vfs::setattr::{self, NewMode};
use vm::space::{MapArgs, Source};
use vm::{EntryFlags, MapProt, ObjectRef};
use vm_host::random::Random;

pub use crate::support::THREAD;
use crate::support::{clone_with, exited, fork, me, nap, on, thread_entry, user_mode, wait};

/// Bytes of a page.
pub const PAGE: u64 = elfload::PAGE;
/// Where a program's memory begins that it may write.
pub const MEMORY: u64 = 0x1000_0000;
/// Where tests map memory that processes share.
pub const SHARED: u64 = 0x2000_0000;
/// Nanoseconds of a millisecond.
pub const MS: u64 = 1_000_000;

/// A number that a test's processes change and read.
pub fn count() -> Arc<AtomicU32> {
    Arc::default()
}

/// The numbers of a seed, which may be small.
pub fn seeded(seed: u64) -> Random {
    Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
}

/// Runs `body` as the program of a process with memory, which is the only child of init.
pub fn with_memory(cpus: usize, body: impl Fn() + Send + Sync + 'static) {
    on(cpus, move || in_child(body));
}

/// As [`with_memory`], on a machine that runs already: the caller waits for the child.
pub fn in_child(body: impl Fn() + Send + Sync + 'static) {
    let child = fork(move || {
        take_memory();
        body();
        0
    });
    assert_eq!(wait(Children::Pid(child)), Ok((child, exited(0))));
}

/// The credentials of a program that the caller executes, whose file sets these ids.
pub fn after_exec(set: SetIds) -> AfterExec {
    current().cred().after_exec(set, || false)
}

/// A program with sixteen pages that it may write from [`MEMORY`] on, and nothing else.
pub fn loaded() -> Loaded {
    let space = Space::new(vm()).expect("memory for a space");
    let args = MapArgs::anon(16 * PAGE, MapProt::READ | MapProt::WRITE).at(MEMORY);
    space.map(vm(), &args).expect("memory for a mapping");
    // Others may make the file at the same time.
    drop(open("/plain", o::RDONLY | o::CREAT));
    Loaded {
        space,
        file: image::open(b"/plain").expect("an executable file"),
        readable: true,
        entry: MEMORY,
        sp: MEMORY + 16 * PAGE,
        places: Places::default(),
    }
}

/// Gives the calling process the memory of [`loaded`], as an execve of such a program does.
pub fn take_memory() {
    let mut frame = UserFrame::default();
    let done = exec::commit(
        loaded(),
        b"plain",
        after_exec(SetIds::default()),
        &mut frame,
    );
    assert_eq!(done, Ok(()));
}

/// As [`take_memory`]. The first word is present: no schedule of a model is spent on the first touch.
pub fn take_word() {
    take_memory();
    store(MEMORY, 0);
}

/// Maps a page of `object`, shared, at `addr` in the calling process.
pub fn map_shared(object: &ObjectRef, addr: u64) {
    let args = MapArgs {
        flags: EntryFlags::SHARED,
        source: Source::Object(object, 0),
        ..MapArgs::anon(PAGE, MapProt::READ | MapProt::WRITE).at(addr)
    };
    let mapped = with_space(|space| space.map(vm(), &args));
    assert_eq!(mapped, Some(Ok(addr)));
}

/// Maps a page of new memory at [`SHARED`], which children of the caller share.
pub fn share_memory() {
    let object = ObjectRef::new_shared(vm(), PAGE).expect("memory for an object");
    map_shared(&object, SHARED);
    object.release(vm());
}

/// Reads a word of the caller's memory.
pub fn load(addr: u64) -> Option<u32> {
    UserPtr::<u32>::new(addr).read().ok()
}

/// Writes a word of the caller's memory.
pub fn store(addr: u64, value: u32) {
    let done = UserPtr::<u32>::new(addr).write(&value);
    assert!(done.is_ok(), "no memory at {addr:#x}");
}

/// Writes a double word of the caller's memory.
pub fn store_long(addr: u64, value: u64) {
    let done = UserPtr::<u64>::new(addr).write(&value);
    assert!(done.is_ok(), "no memory at {addr:#x}");
}

/// clone(2) with these arguments: the new thread runs `body` and exits by itself with the code that it returns.
pub fn clone_thread(
    args: CloneArgs,
    body: impl Fn() -> u32 + Send + Sync + 'static,
) -> Result<u32, ForkError> {
    fork::clone(&args, &UserFrame::new_user(thread_entry(body), 0), None)
}

/// Starts a thread of the calling process.
pub fn thread(body: impl Fn() + Send + Sync + 'static) -> u32 {
    try_thread(body).expect("memory for a thread")
}

/// As [`thread`], in a process that may be ending.
pub fn try_thread(body: impl Fn() + Send + Sync + 'static) -> Result<u32, ForkError> {
    let args = CloneArgs {
        flags: THREAD,
        ..CloneArgs::default()
    };
    let run = move || {
        body();
        0
    };
    clone_thread(args, run)
}

/// A fork whose parent gets the signal `signo` when the child ends.
pub fn fork_with(signo: u8, flags: u64, body: impl Fn() -> u8 + Send + Sync + 'static) -> u32 {
    let args = CloneArgs {
        flags,
        exit_signal: signo,
        ..CloneArgs::default()
    };
    clone_with(&args, 0, body).expect("memory for a process")
}

/// Whether the thread sleeps, and has for a millisecond.
pub fn is_asleep(tid: u32) -> bool {
    ids::find_thread(tid).is_some_and(|t| t.sleeps_since(MS, time::monotonic_ns()))
}

/// Waits until the thread sleeps.
pub fn until_asleep(tid: u32) {
    until(|| is_asleep(tid));
}

/// Waits until the thread has ended.
pub fn join(tid: u32) {
    until(|| task::ids::hold_thread(tid).is_none());
}

/// Waits until `done` holds.
pub fn until(done: impl Fn() -> bool) {
    while !done() {
        nap(1);
        user_mode();
    }
}

/// A word that threads change and read.
pub fn cell() -> Arc<AtomicU64> {
    Arc::default()
}

/// Adds one, and returns the number before.
pub fn next(count: &AtomicU32) -> u32 {
    count.fetch_add(1, SeqCst)
}

/// Gives a signal a handler. No test lets a handler run: the signal stays pending until it is taken.
pub fn catch(signo: u8) {
    let action = Action {
        handler: MEMORY,
        ..Action::default()
    };
    signal::set_action(&me(), signo, action);
}

/// Takes a pending signal of the caller or its process.
pub fn take(signo: u8) -> Option<SigInfo> {
    signal::take(&current(), SigSet::one(signo))
}

/// Whether the signal is pending for the caller or its process.
pub fn is_pending(signo: u8) -> bool {
    signal::pending(&current()).has(signo)
}

/// The state of a file: a user's open file, or `None` if there is no such file.
pub fn open(path: &str, flags: u32) -> Option<FileRef> {
    with_fs(|fs| {
        let cred = current().cred();
        let mode = NewMode::exact(0o755);
        vfs::open::open(&fs.walk(&cred), path.as_bytes(), flags, mode, &|| Ok(())).ok()
    })
    .flatten()
}

/// Makes a file with these permissions.
pub fn create(path: &str, perm: u32) -> FileRef {
    let file = open(path, o::RDWR | o::CREAT | o::EXCL).expect("a new file");
    let inode = file.inode().expect("a file with a name").clone();
    setattr::chmod(&Cred::root(), &inode, perm).expect("the owner");
    file
}

/// Makes an executable file of these bytes.
pub fn install_bytes(path: &str, perm: u32, bytes: &[u8]) {
    let file = create(path, 0o755);
    let written = file.write_at(&mut IoBuf::Drain(bytes), 0);
    assert_eq!(written, Ok(bytes.len()));
    let inode = file.inode().expect("a file with a name").clone();
    setattr::chmod(&Cred::root(), &inode, perm).expect("the owner");
}

/// Makes a program of `body`, which gets the registers that it starts with. It exits with the status that it returns.
pub fn install(path: &str, perm: u32, body: impl Fn(&mut UserFrame) -> u8 + Send + Sync + 'static) {
    let entry = program::add(move |frame| {
        let status = body(frame);
        user_mode();
        exit::exit_group(u32::from(status))
    });
    install_bytes(path, perm, &elf::program(entry));
}

/// Makes user `uid` and group `gid` the owners of a file, and sets its permissions.
pub fn give_file(path: &str, (uid, gid): (u32, u32), perm: u32) {
    let file = open(path, o::RDONLY).expect("the file");
    let inode = file.inode().expect("a file with a name").clone();
    let root = Cred::root();
    setattr::chown(&root, &inode, Some(uid), Some(gid)).expect("root");
    setattr::chmod(&root, &inode, perm).expect("root");
}

/// Why execve did not run a program.
#[derive(Debug, PartialEq, Eq)]
pub enum Refused {
    Exec(ExecError),
    Failed(ExecFailed),
}

/// A list of strings, for execve.
pub fn strings(all: &[&str]) -> Strings {
    let mut list = Strings::new();
    for one in all {
        list.push(one.as_bytes(), 1 << 20)
            .expect("memory for strings");
    }
    list
}

/// execve(2) up to the program's first instruction: returns the registers that it starts with.
pub fn execute(path: &str, args: &[&str], env: &[&str]) -> Result<UserFrame, Refused> {
    let mut frame = UserFrame::default();
    let request = Request {
        file: image::open(path.as_bytes()).map_err(|e| Refused::Exec(ExecError::File(e)))?,
        name: path.as_bytes().to_vec(),
        hidden: false,
        argv: strings(args),
        envp: strings(env),
        limit: 1 << 20,
    };
    let found = image::find(request).map_err(Refused::Exec)?;
    let mut unshared = None;
    let after = current().cred().after_exec(found.file().set_ids(), || {
        unshared = with_fs(|fs| fs.keep_unshared()).flatten();
        unshared.is_none()
    });
    let manner = manner(&after);
    let loaded = found.load(&manner).map_err(Refused::Exec)?;
    let name = path.rsplit('/').next().unwrap_or(path);
    exec::commit(loaded, name.as_bytes(), after, &mut frame).map_err(Refused::Failed)?;
    Ok(frame)
}

fn manner(after: &AfterExec) -> Manner {
    let p = me();
    let [stack, space_limit, data_limit] =
        p.rlimits([Resource::Stack, Resource::As, Resource::Data]);
    Manner {
        stack_limit: if after.secure {
            stack.min(PRIVILEGED_STACK)
        } else {
            stack
        },
        space_limit,
        data_limit,
        shake: after.plain_layout || p.randomize(),
        aux: AuxInfo {
            uid: after.cred.uid.into(),
            euid: after.cred.euid.into(),
            gid: after.cred.gid.into(),
            egid: after.cred.egid.into(),
            secure: after.secure,
            ..AuxInfo::default()
        },
    }
}

/// execve(2): runs the program, or returns why not.
pub fn run(path: &str) -> Refused {
    match execute(path, &[path], &[]) {
        Ok(frame) => context::enter_user(&frame),
        Err(why) => why,
    }
}

/// The calling thread becomes one of user and group `id`, without privileges.
pub fn become_user(id: u32) {
    let me = current();
    let user = Cred {
        uid: id,
        euid: id,
        suid: id,
        fsuid: id,
        gid: id,
        egid: id,
        sgid: id,
        fsgid: id,
        caps: cred::Caps {
            effective: cred::CapSet::EMPTY,
            permitted: cred::CapSet::EMPTY,
            ..me.cred().caps
        },
        ..(*me.cred()).clone()
    };
    me.set_cred(user).expect("memory for an account");
}
