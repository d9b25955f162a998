//! Mutation tests of `ksync` and `vm`: is each lock, flush, fence and ordering missed by some test?
//!
//! All mutants are built at once, into a copy of the tree in `build/mutants`; a number in the environment says which
//! one a process is. A first run of each test program without a mutant says which points it reaches and how long it
//! takes; a mutant then meets the programs that reach it, quickest first, until one fails or hangs. Results are kept
//! by the text of the line, in `build/mutants/results`, so an interrupted run goes on where it was, and only what has
//! changed is tested again. `ONLY=text` limits the run to points whose name contains the text, `JOBS=n` sets how many
//! run at once.

mod points;
mod programs;
mod tree;

use crate::progress::step;
use crate::tools;
use anyhow::Result;
use points::Point;
use programs::Program;
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Where survivors are explained.
const EXPLAINED: &str = "doc/testing.md";

/// Runs them; prints the survivors and how many were killed.
///
/// # Errors
/// The tree cannot be copied or built, or a test fails without a mutant.
pub fn run() -> Result<u8> {
    let root = tools::root();
    let dir = tools::build_dir()?.join("mutants");
    let points = tree::copy(&root, &dir.join("tree"))?;
    let programs = programs::build(&dir)?;
    let only = std::env::var("ONLY").unwrap_or_default();
    let mut results = known(&dir);
    let mut open: Vec<&Point> = points
        .iter()
        .filter(|p| p.key().contains(&only) && !results.contains_key(&p.key()))
        .collect();
    // Every kind has its turn early, so that an interrupted run tells something of each.
    open.sort_by_key(|point| (point.id * 37) % 101);
    test(&dir, &programs, &open, &mut results)?;
    report(&root, &points, &results)
}

/// The results of earlier runs, by key. What survived is tried again if a test program has changed since.
fn known(dir: &Path) -> BTreeMap<String, String> {
    let text = fs::read_to_string(dir.join("results")).unwrap_or_default();
    text.lines()
        .filter_map(|line| line.split_once('\t'))
        .map(|(by, key)| (key.into(), by.into()))
        .collect()
}

/// Lets the open mutants meet the programs.
fn test(
    dir: &Path,
    programs: &[Program],
    open: &[&Point],
    results: &mut BTreeMap<String, String>,
) -> Result<()> {
    let jobs = std::env::var("JOBS").ok().and_then(|n| n.parse().ok());
    let jobs = jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(2, usize::from));
    let step = step("mutants");
    let file = OpenOptions::new()
        .append(true)
        .create(true)
        .open(dir.join("results"))?;
    let shared = Mutex::new((file, results));
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let work = || -> Result<()> {
        while let Some(point) = open.get(next.fetch_add(1, Relaxed)) {
            let by = programs::killer(programs, point)?.unwrap_or_else(|| "survived".into());
            let mut shared = shared
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            writeln!(shared.0, "{by}\t{}", point.key())?;
            if by == "survived" {
                step.line(&format!(
                    "survived: {}:{} {}",
                    point.file,
                    point.line,
                    point.key()
                ));
            }
            shared.1.insert(point.key(), by);
            step.say(&format!(
                "{} of {}",
                done.fetch_add(1, Relaxed) + 1,
                open.len()
            ));
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| {
            worker
                .join()
                .unwrap_or_else(|_| anyhow::bail!("a worker failed"))
        })
    })
}

fn report(root: &Path, points: &[Point], results: &BTreeMap<String, String>) -> Result<u8> {
    let explained = fs::read_to_string(root.join(EXPLAINED)).unwrap_or_default();
    let (mut killed, mut survived, mut unexplained) = (0, 0, 0);
    let mut kinds: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for point in points {
        let Some(by) = results.get(&point.key()) else {
            continue;
        };
        let kind = kinds.entry(point.kind.name()).or_default();
        kind.1 += 1;
        if by != "survived" {
            killed += 1;
            kind.0 += 1;
            continue;
        }
        survived += 1;
        let told = explained.contains(&point.key());
        unexplained += usize::from(!told);
        let mark = if told { "explained" } else { "NOT EXPLAINED" };
        println!("survived ({mark}): {}", point.key());
    }
    for (kind, (killed, all)) in kinds {
        println!("{kind}: {killed} of {all} killed");
    }
    let tried = killed + survived;
    println!(
        "{killed} of {tried} mutants killed ({:.1} %), {} not tried",
        killed as f64 * 100.0 / tried.max(1) as f64,
        points.len() - tried
    );
    println!("{survived} survived, {unexplained} of them without an explanation in {EXPLAINED}");
    Ok(u8::from(killed * 100 < tried * 95 || unexplained > 0))
}
