//! Unpacks the initramfs into the root file system.
//!
//! As on Linux, an image is a sequence of cpio archives, each plain or compressed with gzip, with zero bytes between
//! them. A defective archive ends the boot with a message that names the defect and its offset. An entry whose
//! parent directory does not exist is skipped with a message.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

use cred::Cred;
use fscore::cpio::{self, FileId, Header, NAME_LIMIT, Reader, Source};
use fscore::gzip::{self, is_gzip};
use fscore::path::PATH_MAX;
use vfs::context::{Origin, boot_root};
use vfs::error::{FsError, Result};
use vfs::inode::{Inode, mode};
use vfs::place::Path;
use vfs::setattr::NewMode;
use vfs::tmpfs::{self, What};
use vfs::walk::{Last, Walk, child};
use vfs::{open, regular};

/// Why the root could not be set up.
pub enum UnpackError {
    /// The archive is defective. The offset counts bytes of the image, or of what the compressed stream decompresses
    /// to.
    Archive {
        /// The defect.
        error: cpio::Error,
        /// Offset in the image at which the compressed stream begins, if the archive is compressed.
        compressed_at: Option<usize>,
    },
    /// A file of the archive could not be made.
    Entry {
        /// The entry's name in the archive.
        name: String,
        /// What the file system answered.
        error: FsError,
    },
    /// The file system itself could not be made.
    Setup(FsError),
}

impl fmt::Display for UnpackError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            UnpackError::Archive {
                error,
                compressed_at: None,
            } => {
                write!(
                    f,
                    "initramfs: {} (at byte {})",
                    error.reason.text(),
                    error.offset
                )
            }
            UnpackError::Archive {
                error,
                compressed_at: Some(at),
            } => write!(
                f,
                "initramfs: {} (at byte {} of the stream compressed at byte {at})",
                error.reason.text(),
                error.offset
            ),
            UnpackError::Entry { name, error } => {
                write!(f, "initramfs: cannot make {name}: {error:?}")
            }
            UnpackError::Setup(error) => write!(f, "cannot set up the root: {error:?}"),
        }
    }
}

impl fmt::Debug for UnpackError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Unpacks an image into the root file system.
///
/// # Errors
/// See [`UnpackError`]; the entries before the defect have been made.
pub fn unpack(image: &[u8]) -> Result<(), UnpackError> {
    let mut u = Unpacker {
        links: BTreeMap::new(),
        cred: Cred::root(),
    };
    let mut at = 0;
    loop {
        at += image[at..].iter().take_while(|&&b| b == 0).count();
        let rest = &image[at..];
        if rest.is_empty() {
            return Ok(());
        }
        if is_gzip(rest) {
            let mut stream = gzip::Decoder::new(rest);
            u.archives(&mut stream, Some(at))?;
            at = image.len() - stream.rest().len();
            continue;
        }
        match u.archives(rest, None) {
            // A plain archive may be followed directly by a compressed one.
            Err(UnpackError::Archive { error, .. })
                if error.reason == cpio::Reason::Magic
                    && error.offset > 0
                    && is_gzip(&rest[error.offset as usize..]) =>
            {
                at += error.offset as usize;
            }
            Err(UnpackError::Archive { error, .. }) => {
                let offset = error.offset + at as u64;
                let error = cpio::Error { offset, ..error };
                return Err(UnpackError::Archive {
                    error,
                    compressed_at: None,
                });
            }
            other => return other,
        }
    }
}

struct Unpacker {
    /// Inodes of files with several links. Cleared before each source, since the ids are those of
    /// one reader.
    links: BTreeMap<FileId, Arc<Inode>>,
    cred: Cred,
}

impl Unpacker {
    /// Unpacks the archives of `source`, which is compressed at offset `at` of the image, or not compressed.
    fn archives(&mut self, source: impl Source, at: Option<usize>) -> Result<(), UnpackError> {
        let archive = |error| UnpackError::Archive {
            error,
            compressed_at: at,
        };
        let mut name: Vec<u8> = vec![0; NAME_LIMIT];
        let mut reader = Reader::new(source);
        self.links.clear();
        loop {
            let Ok(buf) = <&mut [u8; NAME_LIMIT]>::try_from(&mut name[..]) else {
                return Err(UnpackError::Setup(FsError::Invalid));
            };
            let Some((header, len)) = reader.next(buf).map_err(archive)? else {
                return Ok(());
            };
            let entry = &name[..len];
            let made = self.entry(&header, entry, &mut reader).map_err(archive)?;
            match made {
                Ok(()) => {}
                // Linux skips an entry whose directory the archive does not contain.
                Err(FsError::NotFound) => {
                    let name = String::from_utf8_lossy(entry);
                    hal::kprintln!("initramfs: left out {name}: its directory is not there");
                }
                Err(error) => {
                    let name = String::from_utf8_lossy(entry).into_owned();
                    return Err(UnpackError::Entry { name, error });
                }
            }
        }
    }

    /// Makes the file of one entry. The outer error is the archive's, the inner one the file system's; after an inner error,
    /// the entry's data may be left, which the reader skips, and a file may be left with a part of them.
    fn entry<S: Source>(
        &mut self,
        h: &Header,
        name: &[u8],
        reader: &mut Reader<S>,
    ) -> Result<Result<()>, cpio::Error> {
        let mut text = Vec::new();
        if h.mode & mode::FMT == mode::LNK {
            if h.size as usize >= PATH_MAX {
                return Ok(Err(FsError::NameTooLong));
            }
            reader.data(|piece| text.extend_from_slice(piece))?;
        }
        let inode = match self.node(h, reader.file_id(), name, &text) {
            Ok(Some(inode)) => inode,
            Ok(None) => return Ok(Ok(())),
            Err(e) => return Ok(Err(e)),
        };
        let mut pos = 0;
        let written = reader.try_data(|piece| {
            regular::write_kernel(&inode, pos, piece)?;
            pos += piece.len() as u64;
            Ok(())
        })?;
        let t = i64::from(h.mtime) * 1_000_000_000;
        inode.set_owner(Some(h.uid), Some(h.gid));
        if h.mode & mode::FMT != mode::LNK {
            inode.set_permissions(h.mode);
        }
        inode.set_times(Some(t), Some(t));
        Ok(written)
    }

    /// Finds or makes the inode of an entry. A directory stays if there is one; what else has the name is replaced. `None`
    /// for an entry that names the root and is no directory, which is ignored.
    ///
    /// # Errors
    /// `NotFound` if the directory of the entry does not exist; those of the operations on the file system.
    fn node(
        &mut self,
        h: &Header,
        file: FileId,
        name: &[u8],
        text: &[u8],
    ) -> Result<Option<Arc<Inode>>> {
        let root = boot_root()?;
        let walk = Walk {
            cred: &self.cred,
            root: Origin::At(root),
            base: Origin::At(root),
        };
        let (dir, last) = walk.parent(name)?;
        let name = match last {
            Last::Name(name, _) => name,
            Last::Here | Last::Up | Last::Root => {
                let root = root.dentry.inode.clone();
                return Ok((h.mode & mode::FMT == mode::DIR).then_some(root));
            }
        };
        let what = match h.mode & mode::FMT {
            mode::REG => What::File,
            mode::DIR => What::Dir,
            mode::LNK => What::Link(text),
            mode::FIFO => What::Fifo,
            mode::SOCK => What::Socket,
            kind @ (mode::CHR | mode::BLK) => {
                What::Device(kind, vfs::devices::number(h.rdev.0, h.rdev.1))
            }
            _ => return Err(FsError::Invalid),
        };
        if let Ok(old) = child(&dir, name) {
            if old.dentry.inode.is_dir() && matches!(what, What::Dir) {
                return Ok(Some(old.dentry.inode.clone()));
            }
            replace(&walk, &dir, name, old.dentry.inode.is_dir())?;
        }
        let several = h.nlink > 1 && !matches!(what, What::Dir);
        if let Some(inode) = self.links.get(&file).filter(|_| several) {
            tmpfs::link(&self.cred, inode, &dir, name, true)?;
            return Ok(Some(inode.clone()));
        }
        let dentry = tmpfs::create(&self.cred, &dir, name, &what, NewMode::exact(h.mode))?;
        if several {
            self.links.insert(file, dentry.inode.clone());
        }
        Ok(Some(dentry.inode.clone()))
    }
}

/// Removes the file or empty directory `name`, which a later entry of the archive replaces.
fn replace(walk: &Walk, dir: &Path, name: &[u8], is_dir: bool) -> Result<()> {
    let walk = Walk {
        base: Origin::At(dir),
        ..*walk
    };
    if is_dir {
        open::rmdir(&walk, name)
    } else {
        open::unlink(&walk, name)
    }
}
