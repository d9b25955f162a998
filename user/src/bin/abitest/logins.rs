//! The login that a process is part of, and files of /proc that have no length.

use crate::harness::*;
use crate::privileges::{USER, as_child, become_user_with};
use user::sys;

const NONE: &str = "4294967295";

fn text(name: &str) -> String {
    std::fs::read_to_string(format!("/proc/{name}")).unwrap_or_default()
}

fn write(name: &str, text: &str) -> Result<u64, i32> {
    let fd = sys::open(&format!("/proc/{name}"), libc::O_WRONLY, 0)?;
    let wrote = sc!(SYS_write, fd, text.as_ptr(), text.len());
    let _ = sys::close(fd);
    wrote
}

/// The first of `steps` that is false, from one, as an error.
fn all(steps: &[bool]) -> Result<u64, i32> {
    match crate::privileges::first_wrong(steps) {
        0 => Ok(0),
        step => Err(step),
    }
}

tests! { "login";
    a_user_begins_one_and_then_keeps_it {
        if text("self/loginuid") != NONE {
            return Err("skip: this process is part of a login".into());
        }
        is!(as_child(|| become_user_with(&[]), || all(&[
            text("self/sessionid") == NONE,
            write("self/loginuid", &format!("{USER}\n")) == Ok(5),
            text("self/loginuid") == USER.to_string(),
            text("self/sessionid") != NONE,
            write("self/loginuid", "7") == Err(libc::EPERM),
            write("self/loginuid", NONE) == Err(libc::EPERM),
            text("self/loginuid") == USER.to_string(),
        ])), Ok(0));
        is!(text("self/loginuid"), NONE);
    }
    a_child_is_part_of_it_and_root_may_begin_another {
        if text("self/loginuid") != NONE {
            return Err("skip: this process is part of a login".into());
        }
        is!(as_child(|| write("self/loginuid", "7"), || {
            let session = text("self/sessionid");
            as_child(|| Ok(0), || all(&[
                text("self/loginuid") == "7",
                text("self/sessionid") == session,
                write("self/loginuid", "8") == Ok(1),
                text("self/sessionid") != session,
            ]))?;
            all(&[
                text("self/loginuid") == "7",
                write("self/loginuid", NONE) == Ok(10),
                text("self/loginuid") == NONE,
                text("self/sessionid") == NONE,
            ])
        }), Ok(0));
    }
    it_is_written_by_a_thread_itself_as_a_number {
        is!(write("1/loginuid", "7"), Err(libc::EPERM));
        for wrong in ["seven", "-1", "", "7 8", "4294967296"] {
            let wrote = write("self/loginuid", wrong);
            holds!(matches!(wrote, Err(libc::EINVAL | libc::ERANGE)) || wrong.is_empty());
        }
    }
    files_of_proc_can_be_cut_to_any_length {
        let fd = ok!(sys::open("/proc/self/comm", libc::O_RDWR, 0));
        let name = text("self/comm");
        for len in [0, 5000] {
            ok!(sc!(SYS_ftruncate, fd, len));
            ok!(sc!(SYS_truncate, path("/proc/self/comm"), len));
        }
        is!(text("self/comm"), name);
        fails!(sc!(SYS_truncate, path("/proc/self/fd"), 0), EISDIR);
        let read = ok!(sys::open("/proc/self/comm", libc::O_RDONLY, 0));
        fails!(sc!(SYS_ftruncate, read, 0), EINVAL);
    }
}
