//! `memhog [MIB]`: allocates and touches memory until the kernel refuses, or until MIB mebibytes.
//!
//! Status 0: all was allocated. Status 3: mmap failed. On a machine with less memory than requested the kernel kills
//! this process by SIGKILL instead, and no other.

use user::sys;

const CHUNK: u64 = 1 << 20;

fn main() {
    let limit = std::env::args()
        .nth(1)
        .and_then(|text| text.parse().ok())
        .unwrap_or(u64::MAX);
    let (prot, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
    );
    let mut got = 0;
    while got < limit {
        let Ok(base) = sys::mmap(0, CHUNK, prot, flags, -1, 0) else {
            println!("memhog: no more after {got} MiB");
            sys::exit(3)
        };
        (base..base + CHUNK)
            .step_by(4096)
            .for_each(|at| sys::poke64(at, at));
        got += 1;
    }
    println!("memhog: {got} MiB");
}
