//! `exhaust WHAT...`: allocates a resource until the kernel refuses, and frees everything; threads and files twice.
//!
//! - `threads`: as many as RLIMIT_NPROC allows an unprivileged user, here some more than 300;
//! - `maps`: mappings that cannot be merged; then changes and removes them all with one call;
//! - `files`: descriptors, up to RLIMIT_NOFILE;
//! - `names`: in one directory, up to `nr_inodes` of a file system of its own; then finds, lists and removes them.
//!
//! Prints a line for each; the status is 0 if each was refused with the errno of its man page, and not too early.

use user::sys::{self, Errno};

/// The number of allocations, and the errno of the refusal.
type Outcome = Result<(usize, Errno), Errno>;

fn limit(resource: u32, value: u64) -> Result<u64, Errno> {
    let limit = [value, value];
    sys::call(
        libc::SYS_prlimit64,
        &[0, u64::from(resource), limit.as_ptr() as u64, 0],
    )
}

/// In a child with another user: creates threads that sleep until all exist.
fn threads() -> Outcome {
    use std::sync::{Arc, atomic::AtomicBool, atomic::Ordering::SeqCst};
    let alive = std::fs::read_dir("/proc").map_or(0, |names| names.count()) as u64;
    limit(libc::RLIMIT_NPROC, alive + 300)?;
    sys::call(libc::SYS_setresuid, &[65534, 65534, 65534])?;
    let over = Arc::new(AtomicBool::new(false));
    let mut all = Vec::new();
    let refused = loop {
        let over = over.clone();
        let sleeper = move || {
            while !over.load(SeqCst) {
                std::thread::park();
            }
        };
        match std::thread::Builder::new().stack_size(16384).spawn(sleeper) {
            Ok(thread) => all.push(thread),
            Err(error) => break error.raw_os_error().unwrap_or(0),
        }
    };
    over.store(true, SeqCst);
    let had = all.len();
    for thread in all {
        thread.thread().unpark();
        let _ = thread.join();
    }
    Ok((had, refused))
}

/// Gives every second page of a region another protection.
fn maps() -> Outcome {
    const PAGES: u64 = 200_000;
    let (none, flags) = (libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let base = sys::mmap(0, PAGES * 4096, none, flags | libc::MAP_NORESERVE, -1, 0)?;
    let mut had = 0;
    let refused = loop {
        let at = base + had as u64 * 8192;
        match sys::mmap(at, 4096, libc::PROT_READ, flags | libc::MAP_FIXED, -1, 0) {
            Ok(_) => had += 1,
            Err(errno) => break errno,
        }
    };
    // All at once, so that many entries become one.
    let _ = sys::call(
        libc::SYS_mprotect,
        &[base, PAGES * 4096, libc::PROT_READ as u64],
    );
    sys::munmap(base, PAGES * 4096)?;
    Ok((2 * had, refused))
}

fn files() -> Outcome {
    limit(libc::RLIMIT_NOFILE, 5000)?;
    let mut all = Vec::new();
    let refused = loop {
        match sys::open("/dev/null", libc::O_RDONLY, 0) {
            Ok(fd) => all.push(fd),
            Err(errno) => break errno,
        }
    };
    for &fd in &all {
        let _ = sys::close(fd);
    }
    Ok((all.len(), refused))
}

/// Creates more names in one directory than one array of them could hold.
fn names() -> Outcome {
    const LIMIT: u64 = 200_000;
    let text = |text: String| std::ffi::CString::new(text).map_err(|_| libc::EINVAL);
    let (dir, kind) = (text("/tmp/exhaust".into())?, text("tmpfs".into())?);
    let options = text(format!("nr_inodes={LIMIT}"))?;
    let at = |s: &std::ffi::CStr| s.as_ptr() as u64;
    let _ = sys::call(libc::SYS_mkdir, &[at(&dir), 0o700]);
    sys::call(
        libc::SYS_mount,
        &[at(&kind), at(&dir), at(&kind), 0, at(&options)],
    )?;
    sys::call(libc::SYS_chdir, &[at(&dir)])?;
    let first = text("first".into())?;
    sys::call(
        libc::SYS_mknod,
        &[at(&first), u64::from(libc::S_IFREG | 0o600), 0],
    )?;
    let mut had = 1;
    let refused = loop {
        let name = text(format!("n{had}"))?;
        match sys::call(libc::SYS_link, &[at(&first), at(&name)]) {
            Ok(_) => had += 1,
            Err(errno) => break errno,
        }
    };
    let listed = std::fs::read_dir(".").map_or(0, Iterator::count);
    for n in 1..had {
        let name = text(format!("n{n}"))?;
        sys::call(libc::SYS_unlink, &[at(&name)])?;
    }
    let left = std::fs::read_dir(".").map_or(0, Iterator::count);
    // The root directory and the first file remain.
    let mut room = [0u64; 15];
    sys::call(libc::SYS_statfs, &[at(&dir), room.as_mut_ptr() as u64])?;
    let root = text("/".into())?;
    sys::call(libc::SYS_chdir, &[at(&root)])?;
    sys::call(libc::SYS_umount2, &[at(&dir), 0])?;
    let right = listed == had && left == 1 && room[6] == LIMIT - 2;
    Ok((if right { had } else { 0 }, refused))
}

/// Runs `try_it` in a child each time, and returns whether at least `least` were allocated before `errno`.
fn check(times: u32, name: &str, try_it: fn() -> Outcome, least: usize, errno: Errno) -> bool {
    let page = sys::caught_page();
    (0..times).all(|_| {
        let ended = match sys::fork() {
            Ok(0) => {
                let (had, refused) = try_it().unwrap_or_else(|errno| (0, errno));
                sys::poke64(page, had as u64);
                sys::exit(refused)
            }
            Ok(pid) => sys::wait(pid as i64, 0),
            Err(errno) => Err(errno),
        };
        let had = sys::peek64(page) as usize;
        let right = had >= least && ended.is_ok_and(|(_, status)| status == errno << 8);
        let word = if right { "right" } else { "WRONG" };
        println!("exhaust: {had} {name}, then {ended:?}: {word}");
        right
    })
}

fn main() {
    let right = std::env::args().skip(1).all(|what| match what.as_str() {
        "threads" => check(2, "threads", threads, 200, libc::EAGAIN),
        "maps" => check(1, "mappings", maps, 60_000, libc::ENOMEM),
        "files" => check(2, "files", files, 4900, libc::EMFILE),
        "names" => check(1, "names", names, 199_999, libc::ENOSPC),
        _ => false,
    });
    sys::exit(i32::from(!right))
}
