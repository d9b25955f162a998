//! Names of a kernel's functions, from `nm` or from Linux's /proc/kallsyms: the same three columns.

use anyhow::{Context, Result};
use machine::tools;
use std::path::Path;
use std::process::Command;

/// Sorted by address.
pub struct Symbols {
    code: Vec<(u64, String)>,
    data: Vec<(u64, String)>,
}

/// The timer's place among the watched interrupts; the others are those between CPUs.
pub const TIMER: usize = 0;

/// Pantala's vectors: timer, function call, reschedule (`kernel/hal/src/x86/trap.rs`), and bytes of an entry stub.
const PANTALA_VECTORS: [u64; 3] = [0xef, 0xfc, 0xfd];
const STUB: u64 = 16;

const LINUX_ENTRIES: [&str; 4] = [
    "asm_sysvec_apic_timer_interrupt",
    "asm_sysvec_reschedule_ipi",
    "asm_sysvec_call_function",
    "asm_sysvec_call_function_single",
];

/// The symbols of an ELF file.
///
/// # Errors
/// `nm` fails.
pub fn of_program(file: &Path) -> Result<Symbols> {
    Ok(Symbols::parse(&tools::output(
        Command::new("nm").arg("-C").arg(file),
        "nm",
    )?))
}

impl Symbols {
    /// Reads lines of address, kind and name.
    pub fn parse(text: &str) -> Symbols {
        let one = |line: &str| {
            let mut words = line.trim().splitn(3, ' ');
            let addr = u64::from_str_radix(words.next()?, 16).ok()?;
            let (kind, name) = (words.next()?, words.next()?);
            let code = match kind {
                "t" | "T" => true,
                "d" | "D" | "b" | "B" => false,
                _ => return None,
            };
            let name = name.split('\t').next().unwrap_or(name).to_owned();
            (addr > 0).then_some((code, addr, name))
        };
        let mut symbols = Symbols {
            code: Vec::new(),
            data: Vec::new(),
        };
        for (code, addr, name) in text.lines().filter_map(one) {
            let kind = if code {
                &mut symbols.code
            } else {
                &mut symbols.data
            };
            kind.push((addr, name));
        }
        symbols.code.sort();
        symbols.data.sort();
        symbols
    }

    fn addr(&self, name: &str) -> Option<u64> {
        self.code
            .iter()
            .find(|(_, found)| found == name)
            .map(|(addr, _)| *addr)
    }

    /// Entry points of Pantala's interrupts.
    ///
    /// # Errors
    /// The stubs have no symbol.
    pub fn pantala_interrupts(&self) -> Result<Vec<u64>> {
        let stubs = self
            .addr("vector_stubs")
            .context("the kernel has no symbol vector_stubs")?;
        Ok(PANTALA_VECTORS
            .iter()
            .map(|vector| stubs + vector * STUB)
            .collect())
    }

    /// Entry points of Linux's interrupts.
    ///
    /// # Errors
    /// One of them has no symbol.
    pub fn linux_interrupts(&self) -> Result<Vec<u64>> {
        let addr = |name: &&str| {
            self.addr(name)
                .with_context(|| format!("Linux has no symbol {name}"))
        };
        LINUX_ENTRIES.iter().map(addr).collect()
    }

    /// The function that `addr` lies in.
    pub fn name(&self, addr: u64) -> String {
        below(&self.code, addr).map_or_else(|| format!("{addr:#x}"), |(name, _)| short(name))
    }

    /// The static that `addr` lies in, and where in it.
    pub fn datum(&self, addr: u64) -> Option<(String, u64)> {
        below(&self.data, addr).map(|(name, offset)| (short(name), offset))
    }
}

/// The nearest symbol at or below `addr`, and the distance; none if that is too far for it to be meant.
fn below(symbols: &[(u64, String)], addr: u64) -> Option<(&str, u64)> {
    let after = symbols.partition_point(|(start, _)| *start <= addr);
    let (start, name) = &symbols[after.checked_sub(1)?];
    (addr - start < 1 << 20).then_some((name, addr - start))
}

/// A Rust name without its hash and without what makes a line too long.
fn short(name: &str) -> String {
    let name = match name.rsplit_once("::h") {
        Some((path, hash)) if hash.len() == 16 => path,
        _ => name,
    };
    name.chars().take(90).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_the_name_of_the_function_below() {
        let text = "0000000000000100 a vector\nffffffff80200200 T b::h0123456789abcdef\nffffffff80200100 t a\n\
                    ffffffff80200180 d data\nffffffff80300000 t c\t[module]\n";
        let symbols = Symbols::parse(text);
        assert_eq!(symbols.name(0xffff_ffff_8020_01ff), "a");
        assert_eq!(symbols.name(0xffff_ffff_8020_0200), "b");
        assert_eq!(symbols.name(0xffff_ffff_8030_0008), "c");
        assert_eq!(symbols.name(0x10), "0x10");
        assert_eq!(
            symbols.datum(0xffff_ffff_8020_0184),
            Some(("data".into(), 4))
        );
        assert_eq!(symbols.datum(0xffff_ffff_9020_0184), None);
        assert!(symbols.pantala_interrupts().is_err());
    }
}
