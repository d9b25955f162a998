//! Accounts: the kernel resources that are held on behalf of a user.
//!
//! Guarantee: an amount that is charged to an account is returned to the same account, on whatever CPU and by whatever
//! process. Charging and returning write no line that CPUs share, except once per batch. Amounts are sums of per-CPU
//! deltas ([`Tally`]), and limits are checked with these sums.
//!
//! Credentials refer to the account of their real user by a plain reference. An account is never freed, so references
//! to it are not counted: it is in use while anything is charged to it, and every thread is charged to its own. An
//! account to which nothing is charged is reused for another user.

use core::fmt;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use ksync::Tally;

/// What can be charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Charge {
    /// Threads, and processes that were not waited for yet. First: an account without a thread gets no new charges.
    Threads,
    /// Bytes of kernel memory that are freed when descriptors are closed: pipes, generated texts, locks.
    Memory,
    /// Bytes of names, and of the files that they name, without the files' pages.
    Names,
    /// Pages that pipes may hold.
    PipePages,
    /// Locks on files.
    Locks,
    /// Pending real-time signals.
    Signals,
    /// Descriptors in messages that nobody has received yet.
    InFlight,
    /// Entries of epolls.
    Watches,
    /// Bytes of System V objects and of messages in queues, which stay until they are removed.
    Ipc,
    /// Pages that System V memory may have.
    SharedPages,
    /// Those of them that are locked (SHM_LOCK).
    LockedPages,
    /// Inotify instances.
    Notifiers,
    /// Inodes that these watch.
    Marks,
    /// Bytes that POSIX message queues may hold, as Linux counts them.
    Queues,
    /// Directories of which F_NOTIFY tells, once for each open file and table of descriptors.
    DirMarks,
}

/// How far a CPU's balance may change before the common word is updated; memory has no limit.
const BATCHES: [i64; KINDS] = [
    8,
    i64::MAX,
    1 << 16,
    64,
    64,
    64,
    64,
    64,
    1 << 14,
    64,
    8,
    8,
    64,
    1 << 14,
    8,
];
/// The last kind says how many there are.
const KINDS: usize = Charge::DirMarks as usize + 1;

/// An account.
pub struct Account {
    /// Atomic; changed only while nothing is charged.
    uid: AtomicU32,
    tally: Tally<KINDS>,
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Account({})", self.uid())
    }
}

impl Account {
    /// Bytes that an account takes on a machine of `ncpus` CPUs.
    pub fn bytes(ncpus: usize) -> usize {
        size_of::<Account>() + ncpus * Tally::<KINDS>::CPU_BYTES
    }

    /// The account of user `uid`.
    pub fn new(ncpus: usize, uid: u32) -> Self {
        Account {
            uid: AtomicU32::new(uid),
            tally: Tally::new(ncpus, BATCHES),
        }
    }

    /// The user.
    pub fn uid(&self) -> u32 {
        self.uid.load(Relaxed)
    }

    /// The amount charged: not less than at some moment of the call. Takes time in proportion to the number of CPUs.
    pub fn held(&self, kind: Charge) -> u64 {
        self.tally.outstanding(kind as usize).max(0) as u64
    }

    /// Makes it the account of user `uid` if nothing is charged to it; no thread gets the account meanwhile. Returns
    /// whether it did.
    pub fn reuse(&self, uid: u32) -> bool {
        let unused = self.tally.is_settled();
        if unused {
            self.uid.store(uid, Relaxed);
        }
        unused
    }
}

/// The account that pays for something, or none, for resources of the kernel itself.
#[derive(Clone, Copy, Debug)]
pub struct Payer(Option<&'static Account>);

impl Payer {
    /// No account: the kernel itself.
    pub const NOBODY: Payer = Payer(None);

    /// An account.
    pub const fn new(account: &'static Account) -> Payer {
        Payer(Some(account))
    }

    /// The account.
    pub fn account(self) -> Option<&'static Account> {
        self.0
    }

    /// The amount charged to it; see [`Account::held`].
    pub fn held(self, kind: Charge) -> u64 {
        self.0.map_or(0, |account| account.held(kind))
    }

    /// Whether the two are the same.
    pub fn is(self, other: Payer) -> bool {
        match (self.0, other.0) {
            (Some(a), Some(b)) => core::ptr::eq(a, b),
            (a, b) => a.is_none() && b.is_none(),
        }
    }

    /// Whether limits apply to it: not to the super-user's account.
    #[inline]
    pub fn is_limited(self) -> bool {
        self.0.is_some_and(|account| account.uid() != 0)
    }

    /// Charges `n`, regardless of limits.
    #[inline]
    pub fn charge(self, kind: Charge, n: usize) {
        if let Some(account) = self.0 {
            account.tally.charge(&ksync::pin(), kind as usize, n as i64);
        }
    }

    /// Charges `n` unless more than `most` would be charged then; returns whether it did. Of several callers near the limit, all may be refused.
    pub fn charge_within(self, kind: Charge, n: usize, most: u64) -> bool {
        // Charged first, so that of two threads at the limit one sees the other's charge.
        self.charge(kind, n);
        let over = self.is_over(kind, most);
        if over {
            self.give_back(kind, n);
        }
        !over
    }

    /// Returns `n`.
    #[inline]
    pub fn give_back(self, kind: Charge, n: usize) {
        if let Some(account) = self.0 {
            account
                .tally
                .give_back(&ksync::pin(), kind as usize, n as i64);
        }
    }

    /// Whether more than `limit` is charged, including the amount that the caller has charged before.
    #[inline]
    pub fn is_over(self, kind: Charge, limit: u64) -> bool {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        limit != i64::MAX
            && self
                .0
                .is_some_and(|account| account.tally.is_over(kind as usize, limit))
    }
}

/// An amount of memory that is charged for as long as this lives.
#[derive(Debug)]
pub struct MemoryCharge {
    payer: Payer,
    bytes: u32,
    /// Whether it is charged as [`Charge::Names`].
    names: bool,
}

impl MemoryCharge {
    /// Charges nothing.
    pub const NONE: MemoryCharge = MemoryCharge {
        payer: Payer::NOBODY,
        bytes: 0,
        names: false,
    };

    /// Charges `bytes`.
    pub fn new(payer: Payer, bytes: usize) -> MemoryCharge {
        Self::of(payer, bytes, false)
    }

    /// Charges `bytes` of a name or a file.
    pub fn names(payer: Payer, bytes: usize) -> MemoryCharge {
        Self::of(payer, bytes, true)
    }

    fn of(payer: Payer, bytes: usize, names: bool) -> MemoryCharge {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let charge = MemoryCharge {
            payer,
            bytes,
            names,
        };
        payer.charge(charge.kind(), bytes as usize);
        charge
    }

    fn kind(&self) -> Charge {
        if self.names {
            Charge::Names
        } else {
            Charge::Memory
        }
    }

    /// Changes the amount charged, to the same account.
    pub fn resize(&mut self, bytes: usize) {
        let new = u32::try_from(bytes).unwrap_or(u32::MAX);
        if new > self.bytes {
            self.payer.charge(self.kind(), (new - self.bytes) as usize);
        } else if new < self.bytes {
            self.payer
                .give_back(self.kind(), (self.bytes - new) as usize);
        }
        self.bytes = new;
    }

    /// The account that it is charged to.
    pub fn payer(&self) -> Payer {
        self.payer
    }

    /// The amount charged.
    pub fn bytes(&self) -> usize {
        self.bytes as usize
    }
}

impl Drop for MemoryCharge {
    fn drop(&mut self) {
        self.payer.give_back(self.kind(), self.bytes as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::boxed::Box;

    fn account(uid: u32) -> &'static Account {
        Box::leak(Box::new(Account::new(2, uid)))
    }

    #[test]
    fn memory_is_given_back_to_who_was_charged() {
        let (a, b) = (account(1000), account(1001));
        let mut charge = MemoryCharge::new(Payer::new(a), 100);
        let other = MemoryCharge::new(Payer::new(b), 7);
        charge.resize(300);
        assert_eq!((a.held(Charge::Memory), b.held(Charge::Memory)), (300, 7));
        drop(charge);
        assert_eq!((a.held(Charge::Memory), other.bytes()), (0, 7));
        let mut name = MemoryCharge::names(Payer::new(a), 40);
        name.resize(50);
        assert_eq!((a.held(Charge::Memory), a.held(Charge::Names)), (0, 50));
        drop(name);
        assert_eq!(a.held(Charge::Names), 0);
        assert_eq!((a.held(Charge::Threads), a.held(Charge::Locks)), (0, 0));
    }

    #[test]
    fn an_account_in_use_stays_its_users() {
        let account = account(1000);
        let payer = Payer::new(account);
        payer.charge(Charge::Threads, 1);
        assert!(!account.reuse(1001));
        payer.charge(Charge::Locks, 1);
        payer.give_back(Charge::Threads, 1);
        assert!(!account.reuse(1001), "something of it is left");
        payer.give_back(Charge::Locks, 1);
        assert!(account.reuse(1001));
        assert_eq!(account.uid(), 1001);
    }

    #[test]
    fn limits_are_for_users_with_an_account() {
        let payer = Payer::new(account(1000));
        payer.charge(Charge::Locks, 3);
        assert!(payer.is_over(Charge::Locks, 2));
        assert!(!payer.is_over(Charge::Locks, 3));
        assert!(!payer.is_over(Charge::Locks, u64::MAX));
        assert!(!Payer::NOBODY.is_over(Charge::Locks, 0));
        assert!(payer.is_limited() && !Payer::NOBODY.is_limited());
        assert!(!Payer::new(account(0)).is_limited());
        assert!(payer.is(payer) && !payer.is(Payer::NOBODY));
    }

    #[test]
    fn a_charge_beyond_the_limit_is_none() {
        let account = account(1000);
        let payer = Payer::new(account);
        assert!(payer.charge_within(Charge::DirMarks, 2, 3));
        assert!(!payer.charge_within(Charge::DirMarks, 2, 3));
        assert_eq!(account.held(Charge::DirMarks), 2);
        assert!(payer.charge_within(Charge::DirMarks, 1, 3));
        assert_eq!(account.held(Charge::DirMarks), 3);
    }
}
