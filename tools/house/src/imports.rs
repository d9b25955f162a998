//! Which files of a crate import which.
//!
//! A file imports another one where it names something of it: in `use`, by a path in code, and in the arguments of macros. A
//! name that a module hands on by `pub use` stands for what it leads to, so what takes it imports the file that has it, and
//! the file that hands it on imports nothing by that. `mod x;` and visibilities are no imports, and tests import nothing.

use crate::{Tree, code, tree::Source};
use proc_macro2::{TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};
use syn::visit::{self, Visit};

/// The module path of a file, or of a module within one.
type Module = Vec<String>;

/// A crate's files, and for each the numbers of those that it imports, with the first line that does.
#[derive(Default)]
pub struct Imports {
    /// Their paths.
    pub files: Vec<String>,
    /// By number of the file.
    pub to: Vec<BTreeMap<usize, usize>>,
}

impl Imports {
    /// Reads the crate in `dir`.
    pub fn of(tree: &Tree, dir: &str) -> Imports {
        let root = ["lib.rs", "main.rs"]
            .iter()
            .find_map(|name| tree.file(&format!("{dir}/src/{name}")));
        let mut all = Crate::default();
        if let Some(root) = root {
            all.add(tree, root, Vec::new());
        }
        let to = all
            .files
            .iter()
            .enumerate()
            .map(|(file, (_, parsed, module))| {
                let mut reader = Reader {
                    all: &all,
                    module: module.clone(),
                    found: BTreeMap::new(),
                };
                reader.visit_file(parsed);
                reader.found.remove(&file);
                reader.found
            });
        let to = to.collect();
        let files = all.files.into_iter().map(|(path, ..)| path).collect();
        Imports { files, to }
    }
}

/// What `use` gives a name to in a module.
struct Use {
    /// Empty: all that the module at the path has.
    name: String,
    path: Vec<String>,
    /// Whether others may use the name: then it is an alias, and an import only if the file itself uses it.
    public: bool,
    line: usize,
}

#[derive(Default)]
struct Scope {
    file: usize,
    items: BTreeSet<String>,
    uses: Vec<Use>,
}

/// A crate's modules.
#[derive(Default)]
struct Crate {
    files: Vec<(String, syn::File, Module)>,
    modules: BTreeMap<Module, Scope>,
    /// Macros of the whole crate, by the module that has them.
    macros: BTreeMap<String, Module>,
}

impl Crate {
    /// Reads a module and, as far as it says `mod x;`, those below.
    fn add(&mut self, tree: &Tree, source: &Source, module: Module) {
        let Some(parsed) = code::parse(&source.text) else {
            return;
        };
        let (dir, name) = source.path.rsplit_once('/').unwrap_or(("", &source.path));
        let below = match name {
            "lib.rs" | "main.rs" | "mod.rs" => dir.to_owned(),
            _ => format!("{dir}/{}", name.trim_end_matches(".rs")),
        };
        let file = self.files.len();
        let mut children = Vec::new();
        self.scope(&parsed.items, &module, &below, file, &mut children);
        self.files.push((source.path.clone(), parsed, module));
        for (child, at) in children {
            let found = [format!("{at}.rs"), format!("{at}/mod.rs")];
            if let Some(source) = found.iter().find_map(|path| tree.file(path)) {
                self.add(tree, source, child);
            }
        }
    }

    fn scope(
        &mut self,
        items: &[syn::Item],
        module: &Module,
        below: &str,
        file: usize,
        children: &mut Vec<(Module, String)>,
    ) {
        let mut scope = Scope {
            file,
            ..Scope::default()
        };
        for item in items
            .iter()
            .filter(|item| !code::is_test(code::attributes(item)))
        {
            match item {
                syn::Item::Mod(item) => {
                    let mut path = module.clone();
                    path.push(item.ident.to_string());
                    let at = format!("{below}/{}", item.ident);
                    match &item.content {
                        Some((_, items)) => self.scope(items, &path, &at, file, children),
                        None => children.push((path, at)),
                    }
                }
                syn::Item::Use(item) => {
                    let public = !matches!(item.vis, syn::Visibility::Inherited);
                    used(&item.tree, public, &mut Vec::new(), &mut scope.uses);
                }
                syn::Item::Macro(item) => {
                    if let Some(name) = &item.ident {
                        self.macros.insert(name.to_string(), module.clone());
                    }
                }
                item => scope.items.extend(name_of(item)),
            }
        }
        self.modules.insert(module.clone(), scope);
    }

    /// The file of what a path names, as seen from a module; none if the path leads out of the crate.
    fn file_of(&self, module: &Module, path: &[String], depth: usize) -> Option<usize> {
        let (mut at, mut rest) = (module.clone(), path);
        match rest.first()?.as_str() {
            "crate" => (at, rest) = (Vec::new(), &rest[1..]),
            "self" => rest = &rest[1..],
            "super" => {}
            name => {
                let scope = self.modules.get(&at)?;
                let child = [&at[..], &[name.to_owned()]].concat();
                let known = self.modules.contains_key(&child)
                    || scope.items.contains(name)
                    || scope.uses.iter().any(|u| u.name == name);
                if !known {
                    return None;
                }
            }
        }
        while rest.first().is_some_and(|part| part == "super") {
            at.pop()?;
            rest = &rest[1..];
        }
        while let Some(part) = rest.first() {
            at.push(part.clone());
            if !self.modules.contains_key(&at) {
                at.pop();
                break;
            }
            rest = &rest[1..];
        }
        let scope = self.modules.get(&at)?;
        let Some(name) = rest.first().filter(|_| depth > 0) else {
            return Some(scope.file);
        };
        if let Some(alias) = scope.uses.iter().find(|u| u.name == *name) {
            let path = [&alias.path[..], &rest[1..]].concat();
            return self.file_of(&at, &path, depth - 1);
        }
        for glob in scope.uses.iter().filter(|u| u.name.is_empty() && u.public) {
            let below = [&at[..], &glob.path[..]].concat();
            if self
                .modules
                .get(&below)
                .is_some_and(|m| m.items.contains(name))
            {
                return self.file_of(&below, &["self".to_owned(), name.clone()], depth - 1);
            }
        }
        if at.is_empty()
            && !scope.items.contains(name)
            && let Some(home) = self.macros.get(name)
        {
            return self.modules.get(home).map(|m| m.file);
        }
        Some(scope.file)
    }
}

fn name_of(item: &syn::Item) -> Option<String> {
    use syn::Item;
    let ident = match item {
        Item::Const(i) => &i.ident,
        Item::Enum(i) => &i.ident,
        Item::Fn(i) => &i.sig.ident,
        Item::Static(i) => &i.ident,
        Item::Struct(i) => &i.ident,
        Item::Trait(i) => &i.ident,
        Item::Type(i) => &i.ident,
        Item::Union(i) => &i.ident,
        _ => return None,
    };
    Some(ident.to_string())
}

fn used(tree: &syn::UseTree, public: bool, path: &mut Vec<String>, uses: &mut Vec<Use>) {
    use syn::UseTree;
    let mut add = |name: String, path: Vec<String>, line| {
        uses.push(Use {
            name,
            path,
            public,
            line,
        });
    };
    let line_of = |ident: &syn::Ident| ident.span().start().line;
    let full = |ident: &syn::Ident| {
        let mut full = path.clone();
        if ident != "self" {
            full.push(ident.to_string());
        }
        full
    };
    match tree {
        UseTree::Path(p) => {
            path.push(p.ident.to_string());
            used(&p.tree, public, path, uses);
            path.pop();
        }
        UseTree::Group(group) => {
            for tree in &group.items {
                used(tree, public, path, uses);
            }
        }
        UseTree::Glob(glob) => add(
            String::new(),
            path.clone(),
            glob.star_token.spans[0].start().line,
        ),
        UseTree::Name(n) => {
            let path = full(&n.ident);
            // `use x;` of a crate gives nothing a new name.
            if path.len() > 1 {
                add(path[path.len() - 1].clone(), path, line_of(&n.ident));
            } else if n.ident == "self" {
                add(path[0].clone(), path, line_of(&n.ident));
            }
        }
        UseTree::Rename(r) => add(r.rename.to_string(), full(&r.ident), line_of(&r.ident)),
    }
}

/// So many aliases of aliases are followed.
const DEPTH: usize = 8;

/// Finds the files that a file names something of, with the first line that does.
struct Reader<'a> {
    all: &'a Crate,
    module: Module,
    found: BTreeMap<usize, usize>,
}

impl Reader<'_> {
    fn name(&mut self, path: &[String], line: usize) {
        if let Some(file) = self.all.file_of(&self.module, path, DEPTH) {
            self.found.entry(file).or_insert(line);
        }
    }

    /// A path in code. One of a single word, such as a variable's, counts only where the module hands the name on: names of
    /// its other imports are counted with them.
    fn path(&mut self, path: &[String], line: usize) {
        let handed_on = |name: &String| {
            let scope = self.all.modules.get(&self.module);
            scope.is_some_and(|m| m.uses.iter().any(|u| u.public && u.name == *name))
        };
        if path.len() > 1 || path.iter().any(handed_on) {
            self.name(path, line);
        }
    }

    /// What the module that the reader is in gives a name to for itself.
    fn uses(&mut self) {
        let all = self.all;
        for one in all
            .modules
            .get(&self.module)
            .into_iter()
            .flat_map(|m| &m.uses)
        {
            if !one.public {
                self.name(&one.path, one.line);
            }
        }
    }

    fn tokens(&mut self, tokens: TokenStream) {
        code::each_run(tokens, &mut |run| {
            let mut at = 0;
            while at < run.len() {
                let (path, line, end) = path_at(run, at);
                self.path(&path, line);
                at = end.max(at + 1);
            }
        });
    }
}

/// The path `a::b::c` that begins at a token, its line, and where it ends.
fn path_at(run: &[TokenTree], begin: usize) -> (Vec<String>, usize, usize) {
    let (mut path, mut line, mut at) = (Vec::new(), 0, begin);
    while let Some(TokenTree::Ident(ident)) = run.get(at) {
        line = ident.span().start().line;
        path.push(ident.to_string());
        at += 1;
        let colon =
            |n: usize| matches!(run.get(n), Some(TokenTree::Punct(p)) if p.as_char() == ':');
        if !(colon(at) && colon(at + 1)) {
            break;
        }
        at += 2;
    }
    (path, line, at)
}

impl Visit<'_> for Reader<'_> {
    fn visit_file(&mut self, file: &syn::File) {
        self.uses();
        visit::visit_file(self, file);
    }

    fn visit_item(&mut self, item: &syn::Item) {
        if code::is_test(code::attributes(item)) {
            return;
        }
        if let syn::Item::Mod(inline) = item
            && inline.content.is_some()
        {
            self.module.push(inline.ident.to_string());
            self.uses();
            visit::visit_item(self, item);
            self.module.pop();
            return;
        }
        visit::visit_item(self, item);
    }

    /// Those of modules are known; those within functions import, too.
    fn visit_item_use(&mut self, _: &syn::ItemUse) {}

    fn visit_stmt(&mut self, statement: &syn::Stmt) {
        if let syn::Stmt::Item(syn::Item::Use(item)) = statement {
            let mut uses = Vec::new();
            used(&item.tree, false, &mut Vec::new(), &mut uses);
            for one in uses {
                self.name(&one.path, one.line);
            }
        }
        visit::visit_stmt(self, statement);
    }

    /// `pub(crate)` and `pub(in path)` name no import.
    fn visit_visibility(&mut self, _: &syn::Visibility) {}

    fn visit_path(&mut self, path: &syn::Path) {
        if path.leading_colon.is_none() {
            let names: Vec<String> = path.segments.iter().map(|s| s.ident.to_string()).collect();
            self.path(&names, path.segments[0].ident.span().start().line);
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &syn::Macro) {
        self.tokens(call.tokens.clone());
        visit::visit_macro(self, call);
    }
}
