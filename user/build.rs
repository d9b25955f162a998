//! Link arguments of the two programs that do without Rust's standard library.
fn main() {
    // No C runtime at all: the file is smaller than a page.
    for arg in ["-nostartfiles", "-nostdlib", "-Wl,--build-id=none", "-Wl,-z,norelro"] {
        println!("cargo:rustc-link-arg-bin=tiny-true={arg}");
    }
    // The static C library refers to the unwinder, which std would have brought along.
    println!("cargo:rustc-link-arg-bin=true-static=-lgcc_eh");
    println!("cargo:rustc-link-arg-bin=true-static=-lc");
    println!("cargo:rerun-if-changed=build.rs");
}
