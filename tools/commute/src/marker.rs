//! The markers by which the program in the guest announces the begin and end of a window to an observer that sees the
//! addresses of stores, but not the values.
//!
//! The marker page lies at a fixed address. The number of a case is announced byte by byte, high byte first, each by a
//! store to the word with that index; then follow the window's opening and closing, and whether its results were right.

/// The address of the page in the program's address space.
pub const PAGE: u64 = 0x5b00_0000;

/// The meaning of a store to the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marker {
    /// The next byte of a case's number.
    Digit(u8),
    /// The window opens: from here on the accesses of both CPUs are recorded.
    Open,
    /// The window closes.
    Close,
    /// The results of the window that was closed last were right, and it counts.
    Right,
    /// The results were wrong.
    Wrong,
    /// The window does not count.
    Drop,
}

const FIRST: u64 = 256;
const OTHERS: [Marker; 5] = [
    Marker::Open,
    Marker::Close,
    Marker::Right,
    Marker::Wrong,
    Marker::Drop,
];

impl Marker {
    /// The marker of a store to `vaddr`; none if it is not in the page.
    pub fn at(vaddr: u64) -> Option<Marker> {
        let word = vaddr.checked_sub(PAGE).filter(|&offset| offset < 4096)? / 8;
        match u8::try_from(word) {
            Ok(byte) => Some(Marker::Digit(byte)),
            Err(_) => OTHERS.get((word - FIRST) as usize).copied(),
        }
    }

    /// The address whose store is this marker.
    pub fn address(self) -> u64 {
        let word = match self {
            Marker::Digit(byte) => u64::from(byte),
            other => FIRST + OTHERS.iter().position(|&m| m == other).unwrap_or(0) as u64,
        };
        PAGE + 8 * word
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_marker_is_found_at_its_address_and_nothing_elsewhere() {
        let digits = (0..=255).map(Marker::Digit);
        for marker in digits.chain(OTHERS) {
            assert_eq!(Marker::at(marker.address()), Some(marker));
        }
        assert_eq!(Marker::at(PAGE - 8), None);
        assert_eq!(Marker::at(PAGE + 4096), None);
        assert_eq!(Marker::at(PAGE + 4088), None);
    }
}
