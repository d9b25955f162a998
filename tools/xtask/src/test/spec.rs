//! The description of a boot test: a TOML file in `tests/boot`, see `doc/testing.md`.

use anyhow::{Context, Result, ensure};
use machine::options::{Accel, Machine, Profile, Rmap, mebibytes};
use serde::Deserialize;
use std::path::Path;

/// Never printed by a guest that is well, whatever the test. Matched without regard to case.
const ALWAYS_FORBIDDEN: &[&str] = &[
    "kernel panic",
    "panicked at",
    "assertion failed",
    "lock rank",
    "frames leaked",
];

/// Stands in a command for the minutes that it is to run.
const MINUTES: &str = "{minutes}";

/// A file of `tests/boot`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// The file's name without the suffix.
    #[serde(skip)]
    pub name: String,
    /// What the test makes sure of, one sentence.
    pub makes_sure: String,
    /// The command that init hands to the shell; none is the tour.
    pub run: Option<String>,
    /// The status that init must end with; -1: init does not end (the kernel stops by itself).
    #[serde(default)]
    pub status: i32,
    /// Each must appear on the console.
    #[serde(default)]
    pub expect: Vec<String>,
    /// None may appear on the console, besides those that never may.
    #[serde(default)]
    pub forbid: Vec<String>,
    /// Exceptions to what may never appear.
    #[serde(default)]
    pub allow: Vec<String>,
    /// Options on the kernel's command line.
    #[serde(default)]
    pub options: String,
    /// The image's first so many bytes are all that the machine gets; 0: the whole image.
    #[serde(default)]
    pub cut_image: u64,
    /// Whether the image is compressed.
    #[serde(default)]
    pub gzip: bool,
    /// Packages besides the default ones.
    #[serde(default)]
    pub packages: Vec<String>,
    /// Whether the kernel gets as far as init's end, where it accounts for memory and stacks.
    #[serde(default = "yes")]
    pub leakcheck: bool,
    /// What a person types, each line after its cue.
    #[serde(default)]
    pub talk: Vec<Line>,
    /// Seconds for one boot.
    pub timeout: u64,
    /// The machines it is run on.
    pub on: Vec<On>,
}

fn yes() -> bool {
    true
}

/// Something typed at the console.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Line {
    /// Typed once this has appeared after the cue before it.
    pub after: String,
    /// The keys.
    pub keys: String,
}

/// One machine of a test.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct On {
    cpus: u32,
    nodes: u32,
    mem: String,
    cpu: String,
    machine: String,
    debug: bool,
    /// The clock counts instructions, a nanosecond each.
    icount: bool,
    /// The reverse map that the kernel is built with.
    rmap: String,
    options: String,
}

impl Default for On {
    fn default() -> Self {
        On {
            cpus: 2,
            nodes: 1,
            mem: "512M".into(),
            cpu: "max".into(),
            machine: "q35".into(),
            debug: false,
            icount: false,
            rmap: "backings".into(),
            options: String::new(),
        }
    }
}

impl On {
    /// The machine.
    ///
    /// # Errors
    /// The memory is not a size.
    pub fn machine(&self, accel: Option<Accel>) -> Result<Machine> {
        Ok(Machine {
            cpus: self.cpus,
            mem_mib: mebibytes(&self.mem)?,
            nodes: self.nodes,
            cpu: self.cpu.clone(),
            machine: self.machine.clone(),
            accel: self.icount.then_some(Accel::Icount).or(accel),
        })
    }

    /// Which build of the kernel.
    pub fn profile(&self) -> Profile {
        if self.debug {
            Profile::Debug
        } else {
            Profile::Release
        }
    }

    /// The reverse map of the kernel.
    ///
    /// # Errors
    /// There is none of that name.
    pub fn rmap(&self) -> Result<Rmap> {
        let name = &self.rmap;
        Rmap::named(name).with_context(|| format!("no reverse map is named {name}"))
    }

    /// CPUs of the host, for sharing them among tests.
    pub fn host_cpus(&self) -> u32 {
        match self.cpus {
            1 | 2 => 1,
            more => more,
        }
    }

    /// The kernel options of this machine alone.
    pub fn options(&self) -> &str {
        &self.options
    }

    /// What differs from the default machine, as part of a name.
    pub fn label(&self) -> String {
        let usual = On::default();
        let mut parts = vec![format!("{}cpu", self.cpus)];
        let mut add = |differs: bool, text: String| parts.extend(differs.then_some(text));
        add(self.nodes != usual.nodes, format!("{}node", self.nodes));
        add(self.mem != usual.mem, self.mem.clone());
        add(self.cpu != usual.cpu, self.cpu.clone());
        add(self.machine != usual.machine, self.machine.clone());
        add(self.debug, "debug".into());
        add(self.icount, "icount".into());
        add(self.rmap != usual.rmap, self.rmap.clone());
        add(
            !self.options.is_empty(),
            self.options.replace([' ', '='], "_"),
        );
        parts.join("-")
    }
}

impl Spec {
    /// Reads the description at `path`.
    ///
    /// # Errors
    /// It cannot be read or says something that has no meaning.
    pub fn read(path: &Path) -> Result<Spec> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        Spec::parse(&name, &text).with_context(|| path.display().to_string())
    }

    pub(crate) fn parse(name: &str, text: &str) -> Result<Spec> {
        let mut spec: Spec = toml::from_str(text)?;
        spec.name = name.into();
        ensure!(!spec.on.is_empty(), "no machine to run on");
        ensure!(spec.timeout > 0, "a test needs time");
        for on in &spec.on {
            ensure!((1..=on.cpus).contains(&on.nodes), "nodes must be 1 to cpus");
            on.machine(None)?;
        }
        Ok(spec)
    }

    /// Has a test that runs for a chosen time run for `minutes`: `{minutes}` in its command stands for them. Its own limit is
    /// what it may take besides.
    pub fn last(&mut self, minutes: u64) {
        if let Some(run) = self.run.as_mut().filter(|run| run.contains(MINUTES)) {
            *run = run.replace(MINUTES, &minutes.to_string());
            self.timeout += 60 * minutes;
        }
    }

    /// What is wrong with a boot that printed `console` and ended with `status` (none: not by init). `own`: the kernel is
    /// Pantala's.
    pub fn judge(&self, console: &str, status: Option<u8>, own: bool) -> Result<(), String> {
        let lower = console.to_lowercase();
        let always = ALWAYS_FORBIDDEN
            .iter()
            .filter(|text| !self.allow.iter().any(|allowed| allowed == *text));
        if let Some(text) = always.copied().find(|text| lower.contains(text)) {
            return Err(format!("the console has \"{text}\""));
        }
        if let Some(text) = self
            .forbid
            .iter()
            .find(|text| console.contains(text.as_str()))
        {
            return Err(format!("the console has \"{text}\""));
        }
        if let Some(text) = self
            .expect
            .iter()
            .find(|text| !console.contains(text.as_str()))
        {
            return Err(format!("the console lacks \"{text}\""));
        }
        if own && self.leakcheck {
            judge_end(console)?;
        }
        let wanted = u8::try_from(self.status).ok();
        match (wanted, status) {
            (wanted, status) if wanted == status => Ok(()),
            (_, None) => Err("the machine ended without init having ended".into()),
            (_, Some(status)) => Err(format!(
                "init ended with status {status}, not {}",
                self.status
            )),
        }
    }
}

/// The descriptions in a directory whose names begin with one of `names`, by name; without any, all.
///
/// # Errors
/// A description is wrong, or none has one of the names.
pub fn chosen(dir: &Path, names: &[String]) -> Result<Vec<Spec>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|suffix| suffix == "toml") {
            files.push(path);
        }
    }
    files.sort();
    let specs = files
        .iter()
        .map(|path| Spec::read(path))
        .collect::<Result<Vec<_>>>()?;
    for name in names {
        ensure!(
            specs
                .iter()
                .any(|spec| spec.name.starts_with(name.as_str())),
            "no boot test is named {name}"
        );
    }
    let wanted = |spec: &Spec| {
        names.is_empty()
            || names
                .iter()
                .any(|name| spec.name.starts_with(name.as_str()))
    };
    Ok(specs.into_iter().filter(wanted).collect())
}

/// What the kernel says when init has ended: that no frame is missing, that its stacks were deep enough, and, if it took
/// translations away at random, that it really did.
fn judge_end(console: &str) -> Result<(), String> {
    const ACCOUNT: &str = "leakcheck: every frame is accounted for";
    if !console.contains(ACCOUNT) {
        return Err(format!("the console lacks \"{ACCOUNT}\""));
    }
    let after = |label| {
        console
            .lines()
            .find_map(|line| line.trim().strip_prefix(label))
    };
    let stacks = after("stacks: ").ok_or("the console lacks the depth of stacks")?;
    let mut sizes = stacks.split_whitespace().map_while(|word| match word {
        "of" => Some(None),
        word => Some(Some(word.parse::<u64>().ok()?)),
    });
    match (sizes.next(), sizes.nth(1)) {
        // An eighth is kept for what no test has met.
        (Some(Some(used)), Some(Some(size))) if (1..=size / 8 * 7).contains(&used) => {}
        _ => return Err(format!("stacks are too small: {stacks}")),
    }
    judge_chaos(after("vmchaos: ").unwrap_or_default())
}

/// Whether `vmchaos` did what it is there for; `counts` as the kernel printed them, empty if it did not run. Of a boot that was
/// over before it had looked at many pages nothing but that it looked is asked: most pages are free, or are mapped by nobody.
fn judge_chaos(counts: &str) -> Result<(), String> {
    const MANY: u64 = 100_000;
    let all = || counts.split_whitespace().filter_map(|c| c.split_once('='));
    let looked = all().find(|(name, _)| *name == "pages");
    let many = looked.is_some_and(|(_, n)| n.parse().is_ok_and(|n: u64| n >= MANY));
    match all().find(|&(name, n)| n == "0" && (many || name == "pages")) {
        Some((name, _)) => Err(format!("vmchaos did nothing: {name}=0")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "makes_sure = 'it works'\nrun = 'true'\nexpect = ['hello']\ntimeout = 9\n\
                        [[on]]\ncpus = 4\nnodes = 2\ndebug = true\n[[on]]\ncpu = 'qemu64'\noptions = 'a=b c'\n";

    #[test]
    fn a_description_names_its_machines() {
        let spec = Spec::parse("s00", TEXT).unwrap();
        let labels: Vec<String> = spec.on.iter().map(On::label).collect();
        assert_eq!(labels, ["4cpu-2node-debug", "2cpu-qemu64-a_b_c"]);
        assert!(Spec::parse("s", &TEXT.replace("nodes = 2", "nodes = 5")).is_err());
        assert!(Spec::parse("s", &TEXT.replace("cpus", "cups")).is_err());
    }

    #[test]
    fn the_kernel_must_account_for_its_memory() {
        let spec = Spec::parse("s00", TEXT).unwrap();
        let end = "hello\nleakcheck: every frame is accounted for\nstacks: 4000 of 8192 bytes used at most\n";
        assert_eq!(spec.judge(end, Some(0), true), Ok(()));
        assert!(spec.judge("hello", Some(0), true).is_err());
        assert!(
            spec.judge(&end.replace("4000", "7400"), Some(0), true)
                .is_err()
        );
        assert!(
            spec.judge(&end.replace("4000", "0"), Some(0), true)
                .is_err()
        );
        let chaos = |counts| format!("{end}vmchaos: {counts}\n");
        assert_eq!(
            spec.judge(&chaos("pages=1 tables=20"), Some(0), true),
            Ok(())
        );
        assert!(
            spec.judge(&chaos("pages=100000 tables=0"), Some(0), true)
                .is_err()
        );
        // Too short a boot to have met a table, but not to have looked.
        let short = spec.judge(&chaos("pages=99999 tables=0"), Some(0), true);
        assert_eq!(short, Ok(()));
        assert!(
            spec.judge(&chaos("pages=0 tables=20"), Some(0), true)
                .is_err()
        );
    }

    #[test]
    fn a_boot_is_judged_by_console_and_status() {
        let judge = |spec: &Spec, console: &str, status| spec.judge(console, status, false);
        let spec = Spec::parse("s00", TEXT).unwrap();
        assert_eq!(judge(&spec, "hello", Some(0)), Ok(()));
        assert!(judge(&spec, "hello", Some(1)).is_err());
        assert!(judge(&spec, "hello", None).is_err());
        assert!(judge(&spec, "hell", Some(0)).is_err());
        assert!(judge(&spec, "hello Kernel Panic: x", Some(0)).is_err());
        let stops = Spec {
            status: -1,
            allow: vec!["kernel panic".into()],
            ..spec
        };
        assert_eq!(judge(&stops, "hello kernel panic", None), Ok(()));
        assert!(judge(&stops, "hello kernel panic", Some(0)).is_err());
    }
}
