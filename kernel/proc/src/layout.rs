//! Where things go in a user address space, and how they are shaken.
//!
//! The outline is Linux's for x86-64: the program low (or at two thirds of the space, when it
//! is position-independent), the heap after it, the stack at the top, mappings downwards from
//! a gap below the stack.  Programs and debuggers know this outline, so it stays.

use core::sync::atomic::{AtomicBool, Ordering};

use elfload::{PAGE, USER_END};

/// Base of a position-independent program before it is shaken: two thirds of the space.
const DYN_BASE: u64 = (USER_END / 3 * 2) & !(PAGE - 1);
/// The gap between the stack's top and the mappings is at least this.
const GAP_MIN: u64 = 128 << 20;
/// And at most this, however large the stack limit.
const GAP_MAX: u64 = USER_END / 6 * 5;
/// Shaking of mappings and of position-independent programs: 28 bits of pages, as Linux.
const MAP_RND_PAGES: u64 = 1 << 28;
/// Shaking of the stack: 22 bits of pages, 16 GiB.
const STACK_RND_PAGES: u64 = 1 << 22;
/// Shaking of the heap: up to 32 MiB.
const BRK_RND_PAGES: u64 = (32 << 20) / PAGE;

/// Whether addresses are shaken; `norandmaps` on the command line clears it.  Written once.
static SHAKE: AtomicBool = AtomicBool::new(true);

/// Switches address randomisation off; called while the command line is read.
pub fn no_aslr() {
    SHAKE.store(false, Ordering::Relaxed);
}

/// Whether addresses are randomised.
pub fn shakes() -> bool {
    SHAKE.load(Ordering::Relaxed)
}

/// The places that `execve` chooses.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// One past the stack's last byte.
    pub stack_top: u64,
    /// Mappings without an address go below this.
    pub mmap_base: u64,
    /// Added to [`DYN_BASE`] for a position-independent program.
    dyn_shift: u64,
    /// Added to the end of the program for the heap's start.
    brk_shift: u64,
}

impl Layout {
    /// Chooses places from four random words, for a stack limit of `stack_limit` bytes.
    pub fn choose(random: [u64; 4], stack_limit: u64, shake: bool) -> Layout {
        let shake = shake && SHAKE.load(Ordering::Relaxed);
        let pages = |word: u64, range: u64| if shake { word % range * PAGE } else { 0 };
        let stack_top = USER_END - pages(random[0], STACK_RND_PAGES);
        let gap = stack_limit
            .saturating_add(256 << 10)
            .clamp(GAP_MIN, GAP_MAX)
            & !(PAGE - 1);
        // The gap is taken from the highest possible stack, and the stack's own shaking with it.
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

    /// Base of a position-independent image whose first page is `first` and whose segments want
    /// `align`.
    pub fn dyn_base(&self, first: u64, align: u64) -> u64 {
        ((DYN_BASE + self.dyn_shift) & !(align - 1)) - (first & !(align - 1))
    }

    /// Start of the heap of a program that ends at `end` (a page boundary).
    pub fn brk(&self, end: u64) -> u64 {
        end + self.brk_shift
    }
}
