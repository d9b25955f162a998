//! Names: directories, links, renaming, listing, working directory.

use crate::harness::*;
use user::sys;

fn mkdir(name: &str) -> Result<u64, i32> {
    sc!(SYS_mkdir, path(name), 0o755)
}

fn create(name: &str) -> Result<u64, i32> {
    sys::open(name, libc::O_RDWR | libc::O_CREAT, 0o600).and_then(sys::close)
}

fn there(name: &str) -> bool {
    let mut buf = [0u64; 18];
    sc!(SYS_lstat, path(name), buf.as_mut_ptr()).is_ok()
}

fn list(name: &str) -> Result<Vec<String>, i32> {
    let fd = sys::open(name, libc::O_RDONLY | libc::O_DIRECTORY, 0)?;
    let (mut names, mut buf) = (Vec::new(), [0u64; 64]);
    loop {
        let n = sc!(SYS_getdents64, fd, buf.as_mut_ptr(), size_of_val(&buf))? as usize;
        if n == 0 {
            break;
        }
        let mut at = buf.as_ptr() as u64;
        let end = at + n as u64;
        while at < end {
            let len = u64::from(u16::from_ne_bytes([sys::peek(at + 16), sys::peek(at + 17)]));
            let name: Vec<u8> = (at + 19..at + len)
                .map(sys::peek)
                .take_while(|&b| b != 0)
                .collect();
            names.push(String::from_utf8_lossy(&name).into_owned());
            at += len;
        }
    }
    sys::close(fd)?;
    names.sort();
    Ok(names)
}

tests! { "dir";
    mkdir_errors {
        let d = scratch();
        ok!(mkdir(&format!("{d}/a")));
        fails!(mkdir(&format!("{d}/a")), EEXIST);
        fails!(mkdir(&format!("{d}/x/y")), ENOENT);
        ok!(create(&format!("{d}/f")));
        fails!(mkdir(&format!("{d}/f/y")), ENOTDIR);
        fails!(mkdir("/"), EEXIST);
        fails!(mkdir(""), ENOENT);
        fails!(sc!(SYS_mkdir, 8, 0), EFAULT);
        ok!(sc!(SYS_mkdirat, libc::AT_FDCWD, path(&format!("{d}/b")), 0o700));
        ok!(mkdir(&format!("{d}/c/")));
    }
    rmdir_errors {
        let d = scratch();
        ok!(mkdir(&format!("{d}/a")));
        ok!(mkdir(&format!("{d}/a/b")));
        fails!(sc!(SYS_rmdir, path(&format!("{d}/a"))), ENOTEMPTY);
        ok!(sc!(SYS_rmdir, path(&format!("{d}/a/b"))));
        fails!(sc!(SYS_rmdir, path(&format!("{d}/a/."))), EINVAL);
        fails!(sc!(SYS_rmdir, path(&format!("{d}/a/.."))), ENOTEMPTY);
        ok!(sc!(SYS_rmdir, path(&format!("{d}/a"))));
        fails!(sc!(SYS_rmdir, path(&format!("{d}/a"))), ENOENT);
        ok!(create(&format!("{d}/f")));
        fails!(sc!(SYS_rmdir, path(&format!("{d}/f"))), ENOTDIR);
        fails!(sc!(SYS_rmdir, path("/")), EBUSY);
    }
    unlink_errors {
        let d = scratch();
        fails!(sc!(SYS_unlink, path(&format!("{d}/none"))), ENOENT);
        fails!(sc!(SYS_unlink, path(&d)), EISDIR);
        ok!(create(&format!("{d}/f")));
        ok!(sc!(SYS_unlinkat, libc::AT_FDCWD, path(&format!("{d}/f")), 0));
        holds!(!there(&format!("{d}/f")));
        ok!(mkdir(&format!("{d}/a")));
        ok!(sc!(SYS_unlinkat, libc::AT_FDCWD, path(&format!("{d}/a")), libc::AT_REMOVEDIR));
        fails!(sc!(SYS_unlinkat, libc::AT_FDCWD, path(&d), 0x77), EINVAL);
    }
    unlinked_files_live_while_open {
        let fd = file_with(b"still")?;
        let mut buf = [0; 5];
        ok!(sc!(SYS_pread64, fd, buf.as_mut_ptr(), 5, 0));
        is!(&buf, b"still");
    }
    links {
        let d = scratch();
        let (a, b) = (format!("{d}/a"), format!("{d}/b"));
        ok!(create(&a));
        ok!(sc!(SYS_link, path(&a), path(&b)));
        let mut buf = [0u64; 18];
        ok!(sc!(SYS_stat, path(&b), buf.as_mut_ptr()));
        is!(buf[2], 2);
        fails!(sc!(SYS_link, path(&a), path(&b)), EEXIST);
        fails!(sc!(SYS_link, path(&d), path(&format!("{d}/x"))), EPERM);
        fails!(sc!(SYS_link, path("/nonexistent"), path(&format!("{d}/x"))), ENOENT);
        ok!(sc!(SYS_unlink, path(&a)));
        ok!(sc!(SYS_stat, path(&b), buf.as_mut_ptr()));
        is!(buf[2], 1);
    }
    symlinks {
        let d = scratch();
        let link = format!("{d}/l");
        ok!(sc!(SYS_symlink, path("target"), path(&link)));
        let mut buf = [b'.'; 20];
        is!(ok!(sc!(SYS_readlink, path(&link), buf.as_mut_ptr(), 20)), 6);
        is!(&buf[..7], b"target.");
        is!(ok!(sc!(SYS_readlink, path(&link), buf.as_mut_ptr(), 3)), 3);
        fails!(sc!(SYS_readlink, path(&d), buf.as_mut_ptr(), 20), EINVAL);
        fails!(sc!(SYS_readlink, path(&link), buf.as_mut_ptr(), 0), EINVAL);
        fails!(sc!(SYS_symlink, path("x"), path(&link)), EEXIST);
        fails!(sc!(SYS_symlink, path(""), path(&format!("{d}/e"))), ENOENT);
        fails!(sys::open(&link, libc::O_RDONLY, 0), ENOENT);
        ok!(sc!(SYS_symlink, path("loop"), path(&format!("{d}/loop"))));
        fails!(sys::open(&format!("{d}/loop"), libc::O_RDONLY, 0), ELOOP);
        // Creating through a dangling link creates its target.
        ok!(create(&link));
        holds!(there(&format!("{d}/target")));
    }
    long_links_are_followed_to_the_end {
        let d = scratch();
        let to = |name: &str, target: &str| sc!(SYS_symlink, path(target), path(&format!("{d}/{name}")));
        ok!(sc!(SYS_mkdir, path(&format!("{d}/a")), 0o755));
        ok!(create(&format!("{d}/f")));
        let turns = "a/../".repeat(800);
        for n in 0..40 {
            let next = if n == 39 { "f".into() } else { format!("l{}", n + 1) };
            ok!(to(&format!("l{n}"), &format!("{turns}{next}")));
        }
        ok!(sys::open(&format!("{d}/l0"), libc::O_RDONLY, 0).and_then(sys::close));
        ok!(to("more", "l0"));
        fails!(sys::open(&format!("{d}/more"), libc::O_RDONLY, 0), ELOOP);
        // Links in the middle of others, so that much of each is left while the next is followed.
        for n in 0..5 {
            ok!(to(&format!("n{n}"), &format!("n{}//{turns}", n + 1)));
        }
        ok!(to("n5", &turns));
        ok!(sys::open(&format!("{d}/n0/f"), libc::O_RDONLY, 0).and_then(sys::close));
        fails!(sys::open(&format!("{d}/n0/f/"), libc::O_RDONLY, 0), ENOTDIR);
        fails!(sys::open(&format!("{d}/n0/none"), libc::O_RDONLY, 0), ENOENT);
    }
    rename_replaces_and_refuses {
        let d = scratch();
        let at = |name: &str| path(&format!("{d}/{name}"));
        ok!(create(&format!("{d}/a")));
        ok!(create(&format!("{d}/b")));
        ok!(sc!(SYS_rename, at("a"), at("b")));
        holds!(!there(&format!("{d}/a")) && there(&format!("{d}/b")));
        fails!(sc!(SYS_rename, at("none"), at("c")), ENOENT);
        ok!(mkdir(&format!("{d}/d")));
        ok!(mkdir(&format!("{d}/e")));
        fails!(sc!(SYS_rename, at("b"), at("d")), EISDIR);
        fails!(sc!(SYS_rename, at("d"), at("b")), ENOTDIR);
        fails!(sc!(SYS_rename, at("d"), at("d/x")), EINVAL);
        ok!(create(&format!("{d}/e/f")));
        fails!(sc!(SYS_rename, at("d"), at("e")), ENOTEMPTY | EEXIST);
        ok!(sc!(SYS_rename, at("e"), at("d")));
        holds!(there(&format!("{d}/d/f")));
        ok!(sc!(SYS_rename, at("b"), at("b")));
        ok!(create(&format!("{d}/x")));
        fails!(sc!(SYS_renameat2, libc::AT_FDCWD, at("x"), libc::AT_FDCWD, at("b"), libc::RENAME_NOREPLACE), EEXIST);
        fails!(sc!(SYS_renameat2, libc::AT_FDCWD, at("x"), libc::AT_FDCWD, at("y"), 0x1000), EINVAL);
    }
    rename_moves_a_tree_and_its_dotdot {
        let d = scratch();
        ok!(mkdir(&format!("{d}/a")));
        ok!(mkdir(&format!("{d}/b")));
        ok!(mkdir(&format!("{d}/a/c")));
        ok!(sc!(SYS_rename, path(&format!("{d}/a/c")), path(&format!("{d}/b/c"))));
        let (mut up, mut b) = ([0u64; 18], [0u64; 18]);
        ok!(sc!(SYS_stat, path(&format!("{d}/b/c/..")), up.as_mut_ptr()));
        ok!(sc!(SYS_stat, path(&format!("{d}/b")), b.as_mut_ptr()));
        is!(up[1], b[1]);
    }
    listing {
        let d = scratch();
        for i in 0..200 { ok!(create(&format!("{d}/file-{i:03}"))); }
        let names = ok!(list(&d));
        is!(names.len(), 202);
        is!([&names[0], &names[1], &names[2], &names[201]], [".", "..", "file-000", "file-199"]);
        let fd = ok!(sys::open(&d, 0, 0));
        fails!(sc!(SYS_getdents64, fd, [0u64; 1].as_mut_ptr(), 8), EINVAL);
        fails!(sc!(SYS_getdents64, file_with(b"")?, [0u64; 8].as_mut_ptr(), 64), ENOTDIR);
        fails!(sc!(SYS_getdents64, 9999, 8, 64), EBADF);
    }
    listing_while_removing {
        let d = scratch();
        for i in 0..100 { ok!(create(&format!("{d}/{i}"))); }
        for _ in 0..200 {
            let names = ok!(list(&d));
            let Some(name) = names.iter().find(|name| !name.starts_with('.')) else { break };
            ok!(sc!(SYS_unlink, path(&format!("{d}/{name}"))));
        }
        is!(ok!(list(&d)).len(), 2);
    }
    working_directory {
        let d = scratch();
        ok!(mkdir(&format!("{d}/w")));
        ok!(sc!(SYS_chdir, path(&format!("{d}/w"))));
        let mut buf = [0u8; 300];
        let n = ok!(sc!(SYS_getcwd, buf.as_mut_ptr(), 300)) as usize;
        is!(&buf[..n], format!("{d}/w\0").as_bytes());
        fails!(sc!(SYS_getcwd, buf.as_mut_ptr(), 5), ERANGE);
        fails!(sc!(SYS_getcwd, 8, 300), EFAULT);
        ok!(create("here"));
        holds!(there(&format!("{d}/w/here")));
        ok!(sc!(SYS_chdir, path("..")));
        holds!(there("w/here"));
        fails!(sc!(SYS_chdir, path("w/here")), ENOTDIR);
        fails!(sc!(SYS_chdir, path("none")), ENOENT);
        let fd = ok!(sys::open("w", 0, 0));
        ok!(sc!(SYS_fchdir, fd));
        holds!(there("here"));
        fails!(sc!(SYS_fchdir, 9999), EBADF);
        fails!(sc!(SYS_fchdir, file_with(b"")?), ENOTDIR);
    }
    removed_working_directory {
        let d = format!("{}/gone", scratch());
        ok!(mkdir(&d));
        ok!(sc!(SYS_chdir, path(&d)));
        ok!(sc!(SYS_rmdir, path(&d)));
        fails!(create("x"), ENOENT);
        fails!(sc!(SYS_getcwd, [0u8; 300].as_mut_ptr(), 300), ENOENT);
    }
    chroot_confines {
        let d = scratch();
        is!(in_child(|| {
            let made = mkdir(&format!("{d}/etc")).is_ok();
            let inside = sc!(SYS_chroot, path(&d)).is_ok() && sc!(SYS_chdir, path("/")).is_ok();
            i32::from(!(made && inside && there("/etc") && !there("/proc/self") && there("/../../etc")))
        })?, 0);
        fails!(sc!(SYS_chroot, path("/nonexistent")), ENOENT);
    }
    sticky_directories {
        let d = scratch();
        ok!(sc!(SYS_chmod, path(&d), 0o1777));
        ok!(create(&format!("{d}/f")));
        is!(in_child(|| {
            let _ = sc!(SYS_setresuid, 1000, 1000, 1000);
            i32::from(sc!(SYS_unlink, path(&format!("{d}/f"))) != Err(libc::EPERM))
        })?, 0);
    }
    deep_paths {
        let d = scratch();
        ok!(sc!(SYS_chdir, path(&d)));
        for _ in 0..60 { ok!(mkdir("d")); ok!(sc!(SYS_chdir, path("d"))); }
        ok!(create("leaf"));
        holds!(there(&format!("{d}/{}leaf", "d/".repeat(60))));
    }
    dots_and_slashes {
        let d = scratch();
        ok!(mkdir(&format!("{d}/a")));
        ok!(create(&format!("{d}/a/f")));
        for name in ["a/f", "a//f", "./a/./f", "a/../a/f", "//a///f"] {
            if name.starts_with("//") { holds!(!there(name)); continue; }
            holds!(there(&format!("{d}/{name}")));
        }
        holds!(there("/.."));
    }
}
