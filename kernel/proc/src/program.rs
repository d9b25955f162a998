//! What other processes can read about the program that a process runs.

/// The places and the file of a program, for other processes to read: /proc and prctl(2).
#[derive(Clone, Default)]
pub struct Program {
    /// Start and end of the argument strings, in user memory. Here and below, an end is one past the last byte.
    pub args: (u64, u64),
    /// End of the environment strings, which begin where the arguments end.
    pub env_end: u64,
    /// Start of the auxiliary vector.
    pub auxv: u64,
    /// The stack pointer at the program's start.
    pub stack_start: u64,
    /// Start and end of code.
    pub code: (u64, u64),
    /// Start and end of initialised data.
    pub data: (u64, u64),
    /// The file that runs, for /proc/PID/exe.
    pub exe: Option<vfs::ExeRef>,
}

impl Program {
    /// Start and end of the environment strings.
    pub fn env(&self) -> (u64, u64) {
        (self.args.1, self.env_end)
    }
}

/// The bounds of the heap, which brk(2) changes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Brk {
    /// Its lowest address.
    pub start: u64,
    /// One past its last byte.
    pub end: u64,
}
