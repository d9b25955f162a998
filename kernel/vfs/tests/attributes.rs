//! Owners, permissions and times: each change by each kind of caller, against the rules of the man pages written down plainly.
#![cfg(not(shuttle))]

mod support;
mod support_names;

use std::sync::Arc;

use cred::{Cap, CapSet, Cred};
use hal::uio::IoBuf;
use support::{Calls, on, threads};
use support_names::{OTHER, TEAM, USER, View, as_user, bits, give, inode, set_mode, user};
use vfs::error::FsError::{self, Access, Perm};
use vfs::file::o;
use vfs::inode::{Inode, mode};
use vfs::setattr::{NewMode, chmod, chown};
use vfs::tmpfs::{self, What};
use vfs::walk::{Last, Want};

/// The permission bits that are tried.
const BITS: [u32; 9] = [
    0o755, 0o644, 0o4755, 0o2755, 0o2745, 0o6755, 0o6745, 0o1777, 0o7000,
];

/// Every kind of caller: the owner of the file, others, members of its group, and holders of one capability each.
fn callers() -> Vec<Cred> {
    let with = |uid, groups: &[u32], caps: &[Cap]| {
        let mut cred = user(uid, groups);
        cred.caps.effective = CapSet::of(caps);
        cred
    };
    vec![
        Cred::root(),
        user(USER, &[]),
        user(USER, &[TEAM]),
        user(OTHER, &[]),
        user(OTHER, &[TEAM]),
        with(OTHER, &[], &[Cap::Chown]),
        with(OTHER, &[], &[Cap::Fowner]),
        with(OTHER, &[], &[Cap::Fsetid]),
        with(OTHER, &[TEAM], &[Cap::Chown, Cap::Fowner]),
        with(USER, &[], &[Cap::Fsetid]),
        with(OTHER, &[], &[Cap::Chown, Cap::Fowner, Cap::Fsetid]),
        user(0, &[]),
    ]
}

/// A file as the rules see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rules {
    uid: u32,
    gid: u32,
    bits: u32,
    dir: bool,
}

fn is_member(cred: &Cred, gid: u32) -> bool {
    cred.fsgid == gid || cred.groups().contains(&gid)
}

impl Rules {
    fn of(inode: &Inode) -> Rules {
        Rules {
            uid: inode.uid(),
            gid: inode.gid(),
            bits: inode.mode() & 0o7777,
            dir: inode.is_dir(),
        }
    }

    /// Whether a change of owner, or of contents, ends the set-group-ID bit. Without the group's permission to execute the bit is
    /// no privilege.
    fn ends_group_bit(&self, cred: &Cred) -> bool {
        let trusted = is_member(cred, self.gid) || cred.capable(Cap::Fsetid);
        self.bits & 0o2000 != 0 && (self.bits & 0o010 != 0 || !trusted)
    }

    /// chown(2).
    fn chown(mut self, cred: &Cred, uid: Option<u32>, gid: Option<u32>) -> Result<Rules, FsError> {
        let is_owner = cred.fsuid == self.uid;
        let may_uid = |uid| uid == self.uid && is_owner;
        let may_gid = |gid| (gid == self.gid || is_member(cred, gid)) && is_owner;
        let may = uid.is_none_or(may_uid) && gid.is_none_or(may_gid);
        if !may && !cred.capable(Cap::Chown) {
            return Err(Perm);
        }
        if !self.dir {
            let mut ends = self.bits & 0o4000;
            if self.ends_group_bit(cred) {
                ends |= 0o2000;
            }
            if ends != 0 {
                // It is a chmod(2) as well.
                let bits = self.bits & !ends;
                let gid = gid.unwrap_or(self.gid);
                self.bits = Rules { gid, ..self }.chmod(cred, bits)?.bits;
            }
        }
        self.uid = uid.unwrap_or(self.uid);
        self.gid = gid.unwrap_or(self.gid);
        Ok(self)
    }

    /// chmod(2).
    fn chmod(mut self, cred: &Cred, bits: u32) -> Result<Rules, FsError> {
        if cred.fsuid != self.uid && !cred.capable(Cap::Fowner) {
            return Err(Perm);
        }
        self.bits = bits;
        if !is_member(cred, self.gid) && !cred.capable(Cap::Fsetid) {
            self.bits &= !0o2000;
        }
        Ok(self)
    }

    /// write(2) and truncate(2).
    fn write(mut self, cred: &Cred) -> Rules {
        if !cred.capable(Cap::Fsetid) {
            if self.ends_group_bit(cred) {
                self.bits &= !0o2000;
            }
            self.bits &= !0o4000;
        }
        self
    }
}

/// Calls `check` for a file and for a directory with each of [`BITS`] and each caller; `reset` gives it those bits again, and its
/// owner and its group.
fn for_each(check: impl Fn(&Cred, &Arc<Inode>, &dyn Fn()) + Send + 'static) {
    on(1, move || {
        let root = Calls::of_root();
        root.create("/file").unwrap();
        root.mkdir("/dir").unwrap();
        for path in ["/file", "/dir"] {
            for bits in BITS {
                let reset = || {
                    give(path, USER, TEAM);
                    set_mode(path, bits);
                };
                for cred in callers() {
                    check(&cred, &inode(path), &reset);
                }
            }
        }
    });
}

#[test]
fn chown_follows_the_rules() {
    for_each(|cred, inode, reset| {
        for uid in [None, Some(USER), Some(OTHER), Some(0)] {
            for gid in [None, Some(TEAM), Some(USER), Some(OTHER), Some(0)] {
                reset();
                let before = Rules::of(inode);
                let expected = before.chown(cred, uid, gid);
                let result = chown(cred, inode, uid, gid).map(|()| Rules::of(inode));
                assert_eq!(
                    result, expected,
                    "{before:?} to {uid:?} {gid:?} by {cred:?}"
                );
                if result.is_err() {
                    assert_eq!(Rules::of(inode), before);
                }
            }
        }
    });
}

#[test]
fn chmod_follows_the_rules() {
    for_each(|cred, inode, reset| {
        for bits in [0, 0o777, 0o2755, 0o2745, 0o6711, 0o7777] {
            reset();
            let before = Rules::of(inode);
            let expected = before.chmod(cred, bits);
            let result = chmod(cred, inode, bits).map(|()| Rules::of(inode));
            assert_eq!(result, expected, "{before:?} to {bits:o} by {cred:?}");
            if result.is_err() {
                assert_eq!(Rules::of(inode), before);
            }
        }
    });
}

#[test]
fn a_stranger_does_not_end_a_set_bit_by_changing_nothing() {
    on(1, || {
        let root = Calls::of_root();
        root.create("/f").unwrap();
        give("/f", USER, TEAM);
        let stranger = user(OTHER, &[]);
        for (before, result) in [
            (0o4755, Err(Perm)),
            (0o2755, Err(Perm)),
            (0o2745, Err(Perm)),
            (0o755, Ok(())),
            (0o1755, Ok(())),
        ] {
            set_mode("/f", before);
            assert_eq!(
                chown(&stranger, &inode("/f"), None, None),
                result,
                "{before:o}"
            );
            assert_eq!(bits("/f"), before);
        }
        // A member keeps a bit that is no privilege, so there is nothing to be refused.
        set_mode("/f", 0o2745);
        assert_eq!(
            chown(&user(OTHER, &[TEAM]), &inode("/f"), None, None),
            Ok(())
        );
        assert_eq!(bits("/f"), 0o2745);
    });
}

#[test]
fn a_change_of_the_contents_ends_the_set_bits() {
    on(1, || {
        let root = Calls::of_root();
        root.create("/f").unwrap();
        let file = root.open("/f", o::RDWR).unwrap();
        let f = inode("/f");
        let changes: [(&str, &dyn Fn()); 4] = [
            ("write", &|| {
                file.write(&mut IoBuf::Drain(b"x")).unwrap();
            }),
            ("append", &|| {
                file.append(&mut IoBuf::Drain(b"x")).unwrap();
            }),
            ("truncate", &|| {
                vfs::regular::truncate(&f, 1, true).unwrap();
            }),
            ("fallocate", &|| {
                vfs::regular::allocate(&f, 0, 0, 9000).unwrap();
            }),
        ];
        for (name, change) in changes {
            for bits in BITS {
                for cred in callers() {
                    give("/f", USER, TEAM);
                    set_mode("/f", bits);
                    let expected = Rules::of(&f).write(&cred);
                    as_user(&cred, change);
                    assert_eq!(Rules::of(&f), expected, "{name} {bits:o} by {cred:?}");
                }
            }
        }
    });
}

#[test]
fn a_write_is_a_change_and_a_read_is_none() {
    on(1, || {
        let root = Calls::of_root();
        root.create("/f").unwrap();
        let file = root.open("/f", o::RDWR).unwrap();
        let before = inode("/f").attr();
        file.read(&mut IoBuf::Fill(&mut [0; 4])).unwrap();
        assert_eq!(inode("/f").attr().mtime, before.mtime);
        file.write(&mut IoBuf::Drain(b"x")).unwrap();
        let after = inode("/f").attr();
        assert!(after.mtime > before.mtime && after.ctime > before.ctime);
    });
}

/// The owner, the group and the permissions of a new node.
fn make(cred: &Cred, path: &str, what: &What, new: NewMode) -> Rules {
    let made = View::of(cred.clone()).walk(|walk| {
        let (dir, Last::Name(name, _)) = walk.parent(path.as_bytes())? else {
            return Err(FsError::Exists);
        };
        tmpfs::create(cred, &dir, name, what, new)
    });
    Rules::of(&made.unwrap().inode)
}

/// inode(7), mkdir(2) and open(2): the group and the bits of a new file in a set-group-ID directory.
#[test]
fn new_files_take_their_group_from_a_set_group_directory() {
    on(1, || {
        let root = Calls::of_root();
        root.mkdir("/d").unwrap();
        let mut n = 0;
        for dir_bits in [0o777, 0o2777] {
            give("/d", 0, TEAM);
            set_mode("/d", dir_bits);
            for cred in callers() {
                for perm in [0o644, 0o2644, 0o2755, 0o6711, 0o1777, 0o2770] {
                    for umask in [0, 0o022, 0o077] {
                        n += 1;
                        let new = NewMode { perm, umask };
                        let path = format!("/d/{n}");
                        let inherits = dir_bits & 0o2000 != 0;
                        let trusted = is_member(&cred, TEAM) || cred.capable(Cap::Fsetid);
                        let loses = inherits && perm & 0o2010 == 0o2010 && !trusted;
                        let mut expected = Rules {
                            uid: cred.fsuid,
                            gid: if inherits { TEAM } else { cred.fsgid },
                            bits: perm & !umask,
                            dir: false,
                        };
                        if loses {
                            expected.bits &= !0o2000;
                        }
                        let file = make(&cred, &path, &What::File, new);
                        assert_eq!(file, expected, "{perm:o} {umask:o} in {dir_bits:o}");
                        expected.dir = true;
                        expected.bits = perm & !umask | dir_bits & 0o2000;
                        let dir = make(&cred, &format!("{path}d"), &What::Dir, new);
                        assert_eq!(dir, expected, "{perm:o} {umask:o} in {dir_bits:o}");
                    }
                }
            }
        }
    });
}

#[test]
fn the_permissions_of_a_new_file_do_not_bind_the_open_that_makes_it() {
    on(1, || {
        set_mode("/", 0o777);
        let view = View::of(user(USER, &[]));
        let new = NewMode {
            perm: 0o444,
            umask: 0o077,
        };
        let open = |flags| {
            view.walk(|walk| vfs::open::open(walk, b"/f", flags, new, &|| Ok(())))
                .map(drop)
        };
        assert_eq!(open(o::RDWR | o::CREAT), Ok(()));
        assert_eq!((bits("/f"), inode("/f").uid()), (0o400, USER));
        assert_eq!(open(o::RDWR | o::CREAT), Err(Access));
        assert_eq!(open(o::RDONLY | o::CREAT), Ok(()));
    });
}

#[test]
fn each_change_of_an_attribute_sets_the_time_of_change() {
    on(1, || {
        let root = Calls::of_root();
        root.create("/f").unwrap();
        let f = inode("/f");
        let changes: [(&str, &dyn Fn()); 4] = [
            ("chmod", &|| chmod(root.cred(), &f, 0o600).unwrap()),
            ("chown", &|| {
                chown(root.cred(), &f, Some(USER), None).unwrap()
            }),
            ("no change", &|| chown(root.cred(), &f, None, None).unwrap()),
            ("utimes", &|| f.set_times(Some(5), Some(6))),
        ];
        for (name, change) in changes {
            let before = f.attr();
            change();
            assert!(f.attr().ctime > before.ctime, "{name}");
            if name != "utimes" {
                assert_eq!(
                    (f.attr().atime, f.attr().mtime),
                    (before.atime, before.mtime)
                );
            }
        }
        assert_eq!((f.attr().atime, f.attr().mtime), (5, 6));
        let before = f.attr().ctime;
        assert_eq!(chmod(&user(OTHER, &[]), &f, 0), Err(Perm));
        assert_eq!(f.attr().ctime, before, "nothing has changed");
    });
}

/// mount(2), MS_RELATIME: a time of access is set only if it is not later than the last change, or a day old.
#[test]
fn the_time_of_access_is_set_once_for_each_change_and_each_day() {
    on(1, || {
        let root = Calls::of_root();
        root.create("/f").unwrap();
        root.write("/f", 0, b"text").unwrap();
        let atime = || inode("/f").attr().atime;
        let read = || {
            let before = atime();
            root.read("/f").unwrap();
            atime() > before
        };
        assert!(read());
        assert!(!read() && !read());
        root.write("/f", 0, b"more").unwrap();
        assert!(read() && !read());
        set_mode("/f", 0o600);
        assert!(read() && !read());
        const HOUR: u64 = 3_600_000;
        threads::nap(23 * HOUR);
        assert!(!read());
        threads::nap(2 * HOUR);
        assert!(read() && !read());
        // A time that a program has set to one long ago.
        inode("/f").set_times(Some(1), None);
        assert!(read());
    });
}

#[test]
fn only_an_owner_reads_without_a_trace() {
    on(1, || {
        let root = Calls::of_root();
        root.create("/f").unwrap();
        set_mode("/f", 0o666);
        let open = |cred: Cred| Calls::of(cred).open("/f", o::RDONLY | o::NOATIME).map(drop);
        assert_eq!(open(user(USER, &[])), Err(Perm));
        assert_eq!(open(Cred::root()), Ok(()));
        let mut cred = user(USER, &[]);
        cred.caps.effective = CapSet::of(&[Cap::Fowner]);
        assert_eq!(open(cred), Ok(()));
        give("/f", USER, USER);
        assert_eq!(open(user(USER, &[])), Ok(()));
        root.write("/f", 0, b"x").unwrap();
        let before = inode("/f").attr().atime;
        let file = root.open("/f", o::RDONLY | o::NOATIME).unwrap();
        file.read(&mut IoBuf::Fill(&mut [0])).unwrap();
        assert_eq!(inode("/f").attr().atime, before);
    });
}

#[test]
fn the_kind_of_a_file_is_no_permission() {
    on(1, || {
        let root = Calls::of_root();
        root.create("/f").unwrap();
        chmod(root.cred(), &inode("/f"), 0o40_755).unwrap();
        assert_eq!(inode("/f").mode(), mode::REG | 0o755);
        assert!(View::of(Cred::root()).find("/f", Want::DIRECTORY).is_err());
    });
}
