//! The end: a message, the registers, a backtrace, what each CPU ran; then stop or reset as `panic=` says.
use core::panic::PanicInfo;
use core::sync::atomic::{AtomicI64, AtomicU32, Ordering};

use super::frame::TrapFrame;
use super::{backtrace, console, cpu, irq, paging, percpu, power, snapshot, time};

const NOBODY: u32 = u32::MAX;
/// The CPU that panics, or [`NOBODY`].
static PANICKING: AtomicU32 = AtomicU32::new(NOBODY);
/// Seconds to the reset, as Linux has it: 0 waits for ever, a negative number resets at once.
static TIMEOUT: AtomicI64 = AtomicI64::new(0);
/// Exit code for the emulator after a panic.
const EXIT_CODE: u8 = 0x7f;

/// Sets what happens after a panic, as the boot option `panic=` and `/proc/sys/kernel/panic` do.
pub fn set_timeout(seconds: i64) {
    TIMEOUT.store(seconds, Ordering::Relaxed);
}

/// The seconds set by [`set_timeout`].
pub fn timeout() -> i64 {
    TIMEOUT.load(Ordering::Relaxed)
}

/// Makes this CPU the one that panics. A second one stops here; a panic within the panic ends the machine.
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
        // The first one's NMI will find this CPU here.
        Err(_) => loop {
            cpu::relax();
        },
    }
}

/// A non-maskable interrupt: a CPU that panics, or asks what this one does; or the hardware's, which is only reported.
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

/// An exception in the kernel that nothing can resolve.
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

/// What the other CPUs ran, then the end as configured.
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

/// Every `panic!` of the kernel.
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
