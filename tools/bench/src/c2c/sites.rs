//! Names of the kernel's functions and statics by address, and the types that allocations are made for.

use super::types::Types;
use anyhow::{Context, Result, anyhow};
use coherence::labels::{Label, SITES};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// Sites are offsets from this address.
const KERNEL_BASE: u64 = 0xffff_ffff_8000_0000;

/// Functions by code address, and statics.
pub struct Sites {
    /// The functions that contain an address, the innermost inlined one first.
    frames: BTreeMap<u64, Vec<String>>,
    /// Statics by address.
    statics: Vec<(u64, String)>,
}

/// The address of the call that returns to `site`: the return address itself may belong to the next function.
fn call_before(site: u64) -> u64 {
    KERNEL_BASE + site - 1
}

impl Sites {
    /// Looks up the functions of the instructions at `pcs` and of the sites of `labels`.
    pub fn read<'a>(
        kernel: &Path,
        pcs: impl Iterator<Item = u64>,
        labels: impl Iterator<Item = &'a Label>,
    ) -> Result<Sites> {
        let made = labels
            .flat_map(|label| label.sites)
            .filter(|&site| site != 0);
        let addresses: BTreeSet<u64> = pcs.chain(made.map(call_before)).collect();
        Ok(Sites {
            frames: frames(kernel, &addresses)?,
            statics: statics(kernel)?,
        })
    }

    fn of(&self, addr: u64) -> &[String] {
        self.frames.get(&addr).map_or(&[], |frames| frames)
    }

    /// The function to print for an instruction: the innermost that is no helper of a lock, an atomic or a pointer.
    pub fn function(&self, pc: u64) -> String {
        let frames = self.of(pc);
        let own = frames.iter().find(|name| !is_plumbing(name));
        let name = own.or(frames.last());
        name.map_or_else(|| format!("{pc:#x}"), |name| short(name))
    }

    /// The name of a static and the offset of `addr` in it.
    pub fn static_at(&self, addr: u64) -> String {
        match self.statics.partition_point(|(start, _)| *start <= addr) {
            0 => format!("{addr:#x}"),
            after => {
                let (start, name) = &self.statics[after - 1];
                format!("static {}+{}", short(name), addr - start)
            }
        }
    }

    /// The type and field at `offset` of an object with label `label`.
    pub fn object(&self, label: &Label, offset: u64, types: &Types) -> String {
        let made = label.sites.iter().take(SITES).filter(|&&site| site != 0);
        let frames = || made.clone().flat_map(|&site| self.of(call_before(site)));
        let typed = frames().find_map(|name| allocated(name));
        if let Some(kind) = typed {
            let size = types.size(&kind).unwrap_or(0);
            // A slice has many elements.
            let within = if size > 0 { offset % size } else { offset };
            return types.field(&kind, within);
        }
        let maker = frames().find(|name| !is_plumbing(name));
        let maker = maker.map_or_else(|| "?".into(), |name| short(name));
        format!("{} bytes made in {maker} +{offset}", label.size)
    }
}

/// Whether a function is a helper that only does its caller's work.
pub fn is_plumbing(name: &str) -> bool {
    let name = name.trim_start_matches('<');
    [
        "core::",
        "alloc::",
        "ksync::spin::",
        "ksync::shim::",
        "ksync::percpu::",
        "ksync::mutex::",
        "ksync::rwlock::",
        "__r",
        "hashbrown::",
        "mem::heap",
        "vm::slab::",
    ]
    .iter()
    .any(|prefix| name.starts_with(prefix))
}

/// The type for which a generic function with this name allocates, if the name shows one.
fn allocated(name: &str) -> Option<String> {
    let after = |open: &str| {
        name.find(open)
            .map(|at| first_argument(&name[at + open.len()..]))
    };
    if let Some(inner) = after("alloc::sync::Arc<") {
        return Some(format!("alloc::sync::ArcInner<{inner}>"));
    }
    [
        "alloc::boxed::Box<",
        "alloc::raw_vec::RawVec<",
        "alloc::vec::Vec<",
        "ksync::heap::try_box::<",
    ]
    .iter()
    .find_map(|open| after(open))
    .filter(|kind| kind.contains("::") || !kind.is_empty() && kind.len() > 1)
}

/// The first of a list of generic arguments.
fn first_argument(list: &str) -> String {
    let mut depth = 0;
    let end = list.find(|c| {
        match c {
            '<' | '(' | '[' => depth += 1,
            '>' | ')' | ']' => depth -= 1,
            _ => {}
        }
        depth < 0 || depth == 0 && c == ','
    });
    list[..end.unwrap_or(list.len())].to_owned()
}

/// The last two parts of a path, without what stands in brackets.
fn short(name: &str) -> String {
    let mut depth = 0;
    let mut plain = String::new();
    let name = match name.strip_prefix('<') {
        Some(inner) => inner.split(" as ").next().unwrap_or(inner).to_owned() + tail(inner),
        None => name.to_owned(),
    };
    for c in name.chars() {
        depth += i32::from(c == '<');
        if depth == 0 && c != '>' {
            plain.push(c);
        }
        depth -= i32::from(c == '>' && depth > 0);
    }
    let parts: Vec<&str> = plain.split("::").filter(|part| !part.is_empty()).collect();
    parts[parts.len().saturating_sub(2)..].join("::")
}

/// The method of `<T as Trait>::method`.
fn tail(inner: &str) -> &str {
    match inner.contains(" as ") {
        true => inner
            .rsplit_once(">::")
            .map_or("", |(head, _)| &inner[head.len() + 1..]),
        false => "",
    }
}

/// The functions that contain each address, the innermost inlined one first.
///
/// # Errors
/// `addr2line` fails.
pub fn frames(kernel: &Path, addresses: &BTreeSet<u64>) -> Result<BTreeMap<u64, Vec<String>>> {
    let mut child = Command::new("addr2line")
        .args(["-a", "-f", "-i", "-C", "-e"])
        .arg(kernel)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut input = child.stdin.take().context("addr2line has no input")?;
    let text: String = addresses.iter().map(|a| format!("{a:#x}\n")).collect();
    let writer = std::thread::spawn(move || input.write_all(text.as_bytes()));
    let output = child.wait_with_output()?;
    writer
        .join()
        .map_err(|_| anyhow!("addr2line takes no input"))??;
    let mut frames: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    let (mut addr, mut name) = (0, true);
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        if let Some(hex) = line.strip_prefix("0x") {
            addr = u64::from_str_radix(hex, 16)?;
            name = true;
            continue;
        }
        // Each function has a line for its name and one for its file.
        if name {
            frames.entry(addr).or_default().push(line.to_owned());
        }
        name = !name;
    }
    Ok(frames)
}

fn statics(kernel: &Path) -> Result<Vec<(u64, String)>> {
    let output = Command::new("nm").args(["-C", "-n"]).arg(kernel).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let one = |line: &str| {
        let mut words = line.splitn(3, ' ');
        let addr = u64::from_str_radix(words.next()?, 16).ok()?;
        let data = matches!(words.next()?, "d" | "D" | "b" | "B" | "r" | "R");
        data.then_some((addr, words.next()?.to_owned()))
    };
    Ok(text.lines().filter_map(one).collect())
}
