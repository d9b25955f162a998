//! The object that each program has mapped, with which it reads the clocks without a system call: vdso(7).
//!
//! It is the special object of the VM, a file whose last page has the clocks. They are constant, but for real time's zero, which one store of a word changes
//! whenever real time is set; so a program reads real time from before or after that, and needs no lock.

use ::vdso::{IMAGE, NS_PER_TICK_AT, REAL_AT_ZERO_AT, ZERO_AT};
use ::vm::{NoMemory, ObjectRef};
use mem::vm;
use task::time;

/// Bytes of it, whole pages.
pub const LEN: u64 = IMAGE.len() as u64;

/// Pages of it, which are there from boot on.
pub const PAGES: usize = ::vdso::PAGES;

/// Makes it. Called once, at boot, when the clocks run.
///
/// # Errors
/// No memory.
pub fn init() -> Result<(), NoMemory> {
    let object = ObjectRef::new_file(vm(), None)?;
    let mut at = 0;
    let copy = &mut |bytes: &mut [u8]| {
        let n = bytes.len();
        bytes.copy_from_slice(&IMAGE[at..at + n]);
        at += n;
        n
    };
    if object.write(vm(), 0, LEN, copy).ok() != Some(LEN) {
        return Err(NoMemory);
    }
    let [ratio, zero] = hal::time::scale();
    put(&object, NS_PER_TICK_AT, ratio);
    put(&object, ZERO_AT, zero);
    let first = vm().set_special(object).is_ok();
    debug_assert!(first, "it is made once");
    real_time_was_set();
    Ok(())
}

/// Whether programs get it: not where no kernel has booted, as in tests.
pub fn is_there() -> bool {
    vm().special().is_some()
}

/// Tells programs that real time was set. Sleeps.
pub fn real_time_was_set() {
    let Some(object) = vm().special() else {
        return;
    };
    loop {
        let steps = time::steps();
        put(object, REAL_AT_ZERO_AT, time::monotonic_to_real(0));
        // Of two calls at once, the one that finds the other's step writes what both have made of the time.
        if time::steps() == steps {
            return;
        }
    }
}

/// Writes a word of a page that is there, by one store.
fn put(object: &ObjectRef, at: usize, word: u64) {
    let copy = &mut |bytes: &mut [u8]| match <&mut [u8; 8]>::try_from(bytes) {
        Ok(bytes) => {
            *bytes = word.to_ne_bytes();
            8
        }
        Err(_) => 0,
    };
    let written = object.write(vm(), at as u64, 8, copy);
    debug_assert_eq!(written.ok(), Some(8), "the page is there");
}
