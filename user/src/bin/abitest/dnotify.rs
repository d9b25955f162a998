//! F_NOTIFY: signals about directories.

use crate::harness::*;
use user::sys;

const F_SETSIG: i32 = 10;
const F_NOTIFY: i32 = 1026;
const ACCESS: i32 = 1;
const MODIFY: i32 = 2;
const CREATE: i32 = 4;
const DELETE: i32 = 8;
const RENAME: i32 = 0x10;
const ATTRIB: i32 = 0x20;
const MULTISHOT: i32 = i32::MIN;
const ALL: i32 = 0x3f;
const SIGNAL: i32 = 41;
/// A user without any mark, and how many it may have.
const USER: u32 = 42_101;
const MOST: usize = 128;
/// POLL_MSG, and the events of poll(2) that Linux says of it.
const MESSAGE: (i32, u64) = (3, 0x441);

fn fcntl(fd: i32, cmd: i32, arg: i32) -> Result<u64, i32> {
    sc!(SYS_fcntl, fd, cmd, arg)
}

fn open(dir: &str) -> Result<i32, i32> {
    sys::open(dir, libc::O_RDONLY | libc::O_DIRECTORY, 0)
}

/// A directory with a file, open, of which signals with information were asked for.
fn watched(arg: i32) -> Result<(String, i32), String> {
    let set = [1u64 << (libc::SIGIO - 1) | 1 << (SIGNAL - 1)];
    ok!(sc!(SYS_rt_sigprocmask, libc::SIG_BLOCK, set.as_ptr(), 0, 8));
    let dir = scratch();
    ok!(std::fs::write(format!("{dir}/f"), b"text").map_err(|_| libc::EIO));
    ok!(sc!(SYS_mkdir, path(&format!("{dir}/sub")), 0o755));
    let fd = ok!(open(&dir));
    ok!(fcntl(fd, F_SETSIG, SIGNAL));
    match fcntl(fd, F_NOTIFY, arg) {
        Err(libc::EINVAL) => Err("skip: no F_NOTIFY".into()),
        other => Ok((dir, other.map(|_| fd).map_err(errno_name)?)),
    }
}

/// Takes the signals that are pending: of each the number, the code, the band, and the descriptor.
fn taken() -> Vec<(i32, i32, u64, i32)> {
    let set = [1u64 << (libc::SIGIO - 1) | 1 << (SIGNAL - 1)];
    let mut all = Vec::new();
    loop {
        let mut info = [0u64; 16];
        if sc!(
            SYS_rt_sigtimedwait,
            set.as_ptr(),
            info.as_mut_ptr(),
            [0u64; 2].as_ptr(),
            8
        )
        .is_err()
        {
            return all;
        }
        all.push((info[0] as i32, info[1] as i32, info[2], info[3] as i32));
    }
}

/// How many signals there are, all of which are about this descriptor.
fn about(fd: i32) -> Result<usize, String> {
    let all = taken();
    match all
        .iter()
        .all(|&one| one == (SIGNAL, MESSAGE.0, MESSAGE.1, fd))
    {
        true => Ok(all.len()),
        false => Err(format!("{all:?}")),
    }
}

fn rename(dir: &str, from: &str, to: &str) -> Result<u64, i32> {
    sc!(
        SYS_rename,
        path(&format!("{dir}/{from}")),
        path(&format!("{dir}/{to}"))
    )
}

fn unlink(dir: &str, name: &str) -> Result<u64, i32> {
    sc!(SYS_unlink, path(&format!("{dir}/{name}")))
}

fn make(dir: &str, name: &str) -> Result<i32, i32> {
    sys::open(
        &format!("{dir}/{name}"),
        libc::O_RDWR | libc::O_CREAT | libc::O_EXCL,
        0o600,
    )
}

tests! { "dnotify";
    each_kind_is_told_alone {
        let kinds = [ACCESS, MODIFY, CREATE, DELETE, RENAME, ATTRIB];
        for kind in kinds {
            let (dir, fd) = watched(kind | MULTISHOT)?;
            is!(about(fd)?, 0);
            let file = ok!(sys::open(&format!("{dir}/f"), libc::O_RDWR, 0));
            let told = |now: i32| if kind == now { 1 } else { 0 };
            is!(about(fd)?, 0);
            ok!(sys::read(file, &mut [0; 2]));
            is!(about(fd)?, told(ACCESS));
            ok!(sys::write(file, b"x"));
            is!(about(fd)?, told(MODIFY));
            ok!(sc!(SYS_ftruncate, file, 1));
            is!(about(fd)?, told(MODIFY));
            ok!(sc!(SYS_fchmod, file, 0o640));
            is!(about(fd)?, told(ATTRIB));
            ok!(sys::close(file));
            ok!(rename(&dir, "f", "g"));
            // It is gone, has come, and was renamed.
            is!(about(fd)?, told(DELETE) + told(CREATE) + told(RENAME));
            ok!(rename(&dir, "g", "sub/g"));
            is!(about(fd)?, told(DELETE));
            ok!(rename(&dir, "sub/g", "f"));
            is!(about(fd)?, told(CREATE));
            ok!(sys::close(ok!(make(&dir, "new"))));
            is!(about(fd)?, told(CREATE));
            ok!(unlink(&dir, "new"));
            is!(about(fd)?, told(DELETE));
            ok!(sc!(SYS_mkdir, path(&format!("{dir}/new")), 0o755));
            is!(about(fd)?, told(CREATE));
            ok!(sc!(SYS_rmdir, path(&format!("{dir}/new"))));
            is!(about(fd)?, told(DELETE));
            // What happens below a directory in it is not told.
            ok!(sys::close(ok!(make(&dir, "sub/deep"))));
            is!(about(fd)?, 0);
            // The directory's own attributes.
            ok!(sc!(SYS_chmod, path(&dir), 0o750));
            is!(about(fd)?, told(ATTRIB));
            ok!(sys::close(fd));
        }
    }
    without_multishot_it_is_told_once {
        let (dir, fd) = watched(CREATE | DELETE)?;
        for name in ["a", "b"] { ok!(sys::close(ok!(make(&dir, name)))); }
        is!(about(fd)?, 1);
        // Kinds are added, and stay, until one has come.
        ok!(fcntl(fd, F_NOTIFY, CREATE));
        ok!(fcntl(fd, F_NOTIFY, DELETE));
        ok!(unlink(&dir, "a"));
        is!(about(fd)?, 1);
        ok!(sys::close(ok!(make(&dir, "a"))));
        is!(about(fd)?, 0);
        ok!(fcntl(fd, F_NOTIFY, CREATE));
        ok!(fcntl(fd, F_NOTIFY, DELETE | MULTISHOT));
        for name in ["a", "b"] { ok!(unlink(&dir, name)); }
        ok!(sys::close(ok!(make(&dir, "a"))));
        is!(about(fd)?, 3);
    }
    without_a_signal_of_its_own_it_is_sigio {
        let (dir, fd) = watched(CREATE | MULTISHOT)?;
        ok!(fcntl(fd, F_SETSIG, 0));
        for name in ["a", "b"] { ok!(sys::close(ok!(make(&dir, name)))); }
        // A standard signal is pending once, and says nothing.
        let all = taken();
        is!(all.len(), 1);
        is!((all[0].0, all[0].1), (libc::SIGIO, 0x80));
    }
    it_ends_with_a_call_and_with_a_close {
        let (dir, fd) = watched(ALL | MULTISHOT)?;
        ok!(fcntl(fd, F_NOTIFY, 0));
        ok!(unlink(&dir, "f"));
        is!(about(fd)?, 0);
        ok!(fcntl(fd, F_NOTIFY, CREATE | MULTISHOT));
        ok!(fcntl(fd, F_NOTIFY, MULTISHOT));
        ok!(sys::close(ok!(make(&dir, "a"))));
        is!(about(fd)?, 0);
        // That of another descriptor of the same open file, too.
        let other = ok!(sc!(SYS_dup, fd)) as i32;
        ok!(fcntl(fd, F_NOTIFY, CREATE | MULTISHOT));
        ok!(sys::close(other));
        ok!(sys::close(ok!(make(&dir, "b"))));
        is!(about(fd)?, 0);
        ok!(fcntl(fd, F_NOTIFY, CREATE | MULTISHOT));
        // A child's close is not.
        is!(in_child(|| sys::close(fd).map_or(1, |_| 0))?, 0);
        ok!(sys::close(ok!(make(&dir, "c"))));
        is!(about(fd)?, 1);
        ok!(sys::close(fd));
        ok!(sys::close(ok!(make(&dir, "d"))));
        is!(taken(), []);
    }
    it_ends_with_the_process_whose_it_is {
        let (dir, fd) = watched(CREATE | MULTISHOT)?;
        // The owner is the parent, whatever the child asks for: that of both is told, but the child's ends.
        let status = in_child(|| {
            if fcntl(fd, F_NOTIFY, DELETE | MULTISHOT).is_err() { return 1; }
            i32::from(unlink(&dir, "f").is_err()) * 2
        })?;
        is!(status, 0);
        is!(about(fd)?, 1);
        let file = ok!(make(&dir, "f"));
        is!(about(fd)?, 1);
        ok!(sys::close(file));
        ok!(unlink(&dir, "f"));
        is!(about(fd)?, 0);
    }
    two_open_files_of_a_directory_are_told_each {
        let (dir, fd) = watched(CREATE)?;
        let second = ok!(open(&dir));
        ok!(fcntl(second, F_SETSIG, SIGNAL));
        ok!(fcntl(second, F_NOTIFY, CREATE));
        ok!(sys::close(ok!(make(&dir, "a"))));
        let mut fds: Vec<i32> = taken().iter().map(|one| one.3).collect();
        fds.sort_unstable();
        is!(fds, [fd, second]);
        // The descriptor of the last call is told.
        let third = ok!(sc!(SYS_dup, fd)) as i32;
        ok!(fcntl(fd, F_NOTIFY, CREATE));
        ok!(fcntl(third, F_NOTIFY, CREATE));
        ok!(sys::close(ok!(make(&dir, "b"))));
        is!(about(third)?, 1);
    }
    a_directory_that_is_removed_says_no_more {
        let (dir, fd) = watched(ALL | MULTISHOT)?;
        let sub = ok!(open(&format!("{dir}/sub")));
        ok!(fcntl(sub, F_SETSIG, SIGNAL));
        ok!(fcntl(sub, F_NOTIFY, CREATE | DELETE | MULTISHOT));
        ok!(sc!(SYS_rmdir, path(&format!("{dir}/sub"))));
        is!(about(fd)?, 1);
        ok!(sc!(SYS_mkdir, path(&format!("{dir}/sub")), 0o755));
        is!(about(fd)?, 1);
        ok!(sys::close(sub));
        is!(taken(), []);
    }
    a_user_has_so_many {
        if std::fs::metadata("/proc/pantala/accounts").is_err() {
            return Err("skip: no such limit".into());
        }
        let _ = watched(0)?;
        // What a process had is another's when it has ended.
        for _ in 0..2 {
            is!(in_child(|| {
                if sc!(SYS_setresuid, USER, USER, USER).is_err() { return 1; }
                let mark = || open("/").and_then(|fd| fcntl(fd, F_NOTIFY, CREATE | MULTISHOT).map(|_| fd));
                let made: Vec<_> = (0..200).map(|_| mark()).collect();
                let (some, full) = (made.iter().flatten().count(), made.last() == Some(&Err(libc::ENOMEM)));
                if some != MOST || !full { return 2; }
                // More of what one mark wants takes no other's place, and a close makes room.
                let Ok(first) = made[0] else { return 3 };
                if fcntl(first, F_NOTIFY, DELETE).is_err() { return 4; }
                if sys::close(first).is_err() || mark().is_err() { return 5; }
                i32::from(mark() != Err(libc::ENOMEM)) * 6
            })?, 0);
        }
    }
    a_mark_that_has_ended_takes_no_place {
        let (dir, _) = watched(0)?;
        let sub = ok!(open(&format!("{dir}/sub")));
        ok!(sc!(SYS_rmdir, path(&format!("{dir}/sub"))));
        is!(in_child(|| {
            if sc!(SYS_setresuid, USER, USER, USER).is_err() { return 1; }
            // Each ends at once, since the directory is gone.
            let made = (0..2 * MOST).all(|_| fcntl(sub, F_NOTIFY, CREATE | MULTISHOT).is_ok());
            i32::from(!made) * 2
        })?, 0);
    }
    beside_a_watch_of_inotify {
        let (dir, fd) = watched(ALL | MULTISHOT)?;
        let notes = ok!(sc!(SYS_inotify_init1, libc::O_NONBLOCK)) as i32;
        ok!(sc!(SYS_inotify_add_watch, notes, path(&dir), libc::IN_ALL_EVENTS));
        ok!(rename(&dir, "f", "g"));
        is!(about(fd)?, 3);
        // Two events with names of 16 bytes, and one is no event of inotify(7).
        let mut bytes = [0; 512];
        is!(ok!(sys::read(notes, &mut bytes)), 64);
    }
    arguments {
        let (dir, fd) = watched(0)?;
        let file = ok!(sys::open(&format!("{dir}/f"), libc::O_RDWR, 0));
        fails!(fcntl(file, F_NOTIFY, CREATE), ENOTDIR);
        ok!(fcntl(file, F_NOTIFY, 0));
        let (from, _) = ok!(sys::pipe(0));
        fails!(fcntl(from, F_NOTIFY, CREATE), ENOTDIR);
        fails!(fcntl(-1, F_NOTIFY, CREATE), EBADF);
        let place = ok!(sys::open(&dir, libc::O_PATH, 0));
        fails!(fcntl(place, F_NOTIFY, CREATE), EBADF);
        // Kinds that there are not.
        ok!(fcntl(fd, F_NOTIFY, 0x40));
        ok!(sys::close(ok!(make(&dir, "a"))));
        is!(about(fd)?, 0);
    }
}
