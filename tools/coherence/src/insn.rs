//! Decodes the few properties of machine instructions that the counts need.

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

/// Whether `bytes`, a string instruction with a `rep` prefix, stores one value again and again, and loads nothing: so pages are cleared.
fn is_store_of_one_value(bytes: &[u8]) -> bool {
    let prefix = |byte: &&u8| matches!(byte, 0xf2 | 0xf3 | 0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0x40..=0x4f | 0xf0);
    bytes
        .iter()
        .find(|byte| !prefix(byte))
        .is_some_and(|byte| matches!(byte, 0xaa | 0xab))
}

/// What an instruction's memory access is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Any other instruction.
    Plain,
    /// A repeated string instruction.
    String,
    /// One that stores the same value again and again.
    Fill,
    /// A read-modify-write that is atomic.
    Atomic,
    /// A call, which stores its return address.
    Call,
    /// A return, which loads its return address.
    Return,
}

/// The kind of the instruction `bytes`.
pub fn kind(bytes: &[u8]) -> Kind {
    if is_repeated_string(bytes) {
        return match is_store_of_one_value(bytes) {
            true => Kind::Fill,
            false => Kind::String,
        };
    }
    let mut locked = false;
    for (index, &byte) in bytes.iter().enumerate() {
        let modrm = bytes.get(index + 1).copied().unwrap_or(0xc0);
        return match byte {
            0xf0 => {
                locked = true;
                continue;
            }
            0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0x40..=0x4f | 0xf2 | 0xf3 => continue,
            _ if locked => Kind::Atomic,
            // xchg is atomic without a prefix, if one side is in memory.
            0x86 | 0x87 if modrm >> 6 != 3 => Kind::Atomic,
            0xe8 => Kind::Call,
            0xff if modrm >> 3 & 7 == 2 => Kind::Call,
            0xc2 | 0xc3 => Kind::Return,
            _ => Kind::Plain,
        };
    }
    Kind::Plain
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

    #[test]
    fn kinds_of_instructions() {
        let kinds: [(&[u8], Kind); 13] = [
            (&[0xf3, 0x48, 0xab], Kind::Fill),         // rep stosq
            (&[0xf3, 0xaa], Kind::Fill),               // rep stosb
            (&[0xf3, 0x48, 0xa5], Kind::String),       // rep movsq
            (&[0xf0, 0x0f, 0xb1, 0x0f], Kind::Atomic), // lock cmpxchg
            (&[0x65, 0xf0, 0xff, 0x00], Kind::Atomic),
            (&[0x87, 0x07], Kind::Atomic),      // xchg with memory
            (&[0x48, 0x87, 0xc3], Kind::Plain), // xchg of registers
            (&[0xe8, 0, 0, 0, 0], Kind::Call),
            (&[0x41, 0xff, 0xd3], Kind::Call),       // call r11
            (&[0xff, 0x15, 0, 0, 0, 0], Kind::Call), // call through memory
            (&[0xff, 0xe0], Kind::Plain),            // jmp
            (&[0xf3, 0xc3], Kind::Return),
            (&[0x48, 0x89, 0x07], Kind::Plain),
        ];
        for (bytes, want) in kinds {
            assert_eq!(kind(bytes), want, "{bytes:x?}");
        }
    }
}
