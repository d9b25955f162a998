//! The object that the kernel maps into each program: clock_gettime(2) and its like without a system call.
//!
//! It is built apart, for a program's environment, linked by `image.ld`, and needs no relocation. What it cannot answer it asks the kernel.
//! Names and versions are those of Linux's vdso(7).
#![no_std]
#![no_builtins]
#![expect(
    unsafe_code,
    reason = "programs pass addresses, and system calls are assembly"
)]

mod clock;

use clock::Clock;
use core::arch::asm;
use core::sync::atomic::AtomicU64;

/// What the kernel tells. The kernel has other contents in the page.
#[unsafe(no_mangle)]
#[unsafe(link_section = ".kernel")]
pub static CLOCK: Clock = Clock {
    ns_per_tick: AtomicU64::new(0),
    zero: AtomicU64::new(0),
    real_at_zero: AtomicU64::new(0),
};

/// `struct timespec`, and `struct timeval`, which has microseconds.
#[repr(C)]
pub struct Time {
    seconds: u64,
    rest: u64,
}

/// Nanoseconds of a second.
const SECOND: u64 = 1_000_000_000;

const GETTIMEOFDAY: u64 = 96;
const CLOCK_GETTIME: u64 = 228;
const CLOCK_GETRES: u64 = 229;
const GETCPU: u64 = 309;

/// CLOCK_REALTIME, its coarse kin, and CLOCK_TAI, which has no offset here.
const REAL: u32 = 1 << 0 | 1 << 5 | 1 << 11;
/// CLOCK_MONOTONIC, its raw and coarse kin, and CLOCK_BOOTTIME.
const MONOTONIC: u32 = 1 << 1 | 1 << 4 | 1 << 6 | 1 << 7;

/// The time-stamp counter, not read before what precedes it.
#[inline(always)]
fn tsc() -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: reads a counter.
    unsafe {
        asm!("lfence", "rdtsc", out("eax") low, out("edx") high, options(nomem, nostack));
    }
    u64::from(high) << 32 | u64::from(low)
}

/// # Safety
/// As the call says.
#[inline(always)]
unsafe fn call(nr: u64, a: u64, b: u64, c: u64) -> i64 {
    let answer;
    // SAFETY: the caller's.
    unsafe {
        asm!("syscall", inlateout("rax") nr => answer, in("rdi") a, in("rsi") b, in("rdx") c,
            lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    answer
}

/// clock_gettime(2).
///
/// # Safety
/// `to` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __vdso_clock_gettime(clock: u32, to: *mut Time) -> i32 {
    let now = match 1_u32.checked_shl(clock) {
        Some(bit) if bit & REAL != 0 => CLOCK.real(tsc()),
        Some(bit) if bit & MONOTONIC != 0 => CLOCK.monotonic(tsc()),
        // SAFETY: the caller's.
        _ => return unsafe { call(CLOCK_GETTIME, u64::from(clock), to as u64, 0) } as i32,
    };
    // SAFETY: the caller's.
    unsafe {
        to.write(Time {
            seconds: now / SECOND,
            rest: now % SECOND,
        });
    }
    0
}

/// clock_getres(2).
///
/// # Safety
/// `to` is valid, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __vdso_clock_getres(clock: u32, to: *mut Time) -> i32 {
    // SAFETY: the caller's. Programs ask once.
    unsafe { call(CLOCK_GETRES, u64::from(clock), to as u64, 0) as i32 }
}

/// gettimeofday(2).
///
/// # Safety
/// `to` and `zone` are valid, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __vdso_gettimeofday(to: *mut Time, zone: *mut u64) -> i32 {
    if !zone.is_null() {
        // SAFETY: the caller's.
        return unsafe { call(GETTIMEOFDAY, to as u64, zone as u64, 0) as i32 };
    }
    if !to.is_null() {
        let now = CLOCK.real(tsc());
        // SAFETY: the caller's.
        unsafe {
            to.write(Time {
                seconds: now / SECOND,
                rest: now % SECOND / 1000,
            });
        }
    }
    0
}

/// time(2).
///
/// # Safety
/// `to` is valid, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __vdso_time(to: *mut u64) -> u64 {
    let now = CLOCK.real(tsc()) / SECOND;
    if !to.is_null() {
        // SAFETY: the caller's.
        unsafe { to.write(now) };
    }
    now
}

/// getcpu(2).
///
/// # Safety
/// `cpu` and `node` are valid, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __vdso_getcpu(cpu: *mut u32, node: *mut u32, _: *mut u64) -> i32 {
    // SAFETY: the caller's.
    unsafe { call(GETCPU, cpu as u64, node as u64, 0) as i32 }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
