//! Random schedules of the model checker.

/// Switches from the thread that is ahead of the others in each of the schedules that [`explore`] tries last.
const SWITCHES: usize = 3;

/// How many schedules a test is to try: what `PANTALA_SCHEDULES` says, or else `usual`.
pub fn asked(usual: usize) -> usize {
    let said = std::env::var("PANTALA_SCHEDULES").ok();
    said.and_then(|n| n.parse().ok()).unwrap_or(usual)
}

/// Tries `each` schedules at random, and as many in which one thread is ahead of the others but for a few switches.
pub fn explore(test: impl Fn() + Send + Sync + 'static, each: usize) {
    let test = std::sync::Arc::new(test);
    let again = test.clone();
    shuttle::check_random(move || test(), each);
    shuttle::check_pct(move || again(), each, SWITCHES);
}
