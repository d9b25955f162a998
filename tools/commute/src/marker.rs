//! How the program in the guest tells an observer, who sees where it stores but not what, which window begins and ends.
//!
//! The marker page lies at a fixed address. The number of a case is stored byte by byte, high byte first, each to the word of
//! its value; then come the window's opening and closing, and whether its results were right.

/// Where the page lies in the program's address space.
pub const PAGE: u64 = 0x5b00_0000;

/// What a store to the page says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marker {
    /// The next byte of a case's number.
    Digit(u8),
    /// From here on both CPUs are looked at.
    Open,
    /// To here.
    Close,
    /// The results of the window that was closed last were right; it counts.
    Right,
    /// They were wrong.
    Wrong,
    /// The window was not meant to count.
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
    /// What a store to `vaddr` says; none if it is not in the page.
    pub fn at(vaddr: u64) -> Option<Marker> {
        let word = vaddr.checked_sub(PAGE).filter(|&offset| offset < 4096)? / 8;
        match u8::try_from(word) {
            Ok(byte) => Some(Marker::Digit(byte)),
            Err(_) => OTHERS.get((word - FIRST) as usize).copied(),
        }
    }

    /// Where to store to say so.
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
