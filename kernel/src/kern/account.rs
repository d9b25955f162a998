//! Who pays: the accounts of users.
//!
//! Guarantee: all threads of a real user have one account. Mechanism: a table by user, under a lock that only a change of
//! the real user takes. A thread is charged to its account while the table is locked, so the account that it finds is not
//! given to another user. See [`cred::Account`](::cred::Account).

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use hal::{PAGE_SIZE, cpu};
use ksync::Spin;
use mem::NoMemory;

use super::cred::{Account, Charge, MemoryCharge, Payer};
use super::current;
use super::lock;
use super::process::Process;
use super::rlimit::Resource;
use super::thread::{Thread, flag};

/// Accounts that a new user tries before there is one more.
const TRIES: usize = 4;

struct Table {
    by_user: BTreeMap<u32, &'static Account>,
    all: Vec<&'static Account>,
    /// Where the next user begins to look for an account that nobody needs.
    hand: usize,
}

static TABLE: Spin<Table, lock::AccountLock> = Spin::new(Table {
    by_user: BTreeMap::new(),
    all: Vec::new(),
    hand: 0,
});

impl Table {
    /// An account that nobody needs, for user `uid`.
    fn reuse(&mut self, uid: u32) -> Option<&'static Account> {
        for _ in 0..TRIES.min(self.all.len()) {
            self.hand = (self.hand + 1) % self.all.len();
            let account = self.all[self.hand];
            let old = account.uid();
            if account.reuse(uid) {
                self.by_user.remove(&old);
                return Some(account);
            }
        }
        None
    }
}

/// The account of user `uid`, to which one thread is charged.
///
/// # Errors
/// No memory for a new one.
pub(super) fn of_thread(uid: u32) -> Result<Payer, NoMemory> {
    let mut spare: Option<Box<Account>> = None;
    loop {
        let mut table = TABLE.lock();
        let known = table.by_user.get(&uid).copied();
        let account = match known.or_else(|| table.reuse(uid)) {
            Some(account) => account,
            None => match spare.take() {
                Some(new) => {
                    table.all.try_reserve(1).map_err(|_| NoMemory)?;
                    let account: &'static Account = Box::leak(new);
                    table.all.push(account);
                    account
                }
                None => {
                    drop(table);
                    mem::admit()?;
                    spare = Some(Box::new(Account::new(cpu::count(), uid)));
                    continue;
                }
            },
        };
        if known.is_none() {
            table.by_user.insert(uid, account);
        }
        let payer = Payer::new(account);
        payer.charge(Charge::Threads, 1);
        return Ok(payer);
    }
}

/// Charges the caller's user with `bytes` of the kernel's heap; with nothing where they are less than a page, as they are nearly always.
pub fn charge_large(bytes: usize) -> MemoryCharge {
    if bytes < PAGE_SIZE {
        return MemoryCharge::NONE;
    }
    MemoryCharge::new(current().payer(), bytes)
}

/// Calls `f` with each account, without a lock; those that nobody needs have nothing charged to them.
pub fn each(mut f: impl FnMut(&'static Account)) {
    for i in 0.. {
        let Some(account) = TABLE.lock().all.get(i).copied() else {
            return;
        };
        f(account);
    }
}

/// Bytes of the accounts, which stay: for the books of the heap.
pub fn table_bytes() -> usize {
    TABLE.lock().all.len() * Account::bytes(cpu::count())
}

/// A thread that is charged to an account, until it is [kept](ThreadCharge::keep) or dropped.
pub(super) struct ThreadCharge(Payer);

impl ThreadCharge {
    /// Charges a thread that `me`, of process `p`, is about to make; none where RLIMIT_NPROC forbids it. The limit is on the
    /// threads of the real user; zombies count.
    pub fn new(me: &Thread, p: &Process) -> Option<ThreadCharge> {
        let payer = me.payer();
        payer.charge(Charge::Threads, 1);
        let charge = ThreadCharge(payer);
        let limit = p.rlimit(Resource::Nproc);
        if limit != u64::MAX
            && payer.is_limited()
            && payer.is_over(Charge::Threads, limit)
            && !me.cred().beyond_user_limits()
        {
            return None;
        }
        Some(charge)
    }

    /// The thread lives; its end gives back what is charged.
    pub fn keep(self) {
        core::mem::forget(self);
    }
}

impl Drop for ThreadCharge {
    fn drop(&mut self) {
        self.0.give_back(Charge::Threads, 1);
    }
}

/// A thread's charge ends with it; that of the last one lasts until its process has been waited for, in whose account it
/// is from now on.
pub(super) fn thread_ends(t: &Thread, p: &Process, last: bool) {
    if last {
        if t.tid() == p.pid() {
            // The leader's credentials are the process's.
            return;
        }
        let heir = p.payer();
        if t.payer().is(heir) {
            return;
        }
        heir.charge(Charge::Threads, 1);
    }
    t.payer().give_back(Charge::Threads, 1);
}

/// Whether the caller's user has more threads than RLIMIT_NPROC allows; `others` says that the caller is not to count.
fn is_crowded(t: &Thread, payer: Payer, others: bool) -> bool {
    let limit = t.process().rlimit(Resource::Nproc);
    payer.is_over(Charge::Threads, limit.saturating_add(u64::from(others)))
}

/// `t`, the caller, becomes a thread of another user, to whom it is charged already. That cannot fail for RLIMIT_NPROC, since programs
/// that give privileges up may not look; but its next execve may.
pub(super) fn note_crowd(t: &Thread, payer: Payer) {
    let crowded = payer.is_limited() && is_crowded(t, payer, true);
    if crowded {
        t.set(flag::CROWDED);
    } else if t.has(flag::CROWDED) {
        t.clear(flag::CROWDED);
    }
}

/// Whether `t`, the caller, may call execve: not if it has become a user's who had too many threads, and still has.
pub fn may_exec(t: &Thread) -> bool {
    if !t.has(flag::CROWDED) {
        return true;
    }
    let crowded = is_crowded(t, t.payer(), false);
    if !crowded {
        t.clear(flag::CROWDED);
    }
    !crowded
}
