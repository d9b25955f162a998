//! The copy of the tree in which all mutants live.

use crate::points::Point;
use crate::walk::rewrite;
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::Path;

/// What the copy's locks and invalidations ask at run time.
const RUNTIME: &str = include_str!("runtime.rs.in");
/// Crates of the copy, and whether they are mutated.
const CRATES: [(&str, bool); 14] = [
    ("crates/abi", false),
    ("crates/cred", false),
    ("crates/elfload", false),
    ("crates/fscore", false),
    ("crates/ksync", true),
    ("crates/vdso", false),
    ("crates/vm", true),
    ("crates/vm-host", false),
    ("kernel/drivers", false),
    ("kernel/hal", false),
    ("kernel/mem", false),
    ("kernel/proc", true),
    ("kernel/task", true),
    ("kernel/vfs", true),
];
/// Files of the mutated crates that are no part of a protocol.
const LEFT_OUT: [&str; 6] = [
    "host.rs",
    "shim.rs",
    "tests.rs",
    "check.rs",
    "inject.rs",
    "stats.rs",
];

/// Code of the copy: in this file, after this text (its first occurrence), comes that.
const HOOKS: [(&str, &str, &str); 12] = [
    (
        "crates/ksync/src/spin.rs",
        "fn acquire(&self, stats: &'static ClassStats) {",
        "if crate::mutant::skip_lock(core::ptr::from_ref(self).addr(), self.is_locked()) { return; }",
    ),
    (
        "crates/ksync/src/spin.rs",
        "fn release(&self) {",
        "if crate::mutant::skip_unlock(core::ptr::from_ref(self).addr()) { return; }",
    ),
    (
        "crates/ksync/src/mutex.rs",
        "class::acquire::<C>(order);",
        "if crate::mutant::skip_lock(core::ptr::from_ref(self).addr(), self.is_locked()) {
            return MutexGuard { mutex: self, held: 0, not_send: PhantomData };
        }",
    ),
    (
        "crates/ksync/src/mutex.rs",
        "class::release::<C>();",
        "if crate::mutant::skip_unlock(core::ptr::from_ref(self.mutex).addr()) { return; }",
    ),
    (
        "crates/ksync/src/epoch.rs",
        "impl Shared {
    fn retire(&self, pin: &CpuPin, object: Retired) {",
        "if crate::mutant::skip_grace() { return object.run(); }",
    ),
    (
        "crates/ksync/src/epoch.rs",
        "pub(crate) unsafe fn retire_link(self, pin: &CpuPin, link: *mut Link) {",
        "if crate::mutant::skip_grace() { return unsafe { while !matches!(((*link).run)(link), Freed::All(..)) {} }; }",
    ),
    (
        "crates/vm/src/limbo.rs",
        "pub fn retire_frames(&self, list: FrameList) {",
        "if ksync::mutant::skip_grace() {
            let (mut list, pin) = (list, ksync::pin());
            while let Some(pfn) = list.pop(self.pages) { self.alloc.free(&pin, pfn); }
            return;
        }",
    ),
    (
        "crates/vm/src/page/busy.rs",
        "impl Drop for HardBusy<'_> {
    #[inline(always)]
    fn drop(&mut self) {",
        "if ksync::mutant::skip_unbusy() { return; }",
    ),
    (
        "crates/vm/src/page/busy.rs",
        "impl Drop for SoftBusy<'_> {
    #[inline(always)]
    fn drop(&mut self) {",
        "if ksync::mutant::skip_unbusy() { return; }",
    ),
    (
        "crates/vm/src/tlb.rs",
        "pub fn finish<M: Machine>(mut self, vm: &Vm<M>) {",
        "ksync::mutant::enter_finish();",
    ),
    (
        "crates/vm/src/tlb.rs",
        "fn send<M: Machine>(vm: &Vm<M>, cpus: &CpuSet, what: &Gather) {",
        "if ksync::mutant::skip_flush() { return; }",
    ),
    (
        // Not the flush of a gather that had nothing to flush.
        "crates/vm/src/tlb.rs",
        "pub(crate) fn reload<M: Machine>(vm: &Vm<M>, cpus: &CpuSet) {",
        "ksync::mutant::enter_finish();",
    ),
];

/// Brings the copy at `to` up to date with the tree at `root`, and returns the points. Files that need not change stay
/// as they are, so that a rebuild is short.
///
/// # Errors
/// A file cannot be read or written, or the place of a hook has gone.
pub fn copy(root: &Path, to: &Path) -> Result<Vec<Point>> {
    let mut points = Vec::new();
    for (dir, mutated) in CRATES {
        copy_dir(root, to, dir, mutated, &mut points)?;
    }
    let manifest = fs::read_to_string(root.join("Cargo.toml"))?;
    put(&to.join("Cargo.toml"), &reduced(&manifest))?;
    put(
        &to.join("Cargo.lock"),
        &fs::read_to_string(root.join("Cargo.lock"))?,
    )?;
    put(&to.join("crates/ksync/src/mutant.rs"), RUNTIME)?;
    Ok(points)
}

/// The workspace without the members that are not copied.
fn reduced(manifest: &str) -> String {
    let line = |line: &str| {
        if line.starts_with("members") || line.starts_with("default-members") {
            let key = line.split(' ').next().unwrap_or_default();
            return format!("{key} = {:?}\n", CRATES.map(|(dir, _)| dir));
        }
        format!("{line}\n")
    };
    manifest.lines().map(line).collect()
}

fn copy_dir(
    root: &Path,
    to: &Path,
    dir: &str,
    mutated: bool,
    points: &mut Vec<Point>,
) -> Result<()> {
    let mut entries: Vec<_> = fs::read_dir(root.join(dir))?.collect::<Result<_, _>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = format!("{dir}/{name}");
        if entry.file_type()?.is_dir() {
            copy_dir(root, to, &path, mutated, points)?;
            continue;
        }
        let Ok(text) = fs::read_to_string(entry.path()) else {
            continue;
        };
        let mutate = mutated
            && name.ends_with(".rs")
            && path.contains("/src/")
            && !LEFT_OUT.contains(&name.as_str());
        let text = if mutate {
            mutated_file(&path, &text, points)?
        } else {
            text
        };
        put(&to.join(&path), &with_threads(&path, text)?)?;
    }
    Ok(())
}

/// What `ksync` has of a host's threads, for each build: the runtime keeps notes for each thread.
fn with_threads(path: &str, text: String) -> Result<String> {
    const HOST: &str = "#[cfg(feature = \"host\")]\n";
    let item = match path {
        "crates/ksync/src/lib.rs" => "extern crate std;",
        "crates/ksync/src/shim.rs" => "pub(crate) mod threads {",
        _ => return Ok(text),
    };
    let there = format!("{HOST}{item}");
    if !text.contains(&there) {
        bail!("{path}: no `{item}` for hosts alone any more");
    }
    Ok(text.replace(&there, item))
}

fn mutated_file(path: &str, source: &str, points: &mut Vec<Point>) -> Result<String> {
    let before = points.len();
    let mut text = rewrite(path, source, points)?;
    for (_, after, hook) in HOOKS.iter().filter(|(file, ..)| *file == path) {
        let Some(at) = text.find(after) else {
            bail!("{path}: no `{after}` any more")
        };
        text.insert_str(at + after.len(), hook);
    }
    if path == "crates/ksync/src/lib.rs" {
        text.push_str("\n#[doc(hidden)]\npub mod mutant;\n");
    }
    if points.len() > before {
        let ksync = if path.starts_with("crates/ksync/") {
            "crate"
        } else {
            "ksync"
        };
        text.push_str(&format!(
            "#[allow(unused_imports)]\nuse {ksync}::mutant::{{Force as _, Leave as _, Mutate as _}};\n"
        ));
    }
    Ok(text)
}

fn put(path: &Path, text: &str) -> Result<()> {
    if fs::read_to_string(path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    let parent = path.parent().context("a file has a directory")?;
    fs::create_dir_all(parent)?;
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    #[test]
    fn a_copy_has_models() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let to = std::env::temp_dir().join(format!("mutants-tree-{}", std::process::id()));
        let points = super::copy(&root, &to).unwrap();
        assert!(!points.is_empty());
        for checker in ["loom", "shuttle"] {
            let models = machine::models::files(&to, &["crates", "kernel"], checker).unwrap();
            assert!(!models.is_empty(), "{checker}");
        }
        std::fs::remove_dir_all(&to).unwrap();
    }
}
