//! clone3 and execveat.

use crate::harness::*;
use user::sys;

/// The words of `struct clone_args`.
#[derive(Clone, Copy, Default)]
struct Args([u64; 12]);

const FLAGS: usize = 0;
const PIDFD: usize = 1;
const CHILD_TID: usize = 2;
const PARENT_TID: usize = 3;
const EXIT_SIGNAL: usize = 4;
const STACK: usize = 5;
const STACK_SIZE: usize = 6;
const SET_TID: usize = 8;
const SET_TID_SIZE: usize = 9;
const CGROUP: usize = 10;
const UNKNOWN: usize = 11;

fn args(words: &[(usize, u64)]) -> Args {
    let mut args = Args::default();
    for &(index, value) in words {
        args.0[index] = value;
    }
    args
}

fn clone3(args: &Args, size: u64) -> Result<u64, i32> {
    sc!(SYS_clone3, args.0.as_ptr(), size)
}

/// A call that must fail; should it make a child, that ends.
fn refused(words: &[(usize, u64)], size: u64) -> Result<u64, i32> {
    let made = clone3(&args(words), size);
    if made == Ok(0) {
        sys::exit(0);
    }
    made
}

const CLEAR_SIGHAND: u64 = 1 << 32;
const INTO_CGROUP: u64 = 1 << 33;
const WHOLE: u64 = 88;
const CHILD: u64 = libc::SIGCHLD as u64;

extern "C" fn nothing(_: i32) {}

fn execveat(dir: i32, name: &str, argv: &[&str], flags: i32) -> Result<u64, i32> {
    let mut list: Vec<u64> = argv.iter().map(|arg| path(arg)).collect();
    list.push(0);
    sc!(
        SYS_execveat,
        dir,
        path(name),
        list.as_ptr(),
        [0u64].as_ptr(),
        flags
    )
}

/// The exit status of a child that executes so, with nothing to read.
fn ran(dir: i32, name: &str, argv: &[&str], flags: i32) -> Result<i32, String> {
    in_child(|| {
        let null = sys::open("/dev/null", libc::O_RDONLY, 0).unwrap_or(0);
        let _ = sc!(SYS_dup2, null, 0);
        execveat(dir, name, argv, flags).map_or_else(|errno| errno, |_| 250)
    })
}

const EMPTY: i32 = libc::AT_EMPTY_PATH;

tests! { "clone3";
    a_child_is_made_with_any_size_of_arguments {
        for size in [64, 80, 88, 96] {
            let mut tids = [0u32; 2];
            let (parent, child) = tids.split_at_mut(1);
            let flags = libc::CLONE_PARENT_SETTID | libc::CLONE_CHILD_SETTID;
            let words = args(&[
                (FLAGS, flags as u64),
                (EXIT_SIGNAL, CHILD),
                (PARENT_TID, parent.as_mut_ptr() as u64),
                (CHILD_TID, child.as_mut_ptr() as u64),
            ]);
            let pid = ok!(clone3(&words, size));
            if pid == 0 {
                let tid = std::hint::black_box(&tids)[1];
                sys::exit(i32::from(sc!(SYS_gettid) != Ok(tid.into())) + 5);
            }
            is!(ok!(sys::wait(pid as i64, 0)), (pid, 5 << 8));
            is!(u64::from(std::hint::black_box(&tids)[0]), pid);
        }
    }
    a_child_that_sends_no_signal_needs_another_wait {
        let pid = ok!(clone3(&args(&[]), WHOLE));
        if pid == 0 { sys::exit(3); }
        fails!(sys::wait(pid as i64, 0), ECHILD);
        is!(ok!(sys::wait(pid as i64, libc::__WCLONE)), (pid, 3 << 8));
    }
    handlers_may_go {
        ok!(sys::on_signal(libc::SIGUSR1, nothing as *const () as usize, libc::SA_NODEFER));
        ok!(sys::on_signal(libc::SIGUSR2, libc::SIG_IGN, 0));
        let pid = ok!(clone3(&args(&[(FLAGS, CLEAR_SIGHAND), (EXIT_SIGNAL, CHILD)]), WHOLE));
        if pid == 0 {
            let me = sc!(SYS_getpid).unwrap_or(0);
            let _ = sc!(SYS_kill, me, libc::SIGUSR2);
            let _ = sc!(SYS_kill, me, libc::SIGUSR1);
            sys::exit(0);
        }
        is!(ok!(sys::wait(pid as i64, 0)), (pid, libc::SIGUSR1));
        // The parent's stay.
        ok!(sc!(SYS_kill, ok!(sc!(SYS_getpid)), libc::SIGUSR1));
    }
    wrong_arguments {
        let signal = (EXIT_SIGNAL, CHILD);
        fails!(refused(&[signal], 63), EINVAL);
        fails!(refused(&[signal], 5000), E2BIG);
        fails!(refused(&[signal, (UNKNOWN, 1)], 96), E2BIG);
        fails!(sc!(SYS_clone3, 8, WHOLE), EFAULT);
        fails!(refused(&[(EXIT_SIGNAL, 65)], WHOLE), EINVAL);
        fails!(refused(&[(FLAGS, 1 << 40), signal], WHOLE), EINVAL);
        fails!(refused(&[(FLAGS, libc::CLONE_DETACHED as u64), signal], WHOLE), EINVAL);
        fails!(refused(&[(FLAGS, 0x11), signal], WHOLE), EINVAL);
        fails!(refused(&[(FLAGS, CLEAR_SIGHAND | (libc::CLONE_SIGHAND | libc::CLONE_VM) as u64), signal], WHOLE), EINVAL);
        fails!(refused(&[(FLAGS, libc::CLONE_SIGHAND as u64), signal], WHOLE), EINVAL);
        fails!(refused(&[(FLAGS, libc::CLONE_PARENT as u64), signal], WHOLE), EINVAL);
        fails!(refused(&[signal, (STACK, 4096)], WHOLE), EINVAL);
        fails!(refused(&[signal, (STACK_SIZE, 4096)], WHOLE), EINVAL);
        fails!(refused(&[signal, (STACK, 1 << 62), (STACK_SIZE, 4096)], WHOLE), EINVAL);
        fails!(refused(&[signal, (SET_TID, 8)], WHOLE), EINVAL);
        fails!(refused(&[signal, (SET_TID_SIZE, 1)], WHOLE), EINVAL);
        fails!(refused(&[signal, (SET_TID, 8), (SET_TID_SIZE, 33)], WHOLE), EINVAL);
        fails!(refused(&[(FLAGS, INTO_CGROUP), signal, (CGROUP, 9999)], WHOLE), EBADF);
        fails!(refused(&[(FLAGS, INTO_CGROUP), signal, (CGROUP, 1 << 33)], WHOLE), EINVAL);
    }
    a_child_with_a_descriptor {
        let signal = (EXIT_SIGNAL, libc::SIGCHLD as u64);
        let pidfd = (FLAGS, libc::CLONE_PIDFD as u64);
        let mut fd = [-1i32];
        let pid = ok!(clone3(&args(&[pidfd, signal, (PIDFD, fd.as_mut_ptr() as u64)]), WHOLE));
        if pid == 0 {
            // The child has it not.
            let own = sc!(SYS_fcntl, fd[0], libc::F_GETFD);
            sys::exit(if own == Err(libc::EBADF) { 7 } else { 8 });
        }
        is!(ok!(sc!(SYS_fcntl, fd[0], libc::F_GETFD)), 1);
        let mut list = [u64::from(fd[0] as u32) | (libc::POLLIN as u64) << 32];
        is!(ok!(sc!(SYS_poll, list.as_mut_ptr(), 1, 5000)), 1);
        is!(ok!(sys::wait(pid as i64, 0)), (pid, 7 << 8));
        fails!(sc!(SYS_pidfd_send_signal, fd[0], 0, 0, 0), ESRCH);
        ok!(sys::close(fd[0]));
        // clone(2) stores it where the tid would be.
        let mut old = [-1i32];
        let flags = (libc::CLONE_PIDFD | libc::SIGCHLD) as u64;
        let pid = ok!(sc!(SYS_clone, flags, 0, old.as_mut_ptr(), 0, 0));
        if pid == 0 {
            sys::exit(0);
        }
        is!(old[0], fd[0]);
        is!(ok!(sys::wait(pid as i64, 0)), (pid, 0));
        ok!(sys::close(old[0]));
        let both = flags | libc::CLONE_PARENT_SETTID as u64;
        fails!(sc!(SYS_clone, both, 0, old.as_mut_ptr(), 0, 0), EINVAL);
        let at = old.as_mut_ptr() as u64;
        let both = (FLAGS, (libc::CLONE_PIDFD | libc::CLONE_PARENT_SETTID) as u64);
        fails!(refused(&[both, signal, (PIDFD, at), (PARENT_TID, at)], WHOLE), EINVAL);
        let detached = flags | libc::CLONE_DETACHED as u64;
        fails!(sc!(SYS_clone, detached, 0, old.as_mut_ptr(), 0, 0), EINVAL);
        // Neither a child nor a descriptor is made.
        fails!(refused(&[pidfd, signal, (PIDFD, 8)], WHOLE), EFAULT);
        ok!(sc!(SYS_setrlimit, libc::RLIMIT_NOFILE, [fd[0], 0, fd[0], 0].as_ptr()));
        fails!(refused(&[pidfd, signal, (PIDFD, at)], WHOLE), EMFILE);
        fails!(sys::wait(-1, 0), ECHILD);
    }
    execveat_runs_what_a_descriptor_names {
        let exe = ok!(sys::open("/proc/self/exe", libc::O_RDONLY, 0));
        is!(ran(exe, "", &["x", "--wait"], EMPTY)?, 0);
        let place = ok!(sys::open("/proc/self/exe", libc::O_PATH | libc::O_CLOEXEC, 0));
        is!(ran(place, "", &["x", "--wait"], EMPTY)?, 0);
        is!(ran(exe, "", &["x", "--wait"], 0)?, libc::ENOENT << 8);
        is!(ran(9999, "", &["x"], EMPTY)?, libc::EBADF << 8);
        is!(ran(exe, "x", &["x"], 0x4000)?, libc::EINVAL << 8);
        is!(ran(libc::AT_FDCWD, "/proc/self/exe", &["x", "--wait"], 0)?, 0);
        is!(ran(exe, "x", &["x"], 0)?, libc::ENOTDIR << 8);
        let (from, _to) = ok!(sys::pipe(0));
        is!(ran(from, "", &["x"], EMPTY)?, libc::EACCES << 8);
    }
    execveat_looks_names_up_from_a_directory {
        let dir = scratch();
        let at = ok!(sys::open(&dir, libc::O_DIRECTORY | libc::O_RDONLY, 0));
        let exe = std::env::current_exe().map_err(|e| e.to_string())?;
        std::os::unix::fs::symlink(&exe, format!("{dir}/link")).map_err(|e| e.to_string())?;
        is!(ran(at, "link", &["x", "--wait"], 0)?, 0);
        is!(ran(at, "link", &["x", "--wait"], libc::AT_SYMLINK_NOFOLLOW)?, libc::ELOOP << 8);
        is!(ran(at, "nothing", &["x"], 0)?, libc::ENOENT << 8);
        is!(ran(at, "", &["x"], EMPTY)?, libc::EACCES << 8);
        let script = format!("#!{} --wait\n", exe.display());
        std::fs::write(format!("{dir}/script"), script).map_err(|e| e.to_string())?;
        ok!(sc!(SYS_chmod, path(&format!("{dir}/script")), 0o755));
        is!(ran(at, "script", &["x"], 0)?, 0);
        // Its interpreter would find nothing at a descriptor that is closed.
        ok!(sc!(SYS_fcntl, at, libc::F_SETFD, libc::FD_CLOEXEC));
        is!(ran(at, "script", &["x"], 0)?, libc::ENOENT << 8);
        is!(ran(at, "link", &["x", "--wait"], 0)?, 0);
    }
}
