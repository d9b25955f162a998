//! Scans of the ready list: one at a time for each epoll.

use alloc::sync::Arc;
use ksync::atomic::Ordering::Relaxed;

use task::park::{Deadline, Interruptible, Step, park_and_pass_on};
use task::wait::Waiter;
use vfs::poll::PollMask;

use super::entry::Entry;
use super::event::{Event, flag};
use super::numbers;
use super::set::Set;

/// The right to scan an epoll. Others wait for its end.
pub(super) struct Turn<'a> {
    set: &'a Set,
    /// The number of the scan.
    scan: u64,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut ready = self.set.ready.lock();
        ready.scanned = false;
        let left = !ready.list.is_empty();
        drop(ready);
        self.set.turn.wake_one();
        // What is left is for another thread.
        if left {
            self.set.waiters.wake_one();
        }
    }
}

/// A scan as the state of a step that waits for its turn.
struct Want<'a> {
    set: &'a Set,
    /// Whether an empty list needs no turn.
    unless_empty: bool,
}

impl<'a> Want<'a> {
    /// The turn, or none if the list is empty; `Err` while another thread scans.
    fn take(&self) -> Result<Option<Turn<'a>>, ()> {
        let mut ready = self.set.ready.lock();
        if ready.scanned {
            return Err(());
        }
        if self.unless_empty && ready.list.is_empty() {
            return Ok(None);
        }
        ready.scanned = true;
        ready.scans += 1;
        let scan = ready.scans;
        Ok(Some(Turn {
            set: self.set,
            scan,
        }))
    }

    fn wait(mut self) -> Option<Turn<'a>> {
        if let Ok(turn) = self.take() {
            return turn;
        }
        let (deadline, signals) = (Deadline::Never, Interruptible::No);
        let taken = park_and_pass_on(
            &mut self,
            deadline,
            signals,
            |want, w| {
                w.listen(&want.set.turn);
                want.take().map_or(Step::Wait, Step::Done)
            },
            |want| {
                want.set.turn.wake_one();
            },
        );
        let turn = taken.ok().flatten();
        if turn.is_none() {
            // It does not need the turn that it was woken for.
            self.set.turn.wake_one();
        }
        turn
    }
}

/// An entry that is being looked at.
struct Look {
    entry: Arc<Entry>,
    round: u64,
    event: Event,
}

/// What has come of a look.
enum Outcome {
    Nothing { unheard: bool },
    Reported { unheard: bool },
    NotDelivered,
}

impl Set {
    /// Waits for the right to scan. May sleep; no signal ends that.
    pub(super) fn take_turn(&self) -> Option<Turn<'_>> {
        let unless_empty = false;
        Want {
            set: self,
            unless_empty,
        }
        .wait()
    }

    /// Looks at entries of the ready list, each at most once, and passes the events of those that are ready to `deliver`, until that has
    /// taken `most`, or fails. An entry whose event was not taken stays as it was. Returns the number taken, and whether one was not. If a queue had no
    /// memory for an entry, `waiter` is to look again. May sleep, for another scan and for locks of files.
    pub(super) fn scan(
        &self,
        most: usize,
        deliver: &mut dyn FnMut(Event) -> Result<(), ()>,
        mut waiter: Option<&mut Waiter>,
    ) -> (usize, bool) {
        let unless_empty = true;
        let want = Want {
            set: self,
            unless_empty,
        };
        let Some(turn) = want.wait() else {
            return (0, false);
        };
        let (mut taken, mut failed) = (0, false);
        while taken < most && !failed {
            let Some(look) = self.next(turn.scan) else {
                break;
            };
            let (found, unheard) = look.look();
            if unheard && let Some(waiter) = &mut waiter {
                waiter.look_again();
            }
            let outcome = if found.is_empty() {
                Outcome::Nothing { unheard }
            } else {
                let events = u32::from(found.0);
                let data = look.event.data;
                match deliver(Event { events, data }) {
                    Ok(()) => Outcome::Reported { unheard },
                    Err(()) => Outcome::NotDelivered,
                }
            };
            taken += usize::from(matches!(outcome, Outcome::Reported { .. }));
            failed = matches!(outcome, Outcome::NotDelivered);
            self.settle(&look, outcome);
        }
        (taken, failed)
    }

    /// Takes the first entry that scan `scan` has not met off the list, and begins a round of it. Entries that are off are passed
    /// over.
    fn next(&self, scan: u64) -> Option<Look> {
        let pin = ksync::pin();
        let mut ready = self.ready.lock();
        loop {
            let number = ready.list.first()?;
            let entry = numbers::hold(&pin, number)?;
            if entry.met.load(Relaxed) == scan {
                return None;
            }
            ready.list.remove(&pin, number);
            entry.met.store(scan, Relaxed);
            if !entry.is_off() {
                let (round, event) = (entry.round.begin(), entry.event());
                return Some(Look {
                    entry,
                    round,
                    event,
                });
            }
        }
    }

    /// Puts an entry that was looked at where it belongs.
    fn settle(&self, look: &Look, outcome: Outcome) {
        let pin = ksync::pin();
        let entry = &look.entry;
        let mut ready = self.ready.lock();
        // If it was changed meanwhile, the change looks at it.
        if entry.is_dead() || !entry.round.goes_on(look.round) {
            return;
        }
        let stays = match outcome {
            Outcome::Nothing { unheard } => unheard,
            Outcome::Reported { .. } if look.event.events & flag::ONESHOT != 0 => {
                entry.turn_off();
                false
            }
            Outcome::Reported { unheard } => unheard || look.event.events & flag::ET == 0,
            Outcome::NotDelivered => true,
        };
        if stays && !entry.links.linked() {
            let number = entry.number.get();
            ready.list.append(&pin, number, &entry.links);
            if matches!(outcome, Outcome::NotDelivered) {
                ready.list.make_first(number);
            }
        }
    }
}

impl Look {
    /// Looks at the file: the events found, and whether the entry could not be registered.
    fn look(&self) -> (PollMask, bool) {
        // A file that has ended takes its entry out.
        let Some(file) = self.entry.file.upgrade() else {
            return (PollMask::NONE, false);
        };
        let mut waiter = self.entry.waiter(self.round, self.event);
        let found = file.poll(Some(&mut waiter)) & self.event.wanted();
        (found, waiter.unheard())
    }
}
