//! Operations on descriptors, files, pipes and names.

use crate::act::{Act, Actor, Got, Op, PAGE, demand, expect, must};
use crate::world::{
    EMPTY_PIPE, FILE_PAGES, NULL, ONE_FILE, ONE_NAME, ONE_PIPE, ZERO, open_at, own, own_file,
    own_in_one, pipe_at,
};
use commute::call::Call::{Close, Dup, Lseek, Open, Pipe, Read, Stat, Write};
use user::sys;

/// Bytes read and written: one line.
const BYTES: u64 = 64;

fn read(actor: &Actor, fd: i32, bytes: u64) -> Act {
    let args = [fd as u64, actor.buffer(), bytes, 0, 0, 0];
    Act::Call(libc::SYS_read, args)
}

fn pread(actor: &Actor, fd: i32, at: u64) -> Act {
    let args = [fd as u64, actor.buffer(), BYTES, at, 0, 0];
    Act::Call(libc::SYS_pread64, args)
}

fn write(actor: &Actor, fd: i32, bytes: u64) -> Act {
    let args = [fd as u64, actor.buffer(), bytes, 0, 0, 0];
    Act::Call(libc::SYS_write, args)
}

fn pwrite(actor: &Actor, fd: i32, at: u64) -> Act {
    let args = [fd as u64, actor.buffer(), BYTES, at, 0, 0];
    Act::Call(libc::SYS_pwrite64, args)
}

fn lseek(fd: i32, at: u64, whence: i32) -> Act {
    Act::Call(libc::SYS_lseek, [fd as u64, at, whence as u64, 0, 0, 0])
}

fn close(fd: i32) -> Act {
    Act::Call(libc::SYS_close, [fd as u64, 0, 0, 0, 0, 0])
}

/// The offset of this side's page in the common file.
fn own_page(actor: &Actor) -> u64 {
    (1 + actor.side as u64) * PAGE
}

fn fill(at: u64, byte: u8) {
    (at..at + BYTES).for_each(|at| sys::poke(at, byte));
}

fn is_full_of(at: u64, bytes: u64, byte: u8) -> Result<(), String> {
    let right = (at..at + bytes).all(|at| sys::peek(at) == byte);
    demand(right, "the bytes are those that were written")
}

/// Checks a read of `bytes` that are all `byte`.
fn got_bytes(actor: &Actor, got: Got, bytes: u64, byte: u8) -> Result<(), String> {
    expect(got, Ok(bytes))?;
    is_full_of(actor.buffer(), bytes, byte)
}

fn write_page(a: &mut Actor, fd: i32) -> Result<Act, String> {
    let byte = a.next_byte();
    fill(a.buffer(), byte);
    Ok(pwrite(a, fd, own_page(a)))
}

fn written(actor: &mut Actor, fd: i32, at: u64, got: Got) -> Result<(), String> {
    expect(got, Ok(BYTES))?;
    fill(actor.buffer(), 0);
    let back = pread(actor, fd, at).carry_out();
    got_bytes(actor, back, BYTES, actor.byte)
}

fn put_byte(actor: &mut Actor, fd: i32) -> Result<(), String> {
    fill(actor.buffer(), b'x');
    expect(write(actor, fd, 1).carry_out(), Ok(1))
}

fn take_byte(actor: &mut Actor, fd: i32) -> Result<(), String> {
    fill(actor.buffer(), 0);
    let got = read(actor, fd, 1).carry_out();
    got_bytes(actor, got, 1, b'x')
}

/// Determines the descriptor that the next call which opens one must return.
fn lowest(actor: &mut Actor) -> Result<(), String> {
    let fd = sys::call(libc::SYS_dup, &[NULL as u64]);
    actor.kept = must("dup", fd)?;
    must("close", sys::close(actor.kept as i32)).map(drop)
}

fn is_lowest(actor: &mut Actor, got: Got) -> Result<(), String> {
    expect(got, Ok(actor.kept))?;
    must("close", sys::close(actor.kept as i32)).map(drop)
}

fn open(actor: &mut Actor, path: &str, flags: i32) -> Result<Act, String> {
    lowest(actor)?;
    let path = actor.put(0, path);
    let here = libc::AT_FDCWD as i64 as u64;
    Ok(Act::Call(
        libc::SYS_openat,
        [here, path, flags as u64, 0o600, 0, 0],
    ))
}

fn unlink(actor: &Actor) -> Result<(), String> {
    must("unlink", sys::call(libc::SYS_unlink, &[actor.text()])).map(drop)
}

fn close_spare(actor: &Actor, made: Result<(), String>) -> Result<Act, String> {
    made.map(|()| close(own(actor.side).spare))
}

/// Checks that the descriptor is closed.
fn closed(actor: &mut Actor, got: Got) -> Result<(), String> {
    expect(got, Ok(0))?;
    expect(close(own(actor.side).spare).carry_out(), Err(libc::EBADF))
}

fn dup_to_slot(actor: &Actor, fd: i32) -> Act {
    let slot = own(actor.side).slot;
    Act::Call(libc::SYS_dup2, [fd as u64, slot as u64, 0, 0, 0, 0])
}

fn in_slot(actor: &mut Actor, got: Got) -> Result<(), String> {
    let slot = own(actor.side).slot;
    expect(got, Ok(slot as u64))?;
    must("close", sys::close(slot)).map(drop)
}

fn copy_descriptor(fd: i32, to: i32) -> Result<(), String> {
    must("dup2", sys::call(libc::SYS_dup2, &[fd as u64, to as u64])).map(drop)
}

fn stat(actor: &mut Actor, path: &str) -> Act {
    let path = actor.put(0, path);
    Act::Call(libc::SYS_stat, [path, actor.buffer(), 0, 0, 0, 0])
}

fn fstat(actor: &Actor, fd: i32) -> Act {
    Act::Call(libc::SYS_fstat, [fd as u64, actor.buffer(), 0, 0, 0, 0])
}

/// Checks the size, which is 48 bytes into a stat structure.
fn sized(actor: &mut Actor, got: Got) -> Result<(), String> {
    expect(got, Ok(0))?;
    demand(
        sys::peek64(actor.buffer() + 48) == FILE_PAGES * PAGE,
        "the size is right",
    )
}

const DATA: &[Op] = &[
    Op {
        call: Read,
        name: "own file",
        prepare: |a| {
            let fd = own(a.side).file;
            expect(lseek(fd, 0, libc::SEEK_SET).carry_out(), Ok(0))?;
            Ok(read(a, fd, BYTES))
        },
        finish: |a, got| got_bytes(a, got, BYTES, 1),
    },
    Op {
        call: Read,
        name: "one file own page",
        prepare: |a| {
            expect(write_page(a, ONE_FILE)?.carry_out(), Ok(BYTES))?;
            Ok(pread(a, ONE_FILE, own_page(a)))
        },
        finish: |a, got| got_bytes(a, got, BYTES, a.byte),
    },
    Op {
        call: Read,
        name: "one file one page",
        prepare: |a| Ok(pread(a, ONE_FILE, 0)),
        finish: |a, got| got_bytes(a, got, BYTES, 1),
    },
    Op {
        call: Read,
        name: "one file own descriptor",
        prepare: |a| Ok(pread(a, own(a.side).one_file, 0)),
        finish: |a, got| got_bytes(a, got, BYTES, 1),
    },
    Op {
        call: Read,
        name: "one file end",
        prepare: |a| Ok(pread(a, ONE_FILE, FILE_PAGES * PAGE)),
        finish: |_, got| expect(got, Ok(0)),
    },
    Op {
        call: Read,
        name: "own pipe",
        prepare: |a| {
            let (r, w) = own(a.side).pipe;
            put_byte(a, w)?;
            fill(a.buffer(), 0);
            Ok(read(a, r, 1))
        },
        finish: |a, got| got_bytes(a, got, 1, b'x'),
    },
    Op {
        call: Read,
        name: "one pipe",
        prepare: |a| Ok(read(a, ONE_PIPE.0, 1)),
        finish: |a, got| {
            got_bytes(a, got, 1, b'x')?;
            put_byte(a, ONE_PIPE.1)
        },
    },
    Op {
        call: Read,
        name: "own pipe empty",
        prepare: |a| Ok(read(a, own(a.side).empty.0, 1)),
        finish: |_, got| expect(got, Err(libc::EAGAIN)),
    },
    Op {
        call: Read,
        name: "one pipe empty",
        prepare: |a| Ok(read(a, EMPTY_PIPE.0, 1)),
        finish: |_, got| expect(got, Err(libc::EAGAIN)),
    },
    Op {
        call: Read,
        name: "zero",
        prepare: |a| {
            fill(a.buffer(), 1);
            Ok(read(a, ZERO, BYTES))
        },
        finish: |a, got| got_bytes(a, got, BYTES, 0),
    },
    Op {
        call: Write,
        name: "own file",
        prepare: |a| {
            let (fd, at) = (own(a.side).file, 2 * PAGE);
            expect(lseek(fd, at, libc::SEEK_SET).carry_out(), Ok(at))?;
            let byte = a.next_byte();
            fill(a.buffer(), byte);
            Ok(write(a, fd, BYTES))
        },
        finish: |a, got| written(a, own(a.side).file, 2 * PAGE, got),
    },
    Op {
        call: Write,
        name: "one file own page",
        prepare: |a| write_page(a, ONE_FILE),
        finish: |a, got| written(a, ONE_FILE, own_page(a), got),
    },
    Op {
        call: Write,
        name: "one file own descriptor",
        prepare: |a| write_page(a, own(a.side).one_file),
        finish: |a, got| written(a, ONE_FILE, own_page(a), got),
    },
    Op {
        call: Write,
        name: "own pipe",
        prepare: |a| {
            fill(a.buffer(), b'x');
            Ok(write(a, own(a.side).pipe.1, 1))
        },
        finish: |a, got| {
            expect(got, Ok(1))?;
            take_byte(a, own(a.side).pipe.0)
        },
    },
    Op {
        call: Write,
        name: "one pipe",
        prepare: |a| {
            fill(a.buffer(), b'x');
            Ok(write(a, ONE_PIPE.1, 1))
        },
        finish: |a, got| {
            expect(got, Ok(1))?;
            take_byte(a, ONE_PIPE.0)
        },
    },
    Op {
        call: Write,
        name: "null",
        prepare: |a| Ok(write(a, NULL, BYTES)),
        finish: |_, got| expect(got, Ok(BYTES)),
    },
    Op {
        call: Lseek,
        name: "own descriptor",
        prepare: |a| Ok(lseek(own(a.side).file, 5, libc::SEEK_SET)),
        finish: |_, got| expect(got, Ok(5)),
    },
    Op {
        call: Lseek,
        name: "one file own descriptor",
        prepare: |a| Ok(lseek(own(a.side).one_file, 7, libc::SEEK_SET)),
        finish: |_, got| expect(got, Ok(7)),
    },
    Op {
        call: Lseek,
        name: "one descriptor ask",
        prepare: |a| {
            a.kept = must("lseek", lseek(ONE_FILE, 0, libc::SEEK_CUR).carry_out())?;
            Ok(lseek(ONE_FILE, 0, libc::SEEK_CUR))
        },
        finish: |a, got| expect(got, Ok(a.kept)),
    },
    Op {
        call: Lseek,
        name: "one descriptor same",
        prepare: |_| Ok(lseek(ONE_FILE, 9, libc::SEEK_SET)),
        finish: |_, got| expect(got, Ok(9)),
    },
];

const NAMES: &[Op] = &[
    Op {
        call: Pipe,
        name: "pipe",
        prepare: |a| {
            lowest(a)?;
            let flags = libc::O_NONBLOCK as u64;
            Ok(Act::Call(libc::SYS_pipe2, [a.buffer(), flags, 0, 0, 0, 0]))
        },
        finish: |a, got| {
            expect(got, Ok(0))?;
            let ends = sys::peek64(a.buffer());
            let (r, w) = (ends as u32 as i32, (ends >> 32) as i32);
            demand(
                r as u64 == a.kept && w > r,
                "the descriptors are the lowest",
            )?;
            must("close", sys::close(r))?;
            must("close", sys::close(w)).map(drop)
        },
    },
    Op {
        call: Open,
        name: "own file",
        prepare: |a| open(a, &own_file(a.side), libc::O_RDONLY),
        finish: is_lowest,
    },
    Op {
        call: Open,
        name: "one directory",
        prepare: |a| open(a, &own_in_one(a.side), libc::O_RDONLY),
        finish: is_lowest,
    },
    Op {
        call: Open,
        name: "one file",
        prepare: |a| open(a, ONE_NAME, libc::O_RDONLY),
        finish: is_lowest,
    },
    Op {
        call: Open,
        name: "absent",
        // No descriptor may be opened or closed here: the other side may be about to allocate the lowest.
        prepare: |a| {
            let (path, here) = (a.put(0, "one/absent"), libc::AT_FDCWD as i64 as u64);
            Ok(Act::Call(libc::SYS_openat, [here, path, 0, 0, 0, 0]))
        },
        finish: |_, got| expect(got, Err(libc::ENOENT)),
    },
    Op {
        call: Open,
        name: "create own directory",
        prepare: |a| {
            let path = format!("own{}/new", a.side);
            open(a, &path, libc::O_CREAT | libc::O_EXCL | libc::O_RDWR)
        },
        finish: |a, got| is_lowest(a, got).and_then(|()| unlink(a)),
    },
    Op {
        call: Open,
        name: "create one directory",
        prepare: |a| {
            let path = format!("one/new{}", a.side);
            open(a, &path, libc::O_CREAT | libc::O_EXCL | libc::O_RDWR)
        },
        finish: |a, got| is_lowest(a, got).and_then(|()| unlink(a)),
    },
    Op {
        call: Stat,
        name: "own file",
        prepare: |a| Ok(stat(a, &own_file(a.side))),
        finish: sized,
    },
    Op {
        call: Stat,
        name: "one directory",
        prepare: |a| Ok(stat(a, &own_in_one(a.side))),
        finish: sized,
    },
    Op {
        call: Stat,
        name: "one file",
        prepare: |a| Ok(stat(a, ONE_NAME)),
        finish: sized,
    },
    Op {
        call: Stat,
        name: "absent",
        prepare: |a| Ok(stat(a, "one/absent")),
        finish: |_, got| expect(got, Err(libc::ENOENT)),
    },
    Op {
        call: Stat,
        name: "own descriptor",
        prepare: |a| Ok(fstat(a, own(a.side).file)),
        finish: sized,
    },
    Op {
        call: Stat,
        name: "one descriptor",
        prepare: |a| Ok(fstat(a, ONE_FILE)),
        finish: sized,
    },
];

const DESCRIPTORS: &[Op] = &[
    Op {
        call: Close,
        name: "own file",
        prepare: |a| {
            close_spare(
                a,
                open_at(&own_file(a.side), libc::O_RDONLY, own(a.side).spare),
            )
        },
        finish: closed,
    },
    Op {
        call: Close,
        name: "one file",
        prepare: |a| close_spare(a, open_at(ONE_NAME, libc::O_RDONLY, own(a.side).spare)),
        finish: closed,
    },
    Op {
        call: Close,
        name: "one open file",
        prepare: |a| close_spare(a, copy_descriptor(ONE_FILE, own(a.side).spare)),
        finish: closed,
    },
    Op {
        call: Close,
        name: "pipe end",
        prepare: |a| {
            let own = own(a.side);
            pipe_at((own.spare, own.slot)).map(|()| close(own.spare))
        },
        finish: |a, got| {
            closed(a, got)?;
            must("close", sys::close(own(a.side).slot)).map(drop)
        },
    },
    Op {
        call: Close,
        name: "nothing",
        prepare: |_| Ok(close(1000)),
        finish: |_, got| expect(got, Err(libc::EBADF)),
    },
    Op {
        call: Dup,
        name: "lowest",
        prepare: |a| {
            lowest(a)?;
            Ok(Act::Call(
                libc::SYS_dup,
                [own(a.side).file as u64, 0, 0, 0, 0, 0],
            ))
        },
        finish: is_lowest,
    },
    Op {
        call: Dup,
        name: "own to own slot",
        prepare: |a| Ok(dup_to_slot(a, own(a.side).file)),
        finish: in_slot,
    },
    Op {
        call: Dup,
        name: "one to own slot",
        prepare: |a| Ok(dup_to_slot(a, ONE_FILE)),
        finish: in_slot,
    },
    Op {
        call: Dup,
        name: "from 200",
        prepare: |a| {
            a.kept = 200 + 10 * a.side as u64;
            let (fd, from) = (own(a.side).file as u64, libc::F_DUPFD as u64);
            Ok(Act::Call(libc::SYS_fcntl, [fd, from, a.kept, 0, 0, 0]))
        },
        finish: |a, got| {
            expect(got, Ok(a.kept))?;
            must("close", sys::close(a.kept as i32)).map(drop)
        },
    },
];

/// All operations.
pub const OPS: [&[Op]; 3] = [DATA, NAMES, DESCRIPTORS];
