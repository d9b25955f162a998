//! What a process says of the program that it runs.

/// What execve left for others to read: where the argument strings lie, and what file runs.
#[derive(Clone, Default)]
pub struct Program {
    /// Start and end of the argument strings, in user memory.
    pub args: (u64, u64),
    /// Start and end of the environment strings.
    pub env: (u64, u64),
    /// Lowest address of the initial stack pointer.
    pub stack_start: u64,
    /// Code: start and end.
    pub code: (u64, u64),
    /// Initialised data: start and end.
    pub data: (u64, u64),
    /// The file, for /proc/PID/exe.
    pub exe: Option<vfs::ExeRef>,
}

/// The heap that brk(2) grows.
#[derive(Clone, Copy, Debug, Default)]
pub struct Brk {
    /// Where it begins.
    pub start: u64,
    /// Where it ends now.
    pub end: u64,
}
