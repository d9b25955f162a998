//! The floating-point and vector registers of user threads.
//!
//! The kernel itself does not use them, so they are saved and restored only when a user thread leaves or enters a CPU, and
//! for signal frames. The image is that of XSAVE (of FXSAVE on a CPU without it) in the standard format, which is also the
//! one in a Linux signal frame.
use alloc::alloc::{alloc_zeroed, dealloc};
use core::alloc::Layout;
use core::arch::asm;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use raw_cpuid::CpuId;

use super::features;

/// x87, SSE, AVX and the three parts of AVX-512: the state components that user programs may use.
const WANTED: u64 = 0b1110_0111;
/// Bytes of the FXSAVE image, with which every image begins.
const LEGACY: usize = 512;
/// Bytes of the XSAVE header, which follows that image.
const HEADER: usize = 64;
/// Offset of MXCSR in the image, and its value when a program starts: all exceptions masked.
const MXCSR: usize = 24;
const MXCSR_START: u32 = 0x1f80;
/// Offset of the x87 control word, and its value when a program starts.
const CONTROL_WORD: usize = 0;
const CONTROL_WORD_START: u16 = 0x37f;
/// Offset of the software-reserved bytes, where Linux describes the image in a signal frame.
const SOFTWARE: usize = 464;
/// Magic numbers that frame the image in a signal frame.
const FP_XSTATE_MAGIC1: u32 = 0x4650_5853;
const FP_XSTATE_MAGIC2: u32 = 0x4650_5845;

/// State components in use; 0 without XSAVE. Written once, at boot.
static MASK: AtomicU64 = AtomicU64::new(0);
/// Bytes of an image. Written once, at boot.
static SIZE: AtomicUsize = AtomicUsize::new(LEGACY);
/// MXCSR bits that may be set: all but "denormals are zeros" on the oldest CPUs, whose images have 0 at `MASK_OF_MXCSR`.
/// Written once, at boot.
static MXCSR_MASK: AtomicU32 = AtomicU32::new(0xffbf);
/// Offset in the image of the bits of MXCSR that the CPU has.
const MASK_OF_MXCSR: usize = 28;

/// The 32-bit word at an offset in an image.
fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Reads which bits of MXCSR the CPU has.
fn detect_mxcsr() {
    #[repr(align(16))]
    struct Image([u8; LEGACY]);
    let mut image = Image([0; LEGACY]);
    // SAFETY: FXSAVE is enabled; the image has its size and alignment.
    unsafe { asm!("fxsave64 [{}]", in(reg) &raw mut image, options(nostack, preserves_flags)) };
    let mask = word(&image.0, MASK_OF_MXCSR);
    if mask != 0 {
        MXCSR_MASK.store(mask, Ordering::Relaxed);
    }
}

/// Finds the state components of the boot CPU, and its bits of MXCSR.
pub(super) fn detect() {
    detect_mxcsr();
    if !features::has(features::XSAVE) {
        return;
    }
    let Some(state) = CpuId::new().get_extended_state_info() else {
        return;
    };
    // SAFETY: leaf 13 exists; its EDX:EAX are the supported components.
    let supported = {
        let leaf = core::arch::x86_64::__cpuid_count(0xd, 0);
        u64::from(leaf.edx) << 32 | u64::from(leaf.eax)
    };
    let mut mask = supported & WANTED;
    // The CPU accepts the three parts of AVX-512 only together.
    if mask & 0xe0 != 0xe0 {
        mask &= !0xe0;
    }
    MASK.store(mask, Ordering::Relaxed);
    let end = state
        .iter()
        .filter(|part| mask >> part.subleaf & 1 == 1 && part.subleaf >= 2)
        .map(|part| (part.offset() + part.size()) as usize)
        .max();
    SIZE.store(end.unwrap_or(0).max(LEGACY + HEADER), Ordering::Relaxed);
}

/// Enables the state components on this CPU.
pub(super) fn enable() {
    let mask = MASK.load(Ordering::Relaxed);
    if mask != 0 {
        // SAFETY: OSXSAVE is on and CPUID lists these components.
        unsafe {
            asm!("xsetbv", in("ecx") 0, in("eax") mask as u32, in("edx") (mask >> 32) as u32,
                 options(nostack, preserves_flags));
        }
    }
}

/// The floating-point exceptions that the running thread has raised and does not mask, as bits of the status word: of SSE
/// with `sse`, otherwise of the x87 unit.
pub fn exceptions(sse: bool) -> u32 {
    if sse {
        let mut mxcsr = 0u32;
        // SAFETY: stores four bytes to a variable of that size.
        unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut mxcsr, options(nostack, preserves_flags)) };
        return mxcsr & !(mxcsr >> 7) & 0x3f;
    }
    let (mut control, mut status) = (0u16, 0u16);
    // SAFETY: each stores two bytes to a variable of that size, and waits for no exception.
    unsafe {
        asm!("fnstcw [{}]", "fnstsw [{}]", in(reg) &raw mut control, in(reg) &raw mut status,
            options(nostack, preserves_flags));
    }
    u32::from(status & !control & 0x3f)
}

/// Bytes of an image.
pub fn size() -> usize {
    SIZE.load(Ordering::Relaxed)
}

/// Bytes that [`FpuArea::save_to`] passes on: the image and, with XSAVE, the second magic number behind it.
pub fn signal_size() -> usize {
    size()
        + if MASK.load(Ordering::Relaxed) != 0 {
            4
        } else {
            0
        }
}

/// Memory for an image ran out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoFpuArea;

/// A saved image, 64-byte aligned.
#[derive(Debug)]
pub struct FpuArea(NonNull<u8>);

// SAFETY: the area owns its memory.
unsafe impl Send for FpuArea {}
// SAFETY: shared references reach the memory only through this module's functions, which do not write it through them.
unsafe impl Sync for FpuArea {}

fn layout() -> Layout {
    // The size is at least 512 and far below the limit; the alignment is a power of two.
    Layout::from_size_align(size(), 64).unwrap_or(Layout::new::<[u8; LEGACY]>())
}

impl FpuArea {
    /// Allocates an area with the state that a program starts with.
    ///
    /// # Errors
    /// [`NoFpuArea`] when memory is short.
    pub fn new() -> Result<Self, NoFpuArea> {
        // SAFETY: the layout is not empty.
        let memory = unsafe { alloc_zeroed(layout()) };
        let mut area = Self(NonNull::new(memory).ok_or(NoFpuArea)?);
        area.reset();
        Ok(area)
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: the area has that many bytes, all initialised.
        unsafe { core::slice::from_raw_parts(self.0.as_ptr(), size()) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the area has that many bytes, all initialised.
        unsafe { core::slice::from_raw_parts_mut(self.0.as_ptr(), size()) }
    }

    /// Resets the state to that with which a program starts.
    pub fn reset(&mut self) {
        let bytes = self.bytes_mut();
        bytes.fill(0);
        bytes[CONTROL_WORD..][..2].copy_from_slice(&CONTROL_WORD_START.to_le_bytes());
        bytes[MXCSR..][..4].copy_from_slice(&MXCSR_START.to_le_bytes());
    }

    /// Copies another area's state.
    pub fn copy_from(&mut self, other: &Self) {
        self.bytes_mut().copy_from_slice(other.bytes());
    }

    /// Saves the CPU's registers here. Called with preemption off.
    #[inline]
    pub fn save(&mut self) {
        let mask = MASK.load(Ordering::Relaxed);
        let (low, high) = (mask as u32, (mask >> 32) as u32);
        let at = self.0.as_ptr();
        // SAFETY: the area is aligned and has room for the state in the mask. XSAVEOPT may leave out what has not changed
        // since it was restored from this very area, where it is still right.
        unsafe {
            if mask == 0 {
                asm!("fxsave64 [{}]", in(reg) at, options(nostack, preserves_flags));
            } else if features::has(features::XSAVEOPT) {
                asm!("xsaveopt64 [{}]", in(reg) at, in("eax") low, in("edx") high,
                     options(nostack, preserves_flags));
            } else {
                asm!("xsave64 [{}]", in(reg) at, in("eax") low, in("edx") high,
                     options(nostack, preserves_flags));
            }
        }
    }

    /// Loads the CPU's registers from this area. Called with preemption off, so that the CPU stays the same.
    #[inline]
    pub fn restore(&self) {
        let mask = MASK.load(Ordering::Relaxed);
        let (low, high) = (mask as u32, (mask >> 32) as u32);
        let at = self.0.as_ptr();
        // SAFETY: the image was saved by `save`, or made valid by `reset` or `load_from`.
        unsafe {
            if mask == 0 {
                asm!("fxrstor64 [{}]", in(reg) at, options(nostack, preserves_flags));
            } else {
                asm!("xrstor64 [{}]", in(reg) at, in("eax") low, in("edx") high,
                     options(nostack, preserves_flags));
            }
        }
    }

    /// Calls `put` with consecutive pieces, each at its offset, of what a Linux signal frame holds: the image, with a
    /// description of it in its software-reserved bytes, and the closing magic number; [`signal_size`] bytes in all.
    ///
    /// # Errors
    /// The first error of `put`.
    pub fn save_to<E>(&self, mut put: impl FnMut(usize, &[u8]) -> Result<(), E>) -> Result<(), E> {
        let mask = MASK.load(Ordering::Relaxed);
        let bytes = self.bytes();
        if mask == 0 {
            return put(0, bytes);
        }
        let mut software = [0u8; LEGACY - SOFTWARE];
        software[..4].copy_from_slice(&FP_XSTATE_MAGIC1.to_le_bytes());
        software[4..8].copy_from_slice(&(signal_size() as u32).to_le_bytes());
        software[8..16].copy_from_slice(&mask.to_le_bytes());
        software[16..20].copy_from_slice(&(size() as u32).to_le_bytes());
        put(0, &bytes[..SOFTWARE])?;
        put(SOFTWARE, &software)?;
        put(LEGACY, &bytes[LEGACY..])?;
        put(size(), &FP_XSTATE_MAGIC2.to_le_bytes())
    }

    /// Loads an image from a signal frame: `get` fills a slice from an offset of the frame. The result can be restored
    /// whatever the frame holds, because reserved bits are cleared. Of an image without the magic numbers, or of another size,
    /// only the FXSAVE part is taken, and the rest is reset.
    ///
    /// # Errors
    /// The first error of `get`; the state is then the one a program starts with.
    pub fn load_from<E>(
        &mut self,
        mut get: impl FnMut(usize, &mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.reset();
        let result = self.load_unchecked(&mut get);
        if result.is_err() {
            self.reset();
        }
        self.sanitise();
        result
    }

    fn load_unchecked<E>(
        &mut self,
        get: &mut impl FnMut(usize, &mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        get(0, &mut self.bytes_mut()[..LEGACY])?;
        if MASK.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        let magic = word(self.bytes(), SOFTWARE);
        let image = word(self.bytes(), SOFTWARE + 16) as usize;
        let mut end = [0; 4];
        if magic == FP_XSTATE_MAGIC1 && image == size() {
            get(size(), &mut end)?;
        }
        if u32::from_le_bytes(end) == FP_XSTATE_MAGIC2 {
            get(LEGACY, &mut self.bytes_mut()[LEGACY..])
        } else {
            // The x87 and SSE components only.
            self.bytes_mut()[LEGACY] = 3;
            Ok(())
        }
    }

    /// Clears every bit with which the restore would fault.
    fn sanitise(&mut self) {
        let mask = MASK.load(Ordering::Relaxed);
        let mxcsr_mask = MXCSR_MASK.load(Ordering::Relaxed);
        let bytes = self.bytes_mut();
        for (byte, allowed) in bytes[MXCSR..][..4].iter_mut().zip(mxcsr_mask.to_le_bytes()) {
            *byte &= allowed;
        }
        if mask != 0 {
            let header = &mut bytes[LEGACY..LEGACY + HEADER];
            for (byte, allowed) in header[..8].iter_mut().zip(mask.to_le_bytes()) {
                *byte &= allowed;
            }
            header[8..].fill(0);
        }
    }
}

impl Drop for FpuArea {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, which does not change after boot.
        unsafe { dealloc(self.0.as_ptr(), layout()) };
    }
}
