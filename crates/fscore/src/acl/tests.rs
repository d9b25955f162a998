use super::*;

const R: u16 = 4;
const W: u16 = 2;
const X: u16 = 1;

fn raw(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for &(tag, perm, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(perm.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

fn acl(entries: &[(u16, u16, u32)]) -> Acl {
    Acl::parse(&raw(entries))
        .expect("well-formed")
        .expect("not empty")
}

const N: u32 = u32::MAX;

/// Owner rwx, user 7 rw, group 20 r, group 30 w, mask, other nothing.
fn named(mask: u16) -> Acl {
    acl(&[
        (1, 7, N),
        (2, R | W, 7),
        (4, R, N),
        (8, W, 30),
        (0x10, mask, N),
        (0x20, 0, N),
    ])
}

fn grants(acl: &Acl, uid: u32, groups: &[u32], want: u16) -> bool {
    let subject = Subject {
        uid,
        in_group: |g| groups.contains(&g),
        owner: 1,
        owning_group: 20,
    };
    acl.grants(&subject, u32::from(want))
}

#[test]
fn bytes_become_the_list_and_back() {
    let list = named(7);
    assert!(list.is_valid() && list.entries().len() == 6);
    assert_eq!(list.bytes().expect("memory").len(), list.len());
    assert_eq!(Acl::parse(&list.bytes().expect("memory")), Ok(Some(list)));
    // The id of an entry without one is not kept.
    assert_eq!(
        acl(&[(1, 7, 5), (4, 0, 6), (0x20, 0, 0)]),
        acl(&[(1, 7, N), (4, 0, N), (0x20, 0, N)])
    );
}

#[test]
fn bytes_that_are_no_list_are_refused() {
    use AclError::{Malformed, Version};
    assert_eq!(Acl::parse(b""), Err(Malformed));
    assert_eq!(Acl::parse(&[2, 0, 0]), Err(Malformed));
    assert_eq!(Acl::parse(&[1, 0, 0, 0]), Err(Version));
    assert_eq!(Acl::parse(&[2, 0, 0, 1]), Err(Version));
    assert_eq!(Acl::parse(&[2, 0, 0, 0]), Ok(None));
    assert_eq!(Acl::parse(&raw(&[(1, 7, N)])[..11]), Err(Malformed));
    assert_eq!(Acl::parse(&raw(&[(3, 7, 1)])), Err(Malformed));
    assert_eq!(Acl::parse(&raw(&[(0x40, 7, 1)])), Err(Malformed));
    assert_eq!(Acl::parse(&raw(&[(2, 7, N)])), Err(Malformed));
    assert_eq!(Acl::parse(&raw(&[(8, 7, N)])), Err(Malformed));
}

#[test]
fn a_list_without_what_it_must_have_is_not_valid() {
    let all = [
        (1, 7, N),
        (2, 6, 7),
        (4, 4, N),
        (8, 2, 30),
        (0x10, 7, N),
        (0x20, 0, N),
    ];
    assert!(acl(&all).is_valid());
    // Only the named entries may be missing.
    for missing in 0..all.len() {
        let mut some = all.to_vec();
        some.remove(missing);
        assert_eq!(
            acl(&some).is_valid(),
            matches!(missing, 1 | 3),
            "without {missing}"
        );
    }
    assert!(acl(&[(1, 7, N), (4, 4, N), (0x20, 0, N)]).is_valid());
    assert!(acl(&[(1, 7, N), (4, 4, N), (0x10, 0, N), (0x20, 0, N)]).is_valid());
    // Only the named entries may be there twice.
    for twice in 0..all.len() {
        let mut more = all.to_vec();
        more.insert(twice, all[twice]);
        assert_eq!(
            acl(&more).is_valid(),
            matches!(twice, 1 | 3),
            "twice {twice}"
        );
    }
    for at in 1..all.len() {
        let mut turned = all.to_vec();
        turned.swap(at - 1, at);
        assert!(!acl(&turned).is_valid(), "turned at {at}");
    }
    for at in 0..all.len() {
        let mut odd = all.to_vec();
        odd[at].1 = 8;
        assert!(!acl(&odd).is_valid(), "bits at {at}");
    }
}

#[test]
fn the_mode_shows_the_mask_or_else_the_group() {
    assert_eq!(named(W).mode_bits(), 0o720);
    assert_eq!(
        acl(&[(1, 6, N), (4, 5, N), (0x20, 1, N)]).mode_bits(),
        0o651
    );
    assert!(acl(&[(1, 6, N), (4, 5, N), (0x20, 1, N)]).is_mode());
    assert!(!acl(&[(1, 6, N), (4, 5, N), (0x10, 5, N), (0x20, 1, N)]).is_mode());
    assert!(!named(7).is_mode());
}

#[test]
fn chmod_changes_the_mask_or_else_the_group() {
    let changed = named(7).with_mode(0o4651).expect("memory");
    let expected = [
        (1, 6, N),
        (2, R | W, 7),
        (4, R, N),
        (8, W, 30),
        (0x10, 5, N),
        (0x20, 1, N),
    ];
    assert_eq!(changed, acl(&expected));
    let plain = acl(&[(1, 7, N), (4, 7, N), (0x20, 7, N)]);
    assert_eq!(
        plain.with_mode(0o421),
        Ok(acl(&[(1, 4, N), (4, 2, N), (0x20, 1, N)]))
    );
}

#[test]
fn a_new_file_gets_what_both_permit() {
    let got = named(R | W).inherit(0o656).expect("memory");
    let expected = [
        (1, 6, N),
        (2, R | W, 7),
        (4, R, N),
        (8, W, 30),
        (0x10, R, N),
        (0x20, 0, N),
    ];
    assert_eq!((got.bits, got.acl), (0o640, Some(acl(&expected))));
    let plain = acl(&[(1, 7, N), (4, 5, N), (0x20, 0, N)]);
    assert_eq!(
        plain.inherit(0o666),
        Ok(Inherited {
            acl: None,
            bits: 0o640
        })
    );
}

#[test]
fn the_first_entry_that_fits_decides() {
    let all = named(7);
    assert!(grants(&all, 1, &[], R | W | X));
    assert!(grants(&all, 7, &[], R | W) && !grants(&all, 7, &[], X));
    // A named user is not looked for among the groups.
    assert!(!grants(&named(7), 7, &[20, 30], X));
    assert!(grants(&all, 8, &[20], R) && !grants(&all, 8, &[20], W));
    assert!(grants(&all, 8, &[30], W) && !grants(&all, 8, &[30], R));
    // One of the groups must grant all of it.
    assert!(grants(&all, 8, &[20, 30], W) && !grants(&all, 8, &[20, 30], R | W));
    assert!(!grants(&all, 8, &[], R));
}

#[test]
fn the_mask_limits_all_but_owner_and_others() {
    let list = acl(&[
        (1, 7, N),
        (2, 6, 7),
        (4, 6, N),
        (8, 6, 30),
        (0x10, R, N),
        (0x20, 6, N),
    ]);
    assert!(grants(&list, 1, &[], W));
    assert!(!grants(&list, 7, &[], W) && grants(&list, 7, &[], R));
    assert!(!grants(&list, 8, &[20], W) && grants(&list, 8, &[20], R));
    assert!(!grants(&list, 8, &[30], W) && grants(&list, 8, &[30], R));
    assert!(grants(&list, 8, &[], W));
    // A member of a group that grants too little is not one of the others.
    let list = acl(&[(1, 7, N), (4, 0, N), (8, 0, 30), (0x10, 7, N), (0x20, 7, N)]);
    assert!(!grants(&list, 8, &[20], R) && !grants(&list, 8, &[30], R));
    assert!(grants(&list, 8, &[31], R));
}
