//! `systat`: what the kernel does, per CPU, as DragonFly's `systat -pv` shows it.
//!
//! The kernel exports raw counts per CPU; this program takes two snapshots and shows the difference. On a terminal it
//! refreshes in place until interrupted; otherwise it prints one picture after another.

mod counts;
mod view;

use counts::{Snapshot, Value, read};
use std::io::{IsTerminal, Write};
use std::time::Duration;
use view::View;

const USAGE: &str = "\
usage: systat [-pv] [SECONDS]   rates per CPU, refreshed every SECONDS (1)
       systat --once [SECONDS]  one picture, over SECONDS
       systat --json            the raw counts, one JSON object a line
       systat -locks            every lock that was ever waited for, the costliest first";

enum Mode {
    Refresh,
    Once,
    Json,
    Locks,
}

fn main() {
    let mut mode = Mode::Refresh;
    let mut seconds = 1.0;
    for arg in std::env::args().skip(1) {
        match &*arg {
            "-pv" => {}
            "--once" => mode = Mode::Once,
            "--json" => mode = Mode::Json,
            "-locks" | "--locks" => mode = Mode::Locks,
            text => match text.parse() {
                Ok(n) if n > 0.0 && n < 1e6 => seconds = n,
                _ => {
                    eprintln!("systat: {text}: what is that?\n{USAGE}");
                    std::process::exit(2);
                }
            },
        }
    }
    let pause = Duration::from_secs_f64(seconds);
    let result = match mode {
        Mode::Refresh => refresh(pause),
        Mode::Once => once(pause),
        Mode::Json => json(),
        Mode::Locks => locks(),
    };
    if let Err(message) = result {
        eprintln!("systat: {message}");
        std::process::exit(1);
    }
}

/// The terminal's columns; a wide window where there is no terminal.
fn width() -> usize {
    match user::sys::window_columns(1) {
        Some(columns) if columns > 0 => columns,
        _ => 160,
    }
}

fn show(text: &str) -> Result<(), String> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|e| format!("standard output: {e}"))
}

fn picture(before: &Snapshot, after: &Snapshot) -> String {
    let mut text = View::new(before, after).lines(width()).join("\n");
    text.push('\n');
    text
}

fn once(pause: Duration) -> Result<(), String> {
    let before = Snapshot::take()?;
    std::thread::sleep(pause);
    show(&picture(&before, &Snapshot::take()?))
}

fn refresh(pause: Duration) -> Result<(), String> {
    let on_terminal = std::io::stdout().is_terminal();
    let mut before = Snapshot::take()?;
    loop {
        std::thread::sleep(pause);
        let after = Snapshot::take()?;
        let text = picture(&before, &after);
        if on_terminal {
            // Home, then each line up to its end, then the rest of the screen: no flicker.
            show(&format!("\x1b[H{}\x1b[J", text.replace('\n', "\x1b[K\n")))?;
        } else {
            show(&format!("{text}\n"))?;
        }
        before = after;
    }
}

fn json() -> Result<(), String> {
    let mut text = String::new();
    for (kind, file) in [("cpu", "cpu"), ("node", "node"), ("lock", "locks")] {
        for line in read(file)? {
            let pairs = line.pairs().map(|(name, value)| match value {
                Value::Number(n) => format!("\"{name}\":{n}"),
                Value::Word(w) => format!(
                    "\"{name}\":\"{}\"",
                    w.replace('\\', "\\\\").replace('"', "\\\"")
                ),
            });
            let all: Vec<String> = std::iter::once(format!("\"kind\":\"{kind}\""))
                .chain(pairs)
                .collect();
            text += &format!("{{{}}}\n", all.join(","));
        }
    }
    show(&text)
}

fn locks() -> Result<(), String> {
    let mut all = read("locks")?;
    all.sort_by_key(|l| std::cmp::Reverse(l.number("stall_ns")));
    let mut text = format!(
        "{:<28} {:>5} {:>10} {:>12}\n",
        "lock", "rank", "contended", "stalled us"
    );
    for l in all {
        text += &format!(
            "{:<28} {:>5} {:>10} {:>12}\n",
            l.word("name"),
            l.number("rank"),
            l.number("contended"),
            l.number("stall_ns") / 1000
        );
    }
    show(&text)
}
