//! The old interrupt controllers: moved away from the exception vectors, and masked for good.
use super::port;

/// Masks all lines of both 8259s; their spurious interrupts go to vectors 0x20 to 0x2f.
pub(super) fn mask() {
    const COMMAND: [u16; 2] = [0x20, 0xa0];
    const DATA: [u16; 2] = [0x21, 0xa1];
    const VECTOR: [u8; 2] = [0x20, 0x28];
    const CASCADE: [u8; 2] = [4, 2];
    for i in 0..2 {
        // SAFETY: the usual initialisation sequence; interrupts are off.
        unsafe {
            port::write_u8(COMMAND[i], 0x11);
            port::write_u8(DATA[i], VECTOR[i]);
            port::write_u8(DATA[i], CASCADE[i]);
            port::write_u8(DATA[i], 0x01);
            port::write_u8(DATA[i], 0xff);
        }
    }
}
