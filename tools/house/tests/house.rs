//! The rules, applied to this repository. Each test is one rule of CONTRIBUTING.md.

use house::{
    Finding, Tree, arrows, calls, documents, locks, manifests, rings, rooms, sizes, table, words,
};

fn holds(rule: &str, check: impl FnOnce(&Tree) -> Vec<Finding>) {
    let tree = Tree::here().expect("the repository can be read");
    let found = check(&tree);
    let list: Vec<String> = found.iter().map(Finding::to_string).collect();
    assert!(found.is_empty(), "{rule}\n{}\n", list.join("\n"));
}

#[test]
fn arrows_between_crates_point_down() {
    holds("a crate uses crates of lower layers only", |t| {
        arrows::check(t, table::LAYERS)
    });
}

#[test]
fn imports_form_no_large_rings() {
    holds("the files of a crate import one another one way", |t| {
        rings::check(t, table::RING, table::RINGS)
    });
}

#[test]
fn crates_inherit_the_lints() {
    holds(
        "unsafe code, and exceptions without a reason, are denied",
        manifests::check,
    );
}

#[test]
fn unsafe_stays_in_its_rooms() {
    holds("unsafe code stands in its rooms only", |t| {
        rooms::check_unsafe(t, table::UNSAFE_ROOMS)
    });
}

#[test]
fn errno_stays_in_its_room() {
    holds("errno is known to the system calls only", |t| {
        rooms::check_errno(t, table::ERRNO_ROOMS, table::ERRNO_EXCEPTIONS)
    });
}

#[test]
fn locks_stand_in_the_table() {
    holds(
        "doc/locks.md has each class of locks with its rank",
        locks::check,
    );
}

#[test]
fn what_documents_name_exists() {
    holds(
        "files, headings and names that a document or a comment names exist",
        |t| documents::check_names(t, table::NOT_IN_THE_TREE),
    );
}

#[test]
fn the_overview_is_whole() {
    holds(
        "doc/overview.md names each crate, and each document is linked",
        documents::check_overview,
    );
}

#[test]
fn counters_of_systems_exist() {
    holds("doc/systems.md names counters that the kernel has", |t| {
        documents::check_counters(t, "doc/systems.md")
    });
}

#[test]
fn names_in_pictures_exist() {
    holds(
        "doc/pictures names what the code has",
        documents::check_pictures,
    );
}

#[test]
fn the_glossary_is_sorted() {
    holds("doc/glossary.md is sorted", |t| {
        documents::check_glossary(t, "doc/glossary.md")
    });
}

#[test]
fn files_are_short() {
    holds("files have up to about 600 lines", |t| {
        sizes::check_files(t, table::FILE_LINES, table::LONG_FILES)
    });
}

#[test]
fn functions_are_short() {
    holds("functions have up to about 60 lines", |t| {
        sizes::check_functions(t, table::FUNCTION_LINES, table::LONG_FUNCTIONS)
    });
}

#[test]
fn vague_words_become_fewer() {
    holds("sentences name their subjects", |t| {
        words::check(t, table::VAGUE, table::WORDS)
    });
}

#[test]
fn the_page_on_calls_is_true() {
    holds("doc/linux.md says which system calls have handlers", |t| {
        calls::check(t, table::CALLS_PAGE, table::CALLS_ROOM, table::CALLS)
    });
}
