//! `abifuzz`: random pointers, lengths, descriptors and flags for every system call.
//!
//! Guarantee: the calls of a run follow from its seed alone, which is printed; `--seed S --round R` repeats one round.
//! After each round the kernel must still execute ordinary calls correctly, or the status is 1.
//! Mechanism: each round is a child that makes some thousands of calls in a directory and process group of its own; it
//! may well destroy itself. Calls whose purpose is to change the whole machine are made as an unprivileged user, or
//! left out. `--each` gives every system call a round of its own; `--elf` executes damaged programs instead; `--nobody`
//! makes all calls as an unprivileged user, which leaves the machine usable for later programs. With `--live` a round opens
//! objects of all kinds, and three of four calls are calls on such objects, with arguments that mean something.

mod arena;
mod calls;
mod elf;
mod health;
mod live;
mod opens;
mod random;
mod rows;
mod shapes;

use arena::PAGE;
use calls::{AS_NOBODY, LAST, calls};
use elf::damaged_program;
use health::{PATIENCE, healthy_at_last, patient_fork};
use live::Left;
use user::sys;

const USAGE: &str = "usage: abifuzz [--seed S] [--rounds N] [--round R] [--calls N] [--failalloc N] [--nobody] [--live] [--each] [--elf]";

/// The unprivileged user.
const NOBODY: u32 = 65534;

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

/// What the command line asks for.
struct Options {
    seed: u64,
    rounds: u64,
    /// The first round.
    first: u64,
    /// Calls of a round.
    count: u64,
    kind: Kind,
    programs: Vec<Vec<u8>>,
    fail_every: u64,
    nobody: bool,
    /// Calls are made on live objects, with plausible structures.
    live: bool,
}

impl Options {
    fn parse() -> Option<Options> {
        let mut options = Options {
            seed: sys::now_ns() % 1_000_000,
            rounds: 40,
            first: 0,
            count: 2000,
            kind: Kind::Any,
            programs: Vec::new(),
            fail_every: 0,
            nobody: false,
            live: false,
        };
        let mut args = std::env::args().skip(1);
        while let Some(arg) = args.next() {
            if options.word(&arg) {
                continue;
            }
            let value = args.next()?.parse().ok()?;
            match arg.as_str() {
                "--seed" => options.seed = value,
                "--rounds" => options.rounds = value,
                "--round" => (options.first, options.rounds) = (value, 1),
                "--calls" => options.count = value,
                "--failalloc" => options.fail_every = value,
                _ => return None,
            }
        }
        Some(options)
    }

    /// Whether `arg` is an option without a value.
    fn word(&mut self, arg: &str) -> bool {
        match arg {
            "--each" => (self.kind, self.rounds) = (Kind::Each, LAST),
            "--nobody" => self.nobody = true,
            "--live" => self.live = true,
            "--elf" => {
                let files = [
                    "/usr/bin/tiny-true",
                    "/usr/bin/true-static",
                    "/usr/bin/true",
                ];
                let there = files.iter().filter_map(|file| std::fs::read(file).ok());
                self.programs = there.collect();
                (self.kind, self.rounds) = (Kind::Elf, 300);
            }
            _ => return false,
        }
        true
    }

    /// The child of a round.
    fn play(&self, round: u64, left: Left) -> ! {
        let seed = self.seed.wrapping_mul(0x1_0000_0001).wrapping_add(round);
        let only = (self.kind == Kind::Each).then_some(round);
        let nobody = self.nobody || only.is_some_and(|nr| AS_NOBODY.contains(&(nr as i64)));
        if nobody && sys::become_user(NOBODY, &[]).is_err() {
            sys::exit(1);
        }
        match self.kind {
            Kind::Any | Kind::Each => calls(seed, self.count, only, self.live, left),
            Kind::Elf => {
                let which = round as usize % self.programs.len();
                damaged_program(seed, &self.programs[which], left)
            }
        }
    }
}

fn main() {
    let Some(options) = Options::parse() else {
        eprintln!("{USAGE}");
        sys::exit(2)
    };
    let (seed, rounds, first) = (options.seed, options.rounds, options.first);
    println!(
        "abifuzz: seed {seed}, {rounds} rounds of {} calls",
        options.count
    );
    let shared = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    let page = sys::mmap(0, PAGE, libc::PROT_READ | libc::PROT_WRITE, shared, -1, 0)
        .expect("a shared page");
    let left = Left(page);
    fail_allocations(options.fail_every);
    for round in first..first + rounds {
        match patient_fork() {
            Ok(0) => options.play(round, left),
            Ok(pid) => {
                finish(pid);
                left.remove();
            }
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
        sys::peek64(page)
    );
    sys::exit(0)
}
