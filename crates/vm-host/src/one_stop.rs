//! Schedules in which one thread is stopped once, while the others run as far as they can.

use std::sync::{Arc, Mutex};

use shuttle::scheduler::{Schedule, Scheduler, Task, TaskId};
use shuttle::{Config, Runner};

/// Tries each schedule in which task `task`, counted in the order in which tasks begin, is stopped once: after its first step,
/// its second, and so on to its last. Returns the number of schedules.
///
/// # Panics
/// If the task makes no step, or a schedule fails.
pub fn everywhere(task: usize, run: impl Fn() + Send + Sync + 'static) -> usize {
    let place = Arc::<Mutex<usize>>::default();
    let scheduler = OneStop {
        task,
        place: place.clone(),
        steps: 0,
        spun: Vec::new(),
    };
    let tried = Runner::new(scheduler, Config::new()).run(run);
    assert!(*place.lock().unwrap() > 1, "the thread has no step");
    tried
}

/// Stops one task at one step, which is one further in each execution.
struct OneStop {
    /// The task's number, in the order in which tasks begin.
    task: usize,
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
        // It ended before that step: it was stopped everywhere.
        if self.steps < *place {
            return None;
        }
        *place += 1;
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
