//! Files and functions that are long have an entry that says why; the entry may only shrink.

use crate::{Finding, Tree, code};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// Entries leave this many lines of room at most, so that a change of a line or two needs no change of the table.
pub const ROOM: usize = 10;

/// A long thing, how long it is, and where.
struct Long {
    file: String,
    /// The function, with its type; empty for a file.
    name: String,
    line: usize,
    lines: usize,
}

/// An entry: the end of the file's path, which a move to another crate leaves alone; the function (empty for a file), the most lines, and why.
pub type Entry = (&'static str, &'static str, usize, &'static str);

/// Files of more than `most` lines, against `listed`.
pub fn check_files(tree: &Tree, most: usize, listed: &[Entry]) -> Vec<Finding> {
    let long = tree.with(".rs").filter_map(|source| {
        let lines = source.text.lines().count();
        (lines > most).then(|| Long {
            file: source.path.clone(),
            name: String::new(),
            line: 1,
            lines,
        })
    });
    compare(&long.collect::<Vec<_>>(), most, listed, "LONG_FILES")
}

/// Functions of more than `most` lines, against `listed`.
pub fn check_functions(tree: &Tree, most: usize, listed: &[Entry]) -> Vec<Finding> {
    let mut long = Vec::new();
    for source in tree.with(".rs") {
        let Some(file) = code::parse(&source.text) else {
            continue;
        };
        let mut reader = Functions {
            of: String::new(),
            most,
            file: &source.path,
            long: &mut long,
        };
        reader.visit_file(&file);
    }
    compare(&long, most, listed, "LONG_FUNCTIONS")
}

fn compare(long: &[Long], most: usize, listed: &[Entry], table: &str) -> Vec<Finding> {
    let mut found = Vec::new();
    for Long {
        file,
        name,
        line,
        lines,
    } in long
    {
        let entry = listed
            .iter()
            .find(|(of, which, ..)| is_end(file, of) && which == name);
        let what = if name.is_empty() { "the file" } else { &**name };
        let round = lines.next_multiple_of(ROOM);
        match entry {
            None => found.push(Finding::new(
                file,
                *line,
                format!("{what} has {lines} lines; {most} are allowed"),
                format!("split it by subject, or say why not: `(\"{file}\", \"{name}\", {round}, \"why\"),` in {table} of tools/house/src/table.rs"),
            )),
            Some((.., bound, _)) if lines > bound => found.push(Finding::new(
                file,
                *line,
                format!("{what} has {lines} lines; its entry in {table} allows {bound}"),
                "split it by subject; the entry may only shrink",
            )),
            Some((.., bound, _)) if *bound >= lines + ROOM => found.push(Finding::in_table(
                format!("{table} allows {bound} lines for {what} of {file}, which has {lines}"),
                format!("write {round}"),
            )),
            Some(_) => {}
        }
    }
    for (file, name, ..) in listed {
        if !long
            .iter()
            .any(|l| is_end(&l.file, file) && l.name == *name)
        {
            found.push(Finding::in_table(
                format!("{table} has {file} {name}, which is not long, or not there"),
                "take the entry out, or follow the code to its new place",
            ));
        }
    }
    found
}

/// Whether a path ends in `end`, at a slash.
fn is_end(path: &str, end: &str) -> bool {
    let front = path.strip_suffix(end);
    front.is_some_and(|front| front.is_empty() || front.ends_with('/'))
}

struct Functions<'a> {
    /// The type whose functions these are, with its colons.
    of: String,
    most: usize,
    file: &'a str,
    long: &'a mut Vec<Long>,
}

impl Functions<'_> {
    fn function(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let first = signature.span().start().line;
        let lines = block.span().end().line + 1 - first;
        if lines > self.most {
            self.long.push(Long {
                file: self.file.to_owned(),
                name: format!("{}{}", self.of, signature.ident),
                line: first,
                lines,
            });
        }
    }
}

impl Visit<'_> for Functions<'_> {
    fn visit_item_fn(&mut self, item: &syn::ItemFn) {
        self.function(&item.sig, &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_item_impl(&mut self, item: &syn::ItemImpl) {
        let outer = std::mem::take(&mut self.of);
        if let syn::Type::Path(path) = &*item.self_ty
            && let Some(last) = path.path.segments.last()
        {
            self.of = format!("{}::", last.ident);
        }
        visit::visit_item_impl(self, item);
        self.of = outer;
    }

    fn visit_impl_item_fn(&mut self, item: &syn::ImplItemFn) {
        self.function(&item.sig, &item.block);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.function(&item.sig, block);
        }
        visit::visit_trait_item_fn(self, item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_files_are_found() {
        let check = |listed: &[Entry]| {
            check_files(&Tree::of(&[("src/a.rs", "\n\n\n\n\n")]), 4, listed).len()
        };
        assert_eq!(check(&[]), 1);
        assert_eq!(check(&[("a.rs", "", 5, "why")]), 0);
        assert_eq!(check(&[("b.rs", "", 5, "why")]), 2);
        assert_eq!(check(&[("a.rs", "", 14, "why")]), 0);
        assert_eq!(
            check(&[("a.rs", "", 15, "why")]),
            1,
            "the entry is too wide"
        );
        assert_eq!(check(&[("a.rs", "", 4, "why")]), 1);
        assert_eq!(check(&[("a.rs", "", 5, "why"), ("b.rs", "", 5, "gone")]), 1);
    }

    #[test]
    fn long_functions_are_found_and_named() {
        let text = "impl A {\n    fn f() {\n        1;\n        2;\n    }\n}\nfn g() {\n}\n";
        let tree = Tree::of(&[("a.rs", text)]);
        let found = check_functions(&tree, 3, &[]);
        assert_eq!((found.len(), found[0].line), (1, 2));
        assert_eq!(check_functions(&tree, 3, &[("a.rs", "A::f", 4, "why")]), []);
    }
}
