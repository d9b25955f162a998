//! One boot of a test: the machine, the keys that a person types, the console and the end.
//!
//! Guarantee: a guest that is not over in its time is killed.

use super::spec::{Line, Spec};
use anyhow::{Context, Result};
use machine::options::Machine;
use machine::qemu::{self, Serial};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{ChildStdin, Stdio};
use std::time::{Duration, Instant};

/// What is booted.
pub struct Guest<'a> {
    /// The machine.
    pub machine: Machine,
    /// The kernel's file.
    pub kernel: &'a Path,
    /// The initramfs.
    pub image: &'a Path,
    /// Options on the kernel's command line.
    pub options: String,
    /// Where the console goes; QEMU's own complaints go beside it, with the suffix `qemu`.
    pub log: &'a Path,
}

/// How a boot ended.
pub struct Ended {
    /// All that the console showed.
    pub console: String,
    /// What init ended with; none: the machine did not end by init.
    pub status: Option<u8>,
}

impl Guest<'_> {
    /// Boots and runs the test's command. `None`: it was not over in the test's time.
    ///
    /// # Errors
    /// QEMU cannot be started, or a file cannot be written.
    pub fn run(&self, spec: &Spec) -> Result<Option<Ended>> {
        let append = qemu::append(spec.run.as_deref(), self.options.trim());
        let mut command = qemu::command(
            &self.machine,
            self.kernel,
            self.image,
            &append,
            Serial::Output,
        );
        let create = |path: &Path| {
            fs::File::create(path).with_context(|| format!("cannot write {}", path.display()))
        };
        // QEMU's own complaints are kept apart: they are no sign that a guest ran.
        let complaints = self.log.with_extension("qemu");
        let (out, err) = (create(self.log)?, create(&complaints)?);
        let stdin = if spec.talk.is_empty() {
            Stdio::null()
        } else {
            Stdio::piped()
        };
        let mut child = command
            .stdin(stdin)
            .stdout(out)
            .stderr(err)
            .spawn()
            .context("cannot start QEMU")?;
        let began = Instant::now();
        let limit = Duration::from_secs(spec.timeout);
        let mut typist = Typist {
            lines: spec.talk.iter(),
            next: None,
            heard: 0,
            keyboard: child.stdin.take(),
        };
        let status = loop {
            typist.listen(self.log);
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if began.elapsed() > limit {
                child.kill()?;
                child.wait()?;
                return Ok(None);
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        let console = read_console(self.log);
        let status = qemu::init_status(status.code(), &console);
        Ok(Some(Ended { console, status }))
    }
}

/// What the console has shown so far.
pub fn read_console(log: &Path) -> String {
    fs::read(log).map_or_else(
        |_| String::new(),
        |bytes| String::from_utf8_lossy(&bytes).replace('\r', ""),
    )
}

/// Types the lines of a test at the console, each once its cue has appeared.
struct Typist<'a> {
    lines: std::slice::Iter<'a, Line>,
    next: Option<&'a Line>,
    /// Bytes of the console before which cues have been found.
    heard: usize,
    keyboard: Option<ChildStdin>,
}

impl Typist<'_> {
    fn listen(&mut self, log: &Path) {
        let Some(keyboard) = &mut self.keyboard else {
            return;
        };
        while let Some(line) = self.next.take().or_else(|| self.lines.next()) {
            let console = read_console(log);
            let Some(at) = console
                .get(self.heard..)
                .and_then(|rest| rest.find(&line.after))
            else {
                self.next = Some(line);
                return;
            };
            self.heard += at + line.after.len();
            // Like a person: a key in the instant of the prompt may still meet the terminal's old settings.
            std::thread::sleep(Duration::from_millis(300));
            // A guest that has gone no longer reads; its console then lacks what the test expects.
            let _ = keyboard
                .write_all(line.keys.as_bytes())
                .and_then(|()| keyboard.flush());
        }
    }
}
