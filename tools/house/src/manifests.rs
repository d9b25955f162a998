//! Every crate inherits the lints of its workspace, which deny unsafe code and exceptions without a reason.

use crate::arrows::packages;
use crate::{Finding, Tree, table};

/// Crates without the lints, and lints that the workspace lacks.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for package in packages(tree) {
        let lints = package.manifest().get("lints");
        let inherits = lints.and_then(|l| l.get("workspace")?.as_bool()) == Some(true);
        if !inherits && !has_lints(lints) {
            found.push(Finding::new(
                &package.file(),
                1,
                format!(
                    "the crate {} has other lints than the workspace",
                    package.name
                ),
                "write `[lints]` and `workspace = true`",
            ));
        }
    }
    let root: Option<toml::Table> = tree.file("Cargo.toml").and_then(|s| s.text.parse().ok());
    let lints = root.as_ref().and_then(|r| r.get("workspace")?.get("lints"));
    if !has_lints(lints) {
        found.push(Finding::new(
            "Cargo.toml",
            1,
            "the workspace lacks one of the lints in DENIED of tools/house/src/table.rs",
            "set it to \"deny\" again",
        ));
    }
    found
}

fn has_lints(lints: Option<&toml::Value>) -> bool {
    table::DENIED.iter().all(|(tool, lint)| {
        let level = lints.and_then(|l| l.get(tool)?.get(lint)?.as_str());
        matches!(level, Some("deny" | "forbid"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: &str = "[workspace.lints.rust]\nunsafe_code = \"deny\"\nunsafe_op_in_unsafe_fn = \"forbid\"\n\
        [workspace.lints.clippy]\nundocumented_unsafe_blocks = \"deny\"\nallow_attributes_without_reason = \"deny\"\n";

    #[test]
    fn missing_lints_are_found() {
        let good = "[package]\nname = \"a\"\n[lints]\nworkspace = true\n";
        let bad = "[package]\nname = \"b\"\n";
        let weak = ROOT.replace("\"deny\"", "\"warn\"");
        let check = |root, package| {
            check(&Tree::of(&[
                ("Cargo.toml", root),
                ("crates/a/Cargo.toml", package),
            ]))
            .len()
        };
        assert_eq!(check(ROOT, good), 0);
        assert_eq!(check(ROOT, bad), 1);
        assert_eq!(check(&weak, good), 1);
    }
}
