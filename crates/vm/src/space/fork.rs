//! Copies of a space.
//!
//! Guarantee: parent and child see what the parent saw at one moment of the call, and later private changes of either
//! are invisible to the other.
//!
//! Mechanism: entries are copied and each layer is attached for the child; no page and no page table is copied. Both
//! sides then need a new front layer before they write (NEEDS_COPY), and the parent's page tables are write-protected
//! in the entries of the root, so that the cost does not depend on how much is resident.

use rust_alloc::boxed::Box;
use rust_alloc::sync::Arc;
use rust_alloc::vec::Vec;
use smallvec::SmallVec;

use super::edit::{affordable, is_short};
use super::{Effort, Space, VmError};
use crate::backing::{Backing, Chain, Layers};
use crate::map::{EntryFlags, MapEntry};
use crate::tlb::Gather;
use crate::{Machine, Vm};

/// Number of recently copied layers that are remembered: entries clipped from one mapping share layers, and so do their
/// copies.
const MEMO: usize = 8;

/// The child's copies of layers.
struct Copies<'a> {
    child: &'a Space,
    memo: SmallVec<[(Arc<Backing>, Arc<Backing>); MEMO]>,
}

impl Copies<'_> {
    /// The child's copy of a layer. Chains that share a layer in the parent share its copy, too, as long as the memo
    /// has it; otherwise a second copy is made, which costs memory and nothing else. The parent's map is locked.
    fn layer(&mut self, layer: &Arc<Backing>) -> Result<Arc<Backing>, VmError> {
        if !layer.is_in_several() {
            return Ok(layer.replicate(self.child.pmap())?);
        }
        if let Some((_, copy)) = self
            .memo
            .iter()
            .find(|(original, _)| Arc::ptr_eq(original, layer))
        {
            return Ok(copy.clone());
        }
        let copy = layer.replicate(self.child.pmap())?;
        if self.memo.len() == MEMO {
            self.memo.remove(0);
        }
        self.memo.push((layer.clone(), copy.clone()));
        Ok(copy)
    }

    /// The child's copy of an entry's chain of so many layers. The parent's map is locked.
    fn chain(&mut self, entry: &MapEntry, depth: usize) -> Result<Box<Chain>, VmError> {
        // Built in place: a list of layers is long to move.
        let mut chain = Box::new(Chain::view_of(Layers::new()));
        for layer in (0..depth).map_while(|at| entry.layer(at)) {
            chain.add(self.layer(&layer)?);
        }
        chain.begin_use();
        Ok(chain)
    }
}

impl Space {
    /// A copy of the space, for a new process. DONTFORK ranges are left out, WIPEONFORK ranges are empty in the child. Holds
    /// the map's lock while it copies entries and folds long chains, for which it may wait for busy pages.
    ///
    /// # Errors
    /// `NoMemory`, also if the caller is to end; the parent then is as before, except that chains may be folded and that later writes may find NEEDS_COPY
    /// set without cause.
    pub fn fork<M: Machine>(&self, vm: &Vm<M>) -> Result<Arc<Space>, VmError> {
        let map = self.lock();
        if !affordable(vm, map.tree().len()) {
            return Err(VmError::NoMemory);
        }
        let mut child = Space::empty(map.empty_like());
        child.forbid_superpages(self.forbids_superpages());
        let mut entries = Vec::new();
        entries
            .try_reserve_exact(map.tree().len())
            .map_err(|_| VmError::NoMemory)?;
        let mut copies = Copies {
            child: &child,
            memo: SmallVec::new(),
        };
        let (mut protect, mut result) = (false, Ok(()));
        map.tree().for_each(&mut |entry| {
            // Forks that are killed together would take the last pages for what they do not need any more.
            let stop = || entries.len().is_multiple_of(4) && vm.machine.must_stop();
            if is_short(vm, entries.len()) || stop() {
                result = Err(VmError::NoMemory);
            }
            if result.is_ok() {
                match copy_entry(vm, self, &mut copies, entry, &mut protect) {
                    Ok(Some(copy)) => entries.push(copy),
                    Ok(None) => {}
                    Err(why) => result = Err(why),
                }
            }
        });
        drop(copies);
        if protect {
            let mut gather = Gather::new();
            self.pmap()
                .write_protect_high(vm, &ksync::pin(), &mut gather);
            gather.finish(vm);
        }
        vm.stats.get(&ksync::pin()).forks.add(1);
        drop(map);
        if result.is_ok() && !child.fill(vm, &entries) {
            result = Err(VmError::NoMemory);
        }
        if let Err(why) = result {
            child.clear(vm);
            entries.iter().for_each(|entry| entry.end_for_good(vm));
            return Err(why);
        }
        Ok(child.complete())
    }
}

/// The child's entry for one of the parent's, if it gets one. A long chain is folded first. A private entry of the parent
/// that has layers is marked NEEDS_COPY; if it was not before, `protect` is set: the caller write-protects page tables.
///
/// # Errors
/// `NoMemory`: for the copy; or folding failed, and the chain may not get longer. The entry is not marked then.
fn copy_entry<M: Machine>(
    vm: &Vm<M>,
    parent: &Space,
    copies: &mut Copies<'_>,
    entry: &Arc<MapEntry>,
    protect: &mut bool,
) -> Result<Option<Arc<MapEntry>>, VmError> {
    let mut args = entry.args();
    let (left_out, empty) = (EntryFlags::DONTFORK, EntryFlags::WIPEONFORK);
    if args.flags.contains(left_out) || args.flags.contains(empty) {
        leave_out(entry);
    }
    if args.flags.contains(left_out) {
        return Ok(None);
    }
    // mlock is not inherited.
    args.flags = args.flags.difference(EntryFlags::LOCKED);
    if args.flags.contains(empty) {
        return Ok(Some(MapEntry::new(args, None, false)));
    }
    let mut depth = entry.depth();
    if depth > vm.tuning.copy_depth {
        if parent.fold(vm, entry, Effort::Bound).is_err() && entry.is_full(vm) {
            return Err(VmError::NoMemory);
        }
        depth = entry.depth();
    }
    if depth == 0 {
        return Ok(Some(MapEntry::new(args, None, false)));
    }
    // The map's lock keeps the chain unchanged.
    let chain = copies.chain(entry, depth)?;
    let private = !entry.is_shared();
    if private && !entry.state().needs_copy() {
        entry.set_needs_copy(true);
        *protect = true;
    }
    Ok(Some(MapEntry::over(args, Some(chain), private)))
}

/// Marks layers for a later sweep. The child maps no part of this entry but may map other parts of the same layers;
/// when the parent ends, pages of this entry are then unreachable.
fn leave_out(entry: &MapEntry) {
    let pin = ksync::pin();
    if let Some(chain) = entry.chain(&pin) {
        // The other parts have the same layer or, after mremap, one of their own on the same object.
        let partly = |layer: &&Arc<Backing>| layer.is_in_several() || !layer.is_sole();
        let partly = chain.layers().iter().filter(partly);
        partly.for_each(|layer| layer.sweep_is_shared());
    }
}
