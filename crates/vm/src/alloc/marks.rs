//! Reserves: which requests may take the last pages.
//!
//! Each domain keeps a reserve in proportion to its size. Requests for user memory fail first. Kernel requests may go
//! on, so that the kernel can finish what it has begun; page tables go further, because freeing memory may need some;
//! and the last quarter is for requests that must not fail.

/// How important a request is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Rights {
    /// Contents of user memory, and everything that a user can request without bound.
    User,
    /// Kernel objects.
    Kernel,
    /// Page-table pages.
    Table,
    /// Page daemon, interrupts, emergency slabs: may take the last page and is never failed on purpose.
    Reserve,
}

/// There is no memory for a request of these rights.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoMemory;

/// How short memory is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Pressure {
    /// Plenty.
    None,
    /// At most twice the users' mark: time to reclaim.
    Low,
    /// Users' requests fail.
    Severe,
}

impl Pressure {
    pub(super) fn of(free: usize, user_mark: usize) -> Pressure {
        if free <= user_mark {
            Pressure::Severe
        } else if free <= 2 * user_mark {
            Pressure::Low
        } else {
            Pressure::None
        }
    }
}

/// For each kind of rights, the number of free pages of one domain at which its requests fail.
#[derive(Clone, Copy, Debug)]
pub(super) struct Marks([usize; 4]);

impl Marks {
    /// Marks of a domain of `size` frames in a machine of `total`.
    ///
    /// The machine's reserve is 1/200 of memory, as in DragonFly, plus 64 pages, because the smallest machine must
    /// finish a fork. The kernel may use half of it, page tables three quarters.
    pub(super) fn new(size: usize, total: usize) -> Marks {
        let reserve = 64 + total / 200;
        let share = (reserve * size).checked_div(total).unwrap_or(0);
        Marks([share, share / 2, share / 4, 0])
    }

    pub(super) fn of(&self, rights: Rights) -> usize {
        self.0[rights as usize]
    }
}
