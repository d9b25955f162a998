//! Pipes and event counters between threads that signals can interrupt, and the calls of their users.
#![allow(dead_code, reason = "no test uses all of it")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use cred::Payer;
use hal::uio::IoBuf;
use task::park::{self, Deadline, Interruptible, ParkError, Step};
use task::{account, current};
use vfs::error::{FsError, Result};
use vfs::file::{File, FileRef, Kind};
use vfs::pipe::{self, Pipe};
use vfs::poll::PollMask;
use vfs::upcalls;

/// The kernel of tests of threads with signals.
#[path = "../../../task/tests/processes/mod.rs"]
pub mod threads;
#[path = "../support/users.rs"]
mod users;

hal::machine_static! {
    /// Signals that were sent for a write without a reader.
    static BROKEN: AtomicU32 = AtomicU32::new(0);
}

static COUNTING: upcalls::Upcalls = upcalls::Upcalls {
    file_size_limit: || u64::MAX,
    file_too_large: || (),
    broken_pipe: || {
        BROKEN.fetch_add(1, SeqCst);
    },
};

/// Runs `body` in a thread of a machine with so many CPUs.
pub fn on(cpus: usize, body: impl FnOnce() + Send + 'static) {
    threads::on(cpus, move || {
        upcalls::set(&COUNTING);
        drivers::random::init(cpus);
        vfs::init(cpus);
        body();
    });
}

/// Signals that were sent for a write without a reader.
pub fn broken() -> u32 {
    BROKEN.load(SeqCst)
}

/// write(2).
pub fn write(to: &FileRef, bytes: &[u8]) -> Result<usize> {
    to.write(&mut IoBuf::Drain(bytes))
}

/// read(2) of at most so many bytes.
pub fn read(from: &FileRef, most: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; most];
    let n = from.read(&mut IoBuf::Fill(&mut bytes))?;
    bytes.truncate(n);
    Ok(bytes)
}

/// pipe2(2).
pub fn pair(flags: u32) -> (FileRef, FileRef) {
    pipe::open_pair(flags).expect("memory for a pipe")
}

/// A fifo that is not open.
pub fn fifo() -> Arc<Pipe> {
    Pipe::create().expect("memory for a pipe")
}

/// Opens a fifo.
pub fn open(fifo: &Arc<Pipe>, flags: u32) -> Result<FileRef> {
    let end = pipe::open_fifo(fifo.clone(), flags)?;
    Ok(File::open(None, Kind::Pipe(end), flags))
}

/// The pipe of an end.
pub fn pipe_of(end: &FileRef) -> &Arc<Pipe> {
    match &end.kind {
        Kind::Pipe(end) => end.pipe(),
        _ => panic!("not a pipe"),
    }
}

/// Fills a pipe until it has room for `room` bytes more.
pub fn fill_but(to: &FileRef, room: usize) {
    let bytes = vec![b'.'; pipe_of(to).size() - room];
    assert_eq!(write(to, &bytes), Ok(bytes.len()));
}

/// The events of a file now.
pub fn events(file: &FileRef) -> PollMask {
    file.poll(None)
}

/// One file of a call of poll(2), with the events that are wanted and those found.
pub struct Item {
    pub file: FileRef,
    pub wanted: PollMask,
    pub found: PollMask,
}

/// A list of files for poll(2), and how often it has been looked through.
#[derive(Default)]
pub struct Polled {
    pub items: Vec<Item>,
    pub looks: u32,
}

impl Polled {
    pub fn new(items: &[(&FileRef, PollMask)]) -> Polled {
        let item = |&(file, wanted): &(&FileRef, PollMask)| Item {
            file: file.clone(),
            wanted,
            found: PollMask::NONE,
        };
        Polled {
            items: items.iter().map(item).collect(),
            looks: 0,
        }
    }

    /// poll(2), as the system call does it.
    pub fn wait(&mut self, deadline: Deadline) -> Result<usize, ParkError> {
        park::park(self, deadline, Interruptible::Yes, |polled, waiter| {
            polled.looks += 1;
            let mut ready = 0;
            for item in &mut polled.items {
                let always = PollMask::ERR | PollMask::HUP;
                item.found = item.file.poll(Some(waiter)) & (item.wanted | always);
                ready += usize::from(!item.found.is_empty());
            }
            match ready {
                0 => Step::Wait,
                _ => Step::Done(ready),
            }
        })
    }
}

/// Makes the calling thread one of user `uid`, without capabilities. Returns the account.
pub fn become_user(uid: u32) -> Payer {
    let mut cred = users::user(uid, &[]);
    cred.payer = account::of_thread(uid).expect("memory for an account");
    let payer = cred.payer;
    drop(current().replace_cred(Arc::new(cred)));
    payer
}

/// Starts a thread for a call that may wait. Returns its tid, and where it puts the result.
pub fn call<R: Send + 'static>(
    what: impl FnOnce() -> Result<R> + Send + 'static,
) -> (u32, Arc<Outcome<R>>) {
    let outcome = Arc::new(Outcome(std::sync::Mutex::new(None)));
    let theirs = outcome.clone();
    let tid = threads::spawn(None, move || {
        let result = what();
        *theirs.0.lock().expect("not poisoned") = Some(result);
    });
    threads::nap(1);
    (tid, outcome)
}

/// The result of a call that another thread makes.
pub struct Outcome<R>(std::sync::Mutex<Option<Result<R>>>);

impl<R> Outcome<R> {
    /// Whether the call still waits.
    pub fn waits(&self) -> bool {
        self.0.lock().expect("not poisoned").is_none()
    }

    /// The result, after a while in which the call may end.
    pub fn get(&self) -> Result<R> {
        threads::nap(2);
        let result = self.0.lock().expect("not poisoned").take();
        result.expect("the call has ended")
    }
}

/// The error of a call that would have to wait.
pub const AGAIN: FsError = FsError::WouldBlock;
