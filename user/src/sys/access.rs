//! Memory accesses that may fault without ending the program, and signal handlers that report their signals.

use libc::{siginfo_t, ucontext_t};
use std::arch::{asm, global_asm};
use std::sync::atomic::{AtomicUsize, Ordering};

global_asm!(
    ".globl user_try_load",
    "user_try_load:",
    "mov rax, [rdi]",
    "xor edx, edx",
    "ret",
    ".globl user_try_store",
    "user_try_store:",
    "mov [rdi], rsi",
    "xor edx, edx",
    "ret",
    ".globl user_tried",
    "user_tried:",
    "mov edx, 1",
    "ret",
);

unsafe extern "C" {
    fn user_try_load();
    fn user_try_store();
    fn user_tried();
}

/// The arguments that a signal handler was called with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caught {
    /// The signal.
    pub signal: i32,
    /// `si_code`.
    pub code: i32,
    /// `si_pid`.
    pub pid: i32,
    /// `si_uid`.
    pub uid: u32,
    /// `si_status` or `si_int`, depending on the signal.
    pub value: i32,
}

/// The function that [`on_signal`] calls; zero before [`report_to`].
static REPORT: AtomicUsize = AtomicUsize::new(0);

/// Makes [`handler`] call `report`, which may do only what a signal handler may do.
pub fn report_to(report: fn(Caught)) {
    REPORT.store(report as usize, Ordering::Relaxed);
}

/// The handler to install, with SA_SIGINFO.
pub fn handler() -> usize {
    on_signal as *const () as usize
}

extern "C" fn on_signal(signal: i32, info: *const siginfo_t, context: *mut ucontext_t) {
    // SAFETY: the kernel hands a handler with SA_SIGINFO a valid siginfo and context, which nothing else uses meanwhile.
    let (info, registers) = unsafe { (&*info, &mut (*context).uc_mcontext.gregs) };
    let rip = &mut registers[libc::REG_RIP as usize];
    let tries = [
        user_try_load as *const () as i64,
        user_try_store as *const () as i64,
    ];
    if tries.contains(rip) {
        *rip = user_tried as *const () as i64;
        let at = i64::from(signal) << 32 | i64::from(info.si_code as u32);
        registers[libc::REG_RAX as usize] = at;
        return;
    }
    if matches!(
        signal,
        libc::SIGSEGV | libc::SIGBUS | libc::SIGILL | libc::SIGFPE
    ) && info.si_code > 0
    {
        // The fault is not one of a tried access: the instruction is repeated and ends the program.
        let _ = super::default_signal(signal);
        return;
    }
    // SAFETY: these read integers of the structure, whichever of its forms it has.
    let (pid, uid, value) = unsafe { (info.si_pid(), info.si_uid(), info.si_status()) };
    let report = REPORT.load(Ordering::Relaxed);
    if report != 0 {
        // SAFETY: only `report_to` stores there.
        let report = unsafe { std::mem::transmute::<usize, fn(Caught)>(report) };
        report(Caught {
            signal,
            code: info.si_code,
            pid,
            uid,
            value,
        });
    }
}

fn attempt(function: unsafe extern "C" fn(), addr: u64, value: u64) -> Result<u64, (i32, i32)> {
    let (result, failed): (u64, u64);
    // SAFETY: the functions above touch nothing but what their names say and the registers of any call; the address
    // is meant to fault, or is memory that no Rust object lies in.
    unsafe {
        asm!("call {f}", f = in(reg) function, in("rdi") addr, in("rsi") value,
             lateout("rax") result, lateout("rdx") failed, clobber_abi("C"));
    }
    if failed == 0 {
        Ok(result)
    } else {
        Err(((result >> 32) as i32, result as i32))
    }
}

/// Reads eight bytes; [`handler`] must be installed for SIGSEGV and SIGBUS.
///
/// # Errors
/// The signal and `si_code` of the fault.
pub fn try_load(addr: u64) -> Result<u64, (i32, i32)> {
    attempt(user_try_load, addr, 0)
}

/// Writes eight bytes; [`handler`] must be installed for SIGSEGV and SIGBUS.
///
/// # Errors
/// The signal and `si_code` of the fault.
pub fn try_store(addr: u64, value: u64) -> Result<(), (i32, i32)> {
    attempt(user_try_store, addr, value).map(drop)
}

/// The object in shared memory at `addr`.
pub fn shared<T: Sync>(addr: u64) -> &'static T {
    // SAFETY: callers pass the aligned address of memory that is large enough, never unmapped, and for whose bytes
    // `T`, made of atomics, has no invalid values.
    unsafe { &*(addr as *const T) }
}
