//! The accounts of users, to which what the kernel makes for them is charged.
//!
//! Guarantee: all threads with the same real user id are charged to one account. Mechanism: a table by user id, under a lock
//! that is taken only when a thread changes its real user id. A thread is charged to its account while the table is locked,
//! so the account is not reused for another user in between. See [`cred::Account`].

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use cred::{Account, Charge, MemoryCharge, Payer};
use hal::{PAGE_SIZE, cpu};
use ksync::Spin;
use mem::NoMemory;

use crate::current::current;
use crate::lock;

/// Unused accounts that are tried for a new user before another account is made.
const TRIES: usize = 4;

struct Table {
    by_user: BTreeMap<u32, &'static Account>,
    all: Vec<&'static Account>,
    /// Index in `all` from which the next search for an unused account begins.
    hand: usize,
}

hal::machine_static! {
    static TABLE: Spin<Table, lock::AccountLock> = Spin::new(Table {
        by_user: BTreeMap::new(),
        all: Vec::new(),
        hand: 0,
    });
}

impl Table {
    /// Finds an account to which nothing is charged any more, and gives it to user `uid`.
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

/// The account of user `uid`, with one thread more charged to it: a new user gets one to which nothing is charged any more, or
/// a new one. The caller gives that charge back ([`Payer::give_back`]) when the thread ends or changes its real user. May
/// allocate; takes the table's lock.
///
/// # Errors
/// [`NoMemory`] if a new account is needed and there is no memory for it, or the failure injector says so. Nothing is charged
/// then.
pub fn of_thread(uid: u32) -> Result<Payer, NoMemory> {
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

/// Charges the calling thread's user with `bytes` of the kernel's heap if they are a page or more; smaller objects, which
/// nearly all are, are not charged.
pub fn charge_large(bytes: usize) -> MemoryCharge {
    if bytes < PAGE_SIZE {
        return MemoryCharge::NONE;
    }
    MemoryCharge::new(current().payer(), bytes)
}

/// Calls `f` with each account, without a lock held. Accounts that are not in use are passed, too, and have nothing charged
/// to them.
pub fn each(mut f: impl FnMut(&'static Account)) {
    for i in 0.. {
        let Some(account) = TABLE.lock().all.get(i).copied() else {
            return;
        };
        f(account);
    }
}

/// Bytes of all accounts, which are never freed: for the accounting of the heap.
pub fn table_bytes() -> usize {
    TABLE.lock().all.len() * Account::bytes(cpu::count())
}
