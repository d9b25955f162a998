//! Devices: frames outside the page array, mapped directly, never managed.

use std::sync::Arc;

use vm::object::{Cache, Frames, ObjectRef};
use vm::space::{Advice, MapArgs, RemapArgs, RemapTarget, Source};
use vm::{Access, EntryFlags, FaultError, MapProt, Vm, VmError};
use vm_host::Sim;
use vm_host::arena::DEVICE;
use vm_host::program::{Program, check_frames};

const PAGE: u64 = 4096;
/// Frames of the machine; each costs an interpreter time.
const FRAMES: usize = if cfg!(miri) { 256 } else { 2048 };
const AT: u64 = 0x7000_0000;
/// Index of the device's first frame, as in /dev/mem.
const FIRST: u64 = DEVICE.0 as u64;

struct Lab {
    vm: Arc<Vm<Sim>>,
    free: usize,
}

impl Lab {
    fn new() -> Lab {
        let vm = Arc::new(Sim::new(FRAMES, 2, 1).into_vm());
        let free = vm.alloc.free_pages();
        Lab { vm, free }
    }

    /// An object of the first two frames, which are registers.
    fn device(&self) -> ObjectRef {
        self.frames(0, 2, Cache::Uncached)
    }

    fn frames(&self, first: u32, count: u32, cache: Cache) -> ObjectRef {
        let frames = Frames {
            index: FIRST as u32 + first,
            first: DEVICE.add(first),
            count,
            cache,
        };
        ObjectRef::new_device(&self.vm, frames).unwrap()
    }

    fn map(&self, program: &Program, device: &ObjectRef, first: u64, pages: u64, shared: bool) {
        let args = MapArgs {
            flags: if shared {
                EntryFlags::SHARED
            } else {
                EntryFlags::empty()
            },
            source: Source::Object(device, (FIRST + first) * PAGE),
            ..MapArgs::anon(pages * PAGE, MapProt::READ | MapProt::WRITE).at(AT)
        };
        assert_eq!(program.space.map(&self.vm, &args), Ok(AT));
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            check_frames(&self.vm, self.free);
        }
    }
}

#[test]
fn shared_mappings_show_the_frames_themselves() {
    let lab = Lab::new();
    let device = lab.device();
    let (a, b) = (Program::new(&lab.vm), Program::new(&lab.vm));
    lab.map(&a, &device, 0, 2, true);
    lab.map(&b, &device, 1, 1, true);
    a.run(|p| {
        p.write(AT + PAGE + 8, 77).unwrap();
        p.write(AT, 5).unwrap();
    });
    b.run(|p| assert_eq!(p.read(AT + 8), Ok(77)));
    // A fork shares the device further, and the parent's tables, write-protected high up, become writable again.
    let child = a.fork().unwrap();
    child.run(|p| p.write(AT, 6).unwrap());
    a.run(|p| {
        assert_eq!(p.read(AT), Ok(6));
        p.write(AT, 7).unwrap();
    });
    child.run(|p| assert_eq!(p.read(AT), Ok(7)));
    device.release(&lab.vm);
}

#[test]
fn private_mappings_copy_at_the_first_write() {
    let lab = Lab::new();
    let device = lab.device();
    let (a, b) = (Program::new(&lab.vm), Program::new(&lab.vm));
    lab.map(&a, &device, 0, 2, true);
    lab.map(&b, &device, 0, 2, false);
    a.run(|p| p.write(AT + 16, 1).unwrap());
    b.run(|p| {
        assert_eq!(p.read(AT + 16), Ok(1));
        p.write(AT + 24, 2).unwrap();
        assert_eq!(p.read(AT + 16), Ok(1), "the copy has the rest of the page");
    });
    let child = b.fork().unwrap();
    a.run(|p| {
        assert_eq!(p.read(AT + 24), Ok(0), "the device has not seen the write");
        p.write(AT + 16, 3).unwrap();
        p.write(AT + PAGE, 4).unwrap();
    });
    for p in [&b, &child] {
        p.run(|p| {
            assert_eq!(p.read(AT + 16), Ok(1));
            assert_eq!(p.read(AT + 24), Ok(2));
            assert_eq!(p.read(AT + PAGE), Ok(4), "what is not copied is the device");
        });
    }
    device.release(&lab.vm);
}

#[test]
fn a_copy_replaces_the_frame_on_every_cpu() {
    let lab = Lab::new();
    let device = lab.device();
    let program = Program::new(&lab.vm);
    lab.map(&program, &device, 0, 1, false);
    program.load();
    ksync::host::set_cpu(1);
    lab.vm.epoch.online(1);
    program.load();
    assert_eq!(program.read(AT), Ok(0));
    ksync::host::set_cpu(0);
    program.write(AT, 9).unwrap();
    ksync::host::set_cpu(1);
    assert_eq!(program.read(AT), Ok(9));
    program.unload();
    lab.vm.epoch.offline(1);
    ksync::host::set_cpu(0);
    program.unload();
    device.release(&lab.vm);
}

#[test]
fn unmapping_and_protection_reach_the_leaves() {
    let lab = Lab::new();
    let device = lab.device();
    let program = Program::new(&lab.vm);
    lab.map(&program, &device, 0, 2, true);
    program.run(|p| {
        p.write(AT, 1).unwrap();
        p.write(AT + PAGE, 1).unwrap();
        p.space.protect(&lab.vm, AT, PAGE, MapProt::READ).unwrap();
        assert_eq!(p.write(AT, 2), Err(FaultError::Denied));
        p.space.unmap(&lab.vm, AT + PAGE, PAGE).unwrap();
        assert_eq!(p.read(AT + PAGE), Err(FaultError::NotMapped));
        // Faults rebuild dropped tables.
        p.space
            .pmap()
            .drop_tables(&lab.vm, |_, _| panic!("a device's frame is managed"));
        assert_eq!(p.read(AT), Ok(1));
    });
    device.release(&lab.vm);
}

#[test]
fn beyond_the_frames_is_a_bus_error() {
    let lab = Lab::new();
    let device = lab.device();
    let program = Program::new(&lab.vm);
    lab.map(&program, &device, 0, 3, true);
    program.run(|p| {
        p.write(AT + PAGE, 1).unwrap();
        assert_eq!(p.read(AT + 2 * PAGE), Err(FaultError::Bus));
    });
    program.space.unmap(&lab.vm, AT, 3 * PAGE).unwrap();
    lab.map(&program, &device, 0, 3, false);
    program.run(|p| assert_eq!(p.write(AT + 2 * PAGE, 1), Err(FaultError::Bus)));
    device.release(&lab.vm);
}

#[test]
fn memory_types_reach_the_tables() {
    // The simulated CPUs fail if a frame is reached with a wrong memory type.
    let lab = Lab::new();
    for (first, cache) in [
        (0, Cache::Uncached),
        (2, Cache::WriteCombining),
        (3, Cache::WriteBack),
    ] {
        let device = lab.frames(first, 1, cache);
        let program = Program::new(&lab.vm);
        lab.map(&program, &device, u64::from(first), 1, true);
        program.run(|p| {
            assert_eq!(p.read(AT), Ok(0));
            p.write(AT, 1).unwrap();
        });
        device.release(&lab.vm);
    }
}

#[test]
fn what_needs_pages_is_refused() {
    let lab = Lab::new();
    let device = lab.device();
    let program = Program::new(&lab.vm);
    lab.map(&program, &device, 0, 2, true);
    let space = &program.space;
    program.run(|p| p.write(AT, 1).unwrap());
    for advice in [
        Advice::DontNeed,
        Advice::Free,
        Advice::DoFork,
        Advice::DoDump,
    ] {
        assert_eq!(
            space.advise(&lab.vm, AT, PAGE, advice),
            Err(VmError::Invalid)
        );
    }
    let mut word = [0; 8];
    assert_eq!(
        space.read_at(&lab.vm, AT, &mut word),
        Err(FaultError::Denied)
    );
    assert_eq!(space.write_at(&lab.vm, AT, &word), Err(FaultError::Denied));
    let grow = RemapArgs {
        old: AT,
        old_len: 2 * PAGE,
        new_len: 3 * PAGE,
        target: RemapTarget::MayMove,
        keep_old: false,
    };
    assert_eq!(space.remap(&lab.vm, &grow), Err(VmError::NotMapped));
    let second = RemapArgs {
        old_len: 0,
        new_len: PAGE,
        ..grow
    };
    assert_eq!(space.remap(&lab.vm, &second), Err(VmError::NotMapped));
    let moved = RemapArgs {
        new_len: 2 * PAGE,
        target: RemapTarget::Fixed(AT + 16 * PAGE),
        ..grow
    };
    assert_eq!(space.remap(&lab.vm, &moved), Ok(AT + 16 * PAGE));
    program.run(|p| assert_eq!(p.read(AT + 16 * PAGE), Ok(1)));
    space
        .populate(&lab.vm, AT + 16 * PAGE, 2 * PAGE, Access::Write)
        .unwrap();
    let mut resident = Vec::new();
    space
        .resident(&lab.vm, AT + 16 * PAGE, 2 * PAGE, &mut resident)
        .unwrap();
    assert_eq!(resident, [1, 1]);
    device.release(&lab.vm);
}

#[test]
fn maintenance_scans_leave_devices_alone() {
    let lab = Lab::new();
    let device = lab.device();
    let program = Program::new(&lab.vm);
    lab.map(&program, &device, 0, 2, true);
    program.run(|p| p.write(AT, 3).unwrap());
    let tables = program.space.usage(&lab.vm);
    assert_eq!(tables.resident, 1);
    program.run(|p| assert_eq!(p.read(AT), Ok(3)));
    device.release(&lab.vm);
}
