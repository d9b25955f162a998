//! Access control lists of files, as POSIX.1e draft 17 and acl(5) describe them: their bytes, their rules, and what they grant.
//!
//! A list has an entry for the owner, the file's group and the others; entries for named users and groups; and a mask, which
//! limits all but the owner's and the others'. The mask, or without one the group's entry, is what the mode shows as the group's
//! permissions. Differences to the text of the draft are those of Linux 6.1.

use alloc::boxed::Box;
use alloc::vec::Vec;

/// The version at the head of the bytes.
const VERSION: u32 = 2;
/// Bytes of the head, and of an entry.
const HEAD: usize = 4;
const ENTRY: usize = 8;
/// The id of an entry that names nobody.
const NO_ID: u32 = u32::MAX;
/// Permission bits of one class.
const RWX: u32 = 7;

/// What an entry is for. The order is that of a valid list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tag {
    /// The owner.
    Owner,
    /// The user with the entry's id.
    User,
    /// The file's group.
    OwningGroup,
    /// The group with the entry's id.
    Group,
    /// The limit on all entries but the owner's and the others'.
    Mask,
    /// Everybody else.
    Other,
}

const TAGS: [(u16, Tag); 6] = [
    (0x01, Tag::Owner),
    (0x02, Tag::User),
    (0x04, Tag::OwningGroup),
    (0x08, Tag::Group),
    (0x10, Tag::Mask),
    (0x20, Tag::Other),
];

/// An entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// What it is for.
    pub tag: Tag,
    /// The permissions: bits of [`perm`](super::perm); more in a list that is not valid.
    pub perm: u16,
    /// The user or the group, where the tag says that there is one.
    pub id: u32,
}

impl Entry {
    fn rights(self) -> u32 {
        u32::from(self.perm)
    }

    /// Takes from the entry what the lowest bits of `bits` lack, and returns what is left.
    fn meet(&mut self, bits: u32) -> u32 {
        self.perm &= (bits & RWX) as u16;
        self.rights()
    }
}

/// Why bytes are no list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AclError {
    /// The head is missing, the length is wrong, or an entry has an unknown tag or an id that nobody has.
    Malformed,
    /// The head has another version.
    Version,
    /// There is no memory.
    NoMemory,
}

/// A list. What the methods say holds for [valid](Acl::is_valid) ones.
#[derive(PartialEq, Eq, Debug)]
pub struct Acl {
    entries: Box<[Entry]>,
}

/// A user to whom a list may grant something, and the file's group.
pub struct Subject<G: Fn(u32) -> bool> {
    /// The user.
    pub uid: u32,
    /// Whether the user is in a group.
    pub in_group: G,
    /// Owner of the file.
    pub owner: u32,
    /// Group of the file.
    pub owning_group: u32,
}

/// The list of a new file, and what else comes of a default list.
#[derive(PartialEq, Eq, Debug)]
pub struct Inherited {
    /// The list; `None` if the mode says the same.
    pub acl: Option<Acl>,
    /// The nine permission bits of the file.
    pub bits: u32,
}

fn word(bytes: &[u8]) -> u32 {
    bytes
        .iter()
        .rev()
        .fold(0, |sum, &b| sum << 8 | u32::from(b))
}

impl Acl {
    /// The list in `bytes`; `None` if it has no entry. It need not be valid.
    ///
    /// # Errors
    /// Any.
    pub fn parse(bytes: &[u8]) -> Result<Option<Acl>, AclError> {
        let (head, rest) = bytes.split_at_checked(HEAD).ok_or(AclError::Malformed)?;
        if word(head) != VERSION {
            return Err(AclError::Version);
        }
        if !rest.len().is_multiple_of(ENTRY) {
            return Err(AclError::Malformed);
        }
        let mut entries = room(rest.len() / ENTRY)?;
        for raw in rest.chunks_exact(ENTRY) {
            let known = TAGS
                .iter()
                .find(|&&(code, _)| u32::from(code) == word(&raw[..2]));
            let &(_, tag) = known.ok_or(AclError::Malformed)?;
            let id = match (tag, word(&raw[4..])) {
                (Tag::User | Tag::Group, NO_ID) => return Err(AclError::Malformed),
                (Tag::User | Tag::Group, id) => id,
                _ => NO_ID,
            };
            let perm = word(&raw[2..4]) as u16;
            entries.push(Entry { tag, perm, id });
        }
        let entries = entries.into_boxed_slice();
        Ok((!entries.is_empty()).then_some(Acl { entries }))
    }

    /// The entries.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Bytes that [`bytes`](Self::bytes) returns.
    pub fn len(&self) -> usize {
        HEAD + ENTRY * self.entries.len()
    }

    /// Whether there is no entry; never so.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The bytes from which [`parse`](Self::parse) makes the same list.
    ///
    /// # Errors
    /// `NoMemory`.
    pub fn bytes(&self) -> Result<Vec<u8>, AclError> {
        let mut bytes = room(self.len())?;
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        for entry in &self.entries {
            let code = TAGS.iter().find(|&&(_, tag)| tag == entry.tag);
            let code = code.map_or(0, |&(code, _)| code);
            bytes.extend_from_slice(&code.to_le_bytes());
            bytes.extend_from_slice(&entry.perm.to_le_bytes());
            bytes.extend_from_slice(&entry.id.to_le_bytes());
        }
        Ok(bytes)
    }

    /// Whether the list has what it must: an entry each for owner, group and others, the named ones between them, a mask if
    /// there are any such, in the order of the tags, and no other bits than those of permissions.
    pub fn is_valid(&self) -> bool {
        let mut counts = [0usize; TAGS.len()];
        let mut last = 0;
        for entry in &self.entries {
            let tag = entry.tag as usize;
            if tag < last || entry.rights() > RWX {
                return false;
            }
            last = tag;
            counts[tag] += 1;
        }
        let [owner, users, group, groups, mask, other] = counts;
        (owner, group, other) == (1, 1, 1) && mask <= 1 && (mask == 1 || users + groups == 0)
    }

    /// The nine permission bits that the mode of a file with this list has.
    pub fn mode_bits(&self) -> u32 {
        let of = |tag| {
            self.entries
                .iter()
                .find(|e| e.tag == tag)
                .map(|e| e.rights())
        };
        let class = of(Tag::Mask).or(of(Tag::OwningGroup));
        let shown = [of(Tag::Owner), class, of(Tag::Other)];
        shown
            .iter()
            .fold(0, |bits, class| bits << 3 | class.unwrap_or(0))
    }

    /// Whether the mode alone says the same: there is neither a named entry nor a mask.
    pub fn is_mode(&self) -> bool {
        let plain = |e: &Entry| matches!(e.tag, Tag::Owner | Tag::OwningGroup | Tag::Other);
        self.entries.iter().all(plain)
    }

    /// A copy.
    ///
    /// # Errors
    /// `NoMemory`.
    pub fn copy(&self) -> Result<Acl, AclError> {
        let mut entries = room(self.entries.len())?;
        entries.extend_from_slice(&self.entries);
        Ok(Acl {
            entries: entries.into_boxed_slice(),
        })
    }

    /// The entry that the mode shows as the group's.
    fn class(&mut self) -> Option<&mut Entry> {
        let masked = self.entries.iter().any(|e| e.tag == Tag::Mask);
        let tag = if masked { Tag::Mask } else { Tag::OwningGroup };
        self.entries.iter_mut().find(|e| e.tag == tag)
    }

    fn entry(&mut self, tag: Tag) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|e| e.tag == tag)
    }

    /// The list after chmod(2) to `mode`: the owner's, the others', and the mask or without one the group's entry change.
    ///
    /// # Errors
    /// `NoMemory`.
    pub fn with_mode(&self, mode: u32) -> Result<Acl, AclError> {
        let mut new = self.copy()?;
        let set = |entry: Option<&mut Entry>, bits: u32| {
            if let Some(entry) = entry {
                entry.perm = (bits & RWX) as u16;
            }
        };
        set(new.entry(Tag::Owner), mode >> 6);
        set(new.class(), mode >> 3);
        set(new.entry(Tag::Other), mode);
        Ok(new)
    }

    /// What a new file gets from the default list of its directory, if `mode` was asked for: of each class what both permit.
    ///
    /// # Errors
    /// `NoMemory`.
    pub fn inherit(&self, mode: u32) -> Result<Inherited, AclError> {
        let mut new = self.copy()?;
        let meet = |entry: Option<&mut Entry>, bits| entry.map_or(0, |entry| entry.meet(bits));
        let bits = meet(new.entry(Tag::Owner), mode >> 6) << 6
            | meet(new.class(), mode >> 3) << 3
            | meet(new.entry(Tag::Other), mode);
        let acl = (!new.is_mode()).then_some(new);
        Ok(Inherited { acl, bits })
    }

    /// Whether the list grants `want`, bits of [`perm`](super::perm). The first entry that fits decides: the owner's, the user's;
    /// then any group's that grants it, and none of the others' if the user is in one of the groups.
    pub fn grants<G: Fn(u32) -> bool>(&self, subject: &Subject<G>, want: u32) -> bool {
        let mask = self.entries.iter().find(|e| e.tag == Tag::Mask);
        let mask = mask.map_or(RWX, |e| e.rights());
        let all = |rights: u32| rights & want == want;
        let mut member = false;
        for entry in &self.entries {
            let rights = entry.rights();
            match entry.tag {
                Tag::Owner if subject.uid == subject.owner => return all(rights),
                Tag::User if subject.uid == entry.id => return all(rights & mask),
                Tag::OwningGroup if (subject.in_group)(subject.owning_group) => {
                    member = true;
                    if all(rights) {
                        return all(rights & mask);
                    }
                }
                Tag::Group if (subject.in_group)(entry.id) => {
                    member = true;
                    if all(rights) {
                        return all(rights & mask);
                    }
                }
                Tag::Other => return !member && all(rights),
                _ => {}
            }
        }
        false
    }
}

/// An empty vector with room for `n`.
fn room<T>(n: usize) -> Result<Vec<T>, AclError> {
    let mut new = Vec::new();
    new.try_reserve_exact(n).map_err(|_| AclError::NoMemory)?;
    Ok(new)
}

#[cfg(test)]
mod tests;
