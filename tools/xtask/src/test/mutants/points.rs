//! Mutation points: calls that a protocol of `ksync` or `vm` rests on, found in the source text.
//!
//! | kind | calls | what the mutant does |
//! |---|---|---|
//! | lock | `.lock()` and its kin | holds nothing |
//! | flush | `.finish(..)`, `send(..)`, `reload(..)` | invalidates nothing |
//! | record | `.record(..)`, `.record_all(..)`, `.settle(..)`, pending counts, generations | leaves it out |
//! | state | `.kill()`, `.set_dead()`, `.set_needs_copy(..)` | leaves it out |
//! | fence | `fence(..)` | leaves it out |
//! | order | `Acquire`, `Release`, `AcqRel`, `SeqCst` in `ksync` | relaxed, where loom can see it |
//!
//! Each point becomes a test of a number at run time, so that one build holds all mutants.

use std::fmt::Write;

/// What a point is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A lock is taken.
    Lock,
    /// Translations are invalidated.
    Flush,
    /// What is to be invalidated is noted down.
    Record,
    /// The state of something changes, so that others start again.
    State,
    /// A full fence.
    Fence,
    /// The ordering of an atomic access.
    Order,
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
}

const LOCKS: [&str; 6] = [
    ".lock()",
    ".lock_nested()",
    ".lock_leaf()",
    ".lock_directory()",
    ".lock_lower_directory()",
    ".lock::<",
];
const RECORDS: [&str; 6] = [
    ".record(",
    ".record_all(",
    ".settle(",
    ".raise_pending(",
    ".lower_pending(",
    ".bump_generation(",
];
const STATES: [&str; 3] = [".kill()", ".set_dead()", ".set_needs_copy("];
const FENCES: [&str; 2] = ["fence(", "ksync::fence_after_rmw("];
const CALLS: [&str; 2] = ["send(vm, ", "reload(vm, "];
const ORDERS: [&str; 4] = ["Acquire", "Release", "AcqRel", "SeqCst"];

/// Rewrites a file so that each point asks whether it is the mutant; adds the points to `points`.
pub fn rewrite(file: &str, source: &str, points: &mut Vec<Point>) -> String {
    let own = file.starts_with("crates/ksync/");
    let path = if own { "crate" } else { "ksync" };
    let mut out = String::with_capacity(source.len() * 2);
    let mut in_use = false;
    let mut function = String::new();
    for (n, line) in source.lines().enumerate() {
        let text = line.trim();
        let opens_module = source
            .lines()
            .nth(n + 1)
            .is_some_and(|next| next.starts_with("mod ") && next.trim_end().ends_with('{'));
        if opens_module && (text == "#[cfg(test)]" || text.starts_with("#[cfg(feature")) {
            // Tests, and what is not built by default, stand at the end of a file.
            out.extend(source.lines().skip(n).flat_map(|line| [line, "\n"]));
            break;
        }
        if let Some(name) = function_name(text) {
            function = name.into();
        }
        in_use |= text.starts_with("use ") || text.starts_with("pub use ");
        let skip = in_use
            || text.starts_with("//")
            || text.contains("fn ")
            || text.contains("debug_assert");
        in_use &= !text.ends_with(';');
        if skip {
            out.push_str(line);
        } else {
            let mut place = Place {
                file,
                path,
                line: n + 1,
                function: &function,
                text,
                points,
            };
            out.push_str(&place.line(line, own));
        }
        out.push('\n');
    }
    out
}

struct Place<'a> {
    file: &'a str,
    path: &'a str,
    line: usize,
    function: &'a str,
    text: &'a str,
    points: &'a mut Vec<Point>,
}

impl Place<'_> {
    fn point(&mut self, kind: Kind) -> usize {
        let id = self.points.len() + 1;
        let name = format!(
            "{} {} {} `{}`",
            self.file.trim_start_matches("crates/"),
            self.function,
            kind.name(),
            self.text
        );
        let same = self.points.iter().filter(|p| p.key.starts_with(&name));
        let key = match same.count() {
            0 => name,
            n => format!("{name} ({})", n + 1),
        };
        self.points.push(Point {
            id,
            kind,
            file: self.file.into(),
            line: self.line,
            key,
        });
        id
    }

    fn line(&mut self, line: &str, own: bool) -> String {
        let indent = &line[..line.len() - line.trim_start().len()];
        let is_statement = self.text.ends_with(");");
        let guard = |place: &mut Self, kind| {
            let id = place.point(kind);
            format!(
                "{indent}if !{}::mutant::is({id}) {{ {} }}",
                place.path, place.text
            )
        };
        if is_statement && FENCES.iter().any(|call| self.text.starts_with(call)) {
            return guard(self, Kind::Fence);
        }
        if is_statement && CALLS.iter().any(|call| self.text.contains(call)) {
            return guard(self, Kind::Flush);
        }
        if is_statement
            && !self.text.starts_with("let ")
            && !self.text.contains("=>")
            && balanced(self.text)
        {
            if RECORDS.iter().any(|call| self.text.contains(call)) {
                return guard(self, Kind::Record);
            }
            if STATES.iter().any(|call| self.text.contains(call)) {
                return guard(self, Kind::State);
            }
        }
        let mut line = line.to_string();
        for call in LOCKS {
            line = self.insert_before(&line, call, Kind::Lock, "holding_nothing");
        }
        if !own {
            line = self.insert_before(&line, ".finish(vm)", Kind::Flush, "flushing_nothing");
        } else if line.contains('(') || line.contains(',') {
            line = self.orders(&line);
        }
        line
    }

    /// Puts `.method(id)` before each `call`.
    fn insert_before(&mut self, line: &str, call: &str, kind: Kind, method: &str) -> String {
        let mut out = String::new();
        let mut rest = line;
        while let Some(at) = rest.find(call) {
            let id = self.point(kind);
            out.push_str(&rest[..at]);
            let _infallible = write!(out, ".{method}({id}){call}");
            rest = &rest[at + call.len()..];
        }
        out + rest
    }

    /// Makes the orderings of a line questions.
    fn orders(&mut self, line: &str) -> String {
        let mut out = String::new();
        let mut rest = line;
        while let Some((at, order)) = ORDERS
            .iter()
            .filter_map(|order| rest.find(order).map(|at| (at, *order)))
            .min()
        {
            let before = rest[..at].chars().next_back();
            let after = rest[at + order.len()..].chars().next();
            let word =
                |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':');
            out.push_str(&rest[..at]);
            if word(before) || word(after) || line.contains("fence(") {
                out.push_str(order);
            } else {
                let id = self.point(Kind::Order);
                let _infallible = write!(out, "{}::mutant::order({id}, {order})", self.path);
            }
            rest = &rest[at + order.len()..];
        }
        out + rest
    }
}

/// The name of the function that begins on a line.
fn function_name(text: &str) -> Option<&str> {
    let (before, after) = text.split_once("fn ")?;
    let is_head = before
        .chars()
        .all(|c| c.is_alphanumeric() || "() _:".contains(c));
    let end = after.find(|c: char| !c.is_alphanumeric() && c != '_')?;
    (is_head && end > 0 && !before.contains("//")).then(|| &after[..end])
}

/// Whether a line is a whole statement.
fn balanced(text: &str) -> bool {
    let count = |c| text.matches(c).count();
    count('(') == count(')')
        && count('{') == count('}')
        && !text.starts_with('.')
        && !text.starts_with('}')
}
