//! Transitions, according to the tables of capabilities(7), credentials(7) and ptrace(2).

use super::*;

const UID: u32 = 1000;

fn user() -> Cred {
    let mut cred = Cred::root();
    cred.setgid(UID).unwrap();
    cred.setuid(UID).unwrap();
    cred
}

fn set(caps: &[Cap]) -> CapSet {
    CapSet::of(caps)
}

fn exec(cred: &Cred) -> AfterExec {
    cred.after_exec(SetIds::default(), || panic!("nothing is gained"))
}

fn set_uid(uid: u32) -> SetIds {
    SetIds {
        uid: Some(uid),
        gid: None,
    }
}

#[test]
fn numbers_and_bits() {
    assert_eq!(CapSet::ALL.bits(), 0x1ff_ffff_ffff);
    assert_eq!(CapSet::from_bits(u64::MAX), CapSet::ALL);
    assert_eq!(CapSet::one(40), Some(set(&[Cap::CheckpointRestore])));
    assert_eq!(CapSet::one(41), None);
    assert_eq!(CapSet::FILES.bits(), 0x1_0800_021f);
}

#[test]
fn leaving_root_clears_all_sets() {
    let mut c = Cred::root();
    c.caps.inheritable = set(&[Cap::Kill]);
    c.caps.ambient = set(&[Cap::Kill]);
    c.setuid(UID).unwrap();
    assert_eq!(
        (c.caps.permitted, c.caps.effective, c.caps.ambient),
        (CapSet::EMPTY, CapSet::EMPTY, CapSet::EMPTY)
    );
    assert_eq!(c.caps.inheritable, set(&[Cap::Kill]));
    assert_eq!(c.caps.bounding, CapSet::ALL);
    assert_eq!(c.setuid(0), Err(NotPermitted));
}

#[test]
fn keeping_capabilities_keeps_the_permitted_set() {
    let mut c = Cred::root();
    c.caps.inheritable = CapSet::ALL;
    c.caps.ambient = set(&[Cap::Kill]);
    c.set_keep_caps(true).unwrap();
    c.setresuid(UID, UID, UID).unwrap();
    assert_eq!(c.caps.permitted, CapSet::ALL);
    assert_eq!(c.caps.effective, CapSet::EMPTY);
    assert_eq!(c.caps.ambient, CapSet::EMPTY);
    // It ends at exec, where the user gets no capabilities.
    let after = exec(&c);
    assert_eq!(after.cred.caps.permitted, CapSet::EMPTY);
    assert!(!after.cred.secure_bits.has(SecureBits::KEEP_CAPS));
}

#[test]
fn the_effective_user_switches_the_effective_set() {
    let mut c = Cred::root();
    c.setresuid(u32::MAX, UID, u32::MAX).unwrap();
    assert_eq!(c.caps.effective, CapSet::EMPTY);
    assert_eq!(c.caps.permitted, CapSet::ALL);
    c.setreuid(u32::MAX, 0).unwrap();
    assert_eq!(c.caps.effective, CapSet::ALL);
    // setuid(2) without the capability changes only the effective user.
    let mut c = Cred::root();
    c.setresuid(UID, 0, UID).unwrap();
    c.caps.effective = c.caps.effective.without(set(&[Cap::Setuid]));
    c.setuid(UID).unwrap();
    assert_eq!((c.uid, c.euid, c.suid), (UID, UID, UID));
    assert_eq!(c.caps.permitted, CapSet::EMPTY);
}

#[test]
fn leaving_root_clears_what_was_made_effective_without_it() {
    let mut c = Cred::root();
    c.setresuid(u32::MAX, UID, u32::MAX).unwrap();
    c.set_caps(CapSet::ALL, CapSet::ALL, CapSet::EMPTY).unwrap();
    c.setresuid(UID, u32::MAX, UID).unwrap();
    assert_eq!(c.caps.effective, CapSet::EMPTY);
}

#[test]
fn the_real_and_the_saved_ids_may_be_taken_back() {
    for to in [UID, 5] {
        let mut c = user();
        (c.euid, c.suid, c.egid, c.sgid) = (7, 5, 7, 5);
        c.setuid(to).unwrap();
        c.setgid(to).unwrap();
        assert_eq!((c.uid, c.euid, c.suid, c.fsuid), (UID, to, 5, to));
        assert_eq!((c.gid, c.egid, c.sgid, c.fsgid), (UID, to, 5, to));
        assert_eq!(c.setuid(8), Err(NotPermitted));
        assert_eq!(c.setgid(8), Err(NotPermitted));
    }
}

#[test]
fn fixed_sets_do_not_follow_the_ids() {
    let mut c = Cred::root();
    c.set_secure_bits(SecureBits::NO_SETUID_FIXUP.bits())
        .unwrap();
    c.setuid(UID).unwrap();
    assert_eq!(c.caps, Caps::FULL);
    c.setfsuid(0);
    c.setfsuid(UID);
    assert_eq!(c.caps, Caps::FULL);
}

#[test]
fn the_file_user_takes_the_capabilities_of_files() {
    let mut c = Cred::root();
    assert_eq!(c.setfsuid(UID), 0);
    assert_eq!(c.caps.effective, CapSet::ALL.without(CapSet::FILES));
    assert_eq!(c.caps.permitted, CapSet::ALL);
    assert_eq!(c.setfsuid(u32::MAX), UID);
    assert_eq!(c.fsuid, UID);
    assert_eq!(c.setfsuid(0), UID);
    assert_eq!(c.caps.effective, CapSet::ALL);
    // Only those that are permitted.
    let mut c = Cred::root();
    c.setfsuid(UID);
    c.caps.permitted = set(&[Cap::Chown, Cap::Kill]);
    c.caps.effective = CapSet::EMPTY;
    c.setfsuid(0);
    assert_eq!(c.caps.effective, set(&[Cap::Chown]));
    let mut c = user();
    assert_eq!(c.setfsuid(0), UID);
    assert_eq!(c.fsuid, UID);
    assert_eq!((c.setfsgid(0), c.fsgid), (UID, UID));
    let mut c = Cred::root();
    assert_eq!((c.setfsgid(u32::MAX), c.fsgid), (0, 0));
    assert_eq!((c.setfsgid(UID), c.fsgid), (0, UID));
}

#[test]
fn each_kind_of_id_needs_its_capability() {
    let without = |cap| {
        let mut c = Cred::root();
        c.caps.effective = c.caps.effective.without(set(&[cap]));
        c
    };
    let mut c = without(Cap::Setuid);
    assert_eq!(c.setuid(UID), Err(NotPermitted));
    assert_eq!(c.setreuid(UID, u32::MAX), Err(NotPermitted));
    assert_eq!(c.setreuid(u32::MAX, UID), Err(NotPermitted));
    for ids in [
        [UID, u32::MAX, u32::MAX],
        [u32::MAX, UID, u32::MAX],
        [u32::MAX, u32::MAX, UID],
    ] {
        assert_eq!(c.setresuid(ids[0], ids[1], ids[2]), Err(NotPermitted));
    }
    c.setgid(UID).unwrap();
    let mut c = without(Cap::Setgid);
    assert_eq!(c.setgid(UID), Err(NotPermitted));
    assert_eq!(c.setregid(UID, u32::MAX), Err(NotPermitted));
    assert_eq!(c.setregid(u32::MAX, UID), Err(NotPermitted));
    assert_eq!(c.setresgid(u32::MAX, u32::MAX, UID), Err(NotPermitted));
    c.setuid(UID).unwrap();
}

/// Applies a call to the ids of a user acting as another one: returns the three ids and the one for files.
fn called(
    cap: Option<Cap>,
    call: impl Fn(&mut Cred) -> Result<(), NotPermitted>,
) -> Option<([u32; 4], [u32; 4])> {
    let mut c = user();
    (c.uid, c.euid, c.suid, c.fsuid) = (1, 2, 3, 9);
    (c.gid, c.egid, c.sgid, c.fsgid) = (1, 2, 3, 9);
    if let Some(cap) = cap {
        c.caps.permitted = set(&[cap]);
        c.caps.effective = c.caps.permitted;
    }
    call(&mut c).ok()?;
    Some((
        [c.uid, c.euid, c.suid, c.fsuid],
        [c.gid, c.egid, c.sgid, c.fsgid],
    ))
}

#[test]
fn real_and_effective_ids() {
    const KEEP: u32 = u32::MAX;
    for (r, e, after) in [
        (KEEP, KEEP, Some([1, 2, 3, 2])),
        (1, KEEP, Some([1, 2, 2, 2])),
        (2, KEEP, Some([2, 2, 2, 2])),
        (3, KEEP, None),
        (4, KEEP, None),
        (KEEP, 1, Some([1, 1, 3, 1])),
        (KEEP, 2, Some([1, 2, 2, 2])),
        (KEEP, 3, Some([1, 3, 3, 3])),
        (KEEP, 4, None),
        (2, 1, Some([2, 1, 1, 1])),
    ] {
        let users = called(None, |c| c.setreuid(r, e)).map(|ids| ids.0);
        assert_eq!(users, after, "setreuid({r}, {e})");
        let groups = called(None, |c| c.setregid(r, e)).map(|ids| ids.1);
        assert_eq!(groups, after, "setregid({r}, {e})");
    }
    let users = called(Some(Cap::Setuid), |c| c.setreuid(7, 8)).map(|ids| ids.0);
    assert_eq!(users, Some([7, 8, 8, 8]));
    let groups = called(Some(Cap::Setgid), |c| c.setregid(7, 8)).map(|ids| ids.1);
    assert_eq!(groups, Some([7, 8, 8, 8]));
}

#[test]
fn real_effective_and_saved_ids() {
    const KEEP: u32 = u32::MAX;
    for (r, e, s, after) in [
        (KEEP, KEEP, KEEP, Some([1, 2, 3, 2])),
        (3, 1, 2, Some([3, 1, 2, 1])),
        (2, KEEP, KEEP, Some([2, 2, 3, 2])),
        (4, KEEP, KEEP, None),
        (KEEP, 4, KEEP, None),
        (KEEP, KEEP, 4, None),
    ] {
        let users = called(None, |c| c.setresuid(r, e, s)).map(|ids| ids.0);
        assert_eq!(users, after, "setresuid({r}, {e}, {s})");
        let groups = called(None, |c| c.setresgid(r, e, s)).map(|ids| ids.1);
        assert_eq!(groups, after, "setresgid({r}, {e}, {s})");
    }
    let users = called(Some(Cap::Setuid), |c| c.setresuid(7, 8, 9)).map(|ids| ids.0);
    assert_eq!(users, Some([7, 8, 9, 8]));
    let groups = called(Some(Cap::Setgid), |c| c.setresgid(7, 8, 9)).map(|ids| ids.1);
    assert_eq!(groups, Some([7, 8, 9, 8]));
}

#[test]
fn saved_ids_follow() {
    let mut c = user();
    c.suid = 5;
    c.setreuid(u32::MAX, 5).unwrap();
    assert_eq!((c.uid, c.euid, c.suid), (UID, 5, 5));
    c.setreuid(5, UID).unwrap();
    assert_eq!((c.uid, c.euid, c.suid), (5, UID, UID));
    let mut c = user();
    c.sgid = 5;
    c.setregid(u32::MAX, 5).unwrap();
    assert_eq!((c.gid, c.egid, c.sgid, c.fsgid), (UID, 5, 5, 5));
}

#[test]
fn capset_gives_nothing_new() {
    let kill = set(&[Cap::Kill]);
    let mut c = Cred::root();
    c.set_caps(kill, kill, CapSet::EMPTY).unwrap();
    assert_eq!(
        c.set_caps(CapSet::EMPTY, CapSet::ALL, CapSet::EMPTY),
        Err(NotPermitted)
    );
    assert_eq!(
        c.set_caps(kill, CapSet::EMPTY, CapSet::EMPTY),
        Err(NotPermitted)
    );
    // Inheritable: from the permitted set, but with CAP_SETPCAP from the bounding set.
    assert_eq!(
        c.set_caps(kill, kill, set(&[Cap::Chown])),
        Err(NotPermitted)
    );
    c.set_caps(kill, kill, kill).unwrap();
    c.raise_ambient(kill).unwrap();
    c.set_caps(kill, kill, CapSet::EMPTY).unwrap();
    assert_eq!(c.caps.ambient, CapSet::EMPTY);
    c.set_caps(kill, kill, kill).unwrap();
    c.raise_ambient(kill).unwrap();
    c.set_caps(CapSet::EMPTY, CapSet::EMPTY, kill).unwrap();
    assert_eq!(c.caps.ambient, CapSet::EMPTY);

    let mut c = Cred::root();
    c.caps.permitted = set(&[Cap::Setpcap]);
    c.caps.effective = c.caps.permitted;
    c.caps.bounding = set(&[Cap::Chown]);
    c.set_caps(c.caps.effective, c.caps.permitted, set(&[Cap::Chown]))
        .unwrap();
    assert_eq!(
        c.set_caps(c.caps.effective, c.caps.permitted, kill),
        Err(NotPermitted)
    );
}

#[test]
fn the_ambient_set_stays_within_the_others() {
    let kill = set(&[Cap::Kill]);
    let mut c = Cred::root();
    assert_eq!(c.raise_ambient(kill), Err(NotPermitted));
    c.caps.inheritable = kill;
    c.raise_ambient(kill).unwrap();
    c.lower_ambient(kill);
    assert_eq!(c.caps.ambient, CapSet::EMPTY);
    c.set_secure_bits(SecureBits::NO_AMBIENT_RAISE.bits())
        .unwrap();
    assert_eq!(c.raise_ambient(kill), Err(NotPermitted));
    c.set_secure_bits(0).unwrap();
    c.caps.permitted = CapSet::EMPTY;
    assert_eq!(c.raise_ambient(kill), Err(NotPermitted));
}

#[test]
fn secure_bits_lock() {
    let mut c = Cred::root();
    assert_eq!(c.set_secure_bits(0x100), Err(NotPermitted));
    // Locked as they are: off.
    c.set_secure_bits(0xaa).unwrap();
    assert_eq!(c.set_secure_bits(0xab), Err(NotPermitted));
    assert_eq!(c.set_secure_bits(0), Err(NotPermitted));
    assert_eq!(c.set_keep_caps(true), Err(NotPermitted));
    c.set_secure_bits(0xaa).unwrap();
    c.caps.effective = CapSet::EMPTY;
    assert_eq!(c.set_secure_bits(0xaa), Err(NotPermitted));
    assert_eq!(c.drop_bounding(set(&[Cap::Kill])), Err(NotPermitted));
}

#[test]
fn exec_by_root_gives_what_the_bounding_set_allows() {
    let mut c = Cred::root();
    c.drop_bounding(set(&[Cap::SysTime])).unwrap();
    c.caps.inheritable = set(&[Cap::Kill]);
    c.caps.permitted = CapSet::EMPTY;
    c.caps.effective = CapSet::EMPTY;
    let after = c.after_exec(SetIds::default(), || false);
    let all = CapSet::ALL.without(set(&[Cap::SysTime]));
    assert_eq!(after.cred.caps.permitted, all);
    assert_eq!(after.cred.caps.effective, all);
    assert!(!after.secure);
    // Inherited beyond the bounding set.
    c.caps.inheritable = set(&[Cap::SysTime]);
    let after = c.after_exec(SetIds::default(), || false);
    assert_eq!(after.cred.caps.permitted, CapSet::ALL);
    // The capabilities that were given up return; the caller chose the memory layout without them.
    assert!(after.plain_layout);
}

#[test]
fn exec_without_root_gives_the_ambient_set() {
    let mut c = Cred::root();
    c.caps.inheritable = set(&[Cap::Kill]);
    c.set_secure_bits(SecureBits::NO_SETUID_FIXUP.bits() | SecureBits::NOROOT.bits())
        .unwrap();
    c.setuid(UID).unwrap();
    c.raise_ambient(set(&[Cap::Kill])).unwrap();
    let after = exec(&c);
    assert_eq!(after.cred.caps.permitted, set(&[Cap::Kill]));
    assert_eq!(after.cred.caps.effective, set(&[Cap::Kill]));
    assert_eq!(after.cred.caps.ambient, set(&[Cap::Kill]));
    assert!(!after.secure && after.dumpable);
    // A set-user-ID program has its own capabilities; with NOROOT there are none.
    let after = c.after_exec(set_uid(0), || false);
    assert_eq!(after.cred.euid, 0);
    assert_eq!(after.cred.caps.permitted, CapSet::EMPTY);
    assert_eq!(after.cred.caps.ambient, CapSet::EMPTY);
    assert!(after.secure);
}

#[test]
fn exec_of_a_set_user_id_program() {
    let c = user();
    let after = c.after_exec(set_uid(0), || false);
    assert_eq!((after.cred.uid, after.cred.euid), (UID, 0));
    assert_eq!((after.cred.suid, after.cred.fsuid), (0, 0));
    assert_eq!(after.cred.caps.effective, CapSet::ALL);
    assert!(after.secure && after.plain_layout && !after.dumpable);
    // Set-user-ID to another user: no capabilities, but secure.
    let after = c.after_exec(set_uid(7), || false);
    assert_eq!(after.cred.euid, 7);
    assert_eq!(after.cred.caps.permitted, CapSet::EMPTY);
    assert!(after.secure && after.plain_layout && !after.dumpable);
    let group = SetIds {
        uid: None,
        gid: Some(7),
    };
    let after = c.after_exec(group, || false);
    assert_eq!((after.cred.egid, after.cred.sgid), (7, 7));
    assert!(after.secure && after.plain_layout && !after.dumpable);
    // Set-user-ID to the same user: no effect except the plain layout.
    let after = c.after_exec(set_uid(UID), || panic!("nothing is gained"));
    assert!(!after.secure && after.plain_layout && after.dumpable);
}

#[test]
fn exec_gives_nothing_to_what_is_shared() {
    let c = user();
    let after = c.after_exec(set_uid(0), || true);
    assert_eq!((after.cred.euid, after.cred.suid), (UID, UID));
    assert_eq!(after.cred.caps.permitted, CapSet::EMPTY);
    assert_eq!(after.cred.caps.effective, CapSet::EMPTY);
    // The program is not told that the privileges were denied.
    assert!(after.secure && after.plain_layout);
    // A process that may take any user id keeps the ids, but gains no capability.
    let mut c = user();
    c.caps.permitted = set(&[Cap::Setuid]);
    c.caps.effective = c.caps.permitted;
    let after = c.after_exec(set_uid(0), || true);
    assert_eq!(after.cred.euid, 0);
    assert_eq!(after.cred.caps.permitted, set(&[Cap::Setuid]));
}

#[test]
fn exec_without_new_privileges() {
    let mut c = user();
    c.no_new_privs = true;
    let after = c.after_exec(set_uid(0), || false);
    assert_eq!(after.cred.euid, UID);
    assert!(!after.secure && !after.plain_layout && after.dumpable);
    assert!(after.cred.no_new_privs);
    // A real root that has given up its capabilities does not get them back.
    let mut c = Cred::root();
    c.no_new_privs = true;
    c.set_caps(CapSet::EMPTY, CapSet::EMPTY, CapSet::EMPTY)
        .unwrap();
    let after = c.after_exec(SetIds::default(), || false);
    assert_eq!(after.cred.caps.permitted, CapSet::EMPTY);
}

#[test]
fn exec_by_a_process_of_two_users_is_secure() {
    let mut c = user();
    c.euid = 7;
    let after = c.after_exec(SetIds::default(), || false);
    assert_eq!((after.cred.euid, after.cred.suid), (7, 7));
    assert!(after.secure && !after.dumpable && !after.plain_layout);
    // Only the real user is root: permitted, not effective.
    let mut c = Cred::root();
    c.setresuid(u32::MAX, UID, u32::MAX).unwrap();
    let after = c.after_exec(SetIds::default(), || false);
    assert_eq!(after.cred.caps.permitted, CapSet::ALL);
    assert_eq!(after.cred.caps.effective, CapSet::EMPTY);
    assert!(after.secure && !after.dumpable);
}

#[test]
fn looking_asks_for_all_ids_dumpable_memory_and_no_more_power() {
    let (root, me) = (Cred::root(), user());
    let may = |me: &Cred, it: &Cred| me.may_look(it, true, LookAs::Files);
    assert!(may(&me, &user()) && may(&root, &user()));
    assert!(!may(&me, &root));
    assert!(!me.may_look(&user(), false, LookAs::Files));
    assert!(root.may_look(&user(), false, LookAs::Files));
    let changes: [fn(&mut Cred); 6] = [
        |c| c.uid = 7,
        |c| c.euid = 7,
        |c| c.suid = 7,
        |c| c.gid = 7,
        |c| c.egid = 7,
        |c| c.sgid = 7,
    ];
    for change in changes {
        let mut it = user();
        change(&mut it);
        assert!(!may(&me, &it));
    }
    let mut it = user();
    it.fsuid = 7;
    it.caps.effective = CapSet::ALL;
    assert!(may(&me, &it));
    it.caps.permitted = set(&[Cap::Kill]);
    assert!(!may(&me, &it));
    let mut tracer = user();
    tracer.caps.effective = set(&[Cap::SysPtrace]);
    assert!(may(&tracer, &root));
    // By the ids for files, or by the real ids.
    let mut mixed = user();
    mixed.fsuid = 7;
    assert!(!may(&mixed, &user()) && mixed.may_look(&user(), true, LookAs::Real));
    let mut mixed = user();
    (mixed.uid, mixed.gid) = (7, 7);
    assert!(may(&mixed, &user()) && !mixed.may_look(&user(), true, LookAs::Real));
    let mut powers = user();
    powers.caps.permitted = set(&[Cap::Kill]);
    assert!(!may(&powers, &it) && powers.may_look(&it, true, LookAs::Real));
}

#[test]
fn changed_credentials_expose_memory() {
    let root = Cred::root();
    assert!(root.exposed_by(&user()));
    assert!(!root.exposed_by(&root));
    let mut fewer = root.clone();
    fewer.caps.permitted = CapSet::EMPTY;
    assert!(!root.exposed_by(&fewer) && fewer.exposed_by(&root));
    let changes: [fn(&mut Cred); 4] = [
        |c| c.euid = 7,
        |c| c.egid = 7,
        |c| c.fsuid = 7,
        |c| c.fsgid = 7,
    ];
    for change in changes {
        let mut new = user();
        change(&mut new);
        assert!(user().exposed_by(&new));
    }
}

#[test]
fn access_asks_about_the_real_user() {
    let mut c = user();
    assert!(!c.differs_from_real());
    (c.euid, c.fsuid) = (0, 0);
    c.caps.effective = CapSet::ALL;
    assert!(c.differs_from_real());
    let real = c.real();
    assert_eq!((real.fsuid, real.caps.effective), (UID, CapSet::EMPTY));
    assert!(!Cred::root().differs_from_real());
    // The ids are the same, the sets are not.
    let mut c = user();
    c.caps.effective = set(&[Cap::DacOverride]);
    assert!(c.differs_from_real());
    assert_eq!(c.real().caps.effective, CapSet::EMPTY);
    let mut c = Cred::root();
    c.caps.effective = CapSet::EMPTY;
    assert!(c.differs_from_real());
    assert_eq!(c.real().caps.effective, CapSet::ALL);
    c.secure_bits = SecureBits::NO_SETUID_FIXUP;
    assert!(!c.differs_from_real());
    assert_eq!(c.real().caps.effective, CapSet::EMPTY);
}

#[test]
fn a_process_is_its_users_unless_it_has_more_rights() {
    let me = user();
    let with_root = me.after_exec(set_uid(0), || false).cred;
    assert!(me.owns(&user()) && me.covers(&user()));
    assert!(me.owns(&with_root) && !me.covers(&with_root));
    assert!(Cred::root().owns(&with_root) && Cred::root().covers(&with_root));
    let other = me.after_exec(set_uid(7), || false).cred;
    assert!(me.owns(&other) && me.covers(&other));
    assert!(!other.owns(&me) && !me.owns(&Cred::root()));
}

#[test]
fn signals_and_groups() {
    let mut me = user();
    assert!(!me.may_signal(&Cred::root()));
    assert!(Cred::root().may_signal(&user()));
    let mut it = Cred::root();
    it.suid = UID;
    assert!(me.may_signal(&it));
    it = Cred::root();
    it.euid = UID;
    assert!(!me.may_signal(&it));
    me.caps.effective = set(&[Cap::Kill]);
    assert!(me.may_signal(&it));
    me.groups = Some(Arc::new(alloc::vec![3, 5, 9]));
    assert!(me.in_group(5) && me.in_group(UID) && !me.in_group(4));
}
