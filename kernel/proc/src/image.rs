//! The loader of execve: builds a new address space from a file, ready to be entered.
//!
//! Nothing of the caller changes here. The new space is complete, stack included, before `exec` commits to it; an error
//! leaves the old program as it was.

use alloc::sync::Arc;
use alloc::vec::Vec;

use ::vm::space::{MapArgs, Source};
use ::vm::{EntryFlags, FaultError, MapProt as Prot, NoMemory, ObjectRef, Space, VmError};
use elfload::stack::Strings;
use elfload::{AuxInfo, ElfError, Header, Image, PAGE, Segment, StackError, StackImage};
use mem::vm;
use task::account::charge_large;
use vfs::{ExecFile, FsError};

use super::layout::Layout;
use super::{oom, vdso, with_fs, with_space};

/// Most scripts on the way to a program, each the interpreter of the one before (execve(2): ELOOP beyond).
const DEPTH_MAX: usize = 5;
/// Bytes of stack that are mapped at the start, beyond the first frame; the stack grows from there.
const STACK_SLACK: u64 = 128 << 10;

/// Why a program could not be loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExecError {
    /// The file, or an interpreter, cannot be opened or read.
    File(FsError),
    /// The file has no known format, or is malformed.
    Format(ElfError),
    /// A script has no usable interpreter.
    Script,
    /// Too many scripts interpret one another.
    Loop,
    /// The interpreter of a dynamic program is not an ELF file.
    BadInterp,
    /// Arguments and environment exceed the limit.
    TooBig,
    /// No memory, or the program takes more than RLIMIT_AS or RLIMIT_DATA.
    NoMemory,
    /// The image does not fit the address space.
    Space,
}

impl From<FsError> for ExecError {
    fn from(e: FsError) -> Self {
        ExecError::File(e)
    }
}

impl From<StackError> for ExecError {
    fn from(e: StackError) -> Self {
        match e {
            StackError::TooBig => ExecError::TooBig,
            StackError::NoMemory => ExecError::NoMemory,
        }
    }
}

impl From<VmError> for ExecError {
    fn from(e: VmError) -> Self {
        match e {
            VmError::NoMemory => ExecError::NoMemory,
            _ => ExecError::Space,
        }
    }
}

impl From<NoMemory> for ExecError {
    fn from(_: NoMemory) -> Self {
        ExecError::NoMemory
    }
}

impl From<ElfError> for ExecError {
    fn from(e: ElfError) -> Self {
        match e {
            ElfError::NoMemory => ExecError::NoMemory,
            e => ExecError::Format(e),
        }
    }
}

/// What the caller wants to run.
pub struct Request {
    /// The file, already opened and checked for execute permission.
    pub file: ExecFile,
    /// The name that it was called by: AT_EXECFN, and an argument of a script's interpreter.
    pub name: Vec<u8>,
    /// Whether nothing can be opened by that name once the program runs: then it must not be a script.
    pub hidden: bool,
    /// The arguments; for a script, the interpreter is put in front.
    pub argv: Strings,
    /// The environment.
    pub envp: Strings,
    /// Most bytes that the arguments may take, given this environment.
    pub limit: usize,
}

/// A program whose file has been found.
pub struct Found {
    request: Request,
    image: Image,
}

/// How a program is to be loaded; depends on the file that was found.
pub struct Manner {
    /// RLIMIT_STACK in bytes, which moves the mappings' base.
    pub stack_limit: u64,
    /// RLIMIT_AS in bytes.
    pub space_limit: u64,
    /// RLIMIT_DATA in bytes.
    pub data_limit: u64,
    /// Whether this process wants its addresses randomised (personality(2)).
    pub shake: bool,
    /// The auxiliary vector's values; user and group ids are those after any set-id bits.
    pub aux: AuxInfo,
}

/// A program that is ready to run.
pub struct Loaded {
    /// Its address space.
    pub space: Arc<Space>,
    /// The file that runs (for a script, its interpreter): /proc/PID/exe.
    pub file: ExecFile,
    /// Whether the caller may read that file and the dynamic linker.
    pub readable: bool,
    /// The address of the first instruction: the dynamic linker's, if there is one.
    pub entry: u64,
    /// Stack pointer at entry.
    pub sp: u64,
    /// Addresses that /proc and brk(2) need.
    pub places: Places,
}

/// Addresses that are needed after loading. Ranges are a start and an end, which is one past the last byte.
#[derive(Clone, Copy, Debug, Default)]
pub struct Places {
    /// Code.
    pub code: (u64, u64),
    /// Initialised data.
    pub data: (u64, u64),
    /// Where the heap starts.
    pub brk: u64,
    /// The stack pointer at entry.
    pub stack: u64,
    /// Argument strings.
    pub args: (u64, u64),
    /// Environment strings.
    pub env: (u64, u64),
    /// Where the auxiliary vector starts.
    pub auxv: u64,
}

/// Follows scripts from `request` to the ELF file that is to run, and checks that. Reads files: sleeps.
///
/// # Errors
/// [`ExecError`], but not `BadInterp` or `Space`, which [`Found::load`] returns.
pub fn find(mut request: Request) -> Result<Found, ExecError> {
    let image = resolve(&mut request)?;
    Ok(Found { request, image })
}

impl Found {
    /// The file that is going to run. Its own set-id bits count and a script's do not: what the interpreter opens later
    /// need not be the script that was checked.
    pub fn file(&self) -> &ExecFile {
        &self.request.file
    }

    /// Builds the address space, which no CPU has entered. Reads files and waits for memory: sleeps.
    ///
    /// # Errors
    /// [`ExecError`], but not `Script` or `Loop`. The new space has been emptied.
    pub fn load(self, manner: &Manner) -> Result<Loaded, ExecError> {
        let Found { request, image } = self;
        let interp = open_interp(&request.file, &image)?;
        let readable = request.file.is_readable()
            && interp.as_ref().is_none_or(|(file, _)| file.is_readable());
        let layout = Layout::choose(random_words(), manner.stack_limit, manner.shake);
        let space = Space::new(vm())?;
        // As for Linux, it belongs to the process, though it is kept with its memory.
        space.forbid_superpages(with_space(|old| old.forbids_superpages()) == Some(true));
        let built = build(&space, &request, manner, (&image, interp), &layout);
        if built.is_err() {
            space.clear(vm());
        }
        let (entry, sp, places) = built?;
        Ok(Loaded {
            space,
            file: request.file,
            readable,
            entry,
            sp,
            places,
        })
    }
}

/// Fills the new space; returns the entry point (the linker's if there is one), the stack pointer and the addresses that are
/// needed later. After an error the space may have mappings, which the caller removes.
fn build(
    space: &Space,
    request: &Request,
    manner: &Manner,
    (image, interp): (&Image, Option<(ExecFile, Image)>),
    layout: &Layout,
) -> Result<(u64, u64, Places), ExecError> {
    let (mut plan, mut aux) = (Plan::default(), manner.aux);
    let mut layout = *layout;
    if vdso::is_there() {
        layout.stack_top -= vdso::LEN;
        aux.sysinfo_ehdr = layout.stack_top;
    }
    let layout = &layout;
    space.set_mmap_base(layout.mmap_base);

    let base = base_for(image, layout)?;
    let places = plan.image(request.file.object()?, image, base)?;
    aux.entry = image.entry.wrapping_add(base);
    aux.phdr = image.phdr_vaddr.map_or(0, |v| v.wrapping_add(base));
    aux.phnum = image.phnum as u64;
    let mut entry = aux.entry;
    if let Some((file, linker)) = &interp {
        let (first, end) = image.extent();
        let at = linker_base(linker, (first + base, end + base), layout)?;
        plan.image(file.object()?, linker, at)?;
        aux.base = at;
        entry = linker.entry.wrapping_add(at);
    }
    drivers::random::fill(&mut aux.random);

    let stack = StackImage::build(
        layout.stack_top,
        &request.argv,
        &request.envp,
        &request.name,
        &aux,
    )?;
    let _charge = charge_large(stack.bytes.capacity());
    plan.stack(layout.stack_top, stack.sp)?;
    plan.carry_out(space)?;
    within_limits(space, manner)?;
    write_all(space, stack.sp, &stack.bytes)?;
    let brk = layout.brk(image.brk().wrapping_add(base));
    let places = Places {
        brk,
        stack: stack.sp,
        args: stack.args,
        env: stack.env,
        auxv: stack.auxv,
        ..places
    };
    Ok((entry, stack.sp, places))
}

/// Follows up to [`DEPTH_MAX`] scripts to an ELF file and checks it; `request` then has that file and the name and arguments for
/// it.
fn resolve(request: &mut Request) -> Result<Image, ExecError> {
    for _ in 0..=DEPTH_MAX {
        let mut first = [0u8; elfload::script::LINE_MAX];
        let got = request.file.read_at(0, &mut first)?;
        let first = &first[..got];
        match elfload::script::parse(first) {
            None => return read_image(&request.file, first),
            Some(None) => return Err(ExecError::Script),
            // As in Linux: the interpreter would not find the script.
            Some(Some(_)) if request.hidden => return Err(FsError::NotFound.into()),
            Some(Some(script)) => {
                let name = core::mem::take(&mut request.name);
                let front: [&[u8]; 3] = [script.interp, script.arg.unwrap_or(&name), &name];
                let front = if script.arg.is_some() {
                    &front[..]
                } else {
                    &front[..2]
                };
                request.argv.replace_first(front, request.limit)?;
                request.file = open(script.interp)?;
                request.name = copy(script.interp)?;
            }
        }
    }
    Err(ExecError::Loop)
}

/// Opens a path for execution, relative to the working directory of the current process.
///
/// # Errors
/// The file cannot be opened, or may not be executed.
pub fn open(path: &[u8]) -> Result<ExecFile, FsError> {
    with_fs(|fs| ExecFile::open(fs, path)).ok_or(FsError::NotFound)?
}

/// Reads and checks the headers; `first` holds the file's first bytes.
fn read_image(file: &ExecFile, first: &[u8]) -> Result<Image, ExecError> {
    let header = Header::parse(first)?;
    let len = file.size();
    if !header.table_in(len) {
        return Err(ExecError::Format(ElfError::BadHeaders));
    }
    let mut table = zeroed(header.table_len())?;
    read_exact(file, header.phoff, &mut table)?;
    Ok(Image::parse(&header, &table, len)?)
}

/// Opens and checks the dynamic linker, if the image names one. Its path may be relative to the working directory, as in Linux.
fn open_interp(file: &ExecFile, image: &Image) -> Result<Option<(ExecFile, Image)>, ExecError> {
    let Some((offset, len)) = image.interp else {
        return Ok(None);
    };
    let mut path = zeroed(len)?;
    read_exact(file, offset, &mut path)?;
    let linker = open(elfload::image::interp_path(&path)?)?;
    let mut first = [0u8; elfload::image::HEADER_LEN];
    let got = linker.read_at(0, &mut first)?;
    match read_image(&linker, &first[..got]) {
        Ok(image) => Ok(Some((linker, image))),
        Err(ExecError::Format(_)) => Err(ExecError::BadInterp),
        Err(e) => Err(e),
    }
}

/// The number that is added to the image's addresses: 0 unless it is relocatable. `Space` if it would reach into the stack's
/// range.
fn base_for(image: &Image, layout: &Layout) -> Result<u64, ExecError> {
    let (first, end) = image.extent();
    if !image.relocatable {
        return Ok(0);
    }
    let base = layout.dyn_base(first, image.align);
    match base.checked_add(end) {
        Some(end) if end <= layout.program_end() => Ok(base),
        _ => Err(ExecError::Space),
    }
}

/// The number that is added to the linker's addresses, for a program that takes `from..to`: the linker goes where an
/// ordinary mapping would go or, if the program is there, below the program. 0 for a linker that is not relocatable.
fn linker_base(linker: &Image, (from, to): (u64, u64), layout: &Layout) -> Result<u64, ExecError> {
    if !linker.relocatable {
        return Ok(0);
    }
    let (first, end) = linker.extent();
    let len = end - first;
    let below = |top: u64| top.checked_sub(len);
    below(layout.mmap_base)
        .filter(|&at| at >= to || at + len <= from)
        .or_else(|| below(from))
        .and_then(|at| at.checked_sub(first))
        .ok_or(ExecError::Space)
}

/// The mappings of a new space, gathered so that its map changes once.
#[derive(Default)]
struct Plan<'a> {
    maps: Vec<MapArgs<'a>>,
    /// Parts of file pages that belong to a bss and are cleared.
    zero: Vec<(u64, u64)>,
}

impl<'a> Plan<'a> {
    /// Adds all segments at `base`; returns the addresses of code, from the first executable segment to the last, and of data,
    /// the file's bytes of the last segment that is writable and not executable.
    fn image(
        &mut self,
        object: &'a ObjectRef,
        image: &Image,
        base: u64,
    ) -> Result<Places, ExecError> {
        // Two mappings for each segment, so that `push` does not allocate, the stack's and one above it.
        let room = 2 * image.segments.len() + 2;
        self.maps
            .try_reserve(room)
            .map_err(|_| ExecError::NoMemory)?;
        let mut places = Places::default();
        for (i, segment) in image.segments.iter().enumerate() {
            let next = image.segments.get(i + 1).map_or(u64::MAX, |s| s.vaddr);
            self.segment(object, segment, base, next)?;
            let start = segment.vaddr + base;
            let end = start + segment.file_len;
            if segment.exec {
                places.code = if places.code == (0, 0) {
                    (start, end)
                } else {
                    (places.code.0, end)
                };
            } else if segment.write {
                places.data = (start, end);
            }
        }
        Ok(places)
    }

    /// Adds a segment, as a mapping of its file pages and one of the bss behind them. The next segment's bytes begin at `next`
    /// (without `base`), so that clearing the bss does not reach into them; u64::MAX if there is none. `self.maps` has room for
    /// two more.
    fn segment(
        &mut self,
        object: &'a ObjectRef,
        s: &Segment,
        base: u64,
        next: u64,
    ) -> Result<(), ExecError> {
        let prot = [
            (s.read, Prot::READ),
            (s.write, Prot::WRITE),
            (s.exec, Prot::EXEC),
        ]
        .into_iter()
        .fold(
            Prot::empty(),
            |all, (on, prot)| if on { all | prot } else { all },
        );
        let start = s.page_start() + base;
        let file_end = if s.file_len > 0 {
            s.file_page_end() + base
        } else {
            start
        };
        let end = s.page_end() + base;
        if s.file_len > 0 {
            self.maps.push(MapArgs {
                source: Source::Object(object, s.offset & !(PAGE - 1)),
                ..fixed(start, file_end, prot)
            });
        }
        if end > file_end {
            self.maps.push(fixed(file_end, end, prot));
        }
        // The rest of the last file page belongs to the bss. It is cleared only where it can be written, as in Linux.
        let zero_from = s.vaddr + s.file_len + base;
        let zero_to = file_end.min(next.saturating_add(base));
        if s.mem_len > s.file_len && s.file_len > 0 && zero_from < zero_to && s.write {
            self.zero.try_reserve(1).map_err(|_| ExecError::NoMemory)?;
            self.zero.push((zero_from, zero_to));
        }
        Ok(())
    }

    /// Adds the stack, which ends at `top` and whose first frame begins at `sp`, and directly above it, so that both have the
    /// same page table, the kernel's own object, if there is one.
    fn stack(&mut self, top: u64, sp: u64) -> Result<(), ExecError> {
        let start = (sp & !(PAGE - 1)) - STACK_SLACK;
        let flags = EntryFlags::GROWSDOWN | EntryFlags::STACK;
        self.maps.try_reserve(2).map_err(|_| ExecError::NoMemory)?;
        self.maps.push(MapArgs {
            flags,
            ..fixed(start, top, Prot::READ | Prot::WRITE)
        });
        if vdso::is_there() {
            self.maps.push(MapArgs {
                source: Source::Special,
                ..fixed(top, top + vdso::LEN, Prot::READ | Prot::EXEC)
            });
        }
        Ok(())
    }

    /// Maps everything and clears the parts that belong to a bss.
    fn carry_out(mut self, space: &Space) -> Result<(), ExecError> {
        static ZEROES: [u8; PAGE as usize] = [0; PAGE as usize];
        // The sort is stable: of two segments that share a page, the later one wins.
        self.maps.sort_by_key(|args| args.addr);
        match space.map_all(vm(), &self.maps) {
            // Some overlap: segments that share a page, say. Nothing has been mapped; one by one, each replaces what is there.
            Err(VmError::Exists) => {
                for args in &self.maps {
                    space.map(vm(), args)?;
                }
            }
            other => other?,
        }
        for (from, to) in self.zero {
            for at in (from..to).step_by(ZEROES.len()) {
                let n = ZEROES.len().min((to - at) as usize);
                write_all(space, at, &ZEROES[..n])?;
            }
        }
        Ok(())
    }
}

/// Checks RLIMIT_AS and RLIMIT_DATA for what a new program has mapped: `NoMemory` beyond them.
fn within_limits(space: &Space, manner: &Manner) -> Result<(), ExecError> {
    if (manner.space_limit, manner.data_limit) == (u64::MAX, u64::MAX) {
        return Ok(());
    }
    let usage = space.usage(vm());
    if usage.mapped * PAGE > manner.space_limit || usage.data * PAGE > manner.data_limit {
        return Err(ExecError::NoMemory);
    }
    Ok(())
}

/// A mapping at exactly `start..end`.
fn fixed(start: u64, end: u64, prot: Prot) -> MapArgs<'static> {
    MapArgs::anon(end - start, prot).at(start)
}

/// Writes to a new space. Waits for memory, as a fault of the program would. After an error a part may have been written.
fn write_all(space: &Space, mut at: u64, mut bytes: &[u8]) -> Result<(), ExecError> {
    let mut tries = 0;
    while !bytes.is_empty() {
        match space.write_at(vm(), at, bytes) {
            Ok(n) => (at, bytes) = (at + n as u64, &bytes[n..]),
            Err(FaultError::NoMemory) if oom::reclaim_for(tries) => tries += 1,
            Err(FaultError::NoMemory) => return Err(ExecError::NoMemory),
            Err(_) => return Err(ExecError::Space),
        }
    }
    Ok(())
}

fn zeroed(len: usize) -> Result<Vec<u8>, ExecError> {
    let mut v = Vec::new();
    v.try_reserve_exact(len).map_err(|_| ExecError::NoMemory)?;
    v.resize(len, 0);
    Ok(v)
}

fn copy(bytes: &[u8]) -> Result<Vec<u8>, ExecError> {
    let mut v = zeroed(bytes.len())?;
    v.copy_from_slice(bytes);
    Ok(v)
}

fn read_exact(file: &ExecFile, offset: u64, buf: &mut [u8]) -> Result<(), ExecError> {
    match file.read_at(offset, buf)? {
        n if n == buf.len() => Ok(()),
        _ => Err(ExecError::Format(ElfError::Truncated)),
    }
}

/// Four random words for the layout.
fn random_words() -> [u64; 4] {
    let mut bytes = [0u8; 32];
    drivers::random::fill(&mut bytes);
    core::array::from_fn(|i| {
        bytes[8 * i..8 * i + 8]
            .iter()
            .fold(0, |word, &b| word << 8 | u64::from(b))
    })
}
