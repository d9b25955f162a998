//! Tests that need no machine: format, lints, unit tests, models.

use super::Totals;
use anyhow::{Context, Result, anyhow};
use machine::options::Rmap;
use machine::progress::{Step, step};
use machine::{models, toolchain, tools};
use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

/// How far apart the places are at which models stop a thread: see `vm_host::one_stop`.
const STRIDE: &str = "PANTALA_STRIDE";

/// Runs those that there are for a kernel with this reverse map; failures are printed as they come. The default's are all, with some
/// for each of the others; another's are those of the VM and of the kernel's crates on it.
///
/// # Errors
/// cargo cannot be started.
pub fn run(rmap: Rmap) -> Result<Totals> {
    match rmap.feature() {
        None => run_default(),
        Some(feature) => run_rival(feature),
    }
}

fn run_default() -> Result<Totals> {
    let root = tools::root();
    // Tests and models beside one another: the former often use one CPU, when they link or when one test is left.
    let models = Checked::find(&root)?;
    let (models, rest) = std::thread::scope(|scope| {
        let first = scope.spawn(|| models.run(&root, End::Front));
        let rest = all_plain(&root).and_then(|mut totals| {
            totals.add(models.run(&root, End::Back)?);
            Ok(totals)
        });
        (first.join(), rest)
    });
    let mut totals = rest?;
    totals.add(models.map_err(|_| anyhow!("a checker panicked"))??);
    Ok(totals)
}

/// What no checker runs.
fn all_plain(root: &Path) -> Result<Totals> {
    let user = root.join("user");
    let mut totals = Totals::default();
    checks(root, &user, &mut totals)?;
    totals.add(cargo_test(
        "unit tests",
        cargo(root, &["test", "--no-fail-fast"]),
    )?);
    // Apart from the others, because their locks are on the simulated machine, and those of `ksync` on threads of the host.
    totals.add(cargo_test(
        "the kernel's crates on a simulated machine",
        kernel_crates(root, &[]),
    )?);
    reverse_maps(root, &mut totals)?;
    totals.add(cargo_test(
        "unit tests of the image's programs",
        cargo(&user, &["test", "--no-fail-fast"]),
    )?);
    Ok(totals)
}

/// All tests of the laboratory and its models, and the tests of the kernel's crates, on another reverse map.
fn run_rival(feature: &'static str) -> Result<Totals> {
    let root = tools::root();
    let mut totals = cargo_test(
        &format!("tests of the VM on {feature}"),
        cargo(&root, &on_map(feature, &[])),
    )?;
    totals.add(cargo_test(
        &format!("the kernel's crates on {feature}"),
        kernel_crates(&root, &["--features", feature]),
    )?);
    for checker in models::CHECKERS {
        let files = models::files(&root, &["crates"], checker)?;
        let tests: Vec<&str> = files
            .iter()
            .filter(|(package, _)| package == "vm-host")
            .map(|(_, test)| test.as_str())
            .collect();
        totals.add(models_on(&root, feature, checker, &tests)?);
    }
    Ok(totals)
}

/// What cargo is asked for, to run tests of the laboratory on a reverse map: all, if none is named.
fn on_map<'a>(map: &'a str, tests: &[&'a str]) -> Vec<&'a str> {
    let lab = [
        "test",
        "--no-fail-fast",
        "--package",
        "vm-host",
        "--features",
        map,
    ];
    let tests = tests.iter().flat_map(|test| ["--test", *test]);
    lab.into_iter().chain(tests).collect()
}

/// Tests of the kernel's crates on a simulated machine.
fn kernel_crates(root: &Path, options: &[&str]) -> Command {
    let crates = packages(&ON_HOST);
    cargo(
        root,
        &[&["test", "--no-fail-fast"], &crates[..], options].concat(),
    )
}

/// Models of the laboratory under a checker, on a reverse map.
fn models_on(root: &Path, map: &str, checker: &str, tests: &[&str]) -> Result<Totals> {
    let mut models = cargo(root, &on_map(map, tests));
    models.arg("--release");
    model_settings(root, checker, &mut models);
    cargo_test(&format!("models of {map} ({checker})"), models)
}

/// The laboratory's random operations on the other reverse maps, and on one with a hole, which must be noticed.
fn reverse_maps(root: &Path, totals: &mut Totals) -> Result<()> {
    let maps = [
        (
            "the naive reverse map",
            "naive-rmap",
            &["model", "lists"][..],
        ),
        ("a faulty reverse map", "faulty-rmap", &["model"]),
        (
            "the reverse map pv-obm",
            "pv-obm",
            &["model", "pv_lists", "pv_reclaim"],
        ),
        (
            "the reverse map pv-stock",
            "pv-stock",
            &["model", "pv_lists", "pv_stock", "pv_reclaim"],
        ),
    ];
    for (what, map, tests) in maps {
        totals.add(cargo_test(what, cargo(root, &on_map(map, tests)))?);
    }
    let both = ["shuttle_lists", "shuttle_pv"];
    totals.add(models_on(root, "pv-obm", "shuttle", &both)?);
    totals.add(models_on(root, "pv-stock", "shuttle", &both[1..])?);
    Ok(())
}

/// The crates that are built for the machine.
const KERNEL: [&str; 12] = [
    "hal", "mem", "task", "drivers", "vfs", "proc", "net", "ipc", "tty", "fs", "syscall", "pantala",
];

/// Those of them that are built for a host, too, and tested there.
const ON_HOST: [&str; 9] = [
    "hal", "mem", "task", "drivers", "vfs", "proc", "net", "ipc", "tty",
];

/// The options that select packages.
fn packages<'a>(names: &[&'a str]) -> Vec<&'a str> {
    names.iter().flat_map(|name| ["--package", name]).collect()
}

fn cargo(dir: &Path, args: &[&str]) -> Command {
    let mut command = toolchain::cargo();
    command.current_dir(dir).args(args).stdin(Stdio::null());
    command
}

/// Format, lints and documentation; each counts as a test. A toolchain without the component (Debian's) leaves them out, and says so.
fn checks(root: &Path, user: &Path, totals: &mut Totals) -> Result<()> {
    let mut one = |what: &str, component: &str, mut command: Command| -> Result<()> {
        let asked = toolchain::cargo().args([component, "--version"]).output();
        // rustdoc comes with every compiler.
        if component != "doc" && !asked.is_ok_and(|out| out.status.success()) {
            println!("left out: {what} (this toolchain has no cargo {component})");
            return Ok(());
        }
        let step = step(what);
        let out = command
            .output()
            .with_context(|| format!("cannot start cargo {component}"))?;
        report(
            &step,
            what,
            out.status.success(),
            &[out.stdout, out.stderr].concat(),
        );
        totals.count(out.status.success());
        Ok(())
    };
    one("format", "fmt", cargo(root, &["fmt", "--all", "--check"]))?;
    one(
        "format of the image's programs",
        "fmt",
        cargo(user, &["fmt", "--check"]),
    )?;
    let deny = ["--", "-D", "warnings"];
    let clippy = |dir, args: &[&str]| cargo(dir, &[&["clippy", "--quiet"], args].concat());
    let packages_of_kernel = packages(&KERNEL);
    let mut kernel = clippy(root, &packages_of_kernel);
    toolchain::for_kernel(&mut kernel)?;
    kernel.args(deny);
    one(
        "lints",
        "clippy",
        clippy(root, &[&["--all-targets"], &deny[..]].concat()),
    )?;
    one("lints of the kernel", "clippy", kernel)?;
    let on_host = [&packages(&ON_HOST)[..], &["--all-targets"], &deny].concat();
    one(
        "lints of the kernel's crates on a host",
        "clippy",
        clippy(root, &on_host),
    )?;
    one(
        "lints of the image's programs",
        "clippy",
        clippy(user, &deny),
    )?;
    let documents = |args: &[&str]| {
        let mut doc = cargo(root, &[&["doc", "--no-deps", "--quiet"], args].concat());
        doc.env("RUSTDOCFLAGS", "-D warnings");
        doc
    };
    one("documentation", "doc", documents(&[]))?;
    let mut kernel = documents(&packages_of_kernel);
    toolchain::for_kernel(&mut kernel)?;
    one("documentation of the kernel", "doc", kernel)
}

fn report(step: &Step, what: &str, passed: bool, output: &[u8]) {
    if passed {
        step.line(&format!("ok    {what}"));
    } else {
        step.line(&format!(
            "{}\nFAIL  {what}",
            String::from_utf8_lossy(output).trim_end()
        ));
    }
}

/// Runs a `cargo test` and counts what its runners say; a build that fails is one failed test.
pub(super) fn cargo_test(what: &str, mut command: Command) -> Result<Totals> {
    let step = step(what);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start cargo")?;
    let stderr = child.stderr.take().context("no pipe")?;
    let errors = std::thread::spawn(move || {
        BufReader::new(stderr)
            .lines()
            .map_while(Result::ok)
            .collect::<Vec<_>>()
    });
    let (mut totals, mut output) = (Totals::default(), Vec::new());
    for line in BufReader::new(child.stdout.take().context("no pipe")?)
        .lines()
        .map_while(Result::ok)
    {
        match parse_result(&line) {
            Some(counts) => totals.add(counts),
            None => step.say(line.trim_start_matches("test ")),
        }
        output.push(line);
    }
    let status = child.wait()?;
    output.extend(errors.join().unwrap_or_default());
    if !status.success() && totals.failed == 0 {
        totals.failed = 1;
    }
    let summary = format!("{what}: {} passed, {} failed", totals.passed, totals.failed);
    report(
        &step,
        &summary,
        status.success(),
        output.join("\n").as_bytes(),
    );
    Ok(totals)
}

/// `test result: ok. 3 passed; 1 failed; ...`
fn parse_result(line: &str) -> Option<Totals> {
    let counts = line.strip_prefix("test result: ")?.split_once(". ")?.1;
    let number = |suffix: &str| {
        counts
            .split("; ")
            .find_map(|part| part.strip_suffix(suffix)?.trim().parse().ok())
    };
    Some(Totals {
        passed: number("passed")?,
        failed: number("failed")?,
    })
}

/// The models of one package under one checker.
struct Models {
    checker: &'static str,
    package: String,
    tests: Vec<String>,
}

/// Tests under all model checkers, of a package each. Two threads take them from the two ends, so that they seldom wait for each other:
/// each checker has a folder of its own for what it builds.
struct Checked(Mutex<VecDeque<Models>>);

/// An end of the list.
#[derive(Clone, Copy)]
enum End {
    Front,
    Back,
}

impl Checked {
    fn find(root: &Path) -> Result<Self> {
        let mut list = VecDeque::new();
        for checker in models::CHECKERS.into_iter().rev() {
            let files = models::files(root, &["crates", "kernel"], checker)?;
            list.extend(files.chunk_by(|a, b| a.0 == b.0).map(|of_one| Models {
                checker,
                package: of_one[0].0.clone(),
                tests: of_one.iter().map(|(_, test)| test.clone()).collect(),
            }));
        }
        Ok(Self(Mutex::new(list)))
    }

    /// Runs those that nobody runs, from one end on, until none is left.
    fn run(&self, root: &Path, end: End) -> Result<Totals> {
        let next = || {
            let mut left = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            match end {
                End::Front => left.pop_front(),
                End::Back => left.pop_back(),
            }
        };
        let mut totals = Totals::default();
        while let Some(models) = next() {
            totals.add(checked(root, &models)?);
        }
        Ok(totals)
    }
}

/// Tests under a model checker. Those of a package are built together, and then run one after another.
fn checked(root: &Path, models: &Models) -> Result<Totals> {
    let Models {
        checker,
        package,
        tests,
    } = models;
    let mut command = cargo(
        root,
        &["test", "--no-fail-fast", "--release", "--package", package],
    );
    for test in tests {
        command.args(["--test", test]);
    }
    model_settings(root, checker, &mut command);
    cargo_test(&format!("models of {package} ({checker})"), command)
}

/// How models are built and run.
fn model_settings(root: &Path, checker: &str, command: &mut Command) {
    models::build_for(command, checker);
    if std::env::var_os(STRIDE).is_none() {
        // Of the middle of a long thread every ninth step: all of them take many minutes more.
        command.env(STRIDE, "9");
    }
    command.env("CARGO_TARGET_DIR", root.join("target").join(checker));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runner_lines_are_counted() {
        let line = "test result: FAILED. 12 passed; 3 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s";
        assert_eq!(
            parse_result(line),
            Some(Totals {
                passed: 12,
                failed: 3
            })
        );
        assert_eq!(parse_result("test a::b ... ok"), None);
    }
}
