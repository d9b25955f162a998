//! The program that `large-make` and `job-lua` build: Lua, from Debian's source package, by Debian's gcc and make.
//!
//! It is built in an image of its own, which only those boots get: a compiler makes it several times as large.

use anyhow::{Context, Result};
use machine::options::Image;
use machine::progress::step;
use machine::{apt, image};
use std::fs;
use std::path::{Path, PathBuf};

/// What an image needs that builds programs.
pub const PACKAGES: [&str; 3] = ["gcc", "make", "libc6-dev"];

/// Without the compiler's own `main`, and not optimised: what the kernel does is the same, and the emulator has less to do.
const MAKEFILE: &str = "\
objects := $(patsubst %.c,%.o,$(filter-out luac.c,$(wildcard *.c)))
all: lua
lua: $(objects)
\t$(CC) -o $@ $^ -lm
%.o: %.c
\t$(CC) -O0 -c -o $@ $<
clean:
\trm -f lua $(objects)
";

/// Makes the image: what `asked` names, a compiler, and in `/src` Lua, or what the directory that was asked for has there. What is
/// fetched lies in `dir`.
///
/// # Errors
/// A package cannot be had, or a file cannot be read or written.
pub fn image(asked: &Image, dir: &Path) -> Result<PathBuf> {
    let mut asked = asked.clone();
    let more = PACKAGES.iter().map(|&name| name.to_owned());
    asked.packages.0.extend(more);
    if asked.files.is_none() {
        asked.files = Some(laid_out(dir)?);
    }
    image::make_as(&asked, "initramfs-build")
}

/// A directory with Lua's files, and what make does with them, in `src`. What is fetched lies in `dir`.
///
/// # Errors
/// As [`image()`].
pub fn laid_out(dir: &Path) -> Result<PathBuf> {
    let source = apt::source("lua5.4", &dir.join("source"))?;
    let _step = step("laying out what is built");
    let root = dir.join("build");
    let to = root.join("src");
    let _ = fs::remove_dir_all(&root);
    fs::create_dir_all(&to).with_context(|| format!("cannot make {}", to.display()))?;
    for entry in fs::read_dir(source.join("src")).context("Lua's source has no src")? {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|kind| kind == "c" || kind == "h")
        {
            fs::copy(&path, to.join(path.file_name().unwrap_or_default()))?;
        }
    }
    fs::write(to.join("Makefile"), MAKEFILE)?;
    Ok(root)
}
