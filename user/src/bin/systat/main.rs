//! `systat`: the kernel's activity, per CPU, as DragonFly's `systat -pv` shows it; `pcm`: the nodes that its memory
//! comes from.
//!
//! The kernel exports raw counts per CPU and never sums them; this program takes two snapshots and shows the
//! difference. On a terminal it refreshes in place until interrupted, within the terminal's width and height; otherwise
//! it prints one report after another.

mod counts;
mod locks;
mod pcm;
mod view;

use counts::{Snapshot, Value, read};
use std::io::{IsTerminal, Write};
use std::time::Duration;
use view::View;

const USAGE: &str = "\
usage: systat [-pv] [SECONDS]   rates per CPU, refreshed every SECONDS (1)
       systat -pcm [SECONDS]    pages taken from the own node and from others, per node; also called pcm
       systat -locks [SECONDS]  locks, the costliest first: since boot, or refreshed every SECONDS
       systat --json            the raw counts, one JSON object a line
       --once                   with any of the first three: one picture, over SECONDS
       -c COMMAND [ARGUMENT...] with any of the first three: one picture, over the time that COMMAND runs";

/// Formats the changes between two snapshots, as lines of at most the given width.
type Draw = fn(&Snapshot, &Snapshot, usize) -> Vec<String>;

fn main() {
    let name = std::env::args().next().unwrap_or_default();
    let mut draw: Draw = if name.ends_with("pcm") {
        pcm::lines
    } else {
        |before, after, width| View::new(before, after).lines(width)
    };
    let (mut once, mut raw, mut locks, mut seconds) = (false, false, false, None);
    let mut args = std::env::args().skip(1);
    let mut command = Vec::new();
    while let Some(arg) = args.next() {
        match &*arg {
            "-pv" => {}
            "-c" => command.extend(args.by_ref()),
            "-pcm" | "--pcm" => draw = pcm::lines,
            "-locks" | "--locks" => {
                draw = locks::lines;
                locks = true;
            }
            "--once" => once = true,
            "--json" => raw = true,
            text => match text.parse() {
                Ok(n) if n > 0.0 && n < 1e6 => seconds = Some(n),
                _ => {
                    eprintln!("systat: {text}: what is that?\n{USAGE}");
                    std::process::exit(2);
                }
            },
        }
    }
    let pause = Duration::from_secs_f64(seconds.unwrap_or(1.0));
    let result = if raw {
        json()
    } else if let [program, rest @ ..] = &command[..] {
        over_command(draw, program, rest)
    } else if locks && seconds.is_none() {
        since_boot(draw)
    } else if once {
        one(draw, pause)
    } else {
        refresh(draw, pause)
    };
    if let Err(message) = result {
        eprintln!("systat: {message}");
        std::process::exit(1);
    }
}

/// Columns and rows of a terminal that can move its cursor; `None` if the output is no such terminal.
fn terminal() -> Option<(usize, usize)> {
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    if dumb || !std::io::stdout().is_terminal() {
        return None;
    }
    // A serial line does not know its size; eighty columns fit everywhere.
    let (rows, columns) = user::sys::window_size(1).unwrap_or((0, 0));
    let known = |size: usize, usual: usize| if size == 0 { usual } else { size };
    Some((known(columns, 80), known(rows, 24)))
}

/// Columns if the output is no terminal: enough for every line.
const WIDE: usize = 160;

fn show(text: &str) -> Result<(), String> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .or_else(|e| match e.kind() {
            // The reader of the pipe has closed it.
            std::io::ErrorKind::BrokenPipe => std::process::exit(0),
            _ => Err(format!("standard output: {e}")),
        })
}

fn columns() -> usize {
    terminal().map_or(WIDE, |(columns, _)| columns)
}

fn since_boot(draw: Draw) -> Result<(), String> {
    let lines = draw(&Snapshot::boot(), &Snapshot::take()?, columns());
    show(&(lines.join("\n") + "\n"))
}

fn one(draw: Draw, pause: Duration) -> Result<(), String> {
    let before = Snapshot::take()?;
    std::thread::sleep(pause);
    let lines = draw(&before, &Snapshot::take()?, columns());
    show(&(lines.join("\n") + "\n"))
}

fn over_command(draw: Draw, program: &str, arguments: &[String]) -> Result<(), String> {
    let before = Snapshot::take()?;
    let status = std::process::Command::new(program)
        .args(arguments)
        .status()
        .map_err(|e| format!("{program}: {e}"))?;
    let lines = draw(&before, &Snapshot::take()?, columns());
    show(&(lines.join("\n") + "\n"))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("{program}: {status}"))
    }
}

fn refresh(draw: Draw, pause: Duration) -> Result<(), String> {
    let mut before = Snapshot::take()?;
    if terminal().is_some() {
        show("\x1b[2J")?;
    }
    loop {
        std::thread::sleep(pause);
        let after = Snapshot::take()?;
        let lines = draw(&before, &after, columns());
        match terminal() {
            Some((_, rows)) => show(&in_place(&lines, rows))?,
            None => show(&(lines.join("\n") + "\n\n"))?,
        }
        before = after;
    }
}

/// The lines that fit, written over the previous ones without clearing the screen first: cursor home, each line with an
/// erasure to its end, then an erasure of the rest of the screen. So nothing flickers.
fn in_place(lines: &[String], rows: usize) -> String {
    let fit = lines.iter().take(rows.saturating_sub(1).max(1));
    let body: String = fit.map(|line| format!("{line}\x1b[K\r\n")).collect();
    format!("\x1b[H{body}\x1b[J")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_never_scrolls_the_screen() {
        let lines: Vec<String> = (0..100).map(|n| n.to_string()).collect();
        let text = in_place(&lines, 24);
        assert_eq!(text.matches('\n').count(), 23);
        assert!(text.starts_with("\x1b[H0\x1b[K") && text.ends_with("\x1b[J"));
    }
}
