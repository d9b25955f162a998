//! User programs: functions of the test.

use alloc::sync::Arc;

use super::with_machine;
use crate::UserFrame;

/// A program. It gets its registers, and calls the kernel's functions as its system calls.
pub type Program = Arc<dyn Fn(&mut UserFrame) + Send + Sync>;

/// Address of the first program's only instruction.
const FIRST: u64 = 0x40_0000;
/// Bytes between two programs.
const STEP: u64 = 16;

/// Makes `program` one of the machine's programs. Returns the address of its only instruction, for `rip`.
pub fn add(program: impl Fn(&mut UserFrame) + Send + Sync + 'static) -> u64 {
    let program: Program = Arc::new(program);
    let number = with_machine(None, |machine| {
        let mut all = machine.programs.lock().expect("no test has failed");
        all.push(program);
        Some(all.len() as u64 - 1)
    });
    FIRST + STEP * number.expect("a machine runs this thread")
}

/// Runs the program at `rip`.
pub(crate) fn run(frame: &mut UserFrame) {
    let number = frame.rip.wrapping_sub(FIRST) / STEP;
    let program = with_machine(None, |machine| {
        let all = machine.programs.lock().expect("no test has failed");
        all.get(number as usize).cloned()
    });
    match program {
        Some(program) => program(frame),
        None => panic!("no program is at {:#x}", frame.rip),
    }
}
