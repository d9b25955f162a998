//! Raw Linux system calls and raw memory.
//!
//! Guarantee: [`call`] passes its arguments to the kernel unchanged and returns the kernel's result, errno included.
//! [`peek`], [`poke`] and their kin access memory by one volatile access of the named size.
//!
//! These functions are not `unsafe` to call although a program can destroy itself with them (by unmapping its stack,
//! for instance): the programs exist to test a kernel with such calls. Instead they keep this rule: memory that Rust
//! code owns is never passed to a call that changes its mapping.
#![expect(
    unsafe_code,
    reason = "system calls and mapped memory have no safe form"
)]

pub mod access;
pub mod mutex;

use std::arch::asm;

/// An error number, positive.
pub type Errno = i32;

/// Makes system call `nr`; missing arguments are zero.
///
/// # Errors
/// The kernel's errno.
pub fn call(nr: i64, args: &[u64]) -> Result<u64, Errno> {
    let arg = |i: usize| args.get(i).copied().unwrap_or(0);
    let ret: i64;
    // SAFETY: a system call clobbers rax, rcx and r11 only; memory effects are declared by the absence of
    // `nomem`. What the call does to this process is the caller's affair, see the module's head.
    unsafe {
        asm!("syscall", inlateout("rax") nr => ret, in("rdi") arg(0), in("rsi") arg(1), in("rdx") arg(2),
             in("r10") arg(3), in("r8") arg(4), in("r9") arg(5), lateout("rcx") _, lateout("r11") _);
    }
    if (-4095..0).contains(&ret) {
        Err(-ret as Errno)
    } else {
        Ok(ret as u64)
    }
}

/// `vfork`, and in the child at once `exit_group(0)`; returns the child's pid.
///
/// # Errors
/// The kernel's errno.
pub fn vfork_exit() -> Result<u64, Errno> {
    let ret: i64;
    // SAFETY: between the two returns of vfork the child touches neither stack nor memory.
    unsafe {
        asm!("syscall", "test rax, rax", "jnz 2f", "mov eax, 231", "xor edi, edi", "syscall", "2:",
             inlateout("rax") libc::SYS_vfork => ret, lateout("rcx") _, lateout("r11") _, out("rdi") _);
    }
    if (-4095..0).contains(&ret) {
        Err(-ret as Errno)
    } else {
        Ok(ret as u64)
    }
}

/// `vfork`, and in the child `execve(path, argv, envp)`, then `exit_group(127)` if that fails.
///
/// # Errors
/// The errno of vfork.
pub fn vfork_exec(
    path: &std::ffi::CStr,
    argv: &[*const i8],
    envp: &[*const i8],
) -> Result<u64, Errno> {
    clone_exec(0, 0, path, argv, envp)
}

/// A restartable sequence of the thread whose registered structure is at `area`: `turns` turns of a loop. False if it was aborted.
pub fn sequence(area: u64, turns: u64) -> bool {
    let ended: u64;
    // SAFETY: `area` is memory that the caller has mapped and registered. The sequence changes registers only, and its abort handler
    // is in the same block.
    unsafe {
        asm!(
            ".pushsection .data.rseq, \"aw\"",
            ".balign 32",
            "3: .long 0, 0",
            ".quad 2f, 4f - 2f, 5f",
            ".popsection",
            "lea {tmp}, [rip + 3b]",
            "mov [{area} + 8], {tmp}",
            "2:",
            "pause",
            "dec {turns}",
            "jnz 2b",
            "mov {tmp}, 1",
            "4:",
            "jmp 6f",
            // The signature.
            ".long 0x53053053",
            "5:",
            "xor {tmp:e}, {tmp:e}",
            "6:",
            area = in(reg) area, turns = inout(reg) turns => _, tmp = out(reg) ended,
        );
    }
    ended == 1
}

/// As [`vfork_exec`], with further flags of clone(2), and the word for CLONE_CHILD_CLEARTID.
///
/// # Errors
/// The errno of clone.
pub fn clone_exec(
    flags: i32,
    word: u64,
    path: &std::ffi::CStr,
    argv: &[*const i8],
    envp: &[*const i8],
) -> Result<u64, Errno> {
    let ret: i64;
    let flags = (flags | libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD) as u64;
    // SAFETY: the child only makes system calls; all pointers outlive the call, for the caller sleeps until the child has
    // left the memory.
    unsafe {
        asm!("syscall", "test rax, rax", "jnz 2f", "mov eax, 59", "mov rdi, r9", "mov rsi, r12", "mov rdx, r13", "syscall",
             "mov eax, 231", "mov edi, 127", "syscall", "2:",
             inlateout("rax") libc::SYS_clone => ret, inlateout("rdi") flags => _, inlateout("rsi") 0u64 => _,
             inlateout("rdx") 0u64 => _, in("r10") word, in("r8") 0, in("r9") path.as_ptr(), in("r12") argv.as_ptr(),
             in("r13") envp.as_ptr(), lateout("rcx") _, lateout("r11") _);
    }
    if (-4095..0).contains(&ret) {
        Err(-ret as Errno)
    } else {
        Ok(ret as u64)
    }
}

/// A child or, by `flags` of clone(2), a thread that shares the memory, makes one system call and exits; returns its number.
/// What the arguments point to must stay valid until then.
///
/// # Errors
/// The kernel's errno.
pub fn clone_calling(flags: i32, number: i64, args: [u64; 4]) -> Result<u64, Errno> {
    let ret: i64;
    // SAFETY: the child touches neither stack nor memory, but by its system call.
    unsafe {
        asm!("syscall", "test rax, rax", "jnz 2f", "mov rax, r12", "mov rdi, r13", "mov rsi, r14", "mov rdx, r15",
             "mov r10, r9", "syscall", "mov eax, 60", "xor edi, edi", "syscall", "2:",
             inlateout("rax") libc::SYS_clone => ret,
             inlateout("rdi") (libc::CLONE_VM | flags) as u64 => _, inlateout("rsi") 0u64 => _,
             inlateout("rdx") 0u64 => _, in("r10") 0, in("r8") 0, in("r12") number, in("r13") args[0],
             in("r14") args[1], in("r15") args[2], in("r9") args[3], lateout("rcx") _, lateout("r11") _);
    }
    if (-4095..0).contains(&ret) {
        Err(-ret as Errno)
    } else {
        Ok(ret as u64)
    }
}

/// As [`clone_calling`]: sleeps until `at` on the monotonic clock.
///
/// # Errors
/// The kernel's errno.
pub fn clone_asleep(flags: i32, at: &'static libc::timespec) -> Result<u64, Errno> {
    let until = [
        libc::CLOCK_MONOTONIC as u64,
        libc::TIMER_ABSTIME as u64,
        core::ptr::from_ref(at).expose_provenance() as u64,
        0,
    ];
    clone_calling(flags, libc::SYS_clock_nanosleep, until)
}

/// A thread that only sleeps, for ever, and has no memory of its own; returns its number.
///
/// # Errors
/// The kernel's errno.
pub fn thread_asleep() -> Result<u64, Errno> {
    let ret: i64;
    let flags = libc::CLONE_VM
        | libc::CLONE_FS
        | libc::CLONE_FILES
        | libc::CLONE_SIGHAND
        | libc::CLONE_THREAD;
    // SAFETY: the thread touches neither stack nor memory.
    unsafe {
        asm!("syscall", "test rax, rax", "jnz 3f", "2:", "mov eax, 34", "syscall", "jmp 2b", "3:",
             inlateout("rax") libc::SYS_clone => ret, in("rdi") flags as u64, in("rsi") 0, in("rdx") 0,
             in("r10") 0, in("r8") 0, lateout("rcx") _, lateout("r11") _);
    }
    if (-4095..0).contains(&ret) {
        Err(-ret as Errno)
    } else {
        Ok(ret as u64)
    }
}

/// Changes the calling thread's user and group to this id, with these supplementary groups.
///
/// # Errors
/// That of the first of setgroups(2), setresgid(2) and setresuid(2) that fails.
pub fn become_user(id: u32, groups: &[u32]) -> Result<u64, Errno> {
    call(
        libc::SYS_setgroups,
        &[groups.len() as u64, groups.as_ptr() as u64],
    )?;
    call(libc::SYS_setresgid, &[u64::from(id); 3])?;
    call(libc::SYS_setresuid, &[u64::from(id); 3])
}

/// setuid(2) as the C library does it: for all threads of the process.
///
/// # Errors
/// The kernel's errno.
pub fn set_uid_of_all(uid: u32) -> Result<(), Errno> {
    // SAFETY: changes no memory; needs no state but the C library's own.
    if unsafe { libc::setuid(uid) } == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
    }
}

/// Maps memory; the address is a plain integer because it may be invalid.
///
/// # Errors
/// The kernel's errno.
pub fn mmap(addr: u64, len: u64, prot: i32, flags: i32, fd: i32, off: u64) -> Result<u64, Errno> {
    call(
        libc::SYS_mmap,
        &[addr, len, prot as u64, flags as u64, fd as i64 as u64, off],
    )
}

/// Unmaps memory.
///
/// # Errors
/// The kernel's errno.
pub fn munmap(addr: u64, len: u64) -> Result<u64, Errno> {
    call(libc::SYS_munmap, &[addr, len])
}

/// Reads one byte at `addr`; faults as the machine does.
pub fn peek(addr: u64) -> u8 {
    // SAFETY: the address is either mapped or meant to fault; no Rust object lives there.
    unsafe { (addr as *const u8).read_volatile() }
}

/// Writes one byte at `addr`; faults as the machine does.
pub fn poke(addr: u64, value: u8) {
    // SAFETY: as for `peek`.
    unsafe { (addr as *mut u8).write_volatile(value) }
}

/// Reads eight bytes at `addr`.
pub fn peek64(addr: u64) -> u64 {
    // SAFETY: as for `peek`; the machine allows unaligned reads and callers align.
    unsafe { (addr as *const u64).read_volatile() }
}

/// Writes eight bytes at `addr`.
pub fn poke64(addr: u64, value: u64) {
    // SAFETY: as for `peek`.
    unsafe { (addr as *mut u64).write_volatile(value) }
}

/// An atomic word in shared memory.
pub fn atomic(addr: u64) -> &'static std::sync::atomic::AtomicU64 {
    // SAFETY: callers pass an aligned address inside a mapping that they never unmap.
    unsafe { std::sync::atomic::AtomicU64::from_ptr(addr as *mut u64) }
}

/// Calls the machine code at `addr` as a function without arguments.
pub fn jump(addr: u64) -> u64 {
    // SAFETY: the callers put code there, or mean to fault.
    unsafe { std::mem::transmute::<usize, extern "C" fn() -> u64>(addr as usize)() }
}

/// `fork`; 0 in the child.
///
/// # Errors
/// The kernel's errno.
pub fn fork() -> Result<u64, Errno> {
    call(libc::SYS_fork, &[])
}

/// Ends the process without running exit handlers.
pub fn exit(status: i32) -> ! {
    loop {
        let _ = call(libc::SYS_exit_group, &[status as u64]);
    }
}

/// Waits for `pid` (-1: any); returns the pid and the raw status word.
///
/// # Errors
/// The kernel's errno; EINTR is retried.
pub fn wait(pid: i64, options: i32) -> Result<(u64, i32), Errno> {
    let mut status = 0i32;
    loop {
        match call(
            libc::SYS_wait4,
            &[pid as u64, &raw mut status as u64, options as u64, 0],
        ) {
            Err(libc::EINTR) => {}
            other => return other.map(|pid| (pid, status)),
        }
    }
}

/// A pipe: read end, write end.
///
/// # Errors
/// The kernel's errno.
pub fn pipe(flags: i32) -> Result<(i32, i32), Errno> {
    let mut fds = [0i32; 2];
    call(libc::SYS_pipe2, &[fds.as_mut_ptr() as u64, flags as u64])?;
    Ok((fds[0], fds[1]))
}

/// Reads into `buf`.
///
/// # Errors
/// The kernel's errno.
pub fn read(fd: i32, buf: &mut [u8]) -> Result<usize, Errno> {
    call(
        libc::SYS_read,
        &[fd as u64, buf.as_mut_ptr() as u64, buf.len() as u64],
    )
    .map(|n| n as usize)
}

/// Writes `buf`.
///
/// # Errors
/// The kernel's errno.
pub fn write(fd: i32, buf: &[u8]) -> Result<usize, Errno> {
    call(
        libc::SYS_write,
        &[fd as u64, buf.as_ptr() as u64, buf.len() as u64],
    )
    .map(|n| n as usize)
}

/// Closes a descriptor.
///
/// # Errors
/// The kernel's errno.
pub fn close(fd: i32) -> Result<u64, Errno> {
    call(libc::SYS_close, &[fd as u64])
}

/// Opens `path`.
///
/// # Errors
/// The kernel's errno.
pub fn open(path: &str, flags: i32, mode: u32) -> Result<i32, Errno> {
    let path = std::ffi::CString::new(path).map_err(|_| libc::EINVAL)?;
    call(
        libc::SYS_openat,
        &[
            libc::AT_FDCWD as i64 as u64,
            path.as_ptr() as u64,
            flags as u64,
            u64::from(mode),
        ],
    )
    .map(|fd| fd as i32)
}

/// Sleeps; less if a signal interrupts the sleep.
pub fn nap(ns: u64) {
    let ts = [ns / 1_000_000_000, ns % 1_000_000_000];
    let _ = call(libc::SYS_nanosleep, &[ts.as_ptr() as u64, 0]);
}

/// Nanoseconds of the monotonic clock.
pub fn now_ns() -> u64 {
    let mut ts = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the C library's function (it may use the vDSO) with a valid pointer.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut ts) };
    ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64
}

/// The time-stamp counter.
pub fn tsc() -> u64 {
    // SAFETY: every x86-64 CPU has the instruction, and kernels permit it in user mode.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// Binds the calling thread to one CPU.
///
/// # Errors
/// The kernel's errno, EINVAL for a CPU that does not exist.
pub fn tie_to_cpu(cpu: usize) -> Result<(), Errno> {
    tie_to_cpus(&[cpu])
}

/// Lets the calling thread run on some CPUs alone.
///
/// # Errors
/// The kernel's errno, EINVAL where none of them exists.
pub fn tie_to_cpus(cpus: &[usize]) -> Result<(), Errno> {
    let mut set = [0u64; 16];
    for cpu in cpus {
        set[cpu / 64] |= 1 << (cpu % 64);
    }
    call(
        libc::SYS_sched_setaffinity,
        &[0, size_of_val(&set) as u64, set.as_ptr() as u64],
    )
    .map(drop)
}

/// The CPUs this process may run on.
pub fn cpus() -> Vec<usize> {
    let mut set = [0u64; 128];
    match call(
        libc::SYS_sched_getaffinity,
        &[0, size_of_val(&set) as u64, set.as_mut_ptr() as u64],
    ) {
        Ok(_) => (0..set.len() * 64)
            .filter(|cpu| set[cpu / 64] >> (cpu % 64) & 1 == 1)
            .collect(),
        Err(_) => vec![0],
    }
}

/// What a handler of a fault recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// SIGSEGV, SIGBUS, ...
    pub signal: i32,
    /// `si_code`.
    pub code: i32,
    /// `si_addr`.
    pub addr: u64,
}

/// The address of the shared memory in which the handler of `catch` records the fault.
static CAUGHT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

/// The page that `CAUGHT` names, mapped at the first call. A program calls this early, so that the page does not take
/// the address of memory just unmapped.
pub fn caught_page() -> u64 {
    let made = CAUGHT.load(std::sync::atomic::Ordering::Relaxed);
    if made != 0 {
        return made;
    }
    let (prot, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_SHARED | libc::MAP_ANONYMOUS,
    );
    let page = mmap(0, 4096, prot, flags, -1, 0).expect("a page for the answer");
    CAUGHT.store(page, std::sync::atomic::Ordering::Relaxed);
    page
}

extern "C" fn on_fault(
    signal: i32,
    info: *const libc::siginfo_t,
    context: *const libc::ucontext_t,
) {
    let page = CAUGHT.load(std::sync::atomic::Ordering::Relaxed);
    // SAFETY: the kernel hands a handler with SA_SIGINFO a valid siginfo.
    let (code, addr) = unsafe { ((*info).si_code, (*info).si_addr() as u64) };
    poke64(page + 8, code as u64);
    poke64(page + 16, addr);
    // SAFETY: and a valid context.
    let registers = unsafe { (*context).uc_mcontext.gregs };
    poke64(page + 24, registers[libc::REG_CR2 as usize] as u64);
    poke64(page + 32, registers[libc::REG_ERR as usize] as u64);
    poke64(page, signal as u64);
    exit(0)
}

/// Installs `handler` (a function or a SIG_ constant) for `signal`.
///
/// # Errors
/// The C library's errno.
pub fn on_signal(signal: i32, handler: usize, flags: i32) -> Result<(), Errno> {
    // SAFETY: a zeroed sigaction is a valid one; the handlers of these programs only make system calls and
    // write to memory made for that.
    let done = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        libc::sigaction(signal, &raw const action, std::ptr::null_mut())
    };
    if done == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error()
            .raw_os_error()
            .unwrap_or(libc::EIO))
    }
}

/// Restores the default action of `signal`.
///
/// # Errors
/// The C library's errno.
pub fn default_signal(signal: i32) -> Result<(), Errno> {
    on_signal(signal, libc::SIG_DFL, 0)
}

/// Runs `f` in a child process and returns the fault that it took first, none if it ran to its end. A child killed by a
/// signal without a handler having run is reported with code -1.
pub fn catch<T>(f: impl FnOnce() -> T) -> Option<Fault> {
    let page = caught_page();
    poke64(page, 0);
    let Ok(pid) = fork() else {
        return Some(Fault {
            signal: 0,
            code: -2,
            addr: 0,
        });
    };
    if pid == 0 {
        for signal in [
            libc::SIGSEGV,
            libc::SIGBUS,
            libc::SIGFPE,
            libc::SIGILL,
            libc::SIGTRAP,
        ] {
            let _ = on_signal(signal, on_fault as *const () as usize, libc::SA_SIGINFO);
        }
        std::hint::black_box(f());
        exit(0);
    }
    let (_, status) = wait(pid as i64, 0).unwrap_or((0, 0));
    let signal = peek64(page) as i32;
    if signal != 0 {
        Some(Fault {
            signal,
            code: peek64(page + 8) as i32,
            addr: peek64(page + 16),
        })
    } else {
        (status & 0x7f != 0).then_some(Fault {
            signal: status & 0x7f,
            code: -1,
            addr: 0,
        })
    }
}

/// The faulting address and the error code in the context of the fault that [`catch`] reported last.
pub fn caught_context() -> (u64, u64) {
    let page = caught_page();
    (peek64(page + 24), peek64(page + 32))
}

/// A stat structure of zeroes.
pub fn zeroed_stat() -> libc::stat {
    // SAFETY: it is plain integers.
    unsafe { std::mem::zeroed() }
}

/// Rows and columns of the terminal behind `fd`, 0 if the terminal does not know them; `None` if it is no terminal.
pub fn window_size(fd: i32) -> Option<(usize, usize)> {
    let mut size = [0u16; 4];
    let at = size.as_mut_ptr().expose_provenance() as u64;
    call(libc::SYS_ioctl, &[fd as u64, libc::TIOCGWINSZ, at]).ok()?;
    Some((usize::from(size[0]), usize::from(size[1])))
}

/// An entry of the auxiliary vector, 0 if there is none.
pub fn auxval(kind: u64) -> u64 {
    // SAFETY: reads what the kernel put on the first stack.
    unsafe { libc::getauxval(kind) }
}
