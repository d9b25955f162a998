//! Contexts of asynchronous input and output: io_setup(2) and its kin.
//!
//! Guarantee: each operation that a context admits is reported once, by an event with its result, and an admitted operation has room
//! for its event, so none is lost and none waits for memory.
//! Mechanism: files are in memory, so an operation is done where it is submitted, and its event goes to the end of a queue
//! that is as long as the program has asked for.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use ksync::atomic::{AtomicU64, Ordering};

use ksync::Spin;
use proc::OfProgram;
use task::park::{Deadline, Interruptible, ParkError, Step, park};
use task::wait::WaitQueue;

ksync::lock_class!(pub ContextLock, "io context", rank = 85);
ksync::lock_class!(pub ListLock, "io contexts", rank = 84);

hal::machine_static! {
    /// The most events of all contexts together, /proc/sys/fs/aio-max-nr. Atomic.
    pub static MAX_EVENTS: AtomicU64 = AtomicU64::new(0x1_0000);
}
hal::machine_static! {
    /// Events that contexts have room for, /proc/sys/fs/aio-nr. Atomic.
    static EVENTS: AtomicU64 = AtomicU64::new(0);
}

/// Events that all contexts have room for.
pub fn events() -> u64 {
    EVENTS.load(Ordering::Relaxed)
}

/// A struct io_event: the submitter's word, the address of the control block, and two results.
pub type Event = [u64; 4];

/// Why a context cannot be made, or does not admit an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AioError {
    /// There are as many events as there may be.
    Again,
    /// There is no memory.
    NoMemory,
    /// There is no such context, or it is destroyed.
    NoContext,
    /// A signal came first.
    Interrupted,
}

/// The part of [`EVENTS`] that a context has.
struct Share(u64);

impl Share {
    fn new(count: u64) -> Result<Share, AioError> {
        let most = MAX_EVENTS.load(Ordering::Relaxed);
        let more = |now: u64| now.checked_add(count).filter(|&sum| sum <= most);
        let taken = EVENTS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.map(|_| Share(count)).map_err(|_| AioError::Again)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        EVENTS.fetch_sub(self.0, Ordering::Relaxed);
    }
}

struct State {
    /// What is done and was not fetched. Has room for as many as the context admits.
    done: VecDeque<Event>,
    /// Operations that are being done.
    running: usize,
    destroyed: bool,
}

/// A context.
pub struct Context {
    /// Its address, by which the program names it.
    at: u64,
    most: Share,
    state: Spin<State, ContextLock>,
    /// Threads that wait for events.
    queue: WaitQueue,
}

impl Context {
    /// Room for the event of an operation, which the caller then does.
    ///
    /// # Errors
    /// `Again`: events that nobody has fetched fill the context. `NoContext`: it is destroyed.
    pub fn admit(&self) -> Result<Admitted<'_>, AioError> {
        let mut state = self.state.lock();
        if state.destroyed {
            return Err(AioError::NoContext);
        }
        if (state.done.len() + state.running) as u64 >= self.most.0 {
            return Err(AioError::Again);
        }
        state.running += 1;
        Ok(Admitted(self))
    }

    /// Takes up to `most` events, oldest first; `None` if there are fewer than `least`.
    fn take(&self, least: usize, most: usize, out: &mut Vec<Event>) -> Option<()> {
        let mut state = self.state.lock();
        let enough = state.done.len() + out.len() >= least || state.destroyed;
        let count = state.done.len().min(most - out.len());
        // `out` has room, so nothing is allocated under the lock.
        out.extend(state.done.drain(..count));
        enough.then_some(())
    }

    /// Fetches events into `out`, which has room for `most`: waits until there are `least`, or the deadline.
    ///
    /// # Errors
    /// `Interrupted`, if there are none by then; `NoContext`, if there are none and the context is destroyed.
    pub fn fetch(
        &self,
        least: usize,
        most: usize,
        deadline: Deadline,
        out: &mut Vec<Event>,
    ) -> Result<(), AioError> {
        let mut me = (self, out, least, most);
        let end = park(&mut me, deadline, Interruptible::Yes, |me, waiter| {
            let (context, out, least, most) = me;
            waiter.listen(&context.queue);
            let taken = context.take(*least, *most, out);
            taken.map_or(Step::Wait, |()| Step::Done(()))
        });
        let none = me.1.is_empty();
        match end {
            Err(ParkError::Signal) if none => Err(AioError::Interrupted),
            Ok(()) if none && least > 0 => Err(AioError::NoContext),
            _ => Ok(()),
        }
    }

    /// The most events that it has room for.
    pub fn most(&self) -> usize {
        self.most.0 as usize
    }

    fn destroy(&self) {
        self.state.lock().destroyed = true;
        self.queue.wake_all();
    }
}

/// An operation that a context has room for. One that is dropped has not happened.
pub struct Admitted<'a>(&'a Context);

impl Admitted<'_> {
    /// Reports the operation.
    pub fn done(self, event: Event) {
        self.0.state.lock().done.push_back(event);
        self.0.queue.wake_all();
    }
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        self.0.state.lock().running -= 1;
    }
}

/// The contexts of a program, by address. Two may have the same one, where the program has unmapped the page of the first.
#[derive(Default)]
pub struct Contexts(Spin<Vec<Arc<Context>>, ListLock>);

impl Contexts {
    /// Those of a program, as a process keeps them.
    pub fn of_program() -> Box<dyn OfProgram> {
        Box::new(Contexts::default())
    }

    /// Adds a context for `most` events at the address `at`.
    ///
    /// # Errors
    /// `Again`, `NoMemory`.
    pub fn add(&self, at: u64, most: u32) -> Result<(), AioError> {
        let share = Share::new(most.into())?;
        let mut done = VecDeque::new();
        done.try_reserve_exact(most as usize)
            .map_err(|_| AioError::NoMemory)?;
        let state = Spin::new(State {
            done,
            running: 0,
            destroyed: false,
        });
        let context = Arc::new(Context {
            at,
            most: share,
            state,
            queue: WaitQueue::new(),
        });
        loop {
            let mut list = self.0.lock();
            if list.len() < list.capacity() {
                let place = list.partition_point(|other| other.at < at);
                list.insert(place, context);
                return Ok(());
            }
            let room = (list.len() * 2).max(4);
            drop(list);
            let mut other = Vec::new();
            other
                .try_reserve_exact(room)
                .map_err(|_| AioError::NoMemory)?;
            let mut list = self.0.lock();
            if list.len() < room {
                other.append(&mut list);
                core::mem::swap(&mut *list, &mut other);
            }
        }
    }

    /// The context at an address.
    ///
    /// # Errors
    /// `NoContext`.
    pub fn find(&self, at: u64) -> Result<Arc<Context>, AioError> {
        let list = self.0.lock();
        let place = list.binary_search_by_key(&at, |context| context.at);
        place.map_or(Err(AioError::NoContext), |n| Ok(list[n].clone()))
    }

    /// Destroys the context at an address: threads that wait for its events find out, and its events are lost.
    ///
    /// # Errors
    /// `NoContext`.
    pub fn destroy(&self, at: u64) -> Result<(), AioError> {
        let mut list = self.0.lock();
        let place = list.binary_search_by_key(&at, |context| context.at);
        let context = list.remove(place.map_err(|_| AioError::NoContext)?);
        drop(list);
        context.destroy();
        Ok(())
    }
}

impl OfProgram for Contexts {
    fn end(&self) {
        let gone = core::mem::take(&mut *self.0.lock());
        for context in &gone {
            context.destroy();
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
