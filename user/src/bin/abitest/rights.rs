//! Which users may change names and attributes, and which mode bits a change clears.
//!
//! The file system decides, by owner, group, the twelve mode bits of a file and of its directory, and the settings
//! `/proc/sys/fs/protected_*`. The user is 1000, with a group of the same id and the further groups that a case names.

use crate::harness::*;
use user::sys;

const CWD: i32 = libc::AT_FDCWD;
const USER: u32 = 1000;
/// A group of which the user is a member only if a case lists it.
const TEAM: u32 = 50;

/// A directory to work in, which every user may search.
struct World(String);

impl World {
    fn new() -> World {
        let _ = sc!(SYS_umask, 0);
        let dir = scratch();
        let _ = sc!(SYS_chmod, path(&dir), 0o755);
        World(dir)
    }

    fn at(&self, name: &str) -> String {
        format!("{}/{name}", self.0)
    }

    fn p(&self, name: &str) -> u64 {
        path(&self.at(name))
    }

    /// Sets the owner and the mode of a new file.
    fn own(&self, name: &str, (uid, gid): Owner, mode: u32) -> Result<(), i32> {
        sc!(SYS_lchown, self.p(name), uid, gid)?;
        sc!(SYS_chmod, self.p(name), mode).map(drop)
    }

    fn file(&self, name: &str, owner: Owner, mode: u32) -> Result<(), i32> {
        let fd = sys::open(&self.at(name), libc::O_CREAT | libc::O_RDWR, 0o600)?;
        sys::write(fd, b"0123456789")?;
        sys::close(fd)?;
        self.own(name, owner, mode)
    }

    fn dir(&self, name: &str, owner: Owner, mode: u32) -> Result<(), i32> {
        sc!(SYS_mkdir, self.p(name), 0o700)?;
        self.own(name, owner, mode)
    }

    fn fifo(&self, name: &str, owner: Owner, mode: u32) -> Result<(), i32> {
        sc!(SYS_mknod, self.p(name), libc::S_IFIFO | 0o600, 0)?;
        self.own(name, owner, mode)
    }

    fn link(&self, name: &str, target: &str, owner: u32) -> Result<(), i32> {
        sc!(SYS_symlink, path(target), self.p(name))?;
        sc!(SYS_lchown, self.p(name), owner, owner).map(drop)
    }

    fn open(&self, name: &str, flags: i32) -> Answer {
        sys::open(&self.at(name), flags, 0o600).and_then(sys::close)
    }

    fn stat(&self, name: &str) -> libc::stat {
        let mut stat = sys::zeroed_stat();
        let _ = sc!(SYS_lstat, self.p(name), &raw mut stat);
        stat
    }

    fn mode(&self, name: &str) -> u32 {
        self.stat(name).st_mode & 0o7777
    }

    /// Group and mode.
    fn group(&self, name: &str) -> (u32, u32) {
        let stat = self.stat(name);
        (stat.st_gid, stat.st_mode & 0o7777)
    }

    fn rename(&self, from: &str, to: &str, flags: u32) -> Answer {
        sc!(SYS_renameat2, CWD, self.p(from), CWD, self.p(to), flags)
    }

    /// Sets both times of a file to five seconds after the epoch.
    fn age(&self, name: &str) -> Answer {
        sc!(
            SYS_utimensat,
            CWD,
            self.p(name),
            [5u64, 0, 5, 0].as_ptr(),
            0
        )
    }
}

/// User and group.
type Owner = (u32, u32);
/// The result of a call.
type Answer = Result<u64, i32>;
/// One way to make a change, with its name; there is also one by descriptor.
type Way = (&'static str, fn(&World) -> Answer);
type WayWith = (&'static str, fn(&World, i32) -> Answer);

/// Runs `f` as the user, with these supplementary groups.
fn user<T>(groups: &[u32], f: impl FnOnce() -> Result<T, i32>) -> Answer {
    let status = in_child(|| match sys::become_user(USER, groups).and_then(|_| f()) {
        Ok(_) => 0,
        Err(errno) => errno,
    });
    match status {
        Ok(0) => Ok(0),
        Ok(status) if status & 0x7f == 0 => Err(status >> 8),
        _ => Err(-1),
    }
}

const ROOT: Owner = (0, 0);
const MINE: Owner = (USER, USER);
const DENIED: Answer = Err(libc::EPERM);
const CLOSED: Answer = Err(libc::EACCES);
const FINE: Answer = Ok(0);

/// A setting of `/proc/sys/fs`, restored when the value is dropped.
struct Setting(String, String);

impl Setting {
    fn new(name: &str, value: u32) -> Result<Setting, String> {
        let file = format!("/proc/sys/fs/{name}");
        let old = std::fs::read_to_string(&file).map_err(|e| format!("{file}: {e}"))?;
        std::fs::write(&file, value.to_string()).map_err(|e| format!("{file}: {e}"))?;
        Ok(Setting(file, old))
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        let _ = std::fs::write(&self.0, self.1.trim());
    }
}

/// UTIME_NOW as nanoseconds of a time.
const NOW: u64 = 0x3fff_ffff;
const OMIT: u64 = 0x3fff_fffe;

tests! { "rights";
    chown_that_changes_nothing {
        let w = World::new();
        // Owner, mode before, groups of the user, answer, mode after.
        let cases: &[(Owner, u32, &[u32], Answer, u32)] = &[
            (ROOT, 0o644, &[], FINE, 0o644),
            (ROOT, 0o4755, &[], DENIED, 0o4755),
            (ROOT, 0o2755, &[], DENIED, 0o2755),
            // If the group has no execute permission, the bit is cleared only for a user outside of the group.
            ((0, TEAM), 0o2644, &[], DENIED, 0o2644),
            ((0, TEAM), 0o2644, &[TEAM], FINE, 0o2644),
            (MINE, 0o6755, &[], FINE, 0o755),
            (MINE, 0o2644, &[], FINE, 0o2644),
            ((USER, TEAM), 0o2644, &[], FINE, 0o644),
        ];
        for (n, &(owner, before, groups, answer, after)) in cases.iter().enumerate() {
            let name = format!("f{n}");
            ok!(w.file(&name, owner, before));
            is!((n, user(groups, || sc!(SYS_chown, w.p(&name), -1i64, -1i64))), (n, answer));
            is!((n, w.mode(&name)), (n, after));
        }
        ok!(w.dir("d", ROOT, 0o6755));
        is!(user(&[], || sc!(SYS_chown, w.p("d"), -1i64, -1i64)), FINE);
        is!(w.mode("d"), 0o6755);
        for (before, after) in [(0o6755, 0o755), (0o2644, 0o2644), (0o4644, 0o644)] {
            ok!(sc!(SYS_chmod, w.p("f0"), before));
            ok!(sc!(SYS_chown, w.p("f0"), -1i64, -1i64));
            is!(w.mode("f0"), after);
        }
    }
    chown_stamps_the_change {
        let w = World::new();
        ok!(w.file("f", ROOT, 0o644));
        let before = w.stat("f");
        nap_us(20_000);
        is!(user(&[], || sc!(SYS_chown, w.p("f"), -1i64, -1i64)), FINE);
        let after = w.stat("f");
        holds!((after.st_ctime, after.st_ctime_nsec) > (before.st_ctime, before.st_ctime_nsec));
        is!((after.st_mtime, after.st_mtime_nsec), (before.st_mtime, before.st_mtime_nsec));
    }
    chown_gives_to_ones_groups_only {
        let w = World::new();
        ok!(w.file("f", MINE, 0o6755));
        is!(user(&[], || sc!(SYS_chown, w.p("f"), -1i64, TEAM)), DENIED);
        is!(user(&[], || sc!(SYS_chown, w.p("f"), 0, -1i64)), DENIED);
        is!(w.mode("f"), 0o6755);
        is!(user(&[TEAM], || sc!(SYS_chown, w.p("f"), USER, TEAM)), FINE);
        is!(w.group("f"), (TEAM, 0o755));
        ok!(w.file("g", ROOT, 0o644));
        is!(user(&[], || sc!(SYS_chown, w.p("g"), 0, -1i64)), DENIED);
        is!(user(&[], || sc!(SYS_chown, w.p("g"), -1i64, USER)), DENIED);
    }
    chmod_keeps_a_groups_bit_for_members_only {
        let w = World::new();
        ok!(w.file("f", (USER, TEAM), 0o644));
        ok!(w.dir("d", (USER, TEAM), 0o755));
        for name in ["f", "d"] {
            is!(user(&[], || sc!(SYS_chmod, w.p(name), 0o6755)), FINE);
            is!(w.mode(name), 0o4755);
            is!(user(&[TEAM], || sc!(SYS_chmod, w.p(name), 0o6755)), FINE);
            is!(w.mode(name), 0o6755);
            ok!(sc!(SYS_chmod, w.p(name), 0o2750));
            is!(w.mode(name), 0o2750);
        }
        ok!(w.file("g", ROOT, 0o666));
        is!(user(&[], || sc!(SYS_chmod, w.p("g"), 0o666)), DENIED);
        is!(user(&[], || { let fd = sys::open(&w.at("g"), libc::O_RDWR, 0)?; sc!(SYS_fchmod, fd, 0o666) }), DENIED);
    }
    new_nodes_take_the_directorys_group {
        let w = World::new();
        ok!(w.dir("s", (0, TEAM), 0o2777));
        ok!(w.dir("n", (0, TEAM), 0o777));
        let make = |dir: &str, groups: &[u32]| user(groups, || {
            let name = |kind: &str| w.p(&format!("{dir}/{kind}"));
            sc!(SYS_open, name("file"), libc::O_CREAT | libc::O_WRONLY, 0o2770)?;
            sc!(SYS_open, name("plain"), libc::O_CREAT | libc::O_WRONLY, 0o2660)?;
            sc!(SYS_mknod, name("fifo"), libc::S_IFIFO | 0o2770, 0)?;
            sc!(SYS_symlink, path("x"), name("link"))?;
            sc!(SYS_mkdir, name("dir"), 0o2770)?;
            // The mask removes execute permission only after the set-group-ID bit has been decided.
            sc!(SYS_umask, 0o010)?;
            sc!(SYS_open, name("masked"), libc::O_CREAT | libc::O_WRONLY, 0o2770)
        });
        let kinds = ["file", "plain", "fifo", "dir", "masked", "link"];
        let look = |dir: &str| kinds.map(|kind| w.group(&format!("{dir}/{kind}")));
        let clear = |dir: &str| for kind in kinds {
            let flags = if kind == "dir" { libc::AT_REMOVEDIR } else { 0 };
            let _ = sc!(SYS_unlinkat, CWD, w.p(&format!("{dir}/{kind}")), flags);
        };
        is!(make("s", &[]), FINE);
        is!(look("s"), [(TEAM, 0o770), (TEAM, 0o2660), (TEAM, 0o770), (TEAM, 0o2770), (TEAM, 0o760), (TEAM, 0o777)]);
        clear("s");
        is!(make("s", &[TEAM]), FINE);
        is!(look("s"), [(TEAM, 0o2770), (TEAM, 0o2660), (TEAM, 0o2770), (TEAM, 0o2770), (TEAM, 0o2760), (TEAM, 0o777)]);
        is!(make("n", &[]), FINE);
        is!(look("n"), [(USER, 0o2770), (USER, 0o2660), (USER, 0o2770), (USER, 0o770), (USER, 0o2760), (USER, 0o777)]);
        let fd = ok!(sys::open(&w.at("s"), libc::O_TMPFILE | libc::O_RDWR, 0o600));
        let mut stat = sys::zeroed_stat();
        ok!(sc!(SYS_fstat, fd, &raw mut stat));
        is!(stat.st_gid, TEAM);
    }
    writing_takes_privileges_away {
        let w = World::new();
        let ways: [Way; 6] = [
            ("write", |w| { let fd = sys::open(&w.at("f"), libc::O_WRONLY, 0)?; sys::write(fd, b"x").map(|n| n as u64) }),
            ("truncate", |w| sc!(SYS_truncate, w.p("f"), 3)),
            ("truncate to the same", |w| sc!(SYS_truncate, w.p("f"), 10)),
            ("ftruncate", |w| { let fd = sys::open(&w.at("f"), libc::O_WRONLY, 0)?; sc!(SYS_ftruncate, fd, 30) }),
            ("O_TRUNC", |w| w.open("f", libc::O_WRONLY | libc::O_TRUNC)),
            ("fallocate", |w| { let fd = sys::open(&w.at("f"), libc::O_WRONLY, 0)?; sc!(SYS_fallocate, fd, 0, 0, 20) }),
        ];
        for (what, way) in ways {
            for (before, groups, after) in [
                (0o6777, &[][..], 0o777), (0o6777, &[TEAM], 0o777), (0o2666, &[], 0o666), (0o2666, &[TEAM], 0o2666),
            ] {
                ok!(w.file("f", (0, TEAM), before));
                is!((what, user(groups, || way(&w))), (what, FINE));
                is!((what, before, w.mode("f")), (what, before, after));
            }
            ok!(w.file("f", (0, TEAM), 0o6777));
            ok!(way(&w));
            is!((what, w.mode("f")), (what, 0o6777));
        }
    }
    truncation_to_the_same_size_stamps {
        let w = World::new();
        ok!(w.file("f", ROOT, 0o644));
        ok!(w.age("f"));
        ok!(sc!(SYS_truncate, w.p("f"), 10));
        holds!(w.stat("f").st_mtime > 5);
        ok!(w.age("f"));
        let fd = ok!(sys::open(&w.at("f"), libc::O_WRONLY, 0));
        ok!(sc!(SYS_ftruncate, fd, 10));
        holds!(w.stat("f").st_mtime > 5);
        // But truncate(2) of an empty file to length 0 does not set the time.
        ok!(sc!(SYS_ftruncate, fd, 0));
        ok!(w.age("f"));
        ok!(sc!(SYS_truncate, w.p("f"), 0));
        is!(w.stat("f").st_mtime, 5);
        ok!(sc!(SYS_ftruncate, fd, 0));
        holds!(w.stat("f").st_mtime > 5);
    }
    times_of_anothers_file {
        let w = World::new();
        ok!(w.file("f", ROOT, 0o666));
        ok!(w.file("g", ROOT, 0o644));
        let set = |name: &str, stamps: [u64; 2]| user(&[], || {
            sc!(SYS_utimensat, CWD, w.p(name), [1, stamps[0], 2, stamps[1]].as_ptr(), 0)
        });
        is!(set("f", [NOW, NOW]), FINE);
        is!(set("g", [NOW, NOW]), CLOSED);
        is!(set("g", [OMIT, OMIT]), FINE);
        is!(set("none", [OMIT, OMIT]), FINE);
        for stamps in [[NOW, OMIT], [OMIT, NOW], [7, NOW], [7, 7]] {
            is!(set("f", stamps), DENIED);
        }
        is!(user(&[], || sc!(SYS_utimensat, CWD, w.p("f"), 0, 0)), FINE);
        is!(user(&[], || sc!(SYS_utimensat, CWD, w.p("g"), 0, 0)), CLOSED);
        let fd = ok!(sys::open(&w.at("f"), libc::O_RDONLY, 0));
        fails!(sc!(SYS_utimensat, fd, 0, 0, libc::AT_SYMLINK_NOFOLLOW), EINVAL);
        ok!(sc!(SYS_futimesat, fd, 0, 0));
    }
    a_moved_directory_must_be_writable {
        let w = World::new();
        ok!(w.dir("a", MINE, 0o755));
        ok!(w.dir("b", MINE, 0o755));
        ok!(w.dir("a/theirs", ROOT, 0o755));
        ok!(w.dir("b/mine", MINE, 0o755));
        ok!(w.file("a/file", ROOT, 0o600));
        let go = |from: &str, to: &str, flags: u32| user(&[], || w.rename(from, to, flags));
        is!(go("a/theirs", "b/theirs", 0), CLOSED);
        is!(go("a/theirs", "b/mine", 0), CLOSED);
        is!(go("a/theirs", "a/still", 0), FINE);
        is!(go("a/still", "a/theirs", 0), FINE);
        is!(go("a/theirs", "b/mine", libc::RENAME_EXCHANGE), CLOSED);
        is!(go("b/mine", "a/theirs", libc::RENAME_EXCHANGE), CLOSED);
        is!(go("a/file", "b/mine", libc::RENAME_EXCHANGE), FINE);
        is!(go("b/file", "a/theirs", libc::RENAME_EXCHANGE), Err(libc::ENOENT));
        is!(go("b/mine", "a/file", libc::RENAME_EXCHANGE), FINE);
        is!(go("b/mine", "a/file", libc::RENAME_EXCHANGE), FINE);
    }
    sticky_at_both_ends {
        let w = World::new();
        ok!(w.dir("s", ROOT, 0o1777));
        ok!(w.dir("own", MINE, 0o1777));
        ok!(w.dir("free", ROOT, 0o777));
        for dir in ["s", "own", "free"] {
            ok!(w.file(&format!("{dir}/theirs"), ROOT, 0o666));
            ok!(w.file(&format!("{dir}/mine"), MINE, 0o666));
            ok!(w.dir(&format!("{dir}/dir"), ROOT, 0o777));
        }
        let go = |from: &str, to: &str, flags: u32| user(&[], || w.rename(from, to, flags));
        let gone = |name: &str, flags: i32| user(&[], || sc!(SYS_unlinkat, CWD, w.p(name), flags));
        is!(gone("s/theirs", 0), DENIED);
        is!(gone("s/dir", 0), DENIED);
        is!(gone("s/dir", libc::AT_REMOVEDIR), DENIED);
        is!(gone("s/none", 0), Err(libc::ENOENT));
        is!(go("s/theirs", "free/x", 0), DENIED);
        is!(go("free/mine", "s/theirs", 0), DENIED);
        is!(go("free/mine", "s/theirs", libc::RENAME_EXCHANGE), DENIED);
        is!(go("s/mine", "free/theirs", libc::RENAME_EXCHANGE), FINE);
        // Now the user's file is in `free`, and root's in `s`.
        is!(go("s/mine", "s/x", 0), DENIED);
        is!(go("free/theirs", "s/x", 0), FINE);
        is!(gone("s/x", 0), FINE);
        is!(go("free/mine", "own/theirs", 0), FINE);
        is!(gone("own/theirs", 0), FINE);
        is!(gone("own/dir", libc::AT_REMOVEDIR), FINE);
    }
    which_refusal_comes_first {
        let w = World::new();
        ok!(w.dir("shut", ROOT, 0o755));
        ok!(w.dir("open", ROOT, 0o777));
        ok!(w.file("shut/f", ROOT, 0o666));
        ok!(w.file("shut/g", ROOT, 0o666));
        ok!(w.dir("shut/d", ROOT, 0o777));
        ok!(w.dir("shut/d/e", ROOT, 0o777));
        ok!(w.file("open/f", MINE, 0o666));
        ok!(w.dir("open/d", MINE, 0o777));
        ok!(sc!(SYS_link, w.p("shut/f"), w.p("shut/same")));
        let gone = |name: &str, flags: i32| user(&[], || sc!(SYS_unlinkat, CWD, w.p(name), flags));
        let go = |from: &str, to: &str, flags: u32| user(&[], || w.rename(from, to, flags));
        let (no_entry, no_dir) = (Err(libc::ENOENT), Err(libc::ENOTDIR));
        is!(gone("shut/none", 0), no_entry);
        is!(gone("shut/f", 0), CLOSED);
        is!(gone("shut/f/", 0), no_dir);
        is!(gone("shut/d/", 0), Err(libc::EISDIR));
        is!(gone("shut/d", 0), CLOSED);
        is!(gone("shut/f", libc::AT_REMOVEDIR), CLOSED);
        is!(gone("shut/d", libc::AT_REMOVEDIR), CLOSED);
        is!(go("shut/none", "shut/x", 0), no_entry);
        is!(go("shut/f", "shut/same", 0), FINE);
        is!(go("shut/f", "shut/same", libc::RENAME_EXCHANGE), FINE);
        is!(go("shut/f", "shut/same", libc::RENAME_NOREPLACE), Err(libc::EEXIST));
        is!(go("shut/f", "shut/x", 0), CLOSED);
        is!(go("shut/f", "shut/x", libc::RENAME_EXCHANGE), no_entry);
        is!(go("shut/f/", "shut/x", 0), no_dir);
        is!(go("shut/f", "shut/x/", 0), no_dir);
        is!(go("shut/d", "shut/f", 0), CLOSED);
        is!(go("shut/d", "shut/d/e/x", 0), Err(libc::EINVAL));
        is!(go("shut/d/e", "shut/d", 0), Err(libc::ENOTEMPTY));
        is!(go("shut/d/e", "shut/d", libc::RENAME_EXCHANGE), Err(libc::EINVAL));
        is!(go("shut/f", "open/d", 0), CLOSED);
        is!(go("open/f", "shut/d", 0), CLOSED);
        is!(go("open/f", "shut/x", 0), CLOSED);
        is!(go("open/f", "open/d", 0), Err(libc::EISDIR));
        is!(go("open/d", "open/f", 0), no_dir);
        is!(go("open/f", "open/d/", libc::RENAME_EXCHANGE), FINE);
        is!(go("open/d", "open/f/", libc::RENAME_EXCHANGE), FINE);
        is!(go("open/d", "open/f/", libc::RENAME_EXCHANGE), no_dir);
        is!(go("open/.", "open/x", 0), Err(libc::EBUSY));
        is!(go("open/f", "open/..", libc::RENAME_NOREPLACE), Err(libc::EEXIST));
        is!(go("open/f", "open/..", 0), Err(libc::EBUSY));
        is!(user(&[], || sc!(SYS_rename, w.p("open/."), path("/dev/x"))), Err(libc::EXDEV));
    }
    hard_links_to_what_one_may_not_write {
        let w = World::new();
        ok!(w.dir("d", ROOT, 0o777));
        ok!(w.file("d/there", ROOT, 0o666));
        let _on = Setting::new("protected_hardlinks", 1)?;
        let cases: &[(&str, Owner, u32, Answer)] = &[
            ("read", ROOT, 0o644, DENIED),
            ("write", ROOT, 0o622, DENIED),
            ("both", ROOT, 0o666, FINE),
            ("suid", ROOT, 0o4666, DENIED),
            ("sgid", ROOT, 0o2676, DENIED),
            ("locked", ROOT, 0o2666, FINE),
            ("mine", MINE, 0o6400, FINE),
        ];
        for &(name, owner, mode, answer) in cases {
            ok!(w.file(name, owner, mode));
            let link = || user(&[], || sc!(SYS_link, w.p(name), w.p("d/new")));
            is!((name, link()), (name, answer));
            let _ = sc!(SYS_unlink, w.p("d/new"));
            is!((name, user(&[], || sc!(SYS_link, w.p(name), w.p("d/there")))), (name, Err(libc::EEXIST)));
        }
        ok!(w.fifo("fifo", ROOT, 0o666));
        ok!(w.link("link", "both", 0));
        for name in ["fifo", "link"] {
            is!((name, user(&[], || sc!(SYS_link, w.p(name), w.p("d/new")))), (name, DENIED));
        }
        is!(user(&[], || sc!(SYS_link, w.p("read"), w.p("new"))), DENIED);
        is!(user(&[], || sc!(SYS_link, w.p("both"), w.p("new"))), CLOSED);
        is!(user(&[], || sc!(SYS_link, w.p("read"), path("/dev/x"))), Err(libc::EXDEV));
        ok!(sc!(SYS_link, w.p("read"), w.p("d/new")));
        ok!(sc!(SYS_unlink, w.p("d/new")));
        let _off = Setting::new("protected_hardlinks", 0)?;
        is!(user(&[], || sc!(SYS_link, w.p("read"), w.p("d/new"))), FINE);
    }
    links_in_sticky_directories {
        let w = World::new();
        let _on = Setting::new("protected_symlinks", 1)?;
        ok!(w.file("f", ROOT, 0o666));
        ok!(w.dir("d", ROOT, 0o777));
        ok!(w.file("d/f", ROOT, 0o666));
        ok!(w.dir("s", ROOT, 0o1777));
        ok!(w.link("s/f", "../f", USER));
        ok!(w.link("s/d", "../d", USER));
        ok!(w.link("s/root", "../f", 0));
        ok!(w.link("s/new", "../d/new", USER));
        ok!(w.link("around", "s/f", 0));
        ok!(w.link("s/again", "f", 0));
        // Root is no exception: links in sticky directories are set as traps for root.
        for (name, errno) in [("s/f", libc::EACCES), ("s/d", libc::EACCES), ("s/root", 0), ("around", libc::EACCES),
            ("s/again", libc::EACCES), ("s/d/f", 0), ("s/d/", libc::EACCES), ("s/d/.", 0)] {
            let mut stat = sys::zeroed_stat();
            let got = sc!(SYS_stat, w.p(name), &raw mut stat).err().unwrap_or(0);
            is!((name, got), (name, errno));
            let dir = if name.starts_with("s/d") && name != "s/d/f" { libc::O_DIRECTORY } else { 0 };
            is!((name, w.open(name, libc::O_RDONLY | dir).err().unwrap_or(0)), (name, errno));
        }
        is!(w.open("s/f", libc::O_RDWR | libc::O_CREAT), CLOSED);
        is!(w.open("s/new", libc::O_RDWR | libc::O_CREAT), CLOSED);
        is!(w.open("s/d/other", libc::O_RDWR | libc::O_CREAT), FINE);
        is!(w.stat("s/f").st_uid, USER);
        ok!(sc!(SYS_readlink, w.p("s/f"), [0u8; 9].as_mut_ptr(), 9));
        ok!(sc!(SYS_mkdir, w.p("s/d/x"), 0o700));
        is!(user(&[], || w.open("s/f", libc::O_RDONLY)), FINE);
        is!(user(&[], || w.open("s/root", libc::O_RDONLY)), FINE);
        is!(user(&[], || w.open("s/new", libc::O_RDWR | libc::O_CREAT)), FINE);
        // The restriction applies only if the directory is sticky and writable for all.
        for mode in [0o777, 0o1755, 0o1775] {
            ok!(sc!(SYS_chmod, w.p("s"), mode));
            is!((mode, w.open("s/f", libc::O_RDONLY)), (mode, FINE));
        }
        ok!(sc!(SYS_chmod, w.p("s"), 0o1777));
        is!(w.open("s/f", libc::O_RDONLY), CLOSED);
        let _off = Setting::new("protected_symlinks", 0)?;
        is!(w.open("s/f", libc::O_RDONLY), FINE);
    }
    files_and_fifos_in_sticky_directories {
        let w = World::new();
        ok!(w.dir("s", ROOT, 0o1777));
        ok!(w.dir("o", (2000, 0), 0o1777));
        for dir in ["s", "o"] {
            ok!(w.file(&format!("{dir}/file"), (USER, 0), 0o666));
            ok!(w.fifo(&format!("{dir}/fifo"), (USER, 0), 0o666));
            ok!(w.file(&format!("{dir}/root"), ROOT, 0o666));
            ok!(w.file(&format!("{dir}/owner"), (2000, 0), 0o666));
        }
        let open = |name: &str| w.open(name, libc::O_RDWR | libc::O_CREAT);
        for level in 0..3 {
            let _files = Setting::new("protected_regular", level)?;
            let _fifos = Setting::new("protected_fifos", level)?;
            for (mode, from) in [(0o1777, 1), (0o1770, 2), (0o777, 9), (0o1755, 9)] {
                ok!(sc!(SYS_chmod, w.p("s"), mode));
                let want = if level >= from { CLOSED } else { FINE };
                is!((level, mode, open("s/file")), (level, mode, want));
                is!((level, mode, open("s/fifo")), (level, mode, want));
                is!((level, mode, open("s/root")), (level, mode, FINE));
                is!((level, mode, w.open("s/file", libc::O_RDWR)), (level, mode, FINE));
            }
            is!((level, open("o/owner")), (level, FINE));
            is!((level, user(&[], || open("o/file"))), (level, FINE));
            is!((level, w.open("o/file", libc::O_RDWR | libc::O_CREAT | libc::O_EXCL)), (level, Err(libc::EEXIST)));
        }
        let _files = Setting::new("protected_regular", 1)?;
        let _fifos = Setting::new("protected_fifos", 0)?;
        // The settings do not concern other kinds of files.
        ok!(sc!(SYS_mknod, w.p("o/device"), libc::S_IFCHR | 0o666, 0x103));
        ok!(w.own("o/device", MINE, 0o666));
        is!([open("o/device"), w.open("o/device", libc::O_RDWR)], [CLOSED, FINE]);
        is!(w.open("o/file/", libc::O_RDWR | libc::O_CREAT), Err(libc::EISDIR));
        is!([open("o/file"), open("o/fifo")], [CLOSED, FINE]);
        is!(user(&[], || open("o/root")), CLOSED);
    }
    groups_as_proc_prints_them {
        for (groups, line) in [(&[][..], "Groups:\t "), (&[7], "Groups:\t7 "), (&[7, 300], "Groups:\t7 300 ")] {
            is!(user(groups, || {
                let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
                if status.lines().any(|l| l == line) { Ok(0) } else { Err(libc::EINVAL) }
            }), FINE);
        }
    }
    settings_of_protection {
        for (name, most, usual) in [("symlinks", 1, Some(1)), ("hardlinks", 1, Some(1)), ("regular", 2, None), ("fifos", 2, None)] {
            let file = format!("/proc/sys/fs/protected_{name}");
            let old = std::fs::read_to_string(&file).unwrap_or_default();
            if let Some(usual) = usual { is!((name, old.trim()), (name, &*format!("{usual}"))); }
            let _at = Setting::new(&format!("protected_{name}"), most)?;
            is!((name, std::fs::read_to_string(&file).unwrap_or_default()), (name, format!("{most}\n")));
            is!((name, std::fs::write(&file, format!("{}", most + 1)).is_err()), (name, true));
            is!((name, std::fs::write(&file, "-1").is_err()), (name, true));
            let mut stat = sys::zeroed_stat();
            ok!(sc!(SYS_stat, path(&file), &raw mut stat));
            is!((name, stat.st_mode & 0o777), (name, 0o644));
        }
    }
    a_nameless_file_gets_a_name {
        let w = World::new();
        ok!(w.dir("d", ROOT, 0o777));
        let ways: [WayWith; 2] = [
            ("by descriptor", |w, fd| sc!(SYS_linkat, fd, path(""), CWD, w.p("d/named"), libc::AT_EMPTY_PATH)),
            ("through proc", |w, fd| {
                let from = path(&format!("/proc/self/fd/{fd}"));
                sc!(SYS_linkat, CWD, from, CWD, w.p("d/named"), libc::AT_SYMLINK_FOLLOW)
            }),
        ];
        for (what, way) in ways {
            let fd = ok!(sys::open(&w.at("d"), libc::O_TMPFILE | libc::O_RDWR, 0o640));
            is!(ok!(sys::write(fd, b"text")), 4);
            is!((what, way(&w, fd)), (what, FINE));
            let stat = w.stat("d/named");
            is!((stat.st_nlink, stat.st_size, stat.st_mode & 0o7777), (1, 4, 0o640));
            ok!(sc!(SYS_link, w.p("d/named"), w.p("d/second")));
            is!(w.stat("d/named").st_nlink, 2);
            ok!(sys::close(fd));
            is!(std::fs::read(w.at("d/named")).unwrap_or_default(), b"text");
            for name in ["d/named", "d/second"] { ok!(sc!(SYS_unlink, w.p(name))); }
            // A file that had a name and lost it cannot be linked again; nor one opened with O_EXCL.
            let fd = ok!(sys::open(&w.at("d"), libc::O_TMPFILE | libc::O_RDWR | libc::O_EXCL, 0o640));
            is!((what, way(&w, fd)), (what, Err(libc::ENOENT)));
        }
        let through = ways[1].1;
        is!(user(&[], || through(&w, sys::open(&w.at("d"), libc::O_TMPFILE | libc::O_RDWR, 0o400)?)), FINE);
        let fd = ok!(sys::open(&w.at("d/named"), libc::O_RDONLY, 0));
        ok!(sc!(SYS_unlink, w.p("d/named")));
        fails!(through(&w, fd), ENOENT);
    }
}
