//! Whether the kernel is well.

use crate::arena::PAGE;
use user::sys;

/// Checks that ordinary calls still work.
fn healthy() -> Result<(), String> {
    let text = |what: &'static str| move |errno: i32| format!("{what}: errno {errno}");
    let rw = libc::PROT_READ | libc::PROT_WRITE;
    let base = sys::mmap(
        0,
        64 * PAGE,
        rw,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        -1,
        0,
    )
    .map_err(text("mmap"))?;
    for at in (base..base + 64 * PAGE).step_by(PAGE as usize) {
        if sys::peek64(at) != 0 {
            return Err("a fresh page is not zero".into());
        }
        sys::poke64(at, at);
    }
    let (from, to) = sys::pipe(0).map_err(text("pipe"))?;
    match sys::fork().map_err(text("fork"))? {
        0 => {
            let right = (base..base + 64 * PAGE)
                .step_by(PAGE as usize)
                .all(|at| sys::peek64(at) == at);
            // The parent waits for this byte, so the write is repeated until it succeeds.
            while sys::write(to, &[u8::from(right)]) == Err(libc::ENOMEM) {}
            sys::exit(17)
        }
        pid => {
            let mut byte = [0];
            sys::read(from, &mut byte).map_err(text("read"))?;
            let (_, status) = sys::wait(pid as i64, 0).map_err(text("wait4"))?;
            if byte != [1] || status != 17 << 8 {
                return Err(format!("a child said {byte:?} and ended with {status:#x}"));
            }
        }
    }
    let _ = (sys::close(from), sys::close(to));
    sys::munmap(base, 64 * PAGE)
        .map(drop)
        .map_err(text("munmap"))
}

/// The number of times that an operation is repeated that failed with ENOMEM, as it may if memory is short or if the
/// kernel makes allocations fail.
pub const PATIENCE: usize = 200;

/// `fork`, repeated while it fails with ENOMEM.
pub fn patient_fork() -> Result<u64, sys::Errno> {
    let mut result = sys::fork();
    for _ in 0..PATIENCE {
        if result != Err(libc::ENOMEM) {
            break;
        }
        result = sys::fork();
    }
    result
}

/// [`healthy`], repeated while it fails with ENOMEM.
pub fn healthy_at_last() -> Result<(), String> {
    let short = format!("errno {}", libc::ENOMEM);
    let mut result = healthy();
    for _ in 0..PATIENCE {
        if !result
            .as_ref()
            .is_err_and(|reason| reason.ends_with(&short))
        {
            break;
        }
        result = healthy();
    }
    result
}
