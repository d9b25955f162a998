//! Random calls on a tree with mounts and links, and on a reference: each result must be the same, and each path must lead to the same
//! place from any root and any working directory.
#![cfg(not(shuttle))]

mod reference;
#[path = "../support/mod.rs"]
mod support;
#[path = "../support_names/mod.rs"]
mod support_names;

use cred::Cred;
use reference::{BY_ROOT, From, Places};
use support::{Calls, on};
use support_names::{USER, bind, mount_plain, set_mode, umount, user};
use vfs::context::Origin;
use vfs::error::FsError;
use vfs::mount;
use vfs::open::writable_dir;
use vfs::place::{Path, flag};
use vfs::rename::{self, RenameMode, Side};
use vfs::rights::may_rename;
use vfs::setattr::NewMode;
use vfs::tmpfs::{self, What};
use vfs::walk::{Last, Walk, Want};
use vm_host::Random;

type Result<R> = std::result::Result<R, FsError>;

/// The kernel's tree and the reference.
struct Both {
    calls: Calls,
    places: Places,
    random: Random,
}

fn numbers(place: &Path) -> (u32, u64) {
    (place.mount.id, place.dentry.inode.ino)
}

/// The numbers of the mount that was made last, and of its root: a path need not lead into it, for the root may be covered.
fn newest_mount() -> (u32, u64) {
    let mut newest = (0, 0);
    mount::for_each(|m| {
        newest = (m.id, m.root.inode.ino);
        Ok(())
    })
    .unwrap();
    newest
}

impl Both {
    fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.random.below(of.len())]
    }

    /// An absolute path of one to four names, of few.
    fn path(&mut self) -> String {
        (0..=self.random.below(4))
            .map(|_| format!("/{}", self.one(&["a", "b", "c", "d"])))
            .collect()
    }

    /// Any path: dots, further slashes, relative or not.
    fn odd_path(&mut self) -> String {
        let mut path = String::from(self.one(&["", "/", "./", "../", "//"]));
        for _ in 0..=self.random.below(6) {
            path.push_str(self.one(&["a", "b", "c", "d", "a", "b", "..", "..", "."]));
            path.push_str(self.one(&["/", "/", "/", "//"]));
        }
        if self.random.below(3) > 0 {
            path.truncate(path.trim_end_matches('/').len());
        }
        path
    }

    fn dir_of<'t>(&self, path: &'t str) -> Result<(Path, &'t [u8])> {
        let root = vfs::context::boot_root()?;
        let walk = Walk {
            cred: self.calls.cred(),
            root: Origin::At(root),
            base: Origin::At(root),
        };
        match walk.parent(path.as_bytes())? {
            (dir, Last::Name(name, _)) => Ok((dir, name)),
            _ => Err(FsError::Busy),
        }
    }

    fn make(&mut self, dir: bool, text: Option<&str>) {
        let path = self.path();
        let what = match text {
            Some(text) => What::Link(text.as_bytes()),
            None if dir => What::Dir,
            None => What::File,
        };
        let made = self.dir_of(&path).and_then(|(parent, name)| {
            tmpfs::create(&Cred::root(), &parent, name, &what, NewMode::exact(0o755))
        });
        let expected = self.places.may_make(&path);
        assert_eq!(made.as_ref().err(), expected.as_ref().err(), "make {path}");
        if let Ok(dentry) = made {
            self.places.make(&path, dentry.inode.ino, dir, text);
        }
    }

    fn remove(&mut self, as_dir: bool) {
        let path = self.path();
        let removed = match as_dir {
            true => self.calls.rmdir(&path),
            false => self.calls.unlink(&path),
        };
        let expected = self.places.remove(&path, as_dir);
        assert_eq!(removed, expected, "remove {path} {as_dir}");
    }

    fn rename(&mut self) {
        let (from, to) = (self.path(), self.path());
        let renamed = self.rename_in_kernel(&from, &to);
        assert_eq!(renamed, self.places.rename(&from, &to), "{from} to {to}");
    }

    fn rename_in_kernel(&self, from: &str, to: &str) -> Result<()> {
        let (from_dir, from) = self.dir_of(from)?;
        let (to_dir, to) = self.dir_of(to)?;
        if from_dir.mount.id != to_dir.mount.id {
            return Err(FsError::CrossDevice);
        }
        writable_dir(&from_dir)?;
        let side = |dir, name| Side {
            dir,
            name,
            slash: false,
        };
        let (from, to) = (side(&from_dir.dentry, from), side(&to_dir.dentry, to));
        let may = |step: rename::RenameStep| may_rename(self.calls.cred(), step);
        rename::rename(from, to, RenameMode::Replace, &may).map(|_| ())
    }

    fn mount(&mut self) {
        let path = self.path();
        if self
            .calls
            .follow(&path)
            .is_ok_and(|p| !p.dentry.inode.is_dir())
        {
            return;
        }
        let over = self.places.may_mount(&path);
        let mounted = mount_plain(&path);
        assert_eq!(mounted.err(), over.as_ref().err().copied(), "mount {path}");
        if let Ok(over) = over {
            let (id, ino) = newest_mount();
            self.places.mount(over, id, ino);
        }
    }

    fn bind(&mut self) {
        let (from, over) = (self.path(), self.path());
        let (Ok(from_place), Ok(over_place)) = (
            self.places.find(BY_ROOT, &from, true),
            self.places.may_mount(&over),
        ) else {
            return;
        };
        let is_dir = |path: &str| self.calls.follow(path).unwrap().dentry.inode.is_dir();
        if is_dir(&from) != is_dir(&over) {
            return;
        }
        let read_only = self.random.below(3) == 0;
        let flags = if read_only { flag::RDONLY } else { 0 };
        bind(&from, &over, flags).unwrap();
        let (id, _) = newest_mount();
        self.places.bind(from_place, over_place, id, read_only);
    }

    fn umount(&mut self) {
        let path = self.path();
        let detach = self.random.below(3) == 0;
        let result = umount(&path, detach);
        assert_eq!(result, self.places.umount(&path, detach), "umount {path}");
    }

    fn set_open(&mut self) {
        let (path, open) = (self.path(), self.random.below(3) > 0);
        if self.places.set_open(&path, open) {
            let place = self.calls.follow(&path).unwrap();
            let bits = if open { 0o755 } else { 0o700 };
            vfs::setattr::chmod(self.calls.cred(), &place.dentry.inode, bits).unwrap();
        }
    }

    /// Plays one call on both.
    fn play(&mut self) {
        let texts = [
            "a", "/b", "../c", "d/a", ".", "/", "..", "b/", "/a/b", "../../d",
        ];
        match self.random.below(20) {
            0..=5 => self.make(true, None),
            6 => self.make(false, None),
            7 | 8 => {
                let text = self.one(&texts);
                self.make(false, Some(text));
            }
            9 => self.remove(false),
            10 | 11 => self.remove(true),
            12 | 13 => self.rename(),
            14 => self.mount(),
            15 => self.bind(),
            16 | 17 => self.umount(),
            _ => self.set_open(),
        }
    }

    /// Looks a path up from a random root and a random working directory, by root and by a user.
    fn look(&mut self) {
        let (root, base) = (self.path(), self.path());
        let root = if self.random.below(2) == 0 {
            "/"
        } else {
            &root
        };
        let at = |path: &str| self.calls.follow(path).ok();
        let model = |path: &str| self.places.find(BY_ROOT, path, true).ok();
        let (Some(root_at), Some(base_at)) = (at(root), at(&base)) else {
            return;
        };
        let (root_model, base_model) = (model(root).unwrap(), model(&base).unwrap());
        for _ in 0..8 {
            let path = self.odd_path();
            let (follow, is_root_user) = (self.random.below(2) == 0, self.random.below(2) == 0);
            let cred = match is_root_user {
                true => Cred::root(),
                false => user(USER, &[]),
            };
            let walk = Walk {
                cred: &cred,
                root: Origin::At(&root_at),
                base: Origin::At(&base_at),
            };
            let want = Want {
                follow,
                directory: false,
            };
            let found = walk.find(path.as_bytes(), want).map(|p| numbers(&p));
            let from = From {
                root: root_model,
                base: base_model,
                is_root_user,
            };
            let expected = self.places.find(from, &path, follow);
            let expected = expected.map(|place| self.places.numbers(place));
            assert_eq!(found, expected, "{path:?} from {base} with root {root}");
        }
    }
}

fn random_calls(seed: u64) {
    on(1, move || {
        let calls = Calls::of_root();
        set_mode("/", 0o755);
        let top = calls.find("/").unwrap();
        let (id, ino) = numbers(&top);
        drop(top);
        let mut both = Both {
            calls,
            places: Places::new(ino, id),
            random: Random(seed),
        };
        for _ in 0..5000 {
            both.play();
            both.look();
        }
    });
}

#[test]
fn random_places_as_in_the_reference_1() {
    random_calls(0x1234_5678_9abc_def1);
}

#[test]
fn random_places_as_in_the_reference_2() {
    random_calls(0x00c0_ffee_1357_2468);
}

#[test]
fn random_places_as_in_the_reference_3() {
    random_calls(0x0f1e_2d3c_4b5a_6978);
}
