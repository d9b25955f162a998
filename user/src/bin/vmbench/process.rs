//! Cases of system calls, fork, vfork and exec.

use crate::harness::{Case, PAGE, Worker, err};
use crate::memory::nothing;
use std::ffi::CString;
use user::sys;

/// Resident memory of the parent in `fork-16m`.
const RESIDENT: u64 = 16 << 20;

/// The cases of this file.
pub const CASES: &[Case] = &[
    Case {
        name: "null",
        what: "getppid",
        phases: &[""],
        prepare: nothing,
        work: null,
    },
    Case {
        name: "fork",
        what: "fork, exit, wait; small process",
        phases: &[""],
        prepare: nothing,
        work: |w| fork(w, 0, 300),
    },
    Case {
        name: "fork-16m",
        what: "fork, exit, wait; 16 MiB resident",
        phases: &[""],
        prepare: nothing,
        work: |w| fork(w, RESIDENT, 300),
    },
    Case {
        name: "vfork",
        what: "vfork, exit, wait",
        phases: &[""],
        prepare: nothing,
        work: vfork,
    },
    Case {
        name: "exec-tiny",
        what: "fork, exec, exit, wait; one-page static binary",
        phases: &[""],
        prepare: nothing,
        work: |w| exec(w, format!("{}/tiny-true", w.plan.programs)),
    },
    Case {
        name: "exec-static",
        what: "fork, exec, exit, wait; static glibc binary",
        phases: &[""],
        prepare: nothing,
        work: |w| exec(w, format!("{}/true-static", w.plan.programs)),
    },
    Case {
        name: "exec-dynamic",
        what: "fork, exec, exit, wait; dynamic glibc binary",
        phases: &[""],
        prepare: nothing,
        work: |w| exec(w, w.plan.dynamic.clone()),
    },
];

fn null(w: &mut Worker) -> Result<(), String> {
    let parent = sys::call(libc::SYS_getppid, &[]).map_err(err("getppid"))?;
    w.barrier();
    let ops = w.plan.scaled(200_000);
    let mut wrong = 0u64;
    w.start();
    for _ in 0..ops {
        wrong += u64::from(sys::call(libc::SYS_getppid, &[]) != Ok(parent));
    }
    w.stop(0, ops);
    if wrong > 0 {
        Err(format!("getppid answered wrong {wrong} times"))
    } else {
        Ok(())
    }
}

fn reap(pid: u64, want: i32) -> Result<(), String> {
    let (got, status) = sys::wait(pid as i64, 0).map_err(err("wait4"))?;
    if got == pid && status == want << 8 {
        Ok(())
    } else {
        Err(format!(
            "wait4 for {pid} gave pid {got} and status {status:#x}, not exit status {want}"
        ))
    }
}

/// So many times, in a process with as many bytes resident.
pub fn fork(w: &mut Worker, resident: u64, times: u64) -> Result<(), String> {
    if resident > 0 {
        let (prot, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        let base = sys::mmap(0, resident, prot, flags, -1, 0).map_err(err("mmap"))?;
        (base..base + resident)
            .step_by(PAGE as usize)
            .for_each(|addr| sys::poke64(addr, addr));
    }
    w.barrier();
    let ops = w.plan.scaled(times);
    w.start();
    for i in 0..ops {
        let want = (i % 100) as i32;
        match sys::fork().map_err(err("fork"))? {
            0 => sys::exit(want),
            pid => reap(pid, want)?,
        }
    }
    w.stop(0, ops);
    Ok(())
}

fn vfork(w: &mut Worker) -> Result<(), String> {
    w.barrier();
    let ops = w.plan.scaled(500);
    w.start();
    for _ in 0..ops {
        reap(sys::vfork_exit().map_err(err("vfork"))?, 0)?;
    }
    w.stop(0, ops);
    Ok(())
}

fn exec(w: &mut Worker, program: String) -> Result<(), String> {
    let path = CString::new(program.clone()).map_err(|_| "a path with a zero byte")?;
    if sys::call(libc::SYS_access, &[path.as_ptr() as u64, libc::X_OK as u64]).is_err() {
        return Err(format!("{program} is not there or cannot be executed"));
    }
    let argv = [path.as_ptr(), std::ptr::null()];
    let envp = [std::ptr::null::<i8>()];
    w.barrier();
    let ops = w.plan.scaled(100);
    w.start();
    for _ in 0..ops {
        match sys::fork().map_err(err("fork"))? {
            0 => {
                let _ = sys::call(
                    libc::SYS_execve,
                    &[
                        path.as_ptr() as u64,
                        argv.as_ptr() as u64,
                        envp.as_ptr() as u64,
                    ],
                );
                sys::exit(127);
            }
            pid => reap(pid, 0)?,
        }
    }
    w.stop(0, ops);
    Ok(())
}
