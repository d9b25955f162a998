//! The nodes from which each node's CPUs allocate their pages.
//!
//! The kernel counts pages when a CPU fetches them from a node, in bursts of up to 32 that the CPU then allocates
//! without counting, so a figure may exceed the pages used by that much.

use super::counts::Snapshot;
use super::view::{fit, short};
use std::collections::BTreeMap;

/// Pages that the CPUs of a node fetched.
#[derive(Default)]
struct Taken {
    local: u64,
    remote: u64,
}

impl Taken {
    fn line(&self, title: &str, seconds: f64, free: &str) -> String {
        let rate = |n: u64| short(n as f64 / seconds);
        let ratio = match (self.local, self.remote) {
            (0, 0) => "-".into(),
            (_, 0) => "all local".into(),
            (local, remote) => format!("{:.1}:1", local as f64 / remote as f64),
        };
        let (local, remote) = (rate(self.local), rate(self.remote));
        format!("{title:<7} {local:>10} {remote:>10} {ratio:>14}  {free}")
    }
}

/// A line for each node and one for all.
pub fn lines(before: &Snapshot, after: &Snapshot, width: usize) -> Vec<String> {
    let seconds = after.at.duration_since(before.at).as_secs_f64().max(1e-3);
    let mut nodes: BTreeMap<u64, Taken> = BTreeMap::new();
    let mut all = Taken::default();
    for (old, new) in before.cpus.iter().zip(&after.cpus) {
        let node = nodes.entry(new.number("node")).or_default();
        let (local, remote) = (
            new.since(old, "pages_local"),
            new.since(old, "pages_remote"),
        );
        for taken in [node, &mut all] {
            taken.local += local;
            taken.remote += remote;
        }
    }
    let mut out = vec![format!(
        "{:<7} {:>10} {:>10} {:>14}  {}",
        "pages/s", "local", "remote", "local:remote", "free"
    )];
    for node in &after.nodes {
        let number = node.number("node");
        let taken = nodes.remove(&number).unwrap_or_default();
        let mib = |name| node.number(name) / 256;
        let free = format!("{} of {} MiB", mib("free"), mib("pages"));
        out.push(taken.line(&format!("node {number}"), seconds, &free));
    }
    out.push(all.line("all", seconds, ""));
    out.into_iter().map(|line| fit(line, width)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::counts::Line;
    use super::*;
    use std::time::Duration;

    #[test]
    fn nodes_get_what_their_cpus_took() {
        let old = Snapshot {
            cpus: vec![Line::default(), Line::default(), Line::default()],
            ..Snapshot::boot()
        };
        let cpus = [
            "cpu=0 node=0 pages_local=100 pages_remote=0",
            "cpu=1 node=1 pages_local=300 pages_remote=50",
            "cpu=2 node=1 pages_local=200 pages_remote=50",
        ];
        let new = Snapshot {
            at: old.at + Duration::from_secs(1),
            cpus: cpus.map(Line::parse).into(),
            nodes: ["node=0 pages=512 free=256", "node=1 pages=512 free=0"]
                .map(Line::parse)
                .into(),
            ..Snapshot::boot()
        };
        let lines = lines(&old, &new, 80);
        let words = |n: usize| lines[n].split_whitespace().collect::<Vec<_>>();
        assert_eq!(words(1)[..6], ["node", "0", "100", "0", "all", "local"]);
        assert_eq!(words(2)[..5], ["node", "1", "500", "100", "5.0:1"]);
        assert_eq!(words(3), ["all", "600", "100", "6.0:1"]);
        assert!(lines[1].ends_with("1 of 2 MiB"), "{}", lines[1]);
    }
}
