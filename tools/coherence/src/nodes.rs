//! Which NUMA node a CPU and a line of memory belong to, for machines split evenly.

/// The division of a machine: node k has the CPUs from `k * cpus / nodes` and the k-th part of memory; the last node
/// has the remainders.
#[derive(Clone, Debug)]
pub struct Nodes {
    nodes: u64,
    cpus: u64,
    bytes: u64,
}

impl Nodes {
    /// Divides `cpus` CPUs and `bytes` bytes of memory over `nodes` nodes.
    pub fn new(nodes: u64, cpus: u64, bytes: u64) -> Nodes {
        Nodes {
            nodes: nodes.max(1),
            cpus: cpus.max(1),
            bytes: bytes.max(1),
        }
    }

    /// Whether there is more than one node.
    pub fn several(&self) -> bool {
        self.nodes > 1
    }

    /// The node of a CPU.
    pub fn of_cpu(&self, cpu: u64) -> u64 {
        (cpu / (self.cpus / self.nodes).max(1)).min(self.nodes - 1)
    }

    /// The node of the memory at `offset` bytes from the start of RAM.
    pub fn of_memory(&self, offset: u64) -> u64 {
        (offset / (self.bytes / self.nodes).max(1)).min(self.nodes - 1)
    }

    /// The offset in RAM of an address as QEMU's plugin interface reports it. That interface adds the address of a
    /// memory block in the guest to its address in QEMU's list of blocks; with one block for each node the two are
    /// equal, so addresses of all but the first node are doubled.
    pub fn offset_of(&self, reported: u64) -> u64 {
        let each = self.bytes / self.nodes;
        for node in 1..self.nodes {
            let start = 2 * node * each;
            let size = if node == self.nodes - 1 {
                self.bytes - node * each
            } else {
                each
            };
            if (start..start + size).contains(&reported) {
                return reported - node * each;
            }
        }
        reported
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn remainders_belong_to_the_last_node() {
        let nodes = Nodes::new(2, 5, 1001 * MIB);
        let of: Vec<u64> = (0..5).map(|cpu| nodes.of_cpu(cpu)).collect();
        assert_eq!(of, [0, 0, 1, 1, 1]);
        assert_eq!(nodes.of_memory(500 * MIB), 0);
        assert_eq!(nodes.of_memory(501 * MIB), 1);
        assert_eq!(nodes.of_memory(1001 * MIB - 1), 1);
        assert!(nodes.several() && !Nodes::new(1, 5, MIB).several());
    }

    #[test]
    fn reported_addresses_of_later_nodes_are_doubled() {
        let nodes = Nodes::new(2, 4, 1024 * MIB);
        assert_eq!(nodes.offset_of(100 * MIB), 100 * MIB);
        assert_eq!(nodes.offset_of(1024 * MIB + 5), 512 * MIB + 5);
    }
}
