//! Process 1, from the initial RAM disk to its first instruction.

use alloc::vec::Vec;

use drivers::serial;
use hal::{BootInfo, kprintln};
use proc::first;

use super::leak;
use crate::boot::Options;

/// Nanoseconds between the timer's interrupts with the boot option `sections`.
const SECTIONS_NS: u64 = 50_000;

/// Paths tried for init, in Linux's order, if the command line has none.
const INITS: [&[u8]; 5] = [
    b"/init",
    b"/sbin/init",
    b"/etc/init",
    b"/bin/init",
    b"/bin/sh",
];

/// Makes the root file system and starts init. Called by the boot thread; panics if either fails.
pub(super) fn init_process(info: &BootInfo, options: &Options) {
    let boot = match fs::init(&mem::initrd(info), &options.cmdline) {
        Ok(boot) => boot,
        Err(e) => panic!("no root file system: {e:?}"),
    };
    if proc::vdso::init().is_err() {
        panic!("no memory for the object that programs read the clocks with");
    }
    serial::start(tty::console::input);
    net::inet::late::start();
    let options = options.clone();
    if first::make_init(boot.files, boot.fs, move || run_init(&options)).is_err() {
        panic!("no memory for init");
    }
}

/// Init's thread: executes init. Panics if no path can be executed.
fn run_init(options: &Options) {
    leak::note_start();
    let named: Option<Vec<u8>> = options.init.clone();
    let tried: Vec<&[u8]> = match &named {
        Some(name) => alloc::vec![name.as_slice()],
        None => INITS.to_vec(),
    };
    for path in tried {
        match syscall::exec_init(path, &options.args, &options.env) {
            Ok(frame) => {
                mem::fail_allocations(options.failalloc);
                if options.sections {
                    task::timer::probe_every(SECTIONS_NS);
                }
                hal::context::enter_user(&frame)
            }
            Err(e) => kprintln!(
                "{}: {}",
                alloc::string::String::from_utf8_lossy(path),
                e.name()
            ),
        }
    }
    panic!("no init could be run; see rdinit= and init=");
}
