//! The QEMU command line of a machine, and what its exit status means.
//!
//! Protocol with the guest: with `pantala.exit=debug` on its command line the kernel, when process 1 ends with
//! status S, writes S to port 0xf4, and QEMU exits with (S << 1) | 1. An exit status has only eight bits, so the
//! image's init also prints `init exited with status S`, from which statuses of 128 and more are read.

use crate::kvm;
use crate::options::{Accel, Machine};
use crate::tools;
use anyhow::{Context, Result};
use std::path::Path;
use std::process::Command;

/// What the serial port is connected to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Serial {
    /// Output only, on standard output.
    Output,
    /// A terminal: every key goes to the guest, Ctrl-A is QEMU's escape.
    Terminal,
}

/// The accelerator for `machine`.
pub fn accel(machine: &Machine) -> &'static str {
    match machine.accel {
        Some(Accel::Kvm) => "kvm",
        Some(Accel::TcgSingle | Accel::Icount) => "tcg,thread=single",
        Some(Accel::Tcg) => "tcg,thread=multi",
        None if kvm::works() => "kvm",
        None => "tcg,thread=multi",
    }
}

/// The version of QEMU, its first number.
///
/// # Errors
/// QEMU cannot be run, or says no version.
pub fn version() -> Result<u32> {
    let text = tools::output(
        Command::new("qemu-system-x86_64").arg("--version"),
        "qemu-system-x86_64 --version",
    )?;
    major(&text).with_context(|| format!("no version of QEMU in \"{}\"", text.trim()))
}

fn major(text: &str) -> Option<u32> {
    let (_, version) = text.split_once(" version ")?;
    version.split('.').next()?.parse().ok()
}

/// The command that boots `kernel` with `initrd` and `append` on `machine`.
pub fn command(
    machine: &Machine,
    kernel: &Path,
    initrd: &Path,
    append: &str,
    serial: Serial,
) -> Command {
    let mut command = Command::new("qemu-system-x86_64");
    if machine.accel == Some(Accel::Icount) {
        command.args(["-icount", "shift=0,sleep=off"]);
    }
    command.args([
        "-machine",
        &machine.machine,
        "-accel",
        accel(machine),
        "-cpu",
        &machine.cpu,
    ]);
    command.args([
        "-smp",
        &machine.cpus.to_string(),
        "-m",
        &format!("{}M", machine.mem_mib),
    ]);
    numa(&mut command, machine);
    command
        .arg("-kernel")
        .arg(kernel)
        .arg("-initrd")
        .arg(initrd)
        .args(["-append", append]);
    command.args(["-nodefaults", "-display", "none", "-no-reboot"]);
    command.args(["-device", "isa-debug-exit,iobase=0xf4,iosize=0x04"]);
    match serial {
        Serial::Output => command.args([
            "-chardev",
            "stdio,id=console,signal=on",
            "-serial",
            "chardev:console",
        ]),
        Serial::Terminal => command.args([
            "-chardev",
            "stdio,id=console,signal=off,mux=on",
            "-serial",
            "chardev:console",
            "-mon",
            "chardev=console",
        ]),
    };
    command
}

/// Splits CPUs and memory evenly over the nodes, the remainders to the last.
fn numa(command: &mut Command, machine: &Machine) {
    let Machine {
        cpus,
        mem_mib,
        nodes,
        ..
    } = *machine;
    if nodes < 2 {
        return;
    }
    let (cpus_each, mem_each) = (cpus / nodes, mem_mib / u64::from(nodes));
    for node in 0..nodes {
        let last = node == nodes - 1;
        let first_cpu = node * cpus_each;
        let last_cpu = if last {
            cpus - 1
        } else {
            first_cpu + cpus_each - 1
        };
        let mem = if last {
            mem_mib - mem_each * u64::from(node)
        } else {
            mem_each
        };
        command.args([
            "-object",
            &format!("memory-backend-ram,id=mem{node},size={mem}M"),
        ]);
        command.args([
            "-numa",
            &format!("node,nodeid={node},cpus={first_cpu}-{last_cpu},memdev=mem{node}"),
        ]);
    }
    for (a, b) in (0..nodes).flat_map(|a| (a + 1..nodes).map(move |b| (a, b))) {
        command.args(["-numa", &format!("dist,src={a},dst={b},val=20")]);
    }
}

/// The kernel's command line: console, the way out, then what was asked for.
pub fn append(cmd: Option<&str>, more: &str) -> String {
    let mut line = String::from("console=ttyS0 panic=-1 pantala.exit=debug");
    if let Some(cmd) = cmd {
        line += &format!(" pantala.cmd={}", percent_encode(cmd));
    }
    if !more.is_empty() {
        line += &format!(" {more}");
    }
    line
}

/// Makes `text` one word without quotes.
fn percent_encode(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:=+,@".contains(&byte);
    text.bytes()
        .map(|byte| {
            if plain(byte) {
                char::from(byte).to_string()
            } else {
                format!("%{byte:02x}")
            }
        })
        .collect()
}

/// Init's status from QEMU's exit code and the console's output; none if the guest did not end by itself.
pub fn init_status(code: Option<i32>, console: &str) -> Option<u8> {
    let code = code.filter(|code| code & 1 == 1)?;
    let printed = printed_status(console).map(|(_, status)| status);
    let low = u8::try_from(code >> 1 & 0x7f).ok()?;
    match printed {
        Some(status) => (status & 0x7f == low).then_some(status),
        // QEMU's own failure has status 1, too; then the guest has printed nothing.
        None => (low != 0 || !console.trim().is_empty()).then_some(low),
    }
}

/// The status that init printed, and where: Linux, which has no way out by port 0xf4, panics behind it.
pub fn printed_status(console: &str) -> Option<(usize, u8)> {
    const LINE: &str = "init exited with status ";
    let at = console.rfind(LINE)?;
    let word = console[at + LINE.len()..].split_whitespace().next()?;
    Some((at, word.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linux_panics_when_init_has_ended() {
        let console = "right\ninit exited with status 4\r\nKernel panic";
        assert_eq!(printed_status(console), Some((6, 4)));
        assert_eq!(printed_status("init exited with status"), None);
    }

    #[test]
    fn the_status_is_in_the_exit_code_and_the_printed_line() {
        let said = "...\ninit exited with status 0\n";
        assert_eq!(init_status(Some(1), said), Some(0));
        assert_eq!(init_status(Some(1), "\n"), None);
        assert_eq!(init_status(Some(1), "another init said this"), Some(0));
        assert_eq!(init_status(Some(0), said), None);
        assert_eq!(init_status(None, said), None);
        assert_eq!(init_status(Some(7), "init exited with status 3"), Some(3));
        assert_eq!(
            init_status(Some(7), "init exited with status 131\n"),
            Some(131)
        );
        assert_eq!(init_status(Some(7), "init exited with status 4"), None);
    }

    #[test]
    fn the_version_is_that_of_the_emulator() {
        assert_eq!(
            major("QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg)"),
            Some(7)
        );
        assert_eq!(major("QEMU emulator version 10.0.2"), Some(10));
        assert_eq!(major("another program"), None);
    }

    #[test]
    fn a_command_travels_as_one_word() {
        assert_eq!(
            append(Some("echo \"a b\" 1%"), "quiet").split(' ').count(),
            5
        );
        assert!(append(Some("echo \"a b\""), "").ends_with("pantala.cmd=echo%20%22a%20b%22"));
    }

    #[test]
    fn nodes_get_every_cpu_and_every_mebibyte() {
        let machine = Machine {
            cpus: 5,
            mem_mib: 1001,
            nodes: 2,
            accel: Some(Accel::Tcg),
            ..Machine::default()
        };
        let command = command(&machine, Path::new("k"), Path::new("i"), "", Serial::Output);
        let line = command
            .get_args()
            .map(|arg| arg.to_string_lossy())
            .collect::<Vec<_>>()
            .join(" ");
        assert!(
            line.contains("nodeid=0,cpus=0-1") && line.contains("nodeid=1,cpus=2-4"),
            "{line}"
        );
        assert!(
            line.contains("id=mem0,size=500M") && line.contains("id=mem1,size=501M"),
            "{line}"
        );
    }
}
