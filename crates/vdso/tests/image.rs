//! The image is what vdso(7) says: an object that runs wherever it lies.

use object::elf;
use object::read::elf::{Dyn, ElfFile64, FileHeader, ProgramHeader};
use vdso::{CLOCK_AT, IMAGE, PAGES};

fn file() -> ElfFile64<'static> {
    ElfFile64::parse(IMAGE).expect("an ELF file")
}

#[test]
fn one_segment_lies_in_the_file_as_in_memory() {
    assert_eq!(IMAGE.len(), PAGES * 4096);
    let file = file();
    let loaded: Vec<_> = file
        .elf_program_headers()
        .iter()
        .filter(|header| header.p_type(file.endian()) == elf::PT_LOAD)
        .map(|header| {
            let endian = file.endian();
            (
                header.p_offset(endian),
                header.p_vaddr(endian),
                header.p_filesz(endian),
            )
        })
        .collect();
    assert_eq!(loaded, [(0, 0, IMAGE.len() as u64)]);
    assert_eq!(file.elf_header().e_type(file.endian()), elf::ET_DYN);
}

#[test]
fn the_functions_of_linux_are_there_before_the_clocks() {
    let file = file();
    // The table of sections is cut off; the dynamic linker does without.
    let dynamic = file
        .elf_program_headers()
        .iter()
        .find_map(|header| header.dynamic(file.endian(), IMAGE).expect("in the file"))
        .expect("a dynamic section");
    let value = |tag: u32| {
        dynamic
            .iter()
            .find(|entry| entry.tag32(file.endian()) == Some(tag))
            .map(|entry| entry.d_val(file.endian()) as usize)
    };
    for needs_relocation in [elf::DT_RELA, elf::DT_REL, elf::DT_JMPREL, elf::DT_NEEDED] {
        assert_eq!(value(needs_relocation), None);
    }
    let (symbols, names) = (
        value(elf::DT_SYMTAB).unwrap(),
        value(elf::DT_STRTAB).unwrap(),
    );
    let mut found = Vec::new();
    // The table of names is behind that of symbols.
    for symbol in IMAGE[symbols..names].chunks_exact(24) {
        let name = u32::from_ne_bytes(symbol[..4].try_into().unwrap()) as usize;
        let at = u64::from_ne_bytes(symbol[8..16].try_into().unwrap()) as usize;
        let name = IMAGE[names + name..]
            .split(|&byte| byte == 0)
            .next()
            .unwrap();
        if name.starts_with(b"__vdso_") {
            assert!(at > names && at < CLOCK_AT);
            found.push(String::from_utf8_lossy(name).into_owned());
        }
    }
    found.sort();
    let wanted = [
        "clock_getres",
        "clock_gettime",
        "getcpu",
        "gettimeofday",
        "time",
    ];
    assert_eq!(found, wanted.map(|name| format!("__vdso_{name}")));
}
