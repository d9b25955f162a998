//! What a reverse map that lists entries has listed, compared with the page tables.

use vm::{Pmap, Vm};

use crate::Sim;

/// One in so many attempts to hold a list fails where [`obstruct`](crate::obstruct) asks for it.
#[cfg(feature = "naive-rmap")]
pub const REFUSED: u64 = 5;

/// The entries of a pmap as the reverse map lists them: the address of the page's record, and that of the entry.
#[cfg(feature = "listed")]
fn entries(vm: &Vm<Sim>, pmap: &Pmap) -> Vec<(usize, u64)> {
    let (mut found, mut va) = (Vec::new(), 0);
    let pin = ksync::pin();
    while let Some(run) = pmap.mapped_from(vm, &pin, va, vm::pmap::USER_END) {
        for n in (0..run.pages).filter(|n| run.bits >> n & 1 != 0) {
            let at = run.va + n as u64 * 4096;
            let pte = pmap.lookup(vm, &pin, at);
            if let Some(pte) = pte.filter(|pte| pte.is_managed()) {
                let page: *const vm::Page = vm.pages.get(pte.pfn());
                found.push((page.addr(), at));
            }
        }
        va = run.va + run.pages as u64 * 4096;
    }
    found.sort_unstable();
    found
}

/// Checks that exactly the entries of these pmaps are listed, each once, and that no list is held and no ticket is out.
/// No operation is under way. Without effect on another reverse map.
///
/// # Panics
/// If not.
#[cfg(feature = "naive-rmap")]
pub fn check<'p>(vm: &Vm<Sim>, pmaps: impl Iterator<Item = &'p Pmap>) {
    let mut all = 0;
    for pmap in pmaps {
        let mut listed = vm.rmap.listed(pmap);
        listed.sort_unstable();
        assert_eq!(listed, entries(vm, pmap), "listed, and mapped");
        all += listed.len();
    }
    assert_eq!(vm.rmap.leftovers(), (all, 0, 0), "listed, held, reserved");
}

/// See above. Frames of entries are free where a pmap has none.
#[cfg(any(feature = "pv-obm", feature = "pv-stock"))]
pub fn check<'p>(vm: &Vm<Sim>, pmaps: impl Iterator<Item = &'p Pmap>) {
    #[cfg(feature = "pv-stock")]
    let mut chunks = 0;
    for pmap in pmaps {
        #[cfg(feature = "pv-stock")]
        {
            chunks += vm.rmap.chunks(pmap);
        }
        let mut listed = Vec::new();
        let reserved = vm.rmap.for_each_listed(pmap, |pfn, va| {
            let page: *const vm::Page = vm.pages.get(pfn);
            listed.push((page.addr(), va));
        });
        listed.sort_unstable();
        assert_eq!(listed, entries(vm, pmap), "listed, and mapped");
        assert_eq!(reserved, 0, "tickets");
    }
    #[cfg(feature = "pv-stock")]
    assert_eq!(vm.rmap.all_chunks(), chunks, "chunks in the domains' lists");
    for pfn in (0..vm.pages.len() as u32).map(vm::Pfn) {
        #[cfg(feature = "pv-obm")]
        let held = vm.pages.find(pfn).is_some_and(vm::Page::is_list_locked);
        #[cfg(feature = "pv-stock")]
        let held = vm.rmap.is_list_locked(pfn);
        assert!(!held, "the list of {pfn:?} is held");
    }
}

/// See above: nothing is listed.
#[cfg(not(feature = "listed"))]
pub fn check<'p>(_: &Vm<Sim>, _: impl Iterator<Item = &'p Pmap>) {}
