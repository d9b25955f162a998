//! The first instructions: from the PVH entry to 64-bit Rust, and the trampoline of the other CPUs.
//!
//! The boot loader enters in 32-bit protected mode with paging off; EBX holds the physical address of `hvm_start_info` (Xen's
//! PVH boot ABI, which QEMU, Firecracker and Cloud Hypervisor implement). The boot page tables are constant data: they map
//! the first 4 GiB at 0 and at the base of the direct map, and the first GiB at the kernel's base, all in pages of 2 MiB. The
//! boot CPU uses them until `paging` has built the real tables, and each other CPU between its trampoline and the load of the
//! real root.
use core::arch::global_asm;

global_asm!(
    r#"
    .pushsection .note.pvh, "a", @note
    .balign 4
    .long 4, 4, 18                  /* name size, value size, XEN_ELFNOTE_PHYS32_ENTRY */
    .asciz "Xen"
    .long pvh_entry_phys
    .popsection

    .pushsection .boot.text, "ax", @progbits
    .code32
    .global pvh_entry
pvh_entry:
    cli
    cld
    mov esi, ebx
    jmp enter_long

    .global boot_ap32
boot_ap32:                          /* from the trampoline, in 32-bit mode */
    mov eax, 0x18
    mov ds, eax
    mov es, eax
    mov ss, eax
enter_long:                         /* ESI is handed on */
    mov eax, cr4
    or eax, 0x20                    /* PAE */
    mov cr4, eax
    mov eax, offset boot_pml4_phys
    mov cr3, eax
    mov ecx, 0xc0000080             /* EFER: LME */
    rdmsr
    or eax, 0x100
    wrmsr
    mov eax, cr0
    and eax, 0x9fffffff             /* CD, NW off: a CPU out of INIT has its cache off */
    or eax, 0x80010001              /* PG, WP, PE */
    mov cr0, eax
    mov eax, offset boot_gdtr_phys
    lgdt [eax]
    /* Far jump into the 64-bit segment. */
    .byte 0xea
    .long boot_start64_phys
    .word 0x10
    .code64
    .global boot_start64
boot_start64:
    movabs rax, offset boot_high
    jmp rax
boot_high:
    lgdt [rip + boot_gdtr_high]
    xor eax, eax
    mov ds, eax
    mov es, eax
    mov fs, eax
    mov gs, eax
    mov eax, 0x18
    mov ss, eax
    xor ebp, ebp
    mov edi, esi
    cmp dword ptr [rip + boot_cpu_done], 0
    jne 3f
    mov dword ptr [rip + boot_cpu_done], 1
    lea rsp, [rip + boot_stack_top]
    call {start}
    ud2
3:  lea rsp, [rip + ap_stack_top]   /* one serves all, for they start one at a time */
    call {ap_start}
    ud2
    .popsection

    /* Copied to a page below 1 MiB, where a CPU out of INIT starts in real mode. */
    .pushsection .rodata.trampoline, "a", @progbits
    .code16
    .global ap_trampoline, ap_trampoline_end
ap_trampoline:
    cli
    cld
    mov ax, cs
    mov ds, ax
    .byte 0x66, 0x0f, 0x01, 0x16    /* lgdt with a 32-bit base, address below */
    .word ap_gdtr - ap_trampoline
    mov eax, cr0
    or al, 1
    mov cr0, eax
    .byte 0x66, 0xea                /* far jump with a 32-bit offset */
    .long boot_ap32_phys
    .word 0x20
ap_gdtr:
    .word 39
    .long boot_gdt_phys
ap_trampoline_end:
    .code64
    .popsection

    .pushsection .boot.data, "aw", @progbits
    .balign 4096
    .global boot_pml4, boot_pdpt_low, boot_pdpt_high, boot_pd
boot_pml4:
    .quad boot_pdpt_low_phys + 3
    .fill 272, 8, 0
    .quad boot_pdpt_low_phys + 3    /* entry 273: the direct map */
    .fill 237, 8, 0
    .quad boot_pdpt_high_phys + 3   /* entry 511: the kernel */
boot_pdpt_low:
    .quad boot_pd_phys + 3
    .quad boot_pd_phys + 0x1003
    .quad boot_pd_phys + 0x2003
    .quad boot_pd_phys + 0x3003
    .fill 508, 8, 0
boot_pdpt_high:
    .fill 510, 8, 0
    .quad boot_pd_phys + 3
    .quad 0
boot_pd:
    .set frame, 0
    .rept 2048
    .quad frame + 0x83              /* present, writable, 2 MiB */
    .set frame, frame + 0x200000
    .endr

    .balign 16
    .global boot_gdt, boot_gdtr
boot_gdt:
    .quad 0, 0
    .quad 0x00af9b000000ffff        /* 0x10: 64-bit code */
    .quad 0x00cf93000000ffff        /* 0x18: data */
    .quad 0x00cf9b000000ffff        /* 0x20: 32-bit code, for the trampoline */
boot_gdtr:
    .word 39
    .quad boot_gdt_phys
boot_gdtr_high:
    .word 39
    .quad boot_gdt
    .balign 4
boot_cpu_done:
    .long 0
    .popsection

    .pushsection .bss, "aw", @nobits
    .balign 16
    .skip 32768
boot_stack_top:
    .skip 16384
ap_stack_top:
    .popsection
    "#,
    start = sym super::start,
    ap_start = sym super::super::smp::ap_start,
);
