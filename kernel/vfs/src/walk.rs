//! Path lookup.
//!
//! Guarantee: a lookup through directories in memory takes no lock and no reference and writes no shared cache line; it costs
//! a hash and a comparison for each component. Mechanism: the walk runs under one [`CpuPin`], and borrows every dentry on its
//! way from the name tables, whose replaced parts the epoch keeps for a grace period. If it meets something that must be made
//! on demand (a name in procfs, a magic link), or too many components or nested links, or what only a lock can decide (whether
//! a mount stays, or what lies in a bound directory), it stops with references to the place that it has reached and a copy of
//! the rest of the path. The slow step is made with preemption on, and the walk goes on from there.

use alloc::sync::Arc;
use alloc::vec::Vec;

use cred::{Cred, Payer};
use fscore::path::{self, Component, MAX_LINKS, NAME_MAX};
use fscore::perm;
use ksync::CpuPin;
use task::current::current;

use super::ancestry;
use super::context::{FsContext, Origin};
use super::dentry::Dentry;
use super::dynamic::{Dynamic, Target};
use super::error::{FsError, Result};
use super::inode::Node;
use super::mount::{self, Leaving};
use super::place::{MountRef, Path};
use super::protect;
use super::rights::permitted;

/// What a lookup does with the last component.
#[derive(Clone, Copy, Debug, Default)]
pub struct Want {
    /// Whether to follow a symbolic link there.
    pub follow: bool,
    /// Whether to fail unless it is a directory.
    pub directory: bool,
}

impl Want {
    /// Follows a link.
    pub const FOLLOW: Want = Want {
        follow: true,
        directory: false,
    };
    /// Does not follow a link.
    pub const NOFOLLOW: Want = Want {
        follow: false,
        directory: false,
    };
    /// Follows a link, and fails unless it leads to a directory.
    pub const DIRECTORY: Want = Want {
        follow: true,
        directory: true,
    };
}

/// The wish of a lookup's caller, and the state of the lookup.
struct Aim {
    want: Want,
    /// Links followed so far.
    links: u32,
    /// Whether the text is the whole path: if it is only the path of the parent directory, a link at its end is in the middle
    /// of the whole path.
    whole: bool,
}

/// The credentials of a lookup, and where it begins.
pub struct Walk<'a> {
    /// Credentials for the permission to search directories.
    pub cred: &'a Cred,
    /// The root of the process.
    pub root: Origin<'a>,
    /// Where a relative path begins.
    pub base: Origin<'a>,
}

impl FsContext {
    /// A walk that begins at the working directory; its root is the context's.
    pub fn walk<'a>(&'a self, cred: &'a Cred) -> Walk<'a> {
        self.walk_from(cred, Origin::Cwd(self))
    }

    /// A walk that begins at `base`; its root is the context's.
    pub fn walk_from<'a>(&'a self, cred: &'a Cred, base: Origin<'a>) -> Walk<'a> {
        Walk {
            cred,
            root: Origin::Root(self),
            base,
        }
    }
}

/// The last component of a path, after the directory that holds it has been found.
pub enum Last<'a> {
    /// A name, and whether slashes follow it.
    Name(&'a [u8], bool),
    /// `.`
    Here,
    /// `..`
    Up,
    /// The path consists of slashes: it names the root.
    Root,
}

/// Nested texts (the path and those of links) that a walk holds without memory; with more of them the walk stops and takes
/// the slow step.
const NEST: usize = 6;

/// Components that a walk goes in one section with preemption off. Links may lead through tens of thousands of them.
const STRIDE: usize = 256;

/// The texts left to walk; the innermost is the last.
struct Pieces<'p> {
    text: [&'p [u8]; NEST],
    len: usize,
}

impl<'p> Pieces<'p> {
    fn new(path: &'p [u8]) -> Self {
        let mut text: [&[u8]; NEST] = [&[]; NEST];
        text[0] = path;
        Pieces { text, len: 1 }
    }

    /// Takes the next component: the name, whether it is the last one of all, and whether it is the last one and slashes
    /// follow it.
    fn next(&mut self) -> Option<(&'p [u8], bool, bool)> {
        while self.len > 0 {
            let top = &mut self.text[self.len - 1];
            let Some((name, rest)) = path::next(top) else {
                self.len -= 1;
                continue;
            };
            // Without the slashes before the next name, so that the test of the outer texts below looks at one byte of each.
            *top = path::trim_start(rest);
            let mut slash = false;
            if top.is_empty() {
                slash = !rest.is_empty();
                self.len -= 1;
            }
            let last = self.text[..self.len].iter().all(|t| path::is_done(t));
            return Some((name, last, last && slash));
        }
        None
    }

    fn push(&mut self, text: &'p [u8]) -> bool {
        if self.len == NEST {
            return false;
        }
        self.text[self.len] = text;
        self.len += 1;
        true
    }

    /// The texts left, joined into one, after `first`.
    fn join(&self, first: &[u8]) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        append(&mut out, first)?;
        for t in self.text[..self.len].iter().rev() {
            append(&mut out, b"/")?;
            append(&mut out, t)?;
        }
        Ok(out)
    }
}

/// Appends a part of what is left to walk: never more than a path and the texts of as many links as a walk follows.
fn append(out: &mut Vec<u8>, bytes: &[u8]) -> Result<()> {
    out.try_reserve(bytes.len())
        .map_err(|_| FsError::NoMemory)?;
    out.extend_from_slice(bytes);
    Ok(())
}

/// A place, borrowed.
type Spot<'p> = (&'p MountRef, &'p Arc<Dentry>);

/// How a walk under one pin ends.
enum Stop<'p> {
    /// At the end of the path.
    Final(Spot<'p>),
    /// Before a step that may sleep.
    Slow(Slow),
}

/// A slow step, from the place that a walk has reached, and the text that is left after it.
enum Slow {
    /// A name must be made on demand.
    Child(Child),
    /// More nested texts than `Pieces` can hold, or [`STRIDE`] components: the walk goes on from here.
    More { at: Path, rest: Vec<u8> },
    /// To the parent of a directory, by [`climb`].
    Up { at: Path, rest: Vec<u8> },
    /// The next name leads to a mount that may be leaving: the walk goes on from here once that is settled.
    Leaving { at: Path, rest: Vec<u8> },
}

/// A name that is made on demand, and what is left to walk after it.
struct Child {
    dir: Path,
    name: Vec<u8>,
    /// If only a slash is left, `/.`: a walk that goes on there must be in a directory.
    rest: Vec<u8>,
    /// Nothing but a slash is left.
    last: bool,
    /// A slash follows the name.
    slash: bool,
}

/// What a slow step leads to.
enum Next {
    /// A place, from which this text is left to walk.
    Rest(Path, Vec<u8>),
    /// The end of the path.
    End(Path),
}

fn own((mount, dentry): Spot) -> Path {
    Path {
        mount: mount.clone(),
        dentry: dentry.clone(),
    }
}

/// Goes from a mount point to the root of what is mounted on it, as often as there is such a mount.
fn cover<'p>(pin: &'p CpuPin, mut at: Spot<'p>) -> Result<Spot<'p>, Leaving> {
    while at.1.is_mountpoint() {
        match mount::covering(pin, at.0, at.1)? {
            Some(m) => at = (m, &m.root),
            None => break,
        }
    }
    Ok(at)
}

/// As [`cover`]. Sleeps while it is being decided whether such a mount stays.
fn covered(at: &Path) -> Path {
    loop {
        if let Ok(spot) = cover(&ksync::pin(), (&at.mount, &at.dentry)) {
            return own(spot);
        }
        mount::wait_for_leaving();
    }
}

/// Goes from a directory that is not the root of its mount to its parent. Sleeps.
///
/// # Errors
/// `NotFound` if the parent does not lie in what the mount shows; `Interrupted` if the caller is killed.
fn climb(at: &Path) -> Result<Path> {
    // Deep in a bound directory, thousands of steps take long.
    if current().kill_pending() {
        return Err(FsError::Interrupted);
    }
    Ok(covered(&Path {
        mount: at.mount.clone(),
        dentry: ancestry::parent_within(&at.dentry, &at.mount.root)?,
    }))
}

impl Walk<'_> {
    fn same(a: Spot, b: &Path) -> bool {
        a.0.id == b.mount.id && Arc::ptr_eq(a.1, &b.dentry)
    }

    /// The parent of a place, as `..` finds it: across mounts, but not above the process's root, nor out of what a mount shows
    /// of its file system. Fails with the place from which [`climb`] is to go on, if that cannot be told at once.
    fn up<'p>(&'p self, pin: &'p CpuPin, mut at: Spot<'p>) -> Result<Result<Spot<'p>, Spot<'p>>> {
        let root = self.root.path(pin)?;
        loop {
            if Self::same(at, root) {
                return Ok(Ok(at));
            }
            if Arc::ptr_eq(at.1, &at.0.root) {
                match &at.0.over {
                    Some((m, d)) => {
                        at = (m, d);
                        continue;
                    }
                    None => return Ok(Ok(at)),
                }
            }
            return Ok(match at.1.parent(pin) {
                Some(up) if at.0.shows_all() || ancestry::is_surely_within(pin, up, &at.0.root) => {
                    cover(pin, (at.0, up)).map_err(|Leaving| at)
                }
                _ => Err(at),
            });
        }
    }

    /// Walks as far as possible without sleeping: to the end of `text`, or to where a slow step is due. Counts the links that it
    /// follows in `aim`; a slash after the last one makes `aim` want a directory.
    fn fast<'p>(
        &'p self,
        pin: &'p CpuPin,
        start: Spot<'p>,
        text: &'p [u8],
        aim: &mut Aim,
    ) -> Result<Stop<'p>> {
        let mut at = start;
        let mut pieces = Pieces::new(text);
        let mut gone = 0;
        while let Some((name, last, slash)) = pieces.next() {
            gone += 1;
            if gone > STRIDE && !last {
                let rest = pieces.join(name)?;
                return Ok(Stop::Slow(Slow::More { at: own(at), rest }));
            }
            let inode = &at.1.inode;
            if !inode.is_dir() {
                return Err(FsError::NotDir);
            }
            permitted(self.cred, inode, perm::EXEC)?;
            match path::classify(name) {
                Component::Here => continue,
                Component::Up => match self.up(pin, at)? {
                    Ok(up) => {
                        at = up;
                        continue;
                    }
                    Err(from) => {
                        let (at, rest) = (own(from), pieces.join(b"")?);
                        return Ok(Stop::Slow(Slow::Up { at, rest }));
                    }
                },
                Component::Name(_) => {}
            }
            if name.len() > NAME_MAX {
                return Err(FsError::NameTooLong);
            }
            let Node::Dir(dir) = &inode.node else {
                let mut copy = Vec::new();
                append(&mut copy, name)?;
                let rest = pieces.join(if slash { b"/." } else { b"" })?;
                return Ok(Stop::Slow(Slow::Child(Child {
                    dir: own(at),
                    name: copy,
                    rest,
                    last,
                    slash,
                })));
            };
            let child = dir.find(pin, name).ok_or(FsError::NotFound)?;
            let Ok(next) = cover(pin, (at.0, child)) else {
                let mut rest = pieces.join(name)?;
                append(&mut rest, if slash { b"/" } else { b"" })?;
                return Ok(Stop::Slow(Slow::Leaving { at: own(at), rest }));
            };
            if let Node::Link(target) = &next.1.inode.node
                && (!last || slash || aim.want.follow)
            {
                count_link(&mut aim.links)?;
                if last && aim.whole {
                    protect::may_follow(self.cred, inode, &next.1.inode)?;
                }
                if slash {
                    // The link must lead to a directory, through whatever other links.
                    aim.want = Want::DIRECTORY;
                }
                if target.first() == Some(&b'/') {
                    let root = self.root.path(pin)?;
                    at = (&root.mount, &root.dentry);
                }
                if !pieces.push(target) {
                    let rest = pieces.join(target)?;
                    return Ok(Stop::Slow(Slow::More { at: own(at), rest }));
                }
                continue;
            }
            if slash && !next.1.inode.is_dir() {
                return Err(FsError::NotDir);
            }
            at = next;
        }
        if aim.want.directory && !at.1.inode.is_dir() {
            return Err(FsError::NotDir);
        }
        Ok(Stop::Final(at))
    }

    /// Resolves `text`, and calls `finish` with the place at its end, with preemption off and without a reference. May sleep
    /// before that.
    ///
    /// # Errors
    /// Those of path_resolution(7).
    pub fn resolve<R>(
        &self,
        text: &[u8],
        want: Want,
        finish: impl FnOnce(&CpuPin, &MountRef, &Arc<Dentry>) -> R,
    ) -> Result<R> {
        let mut aim = Aim {
            want,
            links: 0,
            whole: true,
        };
        self.resolve_to(text, &mut aim, finish)
    }

    fn resolve_to<R>(
        &self,
        text: &[u8],
        aim: &mut Aim,
        finish: impl FnOnce(&CpuPin, &MountRef, &Arc<Dentry>) -> R,
    ) -> Result<R> {
        if text.is_empty() {
            return Err(FsError::NotFound);
        }
        let mut owned: Option<(Path, Vec<u8>)> = None;
        loop {
            let slow = {
                let pin = ksync::pin();
                let (from, text): (&Path, &[u8]) = match &owned {
                    Some((at, rest)) => (at, rest),
                    None if text[0] == b'/' => (self.root.path(&pin)?, text),
                    None => (self.base.path(&pin)?, text),
                };
                let start = (&from.mount, &from.dentry);
                match self.fast(&pin, start, text, aim)? {
                    Stop::Final((m, d)) => return Ok(finish(&pin, m, d)),
                    Stop::Slow(slow) => slow,
                }
            };
            match self.slow_step(slow, aim)? {
                Next::Rest(at, rest) => owned = Some((at, rest)),
                Next::End(at) => return Ok(finish(&ksync::pin(), &at.mount, &at.dentry)),
            }
        }
    }

    /// Makes a step before which [`fast`](Self::fast) has stopped. Sleeps.
    fn slow_step(&self, slow: Slow, aim: &mut Aim) -> Result<Next> {
        match slow {
            Slow::More { at, rest } => Ok(Next::Rest(at, rest)),
            Slow::Leaving { at, rest } => {
                mount::wait_for_leaving();
                Ok(Next::Rest(at, rest))
            }
            Slow::Up { at, rest } => Ok(Next::Rest(climb(&at)?, rest)),
            Slow::Child(child) => self.made_step(child, aim),
        }
    }

    /// Makes the name, and follows it if it is a link that is to be followed.
    fn made_step(&self, child: Child, aim: &mut Aim) -> Result<Next> {
        let Child {
            dir,
            name,
            rest,
            last,
            slash,
        } = child;
        let at = on_demand(&dir, &name, self.cred.payer)?;
        let follow = !last || slash || aim.want.follow;
        match &at.dentry.inode.node {
            Node::Dynamic(Dynamic::Link(link)) if follow => {
                count_link(&mut aim.links)?;
                match link.target()? {
                    Target::Place(place) => Ok(Next::Rest(place, rest)),
                    Target::Text(mut to) => {
                        let absolute = to.first() == Some(&b'/');
                        append(&mut to, &rest)?;
                        let from = if absolute { self.root.owned()? } else { dir };
                        Ok(Next::Rest(from, to))
                    }
                }
            }
            _ if slash && !at.dentry.inode.is_dir() => Err(FsError::NotDir),
            _ if last && aim.want.directory && !at.dentry.inode.is_dir() => Err(FsError::NotDir),
            _ if last => Ok(Next::End(at)),
            _ => Ok(Next::Rest(at, rest)),
        }
    }

    /// Resolves `text`, and returns the place with a reference.
    pub fn find(&self, text: &[u8], want: Want) -> Result<Path> {
        self.find_counted(text, want, &mut 0)
    }

    /// As [`find`](Self::find), for a part of a lookup that has followed `links` so far; counts on.
    pub fn find_counted(&self, text: &[u8], want: Want, links: &mut u32) -> Result<Path> {
        let mut aim = Aim {
            want,
            links: *links,
            whole: true,
        };
        let found = self.resolve_to(text, &mut aim, |_, m, d| own((m, d)));
        *links = aim.links;
        found
    }

    /// Resolves all of the path but its last component. The caller may search the directory.
    pub fn parent<'t>(&self, text: &'t [u8]) -> Result<(Path, Last<'t>)> {
        self.parent_counted(text, &mut 0)
    }

    /// As [`parent`](Self::parent), for a part of a lookup that has followed `links` so far; counts on.
    pub fn parent_counted<'t>(&self, text: &'t [u8], links: &mut u32) -> Result<(Path, Last<'t>)> {
        if text.is_empty() {
            return Err(FsError::NotFound);
        }
        let (dir, name, slash) = path::split_last(text);
        if name.is_empty() {
            return Ok((self.root.owned()?, Last::Root));
        }
        let at = match dir {
            b"" => self.base.owned()?,
            dir => {
                let mut aim = Aim {
                    want: Want::DIRECTORY,
                    links: *links,
                    whole: false,
                };
                let at = self.resolve_to(dir, &mut aim, |_, m, d| own((m, d)))?;
                *links = aim.links;
                at
            }
        };
        if !at.dentry.inode.is_dir() {
            return Err(FsError::NotDir);
        }
        permitted(self.cred, &at.dentry.inode, perm::EXEC)?;
        let last = match path::classify(name) {
            Component::Here => Last::Here,
            Component::Up => Last::Up,
            Component::Name(n) if n.len() > NAME_MAX => return Err(FsError::NameTooLong),
            Component::Name(n) => Last::Name(n, slash),
        };
        Ok((at, last))
    }
}

/// Looks one name up in a directory, and goes to what is mounted on it. Does not follow links, nor check rights. May sleep.
pub fn child(dir: &Path, name: &[u8]) -> Result<Path> {
    if let Node::Dynamic(_) = &dir.dentry.inode.node {
        return on_demand(dir, name, current().payer());
    }
    let dentry = dir.dentry.inode.dir()?.get(name).ok_or(FsError::NotFound)?;
    Ok(covered(&Path {
        mount: dir.mount.clone(),
        dentry,
    }))
}

/// Counts a link that a lookup is about to follow. Fails with `Loop` if it is one too many.
pub fn count_link(links: &mut u32) -> Result<()> {
    *links += 1;
    if *links > MAX_LINKS {
        return Err(FsError::Loop);
    }
    Ok(())
}

/// Makes the dentry of a name in a directory whose entries are made on demand, and goes to what is mounted on it. The dentry is
/// charged to `payer`.
fn on_demand(dir: &Path, name: &[u8], payer: Payer) -> Result<Path> {
    let up = &dir.dentry;
    let inode = up.inode.made(name)?.ok_or(FsError::NotDir)?;
    let kept = mount::kept_on_demand(dir, name, &inode);
    let made = || Dentry::made(Some(up.clone()), name, inode, 0, payer);
    Ok(covered(&Path {
        mount: dir.mount.clone(),
        dentry: kept.unwrap_or_else(made),
    }))
}
