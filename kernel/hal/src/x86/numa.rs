//! NUMA nodes: the proximity domains of CPUs and memory (SRAT), and their distances (SLIT).
//!
//! Proximity domains are arbitrary 32-bit numbers. Nodes are numbered from 0, in the order in which the SRAT mentions their
//! domains. A machine without SRAT has one node.
use crate::limits::MAX_NODES;

/// Flag of an affinity structure that is in use.
const ENABLED: u32 = 1;
/// Distance of a node to itself, as ACPI defines it, and the usual distance to another node.
const LOCAL_DISTANCE: u8 = 10;
const REMOTE_DISTANCE: u8 = 20;

/// The nodes, their distances, and their memory and CPUs. To be used only while the boot page tables are loaded, because the
/// real ones need not map the firmware's tables.
pub(super) struct Numa<'a> {
    domains: [u32; MAX_NODES],
    nodes: usize,
    srat: Option<&'a [u8]>,
    distance: [[u8; MAX_NODES]; MAX_NODES],
}

/// An affinity structure of the SRAT.
enum Affinity {
    Cpu { apic_id: u32, domain: u32 },
    Memory { start: u64, end: u64, domain: u32 },
}

fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_le_bytes(
        bytes.get(offset..offset + 4)?.try_into().ok()?,
    ))
}

fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    Some(u64::from_le_bytes(
        bytes.get(offset..offset + 8)?.try_into().ok()?,
    ))
}

/// Reads an affinity structure of type `kind`; `None` if it is not in use or of another type.
fn parse(kind: u8, entry: &[u8]) -> Option<Affinity> {
    match kind {
        0 if u32_at(entry, 4)? & ENABLED != 0 => {
            let high = u32::from_le_bytes([0, *entry.get(9)?, *entry.get(10)?, *entry.get(11)?]);
            Some(Affinity::Cpu {
                apic_id: u32::from(*entry.get(3)?),
                domain: u32::from(*entry.get(2)?) | high,
            })
        }
        1 if u32_at(entry, 28)? & ENABLED != 0 => {
            let start = u64_at(entry, 8)?;
            let end = start.checked_add(u64_at(entry, 16)?)?;
            Some(Affinity::Memory {
                start,
                end,
                domain: u32_at(entry, 2)?,
            })
        }
        2 if u32_at(entry, 12)? & ENABLED != 0 => Some(Affinity::Cpu {
            apic_id: u32_at(entry, 8)?,
            domain: u32_at(entry, 4)?,
        }),
        _ => None,
    }
}

fn for_each(srat: Option<&[u8]>, mut each: impl FnMut(Affinity)) {
    /// Bytes of the table's header and two reserved fields.
    const ENTRIES: usize = 48;
    let mut rest = srat.and_then(|s| s.get(ENTRIES..)).unwrap_or_default();
    while let &[kind, length, ..] = rest {
        let length = usize::from(length);
        if length < 2 || length > rest.len() {
            return;
        }
        if let Some(affinity) = parse(kind, &rest[..length]) {
            each(affinity);
        }
        rest = &rest[length..];
    }
}

impl<'a> Numa<'a> {
    /// Reads the two tables.
    pub(super) fn read(srat: Option<&'a [u8]>, slit: Option<&[u8]>) -> Self {
        let mut numa = Self {
            domains: [0; MAX_NODES],
            nodes: 0,
            srat,
            distance: [[REMOTE_DISTANCE; MAX_NODES]; MAX_NODES],
        };
        for_each(srat, |affinity| {
            let (Affinity::Cpu { domain, .. } | Affinity::Memory { domain, .. }) = affinity;
            numa.add(domain);
        });
        numa.nodes = numa.nodes.max(1);
        for node in 0..MAX_NODES {
            numa.distance[node][node] = LOCAL_DISTANCE;
        }
        if let Some(slit) = slit {
            numa.read_distances(slit);
        }
        numa
    }

    /// Makes a new domain a node. Beyond [`MAX_NODES`] nodes there is none for it: what belongs to it counts as node 0's.
    fn add(&mut self, domain: u32) {
        if self.nodes < MAX_NODES && !self.domains[..self.nodes].contains(&domain) {
            self.domains[self.nodes] = domain;
            self.nodes += 1;
        }
    }

    /// Takes the distances between the nodes from the SLIT, whose rows and columns are numbered by domain. What it lacks stays.
    fn read_distances(&mut self, slit: &[u8]) {
        const MATRIX: usize = 44;
        let Some(count) = u64_at(slit, 36) else {
            return;
        };
        for from in 0..self.nodes {
            for to in 0..self.nodes {
                let (row, column) = (u64::from(self.domains[from]), u64::from(self.domains[to]));
                if row < count
                    && column < count
                    && let Some(&distance) = slit.get(MATRIX + (row * count + column) as usize)
                {
                    self.distance[from][to] = distance;
                }
            }
        }
    }

    fn node_of(&self, domain: u32) -> u32 {
        self.domains[..self.nodes]
            .iter()
            .position(|&d| d == domain)
            .unwrap_or(0) as u32
    }

    /// The number of nodes, at least 1.
    pub(super) fn nodes(&self) -> usize {
        self.nodes
    }

    /// The distances, of which the first [`Self::nodes`] rows and columns are valid.
    pub(super) fn distances(&self) -> [[u8; MAX_NODES]; MAX_NODES] {
        self.distance
    }

    /// The node of a CPU; 0 if the firmware names none.
    pub(super) fn cpu_node(&self, apic_id: u32) -> u32 {
        let mut node = 0;
        for_each(self.srat, |affinity| {
            if let Affinity::Cpu {
                apic_id: id,
                domain,
            } = affinity
                && id == apic_id
            {
                node = self.node_of(domain);
            }
        });
        node
    }

    /// Calls `each` with start, end and node of each range of memory that the firmware assigns to a node.
    pub(super) fn for_each_memory(&self, mut each: impl FnMut(u64, u64, u32)) {
        for_each(self.srat, |affinity| {
            if let Affinity::Memory { start, end, domain } = affinity {
                each(start, end, self.node_of(domain));
            }
        });
    }
}
