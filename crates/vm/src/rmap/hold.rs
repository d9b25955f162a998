//! Holding the lists of entries, where entries are listed: the pmap's calls of the reverse map in use.
//!
//! An entry of a frame without a page is in no list. Where nothing is listed, these are no instructions.

use super::{Blocked, Hold, Map, ReverseMap, Ticket};
use crate::page::Pfn;
use crate::pmap::{Pmap, Pte};
use crate::{Machine, Vm};

/// The list of an entry's page, held; or nothing where the entry is not listed.
#[must_use = "the list is held until it is said what became of the entry"]
pub(crate) struct Held<'h>(Option<<Map as ReverseMap>::Hold<'h>>);

impl<'h> Held<'h> {
    /// What is held for entries that are in no list.
    #[inline(always)]
    pub(crate) const fn nothing() -> Held<'h> {
        Held(None)
    }

    /// See [`Hold::done`].
    #[inline(always)]
    pub(crate) fn done(self) {
        if let Some(hold) = self.0 {
            hold.done();
        }
    }

    /// See [`Hold::undo`].
    #[inline(always)]
    pub(crate) fn undo(self) {
        if let Some(hold) = self.0 {
            hold.undo();
        }
    }

    /// `done` or `undo`.
    #[inline(always)]
    pub(crate) fn settle(self, done: bool) {
        if Map::PER_PAGE {
            if done { self.done() } else { self.undo() }
        }
    }
}

/// Asks `hold` for what is held for an entry, if it is in a list.
#[inline(always)]
fn if_listed<'h>(
    pte: Pte,
    hold: impl FnOnce() -> Result<<Map as ReverseMap>::Hold<'h>, Blocked>,
) -> Result<Held<'h>, Blocked> {
    if Map::PER_PAGE && pte.is_managed() {
        hold().map(|hold| Held(Some(hold)))
    } else {
        Ok(Held::nothing())
    }
}

/// [`ReverseMap::enter`] for an entry that is about to be filled at `va`.
#[inline(always)]
pub(crate) fn list<'h, M: Machine>(
    vm: &'h Vm<M>,
    ticket: &'h Ticket<'_>,
    leaf: Pte,
    va: u64,
) -> Result<Held<'h>, Blocked> {
    if_listed(leaf, || vm.rmap.enter(ticket, vm.pages.get(leaf.pfn()), va))
}

/// [`ReverseMap::hold`] for an entry.
#[inline(always)]
pub(crate) fn hold<M: Machine>(vm: &Vm<M>, pte: Pte) -> Result<Held<'_>, Blocked> {
    if_listed(pte, || vm.rmap.hold(vm.pages.get(pte.pfn())))
}

/// [`ReverseMap::leave`] for an entry of `pmap` at `va`.
#[inline(always)]
pub(crate) fn leave<'h, M: Machine>(
    vm: &'h Vm<M>,
    pmap: &'h Pmap,
    pte: Pte,
    va: u64,
) -> Result<Held<'h>, Blocked> {
    if_listed(pte, || vm.rmap.leave(vm.pages.get(pte.pfn()), pmap, va))
}

/// As `leave`, if the list is not the caller's already.
#[inline(always)]
pub(crate) fn leave_if<'h, M: Machine>(
    wanted: bool,
    vm: &'h Vm<M>,
    pmap: &'h Pmap,
    pte: Pte,
    va: u64,
) -> Result<Held<'h>, Blocked> {
    if wanted {
        leave(vm, pmap, pte, va)
    } else {
        Ok(Held::nothing())
    }
}

/// [`ReverseMap::leave_run`] for a leaf of 2 MiB of `pmap` at `va`.
#[inline(always)]
pub(crate) fn leave_run<'h, M: Machine>(
    vm: &'h Vm<M>,
    pmap: &'h Pmap,
    leaf: Pte,
    va: u64,
    but: Option<Pfn>,
) -> Result<Held<'h>, Blocked> {
    if_listed(leaf, || {
        vm.rmap
            .leave_run(&vm.pages, leaf.piece(0).pfn(), pmap, va, but)
    })
}
