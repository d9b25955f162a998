//! Cases that need gigabytes, or ten thousand processes: run only if their names are asked for.

use crate::harness::{Case, PAGE, Worker, err};
use crate::memory::{self, nothing};
use crate::pipes::{get, pipe, put};
use crate::process::fork;
use user::sys;

/// What the names of these cases begin with.
pub const PREFIX: &str = "large-";

/// The cases of this file.
pub const CASES: &[Case] = &[
    Case {
        name: "large-fork",
        what: "fork, exit, wait; 1 GiB resident",
        phases: &[""],
        prepare: nothing,
        work: |w| fork(w, 1 << 30, 20),
    },
    Case {
        name: "large-shrink",
        what: "mapping of a file's page that goes when the file is cut; as many of one page as there are sharers",
        phases: &[""],
        prepare: nothing,
        work: shrink,
    },
    Case {
        name: "large-huge",
        what: "page touched of 64 MiB that ask for huge pages, with mmap and munmap",
        phases: &[""],
        prepare: nothing,
        work: huge,
    },
];

/// One page of a file, mapped by all sharers, is cut off.
fn shrink(w: &mut Worker) -> Result<(), String> {
    let path = format!("{}/vmbench.{}.cut", w.plan.dir, std::process::id());
    let fd = sys::open(&path, libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC, 0o600)
        .map_err(err("open of a new file"))?;
    std::fs::remove_file(&path).map_err(|e| format!("unlink: {e}"))?;
    sys::write(fd, &[7; PAGE as usize]).map_err(err("write"))?;
    let base = sys::mmap(0, PAGE, libc::PROT_READ, libc::MAP_SHARED, fd, 0)
        .map_err(err("mmap of a file"))?;
    let [seen, hold] = [pipe()?, pipe()?];
    let sharers = w.plan.sharers;
    for _ in 0..sharers {
        if sys::fork().map_err(err("fork"))? == 0 {
            let _ = sys::close(hold.1);
            let told = put(seen.1, sys::peek(base));
            let _ = sys::read(hold.0, &mut [0]);
            sys::exit(i32::from(told.is_err()));
        }
        if get(seen.0)? != 7 {
            return Err("a sharer saw another page".into());
        }
    }
    w.barrier();
    w.start();
    sys::call(libc::SYS_ftruncate, &[fd as u64, 0]).map_err(err("ftruncate"))?;
    w.stop(0, sharers);
    let _ = sys::close(hold.1);
    for _ in 0..sharers {
        let (pid, status) = sys::wait(-1, 0).map_err(err("wait4"))?;
        if status != 0 {
            return Err(format!("process {pid} ended with status {status:#x}"));
        }
    }
    Ok(())
}

fn huge(w: &mut Worker) -> Result<(), String> {
    const REGION: u64 = 64 << 20;
    w.barrier();
    for _ in 0..w.plan.scaled(8) {
        w.start();
        let base = memory::map_anon(REGION)?;
        sys::call(
            libc::SYS_madvise,
            &[base, REGION, libc::MADV_HUGEPAGE as u64],
        )
        .map_err(err("madvise"))?;
        memory::touch(base, REGION);
        memory::unmap(base, REGION)?;
        w.stop(0, REGION / PAGE);
    }
    Ok(())
}
