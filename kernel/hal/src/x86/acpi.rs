//! The firmware's description of the machine: processors, interrupt controllers, power registers.
//!
//! The `acpi` crate has the layout of RSDP, table headers and MADT. Finding the tables, and reading FADT, SRAT and SLIT, is
//! done here, on bytes (the decision record says why). Tables are read in place, before other CPUs start.
use core::mem::size_of;
use core::slice;

use ::acpi::madt::{InterruptSourceOverrideEntry, IoApicEntry, LocalApicEntry, LocalX2ApicEntry};
use ::acpi::rsdp::Rsdp;
use ::acpi::sdt::SdtHeader;

use super::memory;
use crate::limits::MAX_CPUS;

/// A processor.
#[derive(Clone, Copy, Default)]
pub(super) struct Processor {
    pub(super) apic_id: u32,
    pub(super) node: u32,
}

/// An I/O APIC.
#[derive(Clone, Copy, Default)]
pub(super) struct IoApic {
    pub(super) address: u32,
    pub(super) first_gsi: u32,
}

/// Ports and values that power the machine off or reset it.
#[derive(Clone, Copy, Default)]
pub(super) struct Power {
    /// PM1a and PM1b control ports; zero if absent.
    pub(super) pm1_control: [u16; 2],
    /// SLP_TYP values of S5 for the two.
    pub(super) sleep_type: [u8; 2],
    /// Whether `sleep_type` was found.
    pub(super) has_s5: bool,
    /// Sleep control register of hardware-reduced machines, if it is a port.
    pub(super) sleep_control: Option<u16>,
    /// Reset port and value.
    pub(super) reset: Option<(u16, u8)>,
    /// PM timer port; zero if absent.
    pub(super) timer: u16,
}

/// What boot needs to know of the machine.
pub(super) struct Platform {
    /// The usable processors.
    processors: [Processor; MAX_CPUS],
    cpus: usize,
    io_apics: [IoApic; 8],
    io_apic_count: usize,
    /// Global interrupt number and redirection mode bits of each ISA interrupt.
    isa: [(u32, u32); 16],
    pub(super) power: Power,
    /// SRAT and SLIT: NUMA affinities and distances. Readable as long as the boot page tables are loaded.
    pub(super) srat: Option<&'static [u8]>,
    pub(super) slit: Option<&'static [u8]>,
}

impl Platform {
    fn new() -> Self {
        let mut isa = [(0, 0); 16];
        for (irq, route) in isa.iter_mut().enumerate() {
            route.0 = irq as u32;
        }
        Self {
            processors: [Processor::default(); MAX_CPUS],
            cpus: 0,
            io_apics: [IoApic::default(); 8],
            io_apic_count: 0,
            isa,
            power: Power::default(),
            srat: None,
            slit: None,
        }
    }

    /// The processors that may be started, in the firmware's order.
    pub(super) fn processors(&self) -> &[Processor] {
        &self.processors[..self.cpus]
    }

    /// Sets the NUMA node of each processor.
    pub(super) fn set_nodes(&mut self, node_of: impl Fn(u32) -> u32) {
        for processor in &mut self.processors[..self.cpus] {
            processor.node = node_of(processor.apic_id);
        }
    }

    pub(super) fn io_apics(&self) -> &[IoApic] {
        &self.io_apics[..self.io_apic_count]
    }

    /// Global interrupt number and redirection mode bits of an ISA interrupt.
    pub(super) fn isa_route(&self, irq: u8) -> (u32, u32) {
        self.isa[usize::from(irq & 15)]
    }

    /// Adds a processor that is enabled, once, while there is room.
    fn add_cpu(&mut self, apic_id: u32, flags: u32) {
        const ENABLED: u32 = 1;
        if flags & ENABLED != 0
            && self.cpus < MAX_CPUS
            && self.processors().iter().all(|p| p.apic_id != apic_id)
        {
            self.processors[self.cpus] = Processor { apic_id, node: 0 };
            self.cpus += 1;
        }
    }
}

/// Reads the tables to which the RSDP at `rsdp` leads. What is missing or damaged keeps the defaults of a machine without
/// ACPI.
pub(super) fn read(rsdp: u64) -> Platform {
    let mut platform = Platform::new();
    for_each_table(rsdp, |signature, bytes| match signature {
        b"APIC" => read_madt(&mut platform, bytes),
        b"FACP" => read_fadt(&mut platform, bytes),
        b"SRAT" => platform.srat = Some(bytes),
        b"SLIT" => platform.slit = Some(bytes),
        _ => {}
    });
    platform
}

/// Reads a value at an offset of a table; `None` if the table ends before it. `T` must be valid for any bytes.
fn at<T: Copy>(bytes: &[u8], offset: usize) -> Option<T> {
    let part = bytes.get(offset..offset.checked_add(size_of::<T>())?)?;
    // SAFETY: the slice is as long as `T`, and every `T` used here is plain integers.
    Some(unsafe { part.as_ptr().cast::<T>().read_unaligned() })
}

/// The table at a physical address, header included; `None` if its checksum is wrong, or it is not within the first 4 GiB.
fn table(physical: u64) -> Option<(SdtHeader, &'static [u8])> {
    const BOOT_REACH: u64 = 1 << 32;
    if physical == 0 || physical >= BOOT_REACH - size_of::<SdtHeader>() as u64 {
        return None;
    }
    // SAFETY: the firmware says that a table is there, and the boot tables map the first 4 GiB.
    unsafe {
        let header = memory::direct(physical)
            .cast::<SdtHeader>()
            .read_unaligned();
        let length = header.length as usize;
        if length < size_of::<SdtHeader>() || physical + length as u64 > BOOT_REACH {
            return None;
        }
        let bytes = slice::from_raw_parts(memory::direct(physical), length);
        let sum = bytes.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
        (sum == 0).then_some((header, bytes))
    }
}

/// Calls `each` with signature and bytes of each table that the root table lists and whose checksum is right; with none if RSDP
/// or root table is damaged.
fn for_each_table(rsdp: u64, mut each: impl FnMut(&[u8; 4], &'static [u8])) {
    if rsdp == 0 || rsdp >= (1 << 32) - size_of::<Rsdp>() as u64 {
        return;
    }
    // SAFETY: the boot loader or the search found the structure there, below 4 GiB.
    let root = unsafe { memory::direct(rsdp).cast::<Rsdp>().read_unaligned() };
    if root.validate().is_err() {
        return;
    }
    let (address, entry_size) = if root.revision() == 0 {
        (u64::from(root.rsdt_address()), 4)
    } else {
        (root.xsdt_address(), 8)
    };
    let Some((_, bytes)) = table(address) else {
        return;
    };
    for entry in bytes[size_of::<SdtHeader>()..].chunks_exact(entry_size) {
        let physical = entry
            .iter()
            .rev()
            .fold(0u64, |value, &byte| value << 8 | u64::from(byte));
        if let Some((header, bytes)) = table(physical) {
            let mut signature = [0; 4];
            signature.copy_from_slice(header.signature.as_str().as_bytes());
            each(&signature, bytes);
        }
    }
}

/// Takes processors, I/O APICs and routes of ISA interrupts from the MADT; those for which there is no room are left out.
fn read_madt(platform: &mut Platform, bytes: &[u8]) {
    /// Header, then the local APIC's address and flags.
    const ENTRIES: usize = 44;
    let mut offset = ENTRIES;
    while let (Some(kind), Some(length)) = (at::<u8>(bytes, offset), at::<u8>(bytes, offset + 1)) {
        if length < 2 {
            return;
        }
        match kind {
            0 => {
                if let Some(cpu) = at::<LocalApicEntry>(bytes, offset) {
                    platform.add_cpu(u32::from(cpu.apic_id), cpu.flags);
                }
            }
            1 => {
                if let Some(io) = at::<IoApicEntry>(bytes, offset)
                    && platform.io_apic_count < platform.io_apics.len()
                {
                    platform.io_apics[platform.io_apic_count] = IoApic {
                        address: io.io_apic_address,
                        first_gsi: io.global_system_interrupt_base,
                    };
                    platform.io_apic_count += 1;
                }
            }
            2 => {
                if let Some(route) = at::<InterruptSourceOverrideEntry>(bytes, offset)
                    && route.irq < 16
                {
                    platform.isa[usize::from(route.irq)] =
                        (route.global_system_interrupt, redirection_mode(route.flags));
                }
            }
            9 => {
                if let Some(cpu) = at::<LocalX2ApicEntry>(bytes, offset) {
                    platform.add_cpu(cpu.x2apic_id, cpu.flags);
                }
            }
            _ => {}
        }
        offset += usize::from(length);
    }
}

/// MADT polarity and trigger flags as the bits of a redirection entry.
fn redirection_mode(flags: u16) -> u32 {
    const ACTIVE_LOW: u32 = 1 << 13;
    const LEVEL: u32 = 1 << 15;
    let polarity = if flags & 3 == 3 { ACTIVE_LOW } else { 0 };
    let trigger = if flags >> 2 & 3 == 3 { LEVEL } else { 0 };
    polarity | trigger
}

/// Offsets in the FADT.
mod fadt {
    pub(super) const DSDT: usize = 40;
    pub(super) const PM1A_CONTROL: usize = 64;
    pub(super) const PM1B_CONTROL: usize = 68;
    pub(super) const PM_TIMER: usize = 76;
    pub(super) const FLAGS: usize = 112;
    pub(super) const RESET_REGISTER: usize = 116;
    pub(super) const RESET_VALUE: usize = 128;
    pub(super) const X_DSDT: usize = 140;
    pub(super) const SLEEP_CONTROL: usize = 244;
    /// Flag: the reset register works.
    pub(super) const HAS_RESET: u32 = 1 << 10;
}

/// Reads the needed fields of the FADT by their offsets: tables of older revisions end early, and the crate's type for it has
/// no public fields.
fn read_fadt(platform: &mut Platform, bytes: &'static [u8]) {
    const SYSTEM_IO: u8 = 1;
    // The port of a register given as a generic address structure; `None` if it is not a port.
    let port = |offset: usize| {
        let space = at::<u8>(bytes, offset)?;
        let address = at::<u64>(bytes, offset + 4)?;
        (space == SYSTEM_IO && address != 0).then_some(address as u16)
    };
    let word = |offset: usize| at::<u32>(bytes, offset).unwrap_or(0);
    let power = &mut platform.power;
    power.pm1_control = [
        word(fadt::PM1A_CONTROL) as u16,
        word(fadt::PM1B_CONTROL) as u16,
    ];
    power.timer = word(fadt::PM_TIMER) as u16;
    if word(fadt::FLAGS) & fadt::HAS_RESET != 0 {
        power.reset = port(fadt::RESET_REGISTER).zip(at::<u8>(bytes, fadt::RESET_VALUE));
    }
    power.sleep_control = port(fadt::SLEEP_CONTROL);
    let wide = at::<u64>(bytes, fadt::X_DSDT).filter(|&address| address != 0);
    let dsdt = wide.unwrap_or(u64::from(word(fadt::DSDT)));
    if let Some((_, aml)) = table(dsdt)
        && let Some(types) = find_s5(aml)
    {
        power.sleep_type = types;
        power.has_s5 = true;
    }
}

/// Finds the SLP_TYP values in the AML package named `_S5_`, by its bytes: name, package opcode, length, count; then each
/// integer is a byte prefix and a value, or the opcode for zero or one.
fn find_s5(aml: &[u8]) -> Option<[u8; 2]> {
    const PACKAGE: u8 = 0x12;
    const BYTE_PREFIX: u8 = 0x0a;
    let start = aml
        .windows(5)
        .position(|w| w[..4] == *b"_S5_" && w[4] == PACKAGE)?
        + 5;
    let length_bytes = usize::from(aml.get(start)? >> 6) + 1;
    let mut at = start + length_bytes + 1;
    let mut values = [0; 2];
    for value in &mut values {
        if *aml.get(at)? == BYTE_PREFIX {
            at += 1;
        }
        *value = *aml.get(at)?;
        at += 1;
    }
    Some(values)
}

/// Searches the RSDP where a BIOS puts it, for boot loaders that pass none; 0 if there is none.
pub(super) fn search_rsdp() -> u64 {
    (0xe_0000..0x10_0000u64)
        .step_by(16)
        .find(|&physical| {
            // SAFETY: the BIOS area is mapped by the boot tables.
            let signature = unsafe { slice::from_raw_parts(memory::direct(physical), 8) };
            signature == b"RSD PTR "
        })
        .unwrap_or(0)
}
