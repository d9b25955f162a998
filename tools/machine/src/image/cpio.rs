//! Writes a tree as a cpio archive in the "newc" format, the one of an initramfs.
//!
//! The archive is the same bytes for the same tree: inode numbers count up, times are zero.

use super::tree::{Node, Owner, Tree};
use anyhow::{Context, Result};
use flate2::{Compression, write::GzEncoder};
use std::io::{BufWriter, Write};

/// The file type bits of a mode.
const DIRECTORY: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const SYMLINK: u32 = 0o120_000;
const CHARACTER: u32 = 0o020_000;

/// Writes `tree` to `out`.
///
/// # Errors
/// Writing fails, or a file is too large for the format (4 GiB).
pub fn write(tree: &Tree, out: impl Write, gzip: bool) -> Result<()> {
    let out = BufWriter::new(out);
    if gzip {
        let mut encoder = GzEncoder::new(out, Compression::fast());
        archive(tree, &mut encoder)?;
        encoder.finish()?.flush()?;
    } else {
        let mut out = out;
        archive(tree, &mut out)?;
        out.flush()?;
    }
    Ok(())
}

fn archive(tree: &Tree, out: &mut impl Write) -> Result<()> {
    let mut inode = 0;
    for (path, there) in tree.iter() {
        inode += 1;
        let (kind, data): (u32, &[u8]) = match &there.node {
            Node::Directory => (DIRECTORY, &[]),
            Node::File(bytes) => (FILE, bytes),
            Node::Symlink(target) => (SYMLINK, target.as_bytes()),
        };
        let mode = kind | there.mode;
        entry(out, inode, (mode, there.owner), (0, 0), path, data)?;
    }
    // The kernel opens it for init before anything can be mounted on /dev.
    entry(
        out,
        inode + 1,
        (CHARACTER | 0o600, (0, 0)),
        (5, 1),
        "dev/console",
        &[],
    )?;
    entry(out, 0, (0, (0, 0)), (0, 0), "TRAILER!!!", &[])
}

fn entry(
    out: &mut impl Write,
    inode: u32,
    (mode, (user, group)): (u32, Owner),
    device: (u32, u32),
    path: &str,
    data: &[u8],
) -> Result<()> {
    let size =
        u32::try_from(data.len()).with_context(|| format!("{path} is too large for cpio"))?;
    let links = if mode & DIRECTORY == DIRECTORY { 2 } else { 1 };
    let name_size = path.len() as u32 + 1;
    let fields = [
        inode, mode, user, group, links, 0, size, 0, 0, device.0, device.1, name_size, 0,
    ];
    write!(out, "070701")?;
    for field in fields {
        write!(out, "{field:08x}")?;
    }
    let header = 6 + 8 * fields.len() + name_size as usize;
    out.write_all(path.as_bytes())?;
    out.write_all(&[0])?;
    out.write_all(&[0; 3][..pad(header)])?;
    out.write_all(data)?;
    out.write_all(&[0; 3][..pad(data.len())])?;
    Ok(())
}

/// Bytes up to the next multiple of four.
fn pad(len: usize) -> usize {
    len.wrapping_neg() % 4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_aligned_and_the_trailer_comes_last() {
        let mut tree = Tree::default();
        tree.file("etc/x", 0o644, b"hello".to_vec());
        let mut bytes = Vec::new();
        write(&tree, &mut bytes, false).unwrap();
        assert_eq!(bytes.len() % 4, 0);
        let text = String::from_utf8_lossy(&bytes);
        let at = |needle: &str| text.find(needle).unwrap();
        assert!(at("etc\0") < at("etc/x\0") && at("etc/x\0") < at("hello"));
        assert!(at("hello") < at("dev/console") && at("dev/console") < at("TRAILER!!!"));
        assert_eq!((at("hello")) % 4, 0);
        assert_eq!(text.matches("070701").count(), 4);
    }
}
