//! What the boot loader passes: memory map, command line, initial RAM disk, RSDP.
//!
//! It all lies in memory that is about to be allocated for something else, so it is copied at once. The loader's structures
//! are trusted to be where its pointers say, below 4 GiB.
use super::super::memory;
use crate::x86::lock::BootLock;

/// The most entries of the memory map that are copied.
pub(super) const MAX_ENTRIES: usize = 64;
/// The most bytes of the command line that are copied, as in Linux.
pub(super) const MAX_CMDLINE: usize = 2048;

/// Types of entries of the memory map: RAM, ACPI tables, ACPI non-volatile storage. Memory of other types is not used.
pub(super) const RAM: u32 = 1;
pub(super) const ACPI_TABLES: u32 = 3;
pub(super) const ACPI_STORAGE: u32 = 4;

const MAGIC: u32 = 0x336e_c578;
/// The end of the memory that the boot page tables map.
const REACH: u64 = 1 << 32;

#[repr(C)]
#[derive(Clone, Copy)]
struct StartInfo {
    magic: u32,
    version: u32,
    flags: u32,
    modules: u32,
    module_list: u64,
    cmdline: u64,
    rsdp: u64,
    memory_map: u64,
    memory_map_entries: u32,
    reserved: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Module {
    address: u64,
    size: u64,
    cmdline: u64,
    reserved: u64,
}

/// An entry of the memory map.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct MemoryEntry {
    pub(super) start: u64,
    pub(super) size: u64,
    pub(super) kind: u32,
    reserved: u32,
}

/// The copy of what the boot loader passed.
pub(super) struct Handover {
    entries: [MemoryEntry; MAX_ENTRIES],
    count: usize,
    cmdline: [u8; MAX_CMDLINE],
    cmdline_length: usize,
    /// Physical start and end of the initial RAM disk.
    pub(super) initrd: Option<(u64, u64)>,
    /// Physical address of the RSDP; 0 if the loader passed none.
    pub(super) rsdp: u64,
}

/// Reads a value of the loader's; `None` if the boot page tables do not map it.
fn read<T: Copy>(physical: u64) -> Option<T> {
    if physical == 0 || physical >= REACH - size_of::<T>() as u64 {
        return None;
    }
    // SAFETY: mapped by the boot tables, and every `T` used here is plain integers.
    Some(unsafe { memory::direct(physical).cast::<T>().read_unaligned() })
}

impl Handover {
    /// The initial value of the static.
    pub(super) const fn empty() -> Self {
        Self {
            entries: [MemoryEntry {
                start: 0,
                size: 0,
                kind: 0,
                reserved: 0,
            }; MAX_ENTRIES],
            count: 0,
            cmdline: [0; MAX_CMDLINE],
            cmdline_length: 0,
            initrd: None,
            rsdp: 0,
        }
    }

    /// Copies the structure at `physical` and what it points to; false if there is none, or it has no memory map. Entries and
    /// bytes for which there is no room are left out. The first module is the initial RAM disk, which is not copied.
    pub(super) fn fill(&mut self, physical: u64) -> bool {
        let Some(info) = read::<StartInfo>(physical) else {
            return false;
        };
        if info.magic != MAGIC || info.version < 1 {
            return false;
        }
        let step = size_of::<MemoryEntry>() as u64;
        for i in 0..u64::from(info.memory_map_entries) {
            if let Some(entry) = read::<MemoryEntry>(info.memory_map + i * step)
                && self.count < MAX_ENTRIES
            {
                self.entries[self.count] = entry;
                self.count += 1;
            }
        }
        self.entries[..self.count].sort_unstable_by_key(|entry| entry.start);
        while let Some(byte @ 1..) = read::<u8>(info.cmdline + self.cmdline_length as u64)
            && info.cmdline != 0
            && self.cmdline_length < MAX_CMDLINE
        {
            self.cmdline[self.cmdline_length] = byte;
            self.cmdline_length += 1;
        }
        if info.modules > 0
            && let Some(module) = read::<Module>(info.module_list)
            && module.size > 0
        {
            self.initrd = Some((module.address, module.address + module.size));
        }
        self.rsdp = info.rsdp;
        self.count > 0
    }

    /// The memory map, sorted by start address.
    pub(super) fn memory(&self) -> &[MemoryEntry] {
        &self.entries[..self.count]
    }

    /// The command line.
    pub(super) fn cmdline(&self) -> &[u8] {
        &self.cmdline[..self.cmdline_length]
    }
}

/// The copy. Locked; written once, at boot.
pub(super) static HANDOVER: BootLock<Handover> = BootLock::new(Handover::empty());

/// The physical ranges of RAM. Takes the lock for each.
pub(crate) fn ram() -> impl Iterator<Item = (u64, u64)> {
    let at = |n: usize| {
        let handover = HANDOVER.lock();
        let entry = handover.memory().get(n)?;
        Some((entry.kind, entry.start, entry.start + entry.size))
    };
    (0..)
        .map_while(at)
        .filter_map(|(kind, start, end)| (kind == RAM).then_some((start, end)))
}
