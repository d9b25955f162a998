//! Mutation points: the steps and the checks that a protocol of `ksync` or `vm` rests on.
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
//! | hand | what [`HAND`] spells out | that |
//!
//! Each point becomes a test of a number at run time, so that one build holds all mutants. `walk` finds them.

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
            Kind::Hand => "hand",
        }
    }
}

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
    /// The crate it is in.
    pub fn part(&self) -> &str {
        self.file.split('/').nth(1).unwrap_or_default()
    }

    /// The file and the function: what the key begins with.
    pub fn place(&self) -> &str {
        let end = self.key.match_indices(' ').nth(1).map(|(at, _)| at);
        &self.key[..end.unwrap_or(self.key.len())]
    }
}

/// Methods that take a lock.
pub const LOCKS: [&str; 5] = [
    "lock",
    "lock_nested",
    "lock_leaf",
    "lock_directory",
    "lock_lower_directory",
];
/// Methods that note something down. What saves time alone is left out (`set_counted`).
pub const RECORDS: [&str; 14] = [
    "record",
    "record_all",
    "flush_pending",
    "raise_pending",
    "widen_pending",
    "lower_pending",
    "bump_generation",
    "set_fold_hint",
    "count_another",
    "set_folded",
    "set_own",
    "set_swept",
    "sweep_is_shared",
    "leave_page",
];
/// Methods that change a state.
pub const STATES: [&str; 4] = ["kill", "set_dead", "set_needs_copy", "renew"];
/// Functions that are fences.
pub const FENCES: [&str; 3] = ["fence", "fence_after_rmw", "fence_between_loads"];
/// Functions that invalidate.
pub const FLUSHES: [&str; 2] = ["send", "reload"];
/// Methods that free after a grace period.
pub const RETIRES: [&str; 4] = ["retire", "retire_link", "retire_frame", "retire_frames"];
/// Methods that free at once.
pub const FREES: [&str; 2] = ["free", "free_bulk"];
/// Orderings stronger than relaxed.
pub const ORDERS: [&str; 4] = ["Acquire", "Release", "AcqRel", "SeqCst"];

/// Questions of functions and closures, and the answer on which the asker goes on as if nothing had changed.
pub const ASKED: [(&str, bool); 9] = [
    ("allows", true),
    ("also", true),
    ("can_extend", true),
    ("check", true),
    ("cut_off", false),
    ("identity", true),
    ("is_fresh", true),
    ("is_marked", false),
    ("still", true),
];
/// The same of methods. Questions of cost alone are left out (`may_ask`), and those after which one looks again (`want`).
pub const CHECKS: [(&str, bool); 31] = [
    ("check", true),
    ("empty_above", true),
    ("empty_but", true),
    ("front_writable", true),
    ("has_index", true),
    ("has_second", false),
    ("holds", true),
    ("is", true),
    ("is_closed", false),
    ("is_dead", false),
    ("is_empty", true),
    ("is_frame_due", false),
    ("is_full", false),
    ("is_hard_busy", false),
    ("is_own", true),
    ("is_pending", false),
    ("is_private", true),
    ("is_sole", true),
    ("is_still", true),
    ("is_swept", true),
    ("is_unborn", false),
    ("kill_if_empty", true),
    ("knows_own", true),
    ("may_move", true),
    ("needs_copy", false),
    ("notify", true),
    ("overlaps", false),
    ("same_layers", true),
    ("take_hard_busy", true),
    ("take_soft_busy", true),
    ("try_upgrade_busy", true),
];
/// Where `is_empty` asks for the state of something: files of entries and layers. Elsewhere it asks for a list.
pub const EMPTY_IN: [&str; 3] = ["/pmap/", "/fault/", "/backing/"];

/// Functions that only tell people something.
pub const TELLING: [&str; 4] = ["fmt", "info", "usage", "anonymous_pages"];
/// Where `check` is no question.
pub const RANKS: &str = "class.rs";

/// Words that make a comparison one of what was seen with what is.
pub const COMPARED: [&str; 13] = [
    "state",
    "generation",
    "stamp",
    "held",
    "round",
    "epoch",
    "global",
    "announced",
    "looked",
    "pfn",
    "merged",
    "units",
    "uses",
];

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
    use std::fs;
    use std::path::Path;

    fn sources(dir: &Path, all: &mut String) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => sources(&path, all),
                false => *all += &fs::read_to_string(&path).unwrap_or_default(),
            }
        }
    }

    /// A name that has changed there finds nothing here, and its points are gone without a word.
    #[test]
    fn every_name_of_the_tables_is_called_somewhere() {
        let mut text = String::new();
        for part in ["ksync", "vm"] {
            let dir = machine::tools::root().join("crates").join(part);
            sources(&dir.join("src"), &mut text);
        }
        let methods = [&LOCKS[..], &RECORDS, &STATES, &RETIRES, &FREES].concat();
        let methods = methods.into_iter().chain(CHECKS.map(|(name, _)| name));
        let functions = [&FENCES[..], &FLUSHES].concat();
        let functions = functions.into_iter().chain(ASKED.map(|(name, _)| name));
        let calls = methods
            .map(|name| format!(".{name}("))
            .chain(functions.map(|name| format!("{name}(")));
        let absent: Vec<String> = calls.filter(|call| !text.contains(call)).collect();
        assert!(absent.is_empty(), "no call of {absent:?}");
    }
}
