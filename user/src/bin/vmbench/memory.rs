//! Cases of faults and mappings.

use crate::harness::{Case, PAGE, Plan, Worker, err};
use user::sys;

const MIB: u64 = 1 << 20;
/// Bytes touched in one round: 4,096 faults, small enough for any guest, large enough to drown a timer tick.
const REGION: u64 = 16 * MIB;
const RW: i32 = libc::PROT_READ | libc::PROT_WRITE;
const ANON: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
const KNOB: &str = "/sys/kernel/debug/fault_around_bytes";

/// The cases of this file.
pub const CASES: &[Case] = &[
    Case {
        name: "zfod-touch",
        what: "zero-fill fault",
        phases: &[""],
        prepare: nothing,
        work: zfod_touch,
    },
    Case {
        name: "zfod-map",
        what: "zero-fill fault with mmap and munmap of 16 MiB",
        phases: &[""],
        prepare: nothing,
        work: zfod_map,
    },
    Case {
        name: "file-own-read",
        what: "read fault, resident page, own file",
        phases: &[""],
        prepare: one_page,
        work: |w| file_own(w, false),
    },
    Case {
        name: "file-own-write",
        what: "write fault, resident page, own file",
        phases: &[""],
        prepare: one_page,
        work: |w| file_own(w, true),
    },
    Case {
        name: "file-one-read",
        what: "read fault, resident page, one file",
        phases: &[""],
        prepare: one_file_one_page,
        work: |w| file_one(w, false),
    },
    Case {
        name: "file-one-write",
        what: "write fault, resident page, one file",
        phases: &[""],
        prepare: one_file_one_page,
        work: |w| file_one(w, true),
    },
    Case {
        name: "file-own-around",
        what: "page read, own file, kernel may map around",
        phases: &[""],
        prepare: around,
        work: |w| file_own(w, false),
    },
    Case {
        name: "file-one-around",
        what: "page read, one file, kernel may map around",
        phases: &[""],
        prepare: one_file_around,
        work: |w| file_one(w, false),
    },
    Case {
        name: "cow",
        what: "copy-on-write fault after fork",
        phases: &[""],
        prepare: nothing,
        work: cow,
    },
    Case {
        name: "cow-one-parent",
        what: "copy-on-write fault, workers of one parent",
        phases: &[""],
        prepare: touched_region,
        work: cow_one_parent,
    },
    Case {
        name: "mmap",
        what: "mmap and munmap of 16 MiB, untouched",
        phases: &[""],
        prepare: nothing,
        work: mmap,
    },
    Case {
        name: "mremap",
        what: "page moved and read, of 16 MiB",
        phases: &[""],
        prepare: nothing,
        work: mremap,
    },
];

/// No preparation.
pub fn nothing(_: &Plan) -> Result<u64, String> {
    Ok(0)
}

/// New anonymous memory.
pub fn map_anon(len: u64) -> Result<u64, String> {
    sys::mmap(0, len, RW, ANON, -1, 0).map_err(err("mmap"))
}

/// Takes memory away.
pub fn unmap(addr: u64, len: u64) -> Result<(), String> {
    sys::munmap(addr, len).map(drop).map_err(err("munmap"))
}

/// Reads every page's first word, which must be zero, then writes it: the write is what faults, so the
/// check comes after it, on the second word.
pub fn touch(base: u64, len: u64) {
    for addr in (base..base + len).step_by(PAGE as usize) {
        sys::poke64(addr, addr);
    }
}

/// Whether memory that was zero holds what [`touch`] wrote, and is else zero.
///
/// # Errors
/// What is wrong.
pub fn check_touched(base: u64, len: u64) -> Result<(), String> {
    for addr in (base..base + len).step_by(PAGE as usize) {
        let (first, second) = (
            sys::peek64(addr),
            sys::peek64(addr + 8 + (addr >> 12) % 511 * 8),
        );
        if first != addr || second != 0 {
            return Err(format!(
                "zero-filled page at {addr:#x} holds {first:#x} and {second:#x}"
            ));
        }
    }
    Ok(())
}

fn zfod_touch(w: &mut Worker) -> Result<(), String> {
    w.barrier();
    for _ in 0..w.plan.scaled(8) {
        let base = map_anon(REGION)?;
        w.start();
        touch(base, REGION);
        w.stop(0, REGION / PAGE);
        check_touched(base, REGION)?;
        unmap(base, REGION)?;
    }
    Ok(())
}

fn zfod_map(w: &mut Worker) -> Result<(), String> {
    w.barrier();
    for _ in 0..w.plan.scaled(8) {
        w.start();
        let base = map_anon(REGION)?;
        touch(base, REGION);
        unmap(base, REGION)?;
        w.stop(0, REGION / PAGE);
    }
    let base = map_anon(REGION)?;
    touch(base, REGION);
    check_touched(base, REGION)?;
    unmap(base, REGION)
}

fn mmap(w: &mut Worker) -> Result<(), String> {
    w.barrier();
    let ops = w.plan.scaled(2000);
    w.start();
    for _ in 0..ops {
        let base = map_anon(REGION)?;
        unmap(base, REGION)?;
    }
    w.stop(0, ops);
    Ok(())
}

fn mremap(w: &mut Worker) -> Result<(), String> {
    let mut base = touched_region(&w.plan)?;
    w.barrier();
    for _ in 0..w.plan.scaled(8) {
        let to = map_anon(REGION)?;
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        w.start();
        sys::call(libc::SYS_mremap, &[base, REGION, REGION, flags as u64, to])
            .map_err(err("mremap"))?;
        let mut wrong = None;
        for at in (0..REGION).step_by(PAGE as usize) {
            if sys::peek64(to + at) != base + at {
                wrong = Some(at);
            }
        }
        w.stop(0, REGION / PAGE);
        if let Some(at) = wrong {
            return Err(format!(
                "the page at {at:#x} reads wrong where it was moved to"
            ));
        }
        touch(to, REGION);
        base = to;
    }
    check_touched(base, REGION)?;
    unmap(base, REGION)
}

/// Resets the number of bytes that a read fault may map around itself to the kernels' default, so that a case which
/// sets it does not affect later cases.
pub fn reset_fault_around() {
    // Without the file no case has changed the number.
    drop(std::fs::write(KNOB, "65536"));
}

/// Sets the number of bytes that a read fault may map around itself; without the file the kernel keeps its own.
fn set_fault_around(bytes: u64) {
    let text = bytes.to_string();
    if std::fs::write(KNOB, &text).is_err() {
        let name = c"debugfs";
        let dir = c"/sys/kernel/debug";
        let _ = sys::call(
            libc::SYS_mount,
            &[
                name.as_ptr() as u64,
                dir.as_ptr() as u64,
                name.as_ptr() as u64,
                0,
                0,
            ],
        );
        if std::fs::write(KNOB, &text).is_err() {
            eprintln!(
                "vmbench: {KNOB} cannot be set to {text}; the kernel's own figure is in force"
            );
        }
    }
}

fn one_page(_: &Plan) -> Result<u64, String> {
    set_fault_around(PAGE);
    Ok(0)
}

fn around(_: &Plan) -> Result<u64, String> {
    set_fault_around(16 * PAGE);
    Ok(0)
}

fn one_file_one_page(plan: &Plan) -> Result<u64, String> {
    set_fault_around(PAGE);
    make_file(&plan.dir, "one")
}

fn one_file_around(plan: &Plan) -> Result<u64, String> {
    set_fault_around(16 * PAGE);
    make_file(&plan.dir, "one")
}

fn word_of(page: u64) -> u64 {
    page.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}

/// Creates an unlinked file of `REGION` bytes, every page resident; returns its descriptor.
fn make_file(dir: &str, name: &str) -> Result<u64, String> {
    let path = format!("{dir}/vmbench.{}.{name}", std::process::id());
    let fd = sys::open(&path, libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC, 0o600)
        .map_err(err("open of a new file"))?;
    let mut chunk = vec![0u8; 16 * PAGE as usize];
    for start in (0..REGION / PAGE).step_by(16) {
        for i in 0..16 {
            let at = i * PAGE as usize;
            chunk[at..at + 8].copy_from_slice(&word_of(start + i as u64).to_ne_bytes());
        }
        let mut done = 0;
        while done < chunk.len() {
            done += sys::write(fd, &chunk[done..]).map_err(err("write"))?;
        }
    }
    std::fs::remove_file(&path).map_err(|e| format!("unlink: {e}"))?;
    Ok(fd as u64)
}

fn file_own(w: &mut Worker, write: bool) -> Result<(), String> {
    let fd = make_file(&w.plan.dir, &format!("own{}", w.index))?;
    file_faults(w, fd as i32, write)
}

fn file_one(w: &mut Worker, write: bool) -> Result<(), String> {
    file_faults(w, w.prepared as i32, write)
}

fn file_faults(w: &mut Worker, fd: i32, write: bool) -> Result<(), String> {
    let prot = if write { RW } else { libc::PROT_READ };
    w.barrier();
    for _ in 0..w.plan.scaled(8) {
        let base =
            sys::mmap(0, REGION, prot, libc::MAP_SHARED, fd, 0).map_err(err("mmap of a file"))?;
        let mut wrong = None;
        w.start();
        for page in 0..REGION / PAGE {
            let addr = base + page * PAGE;
            if write {
                // The second word: readers check the first. All workers store the same value.
                sys::poke64(addr + 8, word_of(page) ^ 2);
            } else if sys::peek64(addr) != word_of(page) {
                wrong = Some(page);
            }
        }
        w.stop(0, REGION / PAGE);
        unmap(base, REGION)?;
        if let Some(page) = wrong {
            return Err(format!(
                "page {page} of the file reads wrong through its mapping"
            ));
        }
    }
    check_file(fd, write)
}

/// Checks the file through read(2): stores through a mapping must be visible.
fn check_file(fd: i32, written: bool) -> Result<(), String> {
    for page in 0..REGION / PAGE {
        let mut words = [0u64; 2];
        let got = sys::call(
            libc::SYS_pread64,
            &[fd as u64, words.as_mut_ptr() as u64, 16, page * PAGE],
        )
        .map_err(err("pread"))?;
        let second = if written { word_of(page) ^ 2 } else { words[1] };
        if got != 16 || words != [word_of(page), second] {
            return Err(format!(
                "page {page} of the file holds {words:x?} after the run"
            ));
        }
    }
    Ok(())
}

fn cow(w: &mut Worker) -> Result<(), String> {
    let base = touched_region(&w.plan)?;
    w.barrier();
    for _ in 0..w.plan.scaled(8) {
        match sys::fork().map_err(err("fork"))? {
            0 => {
                w.start();
                write_copies(base);
                w.stop(0, REGION / PAGE);
                sys::exit(i32::from(check_copies(base).is_err()));
            }
            pid => {
                let (_, status) = sys::wait(pid as i64, 0).map_err(err("wait4"))?;
                if status != 0 {
                    return Err(format!(
                        "the child saw wrong copies, or died: status {status:#x}"
                    ));
                }
            }
        }
    }
    check_touched(base, REGION).map_err(|e| format!("the parent's pages changed: {e}"))?;
    unmap(base, REGION)
}

fn touched_region(_: &Plan) -> Result<u64, String> {
    let base = map_anon(REGION)?;
    touch(base, REGION);
    Ok(base)
}

fn cow_one_parent(w: &mut Worker) -> Result<(), String> {
    let base = w.prepared;
    w.barrier();
    w.start();
    write_copies(base);
    w.stop(0, REGION / PAGE);
    check_copies(base)
}

fn write_copies(base: u64) {
    for addr in (base..base + REGION).step_by(PAGE as usize) {
        sys::poke64(addr + 4088, !addr);
    }
}

fn check_copies(base: u64) -> Result<(), String> {
    for addr in (base..base + REGION).step_by(PAGE as usize) {
        if sys::peek64(addr) != addr
            || sys::peek64(addr + 4088) != !addr
            || sys::peek64(addr + 2048) != 0
        {
            return Err(format!("the copy of page {addr:#x} is wrong"));
        }
    }
    Ok(())
}
