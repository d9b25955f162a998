//! Copies to and from user memory.
//!
//! Guarantee: any address and length may be given; what is not user memory, or cannot be made present,
//! ends in [`UserFault`], never in a kernel fault. While preemption is on, a missing page is brought in
//! through [`Upcalls::page_fault`](crate::upcalls::Upcalls::page_fault) and the copy goes on, so a copy may sleep; with
//! preemption off it fails at once.
//!
//! Mechanism: the few instructions that touch user memory stand in the exception table with the
//! place to go on at when they fault. The range is checked before, so that they cannot reach kernel memory.
use core::arch::{asm, naked_asm};
use core::slice;

use fscore::bytes;

use super::frame::TrapFrame;
use super::memory;
use super::patch::{clac, stac};
use crate::limits::USER_END;

/// User memory could not be read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserFault;

#[repr(C)]
struct Fixup {
    fault: u64,
    resume: u64,
}

fn fixups() -> &'static [Fixup] {
    // Arrays of no elements, for two symbols may have the same address.
    unsafe extern "C" {
        static __ex_table_start: [Fixup; 0];
        static __ex_table_end: [Fixup; 0];
    }
    let start = (&raw const __ex_table_start).cast::<Fixup>();
    let end = (&raw const __ex_table_end).cast::<Fixup>();
    // SAFETY: the linker script puts the table between the symbols.
    unsafe { slice::from_raw_parts(start, end.offset_from_unsigned(start)) }
}

/// Whether `rip` is an instruction that may fault on a user address.
pub(super) fn is_copy(rip: u64) -> bool {
    fixups().iter().any(|f| f.fault == rip)
}

/// Makes a faulted copy resume at its error exit; false if the instruction is not one of a copy.
pub(super) fn fix_up(frame: &mut TrapFrame) -> bool {
    match fixups().iter().find(|f| f.fault == frame.rip) {
        Some(fixup) if memory::is_text(fixup.resume) => {
            frame.rip = fixup.resume;
            true
        }
        _ => false,
    }
}

/// `label fault, label resume` in the exception table.
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

/// Copies forward; gives the number of bytes not copied. One side is user memory.
///
/// Long copies go by words, which an emulated CPU does eight times as fast.
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
        // A fault among the words: their remaining bytes and the tail are not copied.
        "4: lea rcx, [rdx + rcx*8]",
        "5: mov rax, rcx",
        clac!(),
        "ret",
        on_fault!("2b", "4b"),
        on_fault!("3b", "5b"),
    )
}

/// Whether `len` bytes at `address` lie in the part of the address space that users may have.
#[inline]
pub fn in_range(address: u64, len: usize) -> bool {
    (len as u64) <= USER_END && address <= USER_END - len as u64
}

#[inline]
fn check(address: u64, len: usize) -> Result<(), UserFault> {
    if in_range(address, len) {
        Ok(())
    } else {
        Err(UserFault)
    }
}

/// Reads user memory at `from` into `to` as far as it can; gives the number of bytes read.
#[inline]
pub fn copy_in_partial(to: &mut [u8], from: u64) -> usize {
    if check(from, to.len()).is_err() {
        return 0;
    }
    // SAFETY: `to` is ours to write and the source is user memory, whose faults `copy` survives.
    to.len() - unsafe { copy(to.as_mut_ptr(), from as *const u8, to.len()) }
}

/// Writes `from` to user memory at `to` as far as it can; gives the number of bytes written.
#[inline]
pub fn copy_out_partial(to: u64, from: &[u8]) -> usize {
    if check(to, from.len()).is_err() {
        return 0;
    }
    // SAFETY: the target is user memory, whose faults `copy` survives.
    from.len() - unsafe { copy(to as *mut u8, from.as_ptr(), from.len()) }
}

/// Reads user memory at `from` into all of `to`.
///
/// # Errors
/// [`UserFault`]; part of `to` may have been written.
#[inline]
pub fn copy_in(to: &mut [u8], from: u64) -> Result<(), UserFault> {
    if copy_in_partial(to, from) == to.len() {
        Ok(())
    } else {
        Err(UserFault)
    }
}

/// Writes all of `from` to user memory at `to`.
///
/// # Errors
/// [`UserFault`]; part of it may have been written.
#[inline]
pub fn copy_out(to: u64, from: &[u8]) -> Result<(), UserFault> {
    if copy_out_partial(to, from) == from.len() {
        Ok(())
    } else {
        Err(UserFault)
    }
}

/// Reads the user's string at `from` into `to` up to its terminating zero, and gives its length without it.
/// `Ok(None)` says that no zero came within `to.len()` bytes.
///
/// # Errors
/// [`UserFault`] if memory ends before the string does.
pub fn strncpy_in(to: &mut [u8], from: u64) -> Result<Option<usize>, UserFault> {
    /// Pieces end where a multiple of this does, so none touches a page the string does not.
    const PIECE: usize = 64;
    let mut done = 0;
    while done < to.len() {
        let at = from.checked_add(done as u64).ok_or(UserFault)?;
        let room = PIECE - (at as usize & (PIECE - 1));
        let end = to.len().min(done + room);
        let piece = &mut to[done..end];
        copy_in(piece, at)?;
        if let Some(len) = bytes::find(piece, 0) {
            return Ok(Some(done + len));
        }
        done = end;
    }
    Ok(None)
}

/// One instruction on an aligned user word, between `stac` and `clac`; `$failed` is one if it faulted.
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

fn check_word(address: u64) -> Result<(), UserFault> {
    check(address, 4)?;
    if address.is_multiple_of(4) {
        Ok(())
    } else {
        Err(UserFault)
    }
}

/// Reads an aligned 32-bit word of user memory in one access.
///
/// # Errors
/// [`UserFault`] also if the address is not aligned.
#[inline]
pub fn load_u32(address: u64) -> Result<u32, UserFault> {
    check_word(address)?;
    let (value, failed): (u32, u32);
    // SAFETY: reads user memory; a fault ends in `failed`.
    unsafe {
        user_instruction!("mov {value:e}, [{at}]", failed, value = out(reg) value, at = in(reg) address,);
    }
    if failed == 0 {
        Ok(value)
    } else {
        Err(UserFault)
    }
}

/// Replaces the aligned 32-bit word of user memory by `new` if it is `old`; gives what it was.
///
/// # Errors
/// [`UserFault`] also if the address is not aligned.
pub fn atomic_cmpxchg_u32(address: u64, old: u32, new: u32) -> Result<u32, UserFault> {
    check_word(address)?;
    let (found, failed): (u32, u32);
    // SAFETY: changes user memory; a fault ends in `failed`.
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
