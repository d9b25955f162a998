//! Schedules in which one thread is stopped once, while the others run as far as they can.

use std::sync::{Arc, Mutex};

use shuttle::scheduler::{Schedule, Scheduler, Task, TaskId};
use shuttle::{Config, Runner};

/// Tries each schedule in which task `task`, counted in the order in which tasks begin, is stopped once: after its first step,
/// its second, and so on to its last. Returns the number of schedules. With a number in `PANTALA_STRIDE`, steps are left out
/// as by [`sparsely`]: `make test`, which has to end, does so.
///
/// # Panics
/// If the task makes no step, or a schedule fails.
pub fn everywhere(task: usize, run: impl Fn() + Send + Sync + 'static) -> usize {
    let said = std::env::var("PANTALA_STRIDE").ok();
    let stride = said.and_then(|n| n.parse().ok()).unwrap_or(1);
    stop(task, stride, run)
}

/// As [`everywhere`], for a task that does the same in a long loop: it is stopped after each of its first and last steps, and
/// in between after each `stride`-th.
///
/// # Panics
/// As [`everywhere`].
pub fn sparsely(task: usize, stride: usize, run: impl Fn() + Send + Sync + 'static) -> usize {
    stop(task, stride, run)
}

/// Steps at the beginning and at the end of a task of which [`sparsely`] leaves out none.
const EDGE: usize = 100;

fn stop(task: usize, stride: usize, run: impl Fn() + Send + Sync + 'static) -> usize {
    let place = Arc::<Mutex<usize>>::default();
    let scheduler = OneStop {
        task,
        stride,
        place: place.clone(),
        steps: 0,
        spun: Vec::new(),
    };
    let tried = Runner::new(scheduler, Config::new()).run(run);
    assert!(*place.lock().unwrap() > 1, "the thread has no step");
    tried
}

/// Stops one task at one step, which is further in each execution.
struct OneStop {
    /// The task's number, in the order in which tasks begin.
    task: usize,
    /// How many steps further it is stopped in the next execution, but at its beginning and its end.
    stride: usize,
    /// Number of steps after which the task is stopped.
    place: Arc<Mutex<usize>>,
    /// Number of steps that it has made.
    steps: usize,
    /// Tasks that have spun since the task made its last step: they may be waiting for it.
    spun: Vec<TaskId>,
}

impl Scheduler for OneStop {
    fn new_execution(&mut self) -> Option<Schedule> {
        let mut place = self.place.lock().unwrap();
        // It ended before that step: it was stopped at each place.
        if self.steps < *place {
            return None;
        }
        let middle = EDGE..self.steps.saturating_sub(EDGE);
        *place = if middle.contains(&*place) {
            middle.end.min(*place + self.stride)
        } else {
            *place + 1
        };
        self.steps = 0;
        self.spun.clear();
        Some(Schedule::new(*place as u64))
    }

    fn next_task(
        &mut self,
        runnable: &[&Task],
        current: Option<TaskId>,
        yields: bool,
    ) -> Option<TaskId> {
        let stopped = self.steps >= *self.place.lock().unwrap();
        let rank = |task: TaskId| match usize::from(task) {
            n if n == self.task && stopped => usize::MAX,
            // Until it is stopped it goes first: then it has made any number of steps when the others begin.
            n if n == self.task => 0,
            n => n,
        };
        self.spun.extend(current.filter(|_| yields));
        if runnable.iter().all(|task| self.spun.contains(&task.id())) {
            // The stopped task spins, too, for one of the others, which spins for another.
            self.spun.clear();
        }
        let next = runnable
            .iter()
            .map(|task| task.id())
            .min_by_key(|task| (self.spun.contains(task), rank(*task)))?;
        if usize::from(next) == self.task {
            self.steps += 1;
            self.spun.clear();
        }
        Some(next)
    }

    fn next_u64(&mut self) -> u64 {
        0
    }
}
