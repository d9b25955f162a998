//! Operations on a locked set, and threads that wait to do them.

use alloc::sync::Arc;
use alloc::vec::Vec;

use super::operate::Operation;
use super::set::{MAX_VALUE, State};
use crate::sleeper::Sleeper;
use crate::sysv::error::{Result, SysvError};
use crate::sysv::present::now;
use crate::sysv::trim::trim;

/// What one call asks for.
pub(super) struct Request {
    pub operations: Vec<Operation>,
    /// The list of adjustments, which has adjustments in the set, if an operation has SEM_UNDO.
    pub list: Option<u64>,
    pub pid: u32,
    pub sleeper: Sleeper<Result<()>>,
}

/// A request on the list of a semaphore.
pub(super) struct Waiting {
    pub request: Arc<Request>,
    /// Which came first. Constant.
    pub ticket: u64,
    /// Which of its operations is in the way.
    pub blocked_at: usize,
}

/// What came of the attempt to do a request.
pub(super) enum Attempt {
    /// Done. Some value has changed, if true.
    Done(bool),
    /// Nothing is changed. The operation with this index must wait.
    Blocked(usize),
    /// Nothing is changed.
    Failed(SysvError),
}

/// What those requests wait for that a walk along the list of a semaphore has left on it.
#[derive(Default)]
struct Passed {
    /// Some wait for a larger value.
    more: bool,
    /// Some wait for 0.
    zero: bool,
    /// Some look at the value in more than one operation: they wait for one from which the first ones make 0, or fail where one of
    /// these must not wait.
    twice: bool,
}

impl Passed {
    /// A request is left, of which operation `step` is in the way.
    fn note(&mut self, operations: &[Operation], step: usize) {
        let blocked = &operations[step];
        let mut before = operations[..step].iter();
        let looks = |o: &Operation| o.index() == blocked.index();
        match blocked.by {
            by if before.any(|o| looks(o) && (by == 0 || o.no_wait())) => self.twice = true,
            0 => self.zero = true,
            _ => self.more = true,
        }
    }

    /// Whether one of them may no longer have to wait, after the value has changed.
    fn may_go_on(&self, before: i32, after: i32) -> bool {
        after > before && self.more || after != before && (self.twice || self.zero && after == 0)
    }
}

impl State {
    /// Does all operations of a request, or none.
    pub fn attempt(&mut self, request: &Request) -> Attempt {
        for (at, operation) in request.operations.iter().enumerate() {
            let Err(why) = self.step(request, operation) else {
                continue;
            };
            for done in request.operations[..at].iter().rev() {
                self.shift(request, done, -i32::from(done.by));
            }
            return match why {
                None if operation.no_wait() => Attempt::Failed(SysvError::Again),
                None => Attempt::Blocked(at),
                Some(why) => Attempt::Failed(why),
            };
        }
        for operation in &request.operations {
            self.semaphores[operation.index()].pid = request.pid;
        }
        self.operated = now();
        Attempt::Done(request.operations.iter().any(|o| o.by != 0))
    }

    /// Does one operation. Fails without an error where it must wait.
    fn step(
        &mut self,
        request: &Request,
        operation: &Operation,
    ) -> core::result::Result<(), Option<SysvError>> {
        let by = i32::from(operation.by);
        let value = self.semaphores[operation.index()].value;
        if by == 0 && value != 0 || value + by < 0 {
            return Err(None);
        }
        if value + by > MAX_VALUE {
            return Err(Some(SysvError::Range));
        }
        let adjustment = request.list.filter(|_| operation.undoes());
        let adjustment = adjustment.and_then(|list| self.adjustment(list, operation.index()));
        if let Some(adjustment) = adjustment
            && !(-MAX_VALUE - 1..=MAX_VALUE).contains(&(i32::from(*adjustment) - by))
        {
            return Err(Some(SysvError::Range));
        }
        self.shift(request, operation, by);
        Ok(())
    }

    /// Adds `by` to the semaphore of an operation, and takes it from the adjustment. Both stay in range.
    fn shift(&mut self, request: &Request, operation: &Operation, by: i32) {
        let index = operation.index();
        self.semaphores[index].value += by;
        let list = request.list.filter(|_| operation.undoes());
        if let Some(adjustment) = list.and_then(|list| self.adjustment(list, index)) {
            *adjustment = (i32::from(*adjustment) - by) as i16;
        }
    }

    /// Puts a request on the list of the semaphore that is in its way, in the order of tickets.
    ///
    /// # Errors
    /// `NoMemory`.
    pub fn wait(&mut self, waiting: Waiting) -> Result<()> {
        let index = waiting.request.operations[waiting.blocked_at].index();
        let list = &mut self.semaphores[index].waiting;
        list.try_reserve(1).map_err(|_| SysvError::NoMemory)?;
        let at = list.partition_point(|other| other.ticket < waiting.ticket);
        list.insert(at, waiting);
        Ok(())
    }

    /// Takes a request off its list, if it is on one.
    pub fn forget(&mut self, request: &Arc<Request>) {
        for operation in &request.operations {
            let list = &mut self.semaphores[operation.index()].waiting;
            let is = |waiting: &Waiting| Arc::ptr_eq(&waiting.request, request);
            if let Some(at) = list.iter().position(is) {
                list.remove(at);
                trim(list);
                return;
            }
        }
    }

    /// Does what threads wait to do, after the semaphores `indices` have changed: theirs that wait for these, then for what these have
    /// changed.
    pub fn serve(&mut self, indices: impl DoubleEndedIterator<Item = usize>) {
        let mut changed = None;
        for index in indices.rev() {
            self.note_change(&mut changed, index);
        }
        while let Some(index) = changed {
            changed = self.semaphores[index].next_changed.take();
            self.semaphores[index].is_changed = false;
            self.serve_one(index, &mut changed);
        }
    }

    /// Does what threads wait to do that are on the list of semaphore `index`; puts the other semaphores that these change on the list
    /// `changed`.
    fn serve_one(&mut self, index: usize, changed: &mut Option<usize>) {
        let mut at = 0;
        let mut passed = Passed::default();
        while let Some(waiting) = self.semaphores[index].waiting.get(at) {
            let request = waiting.request.clone();
            let before = self.semaphores[index].value;
            match self.attempt(&request) {
                Attempt::Blocked(step) if request.operations[step].index() == index => {
                    self.semaphores[index].waiting[at].blocked_at = step;
                    passed.note(&request.operations, step);
                    at += 1;
                }
                Attempt::Blocked(step) => self.move_on(index, at, step),
                Attempt::Failed(why) => self.answer(index, at, Err(why)),
                Attempt::Done(changes) => {
                    self.answer(index, at, Ok(()));
                    if passed.may_go_on(before, self.semaphores[index].value) {
                        (at, passed) = (0, Passed::default());
                    }
                    let others = request.operations.iter().filter(|_| changes);
                    for other in others.map(Operation::index).filter(|&o| o != index) {
                        self.note_change(changed, other);
                    }
                }
            }
        }
    }

    /// Puts a semaphore on the list that begins with `first`, unless it is there.
    fn note_change(&mut self, first: &mut Option<usize>, index: usize) {
        let semaphore = &mut self.semaphores[index];
        if !semaphore.is_changed {
            semaphore.is_changed = true;
            semaphore.next_changed = first.replace(index);
        }
    }

    fn take_waiting(&mut self, index: usize, at: usize) -> Option<Waiting> {
        let list = &mut self.semaphores[index].waiting;
        let waiting = list.remove(at);
        trim(list);
        waiting
    }

    /// Takes a waiting thread off the list of a semaphore, and answers it.
    fn answer(&mut self, index: usize, at: usize, answer: Result<()>) {
        if let Some(waiting) = self.take_waiting(index, at) {
            waiting.request.sleeper.answer(answer);
        }
    }

    /// Moves a waiting thread to the list of the semaphore that is in its way now.
    fn move_on(&mut self, index: usize, at: usize, step: usize) {
        let Some(mut waiting) = self.take_waiting(index, at) else {
            return;
        };
        waiting.blocked_at = step;
        let request = waiting.request.clone();
        if let Err(why) = self.wait(waiting) {
            request.sleeper.answer(Err(why));
        }
    }

    /// Answers all that wait: the set is removed.
    pub fn answer_all(&mut self, why: SysvError) {
        for semaphore in &mut self.semaphores {
            for waiting in core::mem::take(&mut semaphore.waiting) {
                waiting.request.sleeper.answer(Err(why));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sysv::perm::flag::NO_WAIT;

    /// The operation of a request on one semaphore that is in the way while it has `value`.
    fn blocked_at(operations: &[Operation], mut value: i32) -> Option<usize> {
        operations.iter().position(|operation| {
            let by = i32::from(operation.by);
            let blocked = by == 0 && value != 0 || value + by < 0;
            value += by;
            blocked
        })
    }

    /// As above, if the request waits for it.
    fn waits_at(operations: &[Operation], value: i32) -> Option<usize> {
        blocked_at(operations, value).filter(|&at| !operations[at].no_wait())
    }

    fn passed(operations: &[Operation], value: i32) -> Passed {
        let mut passed = Passed::default();
        if let Some(step) = waits_at(operations, value) {
            passed.note(operations, step);
        }
        passed
    }

    fn add(by: i16, flags: u32) -> Operation {
        Operation {
            number: 0,
            by,
            flags: flags as u16,
        }
    }

    #[test]
    fn a_walk_begins_again_for_each_request_that_need_not_wait() {
        let kinds = (0..14).map(|n| add(n / 2 - 3, if n % 2 == 0 { 0 } else { NO_WAIT }));
        let kinds: Vec<Operation> = kinds.collect();
        for n in 0..14 * 14 * 14 {
            let all = [kinds[n / 196], kinds[n / 14 % 14], kinds[n % 14]];
            for operations in [&all[..1], &all[..2], &all] {
                for (before, after) in (0..8).flat_map(|a| (0..8).map(move |b| (a, b))) {
                    let waited = waits_at(operations, before).is_some();
                    if waited && waits_at(operations, after).is_none() {
                        let again = passed(operations, before).may_go_on(before, after);
                        assert!(again, "{operations:?}: {before}, {after}");
                    }
                }
            }
        }
    }

    /// Otherwise many threads that take little would make many that want much try again for each.
    #[test]
    fn a_walk_does_not_begin_again_for_those_that_must_wait() {
        let more = passed(&[add(-1000, 0)], 500);
        assert!(!more.may_go_on(500, 499) && !more.may_go_on(1, 0) && !more.may_go_on(1, 1));
        let zero = passed(&[add(0, 0)], 500);
        assert!(!zero.may_go_on(500, 499) && !zero.may_go_on(499, 500));
        assert!(!Passed::default().may_go_on(1, 2));
    }
}
