//! The page that `make help` prints: every job and every setting, from their declaration.

use clap::{Arg, Command};
use std::fmt::Write;

/// Columns of the page.
const WIDTH: usize = 116;
/// Where the text about a job or a setting begins.
const TEXT: usize = 38;

/// The page for the jobs of `command`.
pub fn text(command: &Command) -> String {
    let mut text = String::from(
        "usage: make JOB NAME=VALUE...        (or: cargo xtask JOB --name VALUE...)\nnames of tests are given to cargo xtask alone: cargo xtask boot-test s30\n\njobs:\n",
    );
    let jobs = || command.get_subcommands().filter(|job| !job.is_hide_set());
    for job in jobs() {
        let about = job.get_about().map(ToString::to_string);
        entry(&mut text, 14, job.get_name(), &about.unwrap_or_default());
    }
    text += "\nsettings (variable, flag, what it is, [what it is if not said]):\n";
    for group in groups(jobs()) {
        let of = if group.jobs == [group.name] {
            String::new()
        } else {
            format!(", for {}", group.jobs.join(", "))
        };
        text.push('\n');
        entry(&mut text, 0, "", &format!("{}{of}:", group.name));
        for setting in group.settings {
            let (name, about) = setting_of(setting);
            entry(&mut text, TEXT, &name, &about);
        }
    }
    text
}

/// Settings under one heading, and the jobs that have them.
struct Group<'a> {
    name: &'a str,
    jobs: Vec<&'a str>,
    settings: Vec<&'a Arg>,
}

fn groups<'a>(jobs: impl Iterator<Item = &'a Command>) -> Vec<Group<'a>> {
    let mut groups: Vec<Group> = Vec::new();
    for job in jobs {
        let settings = job.get_arguments().filter(|arg| arg.get_env().is_some());
        for setting in settings {
            let name = setting.get_help_heading().unwrap_or("others");
            let at = groups.iter().position(|group| group.name == name);
            let at = at.unwrap_or_else(|| {
                groups.push(Group {
                    name,
                    jobs: Vec::new(),
                    settings: Vec::new(),
                });
                groups.len() - 1
            });
            let group = &mut groups[at];
            if group.jobs.last() != Some(&job.get_name()) {
                group.jobs.push(job.get_name());
            }
            if !group
                .settings
                .iter()
                .any(|known| known.get_id() == setting.get_id())
            {
                group.settings.push(setting);
            }
        }
    }
    groups
}

fn setting_of(setting: &Arg) -> (String, String) {
    let variable = setting.get_env().unwrap_or_default().to_string_lossy();
    let takes_value = setting.get_action().takes_values();
    let (assigned, value) = if takes_value { ("", " ..") } else { ("=1", "") };
    let flag = setting.get_long().unwrap_or_default();
    let name = format!("{:14}  --{flag}{value}", format!("{variable}{assigned}"));
    let mut about = setting
        .get_help()
        .map_or(String::new(), ToString::to_string);
    let default = setting.get_default_values().first();
    let default = default.map(|value| value.to_string_lossy().into_owned());
    if let Some(default) = default.filter(|value| takes_value && !value.is_empty()) {
        let _ = write!(about, " [{default}]");
    }
    (name, about)
}

/// A name, and beside it what it is, broken into lines.
fn entry(text: &mut String, column: usize, name: &str, about: &str) {
    let mut line = format!("  {name:column$}");
    for word in about.split(' ') {
        if line.len() + word.len() > WIDTH {
            *text += line.trim_end();
            text.push('\n');
            line = format!("  {:column$}", "");
        }
        line += word;
        line.push(' ');
    }
    *text += line.trim_end();
    text.push('\n');
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_job_and_setting_is_on_the_page_once() {
        let page = crate::options::help();
        let count = |text: &str| page.matches(text).count();
        assert_eq!(count("\n  kernel  "), 1, "{page}");
        assert_eq!(count("--cpus .."), 1, "{page}");
        assert!(count("--only ..") == 3 && count("--debug\n") == 0);
        assert!(page.contains("\n  bench, for bench, rivals:\n") && page.contains("MEM "));
        assert!(
            page.lines().all(|line| line.len() <= super::WIDTH),
            "{page}"
        );
    }
}
