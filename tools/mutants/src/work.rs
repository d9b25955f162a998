//! Many small pieces of work, a few at a time, with the time left.

use anyhow::Result;
use machine::progress::step;
use machine::{locked, options};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How many at once: as many as are asked for, or as there are processors.
pub fn jobs(asked: &options::Mutants) -> usize {
    let processors = || std::thread::available_parallelism().map_or(2, usize::from);
    asked.jobs.map_or_else(processors, usize::from)
}

/// Does `one` for each of `items`, `jobs` at once. The results are in the order of the items. `one` also gets the number of the worker it runs on.
///
/// # Errors
/// The first of `one`.
pub fn all<T: Sync, R: Send>(
    what: &str,
    jobs: usize,
    items: &[T],
    one: impl Fn(usize, &T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    if items.is_empty() {
        return Ok(Vec::new());
    }
    let (step, began) = (step(what), Instant::now());
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let told = Mutex::new(began);
    let results: Vec<Mutex<Option<R>>> = items.iter().map(|_| Mutex::new(None)).collect();
    let work = |worker| -> Result<()> {
        loop {
            let at = next.fetch_add(1, Relaxed);
            let Some(item) = items.get(at) else {
                return Ok(());
            };
            let result = one(worker, item);
            if result.is_err() {
                next.store(items.len(), Relaxed);
            }
            *locked(&results[at]) = Some(result?);
            let done = done.fetch_add(1, Relaxed) + 1;
            let left = began.elapsed().as_secs_f64() / done as f64 * (items.len() - done) as f64;
            let text = format!("{done} of {}, about {left:.0} s left", items.len());
            step.say(&text);
            let mut told = locked(&told);
            if !step.is_shown() && told.elapsed() > Duration::from_secs(30) {
                *told = Instant::now();
                step.line(&format!("{what}: {text}"));
            }
        }
    };
    std::thread::scope(|scope| {
        let work = &work;
        let workers: Vec<_> = (0..jobs).map(|n| scope.spawn(move || work(n))).collect();
        workers.into_iter().try_for_each(|worker| {
            worker
                .join()
                .unwrap_or_else(|_| anyhow::bail!("a worker failed"))
        })
    })?;
    let taken = |slot: Mutex<Option<R>>| slot.into_inner().ok().flatten();
    Ok(results.into_iter().filter_map(taken).collect())
}
