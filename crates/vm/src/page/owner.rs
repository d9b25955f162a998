//! From a page to its object, and from an object to its hub.

use core::mem::ManuallyDrop;
use core::ptr;

use crate::object::{Hub, Object};
use crate::page::Page;

/// The object of a page that the caller holds hard-busy, for as long as it does.
pub(crate) fn owner(page: &Page) -> Option<&Object> {
    debug_assert!(page.is_hard_busy(), "identity is stable under hard busy");
    let object = ptr::with_exposed_provenance::<Object>(page.object());
    // SAFETY: identities are addresses of live objects: an object takes all its pages out before it is freed, and needs
    // each hard-busy for that, which the caller prevents. The hub around the object exposed its block when it was made.
    unsafe { object.as_ref() }
}

/// The hub around an object, for as long as the object is kept alive by other means.
pub(crate) fn hub_of(object: &Object) -> ManuallyDrop<Hub> {
    // SAFETY: objects are made inside hubs only (`ObjectRef::new`) and never move.
    unsafe { Hub::around(object) }
}
