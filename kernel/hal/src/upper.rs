//! Values whose types only the crates above know.
//!
//! A crate keeps, for one above it, a value that it cannot name: what processes add to a thread, say. [`UpperBox`] is such a
//! value. The crate above names its type once, by [`upper_type!`](crate::upper_type), so that nothing is looked up and nothing
//! compared where the value is used.

use alloc::boxed::Box;
use core::marker::PhantomData;
use core::ptr::NonNull;

/// A box of the one type that [`upper_type!`](crate::upper_type) names.
pub struct UpperBox {
    value: NonNull<()>,
    drop: fn(NonNull<()>),
}

// SAFETY: `UpperType` makes it of values that may be sent and shared.
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
    /// What [`upper_type!`](crate::upper_type) makes.
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
            // SAFETY: the pointer is that of a leaked `Box<T>`; the only call is that of the `Drop` of its box.
            drop: |raw| drop(unsafe { Box::from_raw(raw.cast::<T>().as_ptr()) }),
        }
    }

    /// The value in the box.
    #[inline(always)]
    pub fn get<'a>(&self, of: &'a UpperBox) -> &'a T {
        // SAFETY: all boxes are made by `wrap` of the only `UpperType`, and the value lives as long as its box.
        unsafe { of.value.cast::<T>().as_ref() }
    }
}

/// Defines `$name`, the [`UpperType`](crate::upper::UpperType) of `$t`. Exactly once per binary: a second one fails to link.
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
