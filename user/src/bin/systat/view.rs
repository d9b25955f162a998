//! Two snapshots as lines of text, fitted to a width.

use super::counts::{Line, Snapshot};

/// Rates between two snapshots.
pub struct View<'a> {
    before: &'a Snapshot,
    after: &'a Snapshot,
    seconds: f64,
}

/// A count as a rate, in at most six characters.
pub fn short(rate: f64) -> String {
    match rate {
        r if r < 9999.5 => format!("{r:.0}"),
        r if r < 999_950.0 => format!("{:.1}k", r / 1e3),
        r => format!("{:.2}M", r / 1e6),
    }
}

/// Cuts a line to the terminal's width.
pub fn fit(line: String, width: usize) -> String {
    line.chars().take(width).collect()
}

/// The width of the titles of the first lines.
const TITLE: usize = 10;

/// Puts `parts` after `title`, on as many lines as they need.
fn wrap(title: &str, parts: &[String], width: usize) -> Vec<String> {
    let mut lines = vec![format!("{title:<TITLE$}")];
    let mut used = TITLE;
    for part in parts {
        let gap = if used == TITLE { 0 } else { 2 };
        if used > TITLE && used + gap + part.len() > width {
            lines.push(format!("{part:>0$}", TITLE + part.len()));
            used = TITLE + part.len();
        } else if let Some(line) = lines.last_mut() {
            *line += &format!("{:gap$}{part}", "");
            used += gap + part.len();
        }
    }
    lines
}

/// A function's name without the types of an implementation, and without all but its last two path components.
fn function(path: &str) -> String {
    let path = path.split('+').next().unwrap_or(path);
    if let Some(inner) = path.strip_prefix('<')
        && let Some((of, method)) = inner.rsplit_once(">::")
    {
        let of = of.split(" as ").next().unwrap_or(of);
        return function(&format!("{of}::{method}"));
    }
    let mut depth = 0;
    let plain: String = path
        .chars()
        .filter(|&c| {
            depth += i32::from(c == '<');
            let keep = depth == 0;
            depth -= i32::from(c == '>');
            keep
        })
        .collect();
    let parts: Vec<&str> = plain.split("::").filter(|part| !part.is_empty()).collect();
    parts[parts.len().saturating_sub(2)..].join("::")
}

/// The shares of a CPU's time, in per cent. They add up to 100.
struct Shares {
    user: f64,
    sys: f64,
    intr: f64,
    idle: f64,
}

impl Shares {
    /// Idle and interrupt time are measured; the rest is split into user and system time by what the clock ticks
    /// interrupted.
    fn new(old: &Line, new: &Line, seconds: f64) -> Shares {
        let grown = |name: &str| new.since(old, name) as f64;
        let per_cent = |ns: f64| ns / (seconds * 1e7);
        let idle = per_cent(grown("idle_ns")).min(100.0);
        let intr = per_cent(grown("intr_ns")).min(100.0 - idle);
        let busy = 100.0 - idle - intr;
        let (user, sys) = (grown("user_ns") + grown("nice_ns"), grown("sys_ns"));
        let part = if user > 0.0 { user / (user + sys) } else { 0.0 };
        Shares {
            user: busy * part,
            sys: busy * (1.0 - part),
            intr,
            idle,
        }
    }

    fn add(&mut self, other: &Shares) {
        self.user += other.user;
        self.sys += other.sys;
        self.intr += other.intr;
        self.idle += other.idle;
    }

    fn columns(&self, over: f64) -> String {
        [self.user, self.sys, self.intr, self.idle]
            .map(|share| match share / over {
                all if all > 99.94 => "  100".to_owned(),
                part => format!(" {part:>4.1}"),
            })
            .concat()
    }
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

    /// The sum over CPUs of the increase of some counts, per second.
    fn total(&self, names: &[&str]) -> f64 {
        let grown = |(old, new): (&Line, &Line)| -> u64 {
            names.iter().map(|name| new.since(old, name)).sum()
        };
        self.pairs().map(grown).sum::<u64>() as f64 / self.seconds
    }

    /// The whole report: totals, then a line for each CPU.
    pub fn lines(&self, width: usize) -> Vec<String> {
        let mut out = self.totals(width);
        out.push(String::new());
        out.push(
            "cpu timer   ipi extint user  sys intr idle smpcol label          sampled in".into(),
        );
        out.push(self.all_cpus());
        out.extend(self.pairs().map(|(old, new)| self.cpu(old, new)));
        out.into_iter().map(|line| fit(line, width)).collect()
    }

    fn totals(&self, width: usize) -> Vec<String> {
        let rates = |title: &str, names: &[(&str, &[&str])]| {
            let parts: Vec<String> = names
                .iter()
                .map(|(shown, names)| format!("{shown} {}", short(self.total(names))))
                .collect();
            wrap(title, &parts, width)
        };
        let mut out = rates(
            "faults/s",
            &[
                ("zfod", &["zero_fill"]),
                ("cow", &["cow_copy"]),
                ("moved", &["cow_move"]),
                ("resident", &["resident"]),
                ("around", &["around"]),
                ("upgraded", &["upgraded"]),
                ("restarts", &["restarts"]),
            ],
        );
        out.extend(rates(
            "events/s",
            &[
                ("fork", &["forks"]),
                ("vfork", &["vforks"]),
                ("exec", &["execs"]),
                ("threads", &["threads"]),
                ("switches", &["switches"]),
                ("steals", &["steals"]),
                ("shootdowns", &["flush_sent"]),
                ("avoided", &["flush_avoided"]),
            ],
        ));
        let free: Vec<String> = self.after.nodes.iter().map(|n| self.free(n)).collect();
        out.extend(wrap("free", &free, width));
        let waits = [("spinning", "spin_ns"), ("asleep for locks", "sleep_ns")]
            .map(|(shown, name)| format!("{shown} {:.3}", self.total(&[name]) / 1e9));
        out.extend(wrap("waits s/s", &waits, width));
        out
    }

    /// Free pages of a node: in its lists, and in its CPUs' caches.
    fn free(&self, node: &Line) -> String {
        let number = node.number("node");
        let own = |cpu: &&Line| cpu.number("node") == number;
        let kept: u64 = (self.after.cpus.iter().filter(own))
            .map(|cpu| cpu.number("pages_cached"))
            .sum();
        let (free, all) = (node.number("free"), node.number("pages") / 256);
        format!("node {number} {free} pages + {kept} kept by CPUs, of {all} MiB")
    }

    /// Timer, interprocessor and device interrupts, as columns.
    fn interrupts(rate: impl Fn(&[&str]) -> String) -> String {
        let (timer, device) = (rate(&["timer"]), rate(&["device"]));
        let ipi = rate(&["reschedule", "call"]);
        format!("{timer:>5} {ipi:>5} {device:>6}")
    }

    fn all_cpus(&self) -> String {
        let mut shares = Shares {
            user: 0.0,
            sys: 0.0,
            intr: 0.0,
            idle: 0.0,
        };
        for (old, new) in self.pairs() {
            shares.add(&Shares::new(old, new, self.seconds));
        }
        let interrupts = View::interrupts(|names| short(self.total(names)));
        let shares = shares.columns(self.before.cpus.len().max(1) as f64);
        let collisions = short(self.total(&["spin_ns"]) / 1e3);
        format!("all {interrupts}{shares} {collisions:>6}")
    }

    fn cpu(&self, old: &Line, new: &Line) -> String {
        let grown = |names: &[&str]| names.iter().map(|n| new.since(old, n)).sum::<u64>();
        let interrupts = View::interrupts(|names| short(grown(names) as f64 / self.seconds));
        let shares = Shares::new(old, new, self.seconds);
        let waited = grown(&["spin_ns", "sleep_ns"]) > 0;
        let label = if waited { new.word("lock") } else { "" };
        let sampled = match (new.word("pc"), new.word("fn")) {
            _ if shares.idle > 99.9 => "(idle)".into(),
            ("0x0", _) => "(user)".into(),
            (pc, "") => pc.into(),
            (_, name) => function(name),
        };
        format!(
            "{:>3} {interrupts}{} {:>6} {label:<14.14} {sampled}",
            new.number("cpu"),
            shares.columns(1.0),
            short(grown(&["spin_ns"]) as f64 / 1e3 / self.seconds),
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
            ..Snapshot::boot()
        }
    }

    #[test]
    fn rates_and_shares_are_per_second() {
        let start = Instant::now();
        let old = snapshot(start, "cpu=0 timer=100 user_ns=0 idle_ns=0 spin_ns=0");
        let text = "cpu=0 timer=300 user_ns=300000000 sys_ns=100000000 idle_ns=500000000 intr_ns=500000000 \
                    zero_fill=4000 execs=8 spin_ns=2000000 pages_cached=7 lock=\"run queue\" pc=0xffff \
                    fn=\"vm::fault+0x10\"";
        let new = snapshot(start + Duration::from_secs(2), text);
        let lines = View::new(&old, &new).lines(200);
        assert!(lines[0].contains("zfod 2000 "), "{}", lines[0]);
        assert!(lines[1].contains("exec 4 "), "{}", lines[1]);
        assert!(lines[2].contains("256 pages + 7 kept"), "{}", lines[2]);
        let cpu: Vec<&str> = lines[7].split_whitespace().collect();
        // Half of the time is neither idle nor interrupts; three of four ticks interrupted user mode.
        let shown = ["0", "100", "0", "0", "37.5", "12.5", "25.0", "25.0", "1000"];
        assert_eq!(cpu[..9], shown);
        assert!(lines[7].contains("run queue") && lines[7].ends_with("vm::fault"));
    }

    #[test]
    fn shares_add_up_even_where_measurements_overlap() {
        let old = Line::default();
        let new = Line::parse("idle_ns=900000000 intr_ns=300000000 sys_ns=400000000");
        let s = Shares::new(&old, &new, 1.0);
        assert!((s.user + s.sys + s.intr + s.idle - 100.0).abs() < 1e-9);
        assert!((s.idle - 90.0).abs() < 1e-9 && s.sys < 1e-9);
    }

    #[test]
    fn lines_fit_the_terminal_and_nothing_of_the_totals_is_lost() {
        let now = Instant::now();
        let one = snapshot(now, "cpu=0");
        for width in [40, 80, 120] {
            let lines = View::new(&one, &one).lines(width);
            assert!(lines.iter().all(|line| line.chars().count() <= width));
            assert!(
                lines.iter().any(|line| line.contains("avoided 0")),
                "{width}"
            );
        }
    }

    #[test]
    fn large_rates_stay_short() {
        assert_eq!(
            (short(9.0), short(12_345.0), short(2e6)),
            ("9".into(), "12.3k".into(), "2.00M".into())
        );
    }

    #[test]
    fn function_names_are_cut_to_what_tells() {
        for (long, name) in [
            (
                "vm::fault::<impl vm::space::Space>::fault+0x1f",
                "fault::fault",
            ),
            (
                "<ksync::spin::Spin<T, C> as core::ops::Drop>::drop+0x0",
                "Spin::drop",
            ),
            ("pantala::kern::sched::switch::idle+0x12", "switch::idle"),
            ("syscall_entry", "syscall_entry"),
            ("<vm::map::Tree<K>>::insert", "Tree::insert"),
        ] {
            assert_eq!(function(long), name);
        }
    }
}
