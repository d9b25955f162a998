//! The random calls of one round.

use crate::arena::Arena;
use crate::opens::open_some;
use crate::random::Random;
use user::sys;

/// Calls left out: they end or stop the machine or the caller, set its clock, or load code into the kernel.
const LEFT_OUT: &[i64] = &[
    libc::SYS_rt_sigreturn, // its own round, below
    libc::SYS_ptrace,
    libc::SYS_sched_setattr,
    libc::SYS_vhangup,
    libc::SYS_pivot_root,
    libc::SYS_adjtimex,
    libc::SYS_clock_adjtime,
    libc::SYS_acct,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
];

/// Calls made only in rounds of their own, since they end the round.
const ENDS: &[i64] = &[libc::SYS_exit, libc::SYS_exit_group];

/// Calls made only in rounds of their own, as an unprivileged user, since with privileges they would change the whole
/// machine.
pub const AS_NOBODY: &[i64] = &[
    libc::SYS_sched_setparam,
    libc::SYS_sched_setscheduler,
    libc::SYS_clock_settime,
    libc::SYS_settimeofday,
    libc::SYS_reboot,
];

/// Calls that create a process: the child ends at once.
const FORKS: &[i64] = &[libc::SYS_fork, libc::SYS_clone];

/// Calls whose first argument selects the processes to signal: they get only the round's own process.
const KILLS: &[i64] = &[
    libc::SYS_kill,
    libc::SYS_tkill,
    libc::SYS_tgkill,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
];

/// The highest call number tried; numbers without a call must return ENOSYS.
pub const LAST: u64 = 460;

fn argument(random: &mut Random, arena: &Arena) -> u64 {
    match random.below(10) {
        0..4 => arena.pointer(random),
        4 => random.below(16),
        5 => 1 << random.below(64),
        6 => (1u64 << random.below(64)).wrapping_sub(1),
        7 => (random.below(16) as i64).wrapping_neg() as u64,
        8 => random.below(1 << 20),
        _ => random.next() & random.next(),
    }
}

extern "C" fn on_tick(_: i32) {}

/// The body of a round's child.
pub fn calls(seed: u64, count: u64, only: Option<u64>, made: u64) -> ! {
    let mut random = Random(seed);
    let me = sys::call(libc::SYS_getpid, &[]).unwrap_or(0);
    let _ = sys::call(libc::SYS_setpgid, &[0, 0]);
    let dir = format!("/tmp/abifuzz.{me}");
    let _ = std::fs::create_dir_all(&dir).and_then(|()| std::env::set_current_dir(&dir));
    open_some();
    let arena = Arena::new(&mut random);
    let _ = sys::on_signal(libc::SIGALRM, on_tick as *const () as usize, 0);
    let every = [0u64, 20_000, 0, 20_000]; // wakes the round from calls that would wait
    let _ = sys::call(libc::SYS_setitimer, &[0, every.as_ptr() as u64, 0]);
    for _ in 0..count {
        let nr = only.unwrap_or_else(|| random.below(LAST)) as i64;
        let mut args = [0u64; 6];
        args.fill_with(|| argument(&mut random, &arena));
        let alone = ENDS.contains(&nr) || AS_NOBODY.contains(&nr);
        if LEFT_OUT.contains(&nr) || alone && only.is_none() {
            continue;
        }
        if KILLS.contains(&nr) {
            args[0] = [me, 3_999_999, 0][random.below(3) as usize];
        }
        sys::atomic(made).fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        // A child that shares this memory would continue with this code; a child with memory of its own exits.
        let forks = FORKS.contains(&nr);
        if nr == libc::SYS_vfork {
            let _ = sys::vfork_exit();
            continue;
        }
        if forks {
            args[0] &= !(libc::CLONE_VM as u64);
        }
        if sys::call(nr, &args) == Ok(0) && forks {
            sys::exit(0);
        }
    }
    sys::exit(0)
}
