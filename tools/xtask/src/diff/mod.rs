//! `make diff`: random programs of system calls on Linux and on Pantala, whose every result must be equal.
//!
//! Guarantee: a difference is printed with both kernels' lines, with a shorter program that still differs, and with the
//! command that plays it; a program that differs from itself on Linux is a mistake of the programs and counts as one.
//! Mechanism: both kernels run `sysdiff --serve` and are asked for the same programs at the same time; checksums are
//! compared, and the lines of programs whose checksums differ. `tests/diff` keeps Linux's answers to a fixed set of
//! programs, which `make test` compares with. See doc/diff.md.

mod kept;
mod session;
mod shrink;

use anyhow::{Context, Result, ensure};
use machine::options::{Accel, Build, Diff, Machine, System};
use machine::progress::{Step, step};
use machine::{build, image, linux, qemu, tools};
use session::{Played, Player, Request, ranges};
use std::path::Path;
use std::time::{Duration, Instant};

pub use kept::test;

/// The series of Linux that is compared with.
const LINUX: &str = "6.1";
/// Steps of each program.
const STEPS: u32 = 250;
/// Programs asked for at once.
const BATCH: u64 = 4;
/// What is spent on making one program shorter.
const SHRINKING: Duration = Duration::from_secs(60);
/// Differences after which a run ends.
const ENOUGH: usize = 20;

/// The two kernels.
struct Pair {
    linux: Player,
    pantala: Player,
}

fn machine() -> Result<Machine> {
    Ok(Machine {
        cpu: linux::processor(LINUX, qemu::version()?),
        accel: Some(Accel::Tcg),
        ..Machine::default()
    })
}

fn linux_player(initrd: &Path) -> Result<Player> {
    let found = linux::kernel(LINUX)?;
    let options = format!("{} transparent_hugepage=never", linux::OPTIONS);
    Player::new("Linux", &found.file, &options, initrd, &machine()?)
}

fn pantala_player(system: &System, build: &Build, initrd: &Path) -> Result<Player> {
    let kernel = build::kernel_for(&system.kernel, build.profile())?;
    Player::new(
        "Pantala",
        &kernel,
        &system.kernel.append,
        initrd,
        &machine()?,
    )
}

/// Plays programs for so many minutes, beginning with a seed; with KEEP, one program with those steps alone; with
/// ANSWERS writes Linux's answers for `make test`.
///
/// # Errors
/// Something cannot be built, or Linux cannot be had.
pub fn run(asked: &Diff) -> Result<u8> {
    ensure!(
        asked.keep.is_none() || asked.seed.is_some(),
        "KEEP names steps of one program: say which, as SEED=N"
    );
    tools::need(&[("qemu-system-x86_64", "qemu-system-x86")])?;
    let initrd = image::make(&asked.system.image)?;
    if asked.answers {
        return kept::write(&mut linux_player(&initrd)?);
    }
    let mut pair = Pair {
        linux: linux_player(&initrd)?,
        pantala: pantala_player(&asked.system, &asked.build, &initrd)?,
    };
    if let (Some(seed), Some(keep)) = (asked.seed, &asked.keep) {
        return pair.show(seed, keep);
    }
    let clock = || {
        std::time::UNIX_EPOCH
            .elapsed()
            .map_or(0, |since| since.as_secs() % 1_000_000)
    };
    pair.search(
        asked.seed.unwrap_or_else(|| clock() * 1000),
        Duration::from_secs(60 * asked.minutes),
    )
}

/// A program whose lines differ.
struct Difference {
    seed: u64,
    steps: Vec<u32>,
    linux: Vec<String>,
    pantala: Vec<String>,
}

/// The first line in which two differ.
fn first_difference(linux: &[String], pantala: &[String]) -> Option<usize> {
    let longer = linux.len().max(pantala.len());
    (0..longer).find(|&n| linux.get(n) != pantala.get(n))
}

/// The step of a line.
fn step_of(line: Option<&String>) -> Option<u32> {
    line?.split(' ').next()?.parse().ok()
}

/// Both kernels' lines up to the first in which they differ.
fn compare(linux: &[String], pantala: &[String], before: usize) -> String {
    let Some(at) = first_difference(linux, pantala) else {
        return "    no difference\n".into();
    };
    let mut text = String::new();
    for line in &linux[at.saturating_sub(before)..at] {
        text += &format!("             {line}\n");
    }
    let line = |lines: &[String]| {
        lines
            .get(at)
            .cloned()
            .unwrap_or_else(|| "(nothing more)".into())
    };
    text + &format!(
        "    Linux:   {}\n    Pantala: {}\n",
        line(linux),
        line(pantala)
    )
}

impl Difference {
    fn report(&self) -> String {
        let shown = compare(&self.linux, &self.pantala, 40);
        let keep = ranges(&self.steps);
        format!(
            "seed {} differs:\n{shown}    again: make diff SEED={} KEEP={keep}\n",
            self.seed, self.seed
        )
    }
}

impl Pair {
    /// Asks both at the same time.
    fn both(&mut self, request: &Request) -> (Result<Vec<Played>>, Result<Vec<Played>>) {
        let Pair { linux, pantala } = self;
        std::thread::scope(|scope| {
            let linux = scope.spawn(|| linux.play(request));
            let pantala = pantala.play(request);
            let linux = linux
                .join()
                .unwrap_or_else(|_| Err(anyhow::anyhow!("a thread panicked")));
            (linux, pantala)
        })
    }

    fn search(&mut self, first: u64, time: Duration) -> Result<u8> {
        let step = step("comparing with Linux");
        let (end, mut seed, mut found) = (Instant::now() + time, first, 0);
        while Instant::now() < end && found < ENOUGH {
            step.say(&format!("seed {seed}, {found} differences"));
            let request = Request {
                first: seed,
                count: BATCH,
                steps: STEPS,
                keep: None,
                lines: false,
            };
            let (linux, pantala) = self.both(&request);
            let linux = linux?;
            let pantala = pantala.unwrap_or_else(|error| {
                step.line(&format!("{error:#}"));
                Vec::new()
            });
            for one in &linux {
                let same = pantala
                    .iter()
                    .any(|other| other.seed == one.seed && other.hash == one.hash);
                if !same {
                    found += usize::from(self.explain(one, &step)?);
                }
            }
            seed += BATCH;
        }
        println!(
            "diff: {} programs of {STEPS} steps from seed {first} on, {found} differences",
            seed - first
        );
        Ok(u8::from(found > 0))
    }

    fn lines_of(player: &mut Player, seed: u64, keep: Option<Vec<u32>>) -> Result<Vec<String>> {
        let request = Request {
            first: seed,
            count: 1,
            steps: STEPS,
            keep,
            lines: true,
        };
        Ok(player.play_one(&request)?.lines)
    }

    /// Says how a program differs whose checksums do; false if it no longer does.
    fn explain(&mut self, one: &Played, step: &Step) -> Result<bool> {
        let seed = one.seed;
        let request = Request {
            first: seed,
            count: 1,
            steps: STEPS,
            keep: None,
            lines: true,
        };
        let (linux, pantala) = self.both(&request);
        let linux = linux?.pop().context("nothing was said of the program")?;
        if linux.hash != one.hash {
            step.line(&format!(
                "seed {seed} differs from itself on Linux: the program is not determined"
            ));
            return Ok(true);
        }
        let pantala = match pantala {
            Ok(mut played) => played.pop().map(|played| played.lines).unwrap_or_default(),
            Err(error) => {
                step.line(&format!(
                    "seed {seed}: {error:#}\n    again: make diff SEED={seed} KEEP=all"
                ));
                return Ok(true);
            }
        };
        let Some(at) = first_difference(&linux.lines, &pantala) else {
            step.line(&format!("seed {seed} differed once and no longer does\n    again: make diff SEED={seed} KEEP=all"));
            return Ok(true);
        };
        step.line(&format!(
            "seed {seed}, in full:\n{}",
            compare(&linux.lines, &pantala, 3)
        ));
        let last = step_of(linux.lines.get(at))
            .max(step_of(pantala.get(at)))
            .unwrap_or(STEPS)
            .min(STEPS);
        let steps = self.shrink(seed, (1..=last).collect())?;
        let linux = Self::lines_of(&mut self.linux, seed, Some(steps.clone()))?;
        let pantala =
            Self::lines_of(&mut self.pantala, seed, Some(steps.clone())).unwrap_or_default();
        let difference = Difference {
            seed,
            steps,
            linux,
            pantala,
        };
        step.line(&difference.report());
        Ok(true)
    }

    fn shrink(&mut self, seed: u64, steps: Vec<u32>) -> Result<Vec<u32>> {
        let end = Instant::now() + SHRINKING;
        let whole = steps.clone();
        let mut differs = |steps: &[u32]| {
            let keep = Some(steps.to_vec());
            let request = Request {
                first: seed,
                count: 1,
                steps: STEPS,
                keep,
                lines: false,
            };
            let (linux, pantala) = self.both(&request);
            // A machine that dies of it differs, too.
            Ok(linux?.first().map(|played| &played.hash)
                != pantala
                    .unwrap_or_default()
                    .first()
                    .map(|played| &played.hash))
        };
        // What comes after the first difference may be needed to see it at the end.
        if !differs(&steps)? {
            return Ok((1..=STEPS).collect());
        }
        shrink::shrink(whole, differs, || Instant::now() < end)
    }

    /// Plays one program and shows both kernels' lines.
    fn show(&mut self, seed: u64, keep: &str) -> Result<u8> {
        let keep = (keep != "all").then(|| steps_of(keep)).transpose()?;
        let linux = Self::lines_of(&mut self.linux, seed, keep.clone())?;
        let pantala = Self::lines_of(&mut self.pantala, seed, keep)?;
        let differs = first_difference(&linux, &pantala).is_some();
        let shown = if differs {
            compare(&linux, &pantala, usize::MAX)
        } else {
            linux.join("\n") + "\n"
        };
        print!("{shown}");
        Ok(u8::from(differs))
    }
}

/// The steps of a list of ranges.
fn steps_of(text: &str) -> Result<Vec<u32>> {
    let range = |part: &str| -> Result<std::ops::RangeInclusive<u32>> {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Ok(first.parse()?..=last.parse()?)
    };
    let ranges = text
        .split(',')
        .map(range)
        .collect::<Result<Vec<_>>>()
        .context("KEEP is like 1,3-9")?;
    Ok(ranges.into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.split('|').map(str::to_owned).collect()
    }

    #[test]
    fn the_first_differing_line_is_shown_with_what_led_to_it() {
        let (linux, pantala) = (
            lines("1 P0 a|2 P0 b = 0|3 P0 c"),
            lines("1 P0 a|2 P0 b = EPERM|3 P0 c"),
        );
        assert_eq!(first_difference(&linux, &pantala), Some(1));
        let shown = compare(&linux, &pantala, 5);
        assert!(
            shown.contains("1 P0 a\n    Linux:   2 P0 b = 0\n    Pantala: 2 P0 b = EPERM\n"),
            "{shown}"
        );
        assert_eq!(first_difference(&linux, &linux), None);
        assert_eq!(first_difference(&linux, &linux[..2]), Some(2));
    }

    #[test]
    fn steps_are_read_as_they_are_written() {
        let steps = vec![1, 3, 4, 5, 9];
        assert_eq!(steps_of(&ranges(&steps)).unwrap(), steps);
        assert!(steps_of("1,x").is_err());
    }
}
