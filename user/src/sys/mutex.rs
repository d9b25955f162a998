//! The C library's mutexes with priority inheritance, and its conditions, at an address in mapped memory. Each function returns an error
//! number, 0 for none.

/// Bytes that a mutex or a condition may take.
pub const ROOM: u64 = 64;

/// The kind of a mutex.
#[derive(Clone, Copy, Default)]
pub struct Kind {
    /// Whether it tells that its owner has ended.
    pub robust: bool,
    /// Whether processes share it.
    pub shared: bool,
    /// Whether it looks for errors, or can be locked again: PTHREAD_MUTEX_ERRORCHECK and its kin.
    pub kind: i32,
}

/// Makes a mutex.
pub fn init(at: u64, kind: Kind) -> i32 {
    const ROBUST: i32 = 1;
    const INHERIT: i32 = 1;
    // SAFETY: the caller has mapped the memory; the attributes live until the mutex has been made.
    unsafe {
        let mut attr: libc::pthread_mutexattr_t = std::mem::zeroed();
        let attr = &raw mut attr;
        let mut errors = libc::pthread_mutexattr_init(attr);
        errors |= libc::pthread_mutexattr_setprotocol(attr, INHERIT);
        errors |= libc::pthread_mutexattr_setrobust(attr, i32::from(kind.robust) * ROBUST);
        errors |= libc::pthread_mutexattr_setpshared(attr, i32::from(kind.shared));
        errors |= libc::pthread_mutexattr_settype(attr, kind.kind);
        if errors == 0 {
            errors = libc::pthread_mutex_init(at as *mut _, attr);
        }
        errors
    }
}

/// pthread_mutex_lock.
pub fn lock(at: u64) -> i32 {
    // SAFETY: a mutex is there, by the rule of the callers of this file.
    unsafe { libc::pthread_mutex_lock(at as *mut _) }
}

/// pthread_mutex_trylock.
pub fn try_lock(at: u64) -> i32 {
    // SAFETY: as for `lock`.
    unsafe { libc::pthread_mutex_trylock(at as *mut _) }
}

/// pthread_mutex_timedlock, until `ns` nanoseconds from now.
pub fn lock_for(at: u64, ns: i64) -> i32 {
    // SAFETY: as for `lock`; the time is one of this function's.
    unsafe {
        let mut until: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut until);
        let ns = until.tv_nsec + ns;
        until.tv_sec += ns / 1_000_000_000;
        until.tv_nsec = ns % 1_000_000_000;
        libc::pthread_mutex_timedlock(at as *mut _, &raw const until)
    }
}

/// pthread_mutex_unlock.
pub fn unlock(at: u64) -> i32 {
    // SAFETY: as for `lock`.
    unsafe { libc::pthread_mutex_unlock(at as *mut _) }
}

/// pthread_mutex_consistent.
pub fn consistent(at: u64) -> i32 {
    // SAFETY: as for `lock`.
    unsafe { libc::pthread_mutex_consistent(at as *mut _) }
}

/// Waits for the condition at `at` with the mutex.
pub fn wait(at: u64, mutex: u64) -> i32 {
    // SAFETY: as for `lock`; zeros are a condition.
    unsafe { libc::pthread_cond_wait(at as *mut _, mutex as *mut _) }
}

/// Wakes all that wait for the condition at `at`.
pub fn broadcast(at: u64) -> i32 {
    // SAFETY: as for `wait`.
    unsafe { libc::pthread_cond_broadcast(at as *mut _) }
}
