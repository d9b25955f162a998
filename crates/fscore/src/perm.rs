//! Permission checks on a node, from ids and mode bits alone.

/// Permission wanted: read.
pub const READ: u32 = 4;
/// Permission wanted: write.
pub const WRITE: u32 = 2;
/// Permission wanted: execute, or search in a directory.
pub const EXEC: u32 = 1;

/// The attributes of a node that permissions depend on.
#[derive(Clone, Copy, Debug)]
pub struct Owner {
    /// Owning user.
    pub uid: u32,
    /// Owning group.
    pub gid: u32,
    /// The twelve mode bits (type bits are ignored).
    pub mode: u32,
    /// Whether the node is a directory, on which the effect of [`Powers`] depends.
    pub dir: bool,
}

/// Capabilities that override mode bits.
#[derive(Clone, Copy, Debug, Default)]
pub struct Powers {
    /// Read, write and search everything; execute a file that has any execute bit (CAP_DAC_OVERRIDE).
    pub all: bool,
    /// Read all files and directories, search all directories (CAP_DAC_READ_SEARCH).
    pub read: bool,
}

impl Powers {
    /// Whether they permit `want`, whatever the mode bits say of the user.
    pub fn allow(self, owner: Owner, want: u32) -> bool {
        let reads = if owner.dir {
            want & WRITE == 0
        } else {
            want & !READ == 0
        };
        let all = owner.dir || want & EXEC == 0 || owner.mode & 0o111 != 0;
        self.read && reads || self.all && all
    }
}

/// Whether user `uid`, a member of the groups for which `in_group` is true, has all of `want`, by `powers` or by the mode
/// bits. Of those, only the first class counts that fits: the owner's, the group's, the others'.
pub fn allowed(
    owner: Owner,
    uid: u32,
    in_group: impl FnOnce(u32) -> bool,
    powers: Powers,
    want: u32,
) -> bool {
    let shift = if uid == owner.uid {
        6
    } else if in_group(owner.gid) {
        3
    } else {
        0
    };
    (owner.mode >> shift) & want == want || powers.allow(owner, want)
}

/// Whether the sticky bit of a directory forbids `uid` to remove a node owned by `node_uid`. CAP_FOWNER overrides it.
pub fn sticky_forbids(dir_mode: u32, dir_uid: u32, node_uid: u32, uid: u32) -> bool {
    dir_mode & 0o1000 != 0 && uid != node_uid && uid != dir_uid
}

#[cfg(test)]
mod tests {
    use super::*;

    fn o(mode: u32, dir: bool) -> Owner {
        Owner {
            uid: 10,
            gid: 20,
            mode,
            dir,
        }
    }

    const NONE: Powers = Powers {
        all: false,
        read: false,
    };

    #[test]
    fn classes_do_not_add_up() {
        // For the owner only the owner bits count, even if others may do more.
        assert!(!allowed(o(0o077, false), 10, |_| true, NONE, READ));
        assert!(!allowed(o(0o707, false), 11, |g| g == 20, NONE, READ));
        assert!(allowed(o(0o704, false), 11, |_| false, NONE, READ));
        // User 0 is like any other user here.
        assert!(!allowed(o(0o770, false), 0, |_| false, NONE, READ));
    }

    #[test]
    fn overriding_executes_only_what_somebody_may() {
        let all = Powers {
            all: true,
            read: false,
        };
        let may = |mode, dir, want| allowed(o(mode, dir), 0, |_| false, all, want);
        assert!(!may(0o644, false, EXEC));
        assert!(!may(0o644, false, EXEC | READ));
        assert!(may(0o645, false, EXEC));
        assert!(may(0, false, READ | WRITE));
        assert!(may(0, true, EXEC | WRITE | READ));
    }

    #[test]
    fn reading_all_neither_writes_nor_executes() {
        let read = Powers {
            all: false,
            read: true,
        };
        let may = |mode, dir, want| allowed(o(mode, dir), 11, |_| false, read, want);
        assert!(may(0, false, READ));
        assert!(!may(0o110, false, EXEC));
        assert!(!may(0, false, READ | WRITE));
        assert!(may(0, true, READ | EXEC));
        assert!(!may(0, true, WRITE));
    }

    #[test]
    fn sticky() {
        assert!(sticky_forbids(0o1777, 0, 5, 6));
        assert!(!sticky_forbids(0o1777, 0, 6, 6));
        assert!(!sticky_forbids(0o1777, 6, 5, 6));
        assert!(!sticky_forbids(0o777, 0, 5, 6));
        assert!(sticky_forbids(0o1777, 1, 5, 0));
    }
}
