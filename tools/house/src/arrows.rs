//! Crates of the workspace depend on crates of lower layers only.

use crate::{Finding, Tree, table};
use std::collections::BTreeMap;

/// A crate of the workspace, as its manifest says.
pub struct Package {
    /// Its name.
    pub name: String,
    /// Its directory.
    pub dir: String,
    manifest: toml::Table,
    text: String,
}

impl Package {
    /// Where its manifest is.
    pub fn file(&self) -> String {
        format!("{}/Cargo.toml", self.dir)
    }

    /// The manifest.
    pub fn manifest(&self) -> &toml::Table {
        &self.manifest
    }

    /// Names of what it is built from: dependencies and build dependencies, those of some targets included. What only
    /// its tests use is not among them.
    fn uses(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut take = |table: &toml::Table| {
            for section in ["dependencies", "build-dependencies"] {
                let Some(toml::Value::Table(of)) = table.get(section) else {
                    continue;
                };
                for (name, value) in of {
                    let real = value.get("package").and_then(toml::Value::as_str);
                    found.push(real.unwrap_or(name).to_owned());
                }
            }
        };
        take(&self.manifest);
        if let Some(toml::Value::Table(targets)) = self.manifest.get("target") {
            targets
                .values()
                .filter_map(toml::Value::as_table)
                .for_each(take);
        }
        found
    }

    fn line_of(&self, dependency: &str) -> usize {
        let begins = |line: &str| {
            let rest = line.trim_start().strip_prefix(dependency);
            rest.is_some_and(|r| r.starts_with([' ', '.', '=']))
        };
        1 + self.text.lines().position(begins).unwrap_or(0)
    }
}

/// The crates whose manifests lie in the repository.
pub fn packages(tree: &Tree) -> Vec<Package> {
    let manifests = tree.with("/Cargo.toml");
    manifests
        .filter_map(|source| {
            let manifest: toml::Table = source.text.parse().ok()?;
            let name = manifest.get("package")?.get("name")?.as_str()?.to_owned();
            Some(Package {
                name,
                dir: source.path.strip_suffix("/Cargo.toml")?.to_owned(),
                manifest,
                text: source.text.clone(),
            })
        })
        .collect()
}

/// Dependencies that go up, or sideways, by `layers`: the lowest first, each with its crates.
pub fn check(tree: &Tree, layers: &[&[&str]]) -> Vec<Finding> {
    let all = packages(tree);
    let dirs: BTreeMap<&str, &str> = all.iter().map(|p| (&*p.name, &*p.dir)).collect();
    let layer = |name: &str| layers.iter().position(|crates| crates.contains(&name));
    let is_tool = |name: &str| dirs.get(name).is_some_and(|dir| table::is_tool(dir));
    let mut found = Vec::new();
    for package in all.iter().filter(|p| !table::is_tool(&p.dir)) {
        let (name, file) = (&*package.name, package.file());
        let Some(mine) = layer(name) else {
            found.push(Finding::new(
                &file,
                1,
                format!("the crate {name} has no layer"),
                "add it to LAYERS in tools/house/src/table.rs, above all that it uses",
            ));
            continue;
        };
        for used in package.uses() {
            let what = match layer(&used) {
                _ if is_tool(&used) => format!("{name} uses {used}, which is a tool"),
                Some(its) if its >= mine => {
                    format!("{name} uses {used}, which is not in a layer below")
                }
                _ => continue,
            };
            found.push(Finding::new(
                &file,
                package.line_of(&used),
                what,
                "let the upper crate pass what the lower one needs (a trait, a value), or move the code down",
            ));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYERS: &[&[&str]] = &[&["low", "beside"], &["high"]];

    fn manifest(name: &str, uses: &str) -> String {
        format!("[package]\nname = \"{name}\"\n\n[dependencies]\n{uses}\n")
    }

    fn check_low(uses: &str) -> Vec<Finding> {
        let (low, high) = (
            manifest("low", uses),
            manifest("high", "low.workspace = true"),
        );
        let tool = manifest("tool", "");
        check(
            &Tree::of(&[
                ("crates/low/Cargo.toml", &low),
                ("kernel/high/Cargo.toml", &high),
                ("tools/tool/Cargo.toml", &tool),
            ]),
            LAYERS,
        )
    }

    #[test]
    fn down_is_allowed() {
        assert_eq!(check_low("smallvec = \"1\""), []);
    }

    #[test]
    fn up_and_sideways_are_found() {
        let up = check_low("smallvec = \"1\"\nhigh = { path = \"x\" }");
        assert_eq!((up.len(), up[0].line), (1, 6));
        assert_eq!(check_low("beside.workspace = true").len(), 1);
        assert_eq!(check_low("renamed = { package = \"high\" }").len(), 1);
        assert_eq!(check_low("tool = \"0\"").len(), 1);
        assert_eq!(
            check_low("[target.'cfg(loom)'.dependencies]\nhigh = \"1\"").len(),
            1
        );
    }

    #[test]
    fn what_tests_use_is_free() {
        assert_eq!(check_low("[dev-dependencies]\nhigh = \"1\""), []);
    }

    #[test]
    fn a_crate_without_a_layer_is_found() {
        let text = manifest("new", "");
        assert_eq!(
            check(&Tree::of(&[("kernel/new/Cargo.toml", &text)]), LAYERS).len(),
            1
        );
    }
}
