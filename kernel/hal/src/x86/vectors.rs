//! The interrupt vectors that this machine layer uses.

/// Vector of the serial port.
pub(super) const VECTOR_SERIAL: u8 = 0x30;
/// Vector of the local APIC timer.
pub(super) const VECTOR_TIMER: u8 = 0xef;
/// Vector of [`super::ipi`]'s function calls.
pub(super) const VECTOR_CALL: u8 = 0xfc;
/// Vector of the reschedule request.
pub(super) const VECTOR_RESCHEDULE: u8 = 0xfd;
/// Vector of the local APIC's spurious interrupt.
pub(super) const VECTOR_SPURIOUS: u8 = 0xff;
