//! The reference model: address spaces as the manual pages describe them, page by page.
//!
//! Slow and obviously right. A space is a map from page numbers to pages; a fork copies it; a private page has contents
//! of its own from its first write on. There are no entries, objects, layers, tables or caches, so a mistake in one of
//! these concepts of the VM cannot be repeated here.

use std::collections::BTreeMap;

use vm::space::{Advice, RemapArgs, RemapTarget};
use vm::{FaultError, MapProt, VmError};

use crate::Access;

/// Byte offsets of the words that tests use in a page.
pub const WORDS: [u64; 4] = [0, 8, 2048, 4088];
/// The contents of those words.
pub type Contents = [u64; WORDS.len()];

const PAGE: u64 = 4096;
/// Pages kept free below a range that grows down.
const GUARD: u64 = 256;

/// Pages that a range may grow by; tests either stay far below or go far beyond.
const STACK_LIMIT: u64 = 1024;

/// The source of a page's contents while it has none of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// Zeroes.
    Zero,
    /// A page of a file or of shared memory.
    File {
        /// Number of the file.
        file: usize,
        /// Page of the file.
        index: u64,
    },
}

/// A mapped page.
#[derive(Clone, Debug)]
pub struct Page {
    /// Allowed accesses.
    pub prot: MapProt,
    /// Accesses that mprotect may allow.
    pub maxprot: MapProt,
    /// Stores change the source.
    pub shared: bool,
    /// The source is a file that was given when the page was mapped.
    pub named: bool,
    /// Locked in memory.
    pub locked: bool,
    /// Children of a fork do not inherit it.
    pub dontfork: bool,
    /// Children of a fork get zeroes.
    pub wipe: bool,
    /// An access below extends it downwards.
    pub grows: bool,
    /// See [`Source`].
    pub source: Source,
    /// Private contents.
    pub own: Option<Contents>,
}

/// A file, or shared memory, whose size never changes.
#[derive(Clone, Default, Debug)]
pub struct File {
    /// Bytes.
    pub size: u64,
    /// Pages that are not zeroes.
    pub pages: BTreeMap<u64, Contents>,
}

impl File {
    fn has(&self, index: u64) -> bool {
        index * PAGE < self.size
    }

    /// Zeroes the words in a range of bytes.
    fn zero(&mut self, from: u64, to: u64) {
        for (index, contents) in &mut self.pages {
            for (word, offset) in contents.iter_mut().zip(WORDS) {
                if (from..to).contains(&(index * PAGE + offset)) {
                    *word = 0;
                }
            }
        }
    }

    /// ftruncate.
    pub fn truncate(&mut self, size: u64) {
        // Words stored beyond the end through a mapping stay if the last page grows.
        let from = if size < self.size {
            size
        } else {
            size.next_multiple_of(PAGE)
        };
        self.zero(from, u64::MAX);
        self.size = size;
    }

    /// fallocate(PUNCH_HOLE).
    pub fn punch(&mut self, from: u64, to: u64) {
        self.zero(from, to);
    }

    /// pwrite of one word.
    pub fn write(&mut self, index: u64, word: usize, value: u64) {
        self.pages.entry(index).or_default()[word] = value;
        self.size = self.size.max(index * PAGE + WORDS[word] + 8);
    }

    /// pread of one word; `None` at or beyond the end.
    pub fn read(&self, index: u64, word: usize) -> Option<u64> {
        (index * PAGE + WORDS[word] + 8 <= self.size)
            .then(|| self.pages.get(&index).map_or(0, |page| page[word]))
    }
}

/// An address space: page number → page.
#[derive(Clone, Default, Debug)]
pub struct Space {
    /// The pages.
    pub pages: BTreeMap<u64, Page>,
}

/// All spaces and files.
#[derive(Default, Debug)]
pub struct Model {
    /// By number; `None` after exit.
    pub spaces: Vec<Option<Space>>,
    /// By number.
    pub files: Vec<File>,
}

impl Space {
    /// Whether the whole range is mapped.
    pub fn covers(&self, at: u64, len: u64) -> bool {
        (at..at + len).all(|n| self.pages.contains_key(&n))
    }

    /// Whether nothing in the range is mapped.
    pub fn is_free(&self, at: u64, len: u64) -> bool {
        self.pages.range(at..at + len).next().is_none()
    }

    /// mmap of pages; `page(n)` is the `n`-th.
    pub fn map(&mut self, at: u64, len: u64, page: impl Fn(u64) -> Page) {
        self.unmap(at, len);
        self.pages.extend((0..len).map(|n| (at + n, page(n))));
    }

    /// munmap.
    pub fn unmap(&mut self, at: u64, len: u64) {
        for n in at..at + len {
            self.pages.remove(&n);
        }
    }

    /// mprotect.
    ///
    /// # Errors
    /// As [`vm::Space::protect`].
    pub fn protect(&mut self, at: u64, len: u64, prot: MapProt) -> Result<(), VmError> {
        if !self.covers(at, len) {
            return Err(VmError::NotMapped);
        }
        if self
            .pages
            .range(at..at + len)
            .any(|(_, page)| !page.maxprot.contains(prot))
        {
            return Err(VmError::Denied);
        }
        self.pages
            .range_mut(at..at + len)
            .for_each(|(_, page)| page.prot = prot);
        Ok(())
    }

    /// The child's space after a fork.
    pub fn fork(&self) -> Space {
        let mut child = self.clone();
        child.pages.retain(|_, page| !page.dontfork);
        for page in child.pages.values_mut() {
            page.locked = false;
            if page.wipe {
                page.own = None;
            }
        }
        child
    }

    /// The page that is `n` beyond `page`, at the end of a mapping that grows.
    fn continued(page: &Page, n: u64) -> Page {
        let source = match page.source {
            Source::Zero => Source::Zero,
            Source::File { file, index } => Source::File {
                file,
                index: index + n,
            },
        };
        Page {
            source,
            own: None,
            ..page.clone()
        }
    }

    /// mremap to the address that the VM has chosen.
    pub fn relocate(&mut self, old: u64, old_len: u64, at: u64, new_len: u64, keep: bool) {
        let moved = old_len.min(new_len);
        let pages: Vec<Page> = (0..moved).map(|n| self.pages[&(old + n)].clone()).collect();
        if keep {
            self.pages
                .range_mut(old..old + old_len)
                .for_each(|(_, page)| page.own = None);
        } else {
            self.unmap(old, old_len);
        }
        self.map(at, moved, |n| pages[n as usize].clone());
        self.extend(at + moved, new_len - moved);
    }

    /// Extends the mapping that ends at `at`.
    pub fn extend(&mut self, at: u64, len: u64) {
        if len > 0 {
            let last = self.pages[&(at - 1)].clone();
            self.map(at, len, |n| Space::continued(&last, n + 1));
        }
    }

    /// The result that mremap must have, as far as it does not depend on where the VM finds room.
    ///
    /// # Errors
    /// As [`vm::Space::remap`].
    pub fn may_remap(&self, args: &RemapArgs, low: u64, high: u64) -> Result<(), VmError> {
        let (old, old_len, new_len) = (args.old / PAGE, args.old_len / PAGE, args.new_len / PAGE);
        if new_len == 0 {
            return Err(VmError::Invalid);
        }
        if old_len == 0 {
            return match self.pages.get(&old) {
                None => Err(VmError::NotMapped),
                Some(page) if !page.shared => Err(VmError::Invalid),
                Some(_) if args.target == RemapTarget::Stay => Err(VmError::NoMemory),
                Some(_) => Ok(()),
            };
        }
        if !self.covers(old, old_len) {
            return Err(VmError::NotMapped);
        }
        if let RemapTarget::Fixed(at) = args.target {
            let at = at / PAGE;
            let apart = at + new_len <= old || old + old_len <= at;
            return if apart && at >= low && at + new_len <= high {
                Ok(())
            } else {
                Err(VmError::Invalid)
            };
        }
        if args.keep_old || (new_len > old_len && !self.is_free(old + old_len, new_len - old_len)) {
            return if args.target == RemapTarget::Stay {
                Err(VmError::NoMemory)
            } else {
                Ok(())
            };
        }
        Ok(())
    }

    /// Makes a second mapping of the object at `old`, from there on.
    pub fn duplicate(&mut self, old: u64, at: u64, len: u64) {
        let first = self.pages[&old].clone();
        self.map(at, len, |n| Space::continued(&first, n));
    }
}

impl Model {
    /// A space that has not exited.
    ///
    /// # Panics
    /// If it has exited.
    pub fn space(&mut self, space: usize) -> &mut Space {
        self.spaces[space].as_mut().expect("a living space")
    }

    /// So many pages of anonymous shared memory. Returns the number of the file that represents it.
    pub fn new_shared(&mut self, pages: u64) -> usize {
        self.files.push(File {
            size: pages * PAGE,
            pages: BTreeMap::new(),
        });
        self.files.len() - 1
    }

    /// madvise.
    ///
    /// # Errors
    /// As [`vm::Space::advise`].
    pub fn advise(
        &mut self,
        space: usize,
        at: u64,
        len: u64,
        advice: Advice,
    ) -> Result<(), VmError> {
        let covered = self.space(space).covers(at, len);
        let numbers: Vec<u64> = self
            .space(space)
            .pages
            .range(at..at + len)
            .map(|(n, _)| *n)
            .collect();
        if matches!(advice, Advice::DontNeed | Advice::Free) {
            let unfit = |page: &Page| {
                page.locked || (advice == Advice::Free && (page.shared || page.named))
            };
            if self
                .space(space)
                .pages
                .range(at..at + len)
                .any(|(_, page)| unfit(page))
            {
                return Err(VmError::Invalid);
            }
        }
        for n in numbers {
            let page = self.space(space).pages.get_mut(&n).expect("mapped");
            match advice {
                Advice::DontNeed | Advice::Free => page.own = None,
                Advice::DontFork => page.dontfork = true,
                Advice::DoFork => page.dontfork = false,
                Advice::WipeOnFork => page.wipe = true,
                Advice::KeepOnFork => page.wipe = false,
                Advice::Remove => {
                    let is_file = page.shared || page.named;
                    if !is_file || page.locked {
                        return Err(VmError::Invalid);
                    }
                    if !page.shared || !page.maxprot.contains(MapProt::WRITE) {
                        return Err(VmError::Denied);
                    }
                    if let Source::File { file, index } = page.source {
                        self.files[file].punch(index * PAGE, (index + 1) * PAGE);
                    }
                }
                _ => {}
            }
        }
        if covered {
            Ok(())
        } else {
            Err(VmError::NotMapped)
        }
    }

    /// The effect of an access on the space: ranges may grow down.
    ///
    /// # Errors
    /// The signal that the program gets.
    pub fn access(&mut self, space: usize, at: u64, access: Access) -> Result<(), FaultError> {
        self.grow_down(space, at);
        let page = self
            .space(space)
            .pages
            .get(&at)
            .ok_or(FaultError::NotMapped)?
            .clone();
        let allowed = match access {
            Access::Read => page.prot != MapProt::empty(),
            Access::Write => page.prot.contains(MapProt::WRITE),
            Access::Fetch => page.prot.contains(MapProt::EXEC),
        };
        if !allowed {
            return Err(FaultError::Denied);
        }
        if let Source::File { file, index } = page.source {
            if !self.files[file].has(index) {
                return Err(FaultError::Bus);
            }
            if access == Access::Write && !page.shared && page.own.is_none() {
                // From now on changes of the file are not visible here.
                let copy = std::array::from_fn(|word| self.load(space, at, word));
                self.space(space).pages.get_mut(&at).expect("mapped").own = Some(copy);
            }
        }
        Ok(())
    }

    /// Accesses all pages that can be accessed.
    pub fn populate(&mut self, space: usize, at: u64, len: u64) {
        for n in at..at + len {
            let write = self
                .space(space)
                .pages
                .get(&n)
                .is_some_and(|page| page.prot.contains(MapProt::WRITE));
            let _may_fail = self.access(space, n, if write { Access::Write } else { Access::Read });
        }
    }

    fn grow_down(&mut self, space: usize, at: u64) {
        let pages = &mut self.space(space).pages;
        let below = pages.range(..=at).next_back().map(|(n, _)| *n);
        let Some((&above, page)) = pages.range(at..).next() else {
            return;
        };
        let roomy = below.is_none_or(|below| at >= below + 1 + GUARD);
        if above > at && above - at < STACK_LIMIT && page.grows && roomy {
            let like = Page {
                own: None,
                ..page.clone()
            };
            self.space(space).map(at, above - at, |_| like.clone());
        }
    }

    /// The contents of a word, whether it may be read or not.
    pub fn load(&self, space: usize, at: u64, word: usize) -> u64 {
        let page = &self.spaces[space].as_ref().expect("a living space").pages[&at];
        match (page.own, page.source) {
            (Some(own), _) => own[word],
            (None, Source::Zero) => 0,
            (None, Source::File { file, index }) => self.files[file]
                .pages
                .get(&index)
                .map_or(0, |page| page[word]),
        }
    }

    /// A store that is allowed.
    pub fn store(&mut self, space: usize, at: u64, word: usize, value: u64) {
        let contents: Contents = std::array::from_fn(|word| self.load(space, at, word));
        let page = self.space(space).pages.get_mut(&at).expect("mapped");
        match (page.shared, page.source) {
            (true, Source::File { file, index }) => {
                self.files[file].pages.entry(index).or_default()[word] = value
            }
            _ => page.own.insert(contents)[word] = value,
        }
    }
}
