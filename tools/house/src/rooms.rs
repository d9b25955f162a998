//! `unsafe` and errno stay in their rooms.

use crate::{Finding, Tree, code};
use proc_macro2::{TokenStream, TokenTree};

/// Files with an exception to the lint `unsafe_code`, beside those that `rooms` lists.
pub fn check_unsafe(tree: &Tree, rooms: &[(&str, &str)]) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut seen = Vec::new();
    for source in tree.with(".rs") {
        let Some(line) = exception(&source.text) else {
            continue;
        };
        seen.push(&*source.path);
        if !rooms.iter().any(|(file, _)| *file == source.path) {
            found.push(Finding::new(
                &source.path,
                line,
                "unsafe code in a file that is no room for it",
                "build on what hal, ksync, vm::page or vm::pmap offer; a new room needs an entry, with a reason, in UNSAFE_ROOMS of tools/house/src/table.rs",
            ));
        }
    }
    for (file, _) in rooms.iter().filter(|(file, _)| !seen.contains(file)) {
        found.push(Finding::in_table(
            format!("UNSAFE_ROOMS has {file}, which has no exception to the lint unsafe_code"),
            "take the entry out, or follow the file to its new place",
        ));
    }
    found
}

/// The line of the first attribute that speaks of the lint.
fn exception(text: &str) -> Option<usize> {
    if !text.contains("unsafe_code") {
        return None;
    }
    let mut line = None;
    let tokens: TokenStream = text.parse().ok()?;
    code::each_run(tokens, &mut |run| {
        for pair in run.windows(2) {
            let [TokenTree::Ident(level), TokenTree::Group(lints)] = pair else {
                continue;
            };
            let lint = |t: TokenTree| matches!(t, TokenTree::Ident(i) if i == "unsafe_code");
            let lenient = ["allow", "expect", "warn"].iter().any(|l| level == l);
            if lenient && lints.stream().into_iter().any(lint) {
                line.get_or_insert(level.span().start().line);
            }
        }
    });
    line
}

/// Uses of `Errno` outside of `rooms` (beginnings of paths) and of the listed exceptions.
pub fn check_errno(tree: &Tree, rooms: &[&str], exceptions: &[(&str, &str)]) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut seen = Vec::new();
    let outside = |path: &str| !rooms.iter().any(|room| path.starts_with(room));
    let kernel = |path: &str| path.starts_with("kernel/") || path.starts_with("crates/");
    for source in tree
        .with(".rs")
        .filter(|s| kernel(&s.path) && outside(&s.path))
    {
        let Ok(tokens) = source.text.parse::<TokenStream>() else {
            continue;
        };
        let mut line = None;
        code::each_run(tokens, &mut |run| {
            for token in run {
                if let TokenTree::Ident(ident) = token
                    && ident == "Errno"
                {
                    line.get_or_insert(ident.span().start().line);
                }
            }
        });
        let Some(line) = line else { continue };
        seen.push(&*source.path);
        if !exceptions.iter().any(|(file, _)| *file == source.path) {
            found.push(Finding::new(
                &source.path,
                line,
                "errno below the system calls",
                "return a small enum of this layer, and turn it into an errno in the room of system calls",
            ));
        }
    }
    for (file, _) in exceptions.iter().filter(|(file, _)| !seen.contains(file)) {
        found.push(Finding::in_table(
            format!("ERRNO_EXCEPTIONS has {file}, which does not use errno"),
            "take the entry out, or follow the file to its new place",
        ));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unlisted_exception_to_the_lint_is_found() {
        let check = |text, rooms: &[(&str, &str)]| {
            check_unsafe(&Tree::of(&[("kernel/src/a.rs", text)]), rooms).len()
        };
        let listed: &[(&str, &str)] = &[("kernel/src/a.rs", "why")];
        for text in [
            "//! Head.\n#![expect(unsafe_code, reason = \"x\")]",
            "mod a { #[allow(dead_code, unsafe_code)] fn f() {} }",
            "macro_rules! m { () => { #[allow(unsafe_code)] fn f() {} } }",
        ] {
            assert_eq!(check(text, &[]), 1, "{text}");
            assert_eq!(check(text, listed), 0, "{text}");
        }
        assert_eq!(check("//! unsafe_code stays out.", listed), 1);
        assert_eq!(check("//! unsafe_code stays out.", &[]), 0);
        assert_eq!(check("#![forbid(unsafe_code)]", &[]), 0);
    }

    #[test]
    fn errno_outside_of_its_room_is_found() {
        let check =
            |path, text| check_errno(&Tree::of(&[(path, text)]), &["kernel/src/syscall/"], &[]);
        let text = "//! Head.\nuse abi::Errno;";
        assert_eq!(check("kernel/src/syscall/a.rs", text), []);
        assert_eq!(check("user/src/a.rs", text), []);
        assert_eq!(check("kernel/src/fs/a.rs", text)[0].line, 2);
        assert_eq!(
            check(
                "kernel/src/fs/a.rs",
                "/// Becomes an Errno above.\nfn f() {}"
            ),
            []
        );
    }
}
