//! QEMU's plugin interface — declared here because Debian ships no header — and safe wrappers of the calls that are used.
//!
//! Guarantee: one file works with version 1 of the interface (QEMU 4.2 to 8.2) and with later ones (tested: QEMU 10.0).
//! Mechanism: QEMU refuses a plugin whose version it does not support, and reads the version after it has loaded the
//! file: so code that runs while the file is loaded sets the version to one that this QEMU offers. Calls that only some
//! versions have are looked up by name.
//!
//! Facts relied on: a callback gets the user data that was registered with it; handles of blocks, instructions and
//! accesses are valid during the callback that gets them. Version 2 removed inline additions without a CPU's index;
//! version 3 copies an instruction's bytes instead of lending them.

use coherence::insn::Kind;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::marker::PhantomData;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::Relaxed};

/// The version of the interface that is used; QEMU reads it after it has loaded this file.
#[unsafe(no_mangle)]
pub static qemu_plugin_version: AtomicI32 = AtomicI32::new(1);

/// The newest version that this QEMU has; given to `qemu_plugin_install`.
static CURRENT: AtomicI32 = AtomicI32::new(1);

const LENT_BYTES_UNTIL: c_int = 2;

#[used]
#[unsafe(link_section = ".init_array")]
static ON_LOAD: extern "C" fn() = on_load;

extern "C" fn on_load() {
    if lookup(c"qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu").is_some() {
        qemu_plugin_version.store(2, Relaxed);
    }
}

/// Looks up a function of QEMU, the program that has loaded this file.
fn lookup(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the name ends with a zero byte; a null handle means the whole program.
    let found = unsafe { dlsym(std::ptr::null_mut(), name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

type Inline = unsafe extern "C" fn(*mut RawBlock, c_int, *mut c_void, u64);

/// Version 1's call that compiles an addition into a block.
fn inline() -> Option<Inline> {
    static FOUND: OnceLock<Option<Inline>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let found = lookup(c"qemu_plugin_register_vcpu_tb_exec_inline")?;
        // SAFETY: the function of that name has this type in every version that has it.
        Some(unsafe { std::mem::transmute::<*mut c_void, Inline>(found) })
    })
}

#[repr(C)]
struct RawBlock(c_void);
#[repr(C)]
struct RawInsn(c_void);
#[repr(C)]
struct RawPhysical(c_void);

#[repr(C)]
struct Info {
    target_name: *const c_char,
    version_min: c_int,
    version_cur: c_int,
    system_emulation: bool,
    smp_vcpus: c_int,
    max_vcpus: c_int,
}

const NO_REGISTERS: c_int = 0;
const ADD_U64: c_int = 0;
const STORES: c_int = 2;
const LOADS_AND_STORES: c_int = 3;

type OnEntry = extern "C" fn(c_uint, *mut c_void);
type OnAccess = extern "C" fn(c_uint, u32, u64, *mut c_void);

unsafe extern "C" {
    fn qemu_plugin_register_vcpu_tb_trans_cb(id: u64, cb: extern "C" fn(u64, *mut RawBlock));
    fn qemu_plugin_register_vcpu_tb_exec_cb(
        tb: *mut RawBlock,
        cb: OnEntry,
        flags: c_int,
        data: *mut c_void,
    );
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
    fn qemu_plugin_register_vcpu_mem_cb(
        insn: *mut RawInsn,
        cb: OnAccess,
        flags: c_int,
        rw: c_int,
        data: *mut c_void,
    );
    fn qemu_plugin_register_atexit_cb(
        id: u64,
        cb: extern "C" fn(u64, *mut c_void),
        data: *mut c_void,
    );
    fn qemu_plugin_tb_n_insns(tb: *const RawBlock) -> usize;
    fn qemu_plugin_tb_vaddr(tb: *const RawBlock) -> u64;
    fn qemu_plugin_tb_get_insn(tb: *const RawBlock, index: usize) -> *mut RawInsn;
    // Before version 3 this function took the instruction alone and returned a pointer: further arguments are harmless
    // to a C function.
    fn qemu_plugin_insn_data(insn: *const RawInsn, to: *mut c_void, len: usize) -> usize;
    fn qemu_plugin_insn_size(insn: *const RawInsn) -> usize;
    fn qemu_plugin_insn_vaddr(insn: *const RawInsn) -> u64;
    fn qemu_plugin_mem_size_shift(info: u32) -> c_uint;
    fn qemu_plugin_mem_is_store(info: u32) -> bool;
    fn qemu_plugin_get_hwaddr(info: u32, vaddr: u64) -> *mut RawPhysical;
    fn qemu_plugin_hwaddr_is_io(physical: *const RawPhysical) -> bool;
    fn qemu_plugin_hwaddr_phys_addr(physical: *const RawPhysical) -> u64;
}

/// The purpose of a callback at a block's entry; passed as the callback's user data.
#[derive(Clone, Copy)]
pub enum Inserted {
    /// Count `insns` of an event.
    Block {
        /// The event's index.
        event: usize,
        /// Instructions in the block.
        insns: usize,
    },
    /// Count an execution of a watched entry point.
    Watch(usize),
}

impl Inserted {
    fn pack(self) -> *mut c_void {
        let bits = match self {
            Inserted::Block { event, insns } => event << 32 | insns,
            Inserted::Watch(index) => 1 << 63 | index,
        };
        std::ptr::without_provenance_mut(bits)
    }

    fn unpack(data: *mut c_void) -> Inserted {
        let bits = data.addr();
        if bits >> 63 == 1 {
            Inserted::Watch(bits & 0xffff)
        } else {
            Inserted::Block {
                event: bits >> 32,
                insns: bits & 0xffff_ffff,
            }
        }
    }
}

/// The instruction that makes an access; passed as the callback's user data.
#[derive(Clone, Copy)]
pub struct Site {
    /// The instruction's virtual address.
    pub pc: u64,
    /// What kind of instruction it is.
    pub kind: Kind,
}

impl Site {
    /// The kind is packed into the user data by an exclusive or at this bit: bits 48 to 63 of a virtual address are
    /// equal, so that both can be restored.
    const FREE: u32 = 56;
    const KINDS: [Kind; 6] = [
        Kind::Plain,
        Kind::String,
        Kind::Fill,
        Kind::Atomic,
        Kind::Call,
        Kind::Return,
    ];

    fn pack(self) -> *mut c_void {
        let kind = Site::KINDS.iter().position(|&kind| kind == self.kind);
        let bits = self.pc ^ (kind.unwrap_or(0) as u64) << Self::FREE;
        std::ptr::without_provenance_mut(bits as usize)
    }

    fn unpack(data: *mut c_void) -> Site {
        let bits = data.addr() as u64;
        let plain = if bits >> 63 == 1 { 7 } else { 0 };
        let kind = (bits >> Self::FREE & 7) ^ plain;
        Site {
            pc: bits ^ kind << Self::FREE,
            kind: Site::KINDS[kind as usize % Site::KINDS.len()],
        }
    }
}

/// A counter and the amount to be added to it; lives for ever, as a translated block may.
struct Addition {
    counter: &'static AtomicU64,
    n: u64,
}

/// Bytes of the longest instruction.
const LONGEST: usize = 16;

/// An instruction's bytes.
#[derive(Default)]
pub struct Bytes {
    bytes: [u8; LONGEST],
    len: usize,
}

impl std::ops::Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// A block being translated.
pub struct Block<'a> {
    raw: *mut RawBlock,
    _during_callback: PhantomData<&'a ()>,
}

impl Block<'_> {
    /// Virtual address of its first instruction.
    pub fn addr(&self) -> u64 {
        // SAFETY: `raw` is the handle of the running translation callback.
        unsafe { qemu_plugin_tb_vaddr(self.raw) }
    }

    /// Its number of instructions.
    pub fn len(&self) -> usize {
        // SAFETY: as in `addr`.
        unsafe { qemu_plugin_tb_n_insns(self.raw) }
    }

    fn insn(&self, index: usize) -> *mut RawInsn {
        assert!(index < self.len());
        // SAFETY: as in `addr`, and the index is in range.
        unsafe { qemu_plugin_tb_get_insn(self.raw, index) }
    }

    /// The bytes of instruction `index`.
    pub fn bytes(&self, index: usize) -> Bytes {
        let insn = self.insn(index);
        let mut bytes = Bytes::default();
        // SAFETY: handle as in `addr`. Later versions copy as many bytes as there is room for; earlier ones give a pointer
        // to as many bytes as the size says, which they keep until the callback returns.
        unsafe {
            bytes.len = qemu_plugin_insn_size(insn).min(LONGEST);
            let got = qemu_plugin_insn_data(insn, bytes.bytes.as_mut_ptr().cast(), bytes.len);
            if CURRENT.load(Relaxed) <= LENT_BYTES_UNTIL {
                let from = std::ptr::with_exposed_provenance::<u8>(got);
                from.copy_to_nonoverlapping(bytes.bytes.as_mut_ptr(), bytes.len);
            }
        }
        bytes
    }

    /// Adds `n` to `counter` at each entry, not atomically; without a call if QEMU offers that.
    pub fn add_on_entry(&self, counter: &'static AtomicU64, n: u64) {
        // SAFETY: handle as in `addr`; the counter lives for ever and may be written through its pointer. The caller
        // uses this on machines of one CPU, so that there is no other writer. The callback has the required type.
        unsafe {
            if let Some(inline) = inline() {
                inline(self.raw, ADD_U64, counter.as_ptr().cast(), n);
            } else {
                let addition: &'static mut Addition = Box::leak(Box::new(Addition { counter, n }));
                let data = std::ptr::from_mut(addition).cast();
                qemu_plugin_register_vcpu_tb_exec_cb(self.raw, on_addition, NO_REGISTERS, data);
            }
        }
    }

    /// Calls `entered` at each entry.
    pub fn call_on_entry(&self, what: Inserted) {
        // SAFETY: handle as in `addr`; the callback has the required type and takes any user data.
        unsafe {
            qemu_plugin_register_vcpu_tb_exec_cb(self.raw, on_entry, NO_REGISTERS, what.pack())
        }
    }

    /// Calls `accessed` after each memory access of instruction `index`, with its `site`.
    pub fn call_on_access(&self, index: usize, site: impl FnOnce(u64) -> Site, stores_only: bool) {
        let insn = self.insn(index);
        let which = if stores_only {
            STORES
        } else {
            LOADS_AND_STORES
        };
        // SAFETY: handles as in `addr`; the callback has the required type and takes any user data.
        unsafe {
            let site = site(qemu_plugin_insn_vaddr(insn)).pack();
            qemu_plugin_register_vcpu_mem_cb(insn, on_access, NO_REGISTERS, which, site);
        }
    }
}

/// A memory access that has just been made.
pub struct Access {
    info: u32,
    /// Its virtual address.
    pub vaddr: u64,
}

impl Access {
    /// Whether it was a store.
    pub fn is_store(&self) -> bool {
        // SAFETY: the value came with the running access callback.
        unsafe { qemu_plugin_mem_is_store(self.info) }
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        // SAFETY: as in `is_store`.
        1 << unsafe { qemu_plugin_mem_size_shift(self.info) }
    }

    /// The physical address, as QEMU reports it; none for devices.
    pub fn physical(&self) -> Option<u64> {
        // SAFETY: called during the access callback, as QEMU asks; a null result is not used.
        unsafe {
            let physical = qemu_plugin_get_hwaddr(self.info, self.vaddr);
            if physical.is_null() || qemu_plugin_hwaddr_is_io(physical) {
                return None;
            }
            Some(qemu_plugin_hwaddr_phys_addr(physical))
        }
    }
}

extern "C" fn on_translation(_id: u64, raw: *mut RawBlock) {
    crate::translate(&Block {
        raw,
        _during_callback: PhantomData,
    });
}

extern "C" fn on_entry(cpu: c_uint, data: *mut c_void) {
    crate::entered(cpu, Inserted::unpack(data));
}

extern "C" fn on_addition(_cpu: c_uint, data: *mut c_void) {
    // SAFETY: registered with an addition that lives for ever.
    let Addition { counter, n } = unsafe { &*data.cast::<Addition>() };
    counter.store(counter.load(Relaxed) + n, Relaxed);
}

extern "C" fn on_access(cpu: c_uint, info: u32, vaddr: u64, data: *mut c_void) {
    crate::accessed(cpu, Site::unpack(data), &Access { info, vaddr });
}

extern "C" fn on_exit(_id: u64, _data: *mut c_void) {
    crate::finish();
}

/// Called by QEMU once, before the guest runs; a result other than 0 makes QEMU exit.
#[unsafe(no_mangle)]
extern "C" fn qemu_plugin_install(
    id: u64,
    info: *const Info,
    argc: c_int,
    argv: *const *const c_char,
) -> c_int {
    // SAFETY: QEMU passes its description, and `argc` strings that end with a zero byte.
    let (system, smp, args) = unsafe {
        let args =
            (0..argc as usize).map(|i| CStr::from_ptr(*argv.add(i)).to_string_lossy().into_owned());
        CURRENT.store((*info).version_cur, Relaxed);
        ((*info).system_emulation, (*info).smp_vcpus, args.collect())
    };
    if !system {
        eprintln!("coherence: whole machines only");
        return 1;
    }
    if let Err(error) = crate::install(smp as u32, args) {
        eprintln!("coherence: {error}");
        return 1;
    }
    // SAFETY: `id` is the one that QEMU passed; the callbacks have the required types.
    unsafe {
        qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
        qemu_plugin_register_atexit_cb(id, on_exit, std::ptr::null_mut());
    }
    0
}
