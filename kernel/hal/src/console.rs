//! The serial console: a 16550 at COM1, output polled, input by interrupt.
//!
//! Guarantee: one call of [`write_bytes`] comes out in one piece, whatever other CPUs print. The lock is
//! held with interrupts off for at most `CHUNK` bytes at a time, so that a long write delays no timer.
use core::fmt::{self, Write};
use core::hint::spin_loop;

use super::lock::BootLock;
use super::{port, time};

const COM1: u16 = 0x3f8;
const DATA: u16 = COM1;
const INTERRUPT_ENABLE: u16 = COM1 + 1;
const FIFO_CONTROL: u16 = COM1 + 2;
const LINE_CONTROL: u16 = COM1 + 3;
const MODEM_CONTROL: u16 = COM1 + 4;
const LINE_STATUS: u16 = COM1 + 5;

const DATA_READY: u8 = 1;
const TRANSMIT_EMPTY: u8 = 1 << 5;
/// The shift register has sent its byte, too.
const ALL_SENT: u8 = 1 << 6;

/// Bytes written in one hold of the lock.
const CHUNK: usize = 256;

struct Uart;

impl Uart {
    fn put(&mut self, byte: u8) {
        // A missing UART reads as all ones, so this ends.
        // SAFETY: reading line status and writing data have no effect beyond the UART.
        unsafe {
            while port::read_u8(LINE_STATUS) & TRANSMIT_EMPTY == 0 {
                spin_loop();
            }
            port::write_u8(DATA, byte);
        }
    }

    fn get(&mut self) -> Option<u8> {
        // SAFETY: as above; the byte read is handed on.
        unsafe {
            let status = port::read_u8(LINE_STATUS);
            (status != 0xff && status & DATA_READY != 0).then(|| port::read_u8(DATA))
        }
    }
}

static UART: BootLock<Uart> = BootLock::new(Uart);

/// Sets 115200 8N1 with FIFOs on; no interrupts yet.
pub(super) fn init() {
    // SAFETY: the usual programming sequence of a 16550.
    unsafe {
        port::write_u8(INTERRUPT_ENABLE, 0);
        port::write_u8(LINE_CONTROL, 0x80);
        port::write_u8(DATA, 1);
        port::write_u8(INTERRUPT_ENABLE, 0);
        port::write_u8(LINE_CONTROL, 0x03);
        port::write_u8(FIFO_CONTROL, 0x07);
        port::write_u8(MODEM_CONTROL, 0x0b);
    }
}

/// Turns the receive interrupt on; bytes then arrive in [`Upcalls::serial_input`](crate::upcalls::Upcalls::serial_input).
pub fn enable_input() {
    super::ioapic::enable_serial();
    // SAFETY: the interrupt has a handler by now.
    unsafe { port::write_u8(INTERRUPT_ENABLE, 1) };
}

/// Takes what the UART has received and hands it up, byte by byte, without the lock.
pub(super) fn receive() {
    loop {
        let byte = UART.lock().get();
        let Some(byte) = byte else { return };
        crate::upcalls::symbols::serial_input(byte);
    }
}

/// Writes bytes as they are. May be called from anywhere, interrupts included.
pub fn write_bytes(bytes: &[u8]) {
    for chunk in bytes.chunks(CHUNK) {
        let mut uart = UART.lock();
        for &byte in chunk {
            uart.put(byte);
        }
    }
}

/// Waits until the UART has sent its last byte, but no longer than a second. Takes no lock: for the machine's end.
pub(super) fn drain() {
    const PATIENCE_NS: u64 = 1_000_000_000;
    let deadline = time::now_ns() + PATIENCE_NS;
    // SAFETY: reading line status has no effect; a missing UART reads as all ones.
    while unsafe { port::read_u8(LINE_STATUS) } & ALL_SENT == 0 && time::now_ns() < deadline {
        spin_loop();
    }
}

/// Breaks the console lock: for the panicking CPU only, once all others are stopped.
pub(super) fn break_lock() {
    UART.force_unlock();
}

/// A line under construction, so that one message is one write. What does not fit goes out early.
struct Line {
    bytes: [u8; 160],
    used: usize,
}

impl Line {
    fn flush(&mut self) {
        write_bytes(&self.bytes[..self.used]);
        crate::klog::append(&self.bytes[..self.used]);
        self.used = 0;
    }

    fn push(&mut self, byte: u8) {
        if self.used == self.bytes.len() {
            self.flush();
        }
        self.bytes[self.used] = byte;
        self.used += 1;
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            if byte == b'\n' {
                self.push(b'\r');
            }
            self.push(byte);
        }
        Ok(())
    }
}

/// Prints a formatted message to the console, each `\n` as a new line, and `end` behind it. Used by
/// [`crate::kprint!`] and `kprintln!`.
pub fn print(args: fmt::Arguments<'_>, end: &str) {
    let mut line = Line {
        bytes: [0; 160],
        used: 0,
    };
    crate::klog::begin(time::stamp_ns());
    // Formatting into `Line` cannot fail; a failing `Display` merely cuts its own message short.
    let _ = line.write_fmt(args);
    let _ = line.write_str(end);
    line.flush();
}

/// Prints to the console without a new line.
#[macro_export]
macro_rules! kprint {
    ($($arg:tt)*) => { $crate::console::print(format_args!($($arg)*), "") };
}

/// Prints a line to the console.
#[macro_export]
macro_rules! kprintln {
    ($($arg:tt)*) => { $crate::console::print(format_args!($($arg)*), "\n") };
}
