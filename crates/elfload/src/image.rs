//! ELF headers, checked.

use alloc::vec::Vec;

use elf::abi::{ELFCLASS64, ELFDATA2LSB, EM_X86_64, ET_DYN, ET_EXEC, PF_R, PF_W, PF_X};
use elf::abi::{PT_GNU_STACK, PT_INTERP, PT_LOAD, PT_PHDR};
use elf::endian::LittleEndian;
use elf::file::{Class, FileHeader, parse_ident};
use elf::parse::ParsingTable;
use elf::segment::ProgramHeader;

use crate::{PAGE, USER_END};

/// Bytes of an ELF64 file header.
pub const HEADER_LEN: usize = 64;
/// Bytes of one ELF64 program header.
pub const PHDR_LEN: usize = 56;
/// Most program headers that are accepted: as many as fit into 64 KiB, Linux's own limit.
pub const PHDR_MAX: usize = 65536 / PHDR_LEN;
/// Longest interpreter path, its NUL included (PATH_MAX).
const INTERP_MAX: u64 = 4096;

/// What is wrong with a file. Every case becomes ENOEXEC, but logs and tests may name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElfError {
    /// Not an ELF file at all: too short, or without the magic number.
    NotElf,
    /// For another machine, class or byte order, or neither executable nor shared.
    Foreign,
    /// The program headers are absent, too many, of the wrong size or outside the file.
    BadHeaders,
    /// A segment lies outside the file.
    Truncated,
    /// A segment's addresses are impossible: they wrap, leave user space, or differ from its file offset modulo the
    /// page size.
    BadSegment,
    /// Two segments contain the same byte, or they are not in ascending order.
    Overlap,
    /// There is nothing to load.
    Empty,
    /// The interpreter's path is too long, empty or not terminated.
    BadInterp,
    /// No memory for the list of segments.
    NoMemory,
}

/// The fields of the file header that locate the program headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Position-independent: the loader chooses the base.
    pub relocatable: bool,
    /// Entry point, before any base is added.
    pub entry: u64,
    /// File offset of the program headers.
    pub phoff: u64,
    /// Number of program headers; 1..=[`PHDR_MAX`].
    pub phnum: usize,
}

impl Header {
    /// Checks the first bytes of a file; `first` should hold [`HEADER_LEN`] bytes or more.
    pub fn parse(first: &[u8]) -> Result<Header, ElfError> {
        if first.len() < HEADER_LEN || first[..4] != elf::abi::ELFMAGIC {
            return Err(ElfError::NotElf);
        }
        // Class and byte order are checked first, because the parser below relies on them.
        if first[elf::abi::EI_CLASS] != ELFCLASS64 || first[elf::abi::EI_DATA] != ELFDATA2LSB {
            return Err(ElfError::Foreign);
        }
        let ident = parse_ident::<LittleEndian>(first).map_err(|_| ElfError::Foreign)?;
        let tail = &first[elf::abi::EI_NIDENT..HEADER_LEN];
        let h: FileHeader<LittleEndian> =
            FileHeader::parse_tail(ident, tail).map_err(|_| ElfError::NotElf)?;
        if h.e_machine != EM_X86_64 || (h.e_type != ET_EXEC && h.e_type != ET_DYN) {
            return Err(ElfError::Foreign);
        }
        let phnum = h.e_phnum as usize;
        if h.e_phentsize as usize != PHDR_LEN || phnum == 0 || phnum > PHDR_MAX {
            return Err(ElfError::BadHeaders);
        }
        Ok(Header {
            relocatable: h.e_type == ET_DYN,
            entry: h.e_entry,
            phoff: h.e_phoff,
            phnum,
        })
    }

    /// Bytes of the program header table.
    pub fn table_len(&self) -> usize {
        self.phnum * PHDR_LEN
    }

    /// Whether the table lies within a file of `file_len` bytes.
    pub fn table_in(&self, file_len: u64) -> bool {
        self.phoff
            .checked_add(self.table_len() as u64)
            .is_some_and(|end| end <= file_len)
    }
}

/// One loadable segment; addresses before any base is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// First address, not necessarily on a page boundary.
    pub vaddr: u64,
    /// File offset of its bytes; equal to `vaddr` modulo the page size, unless `file_len` is 0.
    pub offset: u64,
    /// Bytes that are read from the file; at most `mem_len`.
    pub file_len: u64,
    /// Bytes in memory; the rest is zero.
    pub mem_len: u64,
    /// May be read.
    pub read: bool,
    /// May be written.
    pub write: bool,
    /// May be executed.
    pub exec: bool,
}

impl Segment {
    /// First address of its first page.
    pub fn page_start(&self) -> u64 {
        self.vaddr & !(PAGE - 1)
    }

    /// One past its last page that holds file bytes.
    pub fn file_page_end(&self) -> u64 {
        (self.vaddr + self.file_len).next_multiple_of(PAGE)
    }

    /// One past its last page.
    pub fn page_end(&self) -> u64 {
        (self.vaddr + self.mem_len).next_multiple_of(PAGE)
    }
}

/// A file that can be loaded.
#[derive(Clone, Debug)]
pub struct Image {
    /// Position-independent.
    pub relocatable: bool,
    /// Entry point, before any base is added.
    pub entry: u64,
    /// Address of the program headers in memory, if some segment holds them.
    pub phdr_vaddr: Option<u64>,
    /// Number of program headers.
    pub phnum: usize,
    /// In ascending order, not overlapping, at least one.
    pub segments: Vec<Segment>,
    /// File range of the interpreter's path, its NUL included.
    pub interp: Option<(u64, usize)>,
    /// Whether the program requests an executable stack.
    pub exec_stack: bool,
    /// The largest alignment that a segment requests; a power of two, at least a page.
    pub align: u64,
}

impl Image {
    /// Checks the program headers (`table` holds exactly [`Header::table_len`] bytes) against a
    /// file of `file_len` bytes.
    pub fn parse(header: &Header, table: &[u8], file_len: u64) -> Result<Image, ElfError> {
        if table.len() != header.table_len() || !header.table_in(file_len) {
            return Err(ElfError::BadHeaders);
        }
        let mut image = Image {
            relocatable: header.relocatable,
            entry: header.entry,
            phdr_vaddr: None,
            phnum: header.phnum,
            segments: Vec::new(),
            interp: None,
            exec_stack: false,
            align: PAGE,
        };
        let headers: ParsingTable<'_, LittleEndian, ProgramHeader> =
            ParsingTable::new(LittleEndian, Class::ELF64, table);
        for i in 0..header.phnum {
            let p = headers.get(i).map_err(|_| ElfError::BadHeaders)?;
            image.take(&p, header, file_len)?;
        }
        if image.segments.is_empty() {
            return Err(ElfError::Empty);
        }
        Ok(image)
    }

    fn take(&mut self, p: &ProgramHeader, header: &Header, file_len: u64) -> Result<(), ElfError> {
        match p.p_type {
            PT_LOAD if p.p_memsz > 0 => self.take_load(p, header, file_len),
            PT_INTERP => {
                let end = p
                    .p_offset
                    .checked_add(p.p_filesz)
                    .ok_or(ElfError::Truncated)?;
                if p.p_filesz < 2 || p.p_filesz > INTERP_MAX {
                    return Err(ElfError::BadInterp);
                }
                if end > file_len {
                    return Err(ElfError::Truncated);
                }
                self.interp = Some((p.p_offset, p.p_filesz as usize));
                Ok(())
            }
            PT_GNU_STACK => {
                self.exec_stack = p.p_flags & PF_X != 0;
                Ok(())
            }
            PT_PHDR => {
                self.phdr_vaddr = Some(p.p_vaddr);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn take_load(
        &mut self,
        p: &ProgramHeader,
        header: &Header,
        file_len: u64,
    ) -> Result<(), ElfError> {
        let end = p
            .p_vaddr
            .checked_add(p.p_memsz)
            .ok_or(ElfError::BadSegment)?;
        let file_end = p
            .p_offset
            .checked_add(p.p_filesz)
            .ok_or(ElfError::Truncated)?;
        if file_end > file_len {
            return Err(ElfError::Truncated);
        }
        // For a position-independent image the base is added later, and the sum must fit as well.
        let room = if self.relocatable {
            USER_END / 2
        } else {
            USER_END
        };
        let congruent = p.p_filesz == 0 || p.p_vaddr % PAGE == p.p_offset % PAGE;
        if end > room || p.p_filesz > p.p_memsz || !congruent {
            return Err(ElfError::BadSegment);
        }
        if p.p_align > 1 && !p.p_align.is_power_of_two() {
            return Err(ElfError::BadSegment);
        }
        if self
            .segments
            .last()
            .is_some_and(|last| last.vaddr + last.mem_len > p.p_vaddr)
        {
            return Err(ElfError::Overlap);
        }
        let in_file = p.p_offset..file_end;
        if self.phdr_vaddr.is_none() && in_file.contains(&header.phoff) {
            self.phdr_vaddr = Some(p.p_vaddr + (header.phoff - p.p_offset));
        }
        self.align = self.align.max(p.p_align.min(1 << 30));
        self.segments
            .try_reserve(1)
            .map_err(|_| ElfError::NoMemory)?;
        self.segments.push(Segment {
            vaddr: p.p_vaddr,
            offset: p.p_offset,
            file_len: p.p_filesz,
            mem_len: p.p_memsz,
            read: p.p_flags & PF_R != 0,
            write: p.p_flags & PF_W != 0,
            exec: p.p_flags & PF_X != 0,
        });
        Ok(())
    }

    /// First and one-past-last page address of all segments together.
    pub fn extent(&self) -> (u64, u64) {
        let first = self.segments.first().map_or(0, Segment::page_start);
        let end = self.segments.last().map_or(0, Segment::page_end);
        (first, end)
    }

    /// The start of the heap: the page after the last segment, before any base is added.
    pub fn brk(&self) -> u64 {
        self.extent().1
    }
}

/// The interpreter's path, from the bytes of its segment: up to the first NUL.
pub fn interp_path(bytes: &[u8]) -> Result<&[u8], ElfError> {
    match bytes.iter().position(|&b| b == 0) {
        Some(n) if n > 0 => Ok(&bytes[..n]),
        _ => Err(ElfError::BadInterp),
    }
}
