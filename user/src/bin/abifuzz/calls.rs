//! The random calls of one round.

use crate::arena::{Arena, PAGE};
use crate::live::{Left, Live};
use crate::opens::open_some;
use crate::random::Random;
use crate::rows::{Arg, ROOMS, row_of};
use crate::shapes::{Scratch, name_length, number};
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
const FORKS: &[i64] = &[libc::SYS_fork, libc::SYS_clone, libc::SYS_clone3];

/// Calls whose first argument selects the processes to signal: they get only the round's own process.
const KILLS: &[i64] = &[
    libc::SYS_kill,
    libc::SYS_tkill,
    libc::SYS_tgkill,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
];

/// Signals that would return to the instruction that caused them.
const FAULTS: &[i32] = &[
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGILL,
    libc::SIGFPE,
    libc::SIGTRAP,
    libc::SIGSYS,
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

/// What the calls of a round are made on.
struct Targets {
    arena: Arena,
    /// Live objects and structures, in a round that has them.
    live: Option<(Live, Scratch)>,
}

impl Targets {
    /// A call and its arguments; `only` names the call.
    fn choose(&mut self, random: &mut Random, only: Option<u64>) -> (i64, [u64; 6]) {
        let mut args = [0u64; 6];
        let Some((live, scratch)) = &mut self.live else {
            let nr = only.unwrap_or_else(|| random.below(LAST));
            args.fill_with(|| argument(random, &self.arena));
            return (nr as i64, args);
        };
        let room = ROOMS[random.below(ROOMS.len() as u64) as usize];
        let (any, nth) = (random.below(4) == 0, random.next());
        let favoured = room[nth as usize % room.len()];
        let (nr, row) = match only {
            Some(nr) => (nr as i64, row_of(nr as i64, nth)),
            None if any => {
                let nr = random.below(LAST) as i64;
                (nr, row_of(nr, nth))
            }
            None => favoured,
        };
        for (at, value) in args.iter_mut().enumerate() {
            let kind = row.get(at).copied().unwrap_or(Arg::Any);
            // Numbers of its own, as for structures.
            let random = &mut Random(random.next());
            *value = match (kind, random.below(16)) {
                (Arg::Any, 0..4) => scratch.any(random, live),
                (Arg::Any, 4..6) => live.fd(random),
                (Arg::Any, _) | (_, 0) => argument(random, &self.arena),
                _ => meant(kind, random, live, scratch),
            };
        }
        (nr, args)
    }
}

/// An argument that means something.
fn meant(kind: Arg, random: &mut Random, live: &mut Live, scratch: &mut Scratch) -> u64 {
    let which = random.below(4) as usize;
    match kind {
        Arg::Any | Arg::Flags => random.next() & random.next() & random.next() & 0xffff_ffff,
        Arg::Fd => live.fd(random),
        Arg::Sock => live.socket(random),
        Arg::Pidfd => live.pidfd(random),
        Arg::Epoll => live.epoll_fd(random),
        Arg::To(shape) => scratch.make(shape, random, live),
        Arg::Of(numbers) => numbers[random.below(numbers.len() as u64) as usize],
        Arg::Len => number(random),
        Arg::NameLen => name_length(random),
        Arg::Pid => live.pid(random),
        Arg::Shm => live.shm[which],
        Arg::Sem => live.sem[which],
        Arg::Msg => live.msg[which],
        Arg::Timer => live.timers[which],
        Arg::Map => live.page(random),
        Arg::Span => {
            [1, 1, 2, 3, 4, 8, 9, 0][random.below(8) as usize] * PAGE + random.below(8) / 7
        }
    }
}

/// Prepares the round's process; returns the targets of its calls.
fn prepare(random: &mut Random, me: u64, live: bool, left: Left) -> Targets {
    // A group of its own in any case, of a session of its own in half of the live rounds.
    if !live || random.below(2) == 0 || sys::call(libc::SYS_setsid, &[]).is_err() {
        let _ = sys::call(libc::SYS_setpgid, &[0, 0]);
    }
    let dir = format!("/tmp/abifuzz.{me}");
    let _ = std::fs::create_dir_all(&dir).and_then(|()| std::env::set_current_dir(&dir));
    open_some();
    let arena = Arena::new(random);
    let handler = on_tick as *const () as usize;
    let _ = sys::on_signal(libc::SIGALRM, handler, 0);
    let mut targets = Targets { arena, live: None };
    if live {
        // Signals of timers, terminals and children do not end the round. Those of faults do.
        for signal in (1..=64).filter(|&signal| !FAULTS.contains(&signal)) {
            let _ = sys::on_signal(signal, handler, 0);
        }
        let scratch = Scratch::new();
        targets.live = scratch.map(|scratch| (Live::new(random, me, left), scratch));
    }
    wake_every(if live { 5_000 } else { 20_000 });
    targets
}

/// Wakes the round from calls that would wait, after so many microseconds each.
fn wake_every(us: u64) {
    let every = [0, us, 0, us];
    let _ = sys::call(libc::SYS_setitimer, &[0, every.as_ptr() as u64, 0]);
}

/// Undoes what calls have done to the round's alarm.
fn wake_again(made: u64) {
    let none = 0u64;
    let at = (&raw const none).expose_provenance() as u64;
    let _ = sys::call(
        libc::SYS_rt_sigprocmask,
        &[libc::SIG_SETMASK as u64, at, 0, 8],
    );
    if made.is_multiple_of(4 * RENEWED) {
        wake_every(5_000);
    }
}

/// Writes to a page of a mapping by way of /proc/self/mem, and by process_vm_writev.
fn write_by_number(random: &mut Random, live: &Live) {
    let at = live.page(random) + random.below(PAGE);
    if let Ok(fd) = sys::open("/proc/self/mem", libc::O_RDWR, 0) {
        let text = [0xc3u8; 64];
        let from = text.as_ptr().expose_provenance() as u64;
        let args = [fd as u64, from, random.below(64), at];
        let _ = sys::call(libc::SYS_pwrite64, &args);
        let (here, there) = ([from, 64], [at, random.below(9000)]);
        let here = here.as_ptr().expose_provenance() as u64;
        let there = there.as_ptr().expose_provenance() as u64;
        let _ = sys::call(
            libc::SYS_process_vm_writev,
            &[live.me, here, 1, there, 1, 0],
        );
        let _ = sys::close(fd);
    }
}

/// Calls between two renewals of a live object.
const RENEWED: u64 = 24;

/// The body of a round's child.
pub fn calls(seed: u64, count: u64, only: Option<u64>, live: bool, left: Left) -> ! {
    let mut random = Random(seed);
    let me = sys::call(libc::SYS_getpid, &[]).unwrap_or(0);
    let mut targets = prepare(&mut random, me, live, left);
    for made in 0..count {
        if let Some((live, _)) = &mut targets.live
            && made % RENEWED == 0
        {
            wake_again(made);
            let own = &mut Random(random.next());
            live.renew(own);
            if own.below(8) == 0 {
                write_by_number(own, live);
            }
        }
        let (nr, mut args) = targets.choose(&mut random, only);
        let alone = ENDS.contains(&nr) || AS_NOBODY.contains(&nr);
        if LEFT_OUT.contains(&nr) || alone && only.is_none() {
            continue;
        }
        if KILLS.contains(&nr) || nr == libc::SYS_pidfd_open {
            let child = targets.live.as_ref().map_or(me, |(live, _)| live.child);
            args[0] = [me, child, 3_999_999, 0][random.below(4) as usize];
        }
        left.count();
        // A child that shares this memory would continue with this code; a child with memory of its own exits.
        let forks = FORKS.contains(&nr);
        if nr == libc::SYS_vfork {
            let _ = sys::vfork_exit();
            continue;
        }
        if nr == libc::SYS_clone {
            args[0] &= !(libc::CLONE_VM as u64);
        }
        match sys::call(nr, &args) {
            Ok(0) if forks => sys::exit(0),
            Ok(id) => left.note(nr, id),
            Err(_) => {}
        }
    }
    sys::exit(0)
}
