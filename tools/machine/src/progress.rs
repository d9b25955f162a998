//! A spinner with elapsed time on a terminal, plain lines elsewhere.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

/// A step that takes a while; it is over when this is dropped.
pub struct Step {
    bar: Option<ProgressBar>,
    /// Dropped with the step, which ends the thread that says that it goes on.
    _over: Option<Sender<()>>,
    name: String,
    began: Instant,
}

/// Begins a step; `name` reads like "building the kernel".
pub fn step(name: impl Into<String>) -> Step {
    let name = name.into();
    let bar = std::io::stderr().is_terminal().then(|| {
        let bar = ProgressBar::new_spinner();
        bar.set_style(
            ProgressStyle::with_template("{spinner} {msg} ({elapsed})")
                .expect("a constant template"),
        );
        bar.set_message(name.clone());
        bar.enable_steady_tick(Duration::from_millis(120));
        bar
    });
    let over = bar.is_none().then(|| say_that_it_goes_on(name.clone()));
    Step {
        bar,
        _over: over,
        name,
        began: Instant::now(),
    }
}

/// Without a terminal: a line once a step has taken two seconds, and one every minute.
fn say_that_it_goes_on(name: String) -> Sender<()> {
    let (sender, over) = mpsc::channel();
    std::thread::spawn(move || {
        let goes_on_after = |seconds| {
            over.recv_timeout(Duration::from_secs(seconds)) == Err(RecvTimeoutError::Timeout)
        };
        if goes_on_after(2) {
            eprintln!("{name} ...");
        }
        for minutes in 1.. {
            if !goes_on_after(60) {
                return;
            }
            eprintln!("{name}: {minutes} min ...");
        }
    });
    sender
}

/// A bar of `len` pieces; hidden where there is no terminal.
pub fn bar(len: u64, style: ProgressStyle) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(len).with_style(style);
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}

impl Step {
    /// Says what is being done now within the step.
    pub fn say(&self, detail: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(format!("{}: {detail}", self.name));
        }
    }

    /// Whether what is said is seen: on a terminal.
    pub fn is_shown(&self) -> bool {
        self.bar.is_some()
    }

    /// Prints a line that stays, above the spinner.
    pub fn line(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| eprintln!("{text}")),
            None => eprintln!("{text}"),
        }
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        let took = self.began.elapsed();
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        if took >= Duration::from_secs(2) {
            eprintln!("{}: {:.1} s", self.name, took.as_secs_f64());
        }
    }
}
