//! The serial console: a 16550 at COM1, with output polled and input by interrupt.
//!
//! Guarantee: output of up to `CHUNK` bytes in one call of [`write_bytes`] comes out in one piece, whatever other CPUs print.
//! The lock is held with interrupts off, for at most `CHUNK` bytes at a time, so that a long write does not delay timers.
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
/// The shift register is empty, too.
const ALL_SENT: u8 = 1 << 6;

/// The most bytes written in one hold of the lock.
const CHUNK: usize = 256;

struct Uart;

impl Uart {
    fn put(&mut self, byte: u8) {
        // A missing UART reads as all ones, so the loop ends.
        // SAFETY: reading line status and writing data have no effect outside the UART.
        unsafe {
            while port::read_u8(LINE_STATUS) & TRANSMIT_EMPTY == 0 {
                spin_loop();
            }
            port::write_u8(DATA, byte);
        }
    }

    fn get(&mut self) -> Option<u8> {
        // SAFETY: as in `put`; the byte that is read is returned.
        unsafe {
            let status = port::read_u8(LINE_STATUS);
            (status != 0xff && status & DATA_READY != 0).then(|| port::read_u8(DATA))
        }
    }
}

static UART: BootLock<Uart> = BootLock::new(Uart);

/// Sets the UART to 115200 8N1 with FIFOs on and interrupts off.
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

/// Enables the receive interrupt. Received bytes are then passed to
/// [`Upcalls::serial_input`](crate::upcalls::Upcalls::serial_input).
pub fn enable_input() {
    super::ioapic::enable_serial();
    // SAFETY: the interrupt has a handler by now.
    unsafe { port::write_u8(INTERRUPT_ENABLE, 1) };
}

/// Passes each byte that the UART has received to the kernel above, without the lock held. Called by the interrupt handler.
pub(super) fn receive() {
    loop {
        let byte = UART.lock().get();
        let Some(byte) = byte else { return };
        crate::upcalls::symbols::serial_input(byte);
    }
}

/// Writes bytes as they are. May be called anywhere, also in interrupt handlers.
pub fn write_bytes(bytes: &[u8]) {
    for chunk in bytes.chunks(CHUNK) {
        let mut uart = UART.lock();
        for &byte in chunk {
            uart.put(byte);
        }
    }
}

/// Waits until the UART has sent its last byte, for a second at most. Takes no lock. Called before the machine is turned off.
pub(super) fn drain() {
    const PATIENCE_NS: u64 = 1_000_000_000;
    let deadline = time::now_ns() + PATIENCE_NS;
    // SAFETY: reading line status has no effect; a missing UART reads as all ones.
    while unsafe { port::read_u8(LINE_STATUS) } & ALL_SENT == 0 && time::now_ns() < deadline {
        spin_loop();
    }
}

/// Releases the console lock although a CPU may hold it. Only for the CPU that panics, once all others are stopped.
pub(super) fn break_lock() {
    UART.force_unlock();
}

/// A message that is being formatted, so that it is written in one call. A message that is too long is written in several.
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

/// Prints a formatted message, followed by `end`, to the console and the kernel log; each `\n` becomes a carriage return and
/// a line feed on the console. Used by [`crate::kprint!`] and `kprintln!`.
pub fn print(args: fmt::Arguments<'_>, end: &str) {
    let mut line = Line {
        bytes: [0; 160],
        used: 0,
    };
    crate::klog::begin(time::stamp_ns());
    // Formatting into a `Line` cannot fail; a `Display` that fails cuts its own message short.
    let _ = line.write_fmt(args);
    let _ = line.write_str(end);
    line.flush();
}
