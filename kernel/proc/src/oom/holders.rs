//! Users for whom the kernel holds much memory, for pipes and the like.
//!
//! Such memory is freed when descriptors are closed. Only open files could say which process holds which part of it,
//! and their locks may be held by threads that wait for memory. So what an account holds is divided among its user's
//! processes in proportion to their open descriptors. The memory for names of files does not count: no process's end
//! frees it, and it has a limit.

use cred::{Charge, Payer};
use hal::PAGE_SIZE;
use mem::vm;

use super::eligible::is_eligible;
use crate::ids;
use crate::process::Process;

/// Most accounts that a search keeps.
const MOST: usize = 8;
/// An account that holds less than this fraction of memory is ignored.
const SMALL_PART: u64 = 64;

#[derive(Clone, Copy)]
pub(super) struct Holder {
    payer: Payer,
    pub uid: u32,
    /// The memory that the kernel holds for the user's processes, in pages.
    pub pages: u64,
    /// How many processes the user has that may be killed, and how many descriptors they have open.
    processes: u64,
    descriptors: u64,
}

impl Holder {
    /// The processes that have at least the average number of descriptors.
    pub fn most(&self) -> Most {
        Most {
            payer: self.payer,
            least: self.descriptors.div_ceil(self.processes.max(1)),
        }
    }

    fn has(&self, p: &Process) -> bool {
        self.payer.is(p.payer())
    }
}

/// The processes of one user that have most descriptors, at least one process.
#[derive(Clone, Copy)]
pub(super) struct Most {
    payer: Payer,
    least: u64,
}

impl Most {
    /// Whether `p` is a process of the user.
    pub fn is_of(&self, p: &Process) -> bool {
        self.payer.is(p.payer())
    }

    pub fn has(&self, p: &Process) -> bool {
        self.is_of(p) && p.open_descriptors() as u64 >= self.least
    }
}

/// The accounts that hold much.
pub(super) struct Holders([Option<Holder>; MOST]);

impl Holders {
    pub const fn new() -> Holders {
        Holders([None; MOST])
    }

    /// Searches all accounts and all processes anew. Processes that end, or may not be killed, do not count.
    pub fn search(&mut self) {
        self.0 = [None; MOST];
        let least = vm().alloc.total_pages() as u64 / SMALL_PART;
        task::account::each(|a| {
            let pages = a.held(Charge::Memory) / PAGE_SIZE as u64;
            let place = self
                .0
                .iter_mut()
                .min_by_key(|h| h.map_or(0, |holder| holder.pages));
            if let Some(place) = place
                && pages > least.max(place.map_or(0, |holder| holder.pages))
            {
                *place = Some(Holder {
                    payer: Payer::new(a),
                    uid: a.uid(),
                    pages,
                    processes: 0,
                    descriptors: 0,
                });
            }
        });
        ids::each_process(2, |p| {
            if is_eligible(p)
                && !p.is_ending()
                && let Some(holder) = self.0.iter_mut().flatten().find(|h| h.has(p))
            {
                holder.processes += 1;
                holder.descriptors += p.open_descriptors() as u64;
            }
            true
        });
    }

    /// The part of its user's pages that a process accounts for.
    pub fn share(&self, p: &Process) -> u64 {
        let Some(holder) = self.0.iter().flatten().find(|h| h.has(p)) else {
            return 0;
        };
        let own = p.open_descriptors() as u64;
        let share = holder.pages * own / holder.descriptors.max(1);
        share.min(holder.pages)
    }

    /// The account that holds most, of those that have processes to kill.
    pub fn largest(&self) -> Option<&Holder> {
        let all = self.0.iter().flatten().filter(|h| h.processes > 0);
        all.max_by_key(|holder| holder.pages)
    }
}
