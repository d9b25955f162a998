//! A machine that plays programs as it is asked to.

use anyhow::{Context, Result, bail};
use machine::options::Machine;
use machine::qemu::{self, Serial};
use machine::tools;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

/// What a machine may take to boot.
const BOOT: Duration = Duration::from_secs(240);
/// What a program may take, besides.
const PROGRAM: Duration = Duration::from_secs(60);

/// A kernel, and how it is booted.
pub struct Player {
    /// The name for people.
    pub title: String,
    /// The kernel's file.
    pub kernel: PathBuf,
    /// Options on its command line.
    pub options: String,
    /// The image.
    pub initrd: PathBuf,
    /// Where the console goes.
    pub log: PathBuf,
    /// The machine.
    pub machine: Machine,
    /// The one that runs.
    session: Option<Session>,
}

struct Session {
    child: Child,
    keyboard: ChildStdin,
    lines: Receiver<String>,
}

/// Programs to be played.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The first seed.
    pub first: u64,
    /// How many.
    pub count: u64,
    /// Steps of each.
    pub steps: u32,
    /// Those that are made; none is all.
    pub keep: Option<Vec<u32>>,
    /// Whether lines are wanted, and not checksums alone.
    pub lines: bool,
}

impl Request {
    /// The words that `sysdiff` reads.
    pub fn words(&self) -> String {
        let keep = self.keep.as_deref().map_or_else(|| "all".into(), ranges);
        let how = if self.lines { "v" } else { "q" };
        format!("{} {} {} {keep} {how}", self.first, self.count, self.steps)
    }
}

/// `1-4,7` for 1, 2, 3, 4 and 7; `0` if there are none.
pub fn ranges(steps: &[u32]) -> String {
    let mut parts: Vec<(u32, u32)> = Vec::new();
    for &step in steps {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == step => *last = step,
            _ => parts.push((step, step)),
        }
    }
    if parts.is_empty() {
        return "0".into();
    }
    let text = |&(first, last): &(u32, u32)| {
        if first == last {
            first.to_string()
        } else {
            format!("{first}-{last}")
        }
    };
    parts.iter().map(text).collect::<Vec<_>>().join(",")
}

/// What one program came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Played {
    /// Its seed.
    pub seed: u64,
    /// A checksum of its lines.
    pub hash: String,
    /// Its lines, if they were asked for.
    pub lines: Vec<String>,
}

/// Reads what `sysdiff` prints; true at its end.
pub fn hear(line: &str, lines: &mut Vec<String>, played: &mut Vec<Played>) -> bool {
    if let Some(line) = line.strip_prefix("sd| ") {
        lines.push(line.to_owned());
    } else if let Some(rest) = line.strip_prefix("sd: seed ") {
        let words: Vec<&str> = rest.split_whitespace().collect();
        if let [seed, "lines", _, "hash", hash] = words[..]
            && let Ok(seed) = seed.parse()
        {
            played.push(Played {
                seed,
                hash: hash.to_owned(),
                lines: std::mem::take(lines),
            });
        }
    }
    line == "sd: done"
}

impl Player {
    /// A kernel that is not booted yet.
    pub fn new(
        title: &str,
        kernel: &Path,
        options: &str,
        initrd: &Path,
        machine: &Machine,
    ) -> Result<Player> {
        let dir = tools::build_dir()?.join("diff");
        fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        Ok(Player {
            title: title.to_owned(),
            kernel: kernel.to_owned(),
            options: options.to_owned(),
            initrd: initrd.to_owned(),
            log: dir.join(format!("{}.log", title.to_lowercase())),
            machine: machine.clone(),
            session: None,
        })
    }

    fn boot(&self) -> Result<Session> {
        let append = qemu::append(Some("sysdiff --serve"), &self.options);
        let mut command = qemu::command(
            &self.machine,
            &self.kernel,
            &self.initrd,
            &append,
            Serial::Output,
        );
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start QEMU")?;
        let out = child.stdout.take().context("QEMU's output is not a pipe")?;
        let keyboard = child.stdin.take().context("QEMU's input is not a pipe")?;
        let mut log = fs::File::options()
            .create(true)
            .append(true)
            .open(&self.log)
            .with_context(|| format!("cannot write {}", self.log.display()))?;
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(out).split(b'\n').map_while(|line| line.ok()) {
                let line = String::from_utf8_lossy(&line)
                    .trim_end_matches('\r')
                    .to_owned();
                let _ = writeln!(log, "{line}");
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let session = Session {
            child,
            keyboard,
            lines,
        };
        session.until(BOOT, |line| line == "sd: ready")?;
        Ok(session)
    }

    /// Plays; boots first if need be, and again where the machine has died.
    ///
    /// # Errors
    /// The machine does not boot or dies, or a program does not end; the next request finds a fresh machine.
    pub fn play(&mut self, request: &Request) -> Result<Vec<Played>> {
        let mut session = match self.session.take() {
            Some(session) => session,
            None => self.boot()?,
        };
        let words = request.words();
        let wrote = writeln!(session.keyboard, "{words}").and_then(|()| session.keyboard.flush());
        let limit = PROGRAM * u32::try_from(request.count).unwrap_or(u32::MAX);
        let (mut lines, mut played) = (Vec::new(), Vec::new());
        wrote
            .map_err(anyhow::Error::from)
            .and_then(|()| session.until(limit, |line| hear(line, &mut lines, &mut played)))
            .with_context(|| {
                format!(
                    "{}, asked for {words}; see {}",
                    self.title,
                    self.log.display()
                )
            })?;
        self.session = Some(session);
        Ok(played)
    }

    /// Plays one program.
    ///
    /// # Errors
    /// As [`Self::play`].
    pub fn play_one(&mut self, request: &Request) -> Result<Played> {
        self.play(request)?
            .pop()
            .context("nothing was said of the program")
    }
}

impl Session {
    /// Reads lines until one is the last.
    fn until(&self, limit: Duration, mut is_last: impl FnMut(&str) -> bool) -> Result<()> {
        let end = Instant::now() + limit;
        let mut last = String::new();
        loop {
            match self
                .lines
                .recv_timeout(end.saturating_duration_since(Instant::now()))
            {
                Ok(line) if is_last(&line) => return Ok(()),
                Ok(line) => last = line,
                Err(mpsc::RecvTimeoutError::Timeout) => bail!("silent after \"{last}\""),
                Err(mpsc::RecvTimeoutError::Disconnected) => bail!("died after \"{last}\""),
            }
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_written_as_ranges() {
        assert_eq!(ranges(&[1, 2, 3, 7, 9, 10]), "1-3,7,9-10");
        assert_eq!(ranges(&[]), "0");
    }

    #[test]
    fn what_a_machine_says_is_sorted_by_program() {
        let (mut lines, mut played) = (Vec::new(), Vec::new());
        for line in [
            "noise",
            "sd| 1 P0 a",
            "sd| 2 P0 b",
            "sd: seed 7 lines 2 hash 00ff",
        ] {
            assert!(!hear(line, &mut lines, &mut played));
        }
        assert!(hear("sd: done", &mut lines, &mut played));
        let lines = vec!["1 P0 a".to_owned(), "2 P0 b".to_owned()];
        assert_eq!(
            played,
            [Played {
                seed: 7,
                hash: "00ff".into(),
                lines
            }]
        );
    }
}
