//! Damaged programs.

use crate::live::Left;
use crate::opens::open_some;
use crate::random::Random;
use user::sys;

/// Executes `program` with a few of its bytes damaged, or truncated; the process is ended after a while in any case.
pub fn damaged_program(seed: u64, program: &[u8], left: Left) -> ! {
    let mut random = Random(seed);
    let me = std::process::id();
    let _ = sys::call(libc::SYS_setpgid, &[0, 0]);
    open_some();
    let mut bytes = program.to_vec();
    // The kernel reads the headers: 64 bytes of ELF header, then program headers of 56.
    let headers = 64 + 56 * u64::from(program[56]);
    for _ in 0..=random.below(4) {
        let at = random.below(headers.min(bytes.len() as u64)) as usize;
        match random.below(3) {
            0 => bytes[at] = random.next() as u8,
            1 => bytes[at] ^= 1 << random.below(8),
            _ => bytes[at & !7..(at & !7) + 8]
                .copy_from_slice(&(u64::MAX >> random.below(64)).to_ne_bytes()),
        }
    }
    if random.below(4) == 0 {
        bytes.truncate(random.below(bytes.len() as u64) as usize);
    }
    let file = format!("/tmp/abifuzz.{me}");
    let Ok(fd) = sys::open(&file, libc::O_WRONLY | libc::O_CREAT, 0o700) else {
        sys::exit(1)
    };
    let _ = sys::write(fd, &bytes);
    let _ = sys::close(fd);
    left.count();
    let path = std::ffi::CString::new(file).expect("a path without a zero byte");
    let argv = [path.as_ptr(), std::ptr::null()];
    let _ = sys::call(
        libc::SYS_execve,
        &[path.as_ptr() as u64, argv.as_ptr() as u64, 0],
    );
    sys::exit(0)
}
