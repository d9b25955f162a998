//! Panics: prints a message, the registers, a backtrace and what each CPU ran; then halts or resets as `panic=` says.
use core::panic::PanicInfo;
use core::sync::atomic::{AtomicI64, AtomicU32, Ordering};

use super::{backtrace, console, cpu, irq, paging, percpu, power, snapshot, time};
use crate::frame::TrapFrame;

const NOBODY: u32 = u32::MAX;
/// The CPU that panics, or [`NOBODY`].
static PANICKING: AtomicU32 = AtomicU32::new(NOBODY);
/// Seconds until the reset, as in Linux: 0 for none, a negative number for a reset at once.
static TIMEOUT: AtomicI64 = AtomicI64::new(0);
/// Exit code for the emulator after a panic.
const EXIT_CODE: u8 = 0x7f;

/// Sets the seconds until the reset after a panic: 0 for none, negative for a reset at once. For the boot option `panic=` and
/// `/proc/sys/kernel/panic`.
pub fn set_timeout(seconds: i64) {
    TIMEOUT.store(seconds, Ordering::Relaxed);
}

/// The value that [`set_timeout`] was given.
pub fn timeout() -> i64 {
    TIMEOUT.load(Ordering::Relaxed)
}

/// Makes this CPU the one that panics, and stops the others. Interrupts stay off. A second CPU that panics waits here. A panic
/// within the panic makes the emulator exit, if that is enabled, or halts the CPU.
fn begin() {
    irq::disable();
    let me = percpu::id();
    match PANICKING.compare_exchange(NOBODY, me, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            snapshot::ask_others();
            console::break_lock();
        }
        Err(first) if first == me => {
            console::break_lock();
            kprintln!("kernel panic: failed while reporting a panic");
            power::debug_exit(EXIT_CODE);
            cpu::stop();
        }
        // The NMI that the first CPU sends interrupts this loop.
        Err(_) => loop {
            cpu::relax();
        },
    }
}

/// Handles a non-maskable interrupt: from a CPU that panics, which stops this one, or that asks what this one does, or from the
/// hardware, which is only reported.
pub(super) fn on_nmi(frame: &TrapFrame) {
    let panicking = PANICKING.load(Ordering::Acquire);
    let asked = snapshot::answer(frame);
    if panicking == NOBODY {
        if !asked {
            kprintln!("NMI on CPU {} at {:#x}", percpu::id(), frame.rip);
        }
    } else if panicking != percpu::id() {
        cpu::stop();
    }
}

/// Panics because of an exception in the kernel that cannot be resolved.
pub(super) fn kernel_fault(frame: &TrapFrame, address: Option<u64>) -> ! {
    begin();
    let name = exception_name(frame.vector);
    match address {
        Some(address) => kprintln!(
            "kernel panic: {name} at address {address:#x}, error {:#x}, on CPU {}",
            frame.error,
            percpu::id()
        ),
        None => kprintln!(
            "kernel panic: {name}, error {:#x}, on CPU {}",
            frame.error,
            percpu::id()
        ),
    }
    print_registers(frame);
    kprintln!("backtrace:");
    backtrace::print_address(frame.rip);
    backtrace::print(frame.rbp);
    end()
}

fn exception_name(vector: u64) -> &'static str {
    match vector {
        0 => "divide error",
        1 => "debug exception",
        2 => "non-maskable interrupt",
        3 => "breakpoint",
        6 => "invalid opcode",
        7 => "device not available",
        8 => "double fault (a kernel stack may have overflowed)",
        10 => "invalid TSS",
        11 => "segment not present",
        12 => "stack fault",
        13 => "general protection fault",
        14 => "page fault",
        16 => "x87 error",
        17 => "alignment check",
        18 => "machine check",
        19 => "SIMD error",
        _ => "unexpected exception",
    }
}

fn print_registers(f: &TrapFrame) {
    kprintln!(
        "rip {:016x} rsp {:016x} flags {:016x} cs {:x} ss {:x}",
        f.rip,
        f.rsp,
        f.flags(),
        f.cs(),
        f.ss()
    );
    kprintln!(
        "rax {:016x} rbx {:016x} rcx {:016x} rdx {:016x}",
        f.rax,
        f.rbx,
        f.rcx,
        f.rdx
    );
    kprintln!(
        "rsi {:016x} rdi {:016x} rbp {:016x} r8  {:016x}",
        f.rsi,
        f.rdi,
        f.rbp,
        f.r8
    );
    kprintln!(
        "r9  {:016x} r10 {:016x} r11 {:016x} r12 {:016x}",
        f.r9,
        f.r10,
        f.r11,
        f.r12
    );
    kprintln!("r13 {:016x} r14 {:016x} r15 {:016x}", f.r13, f.r14, f.r15);
    kprintln!(
        "root table {:#x}, kernel's {:#x}",
        paging::loaded_root(),
        paging::kernel_root()
    );
}

/// Prints what the other CPUs ran, and then halts or resets.
fn end() -> ! {
    snapshot::print_others(|_| ());
    power::debug_exit(EXIT_CODE);
    let seconds = timeout();
    if seconds == 0 {
        kprintln!("halted");
        cpu::stop();
    }
    if seconds > 0 {
        kprintln!("resetting in {seconds} s");
        time::spin_ns(seconds.unsigned_abs().saturating_mul(1_000_000_000));
    }
    power::reboot()
}

/// Handles `panic!` in the kernel.
#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    begin();
    let message = info.message();
    match info.location() {
        Some(at) => kprintln!(
            "kernel panic: {message}, at {}:{} on CPU {}",
            at.file(),
            at.line(),
            percpu::id()
        ),
        None => kprintln!("kernel panic: {message}, on CPU {}", percpu::id()),
    }
    kprintln!("backtrace:");
    backtrace::print(backtrace::frame_pointer());
    end()
}
