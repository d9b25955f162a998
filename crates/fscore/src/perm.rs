//! Permission arithmetic: who may do what to a node, from ids and mode bits alone.

/// Permission wanted: read.
pub const READ: u32 = 4;
/// Permission wanted: write.
pub const WRITE: u32 = 2;
/// Permission wanted: execute, or search in a directory.
pub const EXEC: u32 = 1;

/// What a node says about itself.
#[derive(Clone, Copy, Debug)]
pub struct Owner {
    /// Owning user.
    pub uid: u32,
    /// Owning group.
    pub gid: u32,
    /// The twelve mode bits (type bits are ignored).
    pub mode: u32,
    /// Whether the node is a directory, which decides the superuser's execute right.
    pub dir: bool,
}

/// Whether somebody with `uid`, for whom `in_group` answers membership, has all of `want`.
///
/// The superuser may read and write anything, search any directory, and execute a file that
/// somebody may execute.
pub fn allowed(owner: Owner, uid: u32, in_group: impl FnOnce(u32) -> bool, want: u32) -> bool {
    if uid == 0 {
        return want & EXEC == 0 || owner.dir || owner.mode & 0o111 != 0;
    }
    let shift = if uid == owner.uid {
        6
    } else if in_group(owner.gid) {
        3
    } else {
        0
    };
    (owner.mode >> shift) & want == want
}

/// Whether the sticky bit of a directory forbids `uid` to remove a node owned by `node_uid`.
pub fn sticky_forbids(dir_mode: u32, dir_uid: u32, node_uid: u32, uid: u32) -> bool {
    dir_mode & 0o1000 != 0 && uid != 0 && uid != node_uid && uid != dir_uid
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

    #[test]
    fn classes_do_not_add_up() {
        // The owner is judged by the owner bits alone, even where others may do more.
        assert!(!allowed(o(0o077, false), 10, |_| true, READ));
        assert!(!allowed(o(0o707, false), 11, |g| g == 20, READ));
        assert!(allowed(o(0o704, false), 11, |_| false, READ));
    }

    #[test]
    fn root_executes_only_what_somebody_may() {
        assert!(!allowed(o(0o644, false), 0, |_| false, EXEC));
        assert!(allowed(o(0o645, false), 0, |_| false, EXEC));
        assert!(allowed(o(0, true), 0, |_| false, EXEC | WRITE | READ));
    }

    #[test]
    fn sticky() {
        assert!(sticky_forbids(0o1777, 0, 5, 6));
        assert!(!sticky_forbids(0o1777, 0, 6, 6));
        assert!(!sticky_forbids(0o1777, 6, 5, 6));
        assert!(!sticky_forbids(0o777, 0, 5, 6));
        assert!(!sticky_forbids(0o1777, 1, 5, 0));
    }
}
