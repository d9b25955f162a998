//! Mutation points: the steps and the checks that a protocol of `ksync`, of `vm` or of the kernel rests on.
//!
//! | kind | what is a point | what the mutant does |
//! |---|---|---|
//! | lock | `.lock()` and its kin | holds nothing |
//! | flush | `.finish(vm)`, `send(..)`, `reload(..)` | invalidates nothing |
//! | record | `.record(..)`, `.flush_pending(..)`, pending counts, generations, cursors and hints | leaves it out |
//! | state | `.kill()`, `.set_dead()`, `.set_needs_copy(..)` | leaves it out |
//! | fence | `fence(..)` | leaves it out |
//! | order | `Acquire`, `Release`, `AcqRel`, `SeqCst` | relaxed, where loom can see it |
//! | check | calls that ask whether something still is as it was seen | believes that it is |
//! | compare | comparisons of states, generations, epochs, rounds, frames | finds no change |
//! | grace | a retired frame or block; a freed frame | freed at once; never |
//! | busy | the end of a busy state; `?` while a page is busy | stays busy; on the error's way out |
//! | wake | a call that wakes a thread | wakes nobody |
//! | guard | the condition of an `if` that leaves the function, the loop or its turn | stays |
//! | hand | what [`HAND`] spells out | that |
//!
//! Each point becomes a test of a number at run time, so that one build holds all mutants. `walk` finds them by the names in `rules`.

use machine::options::Rmap;
use std::collections::BTreeSet;
use std::ops::Range;

/// What a point is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A lock is taken.
    Lock,
    /// Translations are invalidated.
    Flush,
    /// What is to be invalidated, or was found out, is noted down.
    Record,
    /// The state of something changes, so that others start again.
    State,
    /// A full fence.
    Fence,
    /// The ordering of an atomic access.
    Order,
    /// A question whether what was seen still holds.
    Check,
    /// A comparison that answers such a question.
    Compare,
    /// Something is freed after a grace period, or at once.
    Grace,
    /// A page's busy state ends.
    Busy,
    /// A thread is woken.
    Wake,
    /// A condition on which a function, a loop or its turn is left.
    Guard,
    /// Spelled out in [`HAND`].
    Hand,
}

impl Kind {
    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Lock => "lock",
            Kind::Flush => "flush",
            Kind::Record => "record",
            Kind::State => "state",
            Kind::Fence => "fence",
            Kind::Order => "order",
            Kind::Check => "check",
            Kind::Compare => "compare",
            Kind::Grace => "grace",
            Kind::Busy => "busy",
            Kind::Wake => "wake",
            Kind::Guard => "guard",
            Kind::Hand => "hand",
        }
    }
}

/// The parts of the tree that have tests and limits of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// `ksync` and `vm`.
    Vm,
    /// The kernel's crates.
    Kernel,
}

impl Part {
    /// Both.
    pub const ALL: [Part; 2] = [Part::Vm, Part::Kernel];

    /// The file of the points that its tests reach.
    pub fn reach(self) -> &'static str {
        match self {
            Part::Vm => "reach",
            Part::Kernel => "reach-kernel",
        }
    }

    /// That of a file, by its path in the tree.
    pub fn of(file: &str) -> Part {
        match file.starts_with("kernel/") {
            true => Part::Kernel,
            false => Part::Vm,
        }
    }
}

/// Files of lists of entries that one of the two designs has alone.
const STOCK_ALONE: [&str; 3] = ["stock.rs", "stock_reclaim.rs", "lru.rs"];

/// One of them.
#[derive(Clone, Debug)]
pub struct Point {
    /// Its number in this run: the mutant's name.
    pub id: usize,
    /// What it is.
    pub kind: Kind,
    /// File, relative to the root of the tree.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// What names it across runs, as long as its line stays as it is: the function, the kind and the text of the line.
    pub key: String,
}

impl Point {
    /// Whether it is a point of a run on this reverse map: of the default, all that is built with it; of another, its own files.
    pub fn is_built_with(&self, rmap: Rmap) -> bool {
        let other = self.file.strip_prefix("crates/vm/src/rmap/");
        let own = other.and_then(|file| file.strip_prefix("pv/"));
        match (rmap, own) {
            (Rmap::Backings, None) => !matches!(other, Some("naive.rs" | "faulty.rs")),
            (Rmap::Backings, Some(_)) | (_, None) => false,
            (Rmap::PvObm, Some(file)) => !STOCK_ALONE.contains(&file),
            (Rmap::PvStock, Some(file)) => STOCK_ALONE.contains(&file) || file == "lists.rs",
        }
    }

    /// The part of the tree it is in.
    pub fn part(&self) -> Part {
        Part::of(&self.file)
    }

    /// The crate it is in.
    pub fn package(&self) -> &str {
        self.file.split('/').nth(1).unwrap_or_default()
    }

    /// The file and the function: what the key begins with.
    pub fn place(&self) -> &str {
        let end = self.key.match_indices(' ').nth(1).map(|(at, _)| at);
        &self.key[..end.unwrap_or(self.key.len())]
    }

    /// How much the name of a test has to do with the place: words that begin as one of the place does, and the crate before all.
    pub fn kinship(&self, test: &str) -> usize {
        let words = |text: &str| -> BTreeSet<String> {
            let long = text.split(|c: char| !c.is_alphanumeric());
            long.filter_map(|word| word.get(..STEM).map(str::to_owned))
                .collect()
        };
        let place = self.place().split_once("/src/");
        let place = words(&place.map_or("", |(_, inside)| inside).replace('_', " "));
        let shared = words(&test.replace('_', " ")).intersection(&place).count();
        let own = test
            .split_once('/')
            .is_some_and(|(room, _)| room == self.package());
        shared + usize::from(own) * OWN_CRATE
    }
}

/// Letters that make two words one, as "signal" and "signals".
const STEM: usize = 4;
/// What a test of the point's own crate is worth, in words.
const OWN_CRATE: usize = 100;

/// A mutant that no rule makes.
pub struct Hand {
    /// The file.
    pub file: &'static str,
    /// What it is, in a few words: its key.
    pub what: &'static str,
    /// What stands there, once: code, not a comment, which may be put in other words.
    pub from: &'static str,
    /// What stands there in the copy; `$is` is whether this process is the mutant.
    pub to: &'static str,
}

/// Mistakes that a change could make, and that leave out no call.
pub const HAND: [Hand; 8] = [
    Hand {
        file: "crates/vm/src/pmap/mod.rs",
        what: "root_info_or reads the root before the generation",
        from: "pub fn root_info_or(&self, empty_root: Pfn) -> RootInfo {",
        to: "pub fn root_info_or(&self, empty_root: Pfn) -> RootInfo {
        if $is {
            let root = self.root().unwrap_or(empty_root);
            let generation = self.generation.load(SeqCst);
            return RootInfo { root, generation, pmap: self.lookup.id.get() };
        }",
    },
    Hand {
        file: "crates/vm/src/pmap/mod.rs",
        what: "activate reads the root before it enters the set",
        from: "self.active.enter(pin.cpu());",
        to: "if $is {
            let early = self.root_info(vm);
            self.active.enter(pin.cpu());
            return early;
        }
        self.active.enter(pin.cpu());",
    },
    Hand {
        file: "crates/vm/src/backing/mod.rs",
        what: "knows_own takes a hint of any state",
        from: "self.own.load(Relaxed) == own_key(depth, state)",
        to: "let own = self.own.load(Relaxed);
        let state = if $is { own as u32 } else { state };
        own == own_key(depth, state)",
    },
    Hand {
        file: "crates/vm/src/backing/mod.rs",
        what: "replicate resets the fold cursor",
        from: "copy.fold_hint.store(self.fold_hint(), Relaxed);",
        to: "if !$is { copy.fold_hint.store(self.fold_hint(), Relaxed); }",
    },
    Hand {
        file: "crates/vm/src/object/mod.rs",
        what: "holds asks for the identity first",
        from: "pub fn holds(&self, page: &Page, index: u32) -> bool {",
        to: "pub fn holds(&self, page: &Page, index: u32) -> bool {
        if $is {
            let same = page.is(self.identity(), index);
            return same && !page.is_hard_busy();
        }",
    },
    Hand {
        file: "crates/vm/src/object/mod.rs",
        what: "move_page leaves the old slot before it takes the new one",
        from: "debug_assert!(to.is_anon());",
        to: "debug_assert!(to.is_anon());
        if $is {
            self.slots.remove(pin, index, pfn);
            ksync::relax();
            let back = self.slots.insert(&vm.epoch, pin, index, pfn);
            debug_assert!(matches!(back, Ok(true)));
        }",
    },
    Hand {
        file: "crates/ksync/src/close.rs",
        what: "close_all does not look again at what it has opened",
        from: "parts[..closed].iter().rev().for_each(P::open);",
        to: "parts[..closed].iter().rev().for_each(P::open);
        if $is {
            return false;
        }",
    },
    Hand {
        file: "crates/vm/src/pmap/enter.rs",
        what: "enter_flushed fills before it flushes",
        from: "let mut gather = Gather::new();
                gather.over(self, va..end, Loss::Frames);",
        to: "if $is {
                    let before = table.take(at);
                    table.fill(at, leaf);
                    drop(guard);
                    tlb::flush_page(vm, self, va);
                    return Ok(Entered::Replaced(before));
                }
                let mut gather = Gather::new();
                gather.over(self, va..end, Loss::Frames);",
    },
];

/// Points found so far, and the text that each puts into the file that is being read.
pub struct Found<'a> {
    /// The file, relative to the root.
    pub file: &'a str,
    /// Its text.
    pub source: &'a str,
    /// All points, of other files, too.
    pub points: &'a mut Vec<Point>,
    /// What to put where, in the order in which it was found.
    edits: Vec<(usize, bool, String)>,
    /// What to put in the place of what.
    swaps: Vec<(Range<usize>, String)>,
}

impl<'a> Found<'a> {
    /// Nothing found yet.
    pub fn new(file: &'a str, source: &'a str, points: &'a mut Vec<Point>) -> Self {
        Self {
            file,
            source,
            points,
            edits: Vec::new(),
            swaps: Vec::new(),
        }
    }

    /// A point of `function` at an offset; its number.
    pub fn point(&mut self, kind: Kind, function: &str, at: usize) -> usize {
        let before = &self.source[..at];
        let start = before.rfind('\n').map_or(0, |n| n + 1);
        let text = self.source[start..].lines().next().unwrap_or_default();
        self.named(kind, function, at, text.trim())
    }

    fn named(&mut self, kind: Kind, function: &str, at: usize, text: &str) -> usize {
        let id = self.points.len() + 1;
        let file = self.file.trim_start_matches("crates/");
        let name = format!("{file} {function} {} `{text}`", kind.name());
        let same = |p: &&Point| p.key == name || p.key.starts_with(&format!("{name} ("));
        let key = match self.points.iter().filter(same).count() {
            0 => name,
            n => format!("{name} ({})", n + 1),
        };
        self.points.push(Point {
            id,
            kind,
            file: self.file.into(),
            line: self.source[..at].matches('\n').count() + 1,
            key,
        });
        id
    }

    /// Puts `open` before and `close` behind a part of the text. What is around this part is to be put there earlier.
    pub fn around(&mut self, part: &Range<usize>, open: &str, close: &str) {
        self.edits.push((part.start, true, open.into()));
        self.edits.push((part.end, false, close.into()));
    }

    /// Puts `text` at an offset.
    pub fn put(&mut self, at: usize, text: &str) {
        self.edits.push((at, true, text.into()));
    }

    /// Puts the mutants of [`HAND`] in; `path` leads to `ksync`.
    ///
    /// # Errors
    /// What one is to replace does not stand there, or not once.
    pub fn hand(&mut self, path: &str) -> Result<(), String> {
        let file = self.file;
        for hand in HAND.iter().filter(|hand| hand.file == file) {
            let mut found = self.source.match_indices(hand.from);
            let (Some((at, _)), None) = (found.next(), found.next()) else {
                return Err(format!("not there, or more than once: {}", hand.what));
            };
            let function = hand.what.split(' ').next().unwrap_or_default();
            let id = self.named(Kind::Hand, function, at, hand.what);
            let is = format!("{path}::mutant::is({id})");
            let text = hand.to.replace("$is", &is);
            self.swaps.push((at..at + hand.from.len(), text));
        }
        Ok(())
    }

    /// Whether a mutant of [`HAND`] stands at an offset: nothing else is to be put there.
    pub fn is_hand(&self, at: usize) -> bool {
        self.swaps.iter().any(|(part, _)| part.contains(&at))
    }

    /// The text with all that was found in it.
    pub fn text(mut self) -> String {
        // Where parts end at one place, the inner one was found last and is closed first.
        let (opened, mut closed): (Vec<_>, Vec<_>) =
            self.edits.drain(..).partition(|(_, open, _)| *open);
        closed.reverse();
        let mut all: Vec<(Range<usize>, String)> = closed
            .into_iter()
            .chain(opened)
            .map(|(at, _, text)| (at..at, text))
            .chain(self.swaps)
            .collect();
        all.sort_by_key(|(part, _)| part.start);
        let (mut out, mut at) = (String::with_capacity(self.source.len() * 2), 0);
        for (part, text) in all {
            out.push_str(&self.source[at..part.start]);
            out.push_str(&text);
            at = part.end;
        }
        out + &self.source[at..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_of_the_crate_come_first_and_of_them_those_that_share_words() {
        let point = Point {
            id: 1,
            kind: Kind::Guard,
            file: "kernel/proc/src/signal/stop.rs".into(),
            line: 1,
            key: "kernel/proc/src/signal/stop.rs begin_stop guard `if a {`".into(),
        };
        let kin = |test| point.kinship(test);
        assert!(kin("proc/stops a_signal_stops_all") > kin("proc/stops a_child_ends"));
        assert!(kin("proc/stops a_child_ends") > kin("proc/fork a_child_ends"));
        assert!(kin("proc/fork a_child_ends") > kin("vfs/stops a_signal_stops_all"));
    }
}
