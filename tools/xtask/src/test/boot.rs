//! Runs the boot tests.
//!
//! Guarantee: each boot has its own time limit and leaves its console in `build/test/NAME.log`; at most as many
//! machines run at once as the host has CPUs for, so that one test does not starve another into its limit. A machine of two
//! CPUs, of which tests mostly keep one busy, counts as one.

use super::Totals;
use super::guest::{Ended, Guest, read_console};
use super::spec::{On, Spec, chosen};
use anyhow::Result;
use machine::options::{Accel, Image, Profile, Rmap, Setup, Words};
use machine::progress::{Step, step};
use machine::{build, image, locked, tools};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex};
use std::time::Instant;

/// What all boots share.
struct Shared {
    /// By whether it is a debug build, and reverse map.
    kernels: BTreeMap<(bool, Rmap), PathBuf>,
    /// By packages and whether it is compressed.
    images: BTreeMap<(Vec<String>, bool), PathBuf>,
    logs: PathBuf,
    accel: Option<Accel>,
    /// The kernels are Pantala's.
    own: bool,
}

/// One boot: a test on one of its machines.
struct Boot<'a> {
    spec: &'a Spec,
    on: &'a On,
    name: String,
}

/// Which tests are run.
pub struct Choice<'a> {
    /// Where they lie.
    dir: &'static str,
    /// Beginnings of their names; none: all.
    names: &'a [String],
    /// How long those run that run for a chosen time.
    minutes: u64,
}

impl<'a> Choice<'a> {
    /// Among those that are run every day, none of which runs for a chosen time.
    pub fn usual(names: &'a [String]) -> Self {
        Choice {
            dir: "tests/boot",
            names,
            minutes: 0,
        }
    }

    /// Among those that take long.
    pub fn long(names: &'a [String], minutes: u64) -> Self {
        Choice {
            dir: "tests/soak",
            names,
            minutes,
        }
    }
}

/// Tests that can run at once: their kernels and images are built.
pub struct Ready {
    specs: Vec<Spec>,
    shared: Shared,
}

impl Ready {
    /// Builds what the tests that are chosen need.
    ///
    /// # Errors
    /// A description is wrong, no test has that name, or kernel or image cannot be built.
    pub fn prepare(setup: &Setup, choice: &Choice) -> Result<Self> {
        tools::need(&[("qemu-system-x86_64", "qemu-system-x86")])?;
        let mut specs = chosen(&tools::root().join(choice.dir), choice.names)?;
        specs.iter_mut().for_each(|spec| spec.last(choice.minutes));
        let shared = prepare(setup, &boots_of(&specs))?;
        Ok(Self { specs, shared })
    }

    /// Runs them.
    pub fn run(&self) -> Totals {
        let boots = boots_of(&self.specs);
        let step = step(format!("{} boot tests", boots.len()));
        run_all(&self.shared, &boots, &step)
    }
}

/// All boots of some tests.
fn boots_of(specs: &[Spec]) -> Vec<Boot<'_>> {
    let mut boots: Vec<Boot> = specs
        .iter()
        .flat_map(|spec| spec.on.iter().map(move |on| (spec, on)))
        .map(|(spec, on)| Boot {
            spec,
            on,
            name: format!("{}-{}", spec.name, on.label()),
        })
        .collect();
    // Small machines first, side by side: between larger ones a CPU of the host would stay idle.
    boots.sort_by_key(|boot| boot.on.host_cpus() != 1);
    boots
}

fn prepare(setup: &Setup, boots: &[Boot]) -> Result<Shared> {
    let mut kernels = BTreeMap::new();
    let mut images = BTreeMap::new();
    for boot in boots {
        let (debug, rmap) = (boot.on.profile() == Profile::Debug, boot.on.rmap()?);
        if let Entry::Vacant(free) = kernels.entry((debug, rmap)) {
            let mut asked = setup.system.kernel.clone();
            // What is asked for replaces the default alone.
            if rmap != Rmap::default() {
                asked.design.rmap = rmap;
            }
            free.insert(build::kernel_for(&asked, boot.on.profile())?);
        }
        let Spec { packages, gzip, .. } = boot.spec;
        let kind = (packages.clone(), *gzip);
        if !images.contains_key(&kind) {
            let made = image::make(&Image {
                packages: Words(packages.clone()),
                files: setup.system.image.files.clone(),
                gzip: *gzip || setup.system.image.gzip,
                root: None,
            })?;
            // Each kind of image keeps a file of its own while the tests run.
            let kept = made.with_file_name(format!("test-image-{}.cpio", images.len()));
            fs::copy(&made, &kept)?;
            images.insert(kind, kept);
        }
    }
    let logs = tools::build_dir()?.join("test");
    fs::create_dir_all(&logs)?;
    Ok(Shared {
        kernels,
        images,
        logs,
        accel: setup.machine.accel,
        own: setup.system.kernel.kernel.is_none(),
    })
}

/// The host's CPUs, lent to boots.
struct Cpus {
    free: Mutex<u32>,
    given_back: Condvar,
    all: u32,
}

impl Cpus {
    fn take(&self, wanted: u32) -> u32 {
        let lent = wanted.min(self.all);
        let mut free = locked(&self.free);
        while *free < lent {
            free = self
                .given_back
                .wait(free)
                .unwrap_or_else(std::sync::PoisonError::into_inner);
        }
        *free -= lent;
        lent
    }

    fn give(&self, lent: u32) {
        *locked(&self.free) += lent;
        self.given_back.notify_all();
    }
}

fn run_all(shared: &Shared, boots: &[Boot], step: &Step) -> Totals {
    let all = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    let cpus = Cpus {
        free: Mutex::new(all),
        given_back: Condvar::new(),
        all,
    };
    let next = Mutex::new(boots.iter());
    let totals = Mutex::new(Totals::default());
    let work = || {
        loop {
            let taken = locked(&next).next();
            let Some(boot) = taken else { return };
            let lent = cpus.take(boot.on.host_cpus());
            step.say(&boot.name);
            let began = Instant::now();
            let result = run_one(shared, boot)
                .map_err(|error| format!("{error:#}"))
                .and_then(|verdict| verdict);
            cpus.give(lent);
            let took = began.elapsed().as_secs_f64();
            match &result {
                Ok(()) => step.line(&format!("ok    {} ({took:.1} s)", boot.name)),
                Err(reason) => step.line(&failure(shared, boot, reason, took)),
            }
            locked(&totals).count(result.is_ok());
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..all.min(2) {
            scope.spawn(work);
        }
    });
    totals
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn log_path(shared: &Shared, boot: &Boot) -> PathBuf {
    shared.logs.join(format!("{}.log", boot.name))
}

/// The report of a failed boot: what it was to make sure of, why it failed, and the console's last lines.
fn failure(shared: &Shared, boot: &Boot, reason: &str, took: f64) -> String {
    let log = log_path(shared, boot);
    let console = read_console(&log) + &read_console(&log.with_extension("qemu"));
    let lines: Vec<&str> = console.lines().collect();
    let last = lines[lines.len().saturating_sub(25)..].join("\n  | ");
    format!(
        "FAIL  {} ({took:.1} s): {reason}\n  makes sure that: {}\n  console: {}\n  | {last}",
        boot.name,
        boot.spec.makes_sure,
        log.display()
    )
}

/// The image of a test, of which the machine may get the beginning alone: a copy beside its log then.
fn image_of(shared: &Shared, spec: &Spec, log: &Path) -> Result<PathBuf> {
    let whole = shared.images[&(spec.packages.clone(), spec.gzip)].clone();
    if spec.cut_image == 0 {
        return Ok(whole);
    }
    let cut = log.with_extension("cpio");
    fs::copy(&whole, &cut)?;
    let file = fs::File::options().write(true).open(&cut)?;
    file.set_len(spec.cut_image)?;
    Ok(cut)
}

/// Boots once and judges what came of it.
fn run_one(shared: &Shared, boot: &Boot) -> Result<Result<(), String>> {
    let Boot { spec, on, .. } = boot;
    let check = if shared.own && spec.leakcheck {
        "leakcheck"
    } else {
        ""
    };
    let log = log_path(shared, boot);
    let image = image_of(shared, spec, &log)?;
    let guest = Guest {
        machine: on.machine(shared.accel)?,
        kernel: &shared.kernels[&(on.profile() == Profile::Debug, on.rmap()?)],
        image: &image,
        options: format!("{check} {} {}", spec.options, on.options()),
        log: &log,
    };
    let Some(Ended { console, status }) = guest.run(spec)? else {
        return Ok(Err(format!("not over after {} s", spec.timeout)));
    };
    Ok(spec.judge(&console, status, shared.own))
}
