//! Cases of pipes: latency, bandwidth, and chains of processes linked by pipes.

use crate::harness::{Case, Worker, err, nap};
use crate::memory::nothing;
use user::{proc, sys};

/// The cases of this file.
pub const CASES: &[Case] = &[
    Case {
        name: "pipe-latency",
        what: "one byte to another process and back",
        phases: &[""],
        prepare: nothing,
        work: latency,
    },
    Case {
        name: "pipe-bandwidth",
        what: "64 KiB through a pipe",
        phases: &[""],
        prepare: nothing,
        work: bandwidth,
    },
    Case {
        name: "chain-flat",
        what: "process of a pipe chain, all children of one",
        phases: &["-create", "-pass", "-kill"],
        prepare: nothing,
        work: |w| chain(w, false),
    },
    Case {
        name: "chain-nested",
        what: "process of a pipe chain, each the child of the one before",
        phases: &["-create", "-pass", "-kill"],
        prepare: nothing,
        work: |w| chain(w, true),
    },
    Case {
        name: "region",
        what: "process that touches a shared region of 64 MiB",
        phases: &[""],
        prepare: nothing,
        work: region,
    },
];

/// Rounds of the token through a chain.
const PASSES: u64 = 4;

/// Pause before a chain's memory is measured.
const SETTLED_NS: u64 = 2_500_000_000;

/// A new pipe: its reading and its writing end.
pub fn pipe() -> Result<(i32, i32), String> {
    sys::pipe(0).map_err(err("pipe2"))
}

/// Reads one byte.
pub fn get(fd: i32) -> Result<u8, String> {
    let mut byte = [0];
    match sys::read(fd, &mut byte) {
        Ok(1) => Ok(byte[0]),
        Ok(n) => Err(format!("read of a pipe gave {n} bytes, not 1")),
        Err(errno) => Err(err("read of a pipe")(errno)),
    }
}

/// Writes one byte.
pub fn put(fd: i32, byte: u8) -> Result<(), String> {
    match sys::write(fd, &[byte]) {
        Ok(1) => Ok(()),
        Ok(n) => Err(format!("write to a pipe gave {n}, not 1")),
        Err(errno) => Err(err("write to a pipe")(errno)),
    }
}

/// Adds one to every byte from `from` and writes it to `to`, until end of file.
fn relay(from: i32, to: i32) {
    while let Ok(byte) = get(from) {
        if put(to, byte.wrapping_add(1)).is_err() {
            break;
        }
    }
}

/// A member of a chain: relays until it is killed. If its neighbour is killed first, the resulting end of file does not
/// end this process.
fn member(from: i32, to: i32) -> ! {
    relay(from, to);
    loop {
        let _ = sys::call(libc::SYS_pause, &[]);
    }
}

fn latency(w: &mut Worker) -> Result<(), String> {
    let (there, back) = (pipe()?, pipe()?);
    let pid = sys::fork().map_err(err("fork"))?;
    if pid == 0 {
        let _ = (sys::close(there.1), sys::close(back.0));
        relay(there.0, back.1);
        sys::exit(0);
    }
    let _ = (sys::close(there.0), sys::close(back.1));
    w.barrier();
    let ops = w.plan.scaled(5000);
    w.start();
    for i in 0..ops {
        put(there.1, i as u8)?;
        let got = get(back.0)?;
        if got != (i as u8).wrapping_add(1) {
            return Err(format!("sent {}, got back {got}", i as u8));
        }
    }
    w.stop(0, ops);
    let _ = sys::close(there.1);
    let (_, status) = sys::wait(pid as i64, 0).map_err(err("wait4"))?;
    if status == 0 {
        Ok(())
    } else {
        Err(format!("the other end ended with status {status:#x}"))
    }
}

const CHUNK: usize = 64 * 1024;

fn bandwidth(w: &mut Worker) -> Result<(), String> {
    let (from, to) = pipe()?;
    let ops = w.plan.scaled(500);
    let pid = sys::fork().map_err(err("fork"))?;
    if pid == 0 {
        let _ = sys::close(from);
        let mut chunk = vec![0u8; CHUNK];
        for i in 0..ops {
            chunk.fill(i as u8);
            let mut done = 0;
            while done < CHUNK {
                match sys::write(to, &chunk[done..]) {
                    Ok(n) if n > 0 => done += n,
                    _ => sys::exit(2),
                }
            }
        }
        sys::exit(0);
    }
    let _ = sys::close(to);
    let mut buf = vec![0u8; CHUNK];
    let (mut total, mut wrong) = (0usize, 0u64);
    w.barrier();
    w.start();
    loop {
        match sys::read(from, &mut buf).map_err(err("read of a pipe"))? {
            0 => break,
            n => {
                // The first and the last byte of a chunk reveal that it is misplaced or torn, without the cost of a
                // full check.
                wrong += u64::from(buf[0] != (total / CHUNK) as u8);
                wrong += u64::from(buf[n - 1] != ((total + n - 1) / CHUNK) as u8);
                total += n;
            }
        }
    }
    w.stop(0, ops);
    let (_, status) = sys::wait(pid as i64, 0).map_err(err("wait4"))?;
    let _ = sys::close(from);
    if total as u64 != ops * CHUNK as u64 || wrong > 0 || status != 0 {
        return Err(format!(
            "{total} bytes came, {wrong} of them wrong; the writer's status is {status:#x}"
        ));
    }
    Ok(())
}

/// A complete chain: a token written to `first` arrives at `last`.
struct Chain {
    first: i32,
    last: i32,
    group: u64,
    /// The number of processes that this one must reap.
    mine: u64,
}

fn chain(w: &mut Worker, nested: bool) -> Result<(), String> {
    // As a subreaper this process reaps the orphans of the nested chain, within the measured phase.
    let adopts = sys::call(libc::SYS_prctl, &[libc::PR_SET_CHILD_SUBREAPER as u64, 1]).is_ok();
    let length = w.plan.chain;
    w.barrier();
    // By then the kernel has freed the memory of the previous case.
    nap(SETTLED_NS);
    let free = proc::meminfo("MemFree");
    w.barrier();
    w.start();
    let chain = if nested {
        build_nested(length, adopts)?
    } else {
        build_flat(length)?
    };
    w.stop(0, length);
    w.barrier();
    // Memory is measured once the chain has settled: a kernel may reclaim memory of long sleepers.
    nap(SETTLED_NS);
    w.memory(0, free, length * w.plan.workers as u64);
    w.barrier();
    w.start();
    for i in 0..PASSES {
        put(chain.first, i as u8)?;
        let (got, want) = (get(chain.last)?, (i + length) as u8);
        if got != want {
            return Err(format!("the token came out as {got}, not {want}"));
        }
    }
    w.stop(1, PASSES * length);
    w.barrier();
    w.start();
    sys::call(
        libc::SYS_kill,
        &[
            (chain.group as i64).wrapping_neg() as u64,
            libc::SIGKILL as u64,
        ],
    )
    .map_err(err("kill"))?;
    for _ in 0..chain.mine {
        let (pid, status) = sys::wait(-1, 0).map_err(err("wait4"))?;
        if status != libc::SIGKILL {
            return Err(format!(
                "process {pid} of the chain ended with status {status:#x}, not by SIGKILL"
            ));
        }
    }
    // Every process held the last pipe's write end: end of file means that all have ended.
    let end = sys::read(chain.last, &mut [0]).map_err(err("read of the last pipe"))?;
    w.stop(2, length);
    if end != 0 {
        return Err("a byte came from a chain that was killed".into());
    }
    if sys::wait(-1, libc::WNOHANG) != Err(libc::ECHILD) {
        return Err("a child is left after the chain was reaped".into());
    }
    let _ = (sys::close(chain.first), sys::close(chain.last));
    Ok(())
}

fn build_flat(length: u64) -> Result<Chain, String> {
    let (mut from, first) = pipe()?;
    let mut group = 0;
    for _ in 0..length {
        let (next, to) = pipe()?;
        let pid = sys::fork().map_err(err("fork"))?;
        if pid == 0 {
            let _ = sys::call(libc::SYS_setpgid, &[0, group]);
            let _ = (sys::close(first), sys::close(next));
            member(from, to);
        }
        // Both parent and child set it, so that neither a kill nor the next child comes too early.
        let _ = sys::call(
            libc::SYS_setpgid,
            &[pid, if group == 0 { pid } else { group }],
        );
        group = if group == 0 { pid } else { group };
        let _ = (sys::close(from), sys::close(to));
        from = next;
    }
    Ok(Chain {
        first,
        last: from,
        group,
        mine: length,
    })
}

fn build_nested(length: u64, adopts: bool) -> Result<Chain, String> {
    let (head, first) = pipe()?;
    let (last, end) = pipe()?;
    let pid = sys::fork().map_err(err("fork"))?;
    if pid == 0 {
        let _ = sys::call(libc::SYS_setpgid, &[0, 0]);
        let _ = (sys::close(first), sys::close(last));
        nested_process(head, end, length);
    }
    let _ = sys::call(libc::SYS_setpgid, &[pid, pid]);
    let _ = (sys::close(head), sys::close(end));
    // The last process reports when the chain is complete.
    if get(last)? != READY {
        return Err("the nested chain could not be built".into());
    }
    Ok(Chain {
        first,
        last,
        group: pid,
        mine: if adopts { length } else { 1 },
    })
}

const READY: u8 = 0xa5;
const BROKEN: u8 = 0x5a;

/// The process with `left` processes still to be created, itself included.
fn nested_process(from: i32, end: i32, left: u64) -> ! {
    if left == 1 {
        let _ = put(end, READY);
        member(from, end);
    }
    let Ok((next, to)) = sys::pipe(0) else {
        let _ = put(end, BROKEN);
        sys::exit(2)
    };
    match sys::fork() {
        Ok(0) => {
            let _ = (sys::close(from), sys::close(to));
            nested_process(next, end, left - 1)
        }
        Ok(_) => {
            // `end` stays open: its end of file shows when the whole chain has ended.
            let _ = sys::close(next);
            member(from, to)
        }
        Err(_) => {
            let _ = put(end, BROKEN);
            sys::exit(2)
        }
    }
}

/// Bytes of the shared region.
const REGION: u64 = 64 << 20;

/// Every worker creates a region and `sharers` processes that read all of it; each is one operation. The processes' own
/// memory is in use before the timed phase: the figures of memory are the cost of sharing the region.
fn region(w: &mut Worker) -> Result<(), String> {
    let (prot, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_SHARED | libc::MAP_ANONYMOUS,
    );
    let base = sys::mmap(0, REGION, prot, flags, -1, 0).map_err(err("mmap"))?;
    (base..base + REGION)
        .step_by(4096)
        .for_each(|addr| sys::poke64(addr, addr));
    let [go, done, hold] = [pipe()?, pipe()?, pipe()?];
    w.barrier();
    let sharers = w.plan.sharers;
    for _ in 0..=sharers {
        if sys::fork().map_err(err("fork"))? == 0 {
            let _ = (sys::close(go.1), sys::close(hold.1));
            share(base, go.0, done.1, hold.0);
        }
    }
    // The first process is not counted: the figure is the cost of further processes.
    put(go.1, 1)?;
    get(done.0)?;
    w.barrier();
    nap(SETTLED_NS);
    let free = proc::meminfo("MemFree");
    w.barrier();
    w.start();
    for _ in 0..sharers {
        put(go.1, 1)?;
        get(done.0)?;
    }
    w.stop(0, sharers);
    w.barrier();
    let all = sharers * w.plan.workers as u64;
    w.memory(0, free, all);
    nap(SETTLED_NS);
    w.memory(1, free, all);
    w.barrier();
    let _ = sys::close(hold.1);
    for _ in 0..=sharers {
        let (pid, status) = sys::wait(-1, 0).map_err(err("wait4"))?;
        if status != 0 {
            return Err(format!(
                "process {pid} saw a wrong shared region, or died: status {status:#x}"
            ));
        }
    }
    sys::munmap(base, REGION).map(drop).map_err(err("munmap"))
}

/// A sharer: after it may `go`, it reads a word of every page, reports that it is `done`, and stays until `hold` ends.
fn share(base: u64, go: i32, done: i32, hold: i32) -> ! {
    let woken = get(go).is_ok();
    let right = (base..base + REGION)
        .step_by(4096)
        .all(|addr| sys::peek64(addr) == addr);
    let told = put(done, 1).is_ok();
    let _ = sys::read(hold, &mut [0]);
    sys::exit(i32::from(!(woken && right && told)))
}
