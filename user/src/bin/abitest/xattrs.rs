//! Extended attributes of files in memory.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::harness::*;
use crate::notes::{ALL, ATTRIB, add, event, init, parse};
use crate::privileges::{as_child, become_user, become_user_with};
use crate::tmpfs::mounted;
use user::sys;

const SYS_ADMIN: u64 = 21;
const CREATE: i32 = libc::XATTR_CREATE;
const REPLACE: i32 = libc::XATTR_REPLACE;

pub fn set(file: &str, name: &str, value: &[u8], flags: i32) -> Result<u64, i32> {
    let (at, len) = (value.as_ptr(), value.len());
    sc!(SYS_lsetxattr, path(file), path(name), at, len, flags)
}

pub fn get(file: &str, name: &str) -> Result<Vec<u8>, i32> {
    let mut value = vec![0u8; 65536];
    let at = value.as_mut_ptr();
    let len = sc!(SYS_lgetxattr, path(file), path(name), at, value.len())?;
    value.truncate(len as usize);
    Ok(value)
}

pub fn remove(file: &str, name: &str) -> Result<u64, i32> {
    sc!(SYS_lremovexattr, path(file), path(name))
}

/// The names of a file's attributes, sorted.
pub fn list(file: &str) -> Result<Vec<String>, i32> {
    let mut names = vec![0u8; 65536];
    let len = sc!(SYS_llistxattr, path(file), names.as_mut_ptr(), names.len())?;
    Ok(sorted(&names[..len as usize]))
}

fn sorted(names: &[u8]) -> Vec<String> {
    let names = names.split_inclusive(|&b| b == 0).map(|name| {
        let name = name.strip_suffix(&[0]).unwrap_or(b"without its end");
        String::from_utf8_lossy(name).into_owned()
    });
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

/// Runs `f` in a tmpfs of its own, with the path of an empty file.
pub fn with_file(f: impl FnOnce(&str, &str) -> Result<(), String>) -> Result<(), String> {
    mounted("mode=755", |dir| {
        let file = format!("{dir}/f");
        let fd = ok!(sys::open(&file, libc::O_RDWR | libc::O_CREAT, 0o644));
        ok!(sys::close(fd));
        f(dir, &file)
    })
}

/// What a set leaves in the tests of descriptors and paths.
fn all_ways(file: &str, link: &str, fd: i32) -> Result<(), String> {
    let name = path("trusted.way");
    let mut buf = [0u8; 64];
    let at = buf.as_mut_ptr();
    for (n, target) in [(1u8, path(file)), (2, path(link))] {
        ok!(sc!(SYS_setxattr, target, name, [n; 3].as_ptr(), 3, 0));
        is!(ok!(get(file, "trusted.way")), [n; 3]);
        is!(ok!(sc!(SYS_getxattr, target, name, at, 64)), 3);
        is!(ok!(sc!(SYS_listxattr, target, at, 64)), 12);
        ok!(sc!(SYS_removexattr, target, name));
        fails!(sc!(SYS_getxattr, target, name, at, 64), ENODATA);
    }
    ok!(sc!(SYS_fsetxattr, fd, name, b"xy".as_ptr(), 2, 0));
    is!(ok!(get(file, "trusted.way")), b"xy");
    is!(ok!(sc!(SYS_fgetxattr, fd, name, at, 64)), 2);
    is!(ok!(sc!(SYS_flistxattr, fd, at, 64)), 12);
    ok!(sc!(SYS_fremovexattr, fd, name));
    fails!(sc!(SYS_fgetxattr, fd, name, at, 64), ENODATA);
    Ok(())
}

tests! { "xattr";
    what_is_set_is_read_and_listed_until_it_is_removed { with_file(|dir, file| {
        for at in [file, dir] {
            is!(ok!(list(at)), Vec::<String>::new());
            fails!(get(at, "trusted.a"), ENODATA);
            ok!(set(at, "trusted.a", b"one", 0));
            ok!(set(at, "trusted.b", b"", 0));
            ok!(set(at, "security.c", b"a\0b", 0));
            is!(ok!(get(at, "trusted.a")), b"one");
            is!(ok!(get(at, "trusted.b")), b"");
            is!(ok!(get(at, "security.c")), b"a\0b");
            is!(ok!(list(at)), ["security.c", "trusted.a", "trusted.b"]);
            ok!(set(at, "trusted.a", b"other", 0));
            is!(ok!(get(at, "trusted.a")), b"other");
            ok!(remove(at, "trusted.b"));
            fails!(get(at, "trusted.b"), ENODATA);
            fails!(remove(at, "trusted.b"), ENODATA);
            is!(ok!(list(at)), ["security.c", "trusted.a"]);
        }
        Ok(())
    })?; }
    they_belong_to_the_file_not_to_a_name { with_file(|dir, file| {
        let other = format!("{dir}/other");
        ok!(set(file, "trusted.a", b"x", 0));
        ok!(sc!(SYS_link, path(file), path(&other)));
        ok!(sc!(SYS_unlink, path(file)));
        is!(ok!(get(&other, "trusted.a")), b"x");
        ok!(sc!(SYS_rename, path(&other), path(file)));
        is!(ok!(get(file, "trusted.a")), b"x");
        // A new file of that name has none.
        ok!(sc!(SYS_unlink, path(file)));
        ok!(sys::open(file, libc::O_RDWR | libc::O_CREAT, 0o644));
        is!(ok!(list(file)), Vec::<String>::new());
        Ok(())
    })?; }
    the_flags_say_whether_it_must_exist { with_file(|_, file| {
        fails!(set(file, "trusted.a", b"x", REPLACE), ENODATA);
        fails!(set(file, "trusted.a", b"x", CREATE | REPLACE), ENODATA);
        fails!(get(file, "trusted.a"), ENODATA);
        ok!(set(file, "trusted.a", b"x", CREATE));
        fails!(set(file, "trusted.a", b"y", CREATE), EEXIST);
        fails!(set(file, "trusted.a", b"y", CREATE | REPLACE), EEXIST);
        is!(ok!(get(file, "trusted.a")), b"x");
        ok!(set(file, "trusted.a", b"z", REPLACE));
        is!(ok!(get(file, "trusted.a")), b"z");
        fails!(set(file, "trusted.a", b"x", 4), EINVAL);
        fails!(set(file, "trusted.a", b"x", -1), EINVAL);
        Ok(())
    })?; }
    every_call_by_path_by_link_and_by_descriptor { with_file(|dir, file| {
        let link = format!("{dir}/link");
        ok!(sc!(SYS_symlink, path(file), path(&link)));
        let fd = ok!(sys::open(file, libc::O_RDONLY, 0));
        all_ways(file, &link, fd)?;
        // The other calls are for the link itself.
        ok!(set(&link, "trusted.of_link", b"l", 0));
        is!(ok!(list(&link)), ["trusted.of_link"]);
        is!(ok!(list(file)), Vec::<String>::new());
        ok!(remove(&link, "trusted.of_link"));
        Ok(())
    })?; }
    a_buffer_that_is_too_short_and_one_of_no_size { with_file(|_, file| {
        ok!(set(file, "trusted.abc", b"12345", 0));
        let (at, name) = (path(file), path("trusted.abc"));
        let mut buf = [7u8; 32];
        let to = buf.as_mut_ptr();
        is!(ok!(sc!(SYS_getxattr, at, name, 0, 0)), 5);
        is!(ok!(sc!(SYS_getxattr, at, name, 8, 0)), 5);
        fails!(sc!(SYS_getxattr, at, name, to, 4), ERANGE);
        is!(buf, [7; 32]);
        is!(ok!(sc!(SYS_getxattr, at, name, to, 5)), 5);
        is!(&buf[..6], b"12345\x07");
        is!(ok!(sc!(SYS_listxattr, at, 0, 0)), 12);
        fails!(sc!(SYS_listxattr, at, to, 11), ERANGE);
        is!(ok!(sc!(SYS_listxattr, at, to, 12)), 12);
        is!(&buf[..13], b"trusted.abc\0\x07");
        // More than any value has.
        let mut large = vec![0u8; 1 << 20];
        is!(ok!(sc!(SYS_getxattr, at, name, large.as_mut_ptr(), large.len())), 5);
        is!(ok!(sc!(SYS_listxattr, at, large.as_mut_ptr(), large.len())), 12);
        Ok(())
    })?; }
    names_and_values_up_to_their_limits { with_file(|_, file| {
        let longest = format!("trusted.{}", "n".repeat(247));
        ok!(set(file, &longest, b"x", 0));
        is!(ok!(get(file, &longest)), b"x");
        is!(ok!(list(file)), [longest.as_str()]);
        let longer = format!("{longest}n");
        fails!(set(file, &longer, b"x", 0), ERANGE);
        fails!(get(file, &longer), ERANGE);
        fails!(remove(file, &longer), ERANGE);
        fails!(set(file, "", b"x", 0), ERANGE);
        fails!(get(file, ""), ERANGE);
        fails!(remove(file, ""), ERANGE);
        let value: Vec<u8> = (0..65536u32).map(|i| (i % 251) as u8).collect();
        ok!(set(file, "trusted.large", &value, 0));
        is!(ok!(get(file, "trusted.large")) == value, true);
        let mut short = vec![0u8; 65535];
        let to = short.as_mut_ptr();
        fails!(sc!(SYS_getxattr, path(file), path("trusted.large"), to, 65535), ERANGE);
        fails!(sc!(SYS_setxattr, path(file), path("trusted.large"), to, 65537, 0), E2BIG);
        Ok(())
    })?; }
    what_cannot_be_read_or_written_faults { with_file(|_, file| {
        let (at, name) = (path(file), path("trusted.a"));
        fails!(sc!(SYS_setxattr, at, name, 8, 3, 0), EFAULT);
        fails!(sc!(SYS_setxattr, at, 8, b"x".as_ptr(), 1, 0), EFAULT);
        fails!(get(file, "trusted.a"), ENODATA);
        ok!(set(file, "trusted.a", b"xyz", 0));
        fails!(sc!(SYS_getxattr, at, name, 8, 3), EFAULT);
        fails!(sc!(SYS_getxattr, at, 8, 0, 0), EFAULT);
        fails!(sc!(SYS_listxattr, at, 8, 100), EFAULT);
        fails!(sc!(SYS_removexattr, at, 8), EFAULT);
        is!(ok!(get(file, "trusted.a")), b"xyz");
        // Of nothing, nothing is read.
        ok!(sc!(SYS_setxattr, at, name, 8, 0, 0));
        is!(ok!(get(file, "trusted.a")), b"");
        Ok(())
    })?; }
    names_of_other_kinds { with_file(|_, file| {
        for name in ["other.a", "trusted", "system.a", "a", "system.posix_acl_accessx", "Trusted.a"] {
            fails!(set(file, name, b"x", 0), EOPNOTSUPP);
            fails!(get(file, name), EOPNOTSUPP);
            fails!(remove(file, name), EOPNOTSUPP);
        }
        for name in ["trusted.", "security."] {
            fails!(set(file, name, b"x", 0), EINVAL);
            fails!(get(file, name), EINVAL);
            fails!(remove(file, name), EINVAL);
        }
        is!(ok!(list(file)), Vec::<String>::new());
        // From Linux 6.6 on, tmpfs keeps those of users.
        let users = set(file, "user.a", b"x", 0);
        let here = user::proc::rmap().is_some();
        holds!(users == Err(libc::EOPNOTSUPP) || users == Ok(0) && !here);
        Ok(())
    })?; }
    those_of_the_trusted_are_for_administrators { with_file(|_, file| {
        ok!(set(file, "trusted.a", b"x", 0));
        ok!(set(file, "security.b", b"y", 0));
        is!(as_child(become_user, || {
            // It does not even exist.
            is_err(get(file, "trusted.a"), libc::ENODATA, 1)?;
            is_err(set(file, "trusted.a", b"z", 0), libc::EPERM, 2)?;
            is_err(remove(file, "trusted.a"), libc::EPERM, 3)?;
            is_err(set(file, "trusted.n", b"z", 0), libc::EPERM, 4)?;
            holds_or(list(file) == Ok(vec!["security.b".into()]), 5)?;
            holds_or(get(file, "security.b").as_deref() == Ok(b"y"), 6)?;
            is_err(set(file, "security.b", b"z", 0), libc::EPERM, 7)?;
            is_err(set(file, "security.n", b"z", 0), libc::EPERM, 8)?;
            is_err(remove(file, "security.b"), libc::EPERM, 9)?;
            is_err(remove(file, "security.capability"), libc::EPERM, 10)?;
            is_err(get(file, "security.capability"), libc::ENODATA, 11)
        }), Ok(0));
        is!(as_child(|| become_user_with(&[SYS_ADMIN]), || {
            holds_or(get(file, "trusted.a").as_deref() == Ok(b"x"), 1)?;
            holds_or(list(file).is_ok_and(|names| names.len() == 2), 2)?;
            set(file, "trusted.a", b"admin", 0)?;
            set(file, "security.b", b"admin", 0)
        }), Ok(0));
        is!(ok!(get(file, "trusted.a")), b"admin");
        Ok(())
    })?; }
    those_of_users_are_under_the_files_permissions { with_file(|dir, file| {
        is!(as_child(become_user, || {
            is_err(set(file, "user.a", b"z", 0), libc::EACCES, 1)?;
            is_err(remove(file, "user.a"), libc::EACCES, 2)?;
            is_err(set(file, "other.a", b"z", 0), libc::EACCES, 3)
        }), Ok(0));
        ok!(sc!(SYS_chmod, path(file), 0o600));
        is!(as_child(become_user, || {
            is_err(get(file, "user.a"), libc::EACCES, 1)?;
            is_err(get(file, "other.a"), libc::EACCES, 2)
        }), Ok(0));
        let fifo = format!("{dir}/fifo");
        ok!(sc!(SYS_mknod, path(&fifo), libc::S_IFIFO | 0o666, 0));
        fails!(set(&fifo, "user.a", b"x", 0), EPERM);
        fails!(get(&fifo, "user.a"), ENODATA);
        ok!(set(&fifo, "trusted.a", b"x", 0));
        is!(ok!(get(&fifo, "trusted.a")), b"x");
        Ok(())
    })?; }
    a_mount_for_reading_keeps_them { with_file(|dir, file| {
        ok!(set(file, "trusted.a", b"x", 0));
        let fd = ok!(sys::open(file, libc::O_RDONLY, 0));
        let flags = libc::MS_REMOUNT | libc::MS_RDONLY | libc::MS_BIND;
        ok!(sc!(SYS_mount, 0, path(dir), 0, flags, 0));
        let name = path("trusted.a");
        fails!(set(file, "trusted.a", b"y", 0), EROFS);
        fails!(remove(file, "trusted.a"), EROFS);
        fails!(set(file, "other.a", b"y", 0), EROFS);
        fails!(sc!(SYS_fsetxattr, fd, name, b"y".as_ptr(), 1, 0), EROFS);
        fails!(sc!(SYS_fremovexattr, fd, name), EROFS);
        is!(ok!(get(file, "trusted.a")), b"x");
        is!(ok!(list(file)), ["trusted.a"]);
        Ok(())
    })?; }
    descriptors_that_do_not_serve { with_file(|_, file| {
        let only_place = ok!(sys::open(file, libc::O_PATH, 0));
        let name = path("trusted.a");
        for fd in [only_place, 9999] {
            fails!(sc!(SYS_fsetxattr, fd, name, b"x".as_ptr(), 1, 0), EBADF);
            fails!(sc!(SYS_fgetxattr, fd, name, 0, 0), EBADF);
            fails!(sc!(SYS_flistxattr, fd, 0, 0), EBADF);
            fails!(sc!(SYS_fremovexattr, fd, name), EBADF);
        }
        let (pipe, _to) = ok!(sys::pipe(0));
        fails!(sc!(SYS_fsetxattr, pipe, name, b"x".as_ptr(), 1, 0), EOPNOTSUPP);
        fails!(sc!(SYS_fgetxattr, pipe, name, 0, 0), EOPNOTSUPP);
        is!(ok!(sc!(SYS_flistxattr, pipe, 0, 0)), 0);
        for at in ["/proc/self/status", "/proc/self"] {
            fails!(set(at, "trusted.a", b"x", 0), EOPNOTSUPP);
            fails!(get(at, "trusted.a"), EOPNOTSUPP);
            is!(ok!(list(at)), Vec::<String>::new());
        }
        Ok(())
    })?; }
    a_socket_tells_its_protocol {
        let kinds = [
            (libc::AF_UNIX, libc::SOCK_STREAM, "UNIX-STREAM"),
            (libc::AF_UNIX, libc::SOCK_DGRAM, "UNIX"),
            (libc::AF_UNIX, libc::SOCK_SEQPACKET, "UNIX"),
            (libc::AF_INET, libc::SOCK_STREAM, "TCP"),
            (libc::AF_INET, libc::SOCK_DGRAM, "UDP"),
            (libc::AF_INET6, libc::SOCK_STREAM, "TCPv6"),
            (libc::AF_INET6, libc::SOCK_DGRAM, "UDPv6"),
            (libc::AF_NETLINK, libc::SOCK_RAW, "NETLINK"),
        ];
        let (name, other) = (path("system.sockprotoname"), path("user.a"));
        for (family, kind, protocol) in kinds {
            let fd = ok!(sc!(SYS_socket, family, kind, 0));
            let mut buf = [0u8; 32];
            let len = ok!(sc!(SYS_fgetxattr, fd, name, buf.as_mut_ptr(), 32)) as usize;
            is!(buf[..len], *format!("{protocol}\0").as_bytes());
            is!(ok!(sc!(SYS_fgetxattr, fd, name, 0, 0)) as usize, len);
            fails!(sc!(SYS_fgetxattr, fd, name, buf.as_mut_ptr(), len - 1), ERANGE);
            let listed = ok!(sc!(SYS_flistxattr, fd, buf.as_mut_ptr(), 32)) as usize;
            is!(buf[..listed], *b"system.sockprotoname\0");
            fails!(sc!(SYS_fsetxattr, fd, name, b"x".as_ptr(), 1, 0), EOPNOTSUPP);
            fails!(sc!(SYS_fremovexattr, fd, name), EOPNOTSUPP);
            fails!(sc!(SYS_fgetxattr, fd, other, 0, 0), ENODATA);
            fails!(sc!(SYS_fsetxattr, fd, other, b"x".as_ptr(), 1, 0), EPERM);
            ok!(sys::close(fd as i32));
        }
        let (pipe, _to) = ok!(sys::pipe(0));
        fails!(sc!(SYS_fgetxattr, pipe, name, 0, 0), EOPNOTSUPP);
        fails!(sc!(SYS_fgetxattr, pipe, other, 0, 0), ENODATA);
    }
    a_file_without_a_name_has_them {
        let fd = ok!(sc!(SYS_memfd_create, path("m"), 0)) as i32;
        let name = path("trusted.a");
        let mut buf = [0u8; 8];
        ok!(sc!(SYS_fsetxattr, fd, name, b"mem".as_ptr(), 3, 0));
        is!(ok!(sc!(SYS_fgetxattr, fd, name, buf.as_mut_ptr(), 8)), 3);
        is!(&buf[..4], b"mem\0");
    }
    a_change_is_told_and_sets_the_time_of_change { with_file(|_, file| {
        let watch = ok!(init(libc::IN_NONBLOCK));
        let wd = ok!(add(watch, file, ALL));
        let told = || {
            let mut bytes = [0u8; 512];
            let n = sys::read(watch, &mut bytes).unwrap_or(0);
            parse(&bytes[..n]).0
        };
        let stamp = || -> Result<(i64, i64), i32> {
            let mut stat = sys::zeroed_stat();
            sc!(SYS_stat, path(file), &raw mut stat)?;
            Ok((stat.st_ctime, stat.st_ctime_nsec))
        };
        let mut last = ok!(stamp());
        for change in [|f: &str| set(f, "trusted.a", b"x", 0), |f: &str| set(f, "trusted.a", b"y", 0), |f: &str| remove(f, "trusted.a")] {
            nap_us(30_000);
            ok!(change(file));
            is!(told(), vec![event(wd, ATTRIB, "")]);
            let now = ok!(stamp());
            holds!(now > last);
            last = now;
        }
        nap_us(30_000);
        fails!(remove(file, "trusted.a"), ENODATA);
        ok!(list(file));
        is!((told(), ok!(stamp())), (vec![], last));
        Ok(())
    })?; }
    values_are_whole_whatever_others_do { with_file(|_, file| {
        let (over, torn) = (AtomicBool::new(false), AtomicU32::new(0));
        let names = ["trusted.p", "trusted.q"];
        std::thread::scope(|s| {
            for me in 0..2u8 {
                let over = &over;
                s.spawn(move || {
                    let mut n = me;
                    while !over.load(Ordering::Relaxed) {
                        n = n.wrapping_add(2);
                        // The length goes with the bytes.
                        let value = vec![n; 100 + usize::from(n) * 16];
                        let _ = set(file, names[usize::from(n >> 1 & 1)], &value, 0);
                        if n.is_multiple_of(8) {
                            let _ = remove(file, names[usize::from(me)]);
                        }
                    }
                });
            }
            let began = sys::now_ns();
            while sys::now_ns() - began < 1_500_000_000 {
                for name in names {
                    match get(file, name) {
                        Ok(value) => {
                            let n = value[0];
                            let whole = value.len() == 100 + usize::from(n) * 16;
                            if !whole || value.iter().any(|&b| b != n) {
                                torn.fetch_add(1, Ordering::Relaxed);
                            }
                        }
                        Err(libc::ENODATA) => {}
                        Err(_) => _ = torn.fetch_add(1000, Ordering::Relaxed),
                    }
                }
                match list(file) {
                    Ok(listed) if listed.iter().all(|name| names.contains(&name.as_str())) => {}
                    _ => _ = torn.fetch_add(1_000_000, Ordering::Relaxed),
                }
            }
            over.store(true, Ordering::Relaxed);
        });
        is!(torn.into_inner(), 0);
        Ok(())
    })?; }
}

/// The number of a step that went wrong, as an errno.
fn wrong(step: i32) -> Result<u64, i32> {
    Err(100 + step)
}

/// Goes on if the call fails with `errno`.
pub fn is_err<T>(answer: Result<T, i32>, errno: i32, step: i32) -> Result<u64, i32> {
    holds_or(answer.is_err_and(|e| e == errno), step)
}

/// Goes on if it holds.
pub fn holds_or(holds: bool, step: i32) -> Result<u64, i32> {
    if holds { Ok(0) } else { wrong(step) }
}
