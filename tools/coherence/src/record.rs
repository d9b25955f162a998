//! The JSON lines that the plugin writes when the machine ends, one [`Record`] a line.

use crate::labels::{Label, Place};
use serde::{Deserialize, Serialize};

/// Event counts of a CPU or a phase; see [`crate::cpu::Event`] for each.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "each is documented where it is counted")]
pub struct Counts {
    pub user: u64,
    pub kernel: u64,
    pub repeated: u64,
    pub kernel_moves: u64,
    pub kernel_false: u64,
    pub bulk_moves: u64,
    #[serde(default)]
    pub filled: u64,
    pub user_moves: u64,
    pub user_false: u64,
    pub local: u64,
    pub remote: u64,
    #[serde(default)]
    pub kernel_local: u64,
    #[serde(default)]
    pub kernel_remote: u64,
    pub watched: Vec<u64>,
}

/// An instruction or a line, and the moves that it took part in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spot {
    /// Virtual address of the instruction, or physical address of the line.
    pub addr: u64,
    /// Moves.
    pub moves: u64,
    /// Those of them that are false sharing.
    pub false_sharing: u64,
}

/// Moves by one instruction of one place in memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cause {
    /// Virtual address of the instruction.
    pub pc: u64,
    /// What it accessed.
    pub place: Place,
    /// Moves.
    pub moves: u64,
    /// Those of them that are false sharing.
    pub false_sharing: u64,
}

/// The accesses of one CPU to a line.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Touches {
    /// Loads.
    pub loads: u32,
    /// Stores of plain instructions.
    pub stores: u32,
    /// Stores of atomic instructions.
    pub atomics: u32,
    /// The first load: its instruction and, outwards, its calls.
    pub load: Vec<u64>,
    /// The first store of a plain instruction, likewise.
    pub store: Vec<u64>,
    /// The first store of an atomic instruction, likewise.
    pub atomic: Vec<u64>,
}

impl Touches {
    /// Whether the CPU wrote the line.
    pub fn wrote(&self) -> bool {
        self.stores + self.atomics > 0
    }
}

/// A line that both CPUs accessed and at least one wrote.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shared {
    /// Physical address of its first byte.
    pub line: u64,
    /// Virtual address of the first access.
    pub vaddr: u64,
    /// Words of eight bytes that both accessed and at least one wrote; if there are none, the line is falsely shared.
    pub words: u8,
    /// The accesses of each CPU.
    pub cpus: [Touches; 2],
}

/// One line of the plugin's output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Record {
    /// A phase of a case, all CPUs together.
    Phase {
        /// The number of the case, from 1.
        case: u16,
        /// The index of the phase, from 0.
        phase: u8,
        /// The number of times that it ran, all CPUs together.
        times: u64,
        /// Wall time in it, all CPUs together.
        ns: u64,
        /// The events counted.
        counts: Counts,
        /// Instructions that moved most lines.
        instructions: Vec<Spot>,
        /// Lines moved most often.
        lines: Vec<Spot>,
        /// Instructions with the object that they moved, most moves first, if the kernel announces its heap objects.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        causes: Vec<Cause>,
    },
    /// A label that causes refer to.
    Label {
        /// Its index.
        number: u32,
        /// Its contents.
        label: Label,
    },
    /// A block of kernel instructions that a phase executed.
    Block {
        /// The number of the case, from 1.
        case: u16,
        /// The index of the phase, from 0.
        phase: u8,
        /// Virtual address of its first instruction.
        addr: u64,
        /// Instructions in the block.
        insns: u32,
        /// The number of executions.
        times: u64,
        /// Bytes of each of its instructions.
        #[serde(default)]
        lengths: Vec<u8>,
    },
    /// A window of a case of two operations, one on each of CPUs 0 and 1.
    Window {
        /// The case's number.
        case: u16,
        /// Whether the operations' results were right.
        right: bool,
        /// Timer interrupts within it, both CPUs together.
        ticks: u64,
        /// Other watched interrupts.
        interrupts: u64,
        /// Lines that each CPU's kernel accessed.
        touched: [u64; 2],
        /// A CPU accessed more lines than can be recorded.
        overflow: bool,
        /// Lines that both accessed and one wrote; `lines` has the first of them.
        conflicts: u64,
        /// Those lines.
        lines: Vec<Shared>,
    },
    /// One CPU over the whole run.
    Cpu {
        /// Its index.
        cpu: u32,
        /// Its node.
        node: u64,
        /// The events counted.
        counts: Counts,
    },
}

impl Record {
    /// The record as a line, without the line feed.
    pub fn to_line(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Parses a record.
    ///
    /// # Errors
    /// `line` is not a record.
    pub fn from_line(line: &str) -> Result<Record, serde_json::Error> {
        serde_json::from_str(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_survives_its_line() {
        let record = Record::Phase {
            case: 3,
            phase: 1,
            times: 2,
            ns: 5,
            counts: Counts {
                kernel: u64::MAX,
                watched: vec![1, 2],
                ..Counts::default()
            },
            instructions: vec![Spot {
                addr: u64::MAX - 1,
                moves: 2,
                false_sharing: 1,
            }],
            lines: Vec::new(),
            causes: Vec::new(),
        };
        let line = record.to_line();
        assert!(
            !line.contains('\n') && line.contains("\"kind\":\"phase\""),
            "{line}"
        );
        assert_eq!(Record::from_line(&line).unwrap(), record);
        assert!(Record::from_line("{}").is_err());
    }
}
