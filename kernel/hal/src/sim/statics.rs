//! Statics of which each simulated machine has its own.

use alloc::boxed::Box;
use core::ops::Deref;
use core::ptr::NonNull;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
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
#[derive(Clone, Copy)]
struct Value {
    at: NonNull<()>,
    drop: fn(NonNull<()>),
}

// SAFETY: `new` takes values only that are `Send` and `Sync`.
unsafe impl Send for Value {}

impl Value {
    fn new<T: Send + Sync + 'static>(value: T) -> Self {
        Value {
            at: NonNull::from(Box::leak(Box::new(value))).cast(),
            // SAFETY: only `clear` calls this, once, with the pointer of the leaked box.
            drop: |at| drop(unsafe { Box::from_raw(at.cast::<T>().as_ptr()) }),
        }
    }

    /// The value.
    ///
    /// # Safety
    /// It is a `T`, and the machine has not cleared its values.
    unsafe fn get<T: 'static>(self) -> &'static T {
        // SAFETY: the box lives until `clear`, after which no thread of the machine uses it.
        unsafe { self.at.cast().as_ref() }
    }
}

#[derive(Default)]
struct Lists {
    /// In the order in which they were made.
    all: Vec<Value>,
    /// Those of statics, by the address of the static.
    statics: HashMap<usize, Value>,
}

/// The values of one machine.
#[derive(Default)]
pub(super) struct Values(Mutex<Lists>);

impl Values {
    fn lock(&self) -> MutexGuard<'_, Lists> {
        self.0.lock().expect("no test has failed")
    }

    /// Keeps `value` until [`Values::clear`].
    ///
    /// The reference is valid until then. The machine clears its values when none of its threads runs any more.
    pub(super) fn keep<T: Send + Sync + 'static>(&self, value: T) -> &'static T {
        let value = Value::new(value);
        self.lock().all.push(value);
        // SAFETY: just made of a `T`.
        unsafe { value.get() }
    }

    fn of<T: Send + Sync + 'static>(&self, key: usize, make: fn() -> T) -> &'static T {
        let known = self.lock().statics.get(&key).copied();
        // Made without the lock held, because it may use other statics.
        let value = known.unwrap_or_else(|| self.enter(key, make()));
        // SAFETY: the static at address `key` has this type.
        unsafe { value.get() }
    }

    /// Enters the value, unless another thread has entered one meanwhile. Returns the one that is entered.
    fn enter<T: Send + Sync + 'static>(&self, key: usize, value: T) -> Value {
        let mut lists = self.lock();
        if let Some(known) = lists.statics.get(&key) {
            return *known;
        }
        let value = Value::new(value);
        lists.statics.insert(key, value);
        lists.all.push(value);
        value
    }

    /// Drops all values, the last one first. Called when no thread of the machine runs any more.
    pub(super) fn clear(&self) {
        loop {
            let mut lists = self.lock();
            let Some(value) = lists.all.pop() else { return };
            lists.statics.retain(|_, known| known.at != value.at);
            // Dropped without the lock held: a value may use others, and make them again.
            drop(lists);
            (value.drop)(value.at);
        }
    }
}
