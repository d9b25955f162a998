//! The little that must be known of machine instructions.

/// Whether `bytes` is a string instruction with a `rep` prefix. QEMU runs each of its iterations as a block of its own, so
/// that a page clear by `rep stos` would count as hundreds of instructions.
pub fn is_repeated_string(bytes: &[u8]) -> bool {
    let mut repeated = false;
    for &byte in bytes {
        match byte {
            0xf2 | 0xf3 => repeated = true,
            // Other legacy prefixes, and REX.
            0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0x40..=0x4f | 0xf0 => {}
            // ins, outs; movs, cmps; stos, lods, scas.
            0x6c..=0x6f | 0xa4..=0xa7 | 0xaa..=0xaf => return repeated,
            _ => return false,
        }
    }
    false
}

/// First address of the kernel's half.
pub const KERNEL: u64 = 0xffff_8000_0000_0000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn string_instructions_with_rep_are_found() {
        for yes in [
            &[0xf3, 0xa4][..],
            &[0xf3, 0x48, 0xab],
            &[0xf2, 0xae],
            &[0x66, 0xf3, 0xa5],
        ] {
            assert!(is_repeated_string(yes), "{yes:x?}");
        }
        // stos alone, pause, endbr64, movss, ret.
        for no in [
            &[0xaa][..],
            &[0xf3, 0x90],
            &[0xf3, 0x0f, 0x1e, 0xfa],
            &[0xf3, 0x0f, 0x10, 0x00],
            &[0xc3],
            &[],
        ] {
            assert!(!is_repeated_string(no), "{no:x?}");
        }
    }
}
