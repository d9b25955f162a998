//! Statics of which each simulated machine has its own.

use alloc::boxed::Box;
use core::ops::Deref;
use core::ptr::NonNull;
use std::collections::HashMap;
use std::sync::Mutex;
use std::vec::Vec;

use super::here;

/// What [`machine_static!`](crate::machine_static) declares on a host: one value for each machine, made at its first use there.
pub struct PerMachine<T> {
    make: fn() -> T,
}

impl<T: Send + Sync + 'static> PerMachine<T> {
    /// Called by the macro.
    pub const fn new(make: fn() -> T) -> Self {
        PerMachine { make }
    }
}

impl<T: Send + Sync + 'static> Deref for PerMachine<T> {
    type Target = T;

    /// # Panics
    /// If no machine runs the calling thread.
    fn deref(&self) -> &T {
        let machine = here().expect("a machine runs this thread").machine;
        machine
            .values
            .of(core::ptr::from_ref(self).addr(), self.make)
    }
}

/// A value on the heap, to be dropped with its machine.
struct Value {
    at: NonNull<()>,
    drop: fn(NonNull<()>),
}

// SAFETY: `Values` takes values only that are `Send` and `Sync`.
unsafe impl Send for Value {}

/// The values of one machine.
#[derive(Default)]
pub(super) struct Values {
    /// In the order in which they were made.
    all: Mutex<Vec<Value>>,
    /// By the address of the static: the position in `all`.
    statics: Mutex<HashMap<usize, usize>>,
}

impl Values {
    /// Keeps `value` until [`Values::clear`].
    ///
    /// The reference is valid until then. The machine clears its values when none of its threads runs any more.
    pub(super) fn keep<T: Send + Sync + 'static>(&self, value: T) -> &'static T {
        let at = NonNull::from(Box::leak(Box::new(value)));
        self.all.lock().expect("no test has failed").push(Value {
            at: at.cast(),
            // SAFETY: `clear` calls this once, with the pointer of the leaked box.
            drop: |at| drop(unsafe { Box::from_raw(at.cast::<T>().as_ptr()) }),
        });
        // SAFETY: the box lives until `clear`, after which no thread of the machine uses it.
        unsafe { at.as_ref() }
    }

    fn of<T: Send + Sync + 'static>(&self, key: usize, make: fn() -> T) -> &'static T {
        let found = self.find(key);
        let at = found.unwrap_or_else(|| {
            // Made without a lock held, because it may use other statics.
            let value = Box::new(make());
            self.enter(key, value)
        });
        // SAFETY: the static at address `key` has this type, and the value lives until `clear`.
        unsafe { at.cast::<T>().as_ref() }
    }

    fn find(&self, key: usize) -> Option<NonNull<()>> {
        let index = *self.statics.lock().expect("no test has failed").get(&key)?;
        Some(self.all.lock().expect("no test has failed")[index].at)
    }

    /// Enters the value, unless another thread has entered one meanwhile. Returns the one that is entered.
    fn enter<T: Send + Sync + 'static>(&self, key: usize, value: Box<T>) -> NonNull<()> {
        let mut statics = self.statics.lock().expect("no test has failed");
        let mut all = self.all.lock().expect("no test has failed");
        let index = *statics.entry(key).or_insert(all.len());
        if index == all.len() {
            all.push(Value {
                at: NonNull::from(Box::leak(value)).cast(),
                // SAFETY: as in `keep`.
                drop: |at| drop(unsafe { Box::from_raw(at.cast::<T>().as_ptr()) }),
            });
        }
        all[index].at
    }

    /// Drops all values, the last one first. Called when no thread of the machine runs any more.
    pub(super) fn clear(&self) {
        loop {
            // Dropped without a lock held: a value may use others, and make them again.
            let last = self.all.lock().expect("no test has failed").pop();
            let Some(value) = last else { return };
            let gone = |at: &usize| *at != self.len();
            self.statics
                .lock()
                .expect("no test has failed")
                .retain(|_, at| gone(at));
            (value.drop)(value.at);
        }
    }

    fn len(&self) -> usize {
        self.all.lock().expect("no test has failed").len()
    }
}
