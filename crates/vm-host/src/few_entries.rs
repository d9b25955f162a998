//! Page tables of a few pmaps that share few chunks of pv entries.

use std::ops::Range;
use std::sync::Arc;

use vm::pmap::{EnterError, Entered};
use vm::rmap::ReverseMap;
use vm::{NoMemory, Page, Pmap, Prot, Pte, Vm};

use crate::runs::{PAGES, Runs};
use crate::{Sim, listed};

/// Entries of a chunk.
pub const CHUNK: usize = 168;

/// Enters a leaf, with room for this one alone.
///
/// # Errors
/// No memory.
///
/// # Panics
/// The address is mapped.
pub fn enter(vm: &Vm<Sim>, pmap: &Arc<Pmap>, va: u64, leaf: Pte) -> Result<(), NoMemory> {
    loop {
        let guard = vm.rmap.begin(pmap);
        let (guard, room) = vm.rmap.prepare(vm, guard, pmap, 1)?;
        let entered = pmap.enter(vm, &ksync::pin(), &room, va, leaf, || true);
        drop(room);
        vm.rmap.end(guard);
        match entered {
            Err(EnterError::Blocked(why)) => vm.rmap.wait(why),
            entered => {
                assert_eq!(entered, Ok(Entered::New));
                return Ok(());
            }
        }
    }
}

/// Page tables of a few pmaps, which may have so many chunks.
pub struct Tables {
    /// Two runs of frames, and pmap 0.
    pub lab: Runs,
    others: Vec<Arc<Pmap>>,
}

impl Tables {
    /// So many chunks, 0 for any number, and so many pmaps beside the lab's.
    pub fn new(chunks: usize, others: usize) -> Tables {
        let lab = Runs::new(4, 2);
        lab.vm.rmap.limit_chunks(chunks);
        let others = (0..others).map(|_| Arc::new(Pmap::new())).collect();
        Tables { lab, others }
    }

    /// Pmap 0 is the lab's.
    pub fn pmap(&self, n: usize) -> &Arc<Pmap> {
        n.checked_sub(1)
            .map_or(&self.lab.pmap, |other| &self.others[other])
    }

    /// Enters a leaf at the place of page `n`, with room for this one alone.
    ///
    /// # Errors
    /// No memory.
    pub fn enter(&self, pmap: usize, n: usize, leaf: Pte) -> Result<(), NoMemory> {
        enter(&self.lab.vm, self.pmap(pmap), Runs::va(0, n), leaf)
    }

    /// Maps page `n` of the first run at its place.
    ///
    /// # Errors
    /// No memory.
    pub fn map(&self, pmap: usize, n: usize) -> Result<(), NoMemory> {
        self.enter(pmap, n, Pte::user(self.lab.frame(0, n), Prot::WRITE))
    }

    /// As `map`.
    ///
    /// # Panics
    /// Without memory.
    pub fn map_all(&self, pmap: usize, pages: Range<usize>) {
        for n in pages {
            assert_eq!(self.map(pmap, n), Ok(()), "page {n}");
        }
    }

    /// Whether page `n` is mapped.
    pub fn is_mapped(&self, pmap: usize, n: usize) -> bool {
        let found = self
            .pmap(pmap)
            .lookup(&self.lab.vm, &ksync::pin(), Runs::va(0, n));
        found.is_some()
    }

    /// The pages of the first run that are mapped at their places.
    pub fn mapped(&self, pmap: usize) -> Vec<usize> {
        (0..PAGES).filter(|&n| self.is_mapped(pmap, n)).collect()
    }

    /// Number of chunks of each pmap.
    pub fn chunks(&self) -> Vec<usize> {
        let of = |n| self.lab.vm.rmap.chunks(self.pmap(n));
        (0..=self.others.len()).map(of).collect()
    }

    /// Chunks reclaimed, and entries removed.
    pub fn counts(&self) -> (u64, u64) {
        let counts = self.lab.vm.counts();
        (counts.pv_chunks_reclaimed, counts.pv_entries_reclaimed)
    }

    /// Page `n` of the first run.
    pub fn page(&self, n: usize) -> &Page {
        self.lab.vm.pages.get(self.lab.frame(0, n))
    }

    /// Checks what is listed: see [`listed::check`].
    pub fn check(&self) {
        let all = (0..=self.others.len()).map(|n| &**self.pmap(n));
        listed::check(&self.lab.vm, all);
    }

    /// Ends everything, and checks that nothing is left.
    pub fn finish(self) {
        self.check();
        for pmap in &self.others {
            pmap.release(&self.lab.vm);
        }
        self.lab.finish();
    }
}
