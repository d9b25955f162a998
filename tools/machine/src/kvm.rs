//! Whether KVM really works here: a machine is booted with it and must end as told.
//!
//! A /dev/kvm that opens is no proof: in a virtual machine without nested virtualisation, or in a sandbox, QEMU
//! fails later or hangs. So the probe boots a kernel of a few instructions that writes to the debug-exit port. Before
//! that it executes `clac`, as each entry into the kernel does: a nested hypervisor that emulates instructions may lack
//! it, and stops the machine there.

use crate::tools;
use anyhow::Result;
use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Status that the probe's kernel makes QEMU exit with: it writes 0x21 to the port.
const STATUS: i32 = 0x21 << 1 | 1;

/// The address the probe is loaded at.
const LOAD: u32 = 0x10_0000;

/// Tells whether KVM works; the answer is kept in `build/kvm` until the machine's boot id or the probe changes.
pub fn works() -> bool {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let Ok(build) = tools::build_dir() else {
        return false;
    };
    let cache = build.join("kvm");
    let same = fs::read(build.join("kvm-probe")).is_ok_and(|probe| probe == probe_kernel());
    let kept = fs::read_to_string(&cache).unwrap_or_default();
    match kept.strip_prefix(&boot).filter(|_| same) {
        Some("yes") => return true,
        Some("no") => return false,
        _ => {}
    }
    let answer = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/kvm")
        .is_ok()
        && probe().unwrap_or(false);
    let _ = fs::write(
        cache,
        format!("{boot}{}", if answer { "yes" } else { "no" }),
    );
    answer
}

fn probe() -> Result<bool> {
    let build = tools::build_dir()?;
    // So that an older answer is not taken for that of this probe if it is interrupted.
    let _ = fs::remove_file(build.join("kvm"));
    let kernel = build.join("kvm-probe");
    fs::write(&kernel, probe_kernel())?;
    let mut child = Command::new("qemu-system-x86_64")
        .args([
            "-accel",
            "kvm",
            "-cpu",
            "max",
            "-smp",
            "2",
            "-m",
            "64",
            "-display",
            "none",
            "-no-reboot",
            "-nodefaults",
        ])
        .args([
            "-device",
            "isa-debug-exit,iobase=0xf4,iosize=0x04",
            "-kernel",
        ])
        .arg(&kernel)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status.code() == Some(STATUS));
        }
        if began.elapsed() > Duration::from_secs(10) {
            child.kill()?;
            child.wait()?;
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A 32-bit ELF with one loadable segment and a PVH entry note.
fn probe_kernel() -> Vec<u8> {
    const CODE: [u8; 25] = [
        0xb8, 7, 0, 0, 0, 0x31, 0xc9, 0x0f, 0xa2, // mov eax, 7; xor ecx, ecx; cpuid
        0x0f, 0xba, 0xe3, 20, 0x73, 3, // bt ebx, 20 (the processor has clac); jnc over it
        0x0f, 0x01, 0xca, // clac
        0xb0, 0x21, 0xe6, 0xf4, 0xf4, 0xeb,
        0xfd, // mov al, 0x21; out 0xf4, al; hlt; jmp back to hlt
    ];
    const HEADERS: u32 = 52 + 2 * 32;
    const NOTE: u32 = 20;
    let mut note = Vec::new();
    // Name size, descriptor size, type XEN_ELFNOTE_PHYS32_ENTRY, name, entry address.
    for word in [
        4,
        4,
        18,
        u32::from_le_bytes(*b"Xen\0"),
        LOAD + HEADERS + NOTE,
    ] {
        note.extend_from_slice(&word.to_le_bytes());
    }
    let size = HEADERS + NOTE + CODE.len() as u32;
    let mut elf = Vec::from(*b"\x7fELF\x01\x01\x01\0\0\0\0\0\0\0\0\0");
    let put16 = |elf: &mut Vec<u8>, values: &[u16]| {
        values
            .iter()
            .for_each(|v| elf.extend_from_slice(&v.to_le_bytes()))
    };
    let put32 = |elf: &mut Vec<u8>, values: &[u32]| {
        values
            .iter()
            .for_each(|v| elf.extend_from_slice(&v.to_le_bytes()))
    };
    put16(&mut elf, &[2, 3]); // executable, i386
    put32(&mut elf, &[1, LOAD + HEADERS + NOTE, 52, 0, 0]);
    put16(&mut elf, &[52, 32, 2, 0, 0, 0]);
    put32(&mut elf, &[1, 0, LOAD, LOAD, size, size, 7, 0x1000]); // load
    put32(
        &mut elf,
        &[4, HEADERS, LOAD + HEADERS, LOAD + HEADERS, NOTE, NOTE, 4, 4],
    ); // note
    elf.extend_from_slice(&note);
    elf.extend_from_slice(&CODE);
    elf
}
