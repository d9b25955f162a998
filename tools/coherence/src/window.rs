//! The lines that two CPUs access while each executes one operation, and those that they share.
//!
//! Guarantee: between a window's opening and closing every reported access is recorded, up to [`LINES`] lines for each
//! CPU (a window with more is marked); a line conflicts if both CPUs accessed it and at least one wrote it. The
//! recorded words distinguish false sharing, and the kinds of instructions distinguish atomic changes.
//! Mechanism: a table for each CPU from line to accesses, and a stack of calls, derived from the stores and loads that
//! call and return instructions make, so that an access inside a lock's code is named with its callers. Memory is
//! bounded: the tables are emptied at each opening.

use crate::directory::LINE;
use crate::insn::Kind;
use crate::record::{Record, Shared, Touches};
use commute::marker::Marker;
use std::collections::HashMap;

/// The most lines recorded for each CPU of a window.
pub const LINES: usize = 1 << 16;

/// Conflicting lines written for each window.
const WRITTEN: usize = 40;

/// The most callers recorded with an access.
const CALLERS: usize = 4;

/// The most nested calls followed for each CPU.
const DEPTH: usize = 256;

/// Two stack slots closer than this many bytes are taken to be on one stack.
const STACK: u64 = 16 << 10;

/// An access by kernel code.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// The CPU, 0 or 1; others are ignored.
    pub cpu: u32,
    /// The instruction.
    pub pc: u64,
    /// What kind of instruction it is.
    pub kind: Kind,
    /// Its virtual address.
    pub vaddr: u64,
    /// Its physical address.
    pub addr: u64,
    /// Its size.
    pub bytes: u64,
    /// Whether it is a store.
    pub store: bool,
}

#[derive(Default)]
struct Line {
    vaddr: u64,
    read: u8,
    written: u8,
    touches: Touches,
}

#[derive(Default)]
struct Side {
    lines: HashMap<u64, Line>,
    /// Stack slot and instruction of each call that has not returned.
    calls: Vec<(u64, u64)>,
    overflow: bool,
}

impl Side {
    fn clear(&mut self) {
        self.lines.clear();
        self.calls.clear();
        self.overflow = false;
    }

    /// Follows a call or return. A slot on another stack means that the CPU has switched threads.
    fn follow(&mut self, access: &Access) {
        let slot = access.vaddr;
        if self
            .calls
            .last()
            .is_some_and(|(last, _)| last.abs_diff(slot) > STACK)
        {
            self.calls.clear();
        }
        match access.kind {
            Kind::Call if access.store => {
                while self.calls.last().is_some_and(|(last, _)| *last <= slot) {
                    self.calls.pop();
                }
                if self.calls.len() < DEPTH {
                    self.calls.push((slot, access.pc));
                }
            }
            Kind::Return => {
                while self.calls.last().is_some_and(|(last, _)| *last <= slot) {
                    self.calls.pop();
                }
            }
            _ => {}
        }
    }

    fn add(&mut self, line: u64, words: u8, access: &Access) {
        if self.lines.len() >= LINES && !self.lines.contains_key(&line) {
            self.overflow = true;
            return;
        }
        let entry = self.lines.entry(line).or_insert_with(|| Line {
            vaddr: access.vaddr,
            ..Line::default()
        });
        let touches = &mut entry.touches;
        let (count, place) = match (access.store, access.kind) {
            (false, _) => (&mut touches.loads, &mut touches.load),
            (true, Kind::Atomic) => (&mut touches.atomics, &mut touches.atomic),
            (true, _) => (&mut touches.stores, &mut touches.store),
        };
        *count += 1;
        if place.is_empty() {
            let callers = self.calls.iter().rev().take(CALLERS).map(|(_, pc)| *pc);
            *place = std::iter::once(access.pc).chain(callers).collect();
        }
        if access.store {
            entry.written |= words;
        } else {
            entry.read |= words;
        }
    }
}

/// The window that is open or was closed last.
#[derive(Default)]
pub struct Window {
    sides: [Side; 2],
    case: u16,
    open: bool,
    ticks: u64,
    interrupts: u64,
}

impl Window {
    /// Whether a window is open, so that accesses are to be reported.
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// Handles a marker; returns the record of a window that counts.
    pub fn marker(&mut self, marker: Marker) -> Option<Record> {
        match marker {
            Marker::Digit(byte) => self.case = self.case << 8 | u16::from(byte),
            Marker::Open => {
                self.sides.iter_mut().for_each(Side::clear);
                (self.ticks, self.interrupts) = (0, 0);
                self.open = true;
            }
            Marker::Close => self.open = false,
            Marker::Drop => {}
            Marker::Right | Marker::Wrong => return Some(self.record(marker == Marker::Right)),
        }
        None
    }

    /// Counts an interrupt whose entry is watched: the timer's or another.
    pub fn interrupted(&mut self, timer: bool) {
        if self.open {
            *(if timer {
                &mut self.ticks
            } else {
                &mut self.interrupts
            }) += 1;
        }
    }

    /// Records an access.
    pub fn access(&mut self, access: &Access) {
        let Some(side) = self
            .sides
            .get_mut(access.cpu as usize)
            .filter(|_| self.open)
        else {
            return;
        };
        if matches!(access.kind, Kind::Call | Kind::Return) {
            side.follow(access);
        }
        let end = access.addr + access.bytes.clamp(1, LINE);
        let mut at = access.addr;
        while at < end {
            let line = at & !(LINE - 1);
            let stop = end.min(line + LINE);
            let words = (at - line) / 8..(stop - line).div_ceil(8);
            side.add(line, words.fold(0, |bits, word| bits | 1 << word), access);
            at = stop;
        }
    }

    fn record(&mut self, right: bool) -> Record {
        let [a, b] = &mut self.sides;
        let mut lines = Vec::new();
        for (&line, first) in &a.lines {
            let Some(second) = b.lines.get(&line) else {
                continue;
            };
            if !(first.touches.wrote() || second.touches.wrote()) {
                continue;
            }
            let words =
                first.written & (second.read | second.written) | second.written & first.read;
            lines.push(Shared {
                line,
                vaddr: first.vaddr,
                words,
                cpus: [first.touches.clone(), second.touches.clone()],
            });
        }
        let conflicts = lines.len() as u64;
        // Truly shared lines first; the order does not depend on the tables' order.
        lines.sort_by_key(|shared| (shared.words == 0, shared.line));
        lines.truncate(WRITTEN);
        Record::Window {
            case: self.case,
            right,
            ticks: self.ticks,
            interrupts: self.interrupts,
            touched: [a.lines.len() as u64, b.lines.len() as u64],
            overflow: a.overflow || b.overflow,
            conflicts,
            lines,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(cpu: u32, addr: u64, kind: Kind, store: bool) -> Access {
        let (pc, vaddr) = (0xffff_ffff_8000_0000 + addr, 0xffff_8880_0000_0000 + addr);
        Access {
            cpu,
            pc,
            kind,
            vaddr,
            addr,
            bytes: 8,
            store,
        }
    }

    fn play(accesses: &[Access]) -> (u64, Vec<Shared>) {
        let mut window = Window::default();
        window.marker(Marker::Digit(1));
        window.marker(Marker::Digit(2));
        window.marker(Marker::Open);
        accesses.iter().for_each(|access| window.access(access));
        window.marker(Marker::Close);
        window.access(&access(0, 0, Kind::Plain, true));
        window.access(&access(1, 0, Kind::Plain, true));
        match window.marker(Marker::Right) {
            Some(Record::Window {
                case: 0x102,
                right: true,
                conflicts,
                lines,
                ..
            }) => (conflicts, lines),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_line_that_both_touch_conflicts_if_one_writes() {
        let (plain, load) = (Kind::Plain, false);
        assert_eq!(
            play(&[access(0, 64, plain, load), access(1, 64, plain, load)]).0,
            0
        );
        assert_eq!(
            play(&[access(0, 64, plain, true), access(1, 128, plain, true)]).0,
            0
        );
        assert_eq!(
            play(&[access(0, 64, plain, true), access(0, 64, plain, true)]).0,
            0
        );
        let (conflicts, lines) = play(&[access(0, 64, plain, true), access(1, 72, plain, load)]);
        assert_eq!((conflicts, lines[0].line, lines[0].words), (1, 64, 0));
        let (_, lines) = play(&[
            access(1, 72, Kind::Atomic, true),
            access(0, 72, plain, load),
        ]);
        assert_eq!(
            (
                lines[0].words,
                lines[0].cpus[1].atomics,
                lines[0].cpus[0].loads
            ),
            (2, 1, 1)
        );
    }

    #[test]
    fn an_access_across_two_lines_touches_both() {
        let wide = Access {
            bytes: 16,
            ..access(0, 120, Kind::Plain, true)
        };
        let (conflicts, _) = play(&[
            wide,
            access(1, 64, Kind::Plain, false),
            access(1, 128, Kind::Plain, false),
        ]);
        assert_eq!(conflicts, 2);
    }

    #[test]
    fn places_are_named_with_the_calls_around_them() {
        let call = |pc, slot| Access {
            pc,
            vaddr: slot,
            ..access(0, 0x1000, Kind::Call, true)
        };
        let back = |slot| Access {
            vaddr: slot,
            ..access(0, 0x1000, Kind::Return, false)
        };
        let place = |pc| Access {
            pc,
            ..access(0, 64, Kind::Plain, true)
        };
        let other = access(1, 64, Kind::Plain, false);
        let (_, lines) = play(&[
            call(1, 800),
            call(2, 792),
            back(792),
            call(3, 792),
            place(9),
            other,
        ]);
        assert_eq!(lines[0].cpus[0].store, [9, 3, 1]);
        // On another stack: the calls on the old one are not callers.
        let (_, lines) = play(&[call(1, 800), call(4, 1 << 20), place(9), other]);
        assert_eq!(lines[0].cpus[0].store, [9, 4]);
    }

    #[test]
    fn a_dropped_window_yields_nothing_and_interrupts_are_counted_within() {
        let mut window = Window::default();
        window.interrupted(true);
        window.marker(Marker::Open);
        window.interrupted(true);
        window.interrupted(false);
        window.marker(Marker::Close);
        window.interrupted(true);
        assert_eq!(window.marker(Marker::Drop), None);
        let Some(Record::Window {
            ticks,
            interrupts,
            right,
            ..
        }) = window.marker(Marker::Wrong)
        else {
            panic!("no record")
        };
        assert_eq!((ticks, interrupts, right), (1, 1, false));
    }

    #[test]
    fn a_window_that_touches_too_much_says_so() {
        let mut window = Window::default();
        window.marker(Marker::Open);
        for line in 0..LINES as u64 + 10 {
            window.access(&access(0, line * LINE, Kind::Plain, false));
        }
        let Some(Record::Window {
            overflow, touched, ..
        }) = window.marker(Marker::Right)
        else {
            panic!("no record")
        };
        assert!(overflow && touched == [LINES as u64, 0]);
    }
}
