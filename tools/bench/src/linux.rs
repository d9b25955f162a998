//! Linux as a guest: its kernel, and the names of its functions.

use crate::guest::{Guest, Kind, Lab, Trial};
use crate::symbols::Symbols;
use anyhow::Result;
use machine::linux::{self, Found};
use machine::options::Kernels;
use machine::progress::step;
use std::fs;
use std::time::Duration;

/// Fetches the kernel and learns its symbols from one boot; both are kept in `build/bench/`.
///
/// # Errors
/// apt does not know the version or cannot fetch it, or the kernel does not boot.
pub fn guest(lab: &Lab, asked: &Kernels) -> Result<Guest> {
    let Found { title, tree, file } = linux::kernel(&asked.linux)?;
    let mut guest = Guest {
        system: "linux",
        title,
        kernel: file,
        options: format!("{} transparent_hugepage={}", linux::OPTIONS, asked.thp),
        // It would measure that at boot, wrongly where the host is busy, and have too many or too few ticks.
        clock_options: format!(" tsc_early_khz={}", lab.tsc_khz),
        symbols: Symbols::parse(""),
        watches: Vec::new(),
    };
    let file = tree.join("symbols-all");
    if !file.is_file() {
        let _step = step("asking Linux for its symbols");
        // Only what names code and data: the console is slow.
        let ask = "sed -nE '/ [tTdDbB] [^.]+$/p' /proc/kallsyms";
        let trial = Trial {
            cmd: ask,
            cpus: 1,
            kind: Kind::Rate,
            run: 0,
        };
        let boot = lab.boot(&guest, &trial, Duration::from_secs(300))?;
        anyhow::ensure!(boot.failed.is_empty(), "Linux: {}", boot.failed.join("; "));
        fs::write(&file, boot.console)?;
    }
    guest.symbols = Symbols::parse(&fs::read_to_string(&file)?);
    guest.watches = guest.symbols.linux_interrupts()?;
    Ok(guest)
}
