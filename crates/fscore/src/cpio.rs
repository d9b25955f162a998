//! Reader for the "new ASCII" cpio format (`070701`, and `070702` with checksums).
//!
//! Guarantee: any byte string yields a finite sequence of entries or one [`Error`] with the
//! offset at which it was found; nothing is read outside the input. The input is consumed through
//! [`Source`], so that an archive can be unpacked while it is being decompressed: a header and a
//! name are copied out, file data is handed on piece by piece.
//!
//! Several archives may follow one another, with zero bytes between them, as in a Linux
//! initramfs.

/// Bytes of a header.
pub const HEADER: usize = 110;
const TRAILER: &[u8] = b"TRAILER!!!";
/// Longest name accepted, with its NUL.
pub const NAME_LIMIT: usize = 4096;

/// What is wrong with an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The bytes where a header must start are not a cpio magic number.
    Magic,
    /// A header field holds something other than hexadecimal digits.
    Digit,
    /// The input ends inside a header, a name or file data.
    Truncated,
    /// A name of zero bytes, too long, or without its NUL.
    Name,
    /// The data do not match the checksum in the header.
    Checksum,
    /// The source failed (a compressed stream was corrupt).
    Source,
}

impl Reason {
    /// A phrase for a message.
    pub fn text(self) -> &'static str {
        match self {
            Reason::Magic => "no cpio header here",
            Reason::Digit => "a header field is not hexadecimal",
            Reason::Truncated => "the archive ends in the middle of an entry",
            Reason::Name => "an entry's name is empty, too long or unterminated",
            Reason::Checksum => "an entry's checksum does not match its data",
            Reason::Source => "the compressed stream is corrupt",
        }
    }
}

/// A defect, and the offset in the (uncompressed) archive where it was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Error {
    /// What is wrong.
    pub reason: Reason,
    /// The offset.
    pub offset: u64,
}

/// The input of a [`Source`] is not what its format allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corrupt;

/// A stream of archive bytes.
pub trait Source {
    /// The bytes available; empty only at the end of the input. `Err` if the input is corrupt.
    fn fill(&mut self) -> Result<&[u8], Corrupt>;
    /// Consumes `n` of the bytes that `fill` returned.
    fn consume(&mut self, n: usize);
}

/// A whole archive in memory.
impl Source for &[u8] {
    fn fill(&mut self) -> Result<&[u8], Corrupt> {
        Ok(self)
    }
    fn consume(&mut self, n: usize) {
        *self = &self[n..];
    }
}

/// Lets a reader borrow the stream.
impl<S: Source> Source for &mut S {
    fn fill(&mut self) -> Result<&[u8], Corrupt> {
        (**self).fill()
    }
    fn consume(&mut self, n: usize) {
        (**self).consume(n);
    }
}

/// The fields of an entry's header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Inode number: entries of one archive with more than one link and equal `(dev, ino)` are one file; see [`FileId`].
    pub ino: u32,
    /// Type and permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Links in the archive's source tree.
    pub nlink: u32,
    /// Seconds since 1970.
    pub mtime: u32,
    /// Bytes of data.
    pub size: u32,
    /// Device that held the file, major and minor.
    pub dev: (u32, u32),
    /// Device that a device node names, major and minor.
    pub rdev: (u32, u32),
    check: u32,
    checked: bool,
}

/// What the names of one file have in common, among all entries of one [`Reader`].
///
/// Each archive numbers its files for itself: equal numbers in two archives that follow one another mean two files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileId {
    archive: u64,
    dev: (u32, u32),
    ino: u32,
}

/// Reads entries one after the other.
pub struct Reader<S> {
    source: S,
    offset: u64,
    data_left: u32,
    pad: u32,
    sum: u32,
    header: Header,
    /// Number of archives that have ended.
    ended: u64,
}

impl<S: Source> Reader<S> {
    /// Starts at the first byte of `source`.
    pub fn new(source: S) -> Self {
        Reader {
            source,
            offset: 0,
            data_left: 0,
            pad: 0,
            sum: 0,
            header: Header::default(),
            ended: 0,
        }
    }

    /// The file that the current entry names.
    pub fn file_id(&self) -> FileId {
        FileId {
            archive: self.ended,
            dev: self.header.dev,
            ino: self.header.ino,
        }
    }

    fn error<T>(&self, reason: Reason) -> Result<T, Error> {
        Err(Error {
            reason,
            offset: self.offset,
        })
    }

    /// Fills `out` with the next bytes. Fails with `Truncated` or `Source`, at the offset behind what it could read.
    fn exact(&mut self, mut out: &mut [u8]) -> Result<(), Error> {
        while !out.is_empty() {
            let offset = self.offset;
            let have = self.source.fill().map_err(|Corrupt| Error {
                reason: Reason::Source,
                offset,
            })?;
            if have.is_empty() {
                return self.error(Reason::Truncated);
            }
            let n = have.len().min(out.len());
            out[..n].copy_from_slice(&have[..n]);
            self.source.consume(n);
            self.offset += n as u64;
            out = &mut out[n..];
        }
        Ok(())
    }

    fn skip(&mut self, n: u32) -> Result<(), Error> {
        let mut pad = [0u8; 4];
        self.exact(&mut pad[..n as usize])
    }

    /// Reads the next header: skips zero padding between archives, and between entries as well. `false` at the end of input.
    fn find_header(&mut self, out: &mut [u8; HEADER]) -> Result<bool, Error> {
        loop {
            let offset = self.offset;
            let have = self.source.fill().map_err(|Corrupt| Error {
                reason: Reason::Source,
                offset,
            })?;
            if have.is_empty() {
                return Ok(false);
            }
            let zeros = have.iter().take_while(|&&b| b == 0).count();
            let more = zeros == have.len();
            self.source.consume(zeros);
            self.offset += zeros as u64;
            if !more {
                self.exact(out)?;
                return Ok(true);
            }
        }
    }

    /// Reads the next entry's header, and its name into `name`.
    ///
    /// `Ok(None)` at the end of the input. Skips data of the previous entry that the caller has not taken, but checks their
    /// checksum. Returns the header, and the length of the name without its NUL. A trailer is no entry: it ends an archive,
    /// so that the entries after it have other [`FileId`]s.
    pub fn next(&mut self, name: &mut [u8; NAME_LIMIT]) -> Result<Option<(Header, usize)>, Error> {
        loop {
            self.data(|_| ())?;
            let mut raw = [0u8; HEADER];
            let start = self.offset;
            if !self.find_header(&mut raw)? {
                return Ok(None);
            }
            let (header, name_len) = parse(&raw).map_err(|reason| Error {
                reason,
                offset: self.offset - HEADER as u64,
            })?;
            debug_assert!(self.offset >= start);
            let len = name_len as usize;
            if len == 0 || len > NAME_LIMIT {
                return self.error(Reason::Name);
            }
            self.exact(&mut name[..len])?;
            if name[len - 1] != 0 {
                return self.error(Reason::Name);
            }
            self.skip((4 - (HEADER as u32 + name_len) % 4) % 4)?;
            let text = name[..len].iter().position(|&b| b == 0).unwrap_or(len - 1);
            self.data_left = header.size;
            self.pad = (4 - header.size % 4) % 4;
            self.sum = 0;
            self.header = header;
            if &name[..text] != TRAILER {
                return Ok(Some((header, text)));
            }
            self.ended += 1;
        }
    }

    /// Passes the rest of the current entry's data to `sink`, piece by piece.
    pub fn data(&mut self, mut sink: impl FnMut(&[u8])) -> Result<(), Error> {
        self.try_data(|piece| {
            sink(piece);
            Ok::<(), core::convert::Infallible>(())
        })
        .map(|_| ())
    }

    /// Like [`Reader::data`] with a sink that may fail. Its error is the inner one and ends the reading: the piece that it got
    /// is counted in the checksum, but not consumed. The outer error is the archive's: a checksum is checked after the last
    /// piece, and not at all if the entry has no data.
    pub fn try_data<E>(
        &mut self,
        mut sink: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<Result<(), E>, Error> {
        if self.data_left == 0 && self.pad == 0 {
            return Ok(Ok(()));
        }
        while self.data_left > 0 {
            let offset = self.offset;
            let have = self.source.fill().map_err(|Corrupt| Error {
                reason: Reason::Source,
                offset,
            })?;
            if have.is_empty() {
                return self.error(Reason::Truncated);
            }
            let n = have.len().min(self.data_left as usize);
            if self.header.checked {
                for &b in &have[..n] {
                    self.sum = self.sum.wrapping_add(u32::from(b));
                }
            }
            if let Err(e) = sink(&have[..n]) {
                return Ok(Err(e));
            }
            self.source.consume(n);
            self.offset += n as u64;
            self.data_left -= n as u32;
        }
        let pad = core::mem::take(&mut self.pad);
        self.skip(pad)?;
        if self.header.checked && self.sum != self.header.check {
            return self.error(Reason::Checksum);
        }
        Ok(Ok(()))
    }
}

fn hex(field: &[u8]) -> Result<u32, Reason> {
    field.iter().try_fold(0u32, |v, &b| {
        let digit = (b as char).to_digit(16).ok_or(Reason::Digit)?;
        Ok(v << 4 | digit)
    })
}

/// Decodes a header; also returns the length of the name that follows, NUL included.
fn parse(raw: &[u8; HEADER]) -> Result<(Header, u32), Reason> {
    let checked = match &raw[..6] {
        b"070701" => false,
        b"070702" => true,
        _ => return Err(Reason::Magic),
    };
    let field = |i: usize| hex(&raw[6 + 8 * i..14 + 8 * i]);
    let header = Header {
        ino: field(0)?,
        mode: field(1)?,
        uid: field(2)?,
        gid: field(3)?,
        nlink: field(4)?,
        mtime: field(5)?,
        size: field(6)?,
        dev: (field(7)?, field(8)?),
        rdev: (field(9)?, field(10)?),
        check: field(12)?,
        checked,
    };
    Ok((header, field(11)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(magic: &str, name: &str, data: &[u8], check: u32) -> Vec<u8> {
        let f = |v: u32| format!("{v:08x}");
        let mut s = String::from(magic);
        for v in [
            1,
            0o100_644,
            0,
            0,
            1,
            5,
            data.len() as u32,
            0,
            0,
            0,
            0,
            name.len() as u32 + 1,
        ] {
            s += &f(v);
        }
        s += &f(check);
        let mut b = s.into_bytes();
        b.extend(name.as_bytes());
        b.push(0);
        while b.len() % 4 != 0 {
            b.push(0);
        }
        b.extend(data);
        while b.len() % 4 != 0 {
            b.push(0);
        }
        b
    }

    fn archive() -> Vec<u8> {
        let mut a = entry("070701", "hello", b"world!", 0);
        a.extend(entry("070701", "TRAILER!!!", b"", 0));
        a
    }

    fn names(bytes: &[u8]) -> Result<Vec<(String, Vec<u8>)>, Error> {
        let mut r = Reader::new(bytes);
        let mut name = [0; NAME_LIMIT];
        let mut out = Vec::new();
        while let Some((h, n)) = r.next(&mut name)? {
            let mut data = Vec::new();
            r.data(|p| data.extend_from_slice(p))?;
            assert_eq!(data.len(), h.size as usize);
            out.push((String::from_utf8(name[..n].to_vec()).unwrap(), data));
        }
        Ok(out)
    }

    #[test]
    fn concatenated_archives_with_padding() {
        let mut a = archive();
        a.extend([0; 512]);
        a.extend(archive());
        a.extend([0; 3]);
        let v = names(&a).unwrap();
        assert_eq!(v.len(), 2);
        assert_eq!(v[1], ("hello".into(), b"world!".to_vec()));
    }

    #[test]
    fn equal_inode_numbers_are_one_file_in_one_archive_only() {
        let mut a = entry("070701", "a", b"1", 0);
        a.extend(archive());
        a.extend(archive());
        let mut r = Reader::new(&a[..]);
        let mut name = [0; NAME_LIMIT];
        let [first, same, other] = [(); 3].map(|()| {
            assert!(r.next(&mut name).unwrap().is_some());
            r.file_id()
        });
        assert_eq!(first, same);
        assert_ne!(same, other);
    }

    #[test]
    fn data_not_taken_is_skipped() {
        let mut a = entry("070701", "a", &[1; 100], 0);
        a.extend(entry("070701", "b", b"x", 0));
        let mut r = Reader::new(&a[..]);
        let mut name = [0; NAME_LIMIT];
        assert!(r.next(&mut name).unwrap().is_some());
        let (_, n) = r.next(&mut name).unwrap().unwrap();
        assert_eq!(&name[..n], b"b");
    }

    #[test]
    fn every_truncation_is_an_error_or_shorter() {
        let a = archive();
        for cut in 1..a.len() {
            match names(&a[..cut]) {
                Ok(v) => assert!(v.len() <= 1, "cut at {cut}"),
                Err(e) => assert_eq!(e.reason, Reason::Truncated, "cut at {cut}"),
            }
        }
    }

    #[test]
    fn defects_are_named() {
        let mut a = archive();
        a[0] = b'9';
        assert_eq!(
            names(&a).unwrap_err(),
            Error {
                reason: Reason::Magic,
                offset: 0
            }
        );
        let mut a = archive();
        a[20] = b'z';
        assert_eq!(names(&a).unwrap_err().reason, Reason::Digit);
        let mut a = archive();
        a[94..102].copy_from_slice(b"ffffffff");
        assert_eq!(names(&a).unwrap_err().reason, Reason::Name);
        let a = entry("070702", "hello", b"ab", 0);
        assert_eq!(names(&a).unwrap_err().reason, Reason::Checksum);
        let a = entry("070702", "hello", b"ab", 97 + 98);
        assert_eq!(names(&a).unwrap().len(), 1);
    }
}
