//! Devices: physical memory by /dev/mem.

use crate::harness::*;
use user::sys;

/// The machine's ROM, whose last 16 bytes begin with a jump.
const ROM: u64 = 0xf_0000;
const JUMP: u64 = 0xfff0;
/// An address that is RAM on every machine that runs this test.
const RAM: u64 = 32 << 20;

fn devmem() -> Result<i32, String> {
    sys::open("/dev/mem", libc::O_RDWR | libc::O_SYNC, 0)
        .map_err(|e| format!("skip: /dev/mem: {}", errno_name(e)))
}

fn map(fd: i32, prot: i32, flags: i32, at: u64) -> Result<u64, i32> {
    sys::mmap(0, PAGE * 16, prot, flags, fd, at)
}

fn first_byte(at: u64) -> u8 {
    sys::peek64(at) as u8
}

/// Advises on a device's page and the plain page before it, which is at `at`: the plain one takes the advice.
fn takes_no_advice(at: u64) -> Result<(), String> {
    let advise = |advice: i32, at: u64, pages: u64| sc!(SYS_madvise, at, pages * PAGE, advice);
    let is_inherited = || in_child(|| i32::from(sys::catch(|| sys::peek(at)).is_some()));
    ok!(advise(libc::MADV_DONTFORK, at, 2));
    is!(is_inherited()?, 1 << 8);
    fails!(advise(libc::MADV_DOFORK, at, 2), EINVAL);
    is!(is_inherited()?, 0);
    for advice in [libc::MADV_DODUMP, libc::MADV_COLD, libc::MADV_PAGEOUT] {
        ok!(advise(advice, at, 1));
        fails!(advise(advice, at, 2), EINVAL);
        fails!(advise(advice, at + PAGE, 1), EINVAL);
    }
    ok!(advise(libc::MADV_DONTDUMP, at, 2));
    Ok(())
}

tests! { "device";
    mem_is_for_root {
        devmem()?;
        is!(in_child(|| {
            let _ = sc!(SYS_setresgid, 1000, 1000, 1000);
            let _ = sc!(SYS_setresuid, 1000, 1000, 1000);
            i32::from(sys::open("/dev/mem", libc::O_RDONLY, 0) != Err(libc::EACCES))
        })?, 0);
    }
    mem_shows_the_rom {
        let fd = devmem()?;
        let at = ok!(map(fd, libc::PROT_READ, libc::MAP_SHARED, ROM));
        is!(first_byte(at + JUMP), 0xea);
        let mut bytes = [0u8; 5];
        is!(ok!(sc!(SYS_pread64, fd, bytes.as_mut_ptr(), 5, ROM + JUMP)), 5);
        is!(u64::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], 0, 0, 0]), sys::peek64(at + JUMP) & 0xff_ffff_ffff);
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        holds!(maps.lines().any(|l| l.starts_with(&format!("{at:x}-")) && l.contains("000f0000") && l.ends_with("/dev/mem")));
    }
    mem_refuses_ram {
        let fd = devmem()?;
        fails!(map(fd, libc::PROT_READ, libc::MAP_SHARED, RAM), EPERM);
        fails!(map(fd, libc::PROT_READ, libc::MAP_PRIVATE, RAM - 8 * PAGE), EPERM);
        fails!(sc!(SYS_pread64, fd, [0u8; 8].as_mut_ptr(), 8, RAM), EPERM);
        fails!(sc!(SYS_pwrite64, fd, [0u8; 8].as_ptr(), 8, RAM), EPERM);
        fails!(sc!(SYS_pread64, fd, [0u8; 8].as_mut_ptr(), 8, 1u64 << 62), EFAULT);
        fails!(map(fd, libc::PROT_READ, libc::MAP_SHARED, 1 << 60), EINVAL);
    }
    mem_copies_for_private_writers {
        let fd = devmem()?;
        let own = ok!(map(fd, RW, libc::MAP_PRIVATE, ROM));
        let rom = ok!(map(fd, libc::PROT_READ, libc::MAP_SHARED, ROM));
        is!(first_byte(own + JUMP), 0xea);
        sys::poke64(own + JUMP - 8, 0x1234_5678);
        is!(first_byte(own + JUMP), 0xea);
        is!(sys::peek64(own + JUMP - 8), 0x1234_5678);
        holds!(sys::peek64(rom + JUMP - 8) != 0x1234_5678);
        let pid = ok!(sys::fork());
        if pid == 0 {
            let right = sys::peek64(own + JUMP - 8) == 0x1234_5678 && first_byte(rom + JUMP) == 0xea;
            sys::exit(i32::from(!right));
        }
        is!(ok!(sys::wait(pid as i64, 0)), (pid, 0));
    }
    mem_mappings_do_not_grow {
        let fd = devmem()?;
        let at = ok!(map(fd, libc::PROT_READ, libc::MAP_SHARED, ROM));
        is!(first_byte(at + JUMP), 0xea);
        fails!(sc!(SYS_mremap, at, PAGE * 16, PAGE * 17, libc::MREMAP_MAYMOVE), EFAULT);
        fails!(sc!(SYS_madvise, at, PAGE, libc::MADV_DONTNEED), EINVAL);
        fails!(sc!(SYS_madvise, at, PAGE, libc::MADV_DOFORK), EINVAL);
        ok!(sc!(SYS_munmap, at, PAGE));
        is!(first_byte(at + JUMP), 0xea);
    }
    mem_takes_no_advice_for_plain_memory {
        let fd = devmem()?;
        let at = ok!(anon(2));
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        is!(ok!(sys::mmap(at + PAGE, PAGE, libc::PROT_READ, flags, fd, ROM)), at + PAGE);
        takes_no_advice(at)?;
    }
    mem_seeks_by_address {
        let fd = devmem()?;
        is!(ok!(sc!(SYS_lseek, fd, ROM + JUMP, libc::SEEK_SET)), ROM + JUMP);
        let mut byte = [0];
        is!(ok!(sys::read(fd, &mut byte)), 1);
        is!(byte, [0xea]);
        is!(ok!(sc!(SYS_lseek, fd, 0, libc::SEEK_CUR)), ROM + JUMP + 1);
        fails!(sc!(SYS_lseek, fd, 0, libc::SEEK_END), EINVAL);
    }
}
