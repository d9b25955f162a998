//! What one core has cached: translations of both sizes and upper levels, and how it drops them.

use std::collections::HashMap;
use std::sync::Arc;

use vm::asid::{Asids, Duty};
use vm::pmap::table::{ROOT_LEVEL, entry_shift};
use vm::{Gather, Pfn, Pte};

use super::RootSource;

/// One core. Guarded by its mutex.
#[derive(Default)]
pub(super) struct Core {
    /// The loaded root, and the source of a newer one.
    pub(super) root: Option<Pfn>,
    pub(super) source: Option<RootSource>,
    /// Assigns the identifiers that tag cached translations.
    pub(super) asids: Asids,
    /// By identifier and page address: a leaf entry, with W and NX of the whole path.
    pub(super) leaves: HashMap<(u16, u64), Pte>,
    /// The same for leaves of 2 MiB, by their address.
    pub(super) large: HashMap<(u16, u64), Pte>,
    /// Whether a large leaf is used next where both are cached.
    pub(super) prefers_large: bool,
    /// By identifier, level and address of a table's span: the frame of that table, and the rights of the path above.
    pub(super) tables: HashMap<(u16, u8, u64), (Pfn, u64)>,
    /// The core's number, and the id of the pmap that it runs.
    pub(super) cpu: usize,
    pub(super) pmap: u64,
    /// The translations that all cores have cached.
    pub(super) coherence: Arc<Coherence>,
}

/// The frames that cores have cached for the addresses of the pmaps that they run now. Translations of a core that runs
/// another pmap do not count: it compares generations when it returns.
#[derive(Default)]
pub(super) struct Coherence(std::sync::Mutex<Cached>);

/// Pmap and page address → core and frame.
type Cached = HashMap<(u64, u64), Vec<(usize, Pfn)>>;

impl Coherence {
    /// # Panics
    /// If another core has another frame cached there.
    pub(super) fn add(&self, pmap: u64, va: u64, cpu: usize, pfn: Pfn) {
        let mut cached = self.0.lock().expect("no test has failed");
        let all = cached.entry((pmap, va)).or_default();
        all.retain(|&(other, _)| other != cpu);
        let differs = all.iter().find(|&&(_, other)| other != pfn).copied();
        all.push((cpu, pfn));
        drop(cached);
        if let Some((other, frame)) = differs {
            panic!(
                "CPU {cpu} reaches {pfn:?} at {va:#x}, where CPU {other} still reaches {frame:?}"
            );
        }
    }

    pub(super) fn remove(&self, pmap: u64, va: u64, cpu: usize) {
        // After a failure only the failure counts.
        let Ok(mut cached) = self.0.lock() else {
            return;
        };
        if let Some(all) = cached.get_mut(&(pmap, va)) {
            all.retain(|&(other, _)| other != cpu);
            if all.is_empty() {
                cached.remove(&(pmap, va));
            }
        }
    }
}

impl Core {
    pub(super) fn asid(&self) -> u16 {
        self.asids.current()
    }

    /// Drops all translations of one identifier.
    pub(super) fn invalidate_all(&mut self, asid: u16) {
        if asid == self.asid() {
            self.leave();
        }
        self.leaves.retain(|&(tag, _), _| tag != asid);
        self.large.retain(|&(tag, _), _| tag != asid);
        self.tables.retain(|&(tag, ..), _| tag != asid);
    }

    /// Stops counting the core's translations.
    pub(super) fn leave(&self) {
        let asid = self.asid();
        for &(_, va) in self.leaves.keys().filter(|(tag, _)| *tag == asid) {
            self.coherence.remove(self.pmap, va, self.cpu);
        }
        for &(_, va) in self.large.keys().filter(|(tag, _)| *tag == asid) {
            pages_of(va).for_each(|va| self.coherence.remove(self.pmap, va, self.cpu));
        }
    }

    /// Counts the translations that the core kept.
    pub(super) fn come_back(&self) {
        let asid = self.asid();
        for (&(_, va), pte) in self.leaves.iter().filter(|((tag, _), _)| *tag == asid) {
            self.coherence.add(self.pmap, va, self.cpu, pte.pfn());
        }
        for (&(_, va), &pte) in self.large.iter().filter(|((tag, _), _)| *tag == asid) {
            self.count_large(va, pte);
        }
    }

    /// Counts the translations that a large leaf is.
    pub(super) fn count_large(&self, base: u64, pte: Pte) {
        for va in pages_of(base) {
            let pfn = piece(pte, va).pfn();
            self.coherence.add(self.pmap, va, self.cpu, pfn);
        }
    }

    /// The cached translation of a page, of either size.
    pub(super) fn cached(&mut self, va: u64) -> Option<Pte> {
        let asid = self.asid();
        let small = self.leaves.get(&(asid, va & !0xfff)).copied();
        let large = self.large.get(&(asid, va & !(LARGE - 1)));
        let large = large.map(|&pte| piece(pte, va));
        if small.is_some() && large.is_some() {
            self.prefers_large = !self.prefers_large;
        }
        if self.prefers_large {
            large.or(small)
        } else {
            small.or(large)
        }
    }

    /// Caches a large leaf that a walk has found; `path` has the rights of the whole path.
    pub(super) fn cache_large(&mut self, va: u64, path: Pte) {
        let base = va & !(LARGE - 1);
        self.count_large(base, path);
        self.large.insert((self.asid(), base), path);
    }

    /// Drops a page's translations of both sizes and the upper levels on its path. Those of 4 KiB elsewhere in the 2 MiB
    /// stay.
    pub(super) fn invalidate(&mut self, va: u64) {
        let asid = self.asid();
        self.coherence.remove(self.pmap, va & !0xfff, self.cpu);
        self.leaves.remove(&(asid, va & !0xfff));
        let base = va & !(LARGE - 1);
        if self.large.remove(&(asid, base)).is_some() {
            for va in pages_of(base).filter(|&va| !self.leaves.contains_key(&(asid, va))) {
                self.coherence.remove(self.pmap, va, self.cpu);
            }
        }
        for level in 1..ROOT_LEVEL {
            self.tables
                .remove(&(asid, level, va >> entry_shift(level + 1)));
        }
    }

    /// Serves a flush request.
    pub(super) fn answer(&mut self, what: &Gather) {
        match self.asids.duty(what.target(), what.is_full()) {
            Duty::Nothing => {}
            Duty::Pages => {
                for va in what.runs().flat_map(|run| run.step_by(vm::page::PAGE_SIZE)) {
                    self.invalidate(va);
                }
            }
            Duty::All => {
                let info = self.source.as_ref().map(|source| source());
                self.invalidate_all(self.asid());
                if let Some(info) = info {
                    self.root = Some(info.root);
                    self.asids.refreshed(&info);
                }
            }
        }
    }
}

/// Bytes of a large leaf.
pub const LARGE: u64 = 1 << entry_shift(2);

/// The addresses of the pages under the large leaf at `base`.
fn pages_of(base: u64) -> impl Iterator<Item = u64> {
    (base..base + LARGE).step_by(vm::page::PAGE_SIZE)
}

/// The part of a large leaf that is the page at `va`, as an entry of 4 KiB.
pub(super) fn piece(large: Pte, va: u64) -> Pte {
    large.with(va & (LARGE - 1) & !0xfff).without(Pte::PS)
}
