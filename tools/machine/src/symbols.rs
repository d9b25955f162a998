//! Adds the symbol table that a panic reads to the linked kernel.
//!
//! The linker script leaves one program header unused. It becomes a segment right behind the image's last byte, whose
//! contents are appended to the file; the kernel's `symbols` module states their layout. Nothing else moves, so
//! the addresses in the table are right.

use anyhow::{Context, Result, bail};
use object::read::elf::{FileHeader, ProgramHeader, Sym};
use object::{Endianness, elf};
use std::fs;
use std::path::Path;

/// "PSYM", little-endian.
const MAGIC: u32 = 0x4d59_5350;
/// The symbol that ends the image, where the loader is to put the table.
const IMAGE_END: &[u8] = b"__image_end";
/// The symbol that starts it.
const IMAGE_START: &[u8] = b"__image_start";
/// Bytes of a program header.
const HEADER_SIZE: usize = size_of::<elf::ProgramHeader64<Endianness>>();
const PAGE_SIZE: usize = 4096;

/// What the linked file says.
struct Linked {
    /// Address and name of each function, by address.
    functions: Vec<(u64, Vec<u8>)>,
    image_start: u64,
    image_end: u64,
    /// Link address less load address.
    base: u64,
    /// Where the unused program header lies in the file.
    spare_header: usize,
}

/// Appends the table to the kernel at `path`.
///
/// # Errors
/// The file is not a kernel, or has the table already.
pub fn embed(path: &Path) -> Result<()> {
    let mut file = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let linked = read(&file).with_context(|| format!("{} is not a kernel", path.display()))?;
    let table = table(&linked)?;
    file.resize(file.len().next_multiple_of(PAGE_SIZE), 0);
    let header = elf::ProgramHeader64::<Endianness> {
        p_type: word32(elf::PT_LOAD),
        p_flags: word32(elf::PF_R),
        p_offset: word64(file.len() as u64),
        p_vaddr: word64(linked.image_end),
        p_paddr: word64(linked.image_end - linked.base),
        p_filesz: word64(table.len() as u64),
        p_memsz: word64(table.len() as u64),
        p_align: word64(PAGE_SIZE as u64),
    };
    file[linked.spare_header..][..HEADER_SIZE].copy_from_slice(object::pod::bytes_of(&header));
    file.extend_from_slice(&table);
    fs::write(path, file).with_context(|| format!("cannot write {}", path.display()))
}

fn word32(value: u32) -> object::U32<Endianness> {
    object::U32::new(Endianness::Little, value)
}

fn word64(value: u64) -> object::U64<Endianness> {
    object::U64::new(Endianness::Little, value)
}

fn read(file: &[u8]) -> Result<Linked> {
    let header = elf::FileHeader64::<Endianness>::parse(file)?;
    let endian = header.endian()?;
    let segments = header.program_headers(endian, file)?;
    let Some(spare) = segments
        .iter()
        .position(|s| s.p_type(endian) == elf::PT_NULL)
    else {
        bail!("there is no unused program header");
    };
    let Some(first) = segments.iter().find(|s| s.p_type(endian) == elf::PT_LOAD) else {
        bail!("there is nothing to load");
    };
    let symbols = header
        .sections(endian, file)?
        .symbols(endian, file, elf::SHT_SYMTAB)?;
    let mut functions = Vec::new();
    let (mut image_start, mut image_end) = (None, None);
    for symbol in symbols.iter() {
        let name = symbol.name(endian, symbols.strings())?;
        let address = symbol.st_value(endian);
        match name {
            IMAGE_START => image_start = Some(address),
            IMAGE_END => image_end = Some(address),
            _ if symbol.st_type() == elf::STT_FUNC || is_label(symbol, name) => {
                functions.push((address, name.to_vec()));
            }
            _ => {}
        }
    }
    let (Some(image_start), Some(image_end)) = (image_start, image_end) else {
        bail!("it lacks the symbols of the linker script");
    };
    functions.retain(|(address, _)| (image_start..image_end).contains(address));
    functions.sort();
    functions.dedup_by_key(|(address, _)| *address);
    Ok(Linked {
        functions,
        image_start,
        image_end,
        base: first.p_vaddr(endian) - first.p_paddr(endian),
        spare_header: header.e_phoff(endian) as usize + spare * HEADER_SIZE,
    })
}

/// Whether a symbol is an entry point written in assembly, which has no type.
fn is_label(symbol: &elf::Sym64<Endianness>, name: &[u8]) -> bool {
    symbol.st_type() == elf::STT_NOTYPE && name.ends_with(b"_entry")
}

fn table(linked: &Linked) -> Result<Vec<u8>> {
    let mut names = Vec::new();
    let mut entries = Vec::new();
    for (address, name) in &linked.functions {
        let offset = u32::try_from(address - linked.image_start)?;
        entries.extend_from_slice(&offset.to_le_bytes());
        entries.extend_from_slice(&u32::try_from(names.len())?.to_le_bytes());
        names.extend_from_slice(name);
        names.push(0);
    }
    let size = 12 + entries.len() + names.len();
    let mut table = Vec::with_capacity(size);
    for word in [
        MAGIC,
        u32::try_from(size)?,
        u32::try_from(linked.functions.len())?,
    ] {
        table.extend_from_slice(&word.to_le_bytes());
    }
    table.extend_from_slice(&entries);
    table.extend_from_slice(&names);
    Ok(table)
}
