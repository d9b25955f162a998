//! The boots, both kernels at once where there are processors for it, with a bar that tells the time left.

use super::{Outcome, culprit, verdict};
use crate::guest::{Guest, Kind, Lab, Trial};
use anyhow::{Context, Result};
use coherence::record::Record;
use commute::cases::{Case, Choice};
use indicatif::ProgressStyle;
use machine::progress::bar;
use std::fs;
use std::io::Read;
use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// Windows of each case that count; see the program in the image.
const ROUNDS: u64 = 3;

const LIMIT: Duration = Duration::from_secs(2 * 3600);

/// Runs `cases` on `guests`.
///
/// # Errors
/// QEMU cannot be started.
pub fn carry_out<'a>(
    lab: &Lab,
    guests: &[&'a Guest],
    choice: &Choice,
    cases: &[Case],
) -> Result<Vec<Outcome<'a>>> {
    let files = guests
        .iter()
        .map(|guest| lab.records(guest, 2, Kind::Windows));
    let files: Vec<PathBuf> = files.collect();
    files.iter().for_each(|file| drop(fs::remove_file(file)));
    let command = command(choice);
    let boot = |guest: &'a Guest| one(lab, guest, &command, cases);
    let processors = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        let (_over, ended) = mpsc::channel::<()>();
        let total = ROUNDS * (cases.len() * guests.len()) as u64;
        scope.spawn(move || watch(&files, total, &ended));
        if processors < 2 {
            return guests.iter().map(|guest| boot(guest)).collect();
        }
        let boots = guests.iter().map(|&guest| scope.spawn(move || boot(guest)));
        let boots: Vec<_> = boots.collect();
        let join = |boot: thread::ScopedJoinHandle<'_, Result<Outcome<'a>>>| {
            boot.join()
                .unwrap_or_else(|_| anyhow::bail!("a boot's thread has panicked"))
        };
        boots.into_iter().map(join).collect()
    })
}

/// The boot that runs `command`.
pub fn trial(command: &str) -> Trial<'_> {
    Trial {
        cmd: command,
        cpus: 2,
        kind: Kind::Windows,
        run: 0,
    }
}

fn command(choice: &Choice) -> String {
    let only = match choice.only.is_empty() {
        true => String::new(),
        false => format!(" --only {}", choice.only.join(",")),
    };
    // The pause is for Linux, which drops what its console has not sent yet when a session's first process ends.
    format!(
        "commute --every {}{only}; status=$?; sleep 1; exit $status",
        choice.every
    )
}

fn one<'a>(lab: &Lab, guest: &'a Guest, command: &str, cases: &[Case]) -> Result<Outcome<'a>> {
    let boot = lab.boot(guest, &trial(command), LIMIT)?;
    let mut failed = boot.failed;
    if !boot.console.contains(" cases right, ") {
        failed.push(format!("{}: commute did not come to its end", guest.title));
    }
    Ok(judged(guest, cases, &boot.records, failed))
}

/// What the records of an earlier run yield.
///
/// # Errors
/// There are none.
pub fn again<'a>(lab: &Lab, guest: &'a Guest, cases: &[Case]) -> Result<Outcome<'a>> {
    let file = lab.records(guest, 2, Kind::Windows);
    let text = fs::read_to_string(&file).with_context(|| format!("{}", file.display()))?;
    // The last line may be half written.
    let records = text
        .lines()
        .map_while(|line| Record::from_line(line).ok())
        .collect::<Vec<_>>();
    Ok(judged(guest, cases, &records, Vec::new()))
}

fn judged<'a>(
    guest: &'a Guest,
    cases: &[Case],
    records: &[Record],
    mut failed: Vec<String>,
) -> Outcome<'a> {
    let judged = verdict::judge(cases, records);
    let missing = cases.len() - judged.len();
    if missing > 0 {
        failed.push(format!("{}: {missing} cases were not run", guest.title));
    }
    Outcome {
        guest,
        culprits: culprit::rank(&guest.symbols, &judged),
        judged,
        failed,
    }
}

/// Follows the plugins' files until the other end of `ended` is gone.
fn watch(files: &[PathBuf], total: u64, ended: &mpsc::Receiver<()>) {
    let began = Instant::now();
    let style =
        ProgressStyle::with_template("{bar:30} {pos}/{len} windows  {elapsed} gone, {eta} left")
            .expect("a constant template");
    let bar = bar(total, style);
    let mut read = vec![0u64; files.len()];
    let mut said = 0;
    let mut done = 0;
    while ended.recv_timeout(Duration::from_millis(500)) == Err(RecvTimeoutError::Timeout) {
        for (file, from) in files.iter().zip(&mut read) {
            done += new_lines(file, from);
        }
        bar.set_position(done);
        let elapsed = began.elapsed().as_secs();
        if bar.is_hidden() && elapsed >= said + 20 && done > 0 {
            said = elapsed;
            let left = elapsed as f64 / done as f64 * total.saturating_sub(done) as f64;
            eprintln!("[{done}/{total} windows] {elapsed} s gone, about {left:.0} s left");
        }
    }
    bar.finish_and_clear();
}

/// Lines written to `file` behind `from`, which moves on.
fn new_lines(file: &PathBuf, from: &mut u64) -> u64 {
    let Ok(mut file) = fs::File::open(file) else {
        return 0;
    };
    let mut bytes = Vec::new();
    let seek = std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(*from));
    if seek.is_err() || file.read_to_end(&mut bytes).is_err() {
        return 0;
    }
    *from += bytes.len() as u64;
    bytes.iter().filter(|&&byte| byte == b'\n').count() as u64
}
