//! What the CPUs can reach, and what the spaces and files have, compared with the reference.

use std::sync::atomic::Ordering::SeqCst;

use vm_host::lab::kind;
use vm_host::model::WORDS;
use vm_host::{Access, listed};

use super::{CPUS, FILES, PAGE, Player, ROOTS, STACK, TABLES};
use crate::blocks;

impl Player {
    /// Accesses that the CPUs can make without a fault must be allowed, and see the right contents. Exactly what the page
    /// tables have is listed.
    pub(super) fn check_caches(&mut self) {
        let spaces = self.spaces.iter().flatten();
        listed::check(&self.lab.vm, spaces.map(|space| &**space.pmap()));
        for cpu in 0..CPUS {
            let Some(s) = self.running[cpu] else { continue };
            let windows = (TABLES..TABLES + 34)
                .chain(ROOTS..ROOTS + 18)
                .chain(STACK..STACK + 18);
            let mapped: Vec<u64> = self.model.space(s).pages.keys().copied().collect();
            let (superpages, turn) = (self.setup.superpages, self.turn);
            let looked_at = |at: &u64| !superpages || blocks::is_looked_at(*at, turn);
            for at in windows.chain(mapped).filter(looked_at) {
                for access in [Access::Read, Access::Write, Access::Fetch] {
                    let word = (at as usize + cpu) % WORDS.len();
                    let reached =
                        self.lab
                            .vm
                            .machine
                            .access(cpu, at * PAGE + WORDS[word], access, |value| {
                                value.load(SeqCst)
                            });
                    let Ok(value) = reached else { continue };
                    let may = self
                        .model
                        .space(s)
                        .pages
                        .contains_key(&at)
                        .then(|| self.model.access(s, at, access));
                    assert_eq!(
                        may,
                        Some(Ok(())),
                        "CPU {cpu} in space {s} still reaches {:#x}, {:?}",
                        at * PAGE,
                        kind(access)
                    );
                    assert_eq!(
                        value,
                        self.model.load(s, at, word),
                        "CPU {cpu} in space {s} at {:#x}",
                        at * PAGE
                    );
                }
            }
        }
    }

    /// Compares all contents, and the properties that the spaces report.
    pub(super) fn compare(&mut self) {
        for s in 0..self.spaces.len() {
            let Some(space) = self.spaces[s].clone() else {
                continue;
            };
            let pages: Vec<u64> = self.model.space(s).pages.keys().copied().collect();
            assert_eq!(space.usage(&self.lab.vm).mapped, pages.len() as u64);
            let mut shown = Vec::new();
            space.for_each_entry(0, &mut |entry| {
                let range = entry.args.start / PAGE..entry.args.end / PAGE;
                shown.extend(range.map(|at| (at, entry.args.prot)));
                true
            });
            let expected: Vec<_> = self
                .model
                .space(s)
                .pages
                .iter()
                .map(|(at, page)| (*at, page.prot))
                .collect();
            assert_eq!(shown, expected);
            for at in pages {
                let may = self.model.access(s, at, Access::Read);
                for (word, offset) in WORDS.iter().enumerate() {
                    let expected = may.map(|()| self.model.load(s, at, word));
                    let got = self.touch(s, s % CPUS, at * PAGE + offset, Access::Read, None);
                    assert_eq!(got, expected, "space {s} at {:#x}", at * PAGE);
                }
            }
        }
        for f in 0..FILES {
            assert_eq!(self.files[f].size(), self.model.files[f].size);
            for (page, word) in
                (0..20).flat_map(|page| (0..WORDS.len()).map(move |word| (page, word)))
            {
                assert_eq!(
                    self.read_file(f, page, word),
                    self.model.files[f].read(page, word),
                    "file {f}, page {page}"
                );
            }
        }
    }
}
