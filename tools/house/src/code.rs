//! What several rules need to know of Rust code.

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};

/// Parses a file; its own errors are for the compiler to report.
pub fn parse(text: &str) -> Option<syn::File> {
    syn::parse_file(text).ok()
}

/// Whether the attributes say `#[cfg(test)]`, or `#[test]`.
pub fn is_test(attrs: &[syn::Attribute]) -> bool {
    attrs.iter().any(|attr| {
        attr.path().is_ident("test")
            || attr.path().is_ident("cfg")
                && attr
                    .meta
                    .require_list()
                    .is_ok_and(|list| asks_for_test(list.tokens.clone()))
    })
}

/// Whether the arguments of a `cfg` have `test`, but for what stands in a `not`.
fn asks_for_test(tokens: TokenStream) -> bool {
    let mut negated = false;
    tokens.into_iter().any(|token| match token {
        TokenTree::Ident(ident) => {
            negated = ident == "not";
            ident == "test"
        }
        TokenTree::Group(group) => !negated && asks_for_test(group.stream()),
        _ => false,
    })
}

/// Whether a path is below a directory of tests, examples or benches of a crate.
pub fn is_test_file(path: &str) -> bool {
    ["/tests/", "/examples/", "/benches/"]
        .iter()
        .any(|dir| path.contains(dir))
        || path.ends_with("/tests.rs")
}

/// The attributes of an item.
pub fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    use syn::Item;
    match item {
        Item::Const(i) => &i.attrs,
        Item::Enum(i) => &i.attrs,
        Item::ExternCrate(i) => &i.attrs,
        Item::Fn(i) => &i.attrs,
        Item::ForeignMod(i) => &i.attrs,
        Item::Impl(i) => &i.attrs,
        Item::Macro(i) => &i.attrs,
        Item::Mod(i) => &i.attrs,
        Item::Static(i) => &i.attrs,
        Item::Struct(i) => &i.attrs,
        Item::Trait(i) => &i.attrs,
        Item::TraitAlias(i) => &i.attrs,
        Item::Type(i) => &i.attrs,
        Item::Union(i) => &i.attrs,
        Item::Use(i) => &i.attrs,
        _ => &[],
    }
}

/// Calls `f` with each run of tokens: the file's, and those of each group within.
pub fn each_run(tokens: TokenStream, f: &mut impl FnMut(&[TokenTree])) {
    let run: Vec<TokenTree> = tokens.into_iter().collect();
    f(&run);
    for token in run {
        if let TokenTree::Group(group) = token {
            each_run(group.stream(), f);
        }
    }
}

/// Calls `f` with each macro call of a file outside of its tests.
pub fn each_macro(file: &syn::File, f: &mut impl FnMut(&syn::Macro)) {
    struct Calls<'f, F>(&'f mut F);
    impl<F: FnMut(&syn::Macro)> Visit<'_> for Calls<'_, F> {
        fn visit_item(&mut self, item: &syn::Item) {
            if !is_test(attributes(item)) {
                visit::visit_item(self, item);
            }
        }
        fn visit_macro(&mut self, call: &syn::Macro) {
            (self.0)(call);
        }
    }
    Calls(f).visit_file(file);
}
