//! Random calls on the file tree of a file system in memory, and on a reference: each result must be the same, and so must the
//! trees.
#![cfg(not(shuttle))]

mod reference;
#[path = "../support/mod.rs"]
mod support;

use reference::Tree;
use support::{Calls, on};
use vfs::rename::RenameMode;
use vm_host::Random;

/// One of several texts.
fn one<'a>(random: &mut Random, of: &[&'a str]) -> &'a str {
    of[random.below(of.len())]
}

/// A path of one to three names, of few: most of them exist now and then.
fn path(random: &mut Random) -> String {
    let names = ["a", "b", "c", "d"];
    (0..=random.below(3))
        .map(|_| format!("/{}", one(random, &names)))
        .collect()
}

/// Plays one call on both. A failure names it.
fn play(random: &mut Random, calls: &Calls, tree: &mut Tree) {
    let (path, other) = (path(random), path(random));
    let modes = [
        RenameMode::Replace,
        RenameMode::Replace,
        RenameMode::NoReplace,
        RenameMode::Exchange,
    ];
    macro_rules! both {
        ($name:ident($($arg:expr),*)) => {{
            let call = format!("{}{:?}", stringify!($name), ($(&$arg,)*));
            assert_eq!(calls.$name($($arg),*), tree.$name($($arg),*), "{call}");
        }};
    }
    match random.below(16) {
        0..=2 => both!(mkdir(&path)),
        3..=4 => both!(create(&path)),
        5 => {
            let to = one(random, &["a", "/b", "../c", "d/a", ".", "/"]);
            both!(symlink(to, &path))
        }
        6..=7 => {
            let (pos, len) = (random.below(9000) as u64, random.below(3000));
            let bytes: Vec<u8> = (0..len).map(|i| (i + len) as u8).collect();
            let call = format!("write {path} {pos} {len}");
            assert_eq!(
                calls.write(&path, pos, &bytes),
                tree.write(&path, pos, &bytes),
                "{call}"
            );
        }
        8 => {
            let size = random.below(12_000) as u64;
            both!(truncate(&path, size))
        }
        9 => both!(unlink(&path)),
        10 => both!(rmdir(&path)),
        11 => both!(link(&path, &other)),
        12..=14 => {
            let mode = modes[random.below(modes.len())];
            both!(rename(&path, &other, mode))
        }
        _ => both!(readlink(&path)),
    }
}

fn compare(calls: &Calls, tree: &mut Tree) {
    for path in tree.paths() {
        assert_eq!(calls.list(&path), tree.list(&path), "names in {path}");
        assert_eq!(calls.read(&path), tree.read(&path), "content of {path}");
        let stat = calls.follow(&path).map(|place| {
            let attr = place.dentry.inode.attr();
            let file = !place.dentry.inode.is_dir();
            (attr.nlink, file.then_some(attr.size))
        });
        assert_eq!(stat, tree.stat(&path), "links and size of {path}");
    }
}

fn random_calls(seed: u64) {
    on(1, move || {
        let (mut random, calls, mut tree) = (Random(seed), Calls::of_root(), Tree::new());
        for n in 0..3000 {
            play(&mut random, &calls, &mut tree);
            if n % 60 == 0 {
                compare(&calls, &mut tree);
            }
        }
        compare(&calls, &mut tree);
    });
}

#[test]
fn random_calls_as_in_the_reference_1() {
    random_calls(0x1234_5678_9abc_def1);
}

#[test]
fn random_calls_as_in_the_reference_2() {
    random_calls(0xdead_beef_1357_2468);
}

#[test]
fn random_calls_as_in_the_reference_3() {
    random_calls(0x0f1e_2d3c_4b5a_6978);
}
