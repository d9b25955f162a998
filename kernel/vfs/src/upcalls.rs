//! The functions of the crate of processes that this crate calls.

use ksync::Once;

/// The functions, which act on the calling process.
pub struct Upcalls {
    /// The file-size limit of the process, in bytes; `u64::MAX` for none.
    pub file_size_limit: fn() -> u64,
    /// The process went beyond that limit: sends it SIGXFSZ.
    pub file_too_large: fn(),
    /// The process wrote to a pipe without a reader: sends it SIGPIPE.
    pub broken_pipe: fn(),
}

hal::machine_static! {
    static UPCALLS: Once<&'static Upcalls> = Once::new();
}

/// Sets the functions that this crate calls. Called once, before any program runs.
pub fn set(upcalls: &'static Upcalls) {
    UPCALLS.get_or_init(|| upcalls);
}

#[inline]
pub(crate) fn get() -> &'static Upcalls {
    UPCALLS
        .get()
        .expect("processes are set up before any program")
}
