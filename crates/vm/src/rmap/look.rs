//! Looks for use, for measurements: nothing in the VM asks for them yet, because nothing is paged out.

use super::referenced;
use crate::page::{Pfn, owner};
use crate::{Machine, Vm};

impl<M: Machine> Vm<M> {
    /// Counts the signs that the page in a frame was used, and clears them, as [`referenced`] without a limit. `None` if there is no
    /// page of an object, or it is held hard-busy. Looks at one page can run at once, beside faults that map it.
    pub fn look_for_use(&self, pfn: Pfn) -> Option<usize> {
        let page = self.pages.find(pfn)?;
        if page.object() == 0 {
            return None;
        }
        let busy = page.try_soft_busy()?;
        let signs =
            owner(page).map(|object| referenced(self, object, page.index(), pfn, usize::MAX));
        drop(busy);
        signs
    }
}
