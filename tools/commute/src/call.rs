//! The calls whose pairs are tested, in the order of the matrix's rows.

/// A system call, or a page fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names are the calls' own")]
pub enum Call {
    Mmap,
    Munmap,
    Mprotect,
    Madvise,
    Brk,
    Fault,
    Fork,
    Exec,
    Exit,
    Wait,
    Kill,
    Getpid,
    Futex,
    Pipe,
    Read,
    Write,
    Lseek,
    Open,
    Close,
    Dup,
    Stat,
}

impl Call {
    /// Every call.
    pub const ALL: [Call; 21] = [
        Call::Mmap,
        Call::Munmap,
        Call::Mprotect,
        Call::Madvise,
        Call::Brk,
        Call::Fault,
        Call::Fork,
        Call::Exec,
        Call::Exit,
        Call::Wait,
        Call::Kill,
        Call::Getpid,
        Call::Futex,
        Call::Pipe,
        Call::Read,
        Call::Write,
        Call::Lseek,
        Call::Open,
        Call::Close,
        Call::Dup,
        Call::Stat,
    ];

    /// Its name in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Call::Mmap => "mmap",
            Call::Munmap => "munmap",
            Call::Mprotect => "mprotect",
            Call::Madvise => "madvise",
            Call::Brk => "brk",
            Call::Fault => "fault",
            Call::Fork => "fork",
            Call::Exec => "exec",
            Call::Exit => "exit",
            Call::Wait => "wait",
            Call::Kill => "kill",
            Call::Getpid => "getpid",
            Call::Futex => "futex",
            Call::Pipe => "pipe",
            Call::Read => "read",
            Call::Write => "write",
            Call::Lseek => "lseek",
            Call::Open => "open",
            Call::Close => "close",
            Call::Dup => "dup",
            Call::Stat => "stat",
        }
    }

    /// Its index in [`Call::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_call_stands_at_its_index_and_has_a_name_of_its_own() {
        let mut names: Vec<_> = Call::ALL.iter().map(|call| call.name()).collect();
        assert!(
            Call::ALL
                .iter()
                .enumerate()
                .all(|(i, call)| call.index() == i)
        );
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Call::ALL.len());
    }
}
