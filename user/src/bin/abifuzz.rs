//! `abifuzz`: random pointers, lengths, descriptors and flags for every system call.
//!
//! Guarantee: the calls of a run follow from its seed alone, which is printed; `--seed S --round R` repeats one round.
//! After each round the kernel must still execute ordinary calls correctly, or the status is 1.
//! Mechanism: each round is a child that makes some thousands of calls in a directory and process group of its own; it
//! may well destroy itself. Calls whose purpose is to change the whole machine are made as an unprivileged user, or
//! left out. `--each` gives every system call a round of its own; `--elf` executes damaged programs instead; `--nobody`
//! makes all calls as an unprivileged user, which leaves the machine usable for later programs.

use user::sys;

const USAGE: &str = "usage: abifuzz [--seed S] [--rounds N] [--round R] [--calls N] [--failalloc N] [--nobody] [--each] [--elf]";

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

/// The unprivileged user.
const NOBODY: u32 = 65534;

/// Calls made only in rounds of their own, since they end the round.
const ENDS: &[i64] = &[libc::SYS_exit, libc::SYS_exit_group];

/// Calls made only in rounds of their own, as an unprivileged user, since with privileges they would change the whole
/// machine.
const AS_NOBODY: &[i64] = &[
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
const LAST: u64 = 460;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// Memory that pointer arguments point into: a page, a read-only page, a hole.
struct Arena {
    base: u64,
}

const PAGE: u64 = 4096;

impl Arena {
    fn new(random: &mut Random) -> Arena {
        let rw = libc::PROT_READ | libc::PROT_WRITE;
        let base = sys::mmap(
            0,
            6 * PAGE,
            rw,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
        .unwrap_or(0x1000);
        for at in (base..base + 3 * PAGE).step_by(8) {
            // Structures of small numbers and zeroes pass the checks of more calls.
            let word = match random.below(4) {
                0 => random.next(),
                1 => 0,
                2 => base + random.below(6 * PAGE),
                _ => random.below(100),
            };
            sys::poke64(at, word);
        }
        for (slot, name) in [".", "a", "b/c", "..", "/dev/null", "/proc/self/maps", ""]
            .iter()
            .enumerate()
        {
            for (i, byte) in name.bytes().chain([0]).enumerate() {
                sys::poke(base + PAGE + slot as u64 * 32 + i as u64, byte);
            }
        }
        let _ = sys::call(
            libc::SYS_mprotect,
            &[base + 3 * PAGE, PAGE, libc::PROT_READ as u64],
        );
        let _ = sys::munmap(base + 4 * PAGE, PAGE);
        Arena { base }
    }

    fn pointer(&self, random: &mut Random) -> u64 {
        match random.below(12) {
            0 => 0,
            1 => 8,
            2 => self.base + 4 * PAGE - random.below(64),
            3 => self.base + 4 * PAGE + random.below(PAGE),
            4 => 0xffff_8000_0000_0000 + (random.next() >> 20),
            5 => 0x0000_7fff_ffff_f000 - random.below(16),
            6 => random.next(),
            7 => u64::MAX - random.below(4096),
            8 | 9 => self.base + PAGE + random.below(7) * 32,
            _ => self.base + random.below(3 * PAGE / 8) * 8,
        }
    }
}

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

/// Opens descriptors of several kinds, so that small numbers are open descriptors.
fn open_some() {
    let _ = sys::pipe(libc::O_NONBLOCK);
    for (name, flags) in [
        (".", 0),
        ("/dev/zero", libc::O_RDWR),
        ("f", libc::O_RDWR | libc::O_CREAT),
    ] {
        let _ = sys::open(name, flags, 0o600);
    }
    open_pseudo_terminal();
    // Writes to standard output would print garbage on the console.
    for fd in 0..3 {
        if let Ok(null) = sys::open("/dev/null", libc::O_RDWR, 0) {
            let _ = sys::call(libc::SYS_dup2, &[null as u64, fd]);
            let _ = sys::close(null);
        }
    }
}

/// Opens both ends of a pseudo-terminal, if there is room for them.
fn open_pseudo_terminal() {
    const TIOCGPTPEER: u64 = 0x5441;
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_NONBLOCK;
    let Ok(master) = sys::open("/dev/ptmx", flags, 0) else {
        return;
    };
    let unlocked = 0i32;
    let at = &raw const unlocked as u64;
    let _ = sys::call(libc::SYS_ioctl, &[master as u64, libc::TIOCSPTLCK, at]);
    let flags = flags as u64;
    let _ = sys::call(libc::SYS_ioctl, &[master as u64, TIOCGPTPEER, flags]);
}

extern "C" fn on_tick(_: i32) {}

/// The body of a round's child.
fn calls(seed: u64, count: u64, only: Option<u64>, made: u64) -> ! {
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

/// Waits at most two seconds for the round to end; then kills its whole group.
fn finish(pid: u64) {
    let began = sys::now_ns();
    while !matches!(sys::wait(pid as i64, libc::WNOHANG), Ok((got, _)) if got == pid) {
        if sys::now_ns() - began > 2_000_000_000 {
            let _ = sys::call(libc::SYS_kill, &[pid, libc::SIGKILL as u64]);
            let _ = sys::wait(pid as i64, 0);
            break;
        }
        sys::nap(2_000_000);
    }
    let _ = sys::call(
        libc::SYS_kill,
        &[(pid as i64).wrapping_neg() as u64, libc::SIGKILL as u64],
    );
    let left = format!("/tmp/abifuzz.{pid}");
    let _ = std::fs::remove_dir_all(&left).or_else(|_| std::fs::remove_file(&left));
}

/// Checks that ordinary calls still work.
fn healthy() -> Result<(), String> {
    let text = |what: &'static str| move |errno: i32| format!("{what}: errno {errno}");
    let rw = libc::PROT_READ | libc::PROT_WRITE;
    let base = sys::mmap(
        0,
        64 * PAGE,
        rw,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        -1,
        0,
    )
    .map_err(text("mmap"))?;
    for at in (base..base + 64 * PAGE).step_by(PAGE as usize) {
        if sys::peek64(at) != 0 {
            return Err("a fresh page is not zero".into());
        }
        sys::poke64(at, at);
    }
    let (from, to) = sys::pipe(0).map_err(text("pipe"))?;
    match sys::fork().map_err(text("fork"))? {
        0 => {
            let right = (base..base + 64 * PAGE)
                .step_by(PAGE as usize)
                .all(|at| sys::peek64(at) == at);
            // The parent waits for this byte, so the write is repeated until it succeeds.
            while sys::write(to, &[u8::from(right)]) == Err(libc::ENOMEM) {}
            sys::exit(17)
        }
        pid => {
            let mut byte = [0];
            sys::read(from, &mut byte).map_err(text("read"))?;
            let (_, status) = sys::wait(pid as i64, 0).map_err(text("wait4"))?;
            if byte != [1] || status != 17 << 8 {
                return Err(format!("a child said {byte:?} and ended with {status:#x}"));
            }
        }
    }
    let _ = (sys::close(from), sys::close(to));
    sys::munmap(base, 64 * PAGE)
        .map(drop)
        .map_err(text("munmap"))
}

/// Executes `program` with a few of its bytes damaged, or truncated; the process is ended after a while in any case.
fn damaged_program(seed: u64, program: &[u8], made: u64) -> ! {
    let mut random = Random(seed);
    let me = std::process::id();
    let _ = sys::call(libc::SYS_setpgid, &[0, 0]);
    open_some();
    let mut bytes = program.to_vec();
    // The kernel reads the headers: 64 bytes of ELF header, then program headers of 56.
    let headers = 64 + 56 * u64::from(program[56]);
    for _ in 0..=random.below(4) {
        let at = random.below(headers.min(bytes.len() as u64)) as usize;
        match random.below(3) {
            0 => bytes[at] = random.next() as u8,
            1 => bytes[at] ^= 1 << random.below(8),
            _ => bytes[at & !7..(at & !7) + 8]
                .copy_from_slice(&(u64::MAX >> random.below(64)).to_ne_bytes()),
        }
    }
    if random.below(4) == 0 {
        bytes.truncate(random.below(bytes.len() as u64) as usize);
    }
    let file = format!("/tmp/abifuzz.{me}");
    let Ok(fd) = sys::open(&file, libc::O_WRONLY | libc::O_CREAT, 0o700) else {
        sys::exit(1)
    };
    let _ = sys::write(fd, &bytes);
    let _ = sys::close(fd);
    sys::atomic(made).fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let path = std::ffi::CString::new(file).expect("a path without a zero byte");
    let argv = [path.as_ptr(), std::ptr::null()];
    let _ = sys::call(
        libc::SYS_execve,
        &[path.as_ptr() as u64, argv.as_ptr() as u64, 0],
    );
    sys::exit(0)
}

/// The kind of round.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Any,
    Each,
    Elf,
}

/// The file that sets how often an allocation that may fail does fail; 0 for never.
const FAILURES: &str = "/sys/kernel/debug/fail_page_alloc/interval";

/// Makes every `interval`-th allocation fail, or none for 0, if the kernel supports that.
fn fail_allocations(interval: u64) {
    let text = interval.to_string();
    let told = (0..PATIENCE).any(|_| std::fs::write(FAILURES, &text).is_ok());
    if !told && interval > 0 {
        println!("abifuzz: {FAILURES} is not there");
    }
}

/// The number of times that an operation is repeated that failed with ENOMEM, as it may if memory is short or if the
/// kernel makes allocations fail.
const PATIENCE: usize = 200;

/// `fork`, repeated while it fails with ENOMEM.
fn patient_fork() -> Result<u64, sys::Errno> {
    let mut result = sys::fork();
    for _ in 0..PATIENCE {
        if result != Err(libc::ENOMEM) {
            break;
        }
        result = sys::fork();
    }
    result
}

/// [`healthy`], repeated while it fails with ENOMEM.
fn healthy_at_last() -> Result<(), String> {
    let short = format!("errno {}", libc::ENOMEM);
    let mut result = healthy();
    for _ in 0..PATIENCE {
        if !result
            .as_ref()
            .is_err_and(|reason| reason.ends_with(&short))
        {
            break;
        }
        result = healthy();
    }
    result
}

fn main() {
    let (mut seed, mut rounds, mut first, mut count) = (sys::now_ns() % 1_000_000, 40, 0, 2000);
    let (mut kind, mut programs, mut fail_every, mut nobody) = (Kind::Any, Vec::new(), 0, false);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--each" => {
                (kind, rounds) = (Kind::Each, LAST);
                continue;
            }
            "--nobody" => {
                nobody = true;
                continue;
            }
            "--elf" => {
                let files = [
                    "/usr/bin/tiny-true",
                    "/usr/bin/true-static",
                    "/usr/bin/true",
                ];
                programs = files
                    .iter()
                    .filter_map(|file| std::fs::read(file).ok())
                    .collect::<Vec<_>>();
                (kind, rounds) = (Kind::Elf, 300);
                continue;
            }
            _ => {}
        }
        let Some(value) = args.next().and_then(|text| text.parse::<u64>().ok()) else {
            eprintln!("{USAGE}");
            sys::exit(2)
        };
        match arg.as_str() {
            "--seed" => seed = value,
            "--rounds" => rounds = value,
            "--round" => (first, rounds) = (value, 1),
            "--calls" => count = value,
            "--failalloc" => fail_every = value,
            _ => {
                eprintln!("{USAGE}");
                sys::exit(2)
            }
        }
    }
    println!("abifuzz: seed {seed}, {rounds} rounds of {count} calls");
    let shared = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    let made = sys::mmap(0, PAGE, libc::PROT_READ | libc::PROT_WRITE, shared, -1, 0)
        .expect("a shared page");
    fail_allocations(fail_every);
    for round in first..first + rounds {
        match patient_fork() {
            Ok(0) => {
                let seed = seed.wrapping_mul(0x1_0000_0001).wrapping_add(round);
                let only = (kind == Kind::Each).then_some(round);
                let nobody = nobody || only.is_some_and(|nr| AS_NOBODY.contains(&(nr as i64)));
                if nobody && sys::become_user(NOBODY, &[]).is_err() {
                    sys::exit(1);
                }
                match kind {
                    Kind::Any | Kind::Each => calls(seed, count, only, made),
                    Kind::Elf => {
                        damaged_program(seed, &programs[round as usize % programs.len()], made)
                    }
                }
            }
            Ok(pid) => finish(pid),
            Err(errno) => println!("abifuzz: fork: errno {errno}"),
        }
        if let Err(reason) = healthy_at_last() {
            println!("abifuzz: WRONG after --seed {seed} --round {round}: {reason}");
            sys::exit(1);
        }
    }
    fail_allocations(0);
    println!(
        "abifuzz: {} calls made, the kernel is well",
        sys::peek64(made)
    );
    sys::exit(0)
}
