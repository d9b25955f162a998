//! Words that make a sentence hard to read: how many lines have them may only shrink.

use crate::{Finding, Tree};

/// Counts that are not what `allowed` says: the area, the lines that have one of `words`.
pub fn check(tree: &Tree, words: &[&str], allowed: &[(&str, usize)]) -> Vec<Finding> {
    let mut found = Vec::new();
    for (area, most) in allowed {
        let (mut count, mut last) = (0, ("", 1));
        let sources = tree.with(".rs").chain(tree.with(".md"));
        for source in sources.filter(|s| in_area(&s.path, area)) {
            for (n, line) in source.text.lines().enumerate() {
                if has_word(line, words) {
                    count += 1;
                    last = (&source.path, n + 1);
                }
            }
        }
        if count > *most {
            found.push(Finding::new(
                last.0,
                last.1,
                format!("{count} lines below {area} have one of the words {words:?}; {most} are allowed (this is the last one)"),
                "name the subject: `git diff -U0 | grep -iwE 'who|whoever'` shows the new lines",
            ));
        } else if count < *most {
            found.push(Finding::in_table(
                format!("WORDS allows {most} lines below {area}; there are {count}"),
                format!("write {count}"),
            ));
        }
    }
    found
}

/// An area without a slash is a directory; the files beside the directories belong to `doc`.
fn in_area(path: &str, area: &str) -> bool {
    path.strip_prefix(area)
        .is_some_and(|rest| rest.starts_with('/'))
        || area == "doc" && !path.contains('/')
}

fn has_word(line: &str, words: &[&str]) -> bool {
    line.split(|c: char| !(c.is_alphanumeric() || c == '_'))
        .any(|word| words.iter().any(|w| word.eq_ignore_ascii_case(w)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_may_neither_grow_nor_stay_too_high() {
        let tree = Tree::of(&[
            ("kernel/a.rs", "// Who?\n// the whole\n"),
            ("README.md", "who\n"),
        ]);
        let check = |allowed| check(&tree, &["who"], &[("kernel", allowed)]).len();
        assert_eq!((check(0), check(1), check(2)), (1, 0, 1));
        assert_eq!(super::check(&tree, &["who"], &[("doc", 0)]).len(), 1);
    }
}
