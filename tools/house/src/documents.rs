//! What documents name exists.
//!
//! A document names a file, a directory or a heading in a link, in code within a sentence, or in a block of code. In code, a
//! word is a path if it begins with one of the repository's directories ([`table::AREAS`]), or has the ending of a source
//! file. It is looked up from the repository's root, from the document's directory, and as the end of a path. A star stands for
//! anything. `path.rs::name` also wants the name in that file. In comments of code, words of the first kind are looked up.
//! Names with `::` and nothing else around them are looked up in the code, comments left out; those of comments are rustdoc's part.

use crate::{Finding, Tree, arrows, table, tree::Source};
use std::collections::HashSet;

const FIX: &str = "write the path as it is now; what no checkout has needs an entry, with a reason, in NOT_IN_THE_TREE of tools/house/src/table.rs";

/// Paths, headings and names that documents and comments name and the repository lacks.
pub fn check_names(tree: &Tree, absent: &[(&str, &str)]) -> Vec<Finding> {
    let mut found = Vec::new();
    let names = names_of_code(tree);
    for document in tree.with(".md") {
        let (links, words) = read(&document.text);
        for (line, target) in links {
            if let Err(what) = link(tree, &document.path, &target) {
                found.push(Finding::new(
                    &document.path,
                    line,
                    what,
                    "follow the file, or the heading, to its new place",
                ));
            }
        }
        for (line, word) in words {
            if is_name(&word) {
                let gone = word.split("::").find(|part| !names.contains(part));
                found.extend(gone.map(|part| {
                    let what = format!("{word} is named, but no code has {part}");
                    Finding::new(
                        &document.path,
                        line,
                        what,
                        "write the name that the code has",
                    )
                }));
            } else if let Err(what) = word_of_code(tree, &document.path, &word, absent) {
                found.push(Finding::new(&document.path, line, what, FIX));
            }
        }
    }
    for source in tree
        .with(".rs")
        .filter(|s| !s.path.starts_with("tools/house/"))
    {
        for (n, line) in source.text.lines().enumerate() {
            let Some((_, comment)) = line.split_once("//") else {
                continue;
            };
            for word in comment.split_whitespace().filter(|w| in_area(trim(w))) {
                if let Err(what) = word_of_code(tree, &source.path, word, absent) {
                    found.push(Finding::new(&source.path, n + 1, what, FIX));
                }
            }
        }
    }
    for (path, _) in absent
        .iter()
        .filter(|(path, _)| tree.has(path.trim_end_matches('/')))
    {
        found.push(Finding::in_table(
            format!("NOT_IN_THE_TREE has {path}, which is there"),
            "take the entry out",
        ));
    }
    found
}

/// What stands in a document, with its lines.
type Lines = Vec<(usize, String)>;

/// Targets of links, and words in code.
fn read(text: &str) -> (Lines, Lines) {
    let (mut links, mut words) = (Vec::new(), Vec::new());
    let mut fenced = false;
    let mut paragraph: Vec<(usize, &str)> = Vec::new();
    for (n, line) in text.lines().enumerate().map(|(n, line)| (n + 1, line)) {
        let fence = line.trim_start().starts_with("```");
        let block = fenced || line.starts_with("    ");
        if fence || block || line.trim().is_empty() {
            sentences(&paragraph, &mut links, &mut words);
            paragraph.clear();
        }
        if fence {
            fenced = !fenced;
        } else if block {
            let paths = line.split_whitespace().filter(|w| in_area(trim(w)));
            words.extend(paths.map(|w| (n, trim(w).to_owned())));
        } else if !line.trim().is_empty() {
            paragraph.push((n, line));
        }
    }
    sentences(&paragraph, &mut links, &mut words);
    (links, words)
}

/// One paragraph: code stands between equal runs of backticks, and links outside of it.
fn sentences(paragraph: &[(usize, &str)], links: &mut Lines, words: &mut Lines) {
    let text: String = paragraph
        .iter()
        .map(|(_, line)| format!("{line}\n"))
        .collect();
    let first = paragraph.first().map_or(0, |(n, _)| *n);
    let line_at = |at: usize| first + text[..at].matches('\n').count();
    let (mut at, mut outside) = (0, 0);
    let mut link_in = |from: usize, to: usize| {
        for (n, _) in text[from..to].match_indices("](") {
            let target = &text[from + n + 2..];
            let target = target.split(')').next().unwrap_or_default();
            links.push((line_at(from + n), target.to_owned()));
        }
    };
    while let Some(begin) = text[at..].find('`').map(|n| at + n) {
        let ticks = text[begin..].len() - text[begin..].trim_start_matches('`').len();
        let fence = &text[begin..begin + ticks];
        let inside = begin + ticks;
        let mut end = None;
        let mut look = inside;
        while let Some(next) = text[look..].find(fence).map(|n| look + n) {
            let run = text[next..].len() - text[next..].trim_start_matches('`').len();
            if run == ticks {
                end = Some(next);
                break;
            }
            look = next + run;
        }
        let Some(end) = end else { break };
        link_in(outside, begin);
        let code = &text[inside..end];
        for word in code.split_whitespace() {
            let word = trim(word);
            if in_area(word) || has_ending(word) || is_name(word) {
                words.push((line_at(begin), word.to_owned()));
            }
        }
        (at, outside) = (end + ticks, end + ticks);
    }
    link_in(outside, text.len());
}

fn trim(word: &str) -> &str {
    word.trim_matches(|c: char| "`'\"()[],;:.<>".contains(c))
}

/// Whether a word begins with a directory of the repository.
fn in_area(word: &str) -> bool {
    word.split_once('/')
        .is_some_and(|(first, _)| table::AREAS.contains(&first))
}

/// All words of the code that are no comments.
fn names_of_code(tree: &Tree) -> HashSet<&str> {
    let lines = tree.with(".rs").flat_map(|s| s.text.lines());
    let code = lines.map(|line| line.split("//").next().unwrap_or(line));
    code.flat_map(|line| line.split(|c: char| !(c.is_alphanumeric() || c == '_')))
        .collect()
}

/// Whether a word is a path of names, as `vm::map::Map`.
fn is_name(word: &str) -> bool {
    let part = |p: &str| {
        p.starts_with(|c: char| c.is_alphabetic() || c == '_')
            && p.chars().all(|c| c.is_alphanumeric() || c == '_')
    };
    word.contains("::") && word.split("::").all(part)
}

fn has_ending(word: &str) -> bool {
    let path = word.split("::").next().unwrap_or(word);
    let plain = |c: char| c.is_alphanumeric() || "._-/*{},".contains(c);
    !path.starts_with(['/', '.', '-', '*'])
        && path.chars().all(plain)
        && table::ENDINGS
            .iter()
            .any(|e| path.len() > e.len() && path.ends_with(e))
}

fn link(tree: &Tree, document: &str, target: &str) -> Result<(), String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return Ok(());
    }
    let (path, heading) = target.split_once('#').unwrap_or((target, ""));
    let dir = document.rsplit_once('/').map_or("", |(dir, _)| dir);
    let file = if path.is_empty() {
        document.to_owned()
    } else {
        join(dir, path)
    };
    if !tree.has(&file) {
        return Err(format!("the link leads to {file}, which is not there"));
    }
    let slugs = |s: &Source| {
        s.text
            .lines()
            .any(|l| l.starts_with('#') && slug(l) == heading)
    };
    if !heading.is_empty() && !tree.file(&file).is_some_and(slugs) {
        return Err(format!("{file} has no heading #{heading}"));
    }
    Ok(())
}

/// `path` as seen from `dir`.
fn join(dir: &str, path: &str) -> String {
    let mut parts: Vec<&str> = dir.split('/').filter(|p| !p.is_empty()).collect();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// The anchor of a heading.
fn slug(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text
        .chars()
        .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn word_of_code(
    tree: &Tree,
    document: &str,
    word: &str,
    absent: &[(&str, &str)],
) -> Result<(), String> {
    let word = trim(word).trim_end_matches('/');
    let (path, name) = word.split_once("::").unwrap_or((word, ""));
    let path = path.split([':', '#']).next().unwrap_or(path);
    if path.contains(['<', '{', '$'])
        || absent
            .iter()
            .any(|(a, _)| path.starts_with(a) || path == a.trim_end_matches('/'))
    {
        return Ok(());
    }
    let dir = document.rsplit_once('/').map_or("", |(dir, _)| dir);
    let files: Vec<&str> = if path.contains('*') {
        let anywhere = format!("*/{path}");
        tree.all()
            .filter(|p| matches(path, p) || matches(&anywhere, p))
            .collect()
    } else {
        let near = join(dir, path);
        let near = tree
            .has(&near)
            .then(|| tree.ending(path).find(|p| *p == near));
        tree.ending(path).chain(near.flatten()).collect()
    };
    if files.is_empty() {
        return Err(format!("{path} is named, but not there"));
    }
    let name = name.trim_end_matches("()");
    let name = name.rsplit("::").next().unwrap_or(name);
    let has = |path: &&str| tree.file(path).is_some_and(|s| has_word(&s.text, name));
    if !name.is_empty() && !files.iter().any(has) {
        return Err(format!("{path} has nothing named {name}"));
    }
    Ok(())
}

fn has_word(text: &str, name: &str) -> bool {
    text.match_indices(name).any(|(at, _)| {
        let part = |c: char| c.is_alphanumeric() || c == '_';
        !text[..at].ends_with(part) && !text[at + name.len()..].starts_with(part)
    })
}

/// Whether `path` is `pattern`, in which a star stands for anything.
fn matches(pattern: &str, path: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == path,
        Some((front, rest)) => path.strip_prefix(front).is_some_and(|path| {
            (0..=path.len()).any(|n| path.is_char_boundary(n) && matches(rest, &path[n..]))
        }),
    }
}

/// Members of the workspace that the overview does not name, and documents that no other one links to.
pub fn check_overview(tree: &Tree) -> Vec<Finding> {
    let overview = "doc/overview.md";
    let text = tree.file(overview).map_or("", |s| &s.text);
    let mut found = Vec::new();
    for package in arrows::packages(tree) {
        if !text.split_whitespace().any(|word| word == package.dir) {
            found.push(Finding::new(
                overview,
                1,
                format!("the list of parts lacks {}", package.dir),
                "add a line: the directory, what it is, what is special about it",
            ));
        }
    }
    let linked = |path: &str| {
        tree.with(".md").filter(|s| s.path != path).any(|s| {
            let dir = s.path.rsplit_once('/').map_or("", |(dir, _)| dir);
            let (links, _) = read(&s.text);
            links
                .iter()
                .any(|(_, t)| join(dir, t.split('#').next().unwrap_or(t)) == path)
        })
    };
    let pages = tree
        .with(".md")
        .filter(|s| s.path.starts_with("doc/") && s.path.matches('/').count() == 1);
    for page in pages.filter(|page| !linked(&page.path)) {
        found.push(Finding::new(
            &page.path,
            1,
            "no other document links here",
            "link it from doc/overview.md",
        ));
    }
    found
}

/// Counters in the last column of a table of systems that no code has.
pub fn check_counters(tree: &Tree, document: &str) -> Vec<Finding> {
    let Some(page) = tree.file(document) else {
        return vec![Finding::new(
            document,
            1,
            "the map of systems is missing",
            "write it",
        )];
    };
    let code: Vec<&Source> = tree
        .with(".rs")
        .filter(|s| {
            ["crates/", "kernel/", "user/"]
                .iter()
                .any(|a| s.path.starts_with(a))
        })
        .collect();
    let mut found = Vec::new();
    for (n, line) in page
        .text
        .lines()
        .enumerate()
        .filter(|(_, l)| l.starts_with('|'))
    {
        let last = line
            .trim_end_matches(['|', ' '])
            .rsplit('|')
            .next()
            .unwrap_or_default();
        for counter in last.split('`').skip(1).step_by(2) {
            let name = counter.rsplit('/').next().unwrap_or(counter);
            if !code.iter().any(|s| exports(&s.text, name)) {
                found.push(Finding::new(
                    document,
                    n + 1,
                    format!("no code has a counter `{counter}`"),
                    "write the name that the file in /proc has",
                ));
            }
        }
    }
    found
}

/// Whether code has a count of that name, or a file: in quotes, before an equals sign, or in a list of counts.
fn exports(text: &str, name: &str) -> bool {
    let quoted = format!("\"{name}\"");
    let printed = format!("{name}=");
    let listed = || {
        text.lines()
            .any(|line| line.trim().strip_suffix(',') == Some(name))
    };
    text.contains(&quoted)
        || text
            .match_indices(&printed)
            .any(|(at, _)| text[..at].ends_with([' ', '"']))
        || text.contains("counts! {") && listed()
}

/// Names with `::` in pictures whose last part no code has.
pub fn check_pictures(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for picture in tree.with(".svg").filter(|s| s.path.starts_with("doc/")) {
        for (n, line) in picture.text.lines().enumerate() {
            let words = line.split(|c: char| !(c.is_alphanumeric() || "_:".contains(c)));
            for word in words
                .map(|w| w.trim_matches(':'))
                .filter(|w| w.contains("::"))
            {
                let name = word.rsplit("::").next().unwrap_or(word);
                if !tree.with(".rs").any(|s| has_word(&s.text, name)) {
                    found.push(Finding::new(
                        &picture.path,
                        n + 1,
                        format!("no code has {word}"),
                        "write the name that the code has",
                    ));
                }
            }
        }
    }
    found
}

/// Rows of a glossary that stand in the wrong place.
pub fn check_glossary(tree: &Tree, document: &str) -> Vec<Finding> {
    let Some(page) = tree.file(document) else {
        return vec![Finding::new(
            document,
            1,
            "the glossary is missing",
            "write it",
        )];
    };
    let mut found = Vec::new();
    let mut before = String::new();
    for (n, line) in page
        .text
        .lines()
        .enumerate()
        .filter(|(_, l)| l.starts_with("| "))
    {
        let word = line[2..].split('|').next().unwrap_or_default();
        let word = word.trim().trim_matches('`').to_lowercase();
        if word == "word" {
            before.clear();
            continue;
        }
        if word < before {
            found.push(Finding::new(
                document,
                n + 1,
                format!("\"{word}\" stands below \"{before}\""),
                "sort the rows",
            ));
        }
        before = word;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const ABSENT: &[(&str, &str)] = &[("user/target/", "built")];

    fn check(text: &str) -> usize {
        let tree = Tree::of(&[
            ("doc/a.md", text),
            ("doc/b.md", "# Time & space\n"),
            (
                "crates/vm/src/map/mod.rs",
                "fn find() { vm::map() } // Was lost.",
            ),
            ("tests/boot/s01_x.toml", ""),
        ]);
        check_names(&tree, ABSENT).len()
    }

    #[test]
    fn what_is_there_may_be_named() {
        for fine in [
            "[b](b.md), [time](b.md#time--space), [x](https://example.org/none.md)",
            "`crates/vm`, `crates/vm/src/map/`, `map/mod.rs`, `mod.rs`, `b.md`",
            "`map/mod.rs::find`, `crates/vm/src/map/mod.rs::Map::find()`",
            "`crates/*/src/map/m*.rs` and `tests/boot/s01*`",
            "`user/target/debug/init`, `/proc/self/maps.rs`, `read/write`, `vm::map`",
            "``vm/src/map/mod.rs find check `if x {` ``",
            "text\n\n    cargo run crates/vm 1\n\nelse",
        ] {
            assert_eq!(check(fine), 0, "{fine}");
        }
    }

    #[test]
    fn what_is_not_there_is_found() {
        for bad in [
            "[c](c.md)",
            "[c](b.md#none)",
            "`crates/none`",
            "two\nlines `crates/vm/src/map/none.rs`",
            "`none.rs`",
            "`map::lost`",
            "`map/mod.rs::lose`",
            "`crates/*/none/*.rs`",
            "``vm/src/none.rs find check `if x {` ``",
            "text\n\n    cargo run crates/none 1\n",
            "text\n\n```\ncrates/none   a crate\n```\n",
        ] {
            assert_eq!(check(bad), 1, "{bad}");
        }
    }

    #[test]
    fn comments_name_files_under_the_same_rule() {
        let of = |text| check_names(&Tree::of(&[("kernel/src/a.rs", text)]), &[]).len();
        assert_eq!(of("// See `kernel/src/a.rs`.\nfn f() {}"), 0);
        assert_eq!(of("//! See kernel/src/b.rs."), 1);
    }

    #[test]
    fn the_overview_names_each_crate_and_documents_are_linked() {
        let (manifest, list) = (
            "[package]\nname = \"vm\"\n",
            "crates/vm   pages\n[a](a.md)\n",
        );
        let tree = |list, manifest| {
            Tree::of(&[
                ("doc/overview.md", list),
                ("doc/a.md", "[o](overview.md)"),
                ("crates/vm/Cargo.toml", manifest),
            ])
        };
        assert_eq!(check_overview(&tree(list, manifest)).len(), 0);
        assert_eq!(check_overview(&tree("[a](a.md)", manifest)).len(), 1);
        assert_eq!(check_overview(&tree("crates/vm", manifest)).len(), 1);
    }

    #[test]
    fn counters_and_order_are_checked() {
        let code = (
            "crates/vm/src/stats.rs",
            "counts! {\n    zero_fill,\n}\nfn again() {}",
        );
        let row = |counter| format!("| P1 | file | `{counter}` |");
        let check =
            |row: &str| check_counters(&Tree::of(&[("doc/s.md", row), code]), "doc/s.md").len();
        assert_eq!(check(&row("zero_fill")), 0);
        assert_eq!(check(&row("zero_fills")), 1);
        assert_eq!(check(&row("again")), 1);
        let picture = |text| check_pictures(&Tree::of(&[("doc/pictures/p.svg", text), code])).len();
        assert_eq!(
            (
                picture("<text>vm::zero_fill: a</text>"),
                picture("<text>vm::fill</text>")
            ),
            (0, 1)
        );
        let order = |text| check_glossary(&Tree::of(&[("doc/g.md", text)]), "doc/g.md").len();
        assert_eq!(order("| word | x |\n| a | x |\n| B | x |\n"), 0);
        assert_eq!(order("| word | x |\n| b | x |\n| A | x |\n"), 1);
    }
}
