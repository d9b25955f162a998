//! Two snapshots as lines of text, fitted to a width.

use super::counts::{Line, Snapshot};

/// Rates between two snapshots.
pub struct View<'a> {
    before: &'a Snapshot,
    after: &'a Snapshot,
    seconds: f64,
}

/// A count as a rate, in at most six places.
fn short(rate: f64) -> String {
    match rate {
        r if r < 9999.5 => format!("{r:.0}"),
        r if r < 999_950.0 => format!("{:.1}k", r / 1e3),
        r => format!("{:.2}M", r / 1e6),
    }
}

/// Cuts a line to the terminal's width.
fn fit(line: String, width: usize) -> String {
    line.chars().take(width).collect()
}

impl<'a> View<'a> {
    /// The change from `before` to `after`.
    pub fn new(before: &'a Snapshot, after: &'a Snapshot) -> View<'a> {
        let seconds = after.at.duration_since(before.at).as_secs_f64().max(1e-3);
        View {
            before,
            after,
            seconds,
        }
    }

    fn pairs(&self) -> impl Iterator<Item = (&Line, &Line)> {
        self.before.cpus.iter().zip(&self.after.cpus)
    }

    /// The sum over CPUs of a count's growth a second.
    fn total(&self, name: &str) -> f64 {
        let grown: u64 = self.pairs().map(|(old, new)| new.since(old, name)).sum();
        grown as f64 / self.seconds
    }

    /// The whole picture.
    pub fn lines(&self, width: usize) -> Vec<String> {
        let mut out = self.totals();
        out.push(String::new());
        out.push(
            "cpu  timer/s   ipi/s extint/s  user%   sys%  idle%  smpcol  label            sampled"
                .into(),
        );
        out.extend(self.pairs().map(|(old, new)| self.cpu(old, new)));
        out.into_iter().map(|line| fit(line, width)).collect()
    }

    fn totals(&self) -> Vec<String> {
        let rates = |names: &[(&str, &str)]| {
            let each = names
                .iter()
                .map(|(name, shown)| format!("{shown} {}", short(self.total(name))));
            each.collect::<Vec<_>>().join("  ")
        };
        let faults = rates(&[
            ("zero_fill", "zfod"),
            ("resident", "resident"),
            ("cow_copy", "cow"),
            ("cow_move", "moved"),
            ("around", "around"),
            ("upgraded", "upgraded"),
            ("restarts", "restarts"),
        ]);
        let process = rates(&[
            ("forks", "fork"),
            ("threads", "threads"),
            ("switches", "switches"),
            ("steals", "steals"),
            ("flush_sent", "shootdowns"),
            ("flush_avoided", "avoided"),
        ]);
        let stalled: f64 = self.total("stall_ns") / 1e9;
        let free = self.after.nodes.iter().map(|n| {
            let mib = |name| n.number(name) / 256;
            format!(
                "node {} {} of {} MiB",
                n.number("node"),
                mib("free"),
                mib("pages")
            )
        });
        vec![
            format!("faults/s  {faults}"),
            format!("events/s  {process}"),
            format!("free      {}", free.collect::<Vec<_>>().join(", ")),
            format!("stalls    {stalled:.3} CPUs' worth"),
        ]
    }

    fn cpu(&self, old: &Line, new: &Line) -> String {
        let rate = |name: &str| short(new.since(old, name) as f64 / self.seconds);
        let share = |names: &[&str]| {
            let ns: u64 = names.iter().map(|name| new.since(old, name)).sum();
            (ns as f64 / (self.seconds * 1e7)).min(100.0)
        };
        let ipis = new.since(old, "reschedule") + new.since(old, "call");
        let stall = new.since(old, "stall_ns") as f64 / 1e3 / self.seconds;
        let label = if stall > 0.0 { new.word("lock") } else { "" };
        let sampled = match (new.word("pc"), new.word("fn")) {
            ("0x0", _) => "(user)",
            (pc, "") => pc,
            (_, function) => function,
        };
        format!(
            "{:>3} {:>8} {:>7} {:>8} {:>6.1} {:>6.1} {:>6.1} {:>7} {:<16} {}",
            new.number("cpu"),
            rate("timer"),
            short(ipis as f64 / self.seconds),
            rate("device"),
            share(&["user_ns", "nice_ns"]),
            share(&["sys_ns"]),
            share(&["idle_ns"]),
            short(stall.min(9_999_999.0)),
            label,
            sampled,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    fn snapshot(at: Instant, cpu: &str) -> Snapshot {
        Snapshot {
            at,
            cpus: vec![Line::parse(cpu)],
            nodes: vec![Line::parse("node=0 pages=2560 free=256")],
        }
    }

    #[test]
    fn rates_and_shares_are_per_second() {
        let start = Instant::now();
        let old = snapshot(
            start,
            "cpu=0 timer=100 user_ns=0 idle_ns=0 zero_fill=0 stall_ns=0",
        );
        let text = "cpu=0 timer=300 user_ns=1000000000 idle_ns=500000000 zero_fill=4000 stall_ns=2000000 \
                    lock=\"run queue\" pc=0xffff fn=\"vm::fault+0x10\"";
        let new = snapshot(start + Duration::from_secs(2), text);
        let lines = View::new(&old, &new).lines(200);
        assert!(lines[0].contains("zfod 2000 "), "{}", lines[0]);
        assert!(lines[2].contains("node 0 1 of 10 MiB"), "{}", lines[2]);
        let cpu: Vec<&str> = lines[6].split_whitespace().collect();
        assert_eq!(
            cpu[..8],
            ["0", "100", "0", "0", "50.0", "0.0", "25.0", "1000"]
        );
        assert!(lines[6].contains("run queue") && lines[6].ends_with("vm::fault+0x10"));
    }

    #[test]
    fn lines_fit_the_terminal() {
        let now = Instant::now();
        let one = snapshot(now, "cpu=0");
        assert!(
            View::new(&one, &one)
                .lines(40)
                .iter()
                .all(|line| line.chars().count() <= 40)
        );
    }

    #[test]
    fn large_rates_stay_short() {
        assert_eq!(
            (short(9.0), short(12_345.0), short(2e6)),
            ("9".into(), "12.3k".into(), "2.00M".into())
        );
    }
}
