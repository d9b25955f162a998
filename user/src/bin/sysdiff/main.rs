//! `sysdiff`: random programs of system calls, whose every result can be compared with another kernel's.
//!
//! Guarantee: a program is generated from its seed alone; its lines are the same in each run on one kernel, and on two
//! kernels as long as they behave alike, except for what the table in [`normal`] normalizes.
//! Mechanism: actors (processes and threads, root's and an unprivileged user's) act one at a time, as a referee orders;
//! each step is one call, with arguments chosen among what is open, mapped and alive at that moment.

mod actor;
mod board;
mod calls;
mod dice;
mod normal;
mod referee;
mod snapshot;

use referee::Program;
use std::io::BufRead;
use user::sys;

const USAGE: &str = "\
usage: sysdiff FIRST COUNT STEPS KEEP q|v    plays programs of the seeds FIRST and following; KEEP is `all` or steps (1,3-9)
       sysdiff --serve                       the same for each line of standard input
       sysdiff --table                       what is made equal before kernels are compared";

fn keep(text: &str) -> Option<Vec<(u32, u32)>> {
    if text == "all" {
        return Some(Vec::new());
    }
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some((first.parse().ok()?, last.parse().ok()?))
    };
    text.split(',').map(range).collect()
}

/// Runs the programs that one line of words requests.
fn obey(words: &[&str]) -> Option<()> {
    let [first, count, steps, keep_text, how] = words else {
        return None;
    };
    let (first, count): (u64, u64) = (first.parse().ok()?, count.parse().ok()?);
    let (steps, keep) = (steps.parse().ok()?, keep(keep_text)?);
    for seed in first..first + count {
        let program = Program {
            seed,
            steps,
            keep: keep.clone(),
        };
        let log = referee::play(&program, *how == "v");
        println!("sd: seed {seed} lines {} hash {:016x}", log.lines, log.hash);
    }
    println!("sd: done");
    Some(())
}

/// Turns off the terminal's echo.
fn no_echo() {
    let mut settings = [0u32; 15];
    let at = settings.as_mut_ptr() as u64;
    if sys::call(libc::SYS_ioctl, &[0, libc::TCGETS, at]).is_ok() {
        settings[3] &= !libc::ECHO;
        std::hint::black_box(&mut settings);
        let _ = sys::call(libc::SYS_ioctl, &[0, libc::TCSETS, at]);
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    if let ["--actor", id] = words[..] {
        let _ = sys::default_signal(libc::SIGPIPE);
        actor::prepare();
        match (board::attach(false), id.parse()) {
            (Ok(()), Ok(id)) => calls::process::executed(id),
            _ => sys::exit(99),
        }
    }
    if words == ["--table"] {
        normal::TABLE
            .iter()
            .for_each(|(what, how, why)| println!("{what}: {how} ({why})"));
        return;
    }
    referee::prepare();
    if let Err(errno) = board::attach(true) {
        eprintln!("sysdiff: no board: errno {errno}");
        sys::exit(1);
    }
    let obeyed = if words == ["--serve"] {
        no_echo();
        println!("sd: ready");
        std::io::stdin()
            .lock()
            .lines()
            .map_while(Result::ok)
            .all(|line| {
                let words: Vec<&str> = line.split_whitespace().collect();
                words != ["end"] && obey(&words).is_some()
            });
        Some(())
    } else {
        obey(&words)
    };
    if obeyed.is_none() {
        eprintln!("{USAGE}");
        sys::exit(2);
    }
    sys::exit(0)
}
