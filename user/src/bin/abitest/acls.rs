//! Access control lists of files in memory.

use crate::harness::*;
use crate::privileges::{as_child, become_user_with};
use crate::socket_calls::{STREAM, bind, socket};
use crate::xattrs::{get, holds_or, is_err, list, remove, set, with_file};
use user::sys;

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";
const CHOWN: u64 = 0;

/// An entry: tag, permissions, id.
type Entry = (u16, u16, u32);

const NO_ID: u32 = u32::MAX;

fn owner(perm: u16) -> Entry {
    (0x01, perm, NO_ID)
}
fn user(id: u32, perm: u16) -> Entry {
    (0x02, perm, id)
}
fn group(perm: u16) -> Entry {
    (0x04, perm, NO_ID)
}
fn named_group(id: u32, perm: u16) -> Entry {
    (0x08, perm, id)
}
fn mask(perm: u16) -> Entry {
    (0x10, perm, NO_ID)
}
fn other(perm: u16) -> Entry {
    (0x20, perm, NO_ID)
}

fn bytes(entries: &[Entry]) -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(perm.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

fn give(file: &str, kind: &str, entries: &[Entry]) -> Result<u64, i32> {
    set(file, kind, &bytes(entries), 0)
}

fn has(file: &str, kind: &str, entries: &[Entry]) -> bool {
    get(file, kind) == Ok(bytes(entries))
}

fn mode(file: &str) -> u32 {
    let mut stat = sys::zeroed_stat();
    let _ = sc!(SYS_lstat, path(file), &raw mut stat);
    stat.st_mode & 0o7777
}

fn chmod(file: &str, mode: u32) -> Result<u64, i32> {
    sc!(SYS_chmod, path(file), mode)
}

/// What a user with these groups may do with a file: bits of access(2), with the effective ids.
fn rights(file: &str, uid: u32, groups: &[u32]) -> Result<u64, i32> {
    let mut may = 0;
    for bit in [4, 2, 1] {
        let allowed = as_child(
            || sys::become_user(uid, groups),
            || {
                sc!(
                    SYS_faccessat2,
                    libc::AT_FDCWD,
                    path(file),
                    bit,
                    libc::AT_EACCESS
                )
            },
        );
        match allowed {
            Ok(_) => may |= bit,
            Err(libc::EACCES) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(may)
}

/// Whether a user may open a file so.
fn opens(file: &str, uid: u32, flags: i32) -> Result<u64, i32> {
    as_child(
        || sys::become_user(uid, &[]),
        || sys::open(file, flags, 0).map(|_| 0),
    )
}

tests! { "acl";
    a_list_that_says_what_the_mode_says_is_the_mode { with_file(|_, file| {
        fails!(get(file, ACCESS), ENODATA);
        fails!(get(file, DEFAULT), ENODATA);
        ok!(give(file, ACCESS, &[owner(6), group(5), other(1)]));
        is!(mode(file), 0o651);
        fails!(get(file, ACCESS), ENODATA);
        is!(ok!(list(file)), Vec::<String>::new());
        Ok(())
    })?; }
    the_mode_shows_the_mask { with_file(|_, file| {
        let entries = [owner(6), user(1000, 7), group(4), named_group(50, 6), mask(3), other(0)];
        ok!(give(file, ACCESS, &entries));
        is!(mode(file), 0o630);
        holds!(has(file, ACCESS, &entries));
        is!(ok!(list(file)), [ACCESS]);
        let bare = [owner(7), group(5), mask(2), other(4)];
        ok!(give(file, ACCESS, &bare));
        is!(mode(file), 0o724);
        holds!(has(file, ACCESS, &bare));
        // Without the list the mask stays, as the group's.
        ok!(remove(file, ACCESS));
        is!(mode(file), 0o724);
        fails!(get(file, ACCESS), ENODATA);
        ok!(remove(file, ACCESS));
        ok!(remove(file, DEFAULT));
        // One without entries is none.
        ok!(give(file, ACCESS, &bare));
        ok!(give(file, ACCESS, &[]));
        fails!(get(file, ACCESS), ENODATA);
        // So is one that says what the mode says.
        ok!(give(file, ACCESS, &bare));
        ok!(give(file, ACCESS, &[owner(6), group(6), other(0)]));
        fails!(get(file, ACCESS), ENODATA);
        is!(mode(file), 0o660);
        Ok(())
    })?; }
    chmod_changes_the_mask { with_file(|_, file| {
        ok!(give(file, ACCESS, &[owner(6), user(1000, 7), group(4), mask(7), other(0)]));
        ok!(chmod(file, 0o1751));
        is!(mode(file), 0o1751);
        holds!(has(file, ACCESS, &[owner(7), user(1000, 7), group(4), mask(5), other(1)]));
        ok!(sc!(SYS_chown, path(file), 7, 8));
        holds!(has(file, ACCESS, &[owner(7), user(1000, 7), group(4), mask(5), other(1)]));
        Ok(())
    })?; }
    the_first_entry_that_fits_decides { with_file(|dir, file| {
        ok!(chmod(dir, 0o755));
        ok!(sc!(SYS_chown, path(file), 7, 20));
        let entries = [owner(1), user(1000, 6), user(1001, 0), group(4), named_group(30, 2), named_group(31, 0), mask(7), other(5)];
        ok!(give(file, ACCESS, &entries));
        for (uid, groups, may) in [
            (7, &[20][..], 1), (1000, &[20], 6), (1001, &[20, 30], 0), (1002, &[20], 4), (1002, &[30], 2),
            (1002, &[20, 30], 6), (1002, &[31], 0), (1002, &[30, 31], 2), (1002, &[], 5),
        ] {
            is!((uid, groups, ok!(rights(file, uid, groups))), (uid, groups, may));
        }
        // No one entry permits both.
        let both = || sc!(SYS_faccessat2, libc::AT_FDCWD, path(file), 6, libc::AT_EACCESS);
        is!(as_child(|| sys::become_user(1002, &[20, 30]), both), Err(libc::EACCES));
        // The mask limits all but the owner and the others.
        ok!(chmod(file, 0o125));
        for (uid, groups, may) in [(7, &[20][..], 1), (1000, &[], 2), (1002, &[20], 0), (1002, &[30], 2), (1002, &[], 5)] {
            is!((uid, groups, ok!(rights(file, uid, groups))), (uid, groups, may));
        }
        // Where it permits nothing, the list does not count: a named user is one of the others.
        ok!(chmod(file, 0o105));
        for (uid, groups, may) in [(7, &[20][..], 1), (1000, &[], 5), (1001, &[], 5), (1002, &[20], 0), (1002, &[30], 5)] {
            is!((uid, groups, ok!(rights(file, uid, groups))), (uid, groups, may));
        }
        Ok(())
    })?; }
    opens_searches_and_changes_of_names_follow_it { with_file(|dir, file| {
        ok!(chmod(file, 0o600));
        is!(opens(file, 1000, libc::O_RDONLY), Err(libc::EACCES));
        ok!(give(file, ACCESS, &[owner(6), user(1000, 4), group(0), mask(6), other(0)]));
        is!(opens(file, 1000, libc::O_RDONLY), Ok(0));
        is!(opens(file, 1000, libc::O_RDWR), Err(libc::EACCES));
        is!(opens(file, 1001, libc::O_RDONLY), Err(libc::EACCES));
        let sub = format!("{dir}/sub");
        let inner = format!("{sub}/inner");
        ok!(sc!(SYS_mkdir, path(&sub), 0o700));
        ok!(sys::open(&inner, libc::O_RDWR | libc::O_CREAT, 0o644));
        is!(opens(&inner, 1000, libc::O_RDONLY), Err(libc::EACCES));
        ok!(give(&sub, ACCESS, &[owner(7), user(1000, 1), group(0), mask(7), other(0)]));
        is!(opens(&inner, 1000, libc::O_RDONLY), Ok(0));
        is!(opens(&inner, 1001, libc::O_RDONLY), Err(libc::EACCES));
        let unlink = || as_child(|| sys::become_user(1000, &[]), || sc!(SYS_unlink, path(&inner)));
        is!(unlink(), Err(libc::EACCES));
        ok!(give(&sub, ACCESS, &[owner(7), user(1000, 3), group(0), mask(7), other(0)]));
        is!(unlink(), Ok(0));
        // One that may execute all that somebody may.
        is!(ok!(rights(file, 1000, &[])), 4);
        is!(sc!(SYS_access, path(file), 1), Err(libc::EACCES));
        ok!(give(file, ACCESS, &[owner(6), user(1000, 1), group(0), mask(1), other(0)]));
        is!(sc!(SYS_access, path(file), 1), Ok(0));
        Ok(())
    })?; }
    new_files_inherit_a_default_list { with_file(|dir, _| {
        let entries = [owner(7), user(1000, 7), group(5), mask(7), other(4)];
        ok!(give(dir, DEFAULT, &entries));
        is!(mode(dir), 0o755);
        is!(ok!(list(dir)), [DEFAULT]);
        holds!(has(dir, DEFAULT, &entries));
        // In the place of the umask.
        ok!(sc!(SYS_umask, 0o077));
        let at = |name: &str| format!("{dir}/{name}");
        ok!(sys::open(&at("new"), libc::O_RDWR | libc::O_CREAT, 0o666));
        is!(mode(&at("new")), 0o664);
        holds!(has(&at("new"), ACCESS, &[owner(6), user(1000, 7), group(5), mask(6), other(4)]));
        fails!(get(&at("new"), DEFAULT), ENODATA);
        ok!(sc!(SYS_mkdir, path(&at("sub")), 0o751));
        is!(mode(&at("sub")), 0o750);
        holds!(has(&at("sub"), ACCESS, &[owner(7), user(1000, 7), group(5), mask(5), other(0)]));
        holds!(has(&at("sub"), DEFAULT, &entries));
        is!(ok!(list(&at("sub"))), [ACCESS, DEFAULT]);
        ok!(sc!(SYS_mknod, path(&at("fifo")), libc::S_IFIFO | 0o620, 0));
        is!(mode(&at("fifo")), 0o620);
        holds!(has(&at("fifo"), ACCESS, &[owner(6), user(1000, 7), group(5), mask(2), other(0)]));
        // Of a socket's name the umask counts, too.
        ok!(bind(ok!(socket(STREAM)), &at("socket")));
        is!(mode(&at("socket")), 0o700);
        holds!(has(&at("socket"), ACCESS, &[owner(7), user(1000, 7), group(5), mask(0), other(0)]));
        ok!(sc!(SYS_symlink, path("x"), path(&at("link"))));
        is!(ok!(list(&at("link"))), Vec::<String>::new());
        let fd = ok!(sys::open(dir, libc::O_RDWR | libc::O_TMPFILE, 0o640));
        let mut stat = sys::zeroed_stat();
        ok!(sc!(SYS_fstat, fd, &raw mut stat));
        is!(stat.st_mode & 0o7777, 0o640);
        is!(ok!(sc!(SYS_fgetxattr, fd, path(ACCESS), 0, 0)), 44);
        // One without named entries only lowers the mode.
        ok!(give(dir, DEFAULT, &[owner(7), group(5), other(1)]));
        ok!(sys::open(&at("plain"), libc::O_RDWR | libc::O_CREAT, 0o666));
        is!(mode(&at("plain")), 0o640);
        is!(ok!(list(&at("plain"))), Vec::<String>::new());
        ok!(remove(dir, DEFAULT));
        ok!(sys::open(&at("masked"), libc::O_RDWR | libc::O_CREAT, 0o666));
        is!(mode(&at("masked")), 0o600);
        Ok(())
    })?; }
    lists_that_are_refused { with_file(|dir, file| {
        let link = format!("{dir}/link");
        ok!(sc!(SYS_symlink, path(file), path(&link)));
        let valid = [owner(6), user(1000, 7), group(4), mask(7), other(0)];
        fails!(set(file, ACCESS, b"x", 0), EINVAL);
        fails!(set(file, ACCESS, &bytes(&valid)[..21], 0), EINVAL);
        fails!(set(file, ACCESS, &[1, 0, 0, 0], 0), EOPNOTSUPP);
        fails!(give(file, ACCESS, &[owner(6), group(4)]), EINVAL);
        fails!(give(file, ACCESS, &[owner(6), user(1000, 7), group(4), other(0)]), EINVAL);
        fails!(give(file, ACCESS, &[owner(6), group(4), user(1000, 7), mask(7), other(0)]), EINVAL);
        fails!(give(file, ACCESS, &[owner(6), user(NO_ID, 7), group(4), mask(7), other(0)]), EINVAL);
        fails!(give(file, ACCESS, &[owner(8), group(4), other(0)]), EINVAL);
        fails!(give(file, ACCESS, &[(3, 0, 0), owner(6), group(4), other(0)]), EINVAL);
        is!((mode(file), ok!(list(file))), (0o644, vec![]));
        // Only directories have default lists, and links none.
        fails!(give(file, DEFAULT, &valid), EACCES);
        fails!(give(&link, ACCESS, &valid), EOPNOTSUPP);
        fails!(get(&link, ACCESS), EOPNOTSUPP);
        fails!(remove(&link, ACCESS), EOPNOTSUPP);
        // The flags do not count.
        ok!(set(file, ACCESS, &bytes(&valid), libc::XATTR_REPLACE));
        ok!(set(file, ACCESS, &bytes(&valid), libc::XATTR_CREATE));
        let mut short = [0u8; 8];
        fails!(sc!(SYS_getxattr, path(file), path(ACCESS), short.as_mut_ptr(), 8), ERANGE);
        is!(ok!(sc!(SYS_getxattr, path(file), path(ACCESS), 0, 0)), 44);
        Ok(())
    })?; }
    only_the_owner_changes_one { with_file(|dir, file| {
        let valid = [owner(6), user(1000, 7), group(4), mask(7), other(0)];
        let shown = [owner(6), user(1002, 7), group(4), mask(7), other(0)];
        ok!(chmod(file, 0o666));
        ok!(chmod(dir, 0o777));
        is!(as_child(|| sys::become_user(1000, &[]), || {
            is_err(give(file, ACCESS, &valid), libc::EPERM, 1)?;
            is_err(give(dir, DEFAULT, &valid), libc::EPERM, 2)?;
            is_err(remove(file, ACCESS), libc::EPERM, 3)?;
            // Errors of the bytes and of the file come first.
            is_err(set(file, ACCESS, b"x", 0), libc::EINVAL, 4)?;
            is_err(give(file, DEFAULT, &valid), libc::EACCES, 5)?;
            is_err(give(file, ACCESS, &[owner(6)]), libc::EPERM, 6)?;
            // Each may read it.
            is_err(get(file, ACCESS), libc::ENODATA, 7)
        }), Ok(0));
        ok!(sc!(SYS_chown, path(file), 1000, 20));
        ok!(chmod(file, 0o2666));
        is!(as_child(|| sys::become_user(1000, &[]), || {
            give(file, ACCESS, &shown)?;
            holds_or(has(file, ACCESS, &shown), 1)?;
            // The owner is not in the group.
            holds_or(mode(file) == 0o670, 2)
        }), Ok(0));
        ok!(chmod(file, 0o2666));
        ok!(give(file, ACCESS, &valid));
        is!(mode(file), 0o2670);
        is!(as_child(|| become_user_with(&[CHOWN]), || remove(file, ACCESS)), Ok(0));
        is!(mode(file), 0o670);
        Ok(())
    })?; }
}
