//! Contexts of asynchronous input and output: io_setup(2) and its kin.
//!
//! Guarantee: each operation that a context admits is reported once, by an event with its result, and an admitted operation has room
//! for its event, so none is lost and none waits for memory. An event that could not be handed out is fetched again.
//! Mechanism: files are in memory, so an operation is done where it is submitted, and its event goes to the end of a queue
//! that is as long as the program has asked for.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::ops::Range;
use ksync::atomic::{AtomicU64, Ordering};

use cred::MemoryCharge;
use ksync::{Spin, try_box};
use proc::OfProgram;
use task::current::current;
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
    /// Operations that are being done, and events that are being handed out.
    away: usize,
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
    _memory: MemoryCharge,
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
        if (state.done.len() + state.away) as u64 >= self.most.0 {
            return Err(AioError::Again);
        }
        state.away += 1;
        Ok(Admitted(self))
    }

    /// Takes up to `most` events, and [`PIECE`], oldest first; `None` if there is none.
    fn take(&self, most: usize) -> Option<Piece<'_>> {
        let mut state = self.state.lock();
        let count = state.done.len().min(most).min(PIECE);
        if count == 0 {
            return None;
        }
        let mut piece = Piece {
            context: self,
            events: [[0; 4]; PIECE],
            left: 0..count,
        };
        for (place, event) in piece.events.iter_mut().zip(state.done.drain(..count)) {
            *place = event;
        }
        // They keep their room until they are handed out.
        state.away += count;
        drop(state);
        Some(piece)
    }

    /// Hands up to `most` events to `give`, oldest first, until that returns false: waits until there have been `least`, or for the deadline. Returns
    /// their number. No lock is held while `give` runs; the event that it refuses, and those behind it, are fetched again.
    ///
    /// # Errors
    /// `Interrupted`, if there are none by then; `NoContext`, if there are none and the context is destroyed.
    pub fn fetch(
        &self,
        (least, most): (usize, usize),
        deadline: Deadline,
        give: &mut dyn FnMut(&Event) -> bool,
    ) -> Result<usize, AioError> {
        let mut given = 0;
        while given < most {
            let Some(mut piece) = self.take(most - given) else {
                if given >= least {
                    break;
                }
                match self.wait(deadline) {
                    Ok(()) => continue,
                    Err(AioError::Again) => break,
                    Err(_) if given > 0 => break,
                    Err(why) => return Err(why),
                }
            };
            while let Some(event) = piece.next() {
                if !give(&event) {
                    piece.refused();
                    return Ok(given);
                }
                given += 1;
            }
        }
        Ok(given)
    }

    /// Waits until there is an event.
    ///
    /// # Errors
    /// `Again` at the deadline; `Interrupted`, `NoContext`.
    fn wait(&self, deadline: Deadline) -> Result<(), AioError> {
        let mut me = self;
        let end = park(&mut me, deadline, Interruptible::Yes, |me, waiter| {
            waiter.listen(&me.queue);
            let state = me.state.lock();
            match (state.done.is_empty(), state.destroyed) {
                (false, _) => Step::Done(Ok(())),
                (true, true) => Step::Done(Err(AioError::NoContext)),
                (true, false) => Step::Wait,
            }
        });
        match end {
            Ok(end) => end,
            Err(ParkError::Timeout) => Err(AioError::Again),
            Err(ParkError::Signal) => Err(AioError::Interrupted),
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

/// Most events that are taken in one hold of the lock.
const PIECE: usize = 16;

/// Events that are being handed out. Those that are left when it is dropped go back to the front of the queue.
struct Piece<'a> {
    context: &'a Context,
    events: [Event; PIECE],
    left: Range<usize>,
}

impl Piece<'_> {
    /// The next event, which counts as handed out.
    fn next(&mut self) -> Option<Event> {
        Some(self.events[self.left.next()?])
    }

    /// The last one was not handed out.
    fn refused(&mut self) {
        self.left.start -= 1;
    }
}

impl Drop for Piece<'_> {
    fn drop(&mut self) {
        let mut state = self.context.state.lock();
        state.away -= self.left.end;
        for n in self.left.clone().rev() {
            state.done.push_front(self.events[n]);
        }
        drop(state);
        if !self.left.is_empty() {
            // Another thread may have found none meanwhile.
            self.context.queue.wake_all();
        }
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
        self.0.state.lock().away -= 1;
    }
}

/// The contexts of a program, by address. Two may have the same one, where the program has unmapped the page of the first.
#[derive(Default)]
pub struct Contexts(Spin<Vec<Arc<Context>>, ListLock>);

impl Contexts {
    /// Those of a program, as a process keeps them; `None` without memory.
    pub fn of_program() -> Option<Box<dyn OfProgram>> {
        let contexts = try_box(Contexts::default()).ok()?;
        Some(contexts)
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
        let bytes = size_of::<Context>() + most as usize * size_of::<Event>();
        let state = Spin::new(State {
            done,
            away: 0,
            destroyed: false,
        });
        let context = Arc::new(Context {
            at,
            most: share,
            state,
            queue: WaitQueue::new(),
            _memory: MemoryCharge::new(current().payer(), bytes),
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
