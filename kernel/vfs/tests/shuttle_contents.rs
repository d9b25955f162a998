//! Contents of files used by one CPU while the other takes the files' names or changes their sizes, with a switch possible at every
//! access to an atomic.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p vfs --release --test shuttle_contents`; `PANTALA_SCHEDULES` says how many schedules
//! each test tries.
#![cfg(shuttle)]

mod support;
mod support_names;

use hal::uio::IoBuf;
use support::threads::{Stopped, everywhere, stop_everywhere};
use support::{Calls, on};
use support_names::{both, inode, set_mode};
use vfs::error::FsError::{self, Exists, NotFound};
use vfs::exec::ExecFile;
use vfs::file::o;
use vfs::rename::RenameMode::Replace;

/// Opens `/f` with `flags` while its name is removed; `first` says whether there is such a file at first. Returns what open(2)
/// and then a read of the file's only byte have answered.
fn open_beside_an_unlink(flags: u32, first: bool) -> Result<usize, FsError> {
    let calls = Calls::of_root();
    if first {
        calls.create("/f").unwrap();
    }
    let (opened, removed) = both(
        move |calls| {
            let file = calls.open("/f", flags)?;
            file.write_at(&mut IoBuf::Drain(b"1"), 0)?;
            file.read_at(&mut IoBuf::Fill(&mut [0; 2]), 0)
        },
        |calls| calls.unlink("/f"),
    );
    assert!(matches!(removed, Ok(()) | Err(NotFound)), "{removed:?}");
    assert!(removed.is_ok() || !first, "there was a name");
    opened
}

/// A program that takes a lock by a file removes the file when it is done, while others open it.
#[test]
fn an_open_that_creates_succeeds_while_the_name_is_removed() {
    for (flags, first) in [
        (o::RDWR | o::CREAT, true),
        (o::RDWR | o::CREAT | o::TRUNC, true),
        (o::RDWR | o::CREAT, false),
        (o::RDWR | o::CREAT | o::EXCL, false),
    ] {
        stop_everywhere(Stopped::Other, move || {
            on(2, move || {
                assert_eq!(open_beside_an_unlink(flags, first), Ok(1))
            });
        });
    }
}

#[test]
fn an_exclusive_open_creates_the_file_or_finds_it() {
    stop_everywhere(Stopped::Other, || {
        on(2, || {
            let opened = open_beside_an_unlink(o::RDWR | o::CREAT | o::EXCL, true);
            assert!(matches!(opened, Ok(1) | Err(Exists)), "{opened:?}");
        });
    });
}

#[test]
fn an_open_that_does_not_create_finds_the_file_or_no_name() {
    stop_everywhere(Stopped::Other, || {
        on(2, || {
            let opened = open_beside_an_unlink(o::RDWR, true);
            assert!(matches!(opened, Ok(1) | Err(NotFound)), "{opened:?}");
        });
    });
}

/// Checks that `open` succeeds while another file gets the name `/f`, which some file has all the time.
fn opens_beside_a_rename(open: fn(&Calls) -> Result<(), FsError>) {
    stop_everywhere(Stopped::Other, move || {
        on(2, move || {
            let calls = Calls::of_root();
            for name in ["/f", "/g"] {
                calls.create(name).unwrap();
                set_mode(name, 0o755);
            }
            let (opened, moved) = both(open, |calls| calls.rename("/g", "/f", Replace));
            assert_eq!((opened, moved), (Ok(()), Ok(())));
        });
    });
}

#[test]
fn a_name_that_is_replaced_can_always_be_opened() {
    opens_beside_a_rename(|calls| calls.open("/f", o::RDONLY).map(drop));
    opens_beside_a_rename(|calls| calls.open("/f", o::WRONLY | o::TRUNC).map(drop));
    opens_beside_a_rename(|calls| calls.open("/f", o::PATH).map(drop));
}

#[test]
fn a_program_that_is_replaced_can_always_be_executed() {
    opens_beside_a_rename(|_| ExecFile::open(vfs::FsContext::boot().context(), b"/f").map(drop));
}

#[test]
fn a_file_that_is_replaced_can_always_be_truncated() {
    opens_beside_a_rename(|calls| calls.truncate("/f", 10));
}

/// Closes a file at `/f` and then calls `open`, which succeeds, while the file's name goes by `take`.
fn opens_after_the_last_close(
    open: fn(&Calls) -> Result<(), FsError>,
    take: fn(&Calls) -> Result<(), FsError>,
) {
    stop_everywhere(Stopped::Other, move || {
        on(2, move || {
            let calls = Calls::of_root();
            for name in ["/f", "/g"] {
                calls.create(name).unwrap();
            }
            let file = calls.open("/f", o::RDONLY).unwrap();
            let (taken, opened) = both(take, |calls| {
                drop(file);
                open(calls)
            });
            assert_eq!((taken, opened), (Ok(()), Ok(())));
        });
    });
}

#[test]
fn a_name_that_is_replaced_can_be_opened_after_the_last_close_of_its_old_file() {
    let replace = |calls: &Calls| calls.rename("/g", "/f", Replace);
    opens_after_the_last_close(|calls| calls.open("/f", o::RDONLY).map(drop), replace);
}

#[test]
fn an_open_that_creates_succeeds_after_the_last_close_of_a_file_that_is_removed() {
    let create = |calls: &Calls| calls.open("/f", o::RDWR | o::CREAT).map(drop);
    opens_after_the_last_close(create, |calls| calls.unlink("/f"));
}

/// What fstat(2) has shown can be read.
#[test]
fn a_file_that_grows_has_the_bytes_that_its_size_says() {
    everywhere(|| {
        on(2, || {
            let calls = Calls::of_root();
            calls.create("/f").unwrap();
            let file = calls.open("/f", o::RDONLY).unwrap();
            let grown = inode("/f");
            let (changed, (shown, read)) = both(
                move |_| vfs::regular::truncate(&grown, 10, true),
                |_| {
                    let shown = file.inode().unwrap().size();
                    (shown, file.read_at(&mut IoBuf::Fill(&mut [0; 20]), 0))
                },
            );
            assert_eq!(changed, Ok(()));
            assert!(read.unwrap() as u64 >= shown, "{shown}: {read:?}");
        });
    });
}
