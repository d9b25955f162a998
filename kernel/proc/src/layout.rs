//! Where things go in a user address space, and how that is randomised.
//!
//! The layout is Linux's for x86-64: the program at low addresses (or at two thirds of the space, if it is
//! position-independent), the heap after it, the stack at the top, and mappings downwards from a gap below the stack.
//! Programs and debuggers rely on this layout.

use ksync::atomic::{AtomicBool, Ordering};

use elfload::{PAGE, USER_END};

/// The base of a position-independent program before randomisation: two thirds of the space.
const DYN_BASE: u64 = (USER_END / 3 * 2) & !(PAGE - 1);
/// The gap between the stack's top and the mappings is at least this many bytes.
const GAP_MIN: u64 = 128 << 20;
/// And at most this many, however large the stack limit.
const GAP_MAX: u64 = USER_END / 6 * 5;
/// The range of Linux's randomisation of mappings and of position-independent programs: 28 bits of pages. A sixteenth
/// of it is used here: 24 bits of pages, 64 GiB.
const MAP_RND_PAGES: u64 = 1 << 28;
/// The range of the stack's randomisation: 22 bits of pages, 16 GiB.
const STACK_RND_PAGES: u64 = 1 << 22;
/// The range of the heap's randomisation: 32 MiB.
const BRK_RND_PAGES: u64 = (32 << 20) / PAGE;

hal::machine_static! {
    /// Whether addresses are randomised; `norandmaps` on the command line clears it. Written once.
    static SHAKE: AtomicBool = AtomicBool::new(true);
}

/// Turns address randomisation off; called while the command line is read.
pub fn no_aslr() {
    SHAKE.store(false, Ordering::Relaxed);
}

/// Whether addresses are randomised.
pub fn randomizes() -> bool {
    SHAKE.load(Ordering::Relaxed)
}

/// The addresses that `execve` chooses.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// One past the stack's last byte.
    pub stack_top: u64,
    /// Mappings without a fixed address go below this address.
    pub mmap_base: u64,
    /// Added to [`DYN_BASE`] for a position-independent program.
    dyn_shift: u64,
    /// Added to the end of the program to get the start of the heap.
    brk_shift: u64,
}

impl Layout {
    /// Chooses addresses from four random words, for a stack limit of `stack_limit` bytes. They are randomised if
    /// `shake` is set and `norandmaps` is not.
    pub fn choose(random: [u64; 4], stack_limit: u64, shake: bool) -> Layout {
        let shake = shake && SHAKE.load(Ordering::Relaxed);
        let pages = |word: u64, range: u64| if shake { word % range * PAGE } else { 0 };
        let stack_top = USER_END - pages(random[0], STACK_RND_PAGES);
        let gap = stack_limit
            .saturating_add(256 << 10)
            .clamp(GAP_MIN, GAP_MAX)
            & !(PAGE - 1);
        // The gap is measured from the lowest top that randomisation can give the stack.
        let below = USER_END - STACK_RND_PAGES * PAGE;
        let mmap_base =
            below.saturating_sub(gap).max(GAP_MIN) - pages(random[1], MAP_RND_PAGES / 16);
        Layout {
            stack_top,
            mmap_base,
            dyn_shift: pages(random[2], MAP_RND_PAGES / 16),
            brk_shift: pages(random[3], BRK_RND_PAGES),
        }
    }

    /// The base of a position-independent image whose first page is at `first` and whose segments want the alignment
    /// `align`, a power of two.
    pub fn dyn_base(&self, first: u64, align: u64) -> u64 {
        ((DYN_BASE + self.dyn_shift) & !(align - 1)) - (first & !(align - 1))
    }

    /// One past the last address that a position-independent program may have: the stack has `GAP_MIN` bytes above it. Where the
    /// limit of the stack is large, mappings are below the program.
    pub fn program_end(&self) -> u64 {
        USER_END - STACK_RND_PAGES * PAGE - GAP_MIN
    }

    /// The start of the heap of a program that ends at `end`, a page boundary.
    pub fn brk(&self, end: u64) -> u64 {
        end + self.brk_shift
    }
}
