//! Entry to and exit from the kernel: vector stubs, exceptions, interrupts, system calls.
//!
//! Each stub pushes error code and vector, so that every entry builds the same [`UserFrame`], and joins one of three paths:
//! - exceptions run on the thread's stack, because they may sleep;
//! - interrupts from user mode run on the thread's stack, which is empty then; interrupts from kernel mode switch to the
//!   CPU's interrupt stack, and back before the thread may be preempted;
//! - NMI, double fault and machine check may come at any instruction, so they have stacks of their own (IST). The code
//!   segment does not show which GS base is loaded then: the word above their frame holds the address of the CPU's area, from
//!   which they set GS, and they restore the old base at the end.
//!
//! The exit to user mode never faults. Before `iretq`, `trap::leave_to_user` has checked the instruction pointer; `sysretq` goes
//! only to the address that `syscall` itself has saved. Segments and flags of a user frame cannot be set to invalid values.
use core::arch::{global_asm, naked_asm};

use super::patch::clac;
use super::{percpu, trap};
use crate::frame::{UserFrame, VECTOR_SYSCALL, offset};

/// Bytes from one vector's stub to the next.
const STUB_SIZE: usize = 16;

unsafe extern "C" {
    static vector_stubs: [[u8; STUB_SIZE]; 256];
}

/// Address of the stub of a vector.
pub(super) fn stub(vector: usize) -> u64 {
    (&raw const vector_stubs) as u64 + (vector * STUB_SIZE) as u64
}

macro_rules! push_registers {
    () => {
        "push rdi\npush rsi\npush rdx\npush rcx\npush rax\npush r8\npush r9\npush r10\npush r11\n\
         push rbx\npush rbp\npush r12\npush r13\npush r14\npush r15\n"
    };
}

macro_rules! pop_registers {
    () => {
        "pop r15\npop r14\npop r13\npop r12\npop rbp\npop rbx\npop r11\npop r10\npop r9\npop r8\n\
         pop rax\npop rcx\npop rdx\npop rsi\npop rdi\n"
    };
}

global_asm!(
    r#"
    .pushsection .text.entry, "ax", @progbits
    .balign 16
    .global vector_stubs
vector_stubs:
    .set vector, 0
    .rept 256
    .balign 16
    /* Exceptions 8, 10-14, 17, 21, 29, 30 push an error code themselves. */
    .if !(vector == 8 || (vector >= 10 && vector <= 14) || vector == 17 || vector == 21 || vector == 29 || vector == 30)
    push 0
    .endif
    push vector
    .if vector == 2 || vector == 8 || vector == 18
    jmp paranoid_entry
    .elseif vector < 32
    jmp exception_entry
    .else
    jmp interrupt_entry
    .endif
    .set vector, vector + 1
    .endr
    .balign 16

exception_entry:
    cld
    "#, clac!(), push_registers!(), r#"
    test byte ptr [rsp + {CS}], 3
    jz 2f
    swapgs
2:  mov rdi, rsp
    call {exception}
    test byte ptr [rsp + {CS}], 3
    jz 3f
    .global return_to_user
return_to_user:                     /* RSP: the user frame; interrupts off */
    swapgs
3:
    "#, pop_registers!(), r#"
    add rsp, 16
    iretq

interrupt_entry:
    cld
    "#, clac!(), push_registers!(), r#"
    mov rdi, rsp
    test byte ptr [rsp + {CS}], 3
    jz 2f
    swapgs
    call {interrupt_from_user}
    jmp return_to_user
2:  mov rbx, rsp
    mov rsp, gs:[{IRQ_STACK}]
    call {interrupt}
    mov rsp, rbx
    /* The preemption word is zero when a reschedule is wanted and allowed. */
    cmp dword ptr gs:[{PREEMPT}], 0
    jne 3f
    test dword ptr [rsp + {FLAGS}], 0x200
    jz 3f
    call {preempt}
3:
    "#, pop_registers!(), r#"
    add rsp, 16
    iretq

paranoid_entry:
    cld
    "#, clac!(), push_registers!(), r#"
    mov ecx, 0xc0000101             /* GS base */
    rdmsr
    shl rdx, 32
    or rax, rdx
    mov rbx, rax
    mov rax, [rsp + {FRAME}]
    mov rdx, rax
    shr rdx, 32
    wrmsr
    mov rdi, rsp
    call {paranoid}
    mov rax, rbx
    mov rdx, rbx
    shr rdx, 32
    mov ecx, 0xc0000101
    wrmsr
    "#, pop_registers!(), r#"
    add rsp, 16
    iretq

    .balign 16
    .global syscall_entry
syscall_entry:                      /* interrupts off and flags cleaned by SFMASK */
    swapgs
    mov gs:[{SCRATCH}], rsp
    mov rsp, gs:[{KERNEL_STACK}]
    sub rsp, {FRAME}
    mov [rsp + {FLAGS}], r11
    mov r11, gs:[{SCRATCH}]
    mov [rsp + {RSP}], r11
    mov [rsp + {RIP}], rcx
    mov [rsp + {ERROR}], rax
    mov [rsp + {RDI}], rdi
    mov [rsp + {RSI}], rsi
    mov [rsp + {RDX}], rdx
    mov [rsp + {R10}], r10
    mov [rsp + {R8}], r8
    mov [rsp + {R9}], r9
    mov rdi, rsp
    call {syscall}
    mov r11, [rsp + {FLAGS}]
    test edx, edx
    jnz syscall_full_frame
    test r11d, 0x10100              /* TF, RF: sysret is no way to single-step, and clears RF */
    jnz syscall_full_frame
    mov rcx, [rsp + {RIP}]
    mov rdi, [rsp + {RDI}]
    mov rsi, [rsp + {RSI}]
    mov rdx, [rsp + {RDX}]
    mov r10, [rsp + {R10}]
    mov r8, [rsp + {R8}]
    mov r9, [rsp + {R9}]
    mov rsp, [rsp + {RSP}]
    swapgs
    sysretq

syscall_full_frame:                      /* the user's RBX, RBP and R12 to R15 are in the registers still */
    mov rcx, [rsp + {RIP}]
    mov [rsp + {RCX}], rcx
    mov [rsp + {R11}], r11
    mov [rsp + {RAX}], rax
    mov [rsp + {RBX}], rbx
    mov [rsp + {RBP}], rbp
    mov [rsp + {R12}], r12
    mov [rsp + {R13}], r13
    mov [rsp + {R14}], r14
    mov [rsp + {R15}], r15
    mov qword ptr [rsp + {SS}], 0x2b
    mov qword ptr [rsp + {CS}], 0x33
    mov qword ptr [rsp + {VECTOR}], {VECTOR_SYSCALL}
    mov rdi, rsp
    call {whole}
    jmp return_to_user
    .popsection
    "#,
    R15 = const offset::R15,
    R14 = const offset::R14,
    R13 = const offset::R13,
    R12 = const offset::R12,
    RBP = const offset::RBP,
    RBX = const offset::RBX,
    R11 = const offset::R11,
    R10 = const offset::R10,
    R9 = const offset::R9,
    R8 = const offset::R8,
    RAX = const offset::RAX,
    RCX = const offset::RCX,
    RDX = const offset::RDX,
    RSI = const offset::RSI,
    RDI = const offset::RDI,
    VECTOR = const offset::VECTOR,
    ERROR = const offset::ERROR,
    RIP = const offset::RIP,
    CS = const offset::CS,
    FLAGS = const offset::FLAGS,
    RSP = const offset::RSP,
    SS = const offset::SS,
    FRAME = const offset::SIZE,
    IRQ_STACK = const percpu::IRQ_STACK,
    KERNEL_STACK = const percpu::KERNEL_STACK,
    SCRATCH = const percpu::SCRATCH,
    PREEMPT = const percpu::PREEMPT,
    VECTOR_SYSCALL = const VECTOR_SYSCALL,
    exception = sym trap::exception,
    interrupt = sym trap::interrupt,
    interrupt_from_user = sym trap::interrupt_from_user,
    paranoid = sym trap::paranoid,
    preempt = sym trap::preempt,
    syscall = sym trap::syscall,
    whole = sym trap::syscall_full_frame,
);

unsafe extern "C" {
    fn syscall_entry();
}

/// Address of the `syscall` entry.
pub(super) fn syscall_address() -> u64 {
    syscall_entry as *const () as u64
}

/// Enters user mode with the registers of a frame on a kernel stack.
///
/// # Safety
/// Interrupts must be off, GS the kernel's, and nothing of the present stack may be needed again.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn load_frame(frame: *const UserFrame) -> ! {
    naked_asm!("mov rsp, rdi", "jmp return_to_user")
}
