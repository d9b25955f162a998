//! Measures Pantala, beside Linux or alone: `make bench`, `rivals`, `commute`, `pcm` and `c2c`.
//!
//! [`measure`] compares what operations cost, and [`jobs`] whole programs' work, [`rivals`] what they cost on each reverse map, [`commute`] counts those that are in
//! each other's way, [`pcm`] tells whose memory CPUs use, [`c2c`] what moves between them. All of them boot machines under the
//! plugin of `tools/coherence`.

mod c2c;
mod commute;
mod compare;
mod figures;
mod findings;
mod guest;
mod hubs;
mod jobs;
mod lab;
mod linux;
mod lua;
mod measure;
mod names;
mod observe;
mod pace;
mod pcm;
mod plan;
mod resume;
mod rivals;
mod samples;
mod sections;
mod settings;
mod svg;
mod symbols;
mod targets;

use machine::options::Job;
use std::process::ExitCode;

fn main() -> ExitCode {
    machine::main("bench", |job| match job {
        Job::Bench(asked) => measure::run(asked),
        Job::Rivals(asked) => rivals::run(asked),
        Job::Commute(asked) => commute::run(asked),
        Job::Pcm(asked) => pcm::run(asked),
        Job::C2c(asked) => c2c::run(asked),
        _ => anyhow::bail!("this is not a job of tools/bench: cargo xtask does it"),
    })
}
