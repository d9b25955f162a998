//! Names that are made when they are looked up, as in /proc: listings, paths through them, magic links, printed files.
#![cfg(not(shuttle))]

mod support;
mod support_names;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cred::Cred;
use hal::uio::IoBuf;
use support::{Calls, on};
use support_names::{Record, USER, View, bind, ino, mount_made, names, read_rest, umount, user};
use vfs::dynamic::{DynFile, DynLink, Dynamic, Fixed, FixedDir, Target, Text};
use vfs::error::FsError::{self, Access, Exists, Invalid, IsDir, Loop, NotDir, NotFound, Perm};
use vfs::error::Result;
use vfs::file::{Whence, o};
use vfs::full_name::name_in_fs;
use vfs::rename::RenameMode::Replace;

/// A link that leads to an open file or a directory, as those in /proc/PID do.
struct Magic(fn() -> Target);

impl DynLink for Magic {
    fn target(&self) -> Result<Target> {
        Ok((self.0)())
    }
    fn text(&self, out: &mut Text) -> Result<()> {
        out.push(b"magic");
        Ok(())
    }
}

fn place_of(path: &str) -> Target {
    Target::Place(Calls::of_root().follow(path).unwrap())
}

/// A directory whose names are magic links.
struct Links;

impl vfs::dynamic::DynDir for Links {
    fn lookup(&self, this: &vfs::inode::Inode, name: &[u8]) -> Result<Arc<vfs::inode::Inode>> {
        let target: fn() -> Target = match name {
            b"dir" => || place_of("/d"),
            b"file" => || place_of("/d/f"),
            b"text" => || Target::Text(b"/d".to_vec()),
            b"near" => || Target::Text(b"setting".to_vec()),
            b"ring" => || Target::Text(b"ring".to_vec()),
            _ => return Err(NotFound),
        };
        let link = Dynamic::Link(Box::new(Magic(target)));
        Ok(link.inode(this.dev, 77, 0o777, (0, 0)))
    }
    fn list(&self, _: &vfs::inode::Inode, _: u64, _: &mut vfs::dynamic::Emit) -> Result<()> {
        Ok(())
    }
}

/// Parts that a [`Parts`] has printed.
static PRINTED: AtomicUsize = AtomicUsize::new(0);

/// A file of three parts, `0000`, nothing, and `22`.
struct Parts;

impl DynFile for Parts {
    fn print(&self, _: &mut Text) -> Result<()> {
        Err(Invalid)
    }
    fn print_part(&self, from: u64, out: &mut Text) -> Result<Option<u64>> {
        PRINTED.fetch_add(1, Ordering::Relaxed);
        let (text, next): (&[u8], _) = match from {
            0 => (b"0000", Some(70)),
            70 => (b"", Some(5)),
            5 => (b"22", None),
            _ => return Err(NotFound),
        };
        put(out, text).map(|()| next)
    }
}

static TREE: &[(&str, Fixed)] = &[
    ("setting", Fixed::Setting(|out| put(out, b"7"), |_| Ok(()))),
    (
        "sub",
        Fixed::Dir(&[("one", Fixed::File(|out| put(out, b"1")))]),
    ),
    (
        "private",
        Fixed::Private(&[("two", Fixed::File(|out| put(out, b"2")))]),
    ),
    ("link", Fixed::Link("sub/one")),
    ("magic", Fixed::Made(|| Box::new(Links))),
    ("parts", Fixed::Judged(|| Box::new(Parts))),
];

fn put(out: &mut Text, bytes: &[u8]) -> Result<()> {
    out.push(bytes);
    Ok(())
}

/// The tree above mounted on `/p`, and a directory `/d` with a file.
fn with_made(check: impl FnOnce(&Calls) + Send + 'static) {
    on(1, || {
        let root = Calls::of_root();
        root.mkdir("/p").unwrap();
        root.mkdir("/d").unwrap();
        root.create("/d/f").unwrap();
        root.write("/d/f", 0, b"text").unwrap();
        mount_made("/p", FixedDir(TREE), 0o555).unwrap();
        check(&root);
    });
}

#[test]
fn a_directory_made_on_demand_is_listed_from_each_position() {
    with_made(|root| {
        let dir = root.open("/p", o::RDONLY).unwrap();
        let records: Vec<Record> = read_rest(&dir, 80).unwrap();
        assert_eq!(
            names(&records),
            ["setting", "sub", "private", "link", "magic", "parts"]
        );
        for (n, record) in records.iter().enumerate() {
            dir.seek(record.next as i64, Whence::Set).unwrap();
            assert_eq!(read_rest(&dir, 80).unwrap(), records[n + 1..]);
            if n >= 2 {
                assert_eq!(record.ino, ino(&format!("/p/{}", record.name)));
            }
        }
    });
}

#[test]
fn paths_lead_through_directories_made_on_demand() {
    with_made(|root| {
        assert_eq!(root.read("/p/sub/../sub/./one"), Ok(b"1".to_vec()));
        assert_eq!(root.read("/p/link"), Ok(b"1".to_vec()));
        assert_eq!(ino("/p/sub/../.."), ino("/"));
        assert_eq!(root.find("/p/absent").err(), Some(NotFound));
        assert_eq!(root.find("/p/setting/").err(), Some(NotDir));
        assert_eq!(root.find("/p/setting/x").err(), Some(NotDir));
        assert_eq!(root.find("/p/link/").err(), Some(NotDir));
        assert_eq!(
            root.open("/p/link", o::RDONLY | o::NOFOLLOW).err(),
            Some(Loop)
        );
        assert_eq!(root.open("/p/sub", o::RDONLY | o::DIRECTORY).err(), None);
        assert_eq!(
            root.open("/p/setting", o::RDONLY | o::DIRECTORY).err(),
            Some(NotDir)
        );
        let view = View::of(Cred::root());
        view.chdir("/p/sub").unwrap();
        assert_eq!(view.cwd(), Ok((String::from("/p/sub"), true)));
        assert!(view.open("../link", o::RDONLY).is_ok());
    });
}

#[test]
fn magic_links_lead_to_places_and_to_paths() {
    with_made(|root| {
        let at = |path: &str| root.follow(path).map(|place| place.dentry.inode.ino);
        for link in ["dir", "text"] {
            let path = format!("/p/magic/{link}");
            assert_eq!(at(&path), Ok(ino("/d")));
            assert_eq!(at(&format!("{path}/")), Ok(ino("/d")));
            assert_eq!(at(&format!("{path}/f")), Ok(ino("/d/f")));
            assert_eq!(at(&format!("{path}/../d/f")), Ok(ino("/d/f")));
            assert_eq!(root.find(&path).unwrap().dentry.inode.ino, 77, "the link");
            assert_eq!(root.create(&format!("{path}/{link}")), Ok(()));
        }
        assert_eq!(
            root.list("/d"),
            Ok(vec!["dir".into(), "f".into(), "text".into()])
        );
        assert_eq!(root.read("/p/magic/file"), Ok(b"text".to_vec()));
        assert_eq!(at("/p/magic/file/"), Err(NotDir));
        assert_eq!(at("/p/magic/file/x"), Err(NotDir));
        assert_eq!(
            at("/p/magic/near"),
            Err(NotFound),
            "it is a path from its directory"
        );
        assert_eq!(at("/p/magic/ring"), Err(Loop));
        assert_eq!(at("/p/magic/absent"), Err(NotFound));
        // Plain links lead to magic ones and back.
        root.symlink("p/magic/text", "/l").unwrap();
        root.symlink("/l/f", "/m").unwrap();
        assert_eq!(at("/m"), Ok(ino("/d/f")));
        let created = root.open("/p/magic/file", o::WRONLY | o::CREAT);
        assert_eq!(created.unwrap().inode().unwrap().ino, ino("/d/f"));
    });
}

#[test]
fn nothing_is_made_or_removed_in_a_directory_made_on_demand() {
    with_made(|root| {
        assert_eq!(root.mkdir("/p/new"), Err(NotFound));
        assert_eq!(root.unlink("/p/setting"), Err(Perm));
        assert_eq!(root.rmdir("/p/sub"), Err(Perm));
        assert_eq!(root.link("/d/f", "/p/new"), Err(NotFound));
        assert_eq!(root.rename("/p/setting", "/p/sub/one", Replace), Err(Perm));
        for to in ["/p/new", "/p/link"] {
            assert_eq!(root.rename("/p/absent", to, Replace), Err(NotFound));
        }
        assert_eq!(root.rename("/p/link", "/p/new", Replace), Err(NotFound));
        let create = |path| root.open(path, o::WRONLY | o::CREAT | o::EXCL).err();
        assert_eq!(create("/p/setting"), Some(Exists));
        assert_eq!(create("/p/new"), Some(NotFound));
        assert_eq!(root.read("/p/sub/one"), Ok(b"1".to_vec()));
    });
}

#[test]
fn a_name_made_on_demand_exists_and_another_does_not() {
    with_made(|root| {
        assert_eq!(root.mkdir("/p/sub"), Err(Exists));
        assert_eq!(root.link("/d/f", "/p/setting"), Err(Exists));
        assert_eq!(root.unlink("/p/absent"), Err(NotFound));
        assert_eq!(root.rmdir("/p/absent"), Err(NotFound));
        assert_eq!(root.rmdir("/p/setting"), Err(NotDir));
        assert_eq!(root.unlink("/p/sub"), Err(IsDir));
    });
}

#[test]
fn a_directory_made_on_demand_is_a_mount_point() {
    with_made(|root| {
        bind("/d", "/p/sub", 0).unwrap();
        assert_eq!(root.read("/p/sub/f"), Ok(b"text".to_vec()));
        assert_eq!(ino("/p/sub/.."), ino("/p"));
        bind("/d/f", "/p/private/two", 0).unwrap();
        assert_eq!(root.read("/p/private/two"), Ok(b"text".to_vec()));
        for (place, file, text) in [
            ("/p/sub", "/p/sub/one", b"1"),
            ("/p/private/two", "/p/private/two", b"2"),
        ] {
            assert_eq!(umount(place, false), Ok(()));
            assert_eq!(root.read(file), Ok(text.to_vec()));
        }
    });
}

#[test]
fn a_printed_file_is_read_by_parts_and_written_at_once() {
    with_made(|root| {
        let user = Calls::of(user(USER, &[]));
        assert_eq!(user.read("/p/sub/one"), Ok(b"1".to_vec()));
        assert_eq!(user.read("/p/private/two").err(), Some(Access));
        assert_eq!(user.open("/p/private", o::RDONLY).err(), Some(Access));
        assert_eq!(root.read("/p/private/two"), Ok(b"2".to_vec()));
        assert_eq!(user.open("/p/setting", o::WRONLY).err(), Some(Access));
        assert_eq!(root.write("/p/setting", 0, b"8"), Ok(1));
        assert_eq!(root.write("/p/setting", 0, &[b'8'; 4097]), Err(Invalid));
        assert_eq!(root.write("/p/sub/one", 0, b"8"), Err(FsError::Invalid));
        let file = root.open("/p/setting", o::RDWR).unwrap();
        let mut byte = [0];
        assert_eq!(file.read(&mut IoBuf::Fill(&mut byte)), Ok(1));
        assert_eq!(file.read(&mut IoBuf::Fill(&mut byte)), Ok(0));
        assert_eq!(file.seek(0, Whence::Set), Ok(0));
        assert_eq!(
            (file.read(&mut IoBuf::Fill(&mut byte)), byte),
            (Ok(1), *b"7")
        );
    });
}

#[test]
fn a_file_in_parts_is_read_as_a_whole() {
    with_made(|root| {
        let file = root.open("/p/parts", o::RDONLY).unwrap();
        let at = |pos: u64| -> Result<String> {
            let mut bytes = [b'-'; 3];
            let got = file.read_at(&mut IoBuf::Fill(&mut bytes), pos)?;
            Ok(String::from_utf8(bytes[..got].to_vec()).unwrap())
        };
        let is = |pos, text: &str, printed| {
            let before = PRINTED.load(Ordering::Relaxed);
            assert_eq!(at(pos), Ok(String::from(text)), "at {pos}");
            assert_eq!(
                PRINTED.load(Ordering::Relaxed) - before,
                printed,
                "at {pos}"
            );
        };
        // Beyond the end, from the beginning; then within what is there, and before it.
        is(6, "", 3);
        is(5, "2", 0);
        is(4, "22", 0);
        is(3, "0", 1);
        is(1, "000", 0);
        is(4, "22", 2);
        is(1000, "", 0);
        // From the start it is printed anew.
        is(0, "000", 1);
        is(0, "000", 1);
        let mut whole = Vec::new();
        loop {
            let mut bytes = [0; 3];
            match file.read(&mut IoBuf::Fill(&mut bytes)).unwrap() {
                0 => break,
                got => whole.extend_from_slice(&bytes[..got]),
            }
        }
        assert_eq!(whole, b"000022");
    });
}

/// What mountinfo shows of a bound directory.
#[test]
fn the_root_of_a_bind_has_its_path_in_its_file_system() {
    with_made(|root| {
        for dir in ["/d/sub", "/x"] {
            root.mkdir(dir).unwrap();
        }
        let of = |path| {
            let place = root.follow(path).unwrap();
            String::from_utf8(name_in_fs(&place.mount.root).unwrap()).unwrap()
        };
        assert_eq!((&*of("/"), &*of("/p")), ("/", "/"));
        bind("/d/sub", "/x", 0).unwrap();
        assert_eq!(of("/x"), "/d/sub");
        root.rename("/d/sub", "/moved", Replace).unwrap();
        assert_eq!(of("/x"), "/moved");
        root.rmdir("/moved").unwrap();
        assert_eq!(of("/x"), "/moved");
        umount("/x", false).unwrap();
        bind("/p/sub", "/x", 0).unwrap();
        assert_eq!(of("/x"), "/sub");
    });
}

const MIB: usize = 1 << 20;

#[test]
fn a_text_has_at_most_sixteen_mebibytes() {
    on(1, || {
        let piece = vec![b'x'; MIB];
        let mut text = Text::new();
        for _ in 0..16 {
            text.push(&piece);
        }
        assert_eq!(text.position(), 16 * MIB);
        assert_eq!(text.finish().map(|bytes| bytes.len()), Ok(16 * MIB));
    });
}

#[test]
fn what_follows_a_piece_that_does_not_fit_is_dropped_too() {
    on(1, || {
        let mut text = Text::new();
        text.push(b"head");
        text.push(&vec![b'x'; 16 * MIB]);
        let before = text.position();
        text.push(b"t");
        text.pad(0, 100);
        assert_eq!((before, text.position()), (4, 4));
        assert_eq!(text.finish().err(), Some(FsError::NoMemory));
    });
}
