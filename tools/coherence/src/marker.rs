//! The markers by which a benchmark announces the begin and end of a phase to an observer that cannot read registers:
//! they are encoded in the *addresses* of stores.
//!
//! The marker page lies at a fixed address. A worker bound to a CPU stores to word `reset` before a case, to word
//! `begin` of the case when a timed phase begins, and to word `end` of case and phase when it ends.

/// The address of the marker page in a benchmark's address space.
pub const PAGE: u64 = 0x5a00_0000;

/// Words reserved for a case: one for each phase's end and one for the beginning.
pub const WORDS: u64 = 8;

const BEGIN: u64 = WORDS - 1;

/// The meaning of a store to the marker page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marker {
    /// No phase is running on this CPU: a phase that has begun and not ended is discarded.
    Reset,
    /// A phase of this case begins.
    Begin(u16),
    /// This phase of this case ends.
    End(u16, u8),
}

impl Marker {
    /// The marker of a store to virtual address `vaddr`; none if it is not in the marker page.
    pub fn at(vaddr: u64) -> Option<Marker> {
        let offset = vaddr.checked_sub(PAGE).filter(|&offset| offset < 4096)?;
        let word = offset / 8;
        let (case, part) = ((word / WORDS) as u16, word % WORDS);
        Some(match (case, part) {
            (0, _) => Marker::Reset,
            (_, BEGIN) => Marker::Begin(case),
            (_, phase) => Marker::End(case, phase as u8),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_the_page_are_cases_and_phases() {
        assert_eq!(Marker::at(PAGE), Some(Marker::Reset));
        assert_eq!(Marker::at(PAGE + 8 * (8 + 7)), Some(Marker::Begin(1)));
        assert_eq!(
            Marker::at(PAGE + 8 * (8 * 23 + 2)),
            Some(Marker::End(23, 2))
        );
        assert_eq!(Marker::at(PAGE - 8), None);
        assert_eq!(Marker::at(PAGE + 4096), None);
    }
}
