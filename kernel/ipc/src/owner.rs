//! Owners of open files, and the signals that they get: F_SETOWN, F_SETSIG, O_ASYNC.
//!
//! Guarantee: while an open file has O_ASYNC, each change that Linux tells the owner of sends one signal, before the call that made the change
//! returns. The owner is an id: it is not given to another process while it owns a file. Whether the user that named the owner may signal a
//! process is asked of that process's credentials at the time of the signal. The signal's information is kept where the receiver's queue has
//! room for it; a real-time signal for which there is none becomes SIGIO.
//!
//! Mechanism: a file with O_ASYNC is a standing listener of its wait queues ([`ksync::Registration::standing`]), and the cause of a wake-up says
//! what the signal is about. A file without one costs nothing but a word.
//!
//! Rejected: a thread that sends the signals, after the call that caused them. Members that join a group while it is signalled may be
//! passed over; to find all of them as kill(2) does, the sender would sleep.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::any::Any;

use cred::{Cred, MemoryCharge, Payer};
use ksync::{CpuPin, Once, Registration, Round, Spin};
use proc::process::Process;
use proc::signal::{self, SigFields, SigInfo, code, sig};
use proc::{UserThreadExt, ids};
use task::current::current;
use task::ids::Id;
use task::thread::Thread;
use task::wait::{Cause, Waiter};
use vfs::error::{FsError, Result};
use vfs::file::{File, o};
use vfs::watch::Signals;

use crate::dnotify::{self, Marks};
use crate::listeners::OWNER;
use crate::numbers::{self, Number, Numbered, Table};

ksync::lock_class!(pub OwnerLock, "file owner", rank = 89);

/// What an owner's id is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// A thread.
    Thread,
    /// A process.
    Process,
    /// A process group.
    Group,
}

/// What the lock guards.
struct State {
    is: Type,
    id: Option<Id>,
    /// The user that named it.
    uid: u32,
    euid: u32,
    /// The signal; 0 for SIGIO without information.
    signo: u8,
    /// The descriptor by which signals were asked for last.
    fd: i32,
    /// Whether they are sent.
    on: bool,
}

/// The owner of an open file.
pub struct Owner {
    /// Constant.
    number: Number<Owner>,
    /// The listener's. Begun and ended under the lock, but for the file's end.
    round: Round,
    state: Spin<State, OwnerLock>,
    /// The user that asked first. Constant.
    payer: Payer,
    /// Whether a hang-up ends the signals: of a terminal. Constant.
    ends_with_hang_up: bool,
    /// Where a directory's owner is told of what happens in it.
    pub(crate) marks: Marks,
    /// Itself. Constant.
    me: Weak<Owner>,
    _memory: MemoryCharge,
}

hal::machine_static! {
    static OWNERS: Once<Table<Owner>> = Once::new();
}

impl Numbered for Owner {
    fn table() -> Option<&'static Table<Self>> {
        OWNERS.get()
    }

    fn number(&self) -> &Number<Self> {
        &self.number
    }
}

pub(crate) fn init(ncpus: usize) {
    OWNERS.get_or_init(|| Table::new(ncpus));
}

/// Bytes of the table, which never shrinks.
pub(crate) fn table_bytes() -> usize {
    Owner::table().map_or(0, Table::bytes)
}

/// The rounds of the owner with that number.
pub(crate) fn round(pin: &CpuPin, number: u32) -> Option<&Round> {
    Some(&Owner::table()?.get(pin, number)?.round)
}

/// A queue of its file was woken.
pub(crate) fn heard(pin: &CpuPin, number: u32, cause: Option<Cause>) {
    if let (Some(cause), Some(table)) = (cause, Owner::table())
        && let Some(owner) = table.get(pin, number)
    {
        owner.tell(pin, cause);
    }
}

/// The owner of a file; `None` if nothing has asked for one.
pub(crate) fn of(file: &File) -> Option<&Owner> {
    let signals: &dyn Any = file.signals()?;
    signals.downcast_ref()
}

/// The owner of a file, which is made if there is none. May sleep.
///
/// # Errors
/// `NoMemory`.
pub(crate) fn make(file: &File) -> Result<&Owner> {
    if let Some(owner) = of(file) {
        return Ok(owner);
    }
    mem::admit().map_err(|_| FsError::NoMemory)?;
    let number = Owner::table().and_then(Table::alloc);
    let number = number.ok_or(FsError::NoMemory)?;
    let payer = current().payer();
    let owner = Arc::new_cyclic(|me| Owner {
        round: number.rounds(),
        number,
        state: Spin::new(State {
            is: Type::Thread,
            id: None,
            uid: 0,
            euid: 0,
            signo: 0,
            fd: 0,
            on: false,
        }),
        payer,
        ends_with_hang_up: file.ops().default_owner().is_some(),
        marks: Spin::new(Vec::new()),
        me: me.clone(),
        _memory: MemoryCharge::new(payer, size_of::<Owner>() + 2 * size_of::<usize>()),
    });
    numbers::publish(&owner);
    file.set_signals(owner);
    loop {
        // Another thread may be about to set it.
        if let Some(owner) = of(file) {
            return Ok(owner);
        }
        task::sched::yield_now();
    }
}

/// The id `number` as an owner; `None` for 0.
///
/// # Errors
/// `NoProcess` if no thread, process or group has it.
fn find(number: u32) -> Result<Option<Id>> {
    if number == 0 {
        return Ok(None);
    }
    let pin = ksync::pin();
    let used = task::ids::thread(&pin, number).is_some()
        || ids::process(&pin, number).is_some()
        || ids::group(&pin, number).is_some();
    let id = if used { Id::find(number) } else { None };
    id.map(Some).ok_or(FsError::NoProcess)
}

/// F_SETOWN_EX: names the owner, 0 for none. May sleep.
///
/// # Errors
/// `NoProcess`, `NoMemory`; nothing has changed.
pub fn set(file: &File, is: Type, number: u32) -> Result<()> {
    let id = find(number)?;
    make(file)?.name(is, id, true);
    Ok(())
}

/// F_SETOWN: as [`set`], a process, or a group for a negative number.
///
/// # Errors
/// Those, and `Invalid` for the least number.
pub fn set_signed(file: &File, number: i32) -> Result<()> {
    match number {
        i32::MIN => Err(FsError::Invalid),
        0.. => set(file, Type::Process, number as u32),
        _ => set(file, Type::Group, number.unsigned_abs()),
    }
}

/// F_GETOWN_EX: the owner; 0 if there is none any more.
pub fn get(file: &File) -> (Type, u32) {
    let Some(owner) = of(file) else {
        return (Type::Thread, 0);
    };
    let pin = ksync::pin();
    let state = owner.state.lock();
    let number = state.id.as_ref().map_or(0, Id::number);
    let lives = match state.is {
        Type::Thread => task::ids::thread(&pin, number).is_some(),
        Type::Process => ids::process(&pin, number).is_some(),
        Type::Group => ids::group(&pin, number).is_some(),
    };
    (state.is, if lives { number } else { 0 })
}

/// F_GETOWN: as [`get`], a group as a negative number.
pub fn get_signed(file: &File) -> i32 {
    match get(file) {
        (Type::Group, number) => -(number as i32),
        (_, number) => number as i32,
    }
}

/// F_SETSIG: the signal, 0 for SIGIO without information. May sleep.
///
/// # Errors
/// `NoMemory`.
pub fn set_signal(file: &File, signo: u8) -> Result<()> {
    if signo != 0 || of(file).is_some() {
        make(file)?.state.lock().signo = signo;
    }
    Ok(())
}

/// F_GETSIG.
pub fn signal(file: &File) -> u8 {
    of(file).map_or(0, |owner| owner.state.lock().signo)
}

/// The real and the effective user id of the user that named the owner (F_GETOWNER_UIDS).
pub fn uids(file: &File) -> (u32, u32) {
    of(file).map_or((0, 0), |owner| {
        let state = owner.state.lock();
        (state.uid, state.euid)
    })
}

/// Turns O_ASYNC on, by the descriptor `fd`, or off; does nothing if it is so already, or, as Linux, if the file's kind sends no
/// signals. May sleep.
///
/// # Errors
/// `NoMemory`; nothing has changed.
pub fn set_async(file: &File, fd: i32, on: bool) -> Result<()> {
    if on == (file.flags() & o::ASYNC != 0) || !file.ops().sends_signals() {
        return Ok(());
    }
    if on {
        make(file)?.start(file, fd)?;
    } else if let Some(owner) = of(file) {
        owner.stop();
    }
    file.set_async_flag(on);
    Ok(())
}

/// What a signal is about: `si_code`, and `si_band`.
type About = (i32, u64);

impl Owner {
    /// Itself, for what it does not keep.
    pub(crate) fn me(&self) -> Weak<Owner> {
        self.me.clone()
    }

    /// Names the calling process, if there is no owner yet.
    pub(crate) fn default_to_caller(&self) {
        let own = find(current().process().pid()).unwrap_or(None);
        self.name(Type::Process, own, false);
    }

    /// Names the owner; without `force` only if it has none.
    fn name(&self, is: Type, id: Option<Id>, force: bool) {
        let cred = current().cred();
        let mut state = self.state.lock();
        if !force && state.id.is_some() {
            return;
        }
        state.is = is;
        if id.is_some() {
            (state.uid, state.euid) = (cred.uid, cred.euid);
        }
        let old = core::mem::replace(&mut state.id, id);
        drop(state);
        drop(old);
    }

    /// Begins to send signals.
    fn start(&self, file: &File, fd: i32) -> Result<()> {
        if let Some(number) = file.ops().default_owner() {
            let is = if number < 0 {
                Type::Group
            } else {
                Type::Process
            };
            self.name(is, find(number.unsigned_abs()).unwrap_or(None), false);
        }
        let round = {
            let mut state = self.state.lock();
            (state.fd, state.on) = (fd, true);
            self.round.begin()
        };
        let me = Registration::listener(self.number.get() | OWNER, round, false);
        let mut waiter = Waiter::listener(me.standing(), u16::MAX);
        file.ops().listen_for_signals(file, &mut waiter);
        if waiter.unheard() {
            self.stop();
            return Err(FsError::NoMemory);
        }
        Ok(())
    }

    fn stop(&self) {
        let mut state = self.state.lock();
        state.on = false;
        self.round.begin();
    }

    /// Sends a signal about `cause`. Called by the waker of a queue; see [`signal::send_of_file`].
    fn tell(&self, pin: &CpuPin, cause: Cause) {
        let mut state = self.state.lock();
        if !state.on {
            return;
        }
        if cause == Cause::HangUp && self.ends_with_hang_up {
            state.on = false;
            self.round.begin();
            return;
        }
        self.signal(pin, &state, state.fd, about(cause));
    }

    /// Sends a signal that there is a message, by the descriptor `fd`, whether or not the file has O_ASYNC. No spin lock is held.
    pub(crate) fn message(&self, fd: i32) {
        let pin = ksync::pin();
        self.signal(&pin, &self.state.lock(), fd, (code::POLL_MSG, 0x441));
    }

    /// Sends a signal to all that are the owner.
    fn signal(&self, pin: &CpuPin, state: &State, fd: i32, about: About) {
        let Some(id) = &state.id else { return };
        let number = id.number();
        match state.is {
            Type::Thread => {
                if let Some(t) = task::ids::thread(pin, number).filter(|t| !t.is_kernel())
                    && state.may_signal(&t.cred())
                {
                    self.send(state, t.process(), Some(t), fd, about);
                }
            }
            Type::Process => {
                if let Some(p) = ids::process(pin, number) {
                    self.send_if_permitted(state, p, fd, about);
                }
            }
            Type::Group => signal::each_member(pin, number, |p| {
                self.send_if_permitted(state, p, fd, about);
            }),
        }
    }

    fn send_if_permitted(&self, state: &State, p: &Process, fd: i32, about: About) {
        if state.may_signal(&p.cred()) {
            self.send(state, p, None, fd, about);
        }
    }

    fn send(&self, state: &State, p: &Process, thread: Option<&Thread>, fd: i32, about: About) {
        if state.signo != 0 {
            let info = state.info(fd, about);
            if signal::send_of_file(p, thread, info, self.payer).is_ok() {
                return;
            }
        }
        // A standard signal is not refused.
        let _ = signal::send_of_file(p, thread, SigInfo::kernel(sig::IO), self.payer);
    }
}

/// What a signal about the cause of a wake-up says.
fn about(cause: Cause) -> About {
    match cause {
        Cause::Input => (code::POLL_IN, 0x41),
        Cause::Room | Cause::Relief => (code::POLL_OUT, 0x304),
        Cause::HangUp => (code::POLL_HUP, 0x18),
    }
}

impl State {
    /// Whether the user that named the owner may signal a process with these credentials.
    fn may_signal(&self, target: &Cred) -> bool {
        let same = |uid: u32| uid == target.suid || uid == target.uid;
        self.euid == 0 || same(self.euid) || same(self.uid)
    }

    /// The signal with its information.
    fn info(&self, fd: i32, (code, band): About) -> SigInfo {
        // The codes of these mean something else.
        let own_codes = [
            sig::ILL,
            sig::FPE,
            sig::SEGV,
            sig::BUS,
            sig::TRAP,
            sig::CHLD,
            sig::SYS,
        ];
        let code = if own_codes.contains(&self.signo) {
            code::SIGIO
        } else {
            code
        };
        SigInfo {
            signo: self.signo,
            code,
            fields: SigFields::Poll { band, fd },
        }
    }
}

impl Signals for Owner {
    fn descriptor_closed(&self, files: u64) {
        dnotify::end(&self.marks, |mark| mark.is_of(files));
    }

    fn closed(&self) {
        dnotify::end(&self.marks, |_| true);
        self.stop();
        numbers::withdraw(self, self.round.heir());
    }
}
