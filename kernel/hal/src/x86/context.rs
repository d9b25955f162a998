//! Threads as the CPU sees them: a stack, saved registers, and the switch between threads.
use core::arch::naked_asm;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU64, Ordering};

use super::fpu::FpuArea;
use super::tls::{self, Bases};
use super::{percpu, preempt};
use crate::frame::UserFrame;
use crate::limits::USER_END;

pub use super::stack::KernelStack;

/// Memory for a thread's stack or registers ran out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoThreadMemory;

/// Value of `saved` while the thread runs, and so has no saved registers.
const RUNNING: u64 = 0;

/// The state of a thread that is not running, as far as the machine needs it.
///
/// It is written by the switch, with preemption off, on the CPU that the thread leaves or enters. The state of a running
/// thread is accessed by that thread only.
#[derive(Debug)]
pub struct ThreadState {
    /// Address of the saved registers on the stack, or [`RUNNING`]. Atomic.
    saved: AtomicU64,
    /// `None` for a CPU's first thread, whose stack was there before it.
    stack: Option<KernelStack>,
    user: Option<UnsafeCell<UserState>>,
}

#[derive(Debug)]
struct UserState {
    fpu: FpuArea,
    bases: Bases,
}

// SAFETY: `user` is accessed as the type's documentation says: by one CPU at a time, and the scheduler's locks order the
// CPUs.
unsafe impl Sync for ThreadState {}

impl ThreadState {
    /// Makes the state of a new thread. The first switch to it calls `entry` on a stack of its own, with interrupts and
    /// preemption as the switch left them. With `user` the thread also has user registers, which are 0 at first.
    ///
    /// # Errors
    /// [`NoThreadMemory`] when memory is short.
    pub fn new(entry: fn() -> !, user: bool) -> Result<Self, NoThreadMemory> {
        let stack = KernelStack::alloc().map_err(|_| NoThreadMemory)?;
        let user = if user {
            let fpu = FpuArea::new().map_err(|_| NoThreadMemory)?;
            Some(UnsafeCell::new(UserState {
                fpu,
                bases: Bases::default(),
            }))
        } else {
            None
        };
        // What `switch_registers` pops: six registers, of which RBP is the last, and a return address. The space above is for
        // the frame of the user registers.
        let top = stack.top() - size_of::<UserFrame>() as u64;
        let saved = top - 64;
        let words: [u64; 8] = [
            0,
            0,
            0,
            entry as usize as u64,
            0,
            0,
            first_entry as *const () as u64,
            0,
        ];
        // SAFETY: the words lie within the new stack, which nothing else uses yet.
        unsafe { (saved as *mut [u64; 8]).write(words) };
        Ok(Self {
            saved: AtomicU64::new(saved),
            stack: Some(stack),
            user,
        })
    }

    /// Makes the state of the thread that runs now on this CPU's first stack: its idle thread.
    pub fn current() -> Self {
        Self {
            saved: AtomicU64::new(RUNNING),
            stack: None,
            user: None,
        }
    }

    /// Top of the thread's stack; `None` for a CPU's first thread.
    pub fn stack_top(&self) -> Option<u64> {
        self.stack.as_ref().map(KernelStack::top)
    }

    /// Whether the thread's registers are saved, so that it may be switched to or freed.
    pub fn is_saved(&self) -> bool {
        self.saved.load(Ordering::Acquire) != RUNNING
    }

    /// Gives a thread that has not run yet the user registers `frame`, and a copy of the running thread's FPU state and FS
    /// and GS bases: for fork and clone. The thread's entry function then calls [`enter_user_first`]. Does nothing to a thread
    /// without user registers.
    pub fn inherit(&mut self, frame: &UserFrame) {
        if let (Some(top), Some(user)) = (self.stack_top(), self.user.as_mut()) {
            let at = (top - size_of::<UserFrame>() as u64) as *mut UserFrame;
            // SAFETY: the frame lies within the thread's own stack, above what `new` wrote, and the thread does not run yet.
            unsafe { at.write(*frame) };
            let user = user.get_mut();
            preempt::disable();
            user.fpu.save();
            user.bases = tls::read();
            preempt::enable();
        }
    }

    /// Sets the FS base of a thread that has not run yet. Returns false, and changes nothing, if `fs` is not a user address.
    pub fn set_tls(&mut self, fs: u64) -> bool {
        let user = fs < USER_END;
        if let (true, Some(state)) = (user, self.user.as_mut()) {
            state.get_mut().bases.fs = fs;
        }
        user
    }

    /// Gives the running thread the FPU state and the bases with which a program starts: for execve. `self` must be the
    /// running thread's.
    pub fn reset_user(&self) {
        if let Some(user) = &self.user {
            preempt::disable();
            // SAFETY: the running thread's own state, with preemption off.
            let user = unsafe { &mut *user.get() };
            user.fpu.reset();
            user.fpu.restore();
            tls::write(tls::read(), Bases::default());
            preempt::enable();
        }
    }

    /// Saves the running thread's FPU state, and passes it to `put` for a signal frame; see [`FpuArea::save_to`]. `put` may
    /// fault and sleep. `self` must be the running thread's.
    ///
    /// # Errors
    /// The first error of `put`.
    pub fn save_fpu_to<E>(&self, put: impl FnMut(usize, &[u8]) -> Result<(), E>) -> Result<(), E> {
        let Some(user) = &self.user else {
            return Ok(());
        };
        // SAFETY: this is the running thread's own state. If `put` sleeps, the switch saves the same register values to the
        // same place, because nothing changes them meanwhile.
        let fpu = unsafe {
            preempt::disable();
            (*user.get()).fpu.save();
            preempt::enable();
            &(*user.get()).fpu
        };
        fpu.save_to(put)
    }

    /// Loads the running thread's FPU state from a signal frame, which `get` reads; see [`FpuArea::load_from`]. `get` may
    /// fault and sleep. `self` must be the running thread's.
    ///
    /// # Errors
    /// The first error of `get`; `out_of_memory` if there is no memory for a copy. The state is as before then.
    pub fn load_fpu_from<E>(
        &self,
        get: impl FnMut(usize, &mut [u8]) -> Result<(), E>,
        out_of_memory: E,
    ) -> Result<(), E> {
        let Some(user) = &self.user else {
            return Ok(());
        };
        // If `get` sleeps, the switch saves the registers to the thread's area, so the new state is read into another area
        // first.
        let Ok(mut new) = FpuArea::new() else {
            return Err(out_of_memory);
        };
        new.load_from(get)?;
        preempt::disable();
        // SAFETY: the running thread's own state, with preemption off.
        let fpu = unsafe { &mut (*user.get()).fpu };
        fpu.copy_from(&new);
        fpu.restore();
        preempt::enable();
        Ok(())
    }
}

impl Drop for ThreadState {
    fn drop(&mut self) {
        // The stack that the CPU runs on must not be freed.
        assert!(
            self.is_saved() || self.stack.is_none(),
            "a running thread's state is dropped"
        );
    }
}

/// Saves the running thread in `prev` and resumes `next`. Returns when a CPU, perhaps another one, switches back to `prev`.
/// Called with preemption off; each thread has its own interrupt flag.
///
/// `prev` must be the running thread's state, and both must stay alive until their threads have left the CPU. Panics if
/// `next` is running.
#[inline]
pub fn switch(prev: &ThreadState, next: &ThreadState) {
    let saved = next.saved.swap(RUNNING, Ordering::Acquire);
    assert!(saved != RUNNING, "switching to a thread that runs");
    let now = tls::read();
    if let Some(user) = &prev.user {
        // SAFETY: the running thread's own state, with preemption off.
        let user = unsafe { &mut *user.get() };
        user.fpu.save();
        user.bases = now;
    }
    if let Some(user) = &next.user {
        // SAFETY: the exchange above gave `next` to this CPU.
        let user = unsafe { &*user.get() };
        user.fpu.restore();
        tls::write(now, user.bases);
    }
    if let Some(top) = next.stack_top() {
        percpu::set_kernel_stack(top);
    }
    // SAFETY: `saved` is what an earlier switch or `new` stored for `next`, and this CPU has taken it. `prev.saved` is
    // written after the registers have been pushed.
    unsafe { switch_registers(prev.saved.as_ptr(), saved) };
}

/// # Safety
/// `next` must be a stack pointer stored by this function or made by [`ThreadState::new`].
#[unsafe(naked)]
unsafe extern "C" fn switch_registers(prev: *mut u64, next: u64) {
    naked_asm!(
        "push rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        // An aligned store, after all others: a CPU that sees it may resume the thread.
        "mov [rdi], rsp",
        "mov rsp, rsi",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret",
    )
}

/// Where the first switch to a new thread returns to. R12 holds the thread's entry; the stack is aligned for a call.
#[unsafe(naked)]
unsafe extern "C" fn first_entry() {
    naked_asm!("xor ebp, ebp", "sub rsp, 8", "call r12", "ud2")
}

/// Enters user mode with the registers that [`ThreadState::inherit`] has put at the top of the running thread's stack.
/// `state` must be the running thread's.
pub fn enter_user_first(state: &ThreadState) -> ! {
    let top = state
        .stack_top()
        .expect("a CPU's first thread has no user mode");
    let frame = (top - size_of::<UserFrame>() as u64) as *const UserFrame;
    // SAFETY: the frame lies within the thread's stack, above everything in use. It was written by `inherit`, or is zero, and
    // any bytes are a valid value.
    let frame = unsafe { *frame };
    super::trap::enter_user(&frame)
}

pub use super::trap::enter_user;
