//! Extended attributes and access control lists: limits, charges, memory that runs out, locks, and changes on several CPUs.
#![cfg(not(shuttle))]

mod support;
mod support_names;
mod support_xattrs;

use std::alloc::Layout;
use std::fmt::Debug;
use std::sync::atomic::{AtomicU32, Ordering};

use cred::{Account, Cap, CapSet, Charge, Cred, Payer};
use fscore::perm::{EXEC, READ, WRITE};
use support::{Calls, on, threads};
use support_names::{OTHER, TEAM, USER, bits, free_all, give, inode, set_mode, user};
use support_xattrs::{ACCESS, get, raw, remove, set, set_by};
use vfs::error::FsError::{self, Access, Exists, NoData, NoMemory, NoSpace, NotSupported, Perm};
use vfs::rights::permitted;
use vfs::setattr::{NewMode, chmod};
use vfs::tmpfs::{self, What};
use vfs::xattr::ops;
use vfs::xattr::store::{How, LIST_MOST, MANY, MOST};
use vm_host::frugal::{alone, locks};
use vm_host::heap::{Heap, know, refuse_none, refuse_once};

#[global_allocator]
static HEAP: Heap = Heap;

const DEFAULT: &str = "system.posix_acl_default";

/// Runs `body` as the only test of the program, on a machine with one CPU.
fn alone_on_one(body: impl FnOnce(&Calls) + Send + 'static) {
    alone(|| on(1, || body(&Calls::of_root())));
}

fn names(cred: &Cred, path: &str) -> Vec<String> {
    let place = Calls::of_root().find(path).expect("a file");
    let names = ops::names(cred, &place).expect("memory");
    let names = String::from_utf8(names).expect("text");
    names.split_terminator('\0').map(String::from).collect()
}

/// The bytes of a list: owner rwx; a named user; the file's group; a mask; others.
fn list(named: (u32, u16), group: u16, mask: u16, other: u16) -> Vec<u8> {
    let none = u32::MAX;
    let entries = [
        (1u16, 7u16, none),
        (2, named.1, named.0),
        (4, group, none),
        (0x10, mask, none),
        (0x20, other, none),
    ];
    raw(&entries)
}

/// Credentials whose names are charged to an account of their own.
fn paying(mut cred: Cred) -> Cred {
    let account = Box::leak(Box::new(Account::new(1, cred.uid)));
    cred.payer = Payer::new(account);
    cred
}

/// A user that may set all attributes, but has the limits of a user.
fn settler() -> Cred {
    let mut cred = paying(user(USER, &[]));
    cred.caps.effective = CapSet::of(&[Cap::Fowner, Cap::DacOverride]);
    cred
}

#[test]
fn the_latest_name_is_listed_first_and_a_new_value_keeps_the_place() {
    on(1, || {
        Calls::of_root().create("/f").unwrap();
        for name in ["trusted.a", "security.b", "trusted.c"] {
            set("/f", name, b"1").unwrap();
        }
        set("/f", "security.b", b"2").unwrap();
        set("/f", ACCESS, &list((USER, 7), 5, 7, 0)).unwrap();
        let all = [ACCESS, "trusted.c", "security.b", "trusted.a"];
        assert_eq!(names(&Cred::root(), "/f"), all);
        let shown = [ACCESS, "security.b"];
        assert_eq!(names(&user(USER, &[]), "/f"), shown);
    });
}

#[test]
fn an_inode_has_attributes_up_to_its_limits() {
    on(1, || {
        let root = Calls::of_root();
        for file in ["/many", "/large", "/listed"] {
            root.create(file).unwrap();
        }
        for n in 0..MANY {
            set("/many", &format!("trusted.{n}"), b"").unwrap();
        }
        assert_eq!(set("/many", "trusted.more", b""), Err(NoSpace));
        assert_eq!(set("/many", "trusted.0", b"x"), Ok(()));
        assert_eq!(set("/many", ACCESS, &list((USER, 7), 5, 7, 0)), Ok(()));

        let value = vec![1; 65536];
        let mut held = 0;
        let mut n = 0;
        while set("/large", &format!("trusted.{n}"), &value).is_ok() {
            n += 1;
            held += value.len();
        }
        assert!(held <= MOST && held + 2 * value.len() > MOST, "{held}");
        remove("/large", "trusted.0").unwrap();
        assert_eq!(set("/large", "trusted.again", &value), Ok(()));

        let mut n = 0;
        let name = |n| format!("trusted.{n:0247}");
        while set("/listed", &name(n), b"").is_ok() {
            n += 1;
        }
        assert_eq!(n, LIST_MOST / 256);
        assert_eq!(names(&Cred::root(), "/listed").len(), n);
    });
}

#[test]
fn all_is_charged_to_the_user_that_sets_it() {
    on(1, || {
        let root = Calls::of_root();
        root.create("/f").unwrap();
        let (a, b) = (paying(Cred::root()), paying(Cred::root()));
        let held = |cred: &Cred| cred.payer.held(Charge::Names);
        set_by(&a, "/f", "trusted.a", &[1; 1000], How::Any).unwrap();
        set_by(&b, "/f", "trusted.b", &[1; 3000], How::Any).unwrap();
        free_all();
        assert!((1009..1400).contains(&held(&a)), "{}", held(&a));
        assert!((3009..3400).contains(&held(&b)), "{}", held(&b));
        set_by(&b, "/f", "trusted.a", &[1; 10], How::Any).unwrap();
        free_all();
        assert_eq!(held(&a), 0);
        set_by(&a, "/f", ACCESS, &list((USER, 7), 5, 7, 0), How::Any).unwrap();
        set_by(&b, "/f", "trusted.c", b"", How::Any).unwrap();
        free_all();
        let of_list = held(&a);
        assert!((44..400).contains(&of_list), "{of_list}");
        // Another's chmod does not change which user pays for the list.
        chmod(&Cred::root(), &inode("/f"), 0o700).unwrap();
        free_all();
        assert!((44..600).contains(&held(&a)), "{}", held(&a));
        root.unlink("/f").unwrap();
        free_all();
        assert_eq!((held(&a), held(&b)), (0, 0));
    });
}

/// As in Linux, that a user whose names take too much memory has no room comes after all else that forbids a list, at `/0`.
fn check_what_is_refused_first(full: &Cred, acl: &[u8]) {
    let mut stranger = full.clone();
    stranger.caps.effective = CapSet::EMPTY;
    let by_stranger = set_by(&stranger, "/0", ACCESS, acl, How::Any);
    assert_eq!(by_stranger, Err(Perm));
    let invalid = list((0, 8), 5, 7, 0);
    let refused = set_by(full, "/0", ACCESS, &invalid, How::Any);
    assert_eq!(refused, Err(FsError::Invalid));
}

#[test]
fn a_user_sets_no_more_than_memory_allows() {
    on(1, || {
        let root = Calls::of_root();
        let cred = settler();
        let held = || cred.payer.held(Charge::Names);
        // A list of many users.
        let mut bytes = list((0, 7), 5, 7, 0);
        let entry = bytes[12..20].to_vec();
        let mut all = bytes[..12].to_vec();
        (0..8000).for_each(|_| all.extend(&entry));
        all.extend(bytes.split_off(20));
        let most = mem::vm().alloc.total_pages() as u64 / 4 * 4096;
        let mut n = 0;
        let refused = loop {
            let path = format!("/{n}");
            root.create(&path).unwrap();
            match set_by(&cred, &path, ACCESS, &all, How::Any) {
                Ok(()) => n += 1,
                Err(error) => break error,
            }
            assert!(n < 100_000, "there is no limit");
        };
        assert_eq!(refused, NoSpace);
        check_what_is_refused_first(&cred, &all);
        free_all();
        assert!(held() <= most && held() + (1 << 17) >= most, "{}", held());
        // A directory's list for new files is not a way around.
        root.mkdir("/d").unwrap();
        set_mode("/d", 0o777);
        set("/d", DEFAULT, &all).unwrap();
        let dir = root.find("/d").unwrap();
        let new = |name: &str| {
            tmpfs::create(
                &cred,
                &dir,
                name.as_bytes(),
                &What::File,
                NewMode::exact(0o666),
            )
            .map(drop)
        };
        let mut made = 0;
        while new(&format!("{made}")).is_ok() {
            made += 1;
            assert!(made < 10, "no limit for what is inherited");
        }
        for n in 0..=n {
            root.unlink(&format!("/{n}")).unwrap();
        }
        (0..made).for_each(|n| root.unlink(&format!("/d/{n}")).unwrap());
        free_all();
        assert_eq!((held(), new("again")), (0, Ok(())));
    });
}

/// Makes `change` after `reset` with one block refused, each in turn: it fails and leaves `state` as it was, or does without.
fn refuse_each_block<S: PartialEq + Debug>(
    what: &str,
    change: &dyn Fn() -> Result<(), FsError>,
    reset: &dyn Fn(),
    state: &dyn Fn() -> S,
) {
    reset();
    let before = state();
    let mut refused = 0;
    for n in 1.. {
        refuse_once(n);
        let result = change();
        if !refuse_none() {
            assert_eq!(result, Ok(()), "{what}");
            break;
        }
        if let Err(error) = result {
            assert!(matches!(error, NoMemory | NoSpace), "{what}: {error:?}");
            assert_eq!(state(), before, "{what}, block {n}");
            refused += 1;
        } else {
            reset();
        }
    }
    assert!(refused > 0, "{what} asked for nothing that may fail");
    assert_ne!(state(), before, "{what}");
}

#[test]
fn a_change_for_which_memory_is_out_changes_nothing() {
    alone_on_one(|root| {
        root.create("/f").unwrap();
        root.mkdir("/d").unwrap();
        // A name, the entries of a list, and the places of a set with room for two.
        for layout in [(9, 1), (40, 4), (16, 8)] {
            know(Layout::from_size_align(layout.0, layout.1).unwrap());
        }
        let first = list((USER, 7), 5, 7, 0);
        let second = list((OTHER, 4), 4, 5, 1);
        let reset = || {
            set("/f", "trusted.a", b"old").unwrap();
            set("/f", ACCESS, &first).unwrap();
            set("/d", DEFAULT, &first).unwrap();
            let _ = remove("/f", "trusted.b");
            let _ = root.unlink("/d/new");
            chmod(&Cred::root(), &inode("/f"), 0o770).unwrap();
        };
        let create = || {
            let dir = root.find("/d")?;
            tmpfs::create(
                &Cred::root(),
                &dir,
                b"new",
                &What::File,
                NewMode::exact(0o666),
            )
            .map(drop)
        };
        let changes: [&dyn Fn() -> Result<(), FsError>; 7] = [
            &|| set("/f", "trusted.a", b"new"),
            &|| set("/f", "trusted.b", b"new"),
            &|| remove("/f", "trusted.a"),
            &|| set("/f", ACCESS, &second),
            &|| remove("/f", ACCESS),
            &|| chmod(&Cred::root(), &inode("/f"), 0o741),
            &create,
        ];
        let state = || {
            let all = names(&Cred::root(), "/f");
            (
                all,
                get("/f", "trusted.a"),
                get("/f", ACCESS),
                bits("/f"),
                root.list("/d"),
            )
        };
        for (i, change) in changes.iter().enumerate() {
            refuse_each_block(&format!("change {i}"), change, &reset, &state);
        }
    });
}

#[test]
fn a_read_or_a_check_takes_no_lock() {
    alone_on_one(|root| {
        root.create("/f").unwrap();
        set("/f", "trusted.a", b"x").unwrap();
        set("/f", ACCESS, &list((USER, 6), 4, 7, 0)).unwrap();
        let (file, cred) = (inode("/f"), user(USER, &[]));
        for class in ["inode", "file data", "directory"] {
            let taken = locks(class, || {
                assert_eq!(get("/f", "trusted.a").as_deref(), Ok(&b"x"[..]));
                assert_eq!(names(&Cred::root(), "/f").len(), 2);
                assert_eq!(permitted(&cred, &file, READ | WRITE), Ok(()));
                assert_eq!(permitted(&cred, &file, EXEC), Err(Access));
            });
            assert_eq!(taken, 0, "{class}");
        }
    });
}

/// Each combination of permissions of a list, each kind of user, against the rules of acl(5) written down plainly.
#[test]
fn a_check_follows_the_list() {
    on(1, || {
        Calls::of_root().create("/f").unwrap();
        give("/f", OTHER, TEAM);
        let file = inode("/f");
        let callers = [
            (user(OTHER, &[]), None),
            (user(USER, &[]), Some("named")),
            (user(7, &[TEAM]), Some("group")),
            (user(7, &[]), Some("other")),
        ];
        for named in 0..8 {
            for group in 0..8 {
                for mask in 0..8u16 {
                    let other = named ^ group;
                    set("/f", ACCESS, &list((USER, named), group, mask, other)).unwrap();
                    for (cred, kind) in &callers {
                        let may = match kind {
                            None => 7,
                            // Where the mask permits nothing, only the mode counts: the user is one of the others.
                            Some("named") if mask == 0 => other,
                            Some("named") => named & mask,
                            Some("group") => group & mask,
                            _ => other,
                        };
                        for want in [READ, WRITE, EXEC, READ | WRITE | EXEC] {
                            let got = permitted(cred, &file, want);
                            let expected = u32::from(may) & want == want;
                            assert_eq!(
                                got.is_ok(),
                                expected,
                                "{kind:?} {named} {group} {mask} {want}"
                            );
                        }
                    }
                }
            }
        }
        // A named user is not looked for in groups, and the super-user's powers stay.
        assert_eq!(permitted(&Cred::root(), &file, READ | WRITE), Ok(()));
    });
}

#[test]
fn other_file_systems_and_errors_of_names() {
    on(1, || {
        Calls::of_root().create("/f").unwrap();
        assert_eq!(set("/f", "user.a", b""), Err(NotSupported));
        assert_eq!(set("/f", "security.capability", b""), Err(NotSupported));
        assert_eq!(get("/f", "security.capability"), Err(NoData));
        assert_eq!(remove("/f", "security.capability"), Err(NoData));
        let root = Cred::root();
        assert_eq!(
            set_by(&root, "/f", "trusted.a", b"", How::Never),
            Err(NoData)
        );
        assert_eq!(set_by(&root, "/f", "trusted.a", b"", How::Create), Ok(()));
        assert_eq!(
            set_by(&root, "/f", "trusted.a", b"", How::Never),
            Err(Exists)
        );
        let other = user(USER, &[]);
        assert_eq!(
            set_by(&other, "/f", ACCESS, &list((1, 7), 7, 7, 7), How::Any),
            Err(Perm)
        );
        assert_eq!(
            set_by(&other, "/f", "security.capability", b"", How::Any),
            Err(Perm)
        );
    });
}

/// Three CPUs set, read, remove and list the attributes of one inode: no value is torn, and no change is lost.
#[test]
fn three_cpus_change_and_read_one_inode() {
    const ROUNDS: u32 = 3000;
    static DONE: AtomicU32 = AtomicU32::new(0);
    on(3, || {
        Calls::of_root().create("/f").unwrap();
        let file = inode("/f");
        for me in 0..2u8 {
            threads::spawn(None, move || {
                let (mine, shared) = (format!("trusted.{me}"), "trusted.shared");
                for n in 0..ROUNDS {
                    let fill = (n % 251) as u8;
                    let value = vec![fill; 1 + usize::from(fill) * 3];
                    set("/f", shared, &value).unwrap();
                    // Nobody else changes this one.
                    set("/f", &mine, &value).unwrap();
                    assert_eq!(get("/f", &mine), Ok(value));
                    if n % 3 == 0 {
                        assert_eq!(remove("/f", &mine), Ok(()));
                        assert_eq!(get("/f", &mine), Err(NoData));
                    }
                    if me == 0 {
                        let entry = if n % 2 == 0 { 7 } else { 5 };
                        set("/f", ACCESS, &list((USER, entry), 4, 7, 4)).unwrap();
                        if n % 5 == 0 {
                            remove("/f", ACCESS).unwrap();
                            chmod(&Cred::root(), &inode("/f"), 0o744).unwrap();
                        }
                    } else if n % 7 == 0 {
                        let _ = remove("/f", shared);
                    }
                }
                DONE.fetch_add(1, Ordering::Release);
            });
        }
        let stranger = user(7, &[TEAM]);
        give("/f", 0, TEAM);
        while DONE.load(Ordering::Acquire) < 2 {
            match get("/f", "trusted.shared") {
                Ok(value) => {
                    let whole = value.len() == 1 + usize::from(value[0]) * 3;
                    assert!(whole && value.iter().all(|&b| b == value[0]), "torn");
                }
                Err(error) => assert_eq!(error, NoData),
            }
            let listed = names(&Cred::root(), "/f");
            let mut single = listed.clone();
            single.sort();
            single.dedup();
            assert_eq!(single.len(), listed.len(), "{listed:?}");
            // Whatever the list is, the group may read.
            assert_eq!(permitted(&stranger, &file, READ), Ok(()));
            task::sched::yield_now();
        }
        threads::wait_for_ends(2);
    });
}

/// What a default list gives to new files and directories has its effect there.
#[test]
fn what_is_inherited_has_its_effect() {
    on(1, || {
        let root = Calls::of_root();
        root.mkdir("/d").unwrap();
        set("/d", DEFAULT, &list((USER, 7), 0, 7, 0)).unwrap();
        let named = user(USER, &[]);
        let may = |path: &str, want| permitted(&named, &inode(path), want).is_ok();
        // The list of the directory is for new files alone.
        assert!(!may("/d", WRITE));
        root.mkdir("/d/e").unwrap();
        root.create("/d/e/f").unwrap();
        assert!(!may("/d/e", WRITE) && may("/d/e", READ | EXEC), "mode 755");
        assert!(may("/d/e/f", READ) && !may("/d/e/f", WRITE), "mode 644");
        assert_eq!((bits("/d/e"), bits("/d/e/f")), (0o750, 0o640));
        assert_eq!(names(&Cred::root(), "/d/e"), [ACCESS, DEFAULT]);
        root.symlink("x", "/d/link").unwrap();
        assert_eq!(names(&Cred::root(), "/d/link"), [] as [&str; 0]);
    });
}
