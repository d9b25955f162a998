//! memfd_create, and the seals of fcntl.

use std::sync::atomic::Ordering::SeqCst;

use crate::harness::*;
use user::sys;

const SEALABLE: u32 = libc::MFD_ALLOW_SEALING;
const SEAL: i32 = libc::F_SEAL_SEAL;
const SHRINK: i32 = libc::F_SEAL_SHRINK;
const GROW: i32 = libc::F_SEAL_GROW;
const WRITE: i32 = libc::F_SEAL_WRITE;
const FUTURE_WRITE: i32 = 16;

fn memfd(name: &str, flags: u32) -> Result<i32, i32> {
    sc!(SYS_memfd_create, path(name), flags).map(|fd| fd as i32)
}

fn seal(fd: i32, seals: i32) -> Result<u64, i32> {
    sc!(SYS_fcntl, fd, libc::F_ADD_SEALS, seals)
}

fn seals(fd: i32) -> Result<u64, i32> {
    sc!(SYS_fcntl, fd, libc::F_GET_SEALS, 0)
}

fn shared(fd: i32, prot: i32) -> Result<u64, i32> {
    sys::mmap(0, PAGE, prot, libc::MAP_SHARED, fd, 0)
}

tests! { "memfd";
    is_a_file_without_a_name {
        let fd = ok!(memfd("some name", 0));
        is!(ok!(sys::write(fd, b"hello")), 5);
        let mut text = [0u8; 100];
        let link = path(&format!("/proc/self/fd/{fd}"));
        let n = ok!(sc!(SYS_readlink, link, text.as_mut_ptr(), 100)) as usize;
        is!(&text[..n], b"/memfd:some name (deleted)");
        let again = ok!(sys::open(&format!("/proc/self/fd/{fd}"), libc::O_RDONLY, 0));
        let mut got = [0; 9];
        is!(ok!(sys::read(again, &mut got)), 5);
        is!(&got[..5], b"hello");
        is!(ok!(sc!(SYS_fcntl, fd, libc::F_GETFL)) as i32 & libc::O_ACCMODE, libc::O_RDWR);
        is!(ok!(sc!(SYS_fcntl, fd, libc::F_GETFD)), 0);
        let closed = ok!(memfd("", libc::MFD_CLOEXEC));
        is!(ok!(sc!(SYS_fcntl, closed, libc::F_GETFD)), 1);
        let map = ok!(shared(fd, RW));
        is!(sys::peek(map), b'h');
        sys::poke(map, b'j');
        ok!(sc!(SYS_pread64, fd, got.as_mut_ptr(), 5, 0));
        is!(&got[..5], b"jello");
        let mut stat = [0u64; 18];
        ok!(sc!(SYS_fstat, fd, stat.as_mut_ptr()));
        is!((stat[2], stat[3] as u32, stat[6]), (0, 0o100_777, 5));
    }
    arguments {
        fails!(memfd("x", 0x8000), EINVAL);
        fails!(sc!(SYS_memfd_create, 8, 0), EFAULT);
        ok!(memfd(&"n".repeat(249), 0));
        fails!(memfd(&"n".repeat(250), 0), EINVAL);
        let fd = ok!(memfd("x", 0));
        is!(ok!(seals(fd)), SEAL as u64);
        fails!(seal(fd, WRITE), EPERM);
        let fd = ok!(memfd("x", SEALABLE));
        is!(ok!(seals(fd)), 0);
        fails!(seal(fd, 0x4000), EINVAL);
        let (from, to) = ok!(sys::pipe(0));
        fails!(seals(from), EINVAL);
        fails!(seal(to, WRITE), EINVAL);
        let reader = ok!(sys::open(&format!("/proc/self/fd/{fd}"), libc::O_RDONLY, 0));
        fails!(seal(reader, WRITE), EPERM);
        fails!(sc!(SYS_fcntl, 9999, libc::F_GET_SEALS), EBADF);
        ok!(seal(fd, SEAL));
        fails!(seal(fd, GROW), EPERM);
    }
    sizes_are_sealed {
        let fd = ok!(memfd("x", SEALABLE));
        ok!(sc!(SYS_ftruncate, fd, 6000));
        ok!(seal(fd, SHRINK));
        fails!(sc!(SYS_ftruncate, fd, 5999), EPERM);
        fails!(sys::open(&format!("/proc/self/fd/{fd}"), libc::O_RDWR | libc::O_TRUNC, 0), EPERM);
        ok!(sc!(SYS_ftruncate, fd, 7000));
        ok!(seal(fd, GROW));
        is!(ok!(seals(fd)), (SHRINK | GROW) as u64);
        fails!(sc!(SYS_ftruncate, fd, 7001), EPERM);
        ok!(sc!(SYS_ftruncate, fd, 7000));
        fails!(sc!(SYS_fallocate, fd, 0, 0, 7001), EPERM);
        ok!(sc!(SYS_fallocate, fd, 0, 0, 7000));
        is!(ok!(sc!(SYS_pwrite64, fd, [1u8; 10].as_ptr(), 10, 6990)), 10);
        fails!(sc!(SYS_pwrite64, fd, [1u8; 10].as_ptr(), 10, 6991), EPERM);
        fails!(sc!(SYS_pwrite64, fd, [1u8; 10].as_ptr(), 10, 9000), EPERM);
        // A longer write ends with the last whole page.
        is!(ok!(sc!(SYS_pwrite64, fd, [1u8; 8000].as_ptr(), 8000, 96)), 4000);
    }
    contents_are_sealed_unless_a_mapping_may_change_them {
        let fd = ok!(memfd("x", SEALABLE));
        ok!(sys::write(fd, &[5; 5000]));
        let map = ok!(shared(fd, RW));
        fails!(seal(fd, WRITE), EBUSY);
        is!(ok!(seals(fd)), 0);
        ok!(sc!(SYS_mprotect, map, PAGE, libc::PROT_READ));
        fails!(seal(fd, WRITE), EBUSY);
        // A child's copy of the mapping counts, too.
        let (gate, open) = ok!(sys::pipe(0));
        let pid = ok!(sys::fork());
        if pid == 0 { let _ = sys::close(open); let _ = sys::read(gate, &mut [0]); sys::exit(0); }
        ok!(sys::munmap(map, PAGE));
        fails!(seal(fd, WRITE), EBUSY);
        ok!(sys::close(open));
        ok!(sys::wait(pid as i64, 0));
        let private = ok!(sys::mmap(0, PAGE, RW, libc::MAP_PRIVATE, fd, 0));
        ok!(seal(fd, WRITE));
        fails!(sys::write(fd, b"x"), EPERM);
        fails!(sc!(SYS_pwrite64, fd, b"x".as_ptr(), 1, 0), EPERM);
        let hole = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        fails!(sc!(SYS_fallocate, fd, hole, 0, 4096), EPERM);
        fails!(shared(fd, RW), EPERM);
        // The size is another matter.
        ok!(sc!(SYS_ftruncate, fd, 4096));
        sys::poke(private, 6);
        let mut byte = [0u8];
        ok!(sc!(SYS_pread64, fd, byte.as_mut_ptr(), 1, 0));
        is!((byte[0], sys::peek(private)), (5, 6));
        ok!(sys::mmap(0, PAGE, RW, libc::MAP_PRIVATE, fd, 0));
        let reader = ok!(sys::open(&format!("/proc/self/fd/{fd}"), libc::O_RDONLY, 0));
        let seen = ok!(shared(reader, libc::PROT_READ));
        is!(sys::peek(seen), 5);
        fails!(sc!(SYS_mprotect, seen, PAGE, RW), EACCES);
    }
    later_writes_are_sealed_while_a_mapping_stays {
        let fd = ok!(memfd("x", SEALABLE));
        ok!(sc!(SYS_ftruncate, fd, PAGE));
        let map = ok!(shared(fd, RW));
        ok!(seal(fd, FUTURE_WRITE));
        sys::poke(map, 9);
        fails!(sys::write(fd, b"x"), EPERM);
        fails!(shared(fd, RW), EPERM);
        let seen = ok!(shared(fd, libc::PROT_READ));
        is!(sys::peek(seen), 9);
        fails!(sc!(SYS_mprotect, seen, PAGE, RW), EACCES);
        fails!(sc!(SYS_madvise, map, PAGE, libc::MADV_REMOVE), EPERM);
        is!(sys::peek(map), 9);
    }
    nothing_changes_once_a_seal_has_been_set_beside_mappers {
        let end = sys::now_ns() + 1_500_000_000;
        while sys::now_ns() < end {
            let fd = ok!(memfd("x", SEALABLE));
            ok!(sc!(SYS_ftruncate, fd, PAGE));
            let mapper = std::thread::spawn(move || {
                // Until the seal forbids it.
                while let Ok(map) = shared(fd, RW) {
                    for _ in 0..50 { sys::atomic(map).fetch_add(1, SeqCst); }
                    let _ = sys::munmap(map, PAGE);
                    for _ in 0..50 { std::hint::spin_loop(); }
                }
            });
            while let Err(errno) = seal(fd, WRITE) { is!(errno, libc::EBUSY); }
            let value = || {
                let mut word = [0u64];
                let _ = sc!(SYS_pread64, fd, word.as_mut_ptr(), 8, 0);
                word[0]
            };
            let first = value();
            holds!(mapper.join().is_ok());
            is!(value(), first);
            ok!(sys::close(fd));
        }
    }
}
