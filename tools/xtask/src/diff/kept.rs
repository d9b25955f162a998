//! Linux's answers to a fixed set of programs, kept in the tree and compared with in `make test`.

use super::session::{Played, Player, Request, hear};
use super::{compare, pantala_player};
use anyhow::{Context, Result};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use machine::options::Setup;
use machine::progress::{Step, step};
use machine::{image, tools};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::path::PathBuf;

/// The programs: the first seed, how many, steps of each.
const PROGRAMS: (u64, u64, u32) = (1, 96, 150);
/// Programs asked for at once.
const BATCH: u64 = 8;

fn file() -> PathBuf {
    tools::root().join("tests/diff/linux-6.1.gz")
}

fn requests(lines: bool) -> impl Iterator<Item = Request> {
    let (first, count, steps) = PROGRAMS;
    let batches = (first..first + count).step_by(BATCH as usize);
    batches.map(move |at| Request {
        first: at,
        count: BATCH.min(first + count - at),
        steps,
        keep: None,
        lines,
    })
}

/// Asks Linux and keeps what it says; a program that is not the same when played again is left out.
pub fn write(linux: &mut Player) -> Result<u8> {
    let step = step("asking Linux");
    let mut text = String::new();
    for request in requests(true) {
        step.say(&format!("seed {}", request.first));
        let (once, again) = (linux.play(&request)?, linux.play(&request)?);
        for (played, again) in once.iter().zip(&again) {
            if played != again {
                let shown = compare(&played.lines, &again.lines, 3);
                step.line(&format!(
                    "seed {} is left out, for Linux differs from itself:\n{shown}",
                    played.seed
                ));
                continue;
            }
            played
                .lines
                .iter()
                .for_each(|line| text += &format!("sd| {line}\n"));
            text += &format!(
                "sd: seed {} lines {} hash {}\n",
                played.seed,
                played.lines.len(),
                played.hash
            );
        }
    }
    let path = file();
    let out = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    let mut packed = GzEncoder::new(out, Compression::best());
    packed.write_all(text.as_bytes())?;
    packed.finish()?;
    println!("{}", path.display());
    Ok(0)
}

/// What Linux answered, by seed.
fn read() -> Result<BTreeMap<u64, Played>> {
    let path = file();
    let packed = File::open(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut text = String::new();
    GzDecoder::new(packed)
        .read_to_string(&mut text)
        .with_context(|| format!("{} is damaged", path.display()))?;
    let (mut lines, mut played) = (Vec::new(), Vec::new());
    text.lines().for_each(|line| {
        hear(line, &mut lines, &mut played);
    });
    Ok(played
        .into_iter()
        .map(|played| (played.seed, played))
        .collect())
}

/// The programs that are known to differ: `SEED REASON` in each line of `tests/diff/differ.txt`.
fn known() -> Result<BTreeMap<u64, String>> {
    let path = tools::root().join("tests/diff/differ.txt");
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("cannot read {}", path.display()))?;
    reasons(&text)
}

fn reasons(text: &str) -> Result<BTreeMap<u64, String>> {
    let lines = text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty());
    let reason = |line: &str| -> Result<(u64, String)> {
        let (seed, reason) = line.split_once(' ').context("no reason")?;
        Ok((seed.parse()?, reason.to_owned()))
    };
    lines
        .map(|line| reason(line).with_context(|| format!("differ.txt: {line}")))
        .collect()
}

/// Plays the programs whose answers are kept and compares. True if all are equal but those that are known to differ.
///
/// # Errors
/// The answers cannot be read, or the machine does not boot.
pub fn test(setup: &Setup) -> Result<bool> {
    tools::need(&[("qemu-system-x86_64", "qemu-system-x86")])?;
    let (answers, known) = (read()?, known()?);
    let mut pantala = pantala_player(
        &setup.system,
        &setup.build,
        &image::make(&setup.system.image)?,
    )?;
    let step = step("comparing with Linux's answers");
    let (mut differ, mut as_known): (usize, usize) = (0, 0);
    for request in requests(false) {
        let played = pantala.play(&request).unwrap_or_else(|error| {
            step.line(&format!("{error:#}"));
            Vec::new()
        });
        for seed in request.first..request.first + request.count {
            let Some(answer) = answers.get(&seed) else {
                continue;
            };
            if played
                .iter()
                .any(|played| played.seed == seed && played.hash == answer.hash)
            {
                if known.contains_key(&seed) {
                    step.line(&format!(
                        "seed {seed} no longer differs: take it out of tests/diff/differ.txt"
                    ));
                }
                continue;
            }
            if let Some(reason) = known.get(&seed) {
                as_known += 1;
                step.say(&format!("seed {seed} differs as known: {reason}"));
                continue;
            }
            differ += usize::from(differs_again(&mut pantala, answer, &request, &step));
        }
    }
    let (count, (_, _, steps)) = (answers.len(), PROGRAMS);
    let verdict = if differ == 0 { "ok   " } else { "FAIL " };
    step.line(&format!(
        "{verdict} diff: {count} programs of {steps} steps as on Linux 6.1, {differ} differences, {as_known} known ones"
    ));
    Ok(differ == 0)
}

/// Plays a program of `request` that differed from Linux's `answer` once more, and says how it differs; false if it no longer
/// does.
fn differs_again(pantala: &mut Player, answer: &Played, request: &Request, step: &Step) -> bool {
    let seed = answer.seed;
    let again = Request {
        first: seed,
        count: 1,
        lines: true,
        ..request.clone()
    };
    let played = pantala.play_one(&again);
    let lines = played.map(|played| played.lines).unwrap_or_default();
    if lines == answer.lines {
        step.line(&format!("seed {seed} differed once and no longer does"));
        return false;
    }
    let shown = compare(&answer.lines, &lines, 8);
    step.line(&format!("seed {seed} differs from Linux:\n{shown}"));
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_known_to_differ_has_a_reason() {
        let known = reasons("# a remark\n\n7 order of errors\n").unwrap();
        assert_eq!(known, BTreeMap::from([(7, "order of errors".to_owned())]));
        assert!(reasons("7\n").is_err() && reasons("x y\n").is_err());
    }

    #[test]
    fn answers_are_kept_for_most_programs() {
        let answers = read().unwrap();
        let (first, count, _) = PROGRAMS;
        let kept = (first..first + count).filter(|seed| answers.contains_key(seed));
        assert!(kept.count() as u64 * 10 >= count * 9);
        assert!(
            known()
                .unwrap()
                .keys()
                .all(|seed| answers.contains_key(seed))
        );
    }
}
