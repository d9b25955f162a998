//! Random operations.

use proptest::prelude::*;
use vm::MapProt;
use vm::space::Advice;

/// The page of an operation: below [`WINDOWS`] a fixed address, else one of the mapped pages.
pub type At = u8;

/// Addresses of the fixed windows: 0..32 around the border of two tables, 32..48 around that of two root entries,
/// 48..64 for stacks.
pub const WINDOWS: u8 = 64;
/// The first address for stacks.
pub const STACKS: u8 = 48;

/// The source of a mapping.
#[derive(Clone, Copy, Debug)]
pub enum What {
    /// Zeroes.
    Private,
    /// Shared zeroes.
    Shared,
    /// A file, privately, from a page on.
    PrivateFile(u8, u8),
    /// A file, shared.
    SharedFile(u8, u8),
}

/// One operation. `space`, `file` and `cpu` are taken modulo what exists.
#[derive(Clone, Debug)]
pub enum Op {
    Map {
        space: u8,
        at: At,
        len: u8,
        what: What,
        prot: u8,
        strict: bool,
        place: u8,
        populate: bool,
    },
    Stack {
        space: u8,
        at: At,
        len: u8,
    },
    Unmap {
        space: u8,
        at: At,
        len: u8,
    },
    Protect {
        space: u8,
        at: At,
        len: u8,
        prot: u8,
    },
    Remap {
        space: u8,
        at: At,
        old: u8,
        new: u8,
        target: u8,
        to: At,
        keep: bool,
    },
    Advise {
        space: u8,
        at: At,
        len: u8,
        advice: Advice,
    },
    Lock {
        space: u8,
        at: At,
        len: u8,
        on: bool,
    },
    Fork {
        space: u8,
    },
    Exit {
        space: u8,
    },
    Read {
        space: u8,
        cpu: u8,
        at: At,
        word: u8,
    },
    Write {
        space: u8,
        cpu: u8,
        at: At,
        word: u8,
    },
    Fetch {
        space: u8,
        cpu: u8,
        at: At,
    },
    Peek {
        space: u8,
        at: At,
        word: u8,
    },
    Poke {
        space: u8,
        at: At,
        word: u8,
    },
    ReadFile {
        file: u8,
        page: u8,
        word: u8,
    },
    WriteFile {
        file: u8,
        page: u8,
        word: u8,
    },
    Truncate {
        file: u8,
        eighths: u8,
    },
    Punch {
        file: u8,
        from: u8,
        len: u8,
    },
    Scan {
        nth: u16,
    },
    ScanAll,
    Speculate {
        cpu: u8,
        at: At,
    },
    DropTables {
        space: u8,
    },
    Maintain {
        space: u8,
    },
    Tick,
    Compare,
}

/// A weighting of the operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mix {
    All,
    Forks,
    Files,
    /// Memory that mappings share, moved, doubled and resized.
    Shared,
    /// Few spaces and pages: a space that exits is replaced by another's child.
    Families,
    /// Ranges of hundreds of pages, many of them populated.
    Blocks,
}

fn at(mix: Mix) -> BoxedStrategy<At> {
    match mix {
        Mix::Forks | Mix::Families => (14_u8..18).boxed(),
        Mix::Shared => (8_u8..24).boxed(),
        Mix::Blocks => (0_u8..16).boxed(),
        _ => prop_oneof![3 => 0_u8..STACKS, 1 => STACKS..WINDOWS, 2 => WINDOWS..].boxed(),
    }
}

fn len(mix: Mix) -> BoxedStrategy<u8> {
    if matches!(mix, Mix::Forks | Mix::Families) {
        (1_u8..4).boxed()
    } else {
        prop_oneof![4 => 1_u8..9, 1 => 9_u8..33].boxed()
    }
}

fn what(mix: Mix) -> BoxedStrategy<What> {
    let (private, shared, file) = match mix {
        Mix::All => (4, 1, 2),
        Mix::Forks | Mix::Families => (4, 1, 1),
        Mix::Files => (1, 1, 6),
        Mix::Shared => (1, 8, 1),
        Mix::Blocks => (8, 1, 1),
    };
    prop_oneof![
        private => Just(What::Private),
        shared => Just(What::Shared),
        file => (any::<u8>(), 0_u8..8).prop_map(|(file, page)| What::PrivateFile(file, page)),
        file => (any::<u8>(), 0_u8..8).prop_map(|(file, page)| What::SharedFile(file, page)),
    ]
    .boxed()
}

fn advice(mix: Mix) -> BoxedStrategy<Advice> {
    if mix == Mix::Blocks {
        return prop_oneof![
            4 => Just(Advice::PopulateWrite),
            1 => Just(Advice::PopulateRead),
            2 => Just(Advice::DontNeed),
            1 => Just(Advice::Free),
            1 => Just(Advice::WipeOnFork),
            1 => Just(Advice::NoHugePage),
            1 => Just(Advice::HugePage),
        ]
        .boxed();
    }
    prop_oneof![
        4 => Just(Advice::DontNeed),
        2 => Just(Advice::Free),
        1 => Just(Advice::Nothing),
        1 => Just(Advice::PopulateRead),
        1 => Just(Advice::PopulateWrite),
        1 => Just(Advice::DontFork),
        1 => Just(Advice::DoFork),
        1 => Just(Advice::WipeOnFork),
        1 => Just(Advice::KeepOnFork),
        1 => Just(Advice::DontDump),
        2 => Just(Advice::Remove),
    ]
    .boxed()
}

/// Changes of maps.
fn maps(mix: Mix) -> BoxedStrategy<Op> {
    let prot = || prop_oneof![3 => Just(3_u8), 1 => 0_u8..8];
    let s = any::<u8>;
    let moves = if mix == Mix::Shared { 12 } else { 2 };
    prop_oneof![
        6 => (s(), at(mix), len(mix), what(mix), prot(), prop::bool::weighted(0.1), 0_u8..8, prop::bool::weighted(0.2))
            .prop_map(|(space, at, len, what, prot, strict, place, populate)| Op::Map {
                space, at, len, what, prot, strict, place, populate,
            }),
        1 => (s(), STACKS + 8..WINDOWS, 1_u8..4).prop_map(|(space, at, len)| Op::Stack { space, at, len }),
        3 => (s(), at(mix), len(mix)).prop_map(|(space, at, len)| Op::Unmap { space, at, len }),
        3 => (s(), at(mix), len(mix), prot()).prop_map(|(space, at, len, prot)| Op::Protect { space, at, len, prot }),
        moves => (s(), at(mix), 0_u8..9, 0_u8..12, 0_u8..4, at(mix), prop::bool::weighted(0.2))
            .prop_map(|(space, at, old, new, target, to, keep)| Op::Remap { space, at, old, new, target, to, keep }),
        4 => (s(), at(mix), len(mix), advice(mix)).prop_map(|(space, at, len, advice)| Op::Advise { space, at, len, advice }),
        1 => (s(), at(mix), len(mix), any::<bool>()).prop_map(|(space, at, len, on)| Op::Lock { space, at, len, on }),
    ]
    .boxed()
}

/// Uses of memory.
fn uses(mix: Mix) -> BoxedStrategy<Op> {
    let (s, word) = (any::<u8>, || 0_u8..4);
    prop_oneof![
        8 => (s(), s(), at(mix), word()).prop_map(|(space, cpu, at, word)| Op::Read { space, cpu, at, word }),
        12 => (s(), s(), at(mix), word()).prop_map(|(space, cpu, at, word)| Op::Write { space, cpu, at, word }),
        1 => (s(), s(), at(mix)).prop_map(|(space, cpu, at)| Op::Fetch { space, cpu, at }),
        1 => (s(), at(mix), word()).prop_map(|(space, at, word)| Op::Peek { space, at, word }),
        1 => (s(), at(mix), word()).prop_map(|(space, at, word)| Op::Poke { space, at, word }),
        2 => (s(), s()).prop_map(|(cpu, at)| Op::Speculate { cpu, at }),
    ]
    .boxed()
}

fn files() -> BoxedStrategy<Op> {
    let s = any::<u8>;
    prop_oneof![
        3 => (s(), 0_u8..16, 0_u8..4).prop_map(|(file, page, word)| Op::WriteFile { file, page, word }),
        1 => (s(), 0_u8..16, 0_u8..4).prop_map(|(file, page, word)| Op::ReadFile { file, page, word }),
        2 => (s(), s()).prop_map(|(file, eighths)| Op::Truncate { file, eighths }),
        1 => (s(), s(), 0_u8..24).prop_map(|(file, from, len)| Op::Punch { file, from, len }),
    ]
    .boxed()
}

/// Fault injection and background work.
fn havoc() -> BoxedStrategy<Op> {
    prop_oneof![
        3 => any::<u16>().prop_map(|nth| Op::Scan { nth }),
        1 => Just(Op::ScanAll),
        1 => any::<u8>().prop_map(|space| Op::DropTables { space }),
        2 => any::<u8>().prop_map(|space| Op::Maintain { space }),
        2 => Just(Op::Tick),
        1 => Just(Op::Compare),
    ]
    .boxed()
}

/// An operation.
pub fn op(mix: Mix) -> BoxedStrategy<Op> {
    let (m, u, f, h, forks, exits) = match mix {
        Mix::All => (8, 16, 2, 4, 2, 1),
        Mix::Forks => (2, 16, 1, 4, 5, 3),
        Mix::Files => (6, 16, 8, 3, 1, 1),
        Mix::Shared => (12, 16, 0, 3, 2, 1),
        Mix::Families => (1, 16, 0, 4, 6, 5),
        Mix::Blocks => (12, 16, 0, 3, 2, 1),
    };
    prop_oneof![
        m => maps(mix),
        u => uses(mix),
        f.max(1) => files(),
        h => havoc(),
        forks => any::<u8>().prop_map(|space| Op::Fork { space }),
        exits => any::<u8>().prop_map(|space| Op::Exit { space }),
    ]
    .boxed()
}

/// A protection by bits: reading, writing, executing.
pub fn prot(bits: u8) -> MapProt {
    let bit = |n: u8, prot| {
        if bits >> n & 1 != 0 {
            prot
        } else {
            MapProt::empty()
        }
    };
    bit(0, MapProt::READ) | bit(1, MapProt::WRITE) | bit(2, MapProt::EXEC)
}
