//! The CPUs on which a thread may run.

use user::sys;

/// A child that computes until it is killed. Its least weight leaves the CPU to others.
fn busy_child() -> Result<u64, i32> {
    match sys::fork()? {
        0 => {
            let _ = sc!(SYS_setpriority, libc::PRIO_PROCESS, 0, 19);
            loop {
                std::hint::spin_loop();
            }
        }
        pid => Ok(pid),
    }
}

/// The CPU that runs a process, or on whose queue it is.
fn cpu_of(pid: u64) -> Option<usize> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields = stat.rsplit_once(") ")?.1;
    fields.split(' ').nth(36)?.parse().ok()
}

tests! { "affinity";
    a_thread_runs_where_it_may {
        let cpus = sys::cpus();
        holds!(!cpus.is_empty());
        for &cpu in cpus.iter().take(4) {
            ok!(sys::tie_to_cpu(cpu));
            is!(sys::cpus(), [cpu]);
        }
        fails!(sc!(SYS_sched_setaffinity, 0, 8, [0u64].as_ptr()), EINVAL);
        fails!(sc!(SYS_sched_getaffinity, 0, 1, [0u64].as_ptr()), EINVAL);
        fails!(sc!(SYS_sched_setaffinity, 3_999_999, 8, [1u64].as_ptr()), ESRCH);
    }
    a_queued_process_moves_at_once {
        let cpus = sys::cpus();
        if cpus.len() < 2 {
            return Ok(());
        }
        let bit = |cpu: usize| [1u64 << cpu];
        ok!(sys::tie_to_cpu(cpus[0]));
        let busy: Vec<u64> = (0..40).filter_map(|_| busy_child().ok()).collect();
        is!(busy.len(), 40);
        ok!(sys::tie_to_cpu(cpus[1]));
        let moved = busy.iter().filter(|&&pid| {
            let set = sys::call(libc::SYS_sched_setaffinity, &[pid, 8, bit(cpus[1]).as_ptr() as u64]);
            set.is_ok() && cpu_of(pid) == Some(cpus[1])
        });
        // All but the one that runs, and those that run in its place meanwhile.
        let moved = moved.count();
        for &pid in &busy { ok!(sc!(SYS_kill, pid, libc::SIGKILL)); }
        for &pid in &busy { ok!(sys::wait(pid as i64, 0)); }
        holds!(moved >= 30);
    }
}
