//! What files ask of the process that uses them.

use ksync::Once;

/// The calling process, as files see it.
pub struct Upcalls {
    /// The largest size to which it may write a file, in bytes; `u64::MAX` for any.
    pub file_size_limit: fn() -> u64,
    /// It went beyond that limit: it gets SIGXFSZ.
    pub file_too_large: fn(),
    /// It wrote to a pipe without a reader: it gets SIGPIPE.
    pub broken_pipe: fn(),
}

static UPCALLS: Once<&'static Upcalls> = Once::new();

/// Says what files ask. Once, before any program.
pub fn set(upcalls: &'static Upcalls) {
    UPCALLS.get_or_init(|| upcalls);
}

#[inline]
pub(crate) fn get() -> &'static Upcalls {
    UPCALLS
        .get()
        .expect("processes are set up before any program")
}
