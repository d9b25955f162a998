//! A spinner with elapsed time on a terminal, plain lines elsewhere.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// A step that takes a while; it is over when this is dropped.
pub struct Step {
    bar: Option<ProgressBar>,
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
    Step {
        bar,
        name,
        began: Instant::now(),
    }
}

impl Step {
    /// Says what is being done now within the step.
    pub fn say(&self, detail: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(format!("{}: {detail}", self.name));
        }
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
