//! What the objects of a user take, charged to the user that made them.
//!
//! Such memory stays when its makers end, so the killer of processes cannot get it back: it has a limit for each user, from which the
//! super-user is exempt.

use ksync::atomic::{AtomicUsize, Ordering::Relaxed};

use cred::{Charge, Cred, Payer};

use super::error::{Result, SysvError};

/// The part of memory that the objects and messages of one user may take: a sixteenth.
const PART: u64 = 16;

/// An amount that is charged until it is given back, at the latest by the drop.
#[derive(Debug)]
pub struct Charged {
    payer: Payer,
    kind: Charge,
    /// 0 once it was given back. Atomic.
    amount: AtomicUsize,
}

impl Charged {
    /// Charges `amount` to the user of `cred`, of whom no more than `limit` may be charged.
    ///
    /// # Errors
    /// `NoSpace` beyond the limit.
    pub fn new(cred: &Cred, kind: Charge, amount: usize, limit: u64) -> Result<Charged> {
        let charged = Charged {
            payer: cred.payer,
            kind,
            amount: AtomicUsize::new(amount),
        };
        // Charged first, so that of two threads at the limit one sees the other's charge.
        charged.payer.charge(kind, amount);
        if charged.payer.is_over(kind, limit) && !cred.beyond_user_limits() {
            return Err(SysvError::NoSpace);
        }
        Ok(charged)
    }

    /// Charges bytes of an object or a message.
    ///
    /// # Errors
    /// `NoSpace` beyond the user's limit.
    pub fn bytes(cred: &Cred, bytes: usize) -> Result<Charged> {
        let all = mem::vm().alloc.total_pages() as u64 * hal::PAGE_SIZE as u64;
        Charged::new(cred, Charge::Ipc, bytes, all / PART)
    }

    /// The amount that is charged.
    pub fn amount(&self) -> usize {
        self.amount.load(Relaxed)
    }

    /// Gives the amount back before the drop, for an object whose drop waits for a grace period.
    pub fn give_back(&self) {
        let amount = self.amount.swap(0, Relaxed);
        if amount != 0 {
            self.payer.give_back(self.kind, amount);
        }
    }
}

impl Drop for Charged {
    fn drop(&mut self) {
        self.give_back();
    }
}
