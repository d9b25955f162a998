//! Links `tiny-true` without any C runtime: its file is smaller than a page.
fn main() {
    for arg in [
        "-nostartfiles",
        "-nostdlib",
        "-Wl,--build-id=none",
        "-Wl,-z,norelro",
    ] {
        println!("cargo:rustc-link-arg-bin=tiny-true={arg}");
    }
    println!("cargo:rerun-if-changed=build.rs");
}
