//! The JSON lines that the plugin writes when the machine ends, one [`Record`] a line.

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
    pub user_moves: u64,
    pub user_false: u64,
    pub local: u64,
    pub remote: u64,
    pub watched: Vec<u64>,
}

/// An instruction or a line, and the moves it took part in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spot {
    /// Virtual address of the instruction, or physical address of the line.
    pub addr: u64,
    /// Moves.
    pub moves: u64,
    /// Those of them that are false sharing.
    pub false_sharing: u64,
}

/// One line of the plugin's output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Record {
    /// A phase of a case, all CPUs together.
    Phase {
        /// The case's number, from 1.
        case: u16,
        /// The phase's, from 0.
        phase: u8,
        /// How often it ran, all CPUs together.
        times: u64,
        /// Wall time in it, all CPUs together.
        ns: u64,
        /// What was counted.
        counts: Counts,
        /// Instructions that moved most lines.
        instructions: Vec<Spot>,
        /// Lines moved most often.
        lines: Vec<Spot>,
    },
    /// A block of kernel instructions that a phase executed.
    Block {
        /// The case's number, from 1.
        case: u16,
        /// The phase's, from 0.
        phase: u8,
        /// Virtual address of its first instruction.
        addr: u64,
        /// Its instructions.
        insns: u32,
        /// How often it was entered.
        times: u64,
    },
    /// One CPU over the whole run.
    Cpu {
        /// Its number.
        cpu: u32,
        /// Its node.
        node: u64,
        /// What was counted.
        counts: Counts,
    },
}

impl Record {
    /// The record as a line, without the line's end.
    pub fn to_line(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The record that `line` holds.
    ///
    /// # Errors
    /// It is not one.
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
