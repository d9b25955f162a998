//! Files of one crate that import one another in a ring can only be read, and changed, together.

use crate::imports::Imports;
use crate::{Finding, Tree, arrows, table};
use std::collections::{BTreeMap, BTreeSet};

/// An import: a file, the first line that imports another file, and that one.
pub type Arrow = (String, usize, String);

/// The largest ring of imports among the files of the crate in `dir`: its files, and the imports among them. Empty if there
/// is none.
pub fn largest(tree: &Tree, dir: &str) -> (Vec<String>, Vec<Arrow>) {
    let Imports { files, to } = &Imports::of(tree, dir);
    let rings = rings(to);
    let Some(ring) = rings.into_iter().max_by_key(BTreeSet::len) else {
        return Default::default();
    };
    let arrows = ring.iter().flat_map(|&from| {
        let inward = to[from].iter().filter(|(to, _)| ring.contains(to));
        inward.map(move |(&to, &line)| (files[from].clone(), line, files[to].clone()))
    });
    (
        ring.iter().map(|&f| files[f].clone()).collect(),
        arrows.collect(),
    )
}

/// Crates whose largest ring is not what `allowed` says (the crate, the ring's files), or, where that says nothing, is larger
/// than `most`.
pub fn check(tree: &Tree, most: usize, allowed: &[(&str, usize)]) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut names = BTreeSet::new();
    let inside = |dir: &str| {
        let area = dir.split('/').next().unwrap_or(dir);
        table::RING_AREAS.contains(&area)
    };
    for package in arrows::packages(tree)
        .into_iter()
        .filter(|p| inside(&p.dir))
    {
        let name = package.name.clone();
        let (ring, arrows) = largest(tree, &package.dir);
        let listed = allowed
            .iter()
            .find(|(of, _)| *of == name)
            .map(|(_, size)| *size);
        let size = ring.len();
        if size > listed.unwrap_or(most) {
            let (file, line, _) = &arrows[0];
            found.push(Finding::new(
                file,
                *line,
                format!(
                    "a ring of {size} files that import one another in the crate {name}; {} are allowed",
                    listed.unwrap_or(most)
                ),
                format!(
                    "move what both sides need to a file below them, or pass it as an argument; `cargo run -p house --example ring {}` lists the imports",
                    package.dir
                ),
            ));
        } else if let Some(listed) = listed.filter(|l| size < *l) {
            found.push(Finding::in_table(
                format!("RINGS allows {name} a ring of {listed} files; its largest has {size}"),
                if size <= most {
                    "take the entry out"
                } else {
                    "write the smaller number"
                },
            ));
        }
        names.insert(name);
    }
    for (name, _) in allowed.iter().filter(|(name, _)| !names.contains(*name)) {
        found.push(Finding::in_table(
            format!("RINGS has {name}, which is no crate"),
            "take the entry out, or give the new crates theirs",
        ));
    }
    found
}

/// Strongly connected components of more than one file, by Tarjan's algorithm.
fn rings(to: &[BTreeMap<usize, usize>]) -> Vec<BTreeSet<usize>> {
    struct Search<'a> {
        to: &'a [BTreeMap<usize, usize>],
        order: Vec<Option<usize>>,
        low: Vec<usize>,
        open: Vec<usize>,
        next: usize,
        rings: Vec<BTreeSet<usize>>,
    }
    impl Search<'_> {
        fn visit(&mut self, at: usize) {
            (self.order[at], self.low[at]) = (Some(self.next), self.next);
            self.next += 1;
            self.open.push(at);
            for &to in self.to[at].keys() {
                match self.order[to] {
                    None => {
                        self.visit(to);
                        self.low[at] = self.low[at].min(self.low[to]);
                    }
                    Some(order) if self.open.contains(&to) => {
                        self.low[at] = self.low[at].min(order);
                    }
                    Some(_) => {}
                }
            }
            if Some(self.low[at]) == self.order[at] {
                let begin = self.open.iter().position(|&o| o == at).unwrap_or(0);
                let ring: BTreeSet<usize> = self.open.drain(begin..).collect();
                if ring.len() > 1 {
                    self.rings.push(ring);
                }
            }
        }
    }
    let count = to.len();
    let mut search = Search {
        to,
        order: vec![None; count],
        low: vec![0; count],
        open: Vec::new(),
        next: 0,
        rings: Vec::new(),
    };
    for file in 0..count {
        if search.order[file].is_none() {
            search.visit(file);
        }
    }
    search.rings
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = "[package]\nname = \"it\"\n";

    /// The crate's files, without `kernel/it/src/`.
    fn crate_of<'a>(files: &[(&'a str, &'a str)]) -> Vec<(String, &'a str)> {
        let paths = files
            .iter()
            .map(|(p, t)| (format!("kernel/it/src/{p}"), *t));
        paths
            .chain([("kernel/it/Cargo.toml".to_owned(), MANIFEST)])
            .collect()
    }

    fn ring(files: &[(&str, &str)]) -> usize {
        let files = crate_of(files);
        let files: Vec<(&str, &str)> = files.iter().map(|(p, t)| (&**p, *t)).collect();
        largest(&Tree::of(&files), "kernel/it").0.len()
    }

    #[test]
    fn one_way_is_no_ring() {
        assert_eq!(
            ring(&[
                ("lib.rs", "mod a; mod b;"),
                ("a.rs", "use crate::b::B;"),
                ("b.rs", "pub struct B;")
            ]),
            0
        );
    }

    #[test]
    fn rings_are_found_by_every_kind_of_path() {
        for back in [
            "use crate::a::A;",
            "use super::{a};",
            "use crate::{self as root, a::{A, C as D}};",
            "fn f() { super::a::g() }",
            "fn f() -> crate::a::A { loop {} }",
            "fn f() { put!(out, \"{}\", crate::a::g()) }",
            "mod inner { fn f() { super::super::a::g() } }",
            "use super::a as other; fn f() { other::g() }",
        ] {
            let files = [
                ("lib.rs", "mod a; mod b;"),
                ("a.rs", "use crate::b::B;"),
                ("b.rs", back),
            ];
            assert_eq!(ring(&files), 2, "{back}");
        }
    }

    #[test]
    fn tests_rights_and_declarations_import_nothing() {
        for fine in [
            "#[cfg(test)] mod tests { use crate::a::A; }",
            "pub(in crate::a) struct B;",
            "/// As [`crate::a`] does.\npub struct B;",
            "use other::a::A;",
        ] {
            let files = [
                ("lib.rs", "mod a; mod b;"),
                ("a.rs", "use crate::b::B;"),
                ("b.rs", fine),
            ];
            assert_eq!(ring(&files), 0, "{fine}");
        }
    }

    #[test]
    fn words_that_children_take_back_from_their_parent_make_a_ring() {
        let ring = |parent| {
            let child = "use super::Args; pub fn go(_: Args) {}";
            ring(&[
                ("main.rs", "mod a;"),
                ("a/mod.rs", parent),
                ("a/c.rs", child),
            ])
        };
        assert_eq!(ring("mod c; pub struct Args; use c::go;"), 2);
        assert_eq!(
            ring("mod c; pub struct Args; pub use c::go; fn f() { go(Args) }"),
            2
        );
        assert_eq!(
            ring("mod c; pub struct Args; pub use c::go;"),
            0,
            "handing on is no import"
        );
    }

    #[test]
    fn names_that_are_handed_on_lead_to_their_files() {
        let root = "mod a; mod b; pub use a::A; pub use b::*; #[macro_use] mod m;";
        let ring = |b| {
            ring(&[
                ("lib.rs", root),
                ("a.rs", "use crate::B; pub struct A;"),
                ("b.rs", b),
                ("m.rs", ""),
            ])
        };
        assert_eq!(ring("use crate::A; pub struct B;"), 2);
        assert_eq!(ring("use super::A as Other; pub struct B;"), 2);
        assert_eq!(ring("pub struct B;"), 0);
    }

    #[test]
    fn the_table_is_kept_true() {
        let files = crate_of(&[
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", "use crate::b;"),
            ("b.rs", "use crate::a;"),
        ]);
        let files: Vec<(&str, &str)> = files.iter().map(|(p, t)| (&**p, *t)).collect();
        let check = |most, allowed: &[(&str, usize)]| check(&Tree::of(&files), most, allowed).len();
        assert_eq!(check(2, &[]), 0);
        assert_eq!(check(1, &[]), 1);
        assert_eq!(check(1, &[("it", 2)]), 0);
        assert_eq!(check(1, &[("it", 3)]), 1);
        assert_eq!(check(2, &[("gone", 3)]), 1);
    }
}
