//! The object that a memory address belongs to: objects of the kernel's heap, as a kernel with `heap-labels` announces
//! them, and the other parts of memory.
//!
//! Guarantee: an address in a heap object has the label that the kernel gave the object last, and the offset in it; a
//! freed object has none. Mechanism: the plugin sees the *addresses* of stores but no values, so the kernel encodes
//! bytes as addresses: a table of 257 words stands for the 256 values of a byte and an end mark. After the end mark the
//! kernel stores to the object's first byte, and thus announces its address. Each granule of sixteen bytes, the
//! smallest object, has an entry with its label and its offset.

use crate::insn::KERNEL;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Bytes of the table of words that the kernel stores to.
pub const TABLE: u64 = 8 * 257;

/// Bytes of a message: two of size, three for each site of the allocation.
const MESSAGE: usize = 2 + 3 * SITES;

/// Sites of an allocation: the call of the allocator, and its callers.
pub const SITES: usize = 3;

const GRANULE: u64 = 16;
const CHUNK: u64 = 2 << 20;
/// Bits of an entry below the label's index, which hold the granule's offset in its object.
const OFFSET_BITS: u32 = 12;

/// Pantala's kernel stacks and page array: `kernel/hal/src/x86/paging.rs`.
const STACKS: u64 = 0xffff_c900_0000_0000;
const PAGES: u64 = 0xffff_ea00_0000_0000;
const REGION: u64 = 1 << 39;
const IMAGE: u64 = 0xffff_ffff_8000_0000;

/// An allocation's size, and its sites as offsets from the kernel's base, innermost first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Label {
    /// The size that was requested, in bytes.
    pub size: u32,
    /// Return addresses.
    pub sites: [u64; SITES],
}

/// The object or region that a memory address belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// Memory of a user program.
    User,
    /// A kernel stack.
    Stack,
    /// A page's record.
    Page {
        /// Bytes into it.
        offset: u64,
    },
    /// A static.
    Static {
        /// Its virtual address, a multiple of eight.
        addr: u64,
    },
    /// An object of the heap.
    Heap {
        /// The index of its label.
        label: u32,
        /// Bytes into it, a multiple of eight.
        offset: u64,
    },
    /// Anything else: page tables, pages of files and programs.
    Frame,
}

/// What a message announces about the object that the next store goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// The object was allocated.
    Made(Label),
    /// The object is about to be freed.
    Gone,
}

/// Decodes the messages of one CPU.
#[derive(Default)]
pub struct Teller {
    bytes: Vec<u8>,
    complete: bool,
}

impl Teller {
    /// A decoder that has seen no store yet.
    pub const fn new() -> Teller {
        Teller {
            bytes: Vec::new(),
            complete: false,
        }
    }

    /// Decodes a store `offset` bytes into the table.
    pub fn heard(&mut self, offset: u64) {
        match u8::try_from(offset / 8) {
            Ok(byte) => {
                if std::mem::take(&mut self.complete) || self.bytes.len() == MESSAGE {
                    self.bytes.clear();
                }
                self.bytes.push(byte);
            }
            Err(_) => self.complete = true,
        }
    }

    /// Takes the message if it is complete: then the current store goes to its object.
    pub fn take(&mut self) -> Option<Told> {
        if !std::mem::take(&mut self.complete) {
            return None;
        }
        let bytes = std::mem::take(&mut self.bytes);
        let [low, high, sites @ ..] = &bytes[..] else {
            return Some(Told::Gone);
        };
        let mut label = Label {
            size: u32::from(*low) | u32::from(*high) << 8,
            sites: [0; SITES],
        };
        for (site, bytes) in label.sites.iter_mut().zip(sites.chunks_exact(3)) {
            *site = bytes.iter().rev().fold(0, |n, &b| n << 8 | u64::from(b));
        }
        Some(Told::Made(label))
    }
}

#[derive(Default)]
struct Interned {
    numbers: HashMap<Label, u32>,
    labels: Vec<Label>,
}

/// The labels of a machine's memory.
pub struct Labels {
    interned: Mutex<Interned>,
    /// For each granule its object's label index plus one, and its offset in the object; 0 for none.
    chunks: Vec<OnceLock<Box<[AtomicU32]>>>,
}

impl Labels {
    /// Labels for physical addresses below `bytes`.
    pub fn new(bytes: u64) -> Labels {
        Labels {
            interned: Mutex::default(),
            chunks: (0..bytes.div_ceil(CHUNK))
                .map(|_| OnceLock::new())
                .collect(),
        }
    }

    fn granule(&self, addr: u64) -> Option<&AtomicU32> {
        let chunk = self.chunks.get((addr / CHUNK) as usize)?;
        let chunk = chunk.get_or_init(|| (0..CHUNK / GRANULE).map(|_| AtomicU32::new(0)).collect());
        Some(&chunk[(addr % CHUNK / GRANULE) as usize])
    }

    fn number(&self, label: Label) -> u32 {
        let mut interned = self.interned.lock().unwrap_or_else(PoisonError::into_inner);
        let next = interned.labels.len() as u32;
        let number = *interned.numbers.entry(label).or_insert(next);
        if number == next {
            interned.labels.push(label);
        }
        number
    }

    /// All labels, by index.
    pub fn all(&self) -> Vec<Label> {
        let interned = self.interned.lock().unwrap_or_else(PoisonError::into_inner);
        interned.labels.clone()
    }

    /// Applies the kernel's message about the object at physical address `addr`.
    pub fn note(&self, addr: u64, told: Told) {
        let (entry, size) = match told {
            Told::Made(label) => (self.number(label) + 1, label.size),
            Told::Gone => {
                let number = self.granule(addr).map_or(0, |g| g.load(Relaxed)) >> OFFSET_BITS;
                let label = number
                    .checked_sub(1)
                    .and_then(|n| self.all().get(n as usize).copied());
                (0, label.map_or(0, |label| label.size))
            }
        };
        let granules = u64::from(size).div_ceil(GRANULE).min(1 << OFFSET_BITS);
        for n in 0..granules {
            if let Some(granule) = self.granule(addr + n * GRANULE) {
                let value = if entry == 0 {
                    0
                } else {
                    entry << OFFSET_BITS | n as u32
                };
                granule.store(value, Relaxed);
            }
        }
    }

    /// The place that virtual address `vaddr`, physical address `addr`, belongs to.
    pub fn place(&self, vaddr: u64, addr: u64) -> Place {
        if vaddr < KERNEL {
            return Place::User;
        }
        if (STACKS..STACKS + REGION).contains(&vaddr) {
            return Place::Stack;
        }
        if (PAGES..PAGES + REGION).contains(&vaddr) {
            return Place::Page {
                offset: vaddr % 64 / 8 * 8,
            };
        }
        if vaddr >= IMAGE {
            return Place::Static {
                addr: vaddr / 8 * 8,
            };
        }
        let entry = self.granule(addr).map_or(0, |g| g.load(Relaxed));
        match (entry >> OFFSET_BITS).checked_sub(1) {
            Some(label) => {
                let granule = u64::from(entry & ((1 << OFFSET_BITS) - 1));
                let offset = granule * GRANULE + addr % GRANULE / 8 * 8;
                Place::Heap { label, offset }
            }
            None => Place::Frame,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIRECT: u64 = 0xffff_8880_0000_0000;

    fn tell(teller: &mut Teller, bytes: &[u8]) -> Option<Told> {
        bytes.iter().for_each(|&b| teller.heard(8 * u64::from(b)));
        teller.heard(8 * 256);
        teller.take()
    }

    #[test]
    fn messages_are_spelled_by_addresses() {
        let mut teller = Teller::default();
        teller.heard(8);
        assert_eq!(teller.take(), None);
        let mut teller = Teller::default();
        let told = tell(&mut teller, &[0x80, 1, 1, 2, 3, 4, 5, 6, 0, 0, 0]);
        let label = Label {
            size: 0x180,
            sites: [0x03_0201, 0x06_0504, 0],
        };
        assert_eq!(told, Some(Told::Made(label)));
        assert_eq!(tell(&mut teller, &[]), Some(Told::Gone));
        assert_eq!(teller.take(), None);
    }

    #[test]
    fn objects_have_labels_until_they_go() {
        let labels = Labels::new(16 << 20);
        let one = Label {
            size: 40,
            sites: [1, 2, 3],
        };
        let two = Label {
            size: 16,
            sites: [1, 2, 4],
        };
        labels.note(0x1000, Told::Made(one));
        labels.note(0x1030, Told::Made(two));
        let at = |addr: u64| labels.place(DIRECT + addr, addr);
        assert_eq!(
            at(0x102c),
            Place::Heap {
                label: 0,
                offset: 40
            }
        );
        assert_eq!(
            at(0x1030),
            Place::Heap {
                label: 1,
                offset: 0
            }
        );
        assert_eq!(at(0x1040), Place::Frame);
        labels.note(0x1000, Told::Gone);
        labels.note(0x1000, Told::Made(two));
        assert_eq!(
            at(0x1008),
            Place::Heap {
                label: 1,
                offset: 8
            }
        );
        assert_eq!(at(0x1010), Place::Frame);
        assert_eq!(labels.all(), [one, two]);
    }

    #[test]
    fn other_memory_is_known_by_its_address() {
        let labels = Labels::new(1 << 20);
        assert_eq!(labels.place(0x40_0000, 0), Place::User);
        assert_eq!(labels.place(STACKS + 5, 0), Place::Stack);
        assert_eq!(
            labels.place(PAGES + 64 * 7 + 20, 0),
            Place::Page { offset: 16 }
        );
        assert_eq!(
            labels.place(IMAGE + 0x2c, 0),
            Place::Static { addr: IMAGE + 0x28 }
        );
    }
}
