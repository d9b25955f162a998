//! Watches of files and directories.

use crate::harness::*;
use crate::notes::*;
use user::sys;

fn ready(fd: i32, ms: i64) -> Result<bool, i32> {
    let mut list = [u64::from(fd as u32) | (libc::POLLIN as u64) << 32];
    sc!(SYS_poll, list.as_mut_ptr(), 1, ms).map(|n| n == 1)
}

fn waiting_bytes(fd: i32) -> Result<i32, i32> {
    let mut bytes = -1;
    sc!(SYS_ioctl, fd, libc::FIONREAD, &raw mut bytes)?;
    Ok(bytes)
}

/// Sets the times of an open file; `None` leaves one.
fn stamp(fd: i32, times: [Option<i64>; 2]) -> Result<u64, i32> {
    let [a, m] = times.map(|t| t.map_or([0, libc::UTIME_OMIT], |t| [t, 0]));
    let raw = [a[0], a[1], m[0], m[1]];
    sc!(SYS_utimensat, fd, 0, raw.as_ptr(), 0)
}

/// One of the settings.
fn setting(name: &str) -> Result<u64, String> {
    let text = std::fs::read_to_string(format!("/proc/sys/fs/inotify/{name}"));
    let text = text.map_err(|e| format!("{name}: {e}"))?;
    text.trim().parse().map_err(|e| format!("{name}: {e}"))
}

tests! { "inotify";
    opens_reads_and_writes_are_told_to_the_directory_and_the_file {
        let n = Notes::new()?;
        n.file("f")?;
        let (d, f) = (ok!(n.add("", ALL)), ok!(n.add("f", ALL)));
        is!((d, f), (1, 2));
        let both = |mask| vec![event(d, mask, "f"), event(f, mask, "")];
        let fd = ok!(sys::open(&n.at("f"), libc::O_RDWR, 0));
        is!(n.read(), both(OPEN));
        is!(ok!(sys::write(fd, b"hello")), 5);
        is!(n.read(), both(MODIFY));
        ok!(sc!(SYS_lseek, fd, 0, 0));
        is!(ok!(sys::read(fd, &mut [0; 9])), 5);
        is!(n.read(), both(ACCESS));
        // Nothing is read at the end, but a vector counts.
        is!(ok!(sys::read(fd, &mut [0; 9])), 0);
        is!(n.read(), vec![]);
        is!(ok!(sc!(SYS_readv, fd, 0, 0)), 0);
        is!(n.read(), both(ACCESS));
        ok!(sc!(SYS_pwrite64, fd, b"x".as_ptr(), 1, 0));
        is!(n.read(), both(MODIFY));
        ok!(sc!(SYS_ftruncate, fd, 2));
        is!(n.read(), both(MODIFY));
        ok!(sc!(SYS_truncate, path(&n.at("f")), 3));
        is!(n.read(), both(MODIFY));
        ok!(sc!(SYS_fallocate, fd, 0, 0, 100));
        is!(n.read(), both(MODIFY));
        let twin = ok!(sc!(SYS_dup, fd)) as i32;
        ok!(sys::close(fd));
        is!(n.read(), vec![]);
        ok!(sys::close(twin));
        is!(n.read(), both(WRITTEN));
        let fd = ok!(sys::open(&n.at("f"), libc::O_RDONLY, 0));
        ok!(sys::close(fd));
        let mut all = both(OPEN);
        all.extend(both(UNWRITTEN));
        is!(n.read(), all);
    }
    changes_of_attributes_are_told {
        let n = Notes::new()?;
        n.file("f")?;
        let (d, f) = (ok!(n.add("", ALL & !OPEN)), ok!(n.add("f", ALL & !OPEN)));
        let both = |mask| vec![event(d, mask, "f"), event(f, mask, "")];
        let fd = ok!(sys::open(&n.at("f"), libc::O_RDWR, 0));
        ok!(sc!(SYS_fchmod, fd, 0o600));
        is!(n.read(), both(ATTRIB));
        ok!(sc!(SYS_fchown, fd, 1, u32::MAX));
        is!(n.read(), both(ATTRIB));
        ok!(sc!(SYS_fchown, fd, u32::MAX, u32::MAX));
        is!(n.read(), vec![]);
        ok!(stamp(fd, [Some(1), None]));
        is!(n.read(), both(ACCESS));
        ok!(stamp(fd, [None, Some(1)]));
        is!(n.read(), both(MODIFY));
        ok!(stamp(fd, [Some(2), Some(2)]));
        is!(n.read(), both(ATTRIB));
        ok!(sc!(SYS_chmod, path(&n.at("f")), 0o644));
        is!(n.read(), both(ATTRIB));
        // The directory's own.
        ok!(sc!(SYS_chmod, path(&n.at("")), 0o700));
        is!(n.read(), vec![event(d, ATTRIB | DIR, "")]);
    }
    names_are_told_to_the_directory {
        let n = Notes::new()?;
        let d = ok!(n.add("", ALL));
        n.file("f")?;
        is!(n.read(), vec![event(d, CREATE, "f"), event(d, OPEN, "f"), event(d, WRITTEN, "f")]);
        let f = ok!(n.add("f", ALL));
        ok!(sc!(SYS_link, path(&n.at("f")), path(&n.at("g"))));
        is!(n.read(), vec![event(f, ATTRIB, ""), event(d, CREATE, "g")]);
        ok!(n.unlink("g"));
        is!(n.read(), vec![event(f, ATTRIB, ""), event(d, DELETE, "g")]);
        ok!(n.unlink("f"));
        let gone = [event(f, ATTRIB, ""), event(f, DELETE_SELF, ""), event(f, IGNORED, "")];
        is!(n.read(), [gone.as_slice(), &[event(d, DELETE, "f")]].concat());
        fails!(remove(n.fd, f), EINVAL);
        ok!(sc!(SYS_symlink, path("nowhere"), path(&n.at("s"))));
        ok!(n.unlink("s"));
        is!(n.read(), vec![event(d, CREATE, "s"), event(d, DELETE, "s")]);
        ok!(sc!(SYS_mknod, path(&n.at("p")), libc::S_IFIFO | 0o600, 0));
        is!(n.read(), vec![event(d, CREATE, "p")]);
        ok!(n.mkdir("sub"));
        let sub = ok!(n.add("sub", ALL));
        ok!(sc!(SYS_rmdir, path(&n.at("sub"))));
        is!(n.read(), vec![
            event(d, CREATE | DIR, "sub"),
            event(sub, DELETE_SELF, ""),
            event(sub, IGNORED, ""),
            event(d, DELETE | DIR, "sub"),
        ]);
        let socket = ok!(sc!(SYS_socket, libc::AF_UNIX, libc::SOCK_STREAM, 0));
        let mut address = [0u8; 110];
        address[0] = libc::AF_UNIX as u8;
        let at = n.at("sock");
        address[2..2 + at.len()].copy_from_slice(at.as_bytes());
        ok!(sc!(SYS_bind, socket, address.as_ptr(), address.len()));
        is!(n.read(), vec![event(d, CREATE, "sock")]);
    }
    directories_that_are_read_are_told {
        let n = Notes::new()?;
        ok!(n.mkdir("sub"));
        let (d, sub) = (ok!(n.add("", ALL)), ok!(n.add("sub", ALL)));
        let both = |mask| [event(d, mask | DIR, "sub"), event(sub, mask | DIR, "")];
        let fd = ok!(sys::open(&n.at("sub"), libc::O_RDONLY | libc::O_DIRECTORY, 0));
        let mut list = [0u8; 400];
        holds!(ok!(sc!(SYS_getdents64, fd, list.as_mut_ptr(), 400)) > 0);
        ok!(sys::close(fd));
        is!(n.read(), [both(OPEN), both(ACCESS), both(UNWRITTEN)].concat());
    }
    a_rename_is_told_with_one_cookie {
        let n = Notes::new()?;
        ok!(n.mkdir("a"));
        ok!(n.mkdir("b"));
        n.file("a/f")?;
        n.file("b/g")?;
        let (a, b) = (ok!(n.add("a", ALL)), ok!(n.add("b", ALL)));
        let (f, g) = (ok!(n.add("a/f", ALL)), ok!(n.add("b/g", ALL)));
        ok!(n.rename("a/f", "a/h", 0));
        is!(n.read(), vec![event(a, FROM, "f"), event(a, TO, "h"), event(f, MOVE_SELF, "")]);
        let first = n.cookies.take();
        holds!(first[0] != 0 && first[0] == first[1] && first[2] == 0);
        ok!(n.rename("a/h", "b/g", 0));
        is!(n.read(), vec![
            event(a, FROM, "h"),
            event(b, TO, "g"),
            event(g, ATTRIB, ""),
            event(f, MOVE_SELF, ""),
            event(g, DELETE_SELF, ""),
            event(g, IGNORED, ""),
        ]);
        let second = n.cookies.take();
        holds!(second[0] == second[1] && second[0] != first[0]);
        // In its new directory.
        ok!(sc!(SYS_chmod, path(&n.at("b/g")), 0o600));
        is!(n.read(), vec![event(b, ATTRIB, "g"), event(f, ATTRIB, "")]);
        // A directory, and a swap.
        ok!(n.mkdir("a/d"));
        n.file("b/h")?;
        n.read();
        ok!(n.rename("a/d", "b/h", 2));
        is!(n.read(), vec![
            event(a, FROM | DIR, "d"),
            event(b, TO | DIR, "h"),
            event(b, FROM, "h"),
            event(a, TO, "d"),
        ]);
        let cookies = n.cookies.take();
        holds!(cookies[0] == cookies[1] && cookies[2] == cookies[3]);
        // Two names of one file: nothing happens.
        ok!(sc!(SYS_link, path(&n.at("b/g")), path(&n.at("b/i"))));
        n.read();
        ok!(n.rename("b/g", "b/i", 0));
        is!(n.read(), vec![]);
    }
    a_file_that_is_open_ends_with_its_last_close {
        let n = Notes::new()?;
        n.file("f")?;
        let (d, f) = (ok!(n.add("", ALL & !OPEN)), ok!(n.add("f", ALL & !OPEN)));
        let fd = ok!(sys::open(&n.at("f"), libc::O_RDWR, 0));
        ok!(n.unlink("f"));
        is!(n.read(), vec![event(f, ATTRIB, ""), event(d, DELETE, "f")]);
        ok!(sys::write(fd, b"x"));
        is!(n.read(), vec![event(d, MODIFY, "f"), event(f, MODIFY, "")]);
        // Not if it asks not to be told.
        is!(ok!(n.add("", libc::IN_EXCL_UNLINK | MODIFY)), d);
        ok!(sys::write(fd, b"x"));
        is!(n.read(), vec![event(f, MODIFY, "")]);
        ok!(sys::close(fd));
        is!(n.read(), vec![event(f, WRITTEN, ""), event(f, DELETE_SELF, ""), event(f, IGNORED, "")]);
    }
    equal_events_are_one {
        let n = Notes::new()?;
        n.file("f")?;
        n.file("g")?;
        let d = ok!(n.add("", MODIFY));
        let f = ok!(sys::open(&n.at("f"), libc::O_RDWR, 0));
        let g = ok!(sys::open(&n.at("g"), libc::O_RDWR, 0));
        for fd in [f, f, f, g, g, f] {
            ok!(sys::write(fd, b"x"));
        }
        is!(ok!(waiting_bytes(n.fd)), 3 * 32);
        is!(n.read(), ["f", "g", "f"].map(|name| event(d, MODIFY, name)));
        is!(ok!(waiting_bytes(n.fd)), 0);
        fails!(sc!(SYS_ioctl, n.fd, 0x5413, 0), ENOTTY);
    }
    a_read_takes_whole_events {
        let n = Notes::new()?;
        let d = ok!(n.add("", CREATE | OPEN));
        fails!(sys::read(n.fd, &mut [0; 100]), EAGAIN);
        n.file("a")?;
        n.file("a_name_of_fifteen")?;
        // 16, and 32 for the name and its NUL.
        is!(ok!(waiting_bytes(n.fd)), 2 * 32 + 2 * 48);
        fails!(sys::read(n.fd, &mut [0; 31]), EINVAL);
        let mut bytes = [0xff; 79];
        is!(ok!(sys::read(n.fd, &mut bytes)), 64);
        is!(parse(&bytes[..64]).0, vec![event(d, CREATE, "a"), event(d, OPEN, "a")]);
        holds!(bytes[17..32].iter().all(|&b| b == 0));
        fails!(sys::read(n.fd, &mut bytes[..47]), EINVAL);
        // What cannot be copied is lost.
        fails!(sc!(SYS_read, n.fd, 8, 48), EFAULT);
        is!(n.read(), vec![event(d, OPEN, "a_name_of_fifteen")]);
        fails!(sys::write(n.fd, b"x"), EBADF);
        is!(ok!(sc!(SYS_lseek, n.fd, 5, 0)), 0);
        is!(ok!(sc!(SYS_fcntl, n.fd, libc::F_GETFL)), libc::O_NONBLOCK as u64);
    }
    masks_are_replaced_added_and_checked {
        let n = Notes::new()?;
        n.file("f")?;
        let f = ok!(n.add("f", OPEN));
        let open = || sys::open(&n.at("f"), libc::O_RDWR, 0).and_then(sys::close);
        ok!(open());
        is!(n.read(), vec![event(f, OPEN, "")]);
        is!(ok!(n.add("f", WRITTEN)), f);
        ok!(open());
        is!(n.read(), vec![event(f, WRITTEN, "")]);
        is!(ok!(n.add("f", OPEN | libc::IN_MASK_ADD)), f);
        ok!(open());
        is!(n.read(), vec![event(f, OPEN, ""), event(f, WRITTEN, "")]);
        fails!(n.add("f", OPEN | libc::IN_MASK_CREATE), EEXIST);
        fails!(n.add("f", OPEN | libc::IN_MASK_CREATE | libc::IN_MASK_ADD), EINVAL);
        fails!(n.add("f", 0), EINVAL);
        fails!(n.add("f", 0x0080_0000), EINVAL);
        fails!(n.add("f", OPEN | libc::IN_ONLYDIR), ENOTDIR);
        fails!(n.add("g", OPEN), ENOENT);
        fails!(sc!(SYS_inotify_add_watch, n.fd, 8, OPEN), EFAULT);
        fails!(add(99, "/", OPEN), EBADF);
        let other = ok!(sys::pipe(0)).0;
        fails!(add(other, "/", OPEN), EINVAL);
        fails!(remove(other, 1), EINVAL);
        fails!(remove(99, 1), EBADF);
        fails!(remove(n.fd, f + 1), EINVAL);
        fails!(init(1), EINVAL);
        // A new one gets another number.
        ok!(remove(n.fd, f));
        is!(n.read(), vec![event(f, IGNORED, "")]);
        is!(ok!(n.add("f", OPEN | libc::IN_MASK_CREATE)), f + 1);
        ok!(open());
        is!(n.read(), vec![event(f + 1, OPEN, "")]);
        let fd = ok!(init(libc::IN_CLOEXEC));
        is!(ok!(sc!(SYS_fcntl, fd, libc::F_GETFD)), 1);
        is!(ok!(sc!(SYS_fcntl, ok!(sc!(SYS_inotify_init)), libc::F_GETFD)), 0);
    }
    a_link_is_followed_or_not {
        let n = Notes::new()?;
        n.file("f")?;
        ok!(sc!(SYS_symlink, path("f"), path(&n.at("s"))));
        let f = ok!(n.add("s", ATTRIB | DELETE_SELF));
        let s = ok!(n.add("s", ATTRIB | DELETE_SELF | libc::IN_DONT_FOLLOW));
        holds!(f != s);
        ok!(sc!(SYS_chmod, path(&n.at("f")), 0o600));
        is!(n.read(), vec![event(f, ATTRIB, "")]);
        ok!(n.unlink("s"));
        let gone = [ATTRIB, DELETE_SELF, IGNORED].map(|mask| event(s, mask, ""));
        is!(n.read(), gone);
    }
    one_shot_ends_with_its_event {
        let n = Notes::new()?;
        let d = ok!(n.add("", CREATE | libc::IN_ONESHOT));
        n.file("f")?;
        n.file("g")?;
        is!(n.read(), vec![event(d, CREATE, "f"), event(d, IGNORED, "")]);
        fails!(remove(n.fd, d), EINVAL);
    }
    a_read_waits {
        let n = Notes::new()?;
        let fd = ok!(init(0));
        let d = ok!(add(fd, &n.dir, CREATE));
        is!(ok!(ready(fd, 0)), false);
        let e = ok!(sc!(SYS_epoll_create1, 0));
        let wanted = [libc::EPOLLIN as u32, 7, 0];
        ok!(sc!(SYS_epoll_ctl, e, libc::EPOLL_CTL_ADD, fd, wanted.as_ptr()));
        let pid = ok!(sys::fork());
        if pid == 0 {
            nap_us(50_000);
            sys::exit(i32::from(n.file("f").is_err()));
        }
        let mut found = [0u32; 3];
        is!(ok!(sc!(SYS_epoll_wait, e, found.as_mut_ptr(), 1, 10_000)), 1);
        let mut bytes = [0; 100];
        let len = ok!(sys::read(fd, &mut bytes));
        is!(parse(&bytes[..len]).0, vec![event(d, CREATE, "f")]);
        ok!(sys::wait(pid as i64, 0));
        let pid = ok!(sys::fork());
        if pid == 0 {
            nap_us(50_000);
            sys::exit(i32::from(n.file("g").is_err()));
        }
        // A read that sleeps.
        let len = ok!(sys::read(fd, &mut bytes));
        is!(parse(&bytes[..len]).0, vec![event(d, CREATE, "g")]);
        ok!(sys::wait(pid as i64, 0));
    }
    a_queue_that_is_full_says_so {
        let most = setting("max_queued_events")?;
        let n = Notes::new()?;
        n.file("f")?;
        n.file("g")?;
        let d = ok!(n.add("", ATTRIB));
        let names = [path(&n.at("f")), path(&n.at("g"))];
        for i in 0..most + 10 {
            ok!(sc!(SYS_chmod, names[i as usize % 2], 0o600));
        }
        let mut all = 0;
        let mut last = Vec::new();
        loop {
            let some = n.read();
            if some.is_empty() {
                break;
            }
            all += some.len() as u64;
            last = some;
        }
        is!(all, most + 1);
        is!(last.last(), Some(&event(-1, libc::IN_Q_OVERFLOW, "")));
        ok!(sc!(SYS_chmod, names[0], 0o600));
        is!(n.read(), vec![event(d, ATTRIB, "f")]);
    }
    limits_of_a_user_hold {
        let most = setting("max_user_instances")?;
        let watches = setting("max_user_watches")?;
        holds!(watches >= 8192);
        let status = in_child(|| {
            if sys::become_user(1234, &[]).is_err() {
                return 1;
            }
            let mut made = 0;
            loop {
                match init(0) {
                    Ok(_) if made <= most => made += 1,
                    Err(libc::EMFILE) if made == most => return 0,
                    _ => return 2,
                }
            }
        })?;
        is!(status, 0);
    }
    a_watch_needs_the_right_to_read {
        let n = Notes::new()?;
        n.file("f")?;
        ok!(sc!(SYS_chmod, path(&n.at("f")), 0o600));
        ok!(sc!(SYS_chmod, path(&n.dir), 0o711));
        let status = in_child(|| {
            let user = sys::become_user(1234, &[]);
            let dir = n.add("", OPEN);
            let file = n.add("f", OPEN);
            i32::from(user.is_err() || dir != Err(libc::EACCES) || file != Err(libc::EACCES))
        })?;
        is!(status, 0);
    }
    a_program_that_runs_is_told {
        let n = Notes::new()?;
        let here = ok!(std::fs::read("/bin/true").map_err(|e| e.raw_os_error().unwrap_or(0)));
        ok!(std::fs::write(n.at("true"), here).map_err(|e| e.raw_os_error().unwrap_or(0)));
        ok!(sc!(SYS_chmod, path(&n.at("true")), 0o755));
        // Often, so that the kernel may cache it.
        for turn in 0..12 {
            let f = match turn > 9 {
                true => ok!(n.add("true", ALL)),
                false => 0,
            };
            let program = path(&n.at("true"));
            let status = in_child(|| {
                let argv = [program, 0];
                let _ = sc!(SYS_execve, program, argv.as_ptr(), [0u64].as_ptr());
                1
            })?;
            is!(status, 0);
            if turn > 9 {
                is!(n.read(), [OPEN, ACCESS, UNWRITTEN].map(|mask| event(f, mask, "")));
            }
        }
    }
    an_unmount_ends_watches {
        let n = Notes::new()?;
        let kind = path("tmpfs");
        ok!(n.mkdir("m"));
        let m = n.at("m");
        ok!(sc!(SYS_mount, kind, path(&m), kind, 0, path("mode=755")));
        n.file("m/f")?;
        let (d, f) = (ok!(n.add("m", ALL)), ok!(n.add("m/f", OPEN)));
        // No watch keeps a file system from being unmounted.
        ok!(sc!(SYS_umount2, path(&m), 0));
        let all = std::cell::RefCell::new(Vec::new());
        let done = within(10, || {
            all.borrow_mut().extend(n.read());
            all.borrow().len() >= 4
        });
        holds!(done);
        let mut all = all.into_inner();
        all.sort();
        let unmount = libc::IN_UNMOUNT;
        is!(all, vec![
            event(d, IGNORED, ""),
            event(d, unmount | DIR, ""),
            event(f, unmount, ""),
            event(f, IGNORED, ""),
        ]);
    }
    the_description_lists_the_watches {
        let n = Notes::new()?;
        n.file("f")?;
        let (d, f) = (ok!(n.add("", OPEN)), ok!(n.add("f", ALL | libc::IN_ONESHOT)));
        let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", n.fd));
        let text = text.map_err(|e| e.to_string())?;
        let lines: Vec<_> = text.lines().filter(|l| l.starts_with("inotify")).collect();
        is!(lines.len(), 2);
        let mut stat = sys::zeroed_stat();
        ok!(sc!(SYS_stat, path(&n.at("f")), &raw mut stat));
        holds!(lines[0].starts_with(&format!("inotify wd:{f:x} ino:{:x} sdev:", stat.st_ino)));
        holds!(lines[0].contains(" mask:80000fff ignored_mask:0 fhandle-bytes:"));
        holds!(lines[1].starts_with(&format!("inotify wd:{d:x} ")));
        holds!(lines[1].contains(" mask:20 "));
        let link = std::fs::read_link(format!("/proc/self/fd/{}", n.fd));
        is!(link.ok().and_then(|l| l.to_str().map(String::from)), Some("anon_inode:inotify".into()));
    }
    a_file_of_o_path_is_not_open {
        let n = Notes::new()?;
        n.file("f")?;
        ok!(n.add("f", ALL));
        let fd = ok!(sys::open(&n.at("f"), libc::O_PATH, 0));
        ok!(sys::close(fd));
        is!(n.read(), vec![]);
    }
    files_in_a_directory_that_was_watched_before {
        let n = Notes::new()?;
        let fd = ok!(init(libc::IN_NONBLOCK));
        n.file("f")?;
        let (first, second) = (ok!(n.add("", OPEN)), ok!(add(fd, &n.dir, OPEN)));
        let open = || sys::open(&n.at("f"), libc::O_RDWR, 0).and_then(sys::close);
        ok!(remove(n.fd, first));
        is!(n.read(), vec![event(first, IGNORED, "")]);
        ok!(open());
        is!(n.read(), vec![]);
        let mut bytes = [0; 100];
        let len = ok!(sys::read(fd, &mut bytes));
        is!(parse(&bytes[..len]).0, vec![event(second, OPEN, "f")]);
        ok!(sys::close(fd));
        ok!(open());
        let third = ok!(n.add("", OPEN));
        ok!(open());
        is!(n.read(), vec![event(third, OPEN, "f")]);
    }
    watches_end_beside_events {
        // Three processes: one makes events, one adds and removes a watch, one makes and closes instances.
        let n = Notes::new()?;
        let mut children = Vec::new();
        for job in 0..3 {
            let pid = ok!(sys::fork());
            if pid == 0 {
                let mut wrong = false;
                for _ in 0..300 {
                    match job {
                        0 => {
                            let made = n.file("f").is_ok() && n.rename("f", "g", 0).is_ok();
                            wrong |= !made || n.unlink("g").is_err();
                        }
                        1 => wrong |= n.add("", ALL).and_then(|wd| remove(n.fd, wd)).is_err(),
                        _ => {
                            let fd = init(libc::IN_NONBLOCK).unwrap_or(-1);
                            wrong |= add(fd, &n.dir, ALL | libc::IN_ONESHOT).is_err();
                            let _ = add(fd, &n.at("f"), ALL);
                            wrong |= sys::close(fd).is_err();
                        }
                    }
                }
                sys::exit(i32::from(wrong));
            }
            children.push(pid);
        }
        for pid in children {
            is!(ok!(sys::wait(pid as i64, 0)), (pid, 0));
        }
        // Linux may tell an event of a watch after its end, but the end once.
        let mut ended = std::collections::BTreeSet::new();
        loop {
            let some = n.read();
            if some.is_empty() {
                break;
            }
            for (wd, mask, _) in some {
                holds!(mask & IGNORED == 0 || ended.insert(wd));
            }
        }
    }
    an_owner_is_signalled {
        let n = Notes::new()?;
        ok!(n.add("", CREATE));
        let set = [1u64 << (libc::SIGIO - 1)];
        ok!(sc!(SYS_rt_sigprocmask, libc::SIG_BLOCK, set.as_ptr(), 0, 8));
        ok!(sc!(SYS_fcntl, n.fd, libc::F_SETOWN, std::process::id()));
        ok!(sc!(SYS_fcntl, n.fd, libc::F_SETFL, libc::O_ASYNC | libc::O_NONBLOCK));
        n.file("f")?;
        let wait = [5i64, 0];
        is!(ok!(sc!(SYS_rt_sigtimedwait, set.as_ptr(), 0, wait.as_ptr(), 8)), libc::SIGIO as u64);
    }
}
