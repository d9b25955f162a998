//! From a page to its object, and from an object to its hub.

use core::mem::ManuallyDrop;
use core::ptr;

use crate::object::{Hub, Object};
use crate::page::Page;

/// The object of a page that the caller holds busy, valid while it does.
pub(crate) fn owner(page: &Page) -> Option<&Object> {
    debug_assert!(
        page.is_hard_busy() || page.soft_count() > 0,
        "identity is stable while the page is busy"
    );
    let object = ptr::with_exposed_provenance::<Object>(page.object());
    // SAFETY: identities are addresses of live objects. An object removes all its pages before it is freed, and must
    // hold each hard-busy for that, which the caller's busy state prevents. The hub around the object
    // exposed its block when it was made.
    unsafe { object.as_ref() }
}

/// The hub around an object, valid while a reference keeps the object alive.
pub(crate) fn hub_of(object: &Object) -> ManuallyDrop<Hub> {
    // SAFETY: objects are made inside hubs only (`ObjectRef::new`) and never move.
    unsafe { Hub::around(object) }
}
