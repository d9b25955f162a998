//! Operations on mappings, and faults.

use crate::act::{Act, Actor, Got, Op, PAGE, demand, expect, must};
use crate::process::{let_child_end, make_sleeping_child};
use crate::world::{self, FILE_PAGES, ONE_FILE, ZERO, far, map, near, next, own};
use commute::call::Call::{Brk, Fault, Madvise, Mmap, Mprotect, Munmap};
use user::sys;

const RW: i32 = libc::PROT_READ | libc::PROT_WRITE;
const ANON: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
const FEW: u64 = 4; // pages

fn mmap(at: u64, flags: i32, fd: i32) -> Act {
    let args = [at, FEW * PAGE, RW as u64, flags as u64, fd as i64 as u64, 0];
    Act::Call(libc::SYS_mmap, args)
}

fn munmap(at: u64) -> Act {
    Act::Call(libc::SYS_munmap, [at, FEW * PAGE, 0, 0, 0, 0])
}

fn mprotect(at: u64) -> Act {
    let args = [at, FEW * PAGE, libc::PROT_READ as u64, 0, 0, 0];
    Act::Call(libc::SYS_mprotect, args)
}

fn madvise(at: u64, advice: i32) -> Act {
    Act::Call(libc::SYS_madvise, [at, FEW * PAGE, advice as u64, 0, 0, 0])
}

/// New private memory at `at`, each page written to.
fn touched(at: u64, pages: u64) -> Result<(), String> {
    map(at, pages)?;
    (0..pages).for_each(|page| sys::poke(at + page * PAGE, 5));
    Ok(())
}

fn hole(at: u64) -> Result<(), String> {
    must("munmap", sys::munmap(at, FEW * PAGE)).map(drop)
}

fn map_file(at: u64, fd: i32, kind: i32) -> Result<(), String> {
    let mapped = sys::mmap(at, FILE_PAGES * PAGE, RW, kind | libc::MAP_FIXED, fd, 0);
    must("mmap of a file", mapped).map(drop)
}

/// Checks the first byte of a mapping at a fixed address, and maps private memory there again.
fn mapped(at: u64, got: Got, first: u8) -> Result<(), String> {
    expect(got, Ok(at))?;
    demand(sys::peek(at) == first, "the mapping has the right contents")?;
    map(at, FEW)
}

/// Checks that nothing is mapped at the address any more, and maps it again.
fn unmapped(at: u64, got: Got) -> Result<(), String> {
    expect(got, Ok(0))?;
    let there = sys::call(
        libc::SYS_madvise,
        &[at, FEW * PAGE, libc::MADV_DONTNEED as u64],
    );
    expect(there, Err(libc::ENOMEM))?;
    map(at, FEW)
}

/// Checks that memory is readable and not writable.
fn protected(at: u64, got: Got) -> Result<(), String> {
    expect(got, Ok(0))?;
    std::hint::black_box(sys::peek(at));
    let written = sys::call(libc::SYS_read, &[ZERO as u64, at, 1]);
    expect(written, Err(libc::EFAULT))?;
    map(at, FEW)
}

fn dropped(at: u64, got: Got) -> Result<(), String> {
    expect(got, Ok(0))?;
    demand(sys::peek(at) == 0, "the page is empty")
}

fn stored(actor: &Actor, at: u64, got: Got) -> Result<(), String> {
    expect(got, Ok(0))?;
    demand(sys::peek(at) == actor.byte, "the byte was stored")
}

fn fresh(actor: &mut Actor, at: u64, pages: u64) -> Result<Act, String> {
    map(at, pages)?;
    Ok(Act::Store(at, actor.next_byte()))
}

fn break_now() -> Result<u64, String> {
    must("brk", sys::call(libc::SYS_brk, &[0]))
}

fn set_break(to: u64) -> Act {
    Act::Call(libc::SYS_brk, [to, 0, 0, 0, 0, 0])
}

fn own_page(actor: &Actor) -> u64 {
    far(actor.side) + (1 + actor.side as u64) * PAGE
}

const MAPPINGS: &[Op] = &[
    Op {
        call: Mmap,
        name: "any",
        prepare: |_| Ok(mmap(0, ANON, -1)),
        finish: |_, got| {
            let at = must("mmap", got)?;
            demand(at != 0 && at % PAGE == 0, "the address is a page's")?;
            demand(sys::peek(at) == 0, "the memory is empty")?;
            hole(at)
        },
    },
    Op {
        call: Mmap,
        name: "fixed near",
        prepare: |a| hole(near(a.side)).map(|()| mmap(near(a.side), ANON | libc::MAP_FIXED, -1)),
        finish: |a, got| mapped(near(a.side), got, 0),
    },
    Op {
        call: Mmap,
        name: "fixed far",
        prepare: |a| hole(far(a.side)).map(|()| mmap(far(a.side), ANON | libc::MAP_FIXED, -1)),
        finish: |a, got| mapped(far(a.side), got, 0),
    },
    Op {
        call: Mmap,
        name: "one file shared",
        prepare: |a| {
            hole(far(a.side))?;
            Ok(mmap(
                far(a.side),
                libc::MAP_SHARED | libc::MAP_FIXED,
                ONE_FILE,
            ))
        },
        finish: |a, got| mapped(far(a.side), got, 1),
    },
    Op {
        call: Mmap,
        name: "own file private",
        prepare: |a| {
            hole(far(a.side))?;
            let flags = libc::MAP_PRIVATE | libc::MAP_FIXED;
            Ok(mmap(far(a.side), flags, own(a.side).file))
        },
        finish: |a, got| mapped(far(a.side), got, 1),
    },
    Op {
        call: Munmap,
        name: "near untouched",
        prepare: |a| map(near(a.side), FEW).map(|()| munmap(near(a.side))),
        finish: |a, got| unmapped(near(a.side), got),
    },
    Op {
        call: Munmap,
        name: "near touched",
        prepare: |a| touched(near(a.side), FEW).map(|()| munmap(near(a.side))),
        finish: |a, got| unmapped(near(a.side), got),
    },
    Op {
        call: Munmap,
        name: "far untouched",
        prepare: |a| map(far(a.side), FEW).map(|()| munmap(far(a.side))),
        finish: |a, got| unmapped(far(a.side), got),
    },
    Op {
        call: Munmap,
        name: "far touched",
        prepare: |a| touched(far(a.side), FEW).map(|()| munmap(far(a.side))),
        finish: |a, got| unmapped(far(a.side), got),
    },
    Op {
        call: Munmap,
        name: "far middle",
        prepare: |a| touched(far(a.side), 16).map(|()| munmap(far(a.side) + 4 * PAGE)),
        finish: |a, got| {
            unmapped(far(a.side) + 4 * PAGE, got)?;
            demand(
                sys::peek(far(a.side) + 8 * PAGE) == 5,
                "what lies behind stays",
            )
        },
    },
    Op {
        call: Munmap,
        name: "one file touched",
        prepare: |a| {
            map_file(far(a.side), ONE_FILE, libc::MAP_SHARED)?;
            (0..FILE_PAGES).for_each(|page| {
                sys::peek(far(a.side) + page * PAGE);
            });
            Ok(munmap(far(a.side)))
        },
        finish: |a, got| unmapped(far(a.side), got),
    },
    Op {
        call: Mprotect,
        name: "near touched",
        prepare: |a| touched(near(a.side), FEW).map(|()| mprotect(near(a.side))),
        finish: |a, got| protected(near(a.side), got),
    },
    Op {
        call: Mprotect,
        name: "far untouched",
        prepare: |a| map(far(a.side), FEW).map(|()| mprotect(far(a.side))),
        finish: |a, got| protected(far(a.side), got),
    },
    Op {
        call: Mprotect,
        name: "far touched",
        prepare: |a| touched(far(a.side), FEW).map(|()| mprotect(far(a.side))),
        finish: |a, got| protected(far(a.side), got),
    },
    Op {
        call: Madvise,
        name: "dontneed near",
        prepare: |a| {
            touched(near(a.side), FEW)?;
            Ok(madvise(near(a.side), libc::MADV_DONTNEED))
        },
        finish: |a, got| dropped(near(a.side), got),
    },
    Op {
        call: Madvise,
        name: "dontneed far",
        prepare: |a| {
            touched(far(a.side), FEW)?;
            Ok(madvise(far(a.side), libc::MADV_DONTNEED))
        },
        finish: |a, got| dropped(far(a.side), got),
    },
    Op {
        call: Madvise,
        name: "dontneed untouched",
        prepare: |a| {
            map(far(a.side), FEW)?;
            Ok(madvise(far(a.side), libc::MADV_DONTNEED))
        },
        finish: |a, got| dropped(far(a.side), got),
    },
    Op {
        call: Madvise,
        name: "willneed far",
        prepare: |a| {
            map_file(far(a.side), own(a.side).file, libc::MAP_SHARED)?;
            Ok(madvise(far(a.side), libc::MADV_WILLNEED))
        },
        finish: |a, got| expect(got, Ok(0)).and_then(|()| map(far(a.side), FEW)),
    },
    Op {
        call: Brk,
        name: "grow",
        prepare: |a| {
            a.kept = break_now()?;
            Ok(set_break(a.kept + PAGE))
        },
        finish: |a, got| {
            expect(got, Ok(a.kept + PAGE))?;
            expect(set_break(a.kept).carry_out(), Ok(a.kept))
        },
    },
    Op {
        call: Brk,
        name: "shrink",
        prepare: |a| {
            a.kept = break_now()?;
            expect(set_break(a.kept + PAGE).carry_out(), Ok(a.kept + PAGE))?;
            Ok(set_break(a.kept))
        },
        finish: |a, got| expect(got, Ok(a.kept)),
    },
    Op {
        call: Brk,
        name: "query",
        prepare: |a| {
            a.kept = break_now()?;
            Ok(set_break(0))
        },
        finish: |a, got| expect(got, Ok(a.kept)),
    },
];

const FAULTS: &[Op] = &[
    Op {
        call: Fault,
        name: "write near",
        prepare: |a| fresh(a, near(a.side), FEW),
        finish: |a, got| stored(a, near(a.side), got),
    },
    Op {
        call: Fault,
        name: "write next",
        prepare: |a| fresh(a, next(a.side), 1),
        finish: |a, got| stored(a, next(a.side), got),
    },
    Op {
        call: Fault,
        name: "write far",
        prepare: |a| fresh(a, far(a.side), FEW),
        finish: |a, got| stored(a, far(a.side), got),
    },
    Op {
        call: Fault,
        name: "read far",
        prepare: |a| map(far(a.side), FEW).map(|()| Act::Load(far(a.side))),
        finish: |_, got| expect(got, Ok(0)),
    },
    Op {
        call: Fault,
        name: "own file",
        prepare: |a| {
            map_file(far(a.side), own(a.side).file, libc::MAP_SHARED)?;
            Ok(Act::Load(far(a.side)))
        },
        finish: |a, got| expect(got, Ok(1)).and_then(|()| map(far(a.side), FEW)),
    },
    Op {
        call: Fault,
        name: "one file own page",
        prepare: |a| {
            map_file(far(a.side), ONE_FILE, libc::MAP_SHARED)?;
            let (at, to) = (own_page(a) - far(a.side), a.buffer());
            let read = sys::call(libc::SYS_pread64, &[ONE_FILE as u64, to, 1, at]);
            must("pread", read)?;
            a.kept = u64::from(sys::peek(to));
            Ok(Act::Load(own_page(a)))
        },
        finish: |a, got| expect(got, Ok(a.kept)).and_then(|()| map(far(a.side), FEW)),
    },
    Op {
        call: Fault,
        name: "one file one page",
        prepare: |a| {
            map_file(far(a.side), ONE_FILE, libc::MAP_SHARED)?;
            Ok(Act::Load(far(a.side)))
        },
        finish: |a, got| expect(got, Ok(1)).and_then(|()| map(far(a.side), FEW)),
    },
    Op {
        call: Fault,
        name: "write private file",
        prepare: |a| {
            map_file(far(a.side), ONE_FILE, libc::MAP_PRIVATE)?;
            Ok(Act::Store(far(a.side), a.next_byte()))
        },
        finish: |a, got| {
            stored(a, far(a.side), got)?;
            demand(sys::peek(far(a.side) + 1) == 1, "the rest was copied")?;
            map(far(a.side), FEW)
        },
    },
    Op {
        call: Fault,
        name: "copy on write",
        prepare: |a| {
            touched(far(a.side), FEW)?;
            make_sleeping_child(a)?;
            Ok(Act::Store(far(a.side), a.next_byte()))
        },
        finish: |a, got| {
            stored(a, far(a.side), got)?;
            demand(sys::peek(far(a.side) + 1) == 0, "the rest was copied")?;
            let_child_end(a)
        },
    },
];

/// All operations.
pub const OPS: [&[Op]; 2] = [MAPPINGS, FAULTS];

/// Restores the mapping of the side's own region for the next case.
pub fn restore(actor: &Actor) -> Result<(), String> {
    world::map(far(actor.side), 16)?;
    world::map(near(actor.side), 16)
}
