//! The initial stack of a program.
//!
//! From high to low addresses: the executable's name, the environment and argument strings, the
//! platform's name, sixteen random bytes, then (16-byte aligned) the auxiliary vector, the
//! environment pointers, the argument pointers and, at the stack pointer, the argument count.

use alloc::vec::Vec;

use crate::PAGE;

/// Auxiliary vector tags (getauxval(3)).
pub mod tag {
    #![expect(missing_docs, reason = "the names are the ABI's own")]
    pub const NULL: u64 = 0;
    pub const PHDR: u64 = 3;
    pub const PHENT: u64 = 4;
    pub const PHNUM: u64 = 5;
    pub const PAGESZ: u64 = 6;
    pub const BASE: u64 = 7;
    pub const FLAGS: u64 = 8;
    pub const ENTRY: u64 = 9;
    pub const UID: u64 = 11;
    pub const EUID: u64 = 12;
    pub const GID: u64 = 13;
    pub const EGID: u64 = 14;
    pub const PLATFORM: u64 = 15;
    pub const HWCAP: u64 = 16;
    pub const CLKTCK: u64 = 17;
    pub const SECURE: u64 = 23;
    pub const RANDOM: u64 = 25;
    pub const HWCAP2: u64 = 26;
    pub const EXECFN: u64 = 31;
    pub const SYSINFO_EHDR: u64 = 33;
}

/// The values for the auxiliary vector.
#[derive(Clone, Copy, Debug, Default)]
pub struct AuxInfo {
    /// Address of the program headers in memory, or 0.
    pub phdr: u64,
    /// Number of program headers.
    pub phnum: u64,
    /// Base of the interpreter, or 0.
    pub base: u64,
    /// Entry point of the program itself.
    pub entry: u64,
    /// Real user id.
    pub uid: u64,
    /// Effective user id.
    pub euid: u64,
    /// Real group id.
    pub gid: u64,
    /// Effective group id.
    pub egid: u64,
    /// Set-id execution.
    pub secure: bool,
    /// CPUID leaf 1, EDX.
    pub hwcap: u64,
    /// Linux's second word of capabilities (bit 1: FSGSBASE usable).
    pub hwcap2: u64,
    /// Where the kernel's own object is mapped, or 0.
    pub sysinfo_ehdr: u64,
    /// Seed for the stack protector and pointer guard.
    pub random: [u8; 16],
}

/// Why a stack could not be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StackError {
    /// More bytes than the limit allows: E2BIG.
    TooBig,
    /// No memory to build it in.
    NoMemory,
}

/// Strings that are collected before the old address space is cleared.
#[derive(Default)]
pub struct Strings {
    bytes: Vec<u8>,
    count: usize,
}

impl Strings {
    /// No strings.
    pub const fn new() -> Self {
        Strings {
            bytes: Vec::new(),
            count: 0,
        }
    }

    /// Adds one string; `s` has no NUL.
    pub fn push(&mut self, s: &[u8], limit: usize) -> Result<(), StackError> {
        let len = s.len() + 1;
        if self.footprint().saturating_add(len + 8) > limit {
            return Err(StackError::TooBig);
        }
        self.bytes
            .try_reserve(len)
            .map_err(|_| StackError::NoMemory)?;
        self.bytes.extend_from_slice(s);
        self.bytes.push(0);
        self.count += 1;
        Ok(())
    }

    /// Replaces the first string by `front`, as for an interpreter's argument list.
    pub fn replace_first(&mut self, front: &[&[u8]], limit: usize) -> Result<(), StackError> {
        let mut out = Strings::new();
        for s in front {
            out.push(s, limit)?;
        }
        let skip = self.bytes.iter().position(|&b| b == 0).map_or(0, |n| n + 1);
        let rest = &self.bytes[skip..];
        let count = out.count + self.count.saturating_sub(1);
        if out.bytes.len() + rest.len() + 8 * count > limit {
            return Err(StackError::TooBig);
        }
        out.bytes
            .try_reserve(rest.len())
            .map_err(|_| StackError::NoMemory)?;
        out.bytes.extend_from_slice(rest);
        out.count = count;
        *self = out;
        Ok(())
    }

    /// Number of strings.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Bytes that they will take on the stack, pointers included: the amount that the limit applies to.
    pub fn footprint(&self) -> usize {
        self.bytes.len() + 8 * self.count
    }

    /// Bytes of memory that they occupy now.
    pub fn room(&self) -> usize {
        self.bytes.capacity()
    }

    /// The bytes, each string with its NUL, as /proc/PID/cmdline shows them.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn starts(&self) -> impl Iterator<Item = usize> + '_ {
        let mut at = 0;
        (0..self.count).map(move |_| {
            let start = at;
            let rest = &self.bytes[at..];
            at += rest
                .iter()
                .position(|&b| b == 0)
                .map_or(rest.len(), |n| n + 1);
            start
        })
    }
}

/// A stack that is ready to be copied to its address.
pub struct StackImage {
    /// Bytes from `sp` upwards.
    pub bytes: Vec<u8>,
    /// The stack pointer at entry; a multiple of 16.
    pub sp: u64,
    /// User addresses of the argument strings, first and one past the last byte.
    pub args: (u64, u64),
    /// User addresses of the environment strings, first and one past the last byte.
    pub env: (u64, u64),
    /// User address of the auxiliary vector, of [`AUXV_BYTES`].
    pub auxv: u64,
}

/// Pairs of the auxiliary vector, the end mark among them.
const PAIRS: usize = 20;
/// Bytes of the auxiliary vector.
pub const AUXV_BYTES: u64 = 16 * PAIRS as u64;

const PLATFORM: &[u8] = b"x86_64\0";

impl StackImage {
    /// Lays out a stack that ends at `top` (exclusive, a multiple of 16).
    pub fn build(
        top: u64,
        argv: &Strings,
        envp: &Strings,
        execfn: &[u8],
        aux: &AuxInfo,
    ) -> Result<StackImage, StackError> {
        // Linux leaves one empty word at the very top.
        let execfn_at = top - 8 - (execfn.len() as u64 + 1);
        let env_at = execfn_at - envp.bytes.len() as u64;
        let args_at = env_at - argv.bytes.len() as u64;
        let platform_at = args_at - PLATFORM.len() as u64;
        let random_at = (platform_at - 16) & !15;
        let pairs = aux_pairs(aux, execfn_at, platform_at, random_at);
        let words = 1 + (argv.count + 1) + (envp.count + 1) + 2 * pairs.len();
        let sp = (random_at - 8 * words as u64) & !15;

        let len = (top - sp) as usize;
        let mut bytes = Vec::new();
        bytes
            .try_reserve_exact(len)
            .map_err(|_| StackError::NoMemory)?;
        bytes.resize(len, 0);
        let mut at = 0usize;
        let mut word = |value: u64| {
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
            at += 8;
        };
        word(argv.count as u64);
        argv.starts().for_each(|s| word(args_at + s as u64));
        word(0);
        envp.starts().for_each(|s| word(env_at + s as u64));
        word(0);
        for (tag, value) in pairs {
            word(tag);
            word(value);
        }
        let mut put = |addr: u64, s: &[u8]| {
            let i = (addr - sp) as usize;
            bytes[i..i + s.len()].copy_from_slice(s);
        };
        put(random_at, &aux.random);
        put(platform_at, PLATFORM);
        put(args_at, &argv.bytes);
        put(env_at, &envp.bytes);
        put(execfn_at, execfn);
        Ok(StackImage {
            bytes,
            sp,
            args: (args_at, env_at),
            env: (env_at, execfn_at),
            auxv: sp + 8 * (words - 2 * pairs.len()) as u64,
        })
    }
}

fn aux_pairs(aux: &AuxInfo, execfn: u64, platform: u64, random: u64) -> [(u64, u64); PAIRS] {
    [
        (tag::SYSINFO_EHDR, aux.sysinfo_ehdr),
        (tag::HWCAP, aux.hwcap),
        (tag::PAGESZ, PAGE),
        (tag::CLKTCK, 100),
        (tag::PHDR, aux.phdr),
        (tag::PHENT, crate::image::PHDR_LEN as u64),
        (tag::PHNUM, aux.phnum),
        (tag::BASE, aux.base),
        (tag::FLAGS, 0),
        (tag::ENTRY, aux.entry),
        (tag::UID, aux.uid),
        (tag::EUID, aux.euid),
        (tag::GID, aux.gid),
        (tag::EGID, aux.egid),
        (tag::SECURE, aux.secure as u64),
        (tag::RANDOM, random),
        (tag::HWCAP2, aux.hwcap2),
        (tag::EXECFN, execfn),
        (tag::PLATFORM, platform),
        (tag::NULL, 0),
    ]
}
