//! Values whose types only crates above know.
//!
//! A crate keeps a value for a crate above it, whose type it cannot name: what the crate of processes adds to a thread, for
//! example. An [`UpperBox`] is such a value. The crate above names its type once, by [`upper_type!`](crate::upper_type), so
//! an access to the value needs neither a lookup nor a check of its type.

use alloc::boxed::Box;
use core::marker::PhantomData;
use core::ptr::NonNull;

/// A box whose content has the one type that [`upper_type!`](crate::upper_type) names.
pub struct UpperBox {
    value: NonNull<()>,
    drop: fn(NonNull<()>),
}

// SAFETY: `UpperType` makes boxes only of values that are `Send` and `Sync`.
unsafe impl Send for UpperBox {}
// SAFETY: as above.
unsafe impl Sync for UpperBox {}

impl Drop for UpperBox {
    fn drop(&mut self) {
        (self.drop)(self.value);
    }
}

/// The type of all [`UpperBox`]es.
pub struct UpperType<T>(PhantomData<fn() -> T>);

impl<T: Send + Sync + 'static> UpperType<T> {
    /// Called by [`upper_type!`](crate::upper_type).
    ///
    /// # Safety
    /// No other type but `T` has such a value in this binary.
    pub const unsafe fn new() -> Self {
        UpperType(PhantomData)
    }

    /// Makes a box of `value`.
    pub fn wrap(&self, value: Box<T>) -> UpperBox {
        let raw = NonNull::from(Box::leak(value)).cast();
        UpperBox {
            value: raw,
            // SAFETY: the pointer is that of a leaked `Box<T>`, and only the `Drop` of this box calls the function, once.
            drop: |raw| drop(unsafe { Box::from_raw(raw.cast::<T>().as_ptr()) }),
        }
    }

    /// The value in the box.
    #[inline(always)]
    pub fn get<'a>(&self, of: &'a UpperBox) -> &'a T {
        // SAFETY: only `wrap` of the one `UpperType` makes boxes, and the value lives as long as its box.
        unsafe { of.value.cast::<T>().as_ref() }
    }
}

/// Defines `$name` as the [`UpperType`](crate::upper::UpperType) of `$t`. To be used exactly once in a binary: a second use
/// fails to link.
#[macro_export]
macro_rules! upper_type {
    ($(#[$meta:meta])* $vis:vis static $name:ident: $t:ty) => {
        $(#[$meta])*
        #[allow(unsafe_code, reason = "the symbol below makes this the only type")]
        $vis static $name: $crate::upper::UpperType<$t> = {
            // SAFETY: the name belongs to hal, and a second definition fails to link.
            #[unsafe(export_name = "__pantala_hal_upper_type")]
            static ONLY: u8 = 0;
            // SAFETY: `ONLY` exists once.
            unsafe { $crate::upper::UpperType::new() }
        };
    };
}
