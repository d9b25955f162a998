//! Who may take the last pages.
//!
//! Each domain keeps back a reserve in proportion to its size. Users stop first; what remains lets the kernel finish
//! what it has begun, page tables go deeper, for giving memory back may need some, and the last quarter is for requests
//! that must not fail.

/// How important a request is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Rights {
    /// Contents of user memory, and whatever a user can ask for without end.
    User,
    /// Kernel objects.
    Kernel,
    /// Page-table pages.
    Table,
    /// Page daemon, interrupts, emergency slabs: may take the last page and is never failed on purpose.
    Reserve,
}

/// How short memory is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Pressure {
    /// Plenty.
    None,
    /// Less than twice what users may not touch: time to reclaim.
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

/// Free pages of one domain at which requests of each rights stop.
#[derive(Clone, Copy, Debug)]
pub(super) struct Marks([usize; 4]);

impl Marks {
    /// Marks of a domain of `size` frames in a machine of `total`.
    ///
    /// The machine's reserve is 64 pages, for the smallest machine must finish a fork, and 1/200 of memory, as in
    /// DragonFly; the kernel may use half of it, page tables three quarters.
    pub(super) fn new(size: usize, total: usize) -> Marks {
        let reserve = 64 + total / 200;
        let share = (reserve * size).checked_div(total).unwrap_or(0);
        Marks([share, share / 2, share / 4, 0])
    }

    pub(super) fn of(&self, rights: Rights) -> usize {
        self.0[rights as usize]
    }
}
