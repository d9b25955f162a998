//! Valid, truncated, overlapping and malformed files.
use elfload::image::{HEADER_LEN, PHDR_LEN, interp_path};
use elfload::{ElfError, Header, Image, USER_END};
use proptest::prelude::*;

#[derive(Clone, Copy)]
struct Ph {
    kind: u32,
    flags: u32,
    offset: u64,
    vaddr: u64,
    filesz: u64,
    memsz: u64,
    align: u64,
}

const LOAD: Ph = Ph {
    kind: 1,
    flags: 5,
    offset: 0,
    vaddr: 0x400000,
    filesz: 0x1000,
    memsz: 0x1000,
    align: 0x1000,
};

fn file(kind: u16, phs: &[Ph]) -> Vec<u8> {
    let mut f = vec![0u8; HEADER_LEN];
    f[..7].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1, 1]);
    f[16..18].copy_from_slice(&kind.to_le_bytes());
    f[18..20].copy_from_slice(&62u16.to_le_bytes());
    f[20..24].copy_from_slice(&1u32.to_le_bytes());
    f[24..32].copy_from_slice(&0x401000u64.to_le_bytes());
    f[32..40].copy_from_slice(&(HEADER_LEN as u64).to_le_bytes());
    f[52..54].copy_from_slice(&64u16.to_le_bytes());
    f[54..56].copy_from_slice(&(PHDR_LEN as u16).to_le_bytes());
    f[56..58].copy_from_slice(&(phs.len() as u16).to_le_bytes());
    for p in phs {
        f.extend(p.kind.to_le_bytes());
        f.extend(p.flags.to_le_bytes());
        for w in [p.offset, p.vaddr, p.vaddr, p.filesz, p.memsz, p.align] {
            f.extend(w.to_le_bytes());
        }
    }
    f
}

fn load(f: &[u8], file_len: u64) -> Result<Image, ElfError> {
    let h = Header::parse(f)?;
    let table = f
        .get(HEADER_LEN..HEADER_LEN + h.table_len())
        .ok_or(ElfError::Truncated)?;
    Image::parse(&h, table, file_len)
}

fn verdict(phs: &[Ph]) -> Result<Image, ElfError> {
    load(&file(2, phs), 0x10000)
}

#[test]
fn accepts_an_ordinary_file() {
    let data = Ph {
        flags: 6,
        offset: 0x1800,
        vaddr: 0x402800,
        filesz: 0x100,
        memsz: 0x5000,
        ..LOAD
    };
    let image = verdict(&[LOAD, data]).unwrap();
    assert_eq!(image.segments.len(), 2);
    assert_eq!(image.phdr_vaddr, Some(0x400040));
    assert_eq!(image.segments[1].page_start(), 0x402000);
    assert_eq!(image.segments[1].file_page_end(), 0x403000);
    assert_eq!(image.brk(), 0x408000);
    assert!(!image.relocatable && !image.exec_stack);
}

#[test]
fn names_what_is_wrong() {
    let err = |phs: &[Ph]| verdict(phs).map(|_| ()).unwrap_err();
    assert_eq!(
        err(&[Ph {
            filesz: 0x20000,
            memsz: 0x20000,
            ..LOAD
        }]),
        ElfError::Truncated
    );
    assert_eq!(
        err(&[Ph {
            offset: u64::MAX - 0xfff,
            ..LOAD
        }]),
        ElfError::Truncated
    );
    assert_eq!(
        err(&[Ph {
            vaddr: u64::MAX - 0xfff,
            memsz: 0x2000,
            ..LOAD
        }]),
        ElfError::BadSegment
    );
    assert_eq!(
        err(&[Ph {
            vaddr: USER_END,
            ..LOAD
        }]),
        ElfError::BadSegment
    );
    assert_eq!(
        err(&[Ph {
            vaddr: 0x400001,
            ..LOAD
        }]),
        ElfError::BadSegment
    );
    assert_eq!(
        err(&[Ph {
            memsz: 0x800,
            ..LOAD
        }]),
        ElfError::BadSegment
    );
    assert_eq!(err(&[Ph { align: 3, ..LOAD }]), ElfError::BadSegment);
    assert_eq!(
        err(&[
            LOAD,
            Ph {
                vaddr: 0x400000,
                ..LOAD
            }
        ]),
        ElfError::Overlap
    );
    assert_eq!(
        err(&[
            LOAD,
            Ph {
                vaddr: 0x300000,
                ..LOAD
            }
        ]),
        ElfError::Overlap
    );
    assert_eq!(err(&[Ph { kind: 6, ..LOAD }]), ElfError::Empty);
    assert_eq!(
        err(&[
            LOAD,
            Ph {
                kind: 3,
                filesz: 1,
                ..LOAD
            }
        ]),
        ElfError::BadInterp
    );
    assert_eq!(
        err(&[
            LOAD,
            Ph {
                kind: 3,
                offset: 0x10000,
                filesz: 20,
                ..LOAD
            }
        ]),
        ElfError::Truncated
    );
    assert_eq!(
        load(&file(1, &[LOAD]), 0x10000).unwrap_err(),
        ElfError::Foreign
    );
    assert_eq!(
        load(&file(2, &[]), 0x10000).unwrap_err(),
        ElfError::BadHeaders
    );
    assert_eq!(load(b"\x7fELF", 4).unwrap_err(), ElfError::NotElf);
    assert_eq!(interp_path(b"/lib/ld.so\0"), Ok(&b"/lib/ld.so"[..]));
    assert_eq!(interp_path(b"\0"), Err(ElfError::BadInterp));
    assert_eq!(interp_path(b"abc"), Err(ElfError::BadInterp));
}

#[test]
fn truncation_at_every_byte_is_refused() {
    let f = file(2, &[LOAD]);
    for n in 0..f.len() {
        assert!(load(&f[..n], n as u64).is_err(), "accepted at {n}");
    }
}

proptest! {
    /// Whatever the bytes are, an accepted image has the documented properties.
    #[test]
    fn accepted_means_sane(mut f in Just(file(3, &[LOAD, Ph { vaddr: 0x500000, ..LOAD }])),
                           edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6)) {
        for (at, value) in edits {
            let i = at.index(f.len());
            f[i] = value;
        }
        if let Ok(image) = load(&f, 0x10000) {
            let mut last = 0;
            for s in &image.segments {
                prop_assert!(s.vaddr >= last);
                prop_assert!(s.file_len <= s.mem_len);
                prop_assert!(s.page_end() <= USER_END);
                prop_assert!(s.offset + s.file_len <= 0x10000);
                last = s.vaddr + s.mem_len;
            }
            prop_assert!(image.align.is_power_of_two());
        }
    }
}
