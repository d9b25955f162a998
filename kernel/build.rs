//! Passes the kernel's link layout to the linker.
fn main() {
    let target_os = std::env::var("CARGO_CFG_TARGET_OS").unwrap_or_default();
    let here = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    println!("cargo:rerun-if-changed=hal/kernel.ld");
    if target_os == "none" {
        for arg in [
            &format!("-T{here}/hal/kernel.ld"),
            "-no-pie",
            "-static",
            "--build-id=none",
            "-zmax-page-size=4096",
            "-znorelro",
            "-znognustack",
        ] {
            println!("cargo:rustc-link-arg-bins={arg}");
        }
    }
}
