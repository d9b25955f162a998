//! The calls that programs consist of, by family, with their frequencies.

pub mod creds;
pub mod files;
pub mod ipc;
pub mod locks;
pub mod memory;
pub mod names;
pub mod process;
pub mod signals;

use crate::actor::Act;
use crate::board::reach;
use std::sync::atomic::Ordering;

/// A call and its weight among those of its family.
pub type Call = (u32, fn(&mut Act));

/// The families.
const FAMILIES: [&[Call]; 8] = [
    memory::CALLS,
    files::CALLS,
    names::CALLS,
    signals::CALLS,
    process::CALLS,
    ipc::CALLS,
    creds::CALLS,
    locks::CALLS,
];

/// The themes of programs: weights of the families.
const THEMES: [[u32; 8]; 8] = [
    // memory files names signals process ipc creds locks
    [80, 6, 0, 2, 10, 2, 0, 0],
    [4, 55, 20, 2, 4, 5, 4, 6],
    [2, 2, 0, 60, 25, 9, 2, 0],
    [4, 10, 0, 16, 8, 60, 0, 2],
    [50, 35, 6, 0, 7, 0, 0, 2],
    [0, 18, 46, 2, 6, 2, 24, 2],
    [6, 6, 0, 22, 52, 8, 6, 0],
    [20, 18, 14, 14, 12, 12, 5, 5],
];

/// Makes the call of a step.
pub fn step(act: &mut Act, seed: u64) {
    let theme = &THEMES[(seed % THEMES.len() as u64) as usize];
    let family = FAMILIES[act.dice.weighted(theme.iter().copied())];
    // Signals and exits also affect actors that wait for their orders.
    let reaches = std::ptr::eq(family, signals::CALLS) || std::ptr::eq(family, process::CALLS);
    let reaches = if reaches {
        reach::OTHERS
    } else {
        reach::ITSELF
    };
    act.cell().reaches.store(reaches, Ordering::SeqCst);
    if let Some(first) = missing(family)
        && act.dice.chance(85)
    {
        return first(act);
    }
    let call = act.dice.weighted(family.iter().map(|call| call.0));
    family[call].1(act);
}

/// The call that creates an object for `family`, if the family needs one and there is none.
fn missing(family: &'static [Call]) -> Option<fn(&mut Act)> {
    if std::ptr::eq(family, memory::CALLS) {
        (!memory::is_anything_mapped()).then_some(memory::map)
    } else if std::ptr::eq(family, files::CALLS) || std::ptr::eq(family, locks::CALLS) {
        (!files::is_any_open(files::is_regular)).then_some(files::create)
    } else if std::ptr::eq(family, ipc::CALLS) {
        (!files::is_any_open(files::is_stream)).then_some(ipc::pipe)
    } else {
        None
    }
}
