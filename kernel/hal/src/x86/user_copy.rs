//! The instructions that access user memory.
//!
//! They are in the exception table, each with the address at which to continue if it faults.

use core::arch::{asm, naked_asm};
use core::slice;

use super::memory;
use super::patch::{clac, stac};
use crate::frame::TrapFrame;
use crate::user::{check, check_word};
use crate::user_fault::UserFault;

#[repr(C)]
struct Fixup {
    fault: u64,
    resume: u64,
}

fn fixups() -> &'static [Fixup] {
    // Arrays without elements, because the two symbols may have the same address.
    unsafe extern "C" {
        static __ex_table_start: [Fixup; 0];
        static __ex_table_end: [Fixup; 0];
    }
    let start = (&raw const __ex_table_start).cast::<Fixup>();
    let end = (&raw const __ex_table_end).cast::<Fixup>();
    // SAFETY: the linker script puts the table between the symbols.
    unsafe { slice::from_raw_parts(start, end.offset_from_unsigned(start)) }
}

/// Whether the instruction at `rip` may fault on a user address.
pub(super) fn is_copy(rip: u64) -> bool {
    fixups().iter().any(|f| f.fault == rip)
}

/// Makes a copy that has faulted resume at its error exit. Returns false if the instruction is not that of a copy.
pub(super) fn fix_up(frame: &mut TrapFrame) -> bool {
    match fixups().iter().find(|f| f.fault == frame.rip) {
        Some(fixup) if memory::is_text(fixup.resume) => {
            frame.rip = fixup.resume;
            true
        }
        _ => false,
    }
}

/// Adds an entry to the exception table: the label of the instruction, and the label at which to continue if it faults.
macro_rules! on_fault {
    ($fault:literal, $resume:literal) => {
        concat!(
            ".pushsection .ex_table, \"a\", @progbits\n.quad ",
            $fault,
            ", ",
            $resume,
            "\n.popsection\n"
        )
    };
}

/// Copies forward, and returns the number of bytes that were not copied. One side is user memory.
///
/// Most of a copy is made in words of eight bytes, which is eight times as fast on an emulated CPU.
#[unsafe(naked)]
unsafe extern "C" fn copy(to: *mut u8, from: *const u8, len: usize) -> usize {
    naked_asm!(
        stac!(),
        "mov rcx, rdx",
        "shr rcx, 3",
        "and edx, 7",
        "2: rep movsq",
        "mov ecx, edx",
        "3: rep movsb",
        "mov rax, rcx",
        clac!(),
        "ret",
        // A fault in the words: the remaining words and the bytes behind them have not been copied.
        "4: lea rcx, [rdx + rcx*8]",
        "5: mov rax, rcx",
        clac!(),
        "ret",
        on_fault!("2b", "4b"),
        on_fault!("3b", "5b"),
    )
}

/// Reads user memory at `from` into `to` as far as possible. Returns the number of bytes read. May sleep, with preemption on.
#[inline]
pub fn copy_in_partial(to: &mut [u8], from: u64) -> usize {
    if check(from, to.len()).is_err() {
        return 0;
    }
    // SAFETY: `to` is writable and the source is user memory, on whose faults `copy` returns.
    to.len() - unsafe { copy(to.as_mut_ptr(), from as *const u8, to.len()) }
}

/// Writes `from` to user memory at `to` as far as possible. Returns the number of bytes written. May sleep, with preemption
/// on.
#[inline]
pub fn copy_out_partial(to: u64, from: &[u8]) -> usize {
    if check(to, from.len()).is_err() {
        return 0;
    }
    // SAFETY: the target is user memory, on whose faults `copy` returns.
    from.len() - unsafe { copy(to as *mut u8, from.as_ptr(), from.len()) }
}

/// Executes one instruction on an aligned word of user memory, between `stac` and `clac`; `$failed` becomes 1 if it faults.
macro_rules! user_instruction {
    ($instruction:literal, $failed:ident, $($operands:tt)*) => {
        asm!(
            stac!(),
            concat!("2: ", $instruction),
            "3:",
            clac!(),
            ".pushsection .text.fixup, \"ax\", @progbits",
            "4: mov {failed:e}, 1",
            "jmp 3b",
            ".popsection",
            on_fault!("2b", "4b"),
            failed = inout(reg) 0u32 => $failed,
            $($operands)*
            options(nostack),
        )
    };
}

/// Reads an aligned 32-bit word of user memory in one access. May sleep, with preemption on.
///
/// # Errors
/// [`UserFault`] also if the address is not aligned.
#[inline]
pub fn load_u32(address: u64) -> Result<u32, UserFault> {
    check_word(address)?;
    let (value, failed): (u32, u32);
    // SAFETY: reads user memory; a fault sets `failed`.
    unsafe {
        user_instruction!("mov {value:e}, [{at}]", failed, value = out(reg) value, at = in(reg) address,);
    }
    if failed == 0 {
        Ok(value)
    } else {
        Err(UserFault)
    }
}

/// Replaces the aligned 32-bit word of user memory by `new` if it is `old`, in one access. Returns the value that it had. May
/// sleep, with preemption on.
///
/// # Errors
/// [`UserFault`] also if the address is not aligned.
pub fn atomic_cmpxchg_u32(address: u64, old: u32, new: u32) -> Result<u32, UserFault> {
    check_word(address)?;
    let (found, failed): (u32, u32);
    // SAFETY: writes user memory; a fault sets `failed`.
    unsafe {
        user_instruction!("lock cmpxchg [{at}], {new:e}", failed, new = in(reg) new,
            at = in(reg) address, inout("eax") old => found,);
    }
    if failed == 0 {
        Ok(found)
    } else {
        Err(UserFault)
    }
}
