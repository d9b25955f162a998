//! Which boots of a run ended well, so that a run that was cut off goes on where it was.
//!
//! Mechanism: a file beside the samples, whose first line tells one choice of kernels, image and cases from another and
//! whose others name boots. Samples of boots that it does not name are dropped, and those boots are made again.

use crate::guest::Lab;
use crate::samples::{self, Sample};
use crate::settings::Settings;
use anyhow::{Context, Result, ensure};
use std::collections::BTreeSet;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::path::PathBuf;

/// Boots that ended well.
pub struct Done {
    file: PathBuf,
    boots: BTreeSet<String>,
}

impl Done {
    /// Begins a run; one that goes on with the last one gets the samples of its boots, too.
    ///
    /// # Errors
    /// There is no last run, or it was of something else.
    pub fn begin(lab: &Lab, settings: &Settings) -> Result<(Done, Vec<Sample>)> {
        let file = lab.dir.join("boots.done");
        let what = what(lab, settings)?;
        if !settings.resume {
            let begun = fs::write(&file, format!("{what}\n"));
            begun.with_context(|| format!("cannot write {}", file.display()))?;
            let boots = BTreeSet::new();
            return Ok((Done { file, boots }, Vec::new()));
        }
        let text = fs::read_to_string(&file).context("there is no run to go on with")?;
        let mut lines = text.lines();
        ensure!(
            lines.next() == Some(&what),
            "the last run had another kernel, image, QEMU or choice of cases: start anew, without RESUME"
        );
        let boots: BTreeSet<String> = lines.map(str::to_owned).collect();
        let mut samples = match lab.samples().is_file() {
            true => samples::read(&lab.samples())?,
            false => Vec::new(),
        };
        samples.retain(|sample| boots.contains(&sample.boot()));
        Ok((Done { file, boots }, samples))
    }

    /// Whether this boot need not be made.
    pub fn has(&self, boot: &str) -> bool {
        self.boots.contains(boot)
    }

    /// Notes a boot that ended well.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn add(&mut self, boot: String) -> Result<()> {
        let mut file = fs::OpenOptions::new().append(true).open(&self.file)?;
        writeln!(file, "{boot}")?;
        self.boots.insert(boot);
        Ok(())
    }
}

/// A number that tells what is measured from anything else, and a few words for people.
fn what(lab: &Lab, settings: &Settings) -> Result<String> {
    let mut hash = DefaultHasher::new();
    fs::read(&lab.initrd)?.hash(&mut hash);
    lab.builds
        .as_ref()
        .map(fs::read)
        .transpose()?
        .hash(&mut hash);
    lab.cpu.hash(&mut hash);
    machine::qemu::version()?.hash(&mut hash);
    for guest in &lab.guests {
        fs::read(&guest.kernel)?.hash(&mut hash);
        guest.options.hash(&mut hash);
    }
    let cases = settings.only.join(",");
    let titles: Vec<&str> = lab.guests.iter().map(|guest| &guest.title[..]).collect();
    let quick = if settings.quick { ", quick" } else { "" };
    let titles = titles.join(" and ");
    Ok(format!(
        "{titles}, cases {cases}{quick}, {:016x}",
        hash.finish()
    ))
}
