//! Console input, from the serial interrupt to the line discipline of the terminal.
//!
//! The interrupt handler puts bytes in a ring. A kernel thread takes them out and gives them to the terminal, which may sleep
//! and may send signals to whole process groups.

use ksync::atomic::{AtomicU8, AtomicU32, Ordering};

use task::kthread;
use task::park::{Deadline, Interruptible, Step, park};
use task::wait::{WaitQueue, Waiter};

const SIZE: u32 = 1024;

/// Received bytes. There is one producer at a time, because the interrupt goes to one CPU, and one consumer, the thread.
struct Ring {
    bytes: [AtomicU8; SIZE as usize],
    /// Bytes received so far. Written by the producer.
    head: AtomicU32,
    /// Bytes taken out so far. Written by the consumer.
    tail: AtomicU32,
    queue: WaitQueue,
}

hal::machine_static! {
    static RING: Ring = Ring {
        bytes: [const { AtomicU8::new(0) }; SIZE as usize],
        head: AtomicU32::new(0),
        tail: AtomicU32::new(0),
        queue: WaitQueue::new(),
    };
}

/// Puts a received byte in the ring and wakes the thread. Called by the interrupt handler. If the ring is full the byte is
/// lost, as on a real serial line.
pub fn received(byte: u8) {
    let _pin = task::sched::interrupt();
    let head = RING.head.load(Ordering::Relaxed);
    if head.wrapping_sub(RING.tail.load(Ordering::Acquire)) < SIZE {
        RING.bytes[(head % SIZE) as usize].store(byte, Ordering::Relaxed);
        RING.head.store(head.wrapping_add(1), Ordering::SeqCst);
        RING.queue.wake_one();
    }
}

/// Starts the kernel thread that passes each byte to `consume`, and then enables the receive interrupt. Prints a message, and
/// leaves the console without input, if there is no memory for the thread.
pub fn start(consume: fn(u8)) {
    let thread = kthread::spawn("console", None, 0, move || {
        loop {
            let byte = park(
                &mut (),
                Deadline::Never,
                Interruptible::No,
                |(), waiter: &mut Waiter| {
                    waiter.listen(&RING.queue);
                    let tail = RING.tail.load(Ordering::Relaxed);
                    if tail == RING.head.load(Ordering::SeqCst) {
                        return Step::Wait;
                    }
                    let byte = RING.bytes[(tail % SIZE) as usize].load(Ordering::Relaxed);
                    RING.tail.store(tail.wrapping_add(1), Ordering::Release);
                    Step::Done(byte)
                },
            );
            if let Ok(byte) = byte {
                consume(byte);
            }
        }
    });
    match thread {
        Ok(_) => hal::console::enable_input(),
        Err(_) => hal::kprintln!("no memory for the console's thread: no input"),
    }
}
