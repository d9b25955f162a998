//! The objects that operations work on: directories, files, descriptors, pipes, regions of memory.
//!
//! Objects common to both sides are created once, before any batch, and inherited, so that in every mode they are the
//! same open files; objects of one side are created when it enters a batch. Descriptors have fixed numbers.

use crate::act::{Actor, PAGE, must, sleep_on};
use crate::board::{Word, word};
use std::fs;
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;
use user::sys;

/// The address of the sides' buffers, 16 pages apart.
pub const BUFFERS: u64 = 0x300_0000_0000;

const NEAR: u64 = 0x100_0000_0000;
const NEXT: u64 = NEAR + (1 << 20);
const FAR: u64 = 0x200_0000_0000;
/// Large enough that the sides' page-table entries share no cache line, at any level but the highest.
const FAR_STEP: u64 = 64 << 30;

/// Pages of a file.
pub const FILE_PAGES: u64 = 4;

/// The common file, open for reading and writing.
pub const ONE_FILE: i32 = 100;
/// /dev/zero and /dev/null.
pub const ZERO: i32 = 101;
/// See [`ZERO`].
pub const NULL: i32 = 102;
/// The common pipe, which has bytes and room, and the common empty pipe: read end, write end.
pub const ONE_PIPE: (i32, i32) = (103, 104);
/// See [`ONE_PIPE`].
pub const EMPTY_PIPE: (i32, i32) = (105, 106);

/// The descriptors of a side.
#[derive(Clone, Copy)]
pub struct Own {
    /// Its own file.
    pub file: i32,
    /// The common file, opened by this side.
    pub one_file: i32,
    /// Its pipe, and one that is always empty.
    pub pipe: (i32, i32),
    /// See `pipe`.
    pub empty: (i32, i32),
    /// The pipe that its sleeping child sleeps on.
    pub sleep: (i32, i32),
    /// A descriptor number that is free.
    pub slot: i32,
    /// A descriptor that may be closed.
    pub spare: i32,
    /// The pipe that a round's child sleeps on.
    pub wake: (i32, i32),
}

/// The descriptors of `side`.
pub fn own(side: usize) -> Own {
    let base = 120 + 20 * side as i32;
    Own {
        file: base,
        one_file: base + 1,
        pipe: (base + 2, base + 3),
        empty: (base + 4, base + 5),
        sleep: (base + 6, base + 7),
        slot: base + 8,
        spare: base + 9,
        wake: (base + 10, base + 11),
    }
}

/// The side's pages in the region that both use.
pub fn near(side: usize) -> u64 {
    NEAR + side as u64 * 16 * PAGE
}

/// The side's page beside the other side's.
pub fn next(side: usize) -> u64 {
    NEXT + side as u64 * PAGE
}

/// The side's own region.
pub fn far(side: usize) -> u64 {
    FAR + side as u64 * FAR_STEP
}

/// The side's file, relative to the program's working directory.
pub fn own_file(side: usize) -> String {
    format!("own{side}/file")
}

/// The side's file in the common directory.
pub fn own_in_one(side: usize) -> String {
    format!("one/file{side}")
}

/// The common file.
pub const ONE_NAME: &str = "one/file";

/// The side's copy of the smallest program.
pub fn own_program(side: usize) -> String {
    format!("own{side}/program")
}

/// The common program.
pub const ONE_PROGRAM: &str = "one/program";

fn work_dir(dir: &str) -> String {
    format!("{dir}/commute.work")
}

/// Maps private memory at a fixed address.
///
/// # Errors
/// The call fails.
pub fn map(at: u64, pages: u64) -> Result<(), String> {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    must("mmap", sys::mmap(at, pages * PAGE, prot, flags, -1, 0)).map(drop)
}

/// Moves a descriptor to the number `at`.
///
/// # Errors
/// A call fails.
pub fn place(fd: i32, at: i32) -> Result<(), String> {
    must("dup2", sys::call(libc::SYS_dup2, &[fd as u64, at as u64]))?;
    must("close", sys::close(fd)).map(drop)
}

/// Opens `path` as descriptor `at`.
///
/// # Errors
/// A call fails.
pub fn open_at(path: &str, flags: i32, at: i32) -> Result<(), String> {
    let fd = sys::open(path, flags, 0).map_err(|e| format!("open {path}: errno {e}"))?;
    place(fd, at)
}

/// Opens a nonblocking pipe at the descriptors `ends`.
///
/// # Errors
/// A call fails.
pub fn pipe_at(ends: (i32, i32)) -> Result<(), String> {
    let (r, w) = sys::pipe(libc::O_NONBLOCK).map_err(|e| format!("pipe: errno {e}"))?;
    place(r, ends.0)?;
    place(w, ends.1)
}

/// Creates the objects common to all batches.
///
/// # Errors
/// An object cannot be created.
pub fn make(dir: &str, programs: &str) -> Result<(), String> {
    let work = work_dir(dir);
    let files = || -> std::io::Result<()> {
        let _ = fs::remove_dir_all(&work);
        fs::create_dir_all(&work)?;
        std::env::set_current_dir(&work)?;
        let program = Path::new(programs).join("tiny-true");
        fs::create_dir("one")?;
        fs::copy(&program, ONE_PROGRAM)?;
        for side in 0..2 {
            fs::create_dir(format!("own{side}"))?;
            fs::copy(&program, own_program(side))?;
            fs::write(own_file(side), content())?;
            fs::write(own_in_one(side), content())?;
        }
        fs::write(ONE_NAME, content())
    };
    files().map_err(|e| format!("{work}: {e}"))?;
    open_at(ONE_NAME, libc::O_RDWR, ONE_FILE)?;
    open_at("/dev/zero", libc::O_RDONLY, ZERO)?;
    open_at("/dev/null", libc::O_WRONLY, NULL)?;
    pipe_at(ONE_PIPE)?;
    pipe_at(EMPTY_PIPE)?;
    must(
        "write",
        sys::write(ONE_PIPE.1, &[b'x'; 64]).map(|n| n as u64),
    )?;
    let target = sleeping_child(ONE_PIPE_OF_TARGET)?;
    word(Word::Target).store(target, SeqCst);
    Ok(())
}

const ONE_PIPE_OF_TARGET: (i32, i32) = (107, 108);

/// A file's content: each page filled with its index plus one.
fn content() -> Vec<u8> {
    (0..FILE_PAGES * PAGE)
        .map(|at| (at / PAGE) as u8 + 1)
        .collect()
}

/// Removes the files, and kills the process that is the target of signals.
pub fn remove(dir: &str) {
    let target = word(Word::Target).load(SeqCst);
    let _ = sys::call(libc::SYS_kill, &[target, libc::SIGKILL as u64]);
    let _ = sys::wait(target as i64, 0);
    let _ = std::env::set_current_dir("/");
    let _ = fs::remove_dir_all(work_dir(dir));
}

/// A child that sleeps on a new pipe at `ends`, with SIGUSR1 blocked.
fn sleeping_child(ends: (i32, i32)) -> Result<u64, String> {
    let (r, w) = sys::pipe(0).map_err(|e| format!("pipe: errno {e}"))?;
    place(r, ends.0)?;
    place(w, ends.1)?;
    match must("fork", sys::fork())? {
        0 => {
            block_usr1();
            sleep_on(ends.0, ends.1)
        }
        pid => Ok(pid),
    }
}

/// Blocks SIGUSR1 for ever.
pub fn block_usr1() {
    let set = 1u64 << (libc::SIGUSR1 - 1);
    let _ = sys::call(
        libc::SYS_rt_sigprocmask,
        &[libc::SIG_BLOCK as u64, &raw const set as u64, 0, 8],
    );
}

/// Creates the objects of a side; in threads, side 0 creates the objects of the process.
///
/// # Errors
/// An object cannot be created.
pub fn enter(actor: &mut Actor) -> Result<(), String> {
    let side = actor.side;
    map(actor.buffer(), 4)?;
    // A page that keeps the page tables allocated whatever is unmapped beside it.
    for anchor in [near(side) + (4 << 20), far(side) + (4 << 20)] {
        map(anchor, 1)?;
        sys::poke(anchor, 1);
    }
    map(near(side), 16)?;
    map(next(side), 1)?;
    map(far(side), 16)?;
    actor.touch_again();
    let own = own(side);
    open_at(&own_file(side), libc::O_RDWR, own.file)?;
    open_at(ONE_NAME, libc::O_RDWR, own.one_file)?;
    pipe_at(own.pipe)?;
    pipe_at(own.empty)?;
    actor.sleeper = sleeping_child(own.sleep)?;
    Ok(())
}

/// Ends what [`enter`] started.
pub fn leave(actor: &Actor) {
    let _ = sys::call(libc::SYS_kill, &[actor.sleeper, libc::SIGKILL as u64]);
    let _ = sys::wait(actor.sleeper as i64, 0);
}
