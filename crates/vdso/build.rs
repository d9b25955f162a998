//! Builds the object that programs get, with this compiler, for the host's programs, which are the guest's.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Functions that have their names of Linux's object, `__vdso_` before them, and the plain ones.
const FUNCTIONS: [&str; 5] = [
    "clock_gettime",
    "clock_getres",
    "gettimeofday",
    "time",
    "getcpu",
];

/// Options of the compiler. The object's own words are reached from its code, as in a program, not through a table.
const COMPILED: [&str; 8] = [
    "opt-level=2",
    "panic=abort",
    "relocation-model=pie",
    "codegen-units=1",
    "debuginfo=0",
    "overflow-checks=off",
    "debug-assertions=off",
    "force-unwind-tables=yes",
];

/// Options of the linker.
const LINKED: [&str; 10] = [
    "-soname=linux-vdso.so.1",
    "--hash-style=both",
    "-Bsymbolic",
    "--eh-frame-hdr",
    "--build-id=none",
    "-zmax-page-size=4096",
    "-znoexecstack",
    "--no-undefined",
    "--gc-sections",
    "-s",
];

fn main() {
    let sources = PathBuf::from(env::var("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let sources = sources.join("image");
    let out = PathBuf::from(env::var("OUT_DIR").expect("cargo sets it"));
    println!("cargo:rerun-if-changed=image");
    let (compiled, linked) = (out.join("image.o"), out.join("vdso.so"));
    compile(&sources, &compiled);
    link(&sources, &compiled, &linked);
    fs::write(&linked, whole_pages(&linked)).expect("a place to build in");
}

fn compile(sources: &Path, to: &Path) {
    let mut rustc = Command::new(env::var_os("RUSTC").expect("cargo sets it"));
    rustc
        .arg(sources.join("image.rs"))
        .args(["--crate-name=image", "--crate-type=lib", "--edition=2024"])
        .args(["--emit=obj", "--target=x86_64-unknown-linux-gnu", "-o"])
        .arg(to)
        .args(COMPILED.iter().flat_map(|option| ["-C", option]));
    run(&mut rustc);
}

fn link(sources: &Path, object: &Path, to: &Path) {
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-nostdlib", "-nostartfiles", "-o"])
        .arg(to)
        .arg(object)
        .arg(format!("-Wl,-T,{}", sources.join("image.ld").display()))
        .args(LINKED.map(|option| format!("-Wl,{option}")))
        .args(FUNCTIONS.map(|name| format!("-Wl,--defsym={name}=__vdso_{name}")));
    run(&mut cc);
}

/// The object as it lies in memory: without the table of sections behind its one segment.
fn whole_pages(object: &Path) -> Vec<u8> {
    const PAGES: usize = 2 * 4096;
    let mut bytes = fs::read(object).expect("it was built");
    assert!(bytes.len() >= PAGES, "the segment has {PAGES} bytes");
    bytes.truncate(PAGES);
    // The header says that there are no sections.
    bytes[0x28..0x30].fill(0);
    bytes[0x3c..0x40].fill(0);
    bytes
}

fn run(command: &mut Command) {
    let status = command.status();
    assert!(
        status.is_ok_and(|status| status.success()),
        "failed: {command:?}"
    );
}
